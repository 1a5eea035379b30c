"""`api = "auto"`: what a server speaks is found out, whatever it is like."""

import asyncio
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import httpx
import pytest
from aiohttp import web

from holdfast.doctor.configuration import check_server_apis, check_upstreams
from holdfast.providers import api_choice
from holdfast.providers.http import api_detection
from holdfast.providers.settings import UpstreamSettings
from tests.integration.speaking_server import (
    CHAT,
    RESPONSES,
    Missing,
    SpeakingServer,
    complaint,
    detail,
    detail_with_200,
    error_for_everything,
    error_with_200,
    free_port,
    html,
    method_not_allowed,
    speaking,
)
from tests.integration.upstream_gateway import UpstreamGateway, open_upstream_gateway, text_of

MISSING: Sequence[Missing] = (
    html, detail, method_not_allowed, detail_with_200, error_for_everything, error_with_200,
    complaint,
)  # fmt: skip
BARE_RESPONSES, BARE_CHAT = "/responses", "/chat/completions"
STOP: dict[str, Any] = {"stop": ["END"]}


async def found_by(gateway: UpstreamGateway) -> list[str]:
    """Return the lines that `serve` prints."""
    lines: list[str] = []
    await gateway.server.application.detect_upstreams(lines.append)
    return lines


@pytest.mark.parametrize("missing", MISSING, ids=lambda missing: missing.__name__)
async def test_a_server_with_chat_alone_is_found_and_used(missing: Missing) -> None:
    async with (
        speaking(CHAT, missing=missing) as server,
        open_upstream_gateway(server.upstream()) as gateway,
    ):
        [line] = await found_by(gateway)
        assert line.endswith(
            f"speaks Chat Completions at {server.url}/v1; /responses is absent there"
        )
        assert server.calls == []
        assert text_of(await gateway.respond("hi")) == "by chat"
        assert text_of(await gateway.chat("hi", "other", **STOP)) == "by chat"


@pytest.mark.parametrize("missing", MISSING, ids=lambda missing: missing.__name__)
async def test_a_server_with_responses_alone_is_found_and_used(missing: Missing) -> None:
    async with (
        speaking(RESPONSES, missing=missing) as server,
        open_upstream_gateway(server.upstream()) as gateway,
    ):
        [line] = await found_by(gateway)
        assert line.endswith(
            f"speaks Responses at {server.url}/v1; /chat/completions is absent there"
        )
        assert text_of(await gateway.chat("hi")) == "by responses"


async def test_a_server_with_both_gets_to_chat_what_only_chat_can_express() -> None:
    async with (
        speaking(RESPONSES, CHAT) as server,
        open_upstream_gateway(server.upstream()) as gateway,
    ):
        assert await found_by(gateway) == [
            f"upstream upstream speaks Responses and Chat Completions at {server.url}/v1"
        ]
        assert text_of(await gateway.chat("hi")) == "by responses"
        assert text_of(await gateway.chat("and", **STOP)) == "by chat"
        path, body = server.calls[-1]
        assert path == CHAT
        assert body["stop"] == ["END"]
        assert [message["content"] for message in body["messages"]] == ["hi", "by responses", "and"]
        assert text_of(await gateway.chat("again")) == "by responses"


async def test_a_first_turn_asks_if_nobody_has_asked_before() -> None:
    async with speaking(CHAT) as server, open_upstream_gateway(server.upstream()) as gateway:
        assert text_of(await gateway.respond("hi")) == "by chat"
        assert server.probes == [RESPONSES, CHAT, BARE_RESPONSES, BARE_CHAT]
        assert text_of(await gateway.respond("again")) == "by chat"
        assert len(server.probes) == 4


@pytest.mark.parametrize(
    ("base", "paths", "found"),
    [
        ("", (RESPONSES, CHAT), "/v1"),
        ("", (CHAT,), "/v1"),
        ("/v1", (BARE_RESPONSES, BARE_CHAT), ""),
        ("", (BARE_CHAT,), ""),
    ],
)
async def test_a_server_is_found_with_and_without_v1(
    base: str, paths: tuple[str, ...], found: str
) -> None:
    async with (
        speaking(*paths) as server,
        open_upstream_gateway(server.upstream(base)) as gateway,
    ):
        [line] = await found_by(gateway)
        moved = f" (not at {server.url}{base}, as `url` says)" if base != found else ""
        assert f" at {server.url}{found}{moved}" in line
        await gateway.chat("hi", **STOP)
        assert server.calls[-1][0] == f"{found}/chat/completions"


async def test_a_server_with_neither_is_said_to_have_neither() -> None:
    async with speaking() as server, open_upstream_gateway(server.upstream()) as gateway:
        [line] = await found_by(gateway)
        assert line.startswith("upstream upstream has neither /responses nor /chat/completions")
        assert line.endswith(f"{server.url}/v1: is `url` right?")
        answer = await gateway.post("/v1/responses", input="hi")
        assert answer.status_code == 404
        message = answer.json()["error"]["message"]
        assert message.endswith("or correct its `url`)")
        assert "`api`" not in message
        server.has = (CHAT,)
        assert text_of(await gateway.respond("hi again")) == "by chat"


