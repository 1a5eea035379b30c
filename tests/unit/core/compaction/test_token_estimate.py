"""Tokens by bytes: a scale that learns from reports, in bounds."""

import base64

import msgspec
import pytest

from holdfast.core.compaction.token_estimate import (
    DEFAULT_SCALE,
    IMAGE_TOKENS,
    Scale,
    estimate_tokens,
    text_bytes,
)
from holdfast.core.model.items import message


def test_a_report_of_more_tokens_is_believed_at_once_and_of_less_in_steps() -> None:
    denser = DEFAULT_SCALE.learned(2000, 0, 1000)
    assert denser.bytes_per_token == 2.0
    thinner = DEFAULT_SCALE.learned(6000, 0, 1000)
    assert 4.0 < thinner.bytes_per_token < 6.0
    for _ in range(50):
        thinner = thinner.learned(6000, 0, 1000)
    assert thinner.bytes_per_token == pytest.approx(6.0, rel=0.01)


@pytest.mark.parametrize(("size", "tokens"), [(10**9, 100), (1, 10**9), (0, 500), (500, 0)])
def test_no_report_moves_the_scale_beyond_what_texts_can_be(size: int, tokens: int) -> None:
    scale = DEFAULT_SCALE
    for _ in range(100):
        scale = scale.learned(size, 1, tokens)
    assert 1.5 <= scale.bytes_per_token <= 8.0


def test_an_inline_picture_counts_as_a_picture_and_not_by_its_bytes() -> None:
    picture = base64.b64encode(b"p" * 300_000).decode()
    url = f"data:image/png;base64,{picture}"
    part = {"type": "input_image", "image_url": url}
    body = msgspec.json.encode({"type": "message", "role": "user", "content": [part]})
    assert IMAGE_TOKENS <= DEFAULT_SCALE.item(body) < IMAGE_TOKENS + 100
    assert text_bytes([body], {}) < 200


def test_an_estimate_grows_with_items_instructions_and_tools() -> None:
    bodies = [message("user", "hello " * 100).body]
    plain = estimate_tokens(bodies, {})
    more = estimate_tokens(bodies, {"instructions": msgspec.Raw(b'"' + b"x" * 400 + b'"')})
    assert plain > 100
    assert more >= plain + 100
    assert estimate_tokens(bodies, {}, Scale(2.0)) > 1.8 * plain
