#!/usr/bin/env python3
"""A small agent of the Agent Client Protocol that asks before it makes a file.

It runs as a program of its own, in the sandbox, with nothing but the standard library. On "make"
it asks for permission, on "wait" it waits until somebody opens the pipe `gate` in its directory,
everything else it repeats.
"""

import json
import os
import sys
from pathlib import Path
from typing import Any

Json = dict[str, Any]
ASK_ID = 900
OPTIONS = [
    {"optionId": "always", "name": "Always", "kind": "allow_always"},
    {"optionId": "once", "name": "Once", "kind": "allow_once"},
    {"optionId": "no", "name": "No", "kind": "reject_once"},
]


def send(**message: Any) -> None:
    """Write a message."""
    sys.stdout.write(json.dumps({"jsonrpc": "2.0", **message}) + "\n")
    sys.stdout.flush()


def update(what: str, **fields: Any) -> None:
    """Write an update of the only session."""
    params = {"sessionId": "s1", "update": {"sessionUpdate": what, **fields}}
    send(method="session/update", params=params)


def say(text: str) -> None:
    """Write a piece of the answer."""
    update("agent_message_chunk", content={"type": "text", "text": text})


def make() -> None:
    """Ask for permission to make a file, and make it if that is given."""
    say("Working.")
    call = {"toolCallId": "t1", "title": "make a file", "kind": "execute"}
    update("tool_call", **call, status="pending", rawInput={"command": "touch made.txt"})
    ask = {"sessionId": "s1", "toolCall": {"toolCallId": "t1"}, "options": OPTIONS}
    send(id=ASK_ID, method="session/request_permission", params=ask)
    outcome: Json = {}
    for line in sys.stdin:
        answer = json.loads(line)
        if answer.get("id") == ASK_ID:
            outcome = answer["result"]["outcome"]
            break
    chosen = outcome.get("optionId")
    if chosen == "once":
        Path("made.txt").write_text("made")
    status = "completed" if chosen == "once" else "failed"
    update("tool_call_update", toolCallId="t1", status=status)
    say(f"Chosen: {chosen}.")


def version() -> str:
    """Return the version, which a test can change."""
    path = Path(os.environ["HOME"], "version")
    return path.read_text() if path.exists() else "1.0.0"


def main() -> None:
    """Answer requests until the input ends."""
    if sys.argv[1:] == ["broken"]:
        sys.exit("this is not an agent")
    for line in sys.stdin:
        request: Json = json.loads(line)
        result: Json = {}
        if request["method"] == "initialize":
            if sys.argv[1:] == ["silent"]:
                with Path("starts").open("a") as starts:
                    starts.write("started\n")
                continue
            result = {"protocolVersion": 1, "agentCapabilities": {"loadSession": True}}
            if sys.argv[1:] != ["nameless"]:
                result["agentInfo"] = {"name": "asking", "version": version()}
        elif request["method"] == "session/new":
            result = {"sessionId": "s1"}
        elif request["method"] == "session/prompt":
            text = "".join(part.get("text", "") for part in request["params"]["prompt"])
            last = text.rpartition("\n")[2]
            if last == "make" or "function_call_output" in last:
                make()
            elif last == "wait":
                say("Waiting.")
                Path("gate").read_text()
            else:
                say(f"You said: {last}")
            result = {"stopReason": "end_turn"}
        send(id=request["id"], result=result)


if __name__ == "__main__":
    main()  # as some agents do, it ignores --version and waits for requests
