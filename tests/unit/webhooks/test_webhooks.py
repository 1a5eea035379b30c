"""Settings, signatures and bounds of webhooks."""

import base64
from typing import Any

import pytest
from standardwebhooks import Webhook

from holdfast.core.errors import InvalidSetting
from holdfast.core.ids import Tenant
from holdfast.webhooks.facts import paused_message
from holdfast.webhooks.settings import WebhookSettings
from holdfast.webhooks.signing import read_keys, signed_headers

SECRET = "whsec_" + base64.b64encode(bytes(range(32))).decode()


def _settings(**more: Any) -> WebhookSettings:
    values = {"url": "https://example.com/hooks", "events": ("schedule.paused",), **more}
    return WebhookSettings(name="crm", secret_env="HOOK", **values)


def test_headers_are_what_the_specification_signs() -> None:
    body = '{"type":"turn.completed"}'
    headers = signed_headers(read_keys(SECRET), "out_1", 1_700_000_000, body.encode())
    known = base64.b64encode(
        base64.b64decode(
            Webhook(SECRET).sign("out_1", _time(1_700_000_000), body).partition(",")[2]
        )
    )
    assert headers["webhook-signature"] == f"v1,{known.decode()}"
    assert headers["webhook-timestamp"] == "1700000000"


def _time(seconds: int) -> Any:
    from datetime import UTC, datetime

    return datetime.fromtimestamp(seconds, UTC)


@pytest.mark.parametrize(
    "secret", ["", "whsec_", "whsec_!!", "whsec_c2hvcnQ=", f"{SECRET} whsec_c2hvcnQ="]
)
def test_a_secret_that_is_missing_malformed_or_short_is_rejected(secret: str) -> None:
    with pytest.raises(InvalidSetting):
        _settings().filled({"HOOK": secret}, is_required=True)


@pytest.mark.parametrize(
    "url",
    [
        "ftp://example.com", "https://", "http://example.com/hooks", "https://127.0.0.1/hooks",
        "https://localhost/hooks", "https://10.1.2.3/x", "https://[::1]/x", "https://a:b@example.com/",
    ],
)  # fmt: skip
def test_a_url_that_is_not_public_needs_to_be_marked_as_private(url: str) -> None:
    with pytest.raises(InvalidSetting):
        _settings(url=url)


def test_unknown_events_are_rejected_with_the_known_ones() -> None:
    with pytest.raises(InvalidSetting, match=r"turn\.completed.*turn\.done"):
        _settings(events=("turn.done",))
    with pytest.raises(InvalidSetting):
        _settings(events=())


def test_a_pause_is_sent_to_webhooks_of_the_tenant_that_want_it() -> None:
    told = paused_message(_settings(), Tenant("default"), "report", "boom", 0.0)
    assert told is not None
    assert '"schedule.paused"' in told.text
    assert told.channel == "webhook:crm"
    for other in (_settings(tenant="other"), _settings(events=("turn.failed",))):
        assert paused_message(other, Tenant("default"), "report", "boom", 0.0) is None
