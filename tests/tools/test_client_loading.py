"""The MCP client library is loaded beside the event loop."""

import json
import subprocess
import sys

_SCRIPT = """
import asyncio, importlib.abc, json, sys, threading

from holdfast.core.ids import DEFAULT_TENANT, SessionId, TurnId
from holdfast.core.model.session import begin_session
from holdfast.core.tools.requested import RequestedServer
from holdfast.ports.tools import ToolCaller
from holdfast.tools.mcp.servers import McpServers
from holdfast.tools.settings import McpSettings

class Recorder(importlib.abc.MetaPathFinder):
    def __init__(self):
        self.threads = {}
    def find_spec(self, name, path, target=None):
        is_main = threading.current_thread() is threading.main_thread()
        self.threads.setdefault(name, is_main)
        return None

async def main():
    recorder = Recorder()
    sys.meta_path.insert(0, recorder)
    caller = ToolCaller(
        tenant=DEFAULT_TENANT, session=begin_session(SessionId("ses_a"), DEFAULT_TENANT, now=0.0),
        turn_id=TurnId("turn_a"), source="user",
    )
    servers = McpServers([McpSettings(name="odd", command="/bin/false")])
    await servers.tools(caller, RequestedServer(label="odd"))
    await servers.close()
    print(json.dumps([recorder.threads.get(name) for name in ("mcp", "mcp_types", "httpx2")]))

asyncio.run(main())
"""


def test_first_use_of_a_server_loads_the_client_library_beside_the_event_loop() -> None:
    done = subprocess.run(
        [sys.executable, "-c", _SCRIPT],
        capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    # For each module: whether the event loop's thread loaded it; None if nobody did.
    assert json.loads(done.stdout.splitlines()[-1]) == [False, False, False]
