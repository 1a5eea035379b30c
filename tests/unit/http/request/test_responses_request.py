"""Plain Responses requests: decoded in one step, with the result of the general way."""

from typing import Any

import msgspec
import pytest

from holdfast.core.model.request import write_request
from holdfast.http.request.body import parse_fields
from holdfast.http.request.decoding import PLAIN_BYTES
from holdfast.http.request.responses_request import read_plain_response, read_response_request

ASK = {"model": "m", "input": "hi"}
PLAIN = [
    ASK,
    {"model": "m", "input": " hällo 😀 \r\n\t "},
    {"model": "m", "input": ""},
    {**ASK, "stream": True, "store": False},
    b'{"model": "first", "input": "\\ud83d\\ude00", "model": "m\\u00e9"}',
]
OTHER = [
    {**ASK, "temperature": 0},
    {**ASK, "stream": None},
    {**ASK, "background": True},
    {**ASK, "previous_response_id": "resp_1"},
    {"model": "m", "input": [{"role": "user", "content": "hi"}]},
    {"model": "m", "input": None},
    {"model": "m"},
    {"model": "", "input": "hi"},
    {"input": "hi"},
    {"model": "m", "input": "x" * PLAIN_BYTES},
    b'{"model": "m", "input": "\xff"}',
    b'{"model": "m", "input": "\\ud83d"}',
    b'{"model": "m", "input": "x"',
    b"[" * 5000,
    b"",
]


def _body(value: Any) -> bytes:
    return value if isinstance(value, bytes) else msgspec.json.encode(value)


@pytest.mark.parametrize("value", PLAIN, ids=str)
def test_a_plain_request_is_what_the_general_way_makes_of_it(value: Any) -> None:
    plain = read_plain_response(_body(value))
    general = read_response_request(parse_fields(_body(value)))
    assert plain == general
    assert plain is not None
    assert write_request(plain.turn_request) == write_request(general.turn_request)


@pytest.mark.parametrize("value", OTHER, ids=lambda value: str(value)[:80])
def test_any_other_request_is_left_to_the_general_way(value: Any) -> None:
    assert read_plain_response(_body(value)) is None
