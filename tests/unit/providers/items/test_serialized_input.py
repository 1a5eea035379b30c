"""The input of Responses requests costs the same at every length of history."""

import pytest

from holdfast.core.projection.growing_list import SharedPrefix, share
from holdfast.providers.items.replay import Replay
from holdfast.providers.items.seal_owner import SealOwner
from holdfast.providers.items.serialized_input import write_input
from tests.own_calls import own_calls

REPLAY = Replay(owner=SealOwner("p", "a", "m"))
USER = b'{"type":"message","role":"user","content":"hi"}'
ANSWER = b'{"id":"msg_0123456789abcdef","type":"message","role":"assistant","content":"yes"}'
CALL = b'{"type":"function_call","call_id":"call_%d","name":"f","arguments":"{}"}'
OUTPUT = b'{"type":"function_call_output","call_id":"call_%d","output":"1"}'


@pytest.mark.parametrize("is_tool_loop", [False, True])
def test_a_turn_costs_the_same_at_every_length(is_tool_loop: bool) -> None:
    """A loop of tool calls without any message in between is such a history as well."""
    counts = set()
    for length in (10, 100, 1000):
        steps = [(CALL % n, OUTPUT % n) if is_tool_loop else (USER, ANSWER) for n in range(length)]
        history = share([USER, *(item for step in steps for item in step)])
        write_input(REPLAY, history)
        longer = history.grown([CALL % length, OUTPUT % length])

        def write(longer: SharedPrefix[bytes] = longer) -> None:
            write_input(REPLAY, longer)

        counts.add(own_calls(write))
    assert len(counts) == 1, counts


def test_every_branch_of_a_history_writes_only_its_own_items() -> None:
    """Forks of one session, and answers to the same question, share what was sent before."""
    counts = set()
    for length in (10, 100, 1000):
        steps = [(USER, ANSWER.replace(b"0123456789abcdef", b"%016x" % n)) for n in range(length)]
        history = share([item for step in steps for item in step])
        write_input(REPLAY, history.upto(2 * length - 1))
        for number in range(2):
            write_input(REPLAY, history.grown([USER, b'{"role":"user","content":"%d"}' % number]))
        other = history.grown([USER, b'{"role":"user","content":"another"}'])
        assert other.shared is not history.shared

        def write(other: SharedPrefix[bytes] = other) -> None:
            assert b'"another"' in write_input(REPLAY, other)[-1]

        counts.add(own_calls(write))
        assert b"".join(write_input(REPLAY, other)) == b"".join(
            write_input(REPLAY, share(list(other)))
        )
    assert len(counts) == 1, counts
