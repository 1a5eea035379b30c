"""Commands submitted until their outcome is known, and reads of runs: the engine's retry loop.

`StoreUnavailable` says nothing about the outcome: the commit may have happened. So a command is
sent again with `again` set; the store then returns the outcome of the first attempt, and does
nothing twice.
"""

import asyncio
from collections.abc import Awaitable, Callable
from functools import partial
from typing import TypeVar

from msgspec.structs import replace

from holdfast.core.errors import StoreUnavailable
from holdfast.core.transaction.commands import Command
from holdfast.ports.store import Store

OutcomeT = TypeVar("OutcomeT")

FIRST_PAUSE_SECONDS = 0.05
"""The pause before the second attempt in seconds; each further pause is twice as long."""
SUBMIT_TRIES = 4
"""Attempts for commands whose caller can report that the store is unavailable."""
FINISH_TRIES = 8
"""Attempts for commands that end or annotate a run, which nobody else can write."""


async def submit(
    store: Store, command: Command[OutcomeT], *, tries: int = SUBMIT_TRIES
) -> OutcomeT:
    """Submit a command; if the store does not answer, ask again for the outcome."""
    try:
        return await store.submit(command)
    except StoreUnavailable:
        return await resubmit(store, command, tries=tries - 1)


async def resubmit(store: Store, command: Command[OutcomeT], *, tries: int) -> OutcomeT:
    """Ask for the outcome of a command that may have been committed, up to `tries` times."""
    return await ask_again(store, partial(store.submit, replace(command, again=True)), tries=tries)


async def ask_again(
    store: Store, ask: Callable[[], Awaitable[OutcomeT]], *, tries: int = FINISH_TRIES - 1
) -> OutcomeT:
    """Ask a store that did not answer again, up to `tries` times, with growing pauses.

    Whoever waits for the answer has waited for the first attempt too, which a store that hangs
    answers late. So nothing is tried again once the outage is long.
    """
    pause = FIRST_PAUSE_SECONDS
    while True:
        if store.is_given_up:
            raise StoreUnavailable("the store has not answered for some time")
        await asyncio.sleep(pause)
        pause *= 2
        tries -= 1
        try:
            return await ask()
        except StoreUnavailable:
            if tries <= 0:
                raise
