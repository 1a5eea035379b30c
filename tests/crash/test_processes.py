"""Processes that share one store, and processes that are killed: one conversation all the same."""

from pathlib import Path

import pytest

from tests.crash.processes import ActorProcess, Event, actors, an_actor

CONTACTS = 40


async def test_forty_first_contacts_in_two_processes_are_one_serial_conversation(
    store_url: str,
) -> None:
    async with actors({"url": store_url}, {"url": store_url}) as cast:
        names = [
            (actor, actor.tell("turn", key="k", text=f"t{number}"))
            for number in range(CONTACTS)
            for actor in [cast[number % 2]]
        ]
        done = [await actor.expect("done", name) for actor, name in names]
        seen = [(await actor.expect("model", name))["seen"] for actor, name in names]
        history = await cast[0].history("k")
        assert history["sessions"] == 1
        assert {event["session"] for event in done} == {history["session"]}
    texts = history["texts"]
    assert len(texts) == 2 * CONTACTS
    assert sorted(texts[::2]) == sorted(f"t{number}" for number in range(CONTACTS))
    assert texts[1::2] == [f"re: {text}" for text in texts[::2]]
    assert sorted(len(one) for one in seen) == list(range(1, 2 * CONTACTS, 2))
    for one in seen:
        assert one == texts[: len(one)], "every model call saw all earlier answers"


async def test_a_killed_process_leaves_its_lane_to_the_other_and_its_turn_to_a_retry(
    store_url: str,
) -> None:
    # So long a lease that only the token can tell that its holder is dead.
    orders = {"url": store_url, "lease_seconds": 600}
    async with actors(orders, orders) as (killed, successor):
        await killed.turn("k", "hello")
        lost = killed.tell("turn", key="k", text="lost", idempotency_key="i", holds=True)
        await killed.expect("model", lost)
        waiting = successor.tell("turn", key="k", text="next")
        await successor.expect("accepted", waiting)
        assert successor.heard("model", waiting) is None, "the lane is taken"
        await killed.kill()
        await successor.expect("done", waiting)
        again = await successor.turn("k", "lost", idempotency_key="i")
        assert again["answer"] == ["re: lost"]
        repeat = await successor.turn("k", "lost", idempotency_key="i")
        assert repeat["answer"] == ["re: lost"]
        history = await successor.history("k")
    assert history["texts"] == ["hello", "re: hello", "next", "re: next", "lost", "re: lost"]
    assert history["log"].count("lost") == 2, "its first place stays readable"
    assert history["turns"] == [
        [1, "completed", None, 1], [2, "completed", None, 2], [3, "completed", None, 1],
    ]  # fmt: skip
    assert len(successor.said["model"]) == 2, "each request called the model once here"


async def test_a_killed_process_whose_token_was_removed_leaves_its_lane_at_once(
    tmp_path: Path,
) -> None:
    orders = {"url": f"sqlite:///{tmp_path}/a.db", "lease_seconds": 600}
    async with actors(orders) as (killed,):
        lost = killed.tell("turn", key="k", text="lost", holds=True)
        await killed.expect("model", lost)
        await killed.kill()
    assert _remove_tokens(tmp_path) > 0
    async with actors(orders) as (successor,):
        assert (await successor.turn("k", "next"))["answer"] == ["re: next"]
        history = await successor.history("k")
    assert history["texts"] == ["lost", "next", "re: next"]
    assert [turn[1] for turn in history["turns"]] == ["interrupted", "completed"]


def _remove_tokens(folder: Path) -> int:
    """Remove what lies beside the database and is no part of it; return how much that was."""
    database = {"a.db", "a.db-wal", "a.db-shm"}
    tokens = [path for path in folder.rglob("*") if path.is_file() and path.name not in database]
    for token in tokens:
        token.unlink()
    return len(tokens)


async def test_a_repeat_that_waits_for_the_turn_of_a_killed_process_resumes_it(
    store_url: str,
) -> None:
    orders = {"url": store_url, "lease_seconds": 600}
    async with actors(orders, orders) as (killed, successor):
        lost = killed.tell("turn", key="k", text="lost", idempotency_key="i", holds=True)
        await killed.expect("model", lost)
        again = successor.tell("turn", key="k", text="lost", idempotency_key="i")
        # It stands by: another turn of its process shows that it has had the time to.
        await successor.turn("other", "meanwhile")
        assert successor.heard("model", again) is None
        await killed.kill()
        assert (await successor.expect("done", again))["answer"] == ["re: lost"]
        history = await successor.history("k")
    assert history["texts"] == ["lost", "re: lost"]
    assert history["turns"] == [[1, "completed", None, 2]]


async def test_a_frozen_process_loses_its_lane_when_its_lease_ends_and_changes_nothing_later(
    store_url: str,
) -> None:
    orders = {"url": store_url, "lease_seconds": 2}
    async with actors(orders, orders) as (frozen, successor):
        late = frozen.tell("turn", key="k", text="late", holds=True)
        await frozen.expect("model", late)
        frozen.freeze()
        assert (await successor.turn("k", "next"))["answer"] == ["re: next"]
        frozen.tell("release", id=late)
        frozen.thaw()
        failed = await frozen.expect("failed", late)
        assert failed["code"] == "run_fenced"
        history = await successor.history("k")
        assert history["texts"] == ["late", "next", "re: next"]
        assert (await frozen.turn("k", "I am back"))["answer"] == ["re: I am back"]


