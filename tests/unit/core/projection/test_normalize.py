"""Messages that are recognised as valid at once are those that need no change."""

from typing import Any

import msgspec
from hypothesis import example, given
from hypothesis import strategies as st

from holdfast.core.projection.normalize import is_valid_message, normalize_item, read_valid_text

parts = st.fixed_dictionaries(
    {"type": st.sampled_from(["input_text", "output_text", "text", "refusal", "input_image", 1])},
    optional={
        "text": st.sampled_from(["", "hi", None, 3]),
        "refusal": st.sampled_from(["", "no", None]),
        "annotations": st.just([]),
    },
)
messages: st.SearchStrategy[dict[str, Any]] = st.fixed_dictionaries(
    {},
    optional={
        "type": st.just("message"),
        "role": st.sampled_from(["user", "assistant", "system", "developer", "tool", "", None]),
        "content": st.one_of(
            st.lists(parts, max_size=2), st.sampled_from(["", "hi", None, [None], [[]], {}])
        ),
        "id": st.just("msg_1"),
    },
)
VALID = [
    {"role": "user", "content": [{"type": "input_text", "text": "hi"}]},
    {"role": "assistant", "content": [{"type": "output_text", "text": "hi", "annotations": []}]},
]


@given(value=messages)
@example(value=VALID[0])
@example(value=VALID[1])
def test_a_text_that_is_valid_at_first_sight_needs_no_change(value: dict[str, Any]) -> None:
    body = msgspec.json.encode(value)
    try:
        read_valid_text(body)
    except msgspec.DecodeError:
        assert value not in VALID
    else:
        assert is_valid_message(body)
        assert normalize_item("message", body) is body
