"""Check whether a history of overlapping operations is linearizable.

The search of Wing and Gong with Lowe's cache: an operation may come first if no remaining one had
returned before it was invoked; each set of done operations with a state is tried once.
"""

from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

StateT = TypeVar("StateT", bound=Hashable)
ActionT = TypeVar("ActionT")


@dataclass(frozen=True, slots=True)
class Operation(Generic[ActionT]):
    """An operation between two moments; without a return, it is unknown whether it was done."""

    action: ActionT
    invoked: int
    returned: int | None


def is_linearizable(
    history: Sequence[Operation[ActionT]],
    apply: Callable[[StateT, ActionT], Iterable[StateT]],
    initial: StateT,
) -> bool:
    """Whether some order of the operations explains them all; `apply` returns the next states."""
    ops = sorted(history, key=lambda op: op.invoked)
    certain = sum(1 << place for place, op in enumerate(ops) if op.returned is not None)
    tried: set[tuple[int, StateT]] = set()
    left: list[tuple[int, StateT]] = [(0, initial)]
    while left:
        done, state = left.pop()
        if done & certain == certain:
            return True
        if (done, state) in tried:
            continue
        tried.add((done, state))
        for place in _minimal(ops, done):
            after = done | 1 << place
            left.extend((after, following) for following in apply(state, ops[place].action))
    return False


def _minimal(ops: Sequence[Operation[ActionT]], done: int) -> list[int]:
    """Return the operations that no other remaining one must precede."""
    open_ = [place for place in range(len(ops)) if not done >> place & 1]
    returns = [ops[place].returned for place in open_]
    first_return = min((moment for moment in returns if moment is not None), default=None)
    return [place for place in open_ if first_return is None or ops[place].invoked < first_return]
