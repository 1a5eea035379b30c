"""Retention: opt-in, by last activity, archive first, re-checked before erasing."""

import json
from pathlib import Path

import pytest

from holdfast.core.errors import InvalidSetting, SessionBusy
from holdfast.core.ids import DEFAULT_TENANT, SessionId, Tenant
from holdfast.core.transaction.commands import Delete
from holdfast.engine.maintenance.retention import DAY_SECONDS, Retention
from holdfast.engine.settings import RetentionSettings
from holdfast.http.api.archive import SessionArchive
from holdfast.testing.clock import ManualClock
from tests.in_process import RunningGateway, open_gateway

AT_ONCE = 1e-9
"""So few days that whatever is not happening now is long ago."""


def _retention(gateway: RunningGateway, folder: Path, days: float) -> Retention:
    settings = RetentionSettings(sessions_days=days, archive=str(folder))
    return Retention(gateway.engine, settings, SessionArchive(gateway.engine, folder).archive)


async def test_idle_sessions_are_archived_and_erased(
    gateway: RunningGateway, tmp_path: Path
) -> None:
    replies = [await gateway.respond(f"said {n}", f"k{n}") for n in range(3)]
    folder = tmp_path / "archive"
    assert await _retention(gateway, folder, 1).sweep() == 0
    assert not folder.exists()
    assert await _retention(gateway, folder, AT_ONCE).sweep() == 3
    assert (await gateway.client.get("/v1/sessions")).json()["data"] == []
    name = replies[0].headers["x-session-id"]
    lines = (folder / "default" / f"{name}.jsonl").read_text().splitlines()
    head, session, turn, *entries = map(json.loads, lines)
    assert (head["object"], turn["object"]) == ("session.export", "turn")
    assert (turn["status"], len(turn["runs"])) == ("completed", 1)
    assert (session["id"], session["key"]) == (name, "k0")
    said = [entry["item"]["content"][0]["text"] for entry in entries]
    assert said == ["said 0", "re:said 0"]
    # The key goes on, in its next generation.
    again = await gateway.respond("back", "k0")
    assert again.headers["x-session-generation"] == "2"


async def test_f51_an_old_session_with_recent_messages_stays(
    store_url: str, tmp_path: Path
) -> None:
    clock = ManualClock()
    async with open_gateway(store_url=store_url, clock=clock) as gateway:
        await gateway.respond("long ago", "old but alive")
        await gateway.respond("long ago", "forgotten")
        clock.advance(10 * DAY_SECONDS)
        await gateway.respond("lately", "old but alive")
        clock.advance(2 * DAY_SECONDS)
        assert await _retention(gateway, tmp_path, 11).sweep() == 1
        [left] = (await gateway.client.get("/v1/sessions")).json()["data"]
        assert left["key"] == "old but alive"
        expected = ["long ago", "re:long ago", "lately", "re:lately"]
        assert await gateway.log("old but alive") == expected


async def test_f51_a_session_that_runs_or_that_others_point_into_stays(
    gateway: RunningGateway, tmp_path: Path
) -> None:
    first = await gateway.respond("one", None)
    await gateway.respond("left", None, previous_response_id=first.json()["id"])
    await gateway.respond("right", None, previous_response_id=first.json()["id"])
    gateway.model.gate.clear()
    running = await gateway.respond("runs", "busy", background=True)
    retention = _retention(gateway, tmp_path, AT_ONCE)
    # The fork goes first; what it pointed into is nobody's afterwards.
    assert await retention.sweep() == 1
    assert await retention.sweep() == 1
    listed = (await gateway.client.get("/v1/sessions")).json()["data"]
    assert [one["id"] for one in listed] == [running.headers["x-session-id"]]


async def test_f51_a_session_that_gets_a_message_while_it_is_archived_stays(
    gateway: RunningGateway, tmp_path: Path
) -> None:
    reply = await gateway.respond("one", "k")
    archive = SessionArchive(gateway.engine, tmp_path)

    async def archive_and_speak(tenant: Tenant, session_id: SessionId) -> None:
        await archive.archive(tenant, session_id)
        gateway.model.gate.clear()
        await gateway.respond("still here", "k", background=True)

    settings = RetentionSettings(sessions_days=AT_ONCE, archive=str(tmp_path))
    assert await Retention(gateway.engine, settings, archive_and_speak).sweep() == 0
    gateway.model.gate.set()
    found = await gateway.client.get(f"/v1/sessions/{reply.headers['x-session-id']}")
    assert found.status_code == 200
    with pytest.raises(SessionBusy):
        await gateway.engine.submit(
            Delete(
                tenant=DEFAULT_TENANT,
                session_id=SessionId(reply.headers["x-session-id"]),
                idle_seconds=DAY_SECONDS,
            )
        )


async def test_f51_what_cannot_be_archived_is_not_erased(
    gateway: RunningGateway, tmp_path: Path
) -> None:
    await gateway.respond("one", "k")
    folder = tmp_path / "no folder"
    folder.write_text("")
    with pytest.raises(OSError, match="no folder"):
        await _retention(gateway, folder, AT_ONCE).sweep()
    assert len((await gateway.client.get("/v1/sessions")).json()["data"]) == 1


async def test_old_traces_are_forgotten_and_answers_stay(gateway: RunningGateway) -> None:
    headers = {"Idempotency-Key": "once"}
    reply = await gateway.respond("one", "k", stream=True, headers=headers)
    assert reply.status_code == 200
    session = reply.headers["x-session-id"]
    name = "resp_" + reply.headers["x-turn-id"].removeprefix("turn_")
    retention = Retention(gateway.engine, RetentionSettings(traces_days=1), _nowhere)
    await retention.sweep()
    assert len(await gateway.engine.read.events(SessionId(session), after=0, limit=9)) == 3
    await retention._prune(-1.0)
    assert await gateway.engine.read.events(SessionId(session), after=0, limit=9) == []
    assert (await gateway.client.get(f"/v1/responses/{name}")).json()["status"] == "completed"
    again = await gateway.respond("one", "k", stream=True, headers=headers)
    assert again.headers["x-turn-id"] != reply.headers["x-turn-id"]
    assert await gateway.log("k") == ["one", "re:one", "one", "re:one"]


async def _nowhere(tenant: Tenant, session_id: SessionId) -> None:
    raise AssertionError("nothing is to be archived")


@pytest.mark.parametrize(
    "wrong",
    [{"sessions_days": 1}, {"sessions_days": -1}, {"traces_days": 0.5}, {"sweep_minutes": 0}],
    ids=str,
)
def test_what_retention_cannot_mean_is_refused(wrong: dict[str, float]) -> None:
    with pytest.raises(InvalidSetting, match="retention"):
        RetentionSettings(**wrong)  # type: ignore[arg-type]  # numbers for all
