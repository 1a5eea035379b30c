"""What a request says about its context."""

from typing import Any

import msgspec
import pytest

from holdfast.core.compaction.context_options import (
    ContextOptions,
    max_output_tokens,
    read_context_options,
)
from holdfast.core.errors import InvalidInput


def fields(**given: Any) -> dict[str, msgspec.Raw]:
    return {name: msgspec.Raw(msgspec.json.encode(value)) for name, value in given.items()}


def test_a_request_without_options_has_the_defaults() -> None:
    assert read_context_options({}) == ContextOptions()
    assert (
        read_context_options(fields(truncation=None, context_management=None)) == ContextOptions()
    )


def test_truncation_and_compaction_are_read() -> None:
    entry = {"type": "compaction", "compact_threshold": 5000}
    assert read_context_options(
        fields(truncation="auto", context_management=[entry])
    ) == ContextOptions(truncation="auto", compacts=True, compact_threshold=5000)
    assert read_context_options(fields(context_management=[{"type": "compaction"}])).compacts


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("truncation", "always"),
        ("truncation", 1),
        ("context_management", "compaction"),
        ("context_management", [{"type": "forgetting"}]),
        ("context_management", [{"type": "compaction", "compact_threshold": 0}]),
        ("context_management", [{"type": "compaction", "compact_threshold": "many"}]),
    ],
)
def test_what_means_nothing_is_refused_by_name(name: str, value: Any) -> None:
    with pytest.raises(InvalidInput) as caught:
        read_context_options(fields(**{name: value}))
    assert caught.value.param == name


def test_the_longest_answer_is_found_in_the_words_of_either_api() -> None:
    assert max_output_tokens(fields(max_output_tokens=7)) == 7
    assert max_output_tokens({}, fields(max_completion_tokens=8)) == 8
    assert max_output_tokens({}, fields(max_tokens=9)) == 9
    assert max_output_tokens(fields(max_output_tokens=None), {}) is None
