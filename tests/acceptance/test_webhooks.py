"""Facts of a gateway arrive at a server: signed, in order, and also after a crash."""

import base64
from pathlib import Path
from typing import Any

import httpx
import pytest
from standardwebhooks import Webhook, WebhookVerificationError

from holdfast.testing.platforms import WebhookAttempt, WebhookReceiver
from holdfast.testing.simulator.process import ProviderSimulator
from tests.acceptance.channel_stories import QUICK
from tests.acceptance.gateway_process import GatewayProcess
from tests.acceptance.stories import HttpUser
from tests.store_urls import sqlite_url

OTHER_SECRET = "whsec_" + base64.b64encode(b"another secret, of 32 bytes here").decode()


def _webhook(receiver: WebhookReceiver, name: str, **more: Any) -> str:
    events = more.pop("events", ["turn.completed", "turn.failed", "session.reset"])
    lines = [f'name = "{name}"', f'url = "{receiver.url}"', f"events = {events}", "private = true"]
    lines += [f"{field} = {value}" for field, value in more.items()]
    return "[[webhook]]\n" + "\n".join(lines) + "\n"


def _gateway(
    store: str, folder: Path, provider: ProviderSimulator, *webhooks: str, rest: str = ""
) -> GatewayProcess:
    config = folder / "holdfast.toml"
    config.write_text(
        f'[[upstream]]\nurl = "{provider.base_url}"\nkey_env = "STORY_KEY"\n'
        + rest
        + "".join(webhooks)
    )
    secrets = {"HOOK": f"{OTHER_SECRET} {WebhookReceiver().secret}", "OTHER": OTHER_SECRET}
    env = {"STORY_KEY": "sk-story", **secrets}
    return GatewayProcess(store, "--config", str(config), env=env)


def _told(attempts: list[WebhookAttempt]) -> list[tuple[str, str]]:
    return [(one.payload["type"], one.payload["data"]["key"]) for one in attempts]


def _until_dead(user: HttpUser) -> dict[str, Any]:
    while True:
        rows: list[dict[str, Any]] = user.get("/v1/outbox?state=dead")["data"]
        if rows:
            return rows[0]


def test_facts_arrive_signed_in_order_and_without_content(store_url: str, tmp_path: Path) -> None:
    with (
        ProviderSimulator() as provider,
        WebhookReceiver() as crm,
        WebhookReceiver(OTHER_SECRET) as archive,
    ):
        gateway = _gateway(
            store_url, tmp_path, provider,
            _webhook(crm, "crm", secret_env='"HOOK"', key_prefix='"crm:"'),
            _webhook(archive, "archive", secret_env='"OTHER"', content="true"),
        )  # fmt: skip
        gateway.start()
        try:
            user = HttpUser(gateway)
            for key, text in (("crm:a", "first words"), ("x", "hidden"), ("crm:a", "last words")):
                assert user.say(key, text).status_code == 200
            session = user.session("crm:a")
            assert user.post(f"/v1/sessions/{session['id']}/reset").status_code == 200
            attempts = crm.wait_for(3)
            completed = ("turn.completed", "crm:a")
            assert _told(attempts) == [completed, completed, ("session.reset", "crm:a")]
            assert attempts[2].payload["data"]["previous_session_id"] == session["id"]
            assert all(b"words" not in one.body for one in crm.attempts)
            for attempt in attempts:
                Webhook(crm.secret).verify(attempt.body, attempt.headers)
                # Two secrets are in use while they are rotated: each verifies.
                Webhook(OTHER_SECRET).verify(attempt.body, attempt.headers)
                with pytest.raises(WebhookVerificationError):
                    Webhook(crm.secret).verify(attempt.body + b" ", attempt.headers)
            kept = [one.payload["data"] for one in archive.wait_for(4)]
            texts = [
                (one.get("input_text"), "last words" in one["output_text"]) for one in kept[:3]
            ]
            assert sorted(texts) == [
                ("first words", False), ("hidden", False), ("last words", True),
            ]  # fmt: skip
        finally:
            gateway.kill()


def test_a_server_that_is_away_and_a_killed_gateway_lose_no_fact(tmp_path: Path) -> None:
    with ProviderSimulator() as provider, WebhookReceiver() as receiver:
        webhook = _webhook(receiver, "crm", secret_env='"HOOK"', events=["turn.completed"])
        gateway = _gateway(sqlite_url(tmp_path), tmp_path, provider, webhook, rest=QUICK)
        gateway.start()
        try:
            user = HttpUser(gateway)
            assert user.say("a", "1").status_code == 200
            receiver.wait_for(1)
            receiver.down()
            assert user.say("a", "2").status_code == 200
            gateway.kill()
            receiver.up()
            gateway.start()
            receiver.answer_next(503)
            assert user.say("a", "3").status_code == 200
            numbers = [one.payload["data"]["last_seq"] for one in receiver.wait_for(3)]
            assert numbers == sorted(numbers)
            assert len(receiver.accepted) == 3
        finally:
            gateway.kill()


def test_a_server_that_wants_no_more_makes_dead_letters_and_redirects_are_not_followed(
    tmp_path: Path,
) -> None:
    with ProviderSimulator() as provider, WebhookReceiver() as receiver:
        webhook = _webhook(receiver, "crm", secret_env='"HOOK"', events=["turn.completed"])
        gateway = _gateway(sqlite_url(tmp_path), tmp_path, provider, webhook)
        gateway.start()
        try:
            user = HttpUser(gateway)
            receiver.answer_next(307, location=f"{receiver.url}/elsewhere")
            receiver.answer_next(410)
            assert user.say("a", "1").status_code == 200
            dead = _until_dead(user)
            assert (dead["channel"], dead["refusals"]) == ("webhook:crm", 1)
            assert "410" in dead["error"]
            assert [one.id for one in receiver.attempts] == [dead["id"]] * 2
            reply = httpx.post(f"{gateway.url}/v1/outbox/{dead['id']}/retry", json={})
            assert reply.status_code == 200
            assert receiver.wait_for(1)[0].id == dead["id"]
        finally:
            gateway.kill()
