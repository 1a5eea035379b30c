"""Upstreams that cannot be are refused by name, and no key is ever shown."""

from typing import Any

import pytest

from holdfast.core.errors import InvalidSetting
from holdfast.providers.settings import TimeoutSettings, UpstreamSettings


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
    ],
)
def test_what_an_upstream_cannot_be_is_named(fields: dict[str, Any], named: str) -> None:
    with pytest.raises(InvalidSetting, match=named) as caught:
        UpstreamSettings(**{"url": "https://x/v1", **fields})
    assert "secret" not in caught.value.message


@pytest.mark.parametrize("name", ["connect_seconds", "first_byte_seconds", "chunk_seconds"])
def test_a_limit_must_be_positive(name: str) -> None:
    with pytest.raises(InvalidSetting, match=name):
        TimeoutSettings(**{name: 0})


def test_the_key_is_not_shown() -> None:
    assert "sk-secret" not in repr(UpstreamSettings(url="https://x/v1", key="sk-secret"))
