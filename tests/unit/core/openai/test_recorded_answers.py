"""What a run stores of its answer, and how it is read back."""

import msgspec
import pytest
from msgspec.structs import replace

from holdfast.core.model.session import MOST_TOKENS, Usage
from holdfast.core.openai.response import RecordedAnswer, answer_of, pack_answer, usage_value
from tests.unit.core.builders import a_run, a_session, a_started_turn

PLAIN = Usage(10, 2, 16, 3)
HUGE = Usage(MOST_TOKENS + 1, 0, 1, 0)
DETAILED = b'{"input_tokens":10,"cost":0.25}'


@pytest.mark.parametrize(
    ("usage", "told", "is_left_out"),
    [
        (PLAIN, usage_value(PLAIN), True),
        (PLAIN, DETAILED, False),
        (HUGE, usage_value(HUGE), False),
        (None, b"null", False),
    ],
    ids=["plain", "detailed", "implausible", "unknown"],
)
def test_usage_is_read_as_it_was_reported(
    usage: Usage | None, told: bytes, is_left_out: bool
) -> None:
    answer = RecordedAnswer(usage=msgspec.Raw(told), completed_at=5.0)
    packed = pack_answer(answer, usage)
    assert (b"input_tokens" not in packed) == (is_left_out or usage is None)
    run = replace(a_run(a_session(), a_started_turn()), result=packed)
    if usage is not None and usage.is_countable:
        run = replace(
            run, input_tokens=usage.input_tokens, cached_tokens=usage.cached_tokens,
            output_tokens=usage.output_tokens, reasoning_tokens=usage.reasoning_tokens,
        )  # fmt: skip
    read = answer_of(run)
    assert read is not None
    assert bytes(read.usage) == told
    assert read.completed_at == 5.0


def test_a_run_without_a_result_has_no_answer() -> None:
    assert answer_of(a_run(a_session(), a_started_turn())) is None
