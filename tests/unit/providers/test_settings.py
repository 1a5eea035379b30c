"""Invalid upstreams are refused with the name of the setting, and no secret is ever shown."""

from typing import Any

import pytest

from holdfast.core.errors import InvalidSetting
from holdfast.providers.settings import TimeoutSettings, UpstreamSettings, proxy_for


@pytest.mark.parametrize(
    ("fields", "named"),
    [
        ({"url": "ftp://x"}, "upstream.url"),
        ({"url": "https://"}, "upstream.url"),
        ({"url": "https://user:secret@x/v1"}, "password"),
        ({"name": ""}, "name"),
        ({"models": ()}, "models"),
        ({"api": "grpc"}, "api"),
        ({"state": "magic"}, "state"),
        ({"api": "chat", "state": "chain"}, "state"),
        ({"context_tokens": 0}, "context_tokens"),
        ({"api": "codex", "url": "", "workdir": "/srv/work"}, "shared = true"),
    ],
)
def test_an_invalid_upstream_is_refused_by_name(fields: dict[str, Any], named: str) -> None:
    with pytest.raises(InvalidSetting, match=named) as caught:
        UpstreamSettings(**{"url": "https://x/v1", **fields})
    assert "secret" not in caught.value.message


@pytest.mark.parametrize("name", ["connect_seconds", "first_byte_seconds", "chunk_seconds"])
def test_a_limit_must_be_positive(name: str) -> None:
    with pytest.raises(InvalidSetting, match=name):
        TimeoutSettings(**{name: 0})


def test_the_key_is_not_shown() -> None:
    assert "sk-secret" not in repr(UpstreamSettings(url="https://x/v1", key="sk-secret"))


PROXY = "http://me:secret@proxy:3128"


@pytest.mark.parametrize(
    ("url", "environment", "proxy"),
    [
        ("https://api.example/v1", {"HTTPS_PROXY": PROXY}, PROXY),
        ("https://api.example/v1", {"https_proxy": PROXY, "HTTPS_PROXY": "http://x:1"}, PROXY),
        ("https://api.example/v1", {"ALL_PROXY": PROXY}, PROXY),
        ("http://api.example/v1", {"HTTP_PROXY": PROXY}, PROXY),
        ("http://api.example/v1", {"HTTPS_PROXY": PROXY}, None),
        ("https://api.example/v1", {}, None),
        ("https://localhost/v1", {"HTTPS_PROXY": PROXY}, None),
        ("http://127.0.0.1:8000/v1", {"HTTP_PROXY": PROXY}, None),
        ("https://api.example/v1", {"HTTPS_PROXY": PROXY, "NO_PROXY": "*"}, None),
        ("https://api.example/v1", {"HTTPS_PROXY": PROXY, "NO_PROXY": "x, example"}, None),
        ("https://api.example/v1", {"HTTPS_PROXY": PROXY, "no_proxy": ".example"}, None),
        ("https://badexample/v1", {"HTTPS_PROXY": PROXY, "NO_PROXY": "example"}, PROXY),
        ("https://api.example/v1", {"HTTPS_PROXY": PROXY, "NO_PROXY": "api.example:8443"}, PROXY),
        ("https://10.1.2.3/v1", {"HTTPS_PROXY": PROXY, "NO_PROXY": "10.0.0.0/8"}, None),
    ],
)
def test_the_usual_variables_name_the_proxy(
    url: str, environment: dict[str, str], proxy: str | None
) -> None:
    assert proxy_for(url, environment) == proxy


@pytest.mark.parametrize("proxy", ["socks5://me:secret@x:1", "http://", "http://x:secret"])
def test_an_invalid_proxy_is_refused_by_its_variable(proxy: str) -> None:
    with pytest.raises(InvalidSetting, match="HTTPS_PROXY") as caught:
        proxy_for("https://api.example/v1", {"HTTPS_PROXY": proxy})
    assert "secret" not in caught.value.message


def test_the_proxy_is_not_shown() -> None:
    assert "secret" not in repr(UpstreamSettings(url="https://x/v1", proxy=PROXY))
