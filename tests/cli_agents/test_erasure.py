"""What is erased is gone from the agents' directories too."""

from pathlib import Path
from typing import Any

import pytest

from holdfast.engine.maintenance import runtime_cleanup
from holdfast.testing.simulator.provider import ProviderSimulator
from tests.cli_agents.agents import claude_code, open_agent_gateway, processes_of, until
from tests.cli_agents.test_agent_approvals import MODEL, asking
from tests.integration.upstream_gateway import UpstreamGateway, text_of

CLAUDE = "claude-code/opus"
SECRET = "I am Ada and my number is 8164"
pytestmark = pytest.mark.timeout(600)  # the first run installs the program


async def fork(gateway: UpstreamGateway, session_id: str) -> str:
    """Fork a session and speak in the fork; return its id."""
    made = await gateway.client.post(f"/v1/sessions/{session_id}/fork")
    assert made.status_code == 200, made.text
    forked: str = made.json()["id"]
    headers = {"X-Session-Id": forked}
    spoken = await gateway.post("/v1/responses", None, input="hi", model=MODEL, headers=headers)
    assert spoken.status_code == 200, spoken.text
    assert spoken.headers["x-session-id"] == forked
    return forked


def names_in(directory: Path) -> set[str]:
    """Return the names of what is in a directory."""
    return {path.name for path in directory.iterdir()}


def holds(directory: Path, text: str) -> bool:
    """Whether a file in a directory contains a text."""
    files = (path for path in directory.rglob("*") if path.is_file() and not path.is_symlink())
    return any(text.encode() in path.read_bytes() for path in files)


async def test_an_erasure_takes_processes_and_directories_of_forks_with_it(
    root: Path, tmp_path: Path, store_url: str
) -> None:
    more: dict[str, Any] = {"workdir": str(tmp_path / "work/{session}")}
    async with open_agent_gateway(asking(root, **more), store_url=store_url) as gateway:
        first = await gateway.post("/v1/responses", input="hello", model=MODEL)
        session = first.headers["x-session-id"]
        child = await fork(gateway, session)
        grandchild = await fork(gateway, child)
        other = await gateway.post("/v1/responses", "other", input="hello", model=MODEL)
        kept = other.headers["x-session-id"]
        assert names_in(root / "asking") == {session, child, grandchild, kept}
        path = f"/v1/sessions/{session}"
        assert (await gateway.client.delete(path)).status_code == 409
        assert (await gateway.client.delete(path, params={"cascade": "true"})).status_code == 200
        assert names_in(root / "asking") == {kept}
        assert names_in(tmp_path / "work") == {kept}
        left = {process.environ()["HOME"] for process in processes_of(root)}
        assert left == {str(root / "asking" / kept / "config")}


async def test_an_erased_item_is_gone_from_the_agents_own_transcript(
    simulator: ProviderSimulator, root: Path
) -> None:
    async with open_agent_gateway(claude_code(simulator, root)) as gateway:
        first = await gateway.post("/v1/responses", input=SECRET, model=CLAUDE)
        name = first.headers["x-session-id"].removeprefix("ses_")
        await until(lambda: holds(root, SECRET))
        listed = await gateway.client.get(f"/v1/conversations/conv_{name}/items")
        for item in listed.json()["data"]:
            path = f"/v1/conversations/conv_{name}/items/{item['id']}"
            erased = await gateway.client.delete(path, params={"erase": "true"})
            assert erased.status_code == 200, erased.text
        assert not holds(root, SECRET)
        assert processes_of(root) == []
        answer = await gateway.respond("who am I?", model=CLAUDE)
        assert text_of(answer) == "Messages seen: 1. Last text: who am I?"


def process_of(root: Path, session_id: str) -> list[int]:
    """Return the processes that run for a session."""
    home = str(root / "asking" / session_id / "config")
    return [one.pid for one in processes_of(root) if one.environ().get("HOME") == home]


async def test_what_another_gateway_resets_or_erases_is_cleaned_up(
    root: Path, store_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(runtime_cleanup, "RUNNING_SECONDS", 0.05)
    monkeypatch.setattr(runtime_cleanup, "STORED_SECONDS", 0.1)
    here, there = root / "here", root / "there"
    of_another_store = here / "asking" / "ses_unknown" / "config"
    of_another_store.mkdir(parents=True)
    (of_another_store / "transcript").write_text("kept")
    async with (
        open_agent_gateway(asking(here), store_url=store_url) as gateway,
        open_agent_gateway(asking(there), store_url=store_url) as other,
    ):
        names: dict[str, str] = {}
        for key, text in (("kept", "hi"), ("waits", "make"), ("reset", "hi"), ("erased", "hi")):
            answer = await gateway.post("/v1/responses", key, input=text, model=MODEL)
            assert answer.status_code == 200, answer.text
            names[key] = answer.headers["x-session-id"]
        before = {key: process_of(here, name) for key, name in names.items()}
        assert all(before.values())
        (here / "asking" / names["reset"] / "config" / "transcript").write_text("old")

        path = "/v1/sessions/" + names["reset"]
        assert (await other.client.post(f"{path}/reset")).status_code == 200
        assert (await other.client.delete("/v1/sessions/" + names["erased"])).status_code == 200
        await until(lambda: names["erased"] not in names_in(here / "asking"))
        await until(lambda: not holds(here / "asking" / names["reset"], "old"))
        assert process_of(here, names["reset"]) == process_of(here, names["erased"]) == []

        assert process_of(here, names["kept"]) == before["kept"]
        assert process_of(here, names["waits"]) == before["waits"]
        assert holds(of_another_store, "kept")
        await gateway.respond("still there?", "kept", model=MODEL)
        assert process_of(here, names["kept"]) == before["kept"]
