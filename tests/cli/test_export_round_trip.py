"""What an export keeps of a session's story: turns, runs, heals and tokens, told elsewhere."""

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

import holdfast
from holdfast.cli.output.masking import mask_url
from holdfast.core.ids import DEFAULT_TENANT
from holdfast.core.transaction.commands import Cancel
from holdfast.testing.simulator.process import ProviderSimulator
from tests.acceptance.gateway_process import running_gateway
from tests.acceptance.stories import gateway_before
from tests.cli.terminals import in_pipe, in_process
from tests.importing.test_importing import own_lines
from tests.store_urls import sqlite_url


@pytest.fixture(params=["sqlite", "postgres"])
def second(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """A fresh store to import into, on each database."""
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path / 'second.db'}"
    url: str = request.getfixturevalue("postgres_url")
    return url


def story(url: str, key: str) -> dict[str, Any]:
    """Return what `sessions show` tells.

    A response is not fetched by its id elsewhere; and which of two turns was the last to end is
    not told where both ended within a second. Exports do not contain the model that a turn asked
    for, and have times in whole seconds.
    """
    told: dict[str, Any] = json.loads(in_pipe("sessions", "show", key, "--json", "--url", url).out)
    for session in (told["session"], *told["generations"]):
        del session["last_turn"]
    for turn in told["turns"]:
        turn["response_id"] = turn["model"] = turn["queued_ms"] = None
    return told


def doctor_codes(store: str) -> list[str]:
    """Return what the doctor finds wrong with a store; tests turn the database's fsync off."""
    found = json.loads(in_pipe("doctor", "--deep", "--store", store, "--json").out)
    problems = [one["code"] for one in found if one["severity"] == "problem"]
    return [code for code in problems if code != "durability_weak"]


def import_file(capsys: pytest.CaptureFixture[str], file: Path, store: str) -> dict[str, int]:
    """Import an export; return what was done."""
    taken = in_process(capsys, "sessions", "import", str(file), "--store", store, "--json")
    assert (taken.code, taken.err) == (0, f"holdfast: used store {mask_url(store)}\n")
    counts: dict[str, int] = json.loads(taken.out)["counts"]
    return counts


def test_heals_failures_and_generations_survive_export_and_import(
    tmp_path: Path, second: str, capsys: pytest.CaptureFixture[str]
) -> None:
    first, file = sqlite_url(tmp_path), tmp_path / "export.jsonl"
    with ProviderSimulator() as simulator, gateway_before(simulator, first, tmp_path) as gateway:
        env = {"HOLDFAST_URL": gateway.url}
        for said, fault in (("zero", None), ("/new one", "R07"), ("two", "quota"), ("three", None)):
            if fault is not None:
                simulator.add_fault(fault, times=1)
            in_pipe("chat", "k", "--model", "gpt-4.1", said=f"{said}\n", env=env)
        before = story(gateway.url, "k")
        in_pipe("sessions", "export", "k", "--generations", "--output", str(file), env=env)
    assert [heal["action"] for heal in before["turns"][0]["runs"][0]["heals"]] == [
        "stripped_opaque"
    ]
    assert [turn["status"] for turn in before["turns"]] == ["completed", "failed", "completed"]
    assert before["session"]["usage"]["total_tokens"] > 0
    assert import_file(capsys, file, second) == {"added": 2}
    with running_gateway(second) as gateway:
        assert story(gateway.url, "k") == before
    assert doctor_codes(second) == []
    assert import_file(capsys, file, second) == {"unchanged": 2}


async def _cross(url: str) -> None:
    """Leave a log whose blocks come in another order than their turns, one of them without any."""
    async with holdfast.open(url) as hf:
        session = await hf.session("k")
        entered, left = asyncio.Event(), asyncio.Event()

        async def take(said: str, on_busy: Any = None) -> None:
            async with session.turn(said, on_busy=on_busy) as turn:
                entered.set()
                await left.wait()
                turn.add(f"answer to {said}")

        async def queued(count: int) -> None:
            # The store has no event for it.
            while (await session.view()).queued_turns < count:  # noqa: ASYNC110
                await asyncio.sleep(0.01)

        first = asyncio.create_task(take("first"))
        await entered.wait()
        waiting = [asyncio.create_task(take("second"))]
        await queued(1)
        gone = asyncio.create_task(take("third"))
        await queued(2)
        turns = await hf.gateway.read.turns((await session.view()).session.id)
        await hf.gateway.submit(Cancel(tenant=DEFAULT_TENANT, turn_id=turns[-1].turn.id))
        waiting.append(asyncio.create_task(take("fourth", "interrupt")))
        await asyncio.gather(first, gone, return_exceptions=True)
        left.set()
        await asyncio.gather(*waiting)


def test_reordered_turns_and_turns_that_never_started_survive_export_and_import(
    tmp_path: Path, second: str, capsys: pytest.CaptureFixture[str]
) -> None:
    first, file = sqlite_url(tmp_path), tmp_path / "export.jsonl"
    asyncio.run(_cross(first))
    with running_gateway(first) as gateway:
        before = story(gateway.url, "k")
        log = in_pipe("sessions", "items", "k", "--log", "--json", "--url", gateway.url).out
        in_pipe("sessions", "export", "k", "--output", str(file), "--url", gateway.url)
    ends = [turn["status"] for turn in before["turns"]]
    assert ends == ["cancelled", "completed", "cancelled", "completed"]
    assert [one["turn_number"] for one in json.loads(log)] == [1, 4, 4, 2, 2]
    assert import_file(capsys, file, second) == {"added": 1}
    with running_gateway(second) as gateway:
        assert story(gateway.url, "k") == before
        again = in_pipe("sessions", "items", "k", "--log", "--json", "--url", gateway.url).out
        assert json.loads(again) == json.loads(log)
        said = in_pipe("chat", "k", said="goes on\n", env={"HOLDFAST_URL": gateway.url})
        assert (said.code, "remember" in said.out) == (0, True)
    assert doctor_codes(second) == []


