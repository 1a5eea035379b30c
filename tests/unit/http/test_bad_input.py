"""Invalid input never causes a 500 and always gets a JSON error."""

import asyncio
import re
from typing import Any
from urllib.parse import quote

import httpx
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from holdfast.app import open_application
from holdfast.settings import Settings, StoreSettings
from tests.http_server import serving
from tests.in_process import RunningGateway, open_gateway

ROUTES = [
    ("POST", "/v1/conversations"),
    ("GET", "/v1/conversations/{conversation}"),
    ("POST", "/v1/conversations/{conversation}"),
    ("DELETE", "/v1/conversations/{conversation}"),
    ("GET", "/v1/conversations/{conversation}/items"),
    ("POST", "/v1/conversations/{conversation}/items"),
    ("GET", "/v1/conversations/{conversation}/items/{item}"),
    ("DELETE", "/v1/conversations/{conversation}/items/{item}"),
    ("GET", "/v1/sessions"),
    ("GET", "/v1/sessions/{session}"),
    ("POST", "/v1/sessions/{session}"),
    ("DELETE", "/v1/sessions/{session}"),
    ("GET", "/v1/sessions/{session}/items"),
    ("POST", "/v1/sessions/{session}/items"),
    ("GET", "/v1/sessions/{session}/turns"),
    ("POST", "/v1/sessions/{session}/reset"),
    ("POST", "/v1/sessions/{session}/restore"),
    ("POST", "/v1/sessions/{session}/fork"),
    ("POST", "/v1/sessions/{session}/compact"),
    ("GET", "/v1/sessions/{session}/compactions"),
    ("GET", "/v1/sessions/{session}/compactions/{item}"),
    ("POST", "/v1/sessions/{session}/compactions/{item}/undo"),
    ("GET", "/v1/turns/{turn}"),
    ("POST", "/v1/turns/{turn}/cancel"),
]
LISTED = ["after", "limit", "order", "key", "status", "generations", "view"]
PARAMETERS = [*LISTED, "cascade", "erase"]
NASTY = [
    "\0", "a\0b", "%", "", " ", "x" * 5000, "'; --", "\x1f", "\x7f", "😀", "é", "null", "-1",
    "0", "1.5", "1e9", str(2**63), str(2**80), "msg.1", "conv_", "ses_", "[]", "{}", "\ufffe",
]  # fmt: skip
HARD = ["\0", "a\0b", "x" * 5000, "😀", str(2**80), "-1"]
"""What a database with opinions on text and numbers might stumble over."""
FIELDS = [
    "items", "metadata", "expected_session_id", "reason", "after_item", "model", "instructions",
]  # fmt: skip
NASTY_VALUES: list[Any] = [
    *NASTY, None, True, 0, -1, 2**70, 1.5, [], {}, [None], [[]], [{}], [{"type": "\0"}],
    [{"role": "user", "content": "\0"}], [{"type": "message", "id": "\0", "role": "user"}],
    [{"type": "x", "id": "y" * 5000}], [{"type": "x", "call_id": "a\0b"}], {"a": "\0"}, {"\0": "a"},
    {"a": 1}, [{"role": "user", "content": [{"type": "input_text", "text": 5}]}],
    [{"type": "function_call_output", "call_id": "c", "output": {"deep": [1, None]}}],
]  # fmt: skip


_TAKEN = {
    "conversations": {"items", "metadata"},
    "items": {"items"},
    "reset": {"expected_session_id", "reason"},
    "restore": {"reason"},
    "cancel": {"reason"},
    "fork": {"after_item"},
    "compact": {"model", "instructions"},
    "undo": set(),
    "{}": {"metadata"},
}
"""The fields that an endpoint looks at, by the end of its path."""


def check_shape(answer: httpx.Response, what: object) -> None:
    assert answer.status_code < 500, (what, answer.text)
    if answer.status_code >= 400:
        assert answer.json()["error"].keys() == {"message", "type", "param", "code"}, what


class Prober:
    """A gateway with one of everything, made anew when it was deleted."""

    def __init__(self, gateway: RunningGateway) -> None:
        self.gateway = gateway
        self.ids: dict[str, str] = {}

    async def settle(self) -> None:
        answer = await self.gateway.respond("one", key="k")
        session = answer.headers["x-session-id"]
        items = (await self.gateway.client.get(f"/v1/sessions/{session}/items")).json()["data"]
        self.ids = {
            "session": session,
            "conversation": f"conv_{session.removeprefix('ses_')}",
            "item": items[0]["id"],
            "turn": answer.headers["x-turn-id"],
        }

    async def ask(self, method: str, path: str, **more: Any) -> httpx.Response:
        for name, one in self.ids.items():
            path = path.replace("{" + name + "}", one)
        answer = await self.gateway.client.request(method, path, **more)
        check_shape(answer, (method, path, more))
        if answer.status_code == 200 and (method == "DELETE" or path.endswith("/reset")):
            await self.settle()
        return answer


