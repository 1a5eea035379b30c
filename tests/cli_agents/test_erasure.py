"""What is erased is gone from the agents' directories too."""

from pathlib import Path
from typing import Any

from tests.cli_agents.agents import open_agent_gateway, processes_of
from tests.cli_agents.test_agent_approvals import MODEL, asking
from tests.integration.upstream_gateway import UpstreamGateway


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


def names(directory: Path) -> set[str]:
    """Return the names of what is in a directory."""
    return {path.name for path in directory.iterdir()}


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
        assert names(root / "asking") == {session, child, grandchild, kept}
        path = f"/v1/sessions/{session}"
        assert (await gateway.client.delete(path)).status_code == 409
        assert (await gateway.client.delete(path, params={"cascade": "true"})).status_code == 200
        assert names(root / "asking") == {kept}
        assert names(tmp_path / "work") == {kept}
        left = {process.environ()["HOME"] for process in processes_of(root)}
        assert left == {str(root / "asking" / kept / "config")}