# ── by hand ─────────────────────────────────────────────────────────────────────────────────


def turn_line(session: str, number: int, **fields: Any) -> str:
    """Return a turn as an export tells of it."""
    turn = {"object": "turn", "id": f"turn_{number:08}", "session_id": session, "number": number}
    return json.dumps({**turn, "status": "completed", **fields})


RUN = {"id": "run_00000001", "epoch": 1, "worker": "w", "status": "completed", "started_at": 1}


def test_a_turn_that_was_open_at_export_is_imported_as_interrupted(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    head, *entries = own_lines("ses_a", "one", "two", "three")
    states = ("running", "requires_action", "queued")
    turns = [turn_line("ses_a", number, status=state) for number, state in enumerate(states, 1)]
    file, store = tmp_path / "open.jsonl", sqlite_url(tmp_path)
    file.write_text("\n".join([head, *turns, *entries]))
    assert import_file(capsys, file, store) == {"added": 1}
    with running_gateway(store) as gateway:
        told = story(gateway.url, "ses_a")
    assert [turn["status"] for turn in told["turns"]] == ["interrupted"] * 3
    assert (told["session"]["status"], told["session"]["queued_turns"]) == ("idle", 0)
    assert doctor_codes(store) == []


def test_an_unknown_time_stays_unknown(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file, store = tmp_path / "chat.json", sqlite_url(tmp_path)
    file.write_text(json.dumps([{"role": "user", "content": "long ago"}]))
    import_file(capsys, file, store)
    with running_gateway(store) as gateway:
        told = story(gateway.url, "chat")
        shown = in_pipe("sessions", "show", "chat", "--url", gateway.url).out
    [turn] = told["turns"]
    assert (turn["started_at"], turn["duration_ms"]) == (None, None)
    assert told["session"]["last_user_activity_at"] is None
    assert shown.splitlines()[-1].split("\t")[3:5] == ["-", "-"]


@pytest.mark.parametrize(
    "line",
    [
        turn_line("ses_a", 1, runs=[{"id": "run_1"}]),
        turn_line("ses_a", 1, source="wizard"),
        turn_line("ses_a", "x"),  # type: ignore[arg-type]  # that is what is wrong with it
        turn_line("ses_other", 1),
        turn_line("ses_a", -3),
        turn_line("ses_a", 1, runs=[{**RUN, "epoch": 10**20}]),
        turn_line("ses_a", 1, runs=[RUN, RUN]),
        turn_line("ses_a", 1, started_at=1e300),
        '{"object":"session.item","session_id":"ses_a","turn_number":"one","item":{}}',
        '{"object":"turn"}',
    ],
)
def test_an_invalid_turn_is_counted_and_its_items_are_imported(
    line: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    head, *entries = own_lines("ses_a", "one")
    file, store = tmp_path / "odd.jsonl", sqlite_url(tmp_path)
    file.write_text("\n".join([head, line, *entries]))
    taken = in_process(capsys, "sessions", "import", str(file), "--store", store, "--json")
    [one] = json.loads(taken.out)["sessions"]
    assert (taken.code, one["status"], one["turns"], one["items"]) == (0, "added", 1, 1)
    assert one["problems"] == ["1 line(s) of odd.jsonl could not be read"]


def test_an_export_of_a_later_version_is_rejected(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "later.jsonl"
    file.write_text('{"object":"session.export","version":99}\n')
    taken = in_process(
        capsys, "sessions", "import", str(file), "--store", sqlite_url(tmp_path)
    )  # fmt: skip
    assert (taken.code, taken.out, taken.err.count("\n")) == (1, "", 1)
    assert "99" in taken.err


def test_a_log_that_grew_inside_known_turns_is_not_changed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file, store = tmp_path / "grown.jsonl", sqlite_url(tmp_path)
    lines = own_lines("ses_a", "one", "two")
    file.write_text("\n".join(lines))
    assert import_file(capsys, file, store) == {"added": 1}
    again = json.loads(own_lines("ses_a", "x", "x", "again")[-1])
    file.write_text("\n".join([*lines, json.dumps({**again, "turn_number": 1})]))
    assert import_file(capsys, file, store) == {"differs": 1}


def test_an_error_text_that_cannot_be_stored_does_not_block_its_turn(
    tmp_path: Path, second: str, capsys: pytest.CaptureFixture[str]
) -> None:
    head, *entries = own_lines("ses_a", "one")
    error = {"code": "a\0b", "message": "c\0d"}
    file = tmp_path / "nul.jsonl"
    run = {**RUN, "worker": "w\0", "error": error}
    file.write_text("\n".join([head, turn_line("ses_a", 1, error=error, runs=[run]), *entries]))
    assert import_file(capsys, file, second) == {"added": 1}


def test_an_invalid_key_fails_the_import(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "chat.json"
    file.write_text(json.dumps([{"role": "user", "content": "hello"}]))
    options = ("--key", "k" * 600, "--store", sqlite_url(tmp_path), "--json")
    taken = in_process(capsys, "sessions", "import", str(file), *options)
    assert (taken.code, json.loads(taken.out)["counts"]) == (1, {"unusable": 1})