@pytest.fixture(params=["memory", "postgres"])
def url(request: pytest.FixtureRequest) -> str:
    if request.param == "memory":
        return "memory:"
    return str(request.getfixturevalue("postgres_url"))


async def test_no_id_in_a_path_causes_a_500(url: str) -> None:
    async with open_gateway(store_url=url) as gateway:
        prober = Prober(gateway)
        await prober.settle()
        for method, path in ROUTES:
            for place in re.findall(r"\{\w+\}", path):
                for nasty in NASTY if url == "memory:" else HARD:
                    answer = await prober.ask(method, path.replace(place, quote(nasty, safe="")))
                    assert answer.status_code in (400, 404, 405, 415), (method, path, nasty)


async def test_no_query_parameter_causes_a_500(url: str) -> None:
    async with open_gateway(store_url=url) as gateway:
        prober = Prober(gateway)
        await prober.settle()
        for method, path in ROUTES:
            if method == "GET" and path.endswith(("s", "turns")):
                for name in LISTED:
                    for nasty in NASTY if url == "memory:" else HARD:
                        await prober.ask(method, path, params={name: nasty})
        for nasty in NASTY:
            session, conversation = "/v1/sessions/{session}", "/v1/conversations/{conversation}"
            await prober.ask("DELETE", session, params={"cascade": nasty})
            await prober.ask("DELETE", f"{conversation}/items/{{item}}", params={"erase": nasty})


async def test_no_body_field_causes_a_500(url: str) -> None:
    async with open_gateway(store_url=url) as gateway:
        prober = Prober(gateway)
        await prober.settle()
        for method, path in ROUTES:
            for name in FIELDS if method == "POST" else ():
                if name in _TAKEN.get(path.rpartition("/")[2], _TAKEN["{}"]):
                    for nasty in NASTY_VALUES:
                        await prober.ask(method, path, json={name: nasty})
        for nasty in HARD:
            for field in ("conversation", "previous_response_id"):
                body = {"model": "scripted", "input": "x", field: f"conv_{nasty}"}
                await prober.ask("POST", "/v1/responses", json=body)


async def test_no_header_causes_a_500() -> None:
    async with open_gateway() as gateway:
        prober = Prober(gateway)
        await prober.settle()
        body = {"items": [{"role": "user", "content": "x"}]}
        for name in ("Idempotency-Key", "X-On-Busy", "x-stainless-retry-count", "X-Session-Key",
                     "X-Session-Id", "X-Session-Internal", "Last-Event-ID"):  # fmt: skip
            for nasty in (b"", b"x" * 300, b"\xff", b"-1", b"true", "é".encode(), b"a b"):
                for path in ("/v1/conversations", "/v1/conversations/{conversation}/items",
                             "/v1/sessions/{session}/items"):  # fmt: skip
                    await prober.ask("POST", path, json=body, headers={name.encode(): nasty})


@pytest.mark.parametrize(
    "body", [b"", b"{", b"\xff", b"[]", b'{"items":', b'"', b"[" * 5000, b'{"a":' * 5000, b"nul"]
)
async def test_a_body_that_is_not_a_json_object_is_rejected(body: bytes) -> None:
    async with open_gateway() as gateway:
        prober = Prober(gateway)
        await prober.settle()
        headers = {"content-type": "application/json"}
        for method, path in ROUTES:
            if method == "POST":
                answer = await prober.ask(method, path, content=body, headers=headers)
                is_optional = path.endswith(("/reset", "/restore", "/fork", "/cancel", "/compact"))
                is_unknown = path.endswith("/undo") and not body
                expected = 404 if is_unknown else 200 if is_optional and not body else 400
                assert answer.status_code == expected, path
        form = {"content-type": "application/x-www-form-urlencoded"}
        refused = await prober.ask("POST", "/v1/conversations", content=b"a=b", headers=form)
        assert refused.status_code in (400, 415)


JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3)
    ),
    max_leaves=8,
)
ITEM = st.fixed_dictionaries(
    {},
    optional=dict.fromkeys(
        ("type", "role", "id", "call_id", "content", "output", "name", "arguments"), JSON
    ),
)


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(
    route=st.sampled_from(ROUTES),
    name=st.text(max_size=20),
    query=st.dictionaries(st.sampled_from(PARAMETERS), st.text(max_size=12), max_size=3),
    body=st.fixed_dictionaries({}, optional={n: JSON | st.lists(ITEM) for n in FIELDS}) | JSON,
    is_real=st.booleans(),
)
def test_generated_requests_never_cause_a_500(
    route: tuple[str, str], name: str, query: dict[str, str], body: Any, is_real: bool
) -> None:
    async def ask() -> None:
        async with open_gateway() as gateway:
            prober = Prober(gateway)
            await prober.settle()
            method, path = route
            if not is_real:
                path = re.sub(r"\{\w+\}", lambda _: quote(name, safe=""), path)
            more: dict[str, Any] = {"params": query}
            if method == "POST":
                more["json"] = body
            await prober.ask(method, path, **more)

    asyncio.run(ask())


@pytest.mark.parametrize("path", ["/v1/responses", "/v1/chat/completions", "/v1/conversations"])
@pytest.mark.parametrize(
    ("body", "encoding", "status"),
    [
        (b'{"model":"\xff","input":"x"}', "identity", 400),
        (b'{"model":"x","input":"x","tools":"\xc3"}', "identity", 400),
        ('{"model":"x","input":"x"}'.encode("utf-16"), "identity", 400),
        (b"\xef\xbb\xbf{}", "identity", 400),
        (b'{"input":' + b"[" * 100_000 + b"]" * 100_000 + b"}", "identity", 400),
        (b'{"items":1e999,"input":1e999}', "identity", 400),
        (b'{"model":"x","input":"x"}', "gzip", 415),
        (b"\x1f\x8b\x08\x00", "br", 415),
    ],
    ids=["byte", "deep byte", "utf-16", "bom", "deep", "infinite", "gzip", "br"],
)
async def test_bodies_that_are_not_utf8_are_rejected(
    path: str, body: bytes, encoding: str, status: int
) -> None:
    async with open_gateway() as gateway:
        headers = {"content-type": "application/json", "content-encoding": encoding}
        answer = await gateway.client.post(path, content=body, headers=headers)
        assert answer.status_code == status, answer.text
        check_shape(answer, body)


@pytest.mark.parametrize("role", ["wizard", "critic", "tool", "unknown", "discriminator", None])
async def test_a_message_with_an_unknown_role_is_rejected_and_leaves_its_session_usable(
    role: str | None,
) -> None:
    item = {"type": "message", "role": role, "content": "x"}
    if role is None:
        del item["role"]
    async with open_gateway() as gateway:
        refused = await gateway.respond([item])
        assert refused.status_code == 400
        assert refused.json()["error"]["param"] == "input[0]"
        made = (await gateway.client.post("/v1/conversations", json={})).json()["id"]
        added = await gateway.client.post(f"/v1/conversations/{made}/items", json={"items": [item]})
        assert added.status_code == 400
        assert (await gateway.respond("hi")).status_code == 200
        assert (await gateway.respond("hi", key=None, conversation=made)).status_code == 200


async def test_an_error_that_quotes_a_long_value_is_short() -> None:
    async with open_gateway() as gateway:
        for body in ({"previous_response_id": "x" * 100_000}, {"conversation": "x" * 100_000}):
            refused = await gateway.respond("hi", None, **body)
            assert refused.status_code in (400, 404)
            assert len(refused.content) < 10_000


@pytest.mark.parametrize(
    ("path", "body", "param"),
    [
        ("/v1/sessions?after=ses_unknown", None, "after"),
        ("/v1/events?after=unknown", None, "after"),
        ("/v1/search?q=a&after=unknown", None, "after"),
        ("/v1/search?q=a&role=wizard", None, "role"),
        ("/v1/search?q=a&since=soon", None, "since"),
        (f"/v1/search?q=a&key_prefix={'k' * 5000}", None, "key_prefix"),
        ("/v1/schedules", {"name": "s", "prompt": "p", "every": "0s"}, "every"),
        ("/v1/schedules", {"name": "s", "prompt": "p", "cron": "61 * * * *"}, "cron"),
        ("/v1/schedules", {"name": "a/b", "prompt": "p", "every": "1h"}, "name"),
        ("/v1/schedules", {"name": "s", "prompt": "p"}, None),
    ],
)
async def test_an_invalid_value_is_named(
    path: str, body: dict[str, Any] | None, param: str | None
) -> None:
    memory = Settings(store=StoreSettings(url="memory:"))
    async with (
        open_application(memory) as application,
        serving(application) as server,
        httpx.AsyncClient(base_url=server.url) as client,
    ):
        answer = await client.request("GET" if body is None else "POST", path, json=body)
        assert answer.status_code == 400
        assert answer.json()["error"]["param"] == param
