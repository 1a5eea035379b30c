"""Turns that nobody waits for survive their process: another one runs them, in their order."""

from tests.crash.processes import actors, an_actor

# So long a lease that only the token can tell that its holder is dead.
LEASE_SECONDS = 600


async def test_a_living_process_resumes_at_once_what_a_killed_one_was_doing(
    store_url: str,
) -> None:
    orders = {"url": store_url, "lease_seconds": LEASE_SECONDS, "handles": True}
    async with actors(orders, orders) as (killed, successor):
        lost = killed.tell("turn", key="k", text="lost", source="channel", holds=True)
        await killed.expect("model", lost)
        behind = successor.tell("turn", key="k", text="behind")
        await successor.expect("accepted", behind)
        await killed.kill()
        assert (await successor.expect("done", behind))["answer"] == ["re: behind"]
        history = await successor.history("k")
    assert successor.said["handled"] == [{"event": "handled", "text": "lost", "attempts": 2}]
    assert history["texts"] == ["lost", "re: lost", "behind", "re: behind"]
    assert [turn[1] for turn in history["turns"]] == ["completed", "completed"]


async def test_a_process_that_starts_later_takes_up_what_was_left_in_its_order(
    store_url: str,
) -> None:
    async with an_actor(url=store_url, lease_seconds=LEASE_SECONDS, handles=True) as killed:
        first = killed.tell("turn", key="k", text="first", source="channel", holds=True)
        await killed.expect("model", first)
        for text in ("second", "third"):
            waiting = killed.tell("turn", key="k", text=text, source="cron")
            await killed.expect("accepted", waiting)
        await killed.kill()
    async with an_actor(url=store_url, lease_seconds=LEASE_SECONDS, handles=True) as successor:
        await successor.expect("handled")
        last = await successor.turn("k", "last")
        assert last["answer"] == ["re: last"]
        history = await successor.history("k")
    order = ["first", "second", "third", "last"]
    assert history["texts"] == [line for text in order for line in (text, f"re: {text}")]
    assert [event["text"] for event in successor.said["handled"]] == order[:3]
