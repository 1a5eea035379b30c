"""The admin endpoints: API keys, workers and lanes, usage, doctor's findings."""

from typing import Any

import pytest

from tests.in_process import RunningGateway, ScriptedModel, open_gateway

Json = dict[str, Any]
ADMIN_PATHS = ("/v1/keys", "/v1/workers", "/v1/upstreams", "/v1/usage", "/v1/doctor")


def bearer(key: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {key}"}


async def get(gateway: RunningGateway, path: str, **query: Any) -> Json:
    answer = await gateway.client.get(path, params=query)
    assert answer.status_code == 200, answer.text
    value: Json = answer.json()
    return value


async def test_a_key_is_created_used_listed_and_revoked_over_http(store_url: str) -> None:
    async with open_gateway(store_url=store_url) as gateway:
        client = gateway.client
        first = (await client.post("/v1/keys", json={"name": "ops", "admin": True})).json()
        admin = bearer(first["key"])
        assert first["admin"] is True
        assert (await client.get("/v1/sessions")).status_code == 401
        body = {"tenant": "acme", "name": "app"}
        made = (await client.post("/v1/keys", json=body, headers=admin)).json()
        assert (made["tenant"], made["name"], made["admin"]) == ("acme", "app", False)
        assert (await client.get("/v1/sessions", headers=bearer(made["key"]))).status_code == 200
        listed = (await client.get("/v1/keys", headers=admin)).json()["data"]
        assert [key["id"] for key in listed] == [first["id"], made["id"]]
        assert not any("key" in key or "hash" in key for key in listed)
        revoked = (await client.delete(f"/v1/keys/{made['id']}", headers=admin)).json()
        assert revoked["revoked_at"] is not None
        assert (await client.get("/v1/sessions", headers=bearer(made["key"]))).status_code == 401
        unknown = await client.delete("/v1/keys/key_unknown", headers=admin)
        assert (unknown.status_code, unknown.json()["error"]["code"]) == (404, "api_key_not_found")


async def test_the_first_key_must_be_an_admin_key() -> None:
    async with open_gateway() as gateway:
        answer = await gateway.client.post("/v1/keys", json={"name": "app"})
        assert (answer.status_code, answer.json()["error"]["param"]) == (400, "admin")
        assert (await gateway.client.get("/v1/sessions")).status_code == 200


async def test_bad_key_requests_are_refused() -> None:
    async with open_gateway() as gateway:
        for body in (
            {"admin": "yes"}, {"admin": True, "name": "x" * 200},
            {"admin": True, "tenant": "\n"}, {"admin": True, "tenant": ""},
        ):  # fmt: skip
            answer = await gateway.client.post("/v1/keys", json=body)
            assert answer.status_code == 400, body
        assert (await get(gateway, "/v1/keys"))["data"] == []


async def test_admin_endpoints_need_an_admin_key() -> None:
    async with open_gateway() as gateway:
        client = gateway.client
        admin = bearer((await client.post("/v1/keys", json={"admin": True})).json()["key"])
        made = await client.post("/v1/keys", json={"tenant": "acme"}, headers=admin)
        plain = bearer(made.json()["key"])
        for path in ADMIN_PATHS:
            refused = await client.get(path, headers=plain)
            assert (refused.status_code, refused.json()["error"]["code"]) == (403, "not_allowed")
            assert (await client.get(path, headers=admin)).status_code == 200
        assert (await client.post("/v1/keys", json={}, headers=plain)).status_code == 403
        assert (await client.delete("/v1/keys/key_x", headers=plain)).status_code == 403


async def test_workers_show_the_lanes_in_use_and_who_waits(store_url: str) -> None:
    import asyncio

    async with open_gateway(store_url=store_url) as gateway:
        idle = await get(gateway, "/v1/workers")
        [worker] = idle["workers"]
        assert (worker["is_alive"], worker["runs"], idle["lanes"]) == (True, 0, [])
        gateway.model.gate.clear()
        turns = [asyncio.create_task(gateway.respond("one"))]
        await gateway.model.entered.acquire()
        turns.append(asyncio.create_task(gateway.respond("two")))
        await gateway.until_queued(1)
        busy = await get(gateway, "/v1/workers")
        [lane] = busy["lanes"]
        assert (lane["key"], lane["state"], lane["waiting_turns"]) == ("k", "running", 1)
        assert lane["worker"] == worker["id"]
        assert lane["since"] is not None
        [worker] = busy["workers"]
        assert (worker["runs"], worker["waiting_turns"]) == (1, 1)
        gateway.model.gate.set()
        await asyncio.gather(*turns)
        assert (await get(gateway, "/v1/workers"))["lanes"] == []


async def test_usage_counts_turns_tokens_and_latency_by_model_and_tenant(store_url: str) -> None:
    async with open_gateway(store_url=store_url) as gateway:
        await gateway.respond("one")
        await gateway.respond("two")
        await gateway.respond("one", key="other", model="larger")
        report = await get(gateway, "/v1/usage")
        assert (report["interval"], report["is_complete"]) == ("day", True)
        assert report["from"] % 3600 == report["to"] % 3600 == 0
        assert report["from"] < report["complete_until"] <= report["to"]
        rows = {row["model"]: row for row in report["data"]}
        assert set(rows) == {"scripted", "larger"}
        used = rows["scripted"]
        assert (used["tenant"], used["turns"], used["completed"], used["runs"]) == (
            "default", 2, 2, 2,
        )  # fmt: skip
        # The scripted model counts one token for each item: 1, then 3.
        assert (used["input_tokens"], used["output_tokens"]) == (4, 2)
        assert used["latency_ms"]["count"] == 2
        assert 0 <= used["latency_ms"]["p50"] <= used["latency_ms"]["max"]
        assert used["start"] % 86400 == 0
        by_hour = await get(gateway, "/v1/usage", interval="hour", **{"from": used["start"]})
        assert {row["start"] % 3600 for row in by_hour["data"]} == {0}
        before = await get(gateway, "/v1/usage", **{"from": "2020-01-01", "to": "2020-02-01"})
        assert before["data"] == []


async def test_usage_counts_a_failed_turn_as_failed() -> None:
    def refuse(_: list[Json]) -> list[Json]:
        raise RuntimeError("broken")

    async with open_gateway(ScriptedModel(refuse)) as gateway:
        assert (await gateway.respond("one")).status_code == 500
        [row] = (await get(gateway, "/v1/usage"))["data"]
        assert (row["turns"], row["failed"], row["completed"]) == (1, 1, 0)


@pytest.mark.parametrize(
    "query",
    [
        {"from": "yesterday"},
        {"from": "2026-02-01", "to": "2026-01-01"},
        {"from": "0", "interval": "hour"},
        {"interval": "week"},
        {"to": "9" * 30},
    ],
)
async def test_a_range_of_usage_that_makes_no_sense_is_refused(query: Json) -> None:
    async with open_gateway() as gateway:
        answer = await gateway.client.get("/v1/usage", params=query)
        assert answer.status_code == 400, answer.text


async def test_doctor_reports_a_failed_turn(store_url: str) -> None:
    def refuse(_: list[Json]) -> list[Json]:
        raise RuntimeError("broken")

    async with open_gateway(ScriptedModel(refuse), store_url=store_url) as gateway:
        await gateway.respond("one")
        found = await get(gateway, "/v1/doctor")
        assert found["checked_at"] > 0
        failures = [one for one in found["data"] if one["code"] == "turn_failed"]
        assert [one["severity"] for one in failures] == ["note"]
        assert {"meaning", "remedy", "detail", "subject", "fixable"} <= failures[0].keys()
        assert found["coverage"]["is_finished"]
        assert found["coverage"]["sessions"] == 1
        assert found["deep_check"] is None
        deep = await get(gateway, "/v1/doctor", deep="true")
        assert deep["coverage"]["is_deep"]
        assert deep["coverage"]["is_finished"]
        assert deep["coverage"]["is_whole"]
        assert deep["data"] == found["data"]
        assert deep["deep_check"]["finished_at"] == deep["checked_at"]
        assert await get(gateway, "/v1/doctor", deep="true") == deep, "it is not repeated at once"
        assert (await get(gateway, "/v1/doctor"))["deep_check"] == deep["deep_check"]
