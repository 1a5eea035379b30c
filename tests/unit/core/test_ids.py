"""Keys are opaque: kept to the byte, or refused."""

import pytest

from holdfast.core.errors import InvalidInput, InvalidSessionKey
from holdfast.core.ids import read_idempotency_key, read_key, read_tenant


@pytest.mark.parametrize(
    "key",
    [
        "a", "A", " padded ", "agent:main:direct:michael", "../../etc/passwd", "a%2fb", "'; drop",
        "\u00e9", "e\u0301", "x" * 512, "\U0001f600" * 128, "null", "\u2028", "-",
    ],
    ids=ascii,
)  # fmt: skip
def test_a_key_is_kept_unchanged_to_the_byte(key: str) -> None:
    assert read_key(key) == key


NOT_A_KEY = [
    "", "x" * 513, "\U0001f600" * 129, "a\nb", "\r", "\x00", "tab\t", "\x7f", "\x85", "\x9f",
    "\ud800", None, 7, b"bytes", ["list"],
]  # fmt: skip


@pytest.mark.parametrize("key", NOT_A_KEY, ids=lambda key: ascii(key)[:24])
def test_what_cannot_be_a_key_is_refused_with_the_reason(key: str) -> None:
    with pytest.raises(InvalidSessionKey, match="a session key"):
        read_key(key)


@pytest.mark.parametrize("key", NOT_A_KEY, ids=lambda key: ascii(key)[:24])
def test_idempotency_keys_and_tenants_follow_the_same_rule(key: str) -> None:
    with pytest.raises(InvalidInput, match="an idempotency key"):
        read_idempotency_key(key)
    with pytest.raises(InvalidInput, match="a tenant"):
        read_tenant(key)


def test_keys_that_look_alike_are_different_keys() -> None:
    assert len({read_key(key) for key in ("K", "k", "k ", "\u212a", "e\u0301", "\u00e9")}) == 6


def test_an_idempotency_key_is_kept_unchanged() -> None:
    assert read_idempotency_key(" tg:42:1007 ") == " tg:42:1007 "
    assert read_tenant("Acme") == "Acme"