@pytest.mark.parametrize("step", [12 * 3600.0, -12 * 3600.0])
async def test_a_step_of_the_clock_takes_no_run_from_a_living_process(
    store_url: str, tmp_path: Path, step: float
) -> None:
    # So long a lease that none is renewed between the step and the end of the test.
    clock_file = tmp_path / "clock"
    clock_file.write_text("0")
    orders = {"url": store_url, "lease_seconds": 600, "clock_file": str(clock_file)}
    async with actors(orders, orders) as (owner, neighbour):
        first = owner.tell("turn", key="k", text="first", holds=True)
        await owner.expect("model", first)
        _set_clock(clock_file, step)
        second = neighbour.tell("turn", key="k", text="second")
        await neighbour.expect("accepted", second)
        # A process that starts after the step sweeps, and does not know what the clock was.
        async with an_actor(**orders) as newcomer:
            assert (await newcomer.turn("other", "hi"))["answer"] == ["re: hi"]
            owner.tell("release", id=first)
            assert (await owner.expect("done", first))["answer"] == ["re: first"]
            assert (await neighbour.expect("done", second))["answer"] == ["re: second"]
            history = await newcomer.history("k")
    assert history["texts"] == ["first", "re: first", "second", "re: second"]
    assert history["turns"] == [[1, "completed", None, 1], [2, "completed", None, 1]]


def _set_clock(path: Path, seconds: float) -> None:
    """Set the clock of all processes at once."""
    new = path.with_suffix(".new")
    new.write_text(str(seconds))
    new.replace(path)


# ── killed at any commit ────────────────────────────────────────────────────────────────────

JOBS = ["job1", "job2", "job3"]


async def _work(actor: ActorProcess) -> list[str]:
    """Have a turn with three jobs waiting behind it; return those that were accepted."""
    actor.tell("turn", id="hi", key="k", text="hi", idempotency_key="i", holds=True)
    for job in JOBS:
        try:
            await actor.expect("accepted", "hi" if job == JOBS[0] else JOBS[JOBS.index(job) - 1])
        except AssertionError:
            break
        actor.tell("turn", id=job, key="k", text=job, source="background")
    actor.tell("release", id="hi")
    await actor.until_dead()
    return [job for job in JOBS if actor.heard("accepted", job)]


def _once_and_in_order(history: Event, accepted: list[str]) -> None:
    """Check a conversation after a crash and its recovery."""
    texts = history["texts"]
    questions = [text for text in texts if not text.startswith("re: ")]
    assert len(questions) == len(set(questions)), "nothing twice"
    assert [text for text in questions if text in JOBS] == JOBS[
        : sum(job in questions for job in JOBS)
    ], "in the order of their acceptance"
    assert set(accepted) <= set(questions), "what was accepted is there"
    for text in questions:
        assert texts.count(f"re: {text}") == 1, "answered once"


@pytest.mark.parametrize("die_at", [2, 3, 4, 5, 6, 7, 8, 9, 11, 13])
async def test_killed_at_any_commit_nothing_is_lost_doubled_or_stuck(
    tmp_path: Path, die_at: int
) -> None:
    url = f"sqlite:///{tmp_path}/a.db"
    killed = ActorProcess(
        {"url": url, "handles": True, "die_at": die_at, "is_after": die_at % 2 == 0}
    )
    try:
        await killed.launch()
        accepted = await _work(killed)
    finally:
        await killed.kill()
    async with an_actor(url=url, handles=True) as successor:
        assert (await successor.turn("k", "next"))["answer"] == ["re: next"]
        assert (await successor.turn("k", "hi", idempotency_key="i"))["answer"] == ["re: hi"]
        history = await successor.history("k")
    _once_and_in_order(history, accepted)
    assert {status for _, status, _, _ in history["turns"]} == {"completed"}
    assert history["status"] == "idle"


async def test_a_turn_that_keeps_killing_its_process_is_given_up(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/a.db"
    async with an_actor(url=url) as first:
        first.tell("turn", id="hi", key="k", text="hi", holds=True)
        await first.expect("model", "hi")
        first.tell("turn", id="p", key="k", text="poison", source="background")
        await first.expect("accepted", "p")
        first.tell("turn", id="j", key="k", text="job", source="background")
        await first.expect("accepted", "j")
        await first.kill()
    deaths = 0
    for _ in range(3):
        actor = ActorProcess({"url": url, "handles": True, "max_attempts": 3})
        try:
            await actor.launch()
            await actor.until_dead()
            deaths += actor.heard("handled") is not None
        finally:
            await actor.kill()
    assert deaths == 3
    async with an_actor(url=url, handles=True, max_attempts=3) as last:
        assert (await last.turn("k", "next"))["answer"] == ["re: next"]
        history = await last.history("k")
        assert [event["text"] for event in last.said["handled"]] == ["job"]
    assert history["turns"] == [
        [1, "interrupted", "worker_lost", 1], [2, "failed", "turn_abandoned", 3],
        [3, "completed", None, 1], [4, "completed", None, 1],
    ]  # fmt: skip
    assert history["texts"] == ["hi", "poison", "job", "re: job", "next", "re: next"]
