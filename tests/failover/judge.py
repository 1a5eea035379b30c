"""Read every session back and compare it with what the clients were told."""

import itertools
from collections import Counter, defaultdict
from dataclasses import dataclass, field
from typing import Any

import httpx

from tests.failover.clients import Turn

PAGE = 100


@dataclass(slots=True)
class Verdict:
    """What is not as it was acknowledged, each by the text of its turn."""

    lost: list[str] = field(default_factory=list)
    """The turn is not in the store, or not as a completed one."""
    doubled: list[str] = field(default_factory=list)
    """Its input or its answer is there more than once."""
    unequal: list[str] = field(default_factory=list)
    """The stored answer is another one than the client got."""
    out_of_order: list[str] = field(default_factory=list)
    """Its session does not have its turns in the order of the client."""
    shown_otherwise: list[str] = field(default_factory=list)
    """The model was not shown exactly what the session had before."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Stored:
    turns: dict[str, str]
    """The statuses of turns by their ids."""
    said: list[tuple[str, str]]
    """Role and text of each message."""

    def texts(self, role: str) -> list[str]:
        return [text for one, text in self.said if one == role]


def judge(url: str, turns: list[Turn]) -> Verdict:
    """Compare the acknowledged turns with the sessions at a gateway."""
    verdict = Verdict()
    sessions: defaultdict[str, list[Turn]] = defaultdict(list)
    for turn in turns:
        sessions[turn.key].append(turn)
    with httpx.Client(base_url=url, timeout=60) as client:
        for key, sent in sessions.items():
            _judge_session(_read(client, key), sent, verdict)
    return verdict


def _judge_session(stored: _Stored, sent: list[Turn], verdict: Verdict) -> None:
    asked, answered = Counter(stored.texts("user")), Counter(stored.texts("assistant"))
    answers = dict(_pairs(stored.said))
    for number, turn in enumerate(sent):
        status = stored.turns.get(turn.turn_id, "no such turn")
        if asked[turn.text] == 0 or status != "completed":
            verdict.lost.append(f"{turn.text} ({turn.turn_id}: {status})")
            continue
        if asked[turn.text] > 1 or answered[turn.answer] > 1:
            verdict.doubled.append(turn.text)
        if answers.get(turn.text) != turn.answer:
            verdict.unequal.append(turn.text)
        if turn.answer != f"Messages seen: {2 * number + 1}. Last text: {turn.text}":
            verdict.shown_otherwise.append(turn.text)
    texts = [turn.text for turn in sent]
    if (kept := stored.texts("user")) != [text for text in texts if text in asked]:
        verdict.out_of_order.append(f"{sent[0].key}: {kept}")


def _pairs(said: list[tuple[str, str]]) -> list[tuple[str, str]]:
    """Return each question with the answer right behind it."""
    return [
        (question, answer)
        for (role, question), (other, answer) in itertools.pairwise(said)
        if (role, other) == ("user", "assistant")
    ]


def _read(client: httpx.Client, key: str) -> _Stored:
    """Read a key's session whole."""
    listed = client.get("/v1/sessions", params={"key": key})
    listed.raise_for_status()
    found = listed.json()["data"]
    if not found:
        return _Stored(turns={}, said=[])
    [session] = found
    path = f"/v1/sessions/{session['id']}"
    return _Stored(
        turns={turn["id"]: turn["status"] for turn in _pages(client, f"{path}/turns")},
        said=[
            (item["role"], "".join(part["text"] for part in item["content"]))
            for item in _pages(client, f"{path}/items")
            if item["type"] == "message"
        ],
    )


def _pages(client: httpx.Client, path: str) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = []
    params: dict[str, str | int] = {"limit": PAGE, "order": "asc"}
    while True:
        reply = client.get(path, params=params)
        reply.raise_for_status()
        page = reply.json()
        rows += page["data"]
        if not page["has_more"]:
            return rows
        params["after"] = page["last_id"]
