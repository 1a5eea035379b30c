"""Turns that nobody waits for outlive their process: another carries them out, in their order."""

from tests.crash.processes import actors, an_actor

# So long a lease that only the token can tell that its holder is dead.
LEASE_SECONDS = 600


async def test_a_process_that_lives_takes_up_at_once_what_a_killed_one_was_doing(
    store_url: str,
) -> None:
    orders = {"url": store_url, "lease_seconds": LEASE_SECONDS, "handles": True}
    async with actors(orders, orders) as (doomed, heir):
        lost = doomed.tell("turn", key="k", text="lost", source="channel", holds=True)
        await doomed.expect("model", lost)
        behind = heir.tell("turn", key="k", text="behind")
        await heir.expect("accepted", behind)
        await doomed.kill()
        assert (await heir.expect("done", behind))["answer"] == ["re: behind"]
        history = await heir.history("k")
    assert heir.said["handled"] == [{"event": "handled", "text": "lost", "attempts": 2}]
    assert history["texts"] == ["lost", "re: lost", "behind", "re: behind"]
    assert [turn[1] for turn in history["turns"]] == ["completed", "completed"]


async def test_a_process_that_starts_later_takes_up_what_was_left_in_its_order(
    store_url: str,
) -> None:
    async with an_actor(url=store_url, lease_seconds=LEASE_SECONDS, handles=True) as doomed:
        first = doomed.tell("turn", key="k", text="first", source="channel", holds=True)
        await doomed.expect("model", first)
        for text in ("second", "third"):
            waiting = doomed.tell("turn", key="k", text=text, source="cron")
            await doomed.expect("accepted", waiting)
        await doomed.kill()
    async with an_actor(url=store_url, lease_seconds=LEASE_SECONDS, handles=True) as heir:
        await heir.expect("handled")
        last = await heir.turn("k", "last")
        assert last["answer"] == ["re: last"]
        history = await heir.history("k")
    order = ["first", "second", "third", "last"]
    assert history["texts"] == [line for text in order for line in (text, f"re: {text}")]
    assert [event["text"] for event in heir.said["handled"]] == order[:3]