@pytest.mark.parametrize("key", ["k", None])
@pytest.mark.parametrize(("before", "after"), [(RESPONSES, CHAT), (CHAT, RESPONSES)])
@pytest.mark.parametrize("missing", [html, error_for_everything], ids=["html", "json"])
async def test_a_server_that_was_replaced_is_asked_again_at_the_next_turn(
    before: str,
    after: str,
    missing: Missing,
    key: str | None,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(api_choice, "RETRY_SECONDS", 0.0)
    async with (
        speaking(before, missing=missing) as server,
        open_upstream_gateway(server.upstream()) as gateway,
    ):
        await found_by(gateway)
        await gateway.respond("hi", key)
        server.has = (after,)
        answer = await gateway.post("/v1/responses", key, input="hi again")
        assert answer.status_code == 404
        assert text_of(await gateway.respond("once more", key)).startswith("by ")
        assert server.calls[-1][0] == after


async def test_the_error_of_a_server_that_was_replaced_tells_that_it_is_asked_again() -> None:
    async with speaking(RESPONSES) as server, open_upstream_gateway(server.upstream()) as gateway:
        await gateway.respond("hi")
        server.has = (CHAT,)
        answer = await gateway.post("/v1/responses", input="hi again")
        assert "the next turn asks the server what it has" in answer.json()["error"]["message"]


async def test_an_unknown_model_does_not_make_every_turn_ask_the_server() -> None:
    async with (
        speaking(CHAT, missing=error_for_everything) as server,
        open_upstream_gateway(server.upstream()) as gateway,
    ):
        await found_by(gateway)
        probes = len(server.probes)
        server.has = ()
        for text in ("one", "two", "three"):
            await gateway.post("/v1/responses", input=text)
        assert len(server.probes) == probes


async def test_other_endpoints_are_relayed_to_the_place_where_the_server_is_found() -> None:
    async with (
        speaking(CHAT) as server,
        open_upstream_gateway(server.upstream("")) as gateway,
    ):
        answer = await gateway.post("/v1/embeddings", None, input="hi")
        assert answer.status_code == 200
        assert server.embeddings == ["/v1/embeddings"]


async def test_a_closed_port_is_asked_again_at_every_turn_until_it_opens() -> None:
    server = SpeakingServer(free_port(), (CHAT,), html)
    async with open_upstream_gateway(server.upstream()) as gateway:
        [line] = await found_by(gateway)
        assert "did not tell what it speaks" in line
        assert "cannot be reached" in line
        await server.start()
        try:
            assert text_of(await gateway.chat("hi", **STOP)) == "by chat"
        finally:
            await server.stop()


async def test_a_server_that_hangs_on_an_empty_request_is_not_misjudged(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(api_detection, "PROBE_SECONDS", 0.2)
    async with speaking(CHAT) as server, open_upstream_gateway(server.upstream()) as gateway:
        server.hangs_on_nothing = (RESPONSES, CHAT, BARE_RESPONSES, BARE_CHAT)
        [line] = await found_by(gateway)
        assert "no answer within 0.2 s" in line
        # Nothing is known, so a real call finds it out.
        assert text_of(await gateway.respond("hi")) == "by chat"
        probes = len(server.probes)
        assert text_of(await gateway.respond("again")) == "by chat"
        assert len(server.probes) == probes


async def test_a_server_that_hangs_is_not_asked_by_every_turn(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(api_detection, "PROBE_SECONDS", 0.2)
    async with speaking() as server, open_upstream_gateway(server.upstream()) as gateway:
        server.hangs_on_nothing = (RESPONSES, CHAT, BARE_RESPONSES, BARE_CHAT)
        for text in ("one", "two", "three"):
            await gateway.post("/v1/responses", input=text)
        assert sorted(server.probes) == [CHAT, RESPONSES]


async def test_a_chat_server_that_hangs_on_chat_alone_is_known_by_what_it_lacks(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(api_detection, "PROBE_SECONDS", 0.2)
    async with speaking(CHAT) as server, open_upstream_gateway(server.upstream()) as gateway:
        server.hangs_on_nothing = (CHAT,)
        [line] = await found_by(gateway)
        assert "speaks Chat Completions" in line
        assert text_of(await gateway.respond("hi")) == "by chat"


@pytest.mark.parametrize("status", [401, 403, 429, 500, 503])
async def test_a_status_that_says_nothing_about_the_path_leaves_it_unknown(status: int) -> None:
    async with speaking(RESPONSES, CHAT) as server:
        server.status_for_nothing = status
        async with open_upstream_gateway(server.upstream()) as gateway:
            [line] = await found_by(gateway)
            assert f"did not tell what it speaks at {server.url}/v1" in line
            assert f"with status {status}" in line
            assert text_of(await gateway.respond("hi")) == "by responses"
            # Nobody knows whether it has Chat: not a word of a setting that would not help.
            refused = await gateway.post(
                "/v1/chat/completions", messages=[{"role": "user", "content": "x"}], **STOP
            )
            assert refused.status_code == 400
            assert (
                'if its server also has /chat/completions, set `api = "both"`'
                in refused.text.replace('\\"', '"')
            )


async def test_a_server_that_redirects_is_told_in_the_line_and_in_the_turn() -> None:
    def redirect(path: str) -> web.Response:
        return web.Response(status=308, headers={"location": f"https://new.example{path}?key=x"})

    async with (
        speaking(missing=redirect) as server,
        open_upstream_gateway(server.upstream()) as gateway,
    ):
        [line] = await found_by(gateway)
        assert "redirects /responses to https://new.example/v1/responses: set `url`" in line
        answer = await gateway.post("/v1/responses", input="hi")
        assert answer.status_code == 502
        message = answer.json()["error"]["message"]
        assert "redirects to https://new.example/v1/responses" in message
        assert "key=x" not in message


@pytest.mark.parametrize(
    ("api", "has", "other"), [("responses", CHAT, "chat"), ("chat", RESPONSES, "responses")]
)
async def test_a_configured_api_is_not_asked_and_its_error_names_the_remedy(
    api: str, has: str, other: str
) -> None:
    async with speaking(has) as server, open_upstream_gateway(server.upstream(api=api)) as gateway:
        assert await found_by(gateway) == []
        answer = await gateway.post("/v1/responses", input="hi")
        assert answer.status_code == 404
        assert f'set its `api` to "auto" or "{other}"' in answer.json()["error"]["message"]
        assert server.probes == []


async def test_openais_own_host_is_not_asked() -> None:
    settings = UpstreamSettings(url="https://api.openai.com/v1", key="sk-none")
    async with open_upstream_gateway(settings) as gateway:
        assert await found_by(gateway) == []
        upstreams = gateway.server.application._upstreams
        assert upstreams.takes_chat("gpt-5", {"seed": b"1"})  # type: ignore[dict-item]  # as raw
        assert not upstreams.takes_chat("gpt-5", {"temperature": b"1"})  # type: ignore[dict-item]


async def test_many_first_turns_at_once_ask_once() -> None:
    async with speaking(CHAT) as server, open_upstream_gateway(server.upstream()) as gateway:
        answers = await asyncio.gather(*(gateway.respond("hi", f"k{n}") for n in range(20)))
        assert [text_of(answer) for answer in answers] == ["by chat"] * 20
        assert len(server.probes) == 4


async def test_models_are_listed_where_the_server_was_found() -> None:
    async with (
        speaking(RESPONSES, CHAT) as server,
        open_upstream_gateway(server.upstream("")) as gateway,
    ):
        listed = (await gateway.client.get("/v1/models")).json()["data"]
        assert [model["id"] for model in listed] == ["gpt-5.4"]


async def test_config_check_says_what_a_server_speaks() -> None:
    async with speaking(RESPONSES, CHAT) as server:
        [result] = await check_upstreams([server.upstream("")])
        assert result.is_ok
        assert not result.is_warning
        found = f"speaks Responses and Chat Completions at {server.url}/v1 (not at {server.url},"
        assert result.detail.startswith(f"answers, 1 model(s); {found}")
        [result] = await check_upstreams([server.upstream(api="responses")])
        assert result.detail == "answers, 1 model(s)"
    async with speaking() as server:
        [result] = await check_upstreams([server.upstream()])
        assert not result.is_ok
        assert "has neither" in result.detail


async def test_the_doctor_says_what_a_server_speaks() -> None:
    async with speaking(CHAT) as server, open_upstream_gateway(server.upstream()) as gateway:
        await gateway.respond("hi")
        [finding] = await findings(gateway)
        assert finding["code"] == "upstream_api"
        assert "speaks Chat Completions" in finding["detail"]
        [note] = await check_server_apis([server.upstream()])
        assert (note.code, note.kind.severity) == ("upstream_api", "note")
        assert await check_server_apis([server.upstream(api="chat")]) == []
    closed = replace(server.upstream(), url=f"http://127.0.0.1:{free_port()}/v1")
    async with open_upstream_gateway(closed) as gateway:
        await found_by(gateway)
        [finding] = await findings(gateway)
        assert finding["code"] == "upstream_api_unknown"


async def findings(gateway: UpstreamGateway) -> list[dict[str, str]]:
    """Return the doctor's findings about the APIs of upstreams."""
    answer: httpx.Response = await gateway.client.get("/v1/doctor")
    return [one for one in answer.json()["data"] if one["code"].startswith("upstream_api")]
