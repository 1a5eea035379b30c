"""Which commands of a batch may go side by side, and which must see what others did before."""

from collections.abc import Hashable, Sequence
from typing import Any

from holdfast.core.transaction.commands import Command
from holdfast.stores.postgres.row_locks import Locked, names_of

Wave = list[int]


def waves(commands: Sequence[Command[Any]], locked: Locked) -> list[Wave]:
    """Return the batch in waves, as indices: no wave has two commands about the same thing.

    Commands about the same session keep their order. Within a wave they are sorted, so that two
    processes that make the same sessions make them in the same order.
    """
    last: dict[Hashable, int] = {}
    found: list[Wave] = []
    order: dict[int, str] = {}
    for index, command in enumerate(commands):
        names = names_of(command)
        things = {*names, *(one for name in names for one in locked.sessions_of(name))}
        wave = max((last[thing] + 1 for thing in things if thing in last), default=0)
        for thing in things:
            last[thing] = wave
        if wave == len(found):
            found.append([])
        found[wave].append(index)
        order[index] = min(map(repr, names), default="")
    return [sorted(wave, key=lambda index: (order[index], index)) for wave in found]
