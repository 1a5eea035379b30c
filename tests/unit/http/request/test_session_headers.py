"""Session headers: keys are opaque bytes; invalid ones are rejected."""

import pytest

from holdfast.core.errors import InvalidSessionKey
from holdfast.http.request.session_headers import read_session_headers
from holdfast.http.server.types import Request
from tests.in_process import open_gateway

ASK = {"model": "scripted", "messages": [{"role": "user", "content": "hi"}]}


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (b"Room", b"room"),
        ("caf\u00e9".encode(), "cafe\u0301".encode()),
        (b"a%20b", b"a b"),
        (b"../../etc", b"../etc"),
    ],
    ids=["case", "normal form", "percent", "dots"],
)
async def test_keys_that_differ_in_any_byte_are_two_conversations(one: bytes, other: bytes) -> None:
    async with open_gateway() as gateway:
        ids = set()
        for key in (one, other, one):
            reply = await gateway.client.post(
                "/v1/chat/completions", json=ASK, headers=[(b"x-session-key", key)]
            )
            assert reply.status_code == 200
            ids.add(reply.headers["x-session-id"])
        assert len(ids) == 2


@pytest.mark.parametrize("key", [b"a\x01b", b"a\x7f"], ids=repr)
async def test_control_characters_in_a_key_are_rejected(key: bytes) -> None:
    with pytest.raises(InvalidSessionKey):
        read_session_headers(Request("POST", "/", b"", [(b"x-session-key", key)]))
    async with open_gateway() as gateway:
        reply = await gateway.client.post(
            "/v1/chat/completions", json=ASK, headers=[(b"x-session-key", key)]
        )
        # The server's parser already rejects them: they are not valid in any header.
        assert reply.status_code == 400
        assert reply.json()["error"]["code"] == "invalid_http"
        assert (await gateway.client.get("/v1/sessions")).json()["data"] == []


@pytest.mark.parametrize("key", [b"", b"x" * 513, b"\xff\xfe"], ids=repr)
async def test_an_invalid_key_is_rejected(key: bytes) -> None:
    async with open_gateway() as gateway:
        reply = await gateway.client.post(
            "/v1/chat/completions", json=ASK, headers=[(b"x-session-key", key)]
        )
        assert reply.status_code == 400
        assert reply.json()["error"]["code"] == "invalid_session_key"
        assert (await gateway.client.get("/v1/sessions")).json()["data"] == []


async def test_a_key_of_512_bytes_is_accepted_and_echoed() -> None:
    async with open_gateway() as gateway:
        reply = await gateway.chat(ASK["messages"], "k" * 512)  # type: ignore[arg-type]
        assert reply.headers["x-session-key"] == "k" * 512


async def test_a_key_beyond_ascii_is_echoed_percent_encoded() -> None:
    async with open_gateway() as gateway:
        reply = await gateway.client.post(
            "/v1/chat/completions", json=ASK, headers=[(b"x-session-key", "ключ".encode())]
        )
        assert reply.headers["x-session-key"] == "%D0%BA%D0%BB%D1%8E%D1%87"


@pytest.mark.parametrize(
    ("sent", "meant"), [("main", "agent:main:main"), ("agent:x:y", "agent:x:y")]
)
async def test_openclaw_keys_are_mapped_to_the_keys_of_imported_sessions(
    sent: str, meant: str
) -> None:
    async with open_gateway() as gateway:
        headers = {"x-openclaw-session-key": sent}
        reply = await gateway.client.post("/v1/chat/completions", json=ASK, headers=headers)
        assert reply.headers["x-session-key"] == meant


@pytest.mark.parametrize("sent", ["subagent:a", "cron:b", "acp:c"])
async def test_reserved_openclaw_keys_are_rejected(sent: str) -> None:
    async with open_gateway() as gateway:
        headers = {"x-openclaw-session-key": sent}
        reply = await gateway.client.post("/v1/chat/completions", json=ASK, headers=headers)
        assert reply.status_code == 400


@pytest.mark.parametrize(
    "headers",
    [
        {"X-On-Busy": "maybe"},
        {"X-Session-Internal": "perhaps"},
        {"X-Session-Source": "cron"},
        {"Idempotency-Key": "x" * 256},
        {"X-Session-Id": "ses_1", "X-Session-Key": "k"},
    ],
    ids=lambda headers: next(iter(headers)),
)
async def test_invalid_session_headers_are_rejected(headers: dict[str, str]) -> None:
    async with open_gateway() as gateway:
        reply = await gateway.client.post("/v1/chat/completions", json=ASK, headers=headers)
        assert reply.status_code == 400
        assert reply.json()["error"]["type"] == "invalid_request_error"


async def test_an_unknown_session_id_is_404() -> None:
    async with open_gateway() as gateway:
        headers = {"X-Session-Id": "ses_nobody"}
        reply = await gateway.client.post("/v1/chat/completions", json=ASK, headers=headers)
        assert reply.status_code == 404


async def test_an_internal_turn_sees_the_history_and_leaves_no_trace() -> None:
    async with open_gateway() as gateway:
        await gateway.chat([{"role": "user", "content": "one"}])
        inside = await gateway.chat(
            [{"role": "user", "content": "secret"}], headers={"X-Session-Internal": "true"}
        )
        assert inside.status_code == 200
        assert gateway.model.shown[-1] == ["one", "re:one", "secret"]
        assert await gateway.log() == ["one", "re:one"]
        listed = (await gateway.client.get("/v1/sessions")).json()["data"]
        assert [session["turn_count"] for session in listed] == [1]
        await gateway.chat([{"role": "user", "content": "two"}])
        assert gateway.model.shown[-1] == ["one", "re:one", "two"]


@pytest.mark.parametrize(
    "name", [b"x-session-key", b"x-session-id", b"idempotency-key", b"x-on-busy"], ids=repr
)
async def test_a_duplicated_session_header_is_rejected(name: bytes) -> None:
    async with open_gateway() as gateway:
        reply = await gateway.client.post(
            "/v1/chat/completions", json=ASK, headers=[(name, b"reject"), (name, b"enqueue")]
        )
        assert reply.status_code == 400
        assert name.decode() in reply.json()["error"]["message"]
        assert (await gateway.client.get("/v1/sessions")).json()["data"] == []


@pytest.mark.parametrize("count", ["-1", "x", "9" * 30, "9" * 5000, "1.5", ""])
async def test_an_invalid_retry_count_counts_as_a_first_attempt(count: str) -> None:
    async with open_gateway() as gateway:
        first = await gateway.chat([{"role": "user", "content": "hi"}])
        again = await gateway.chat(
            [{"role": "user", "content": "hi"}], headers={"x-stainless-retry-count": count}
        )
        assert again.status_code == 200
        assert again.headers["x-turn-id"] != first.headers["x-turn-id"]


@pytest.mark.parametrize("text", ["/new", "/reset", "/reset and begin"])
async def test_a_message_that_looks_like_a_command_is_a_message(text: str) -> None:
    async with open_gateway() as gateway:
        first = await gateway.respond("one")
        second = await gateway.respond(text)
        third = await gateway.chat([{"role": "user", "content": text}])
        for answer in (second, third):
            assert answer.headers["x-session-id"] == first.headers["x-session-id"]
            assert answer.headers["x-session-generation"] == "1"
        assert await gateway.log() == ["one", "re:one", text, f"re:{text}", text, f"re:{text}"]
