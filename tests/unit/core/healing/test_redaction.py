"""Secrets in other people's words."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.core.healing.redaction import redact

SECRETS = st.sampled_from(
    ["sk-abcdefgh12", "AKIAABCDEFGHIJKLMN", "eyJhbGciOiJI.eyJz", "hunter2hunter2", "[redacted]"]
)
MARKS = st.sampled_from(
    ["api_key=", "Bearer ", "authorization: ", "https://me:", "@host ", "?key=", "]", "[", "x", " "]
)


@pytest.mark.parametrize(
    "secret",
    [
        "sk-abcdefgh12345678",
        "sk-proj-ab_cd-EFGH1234",
        "sk-ant-api03-abcdefgh",
        "sk-abcd****wxyz",
        "gsk_abcdefgh1234",
        "xai-abcdefgh1234",
        "hf_abcdefgh1234",
        "AIzaSyA1234567890abcdefghij",
        "AKIAABCDEFGHIJKLMNOP",
        "eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxIn0.abcDEF123",
    ],
)
@pytest.mark.parametrize(
    "words", ["Incorrect API key provided: {}.", "Bearer {} is refused", "url?key={}&x=1", "({})"]
)
def test_what_looks_like_a_key_is_hidden_wherever_it_stands(secret: str, words: str) -> None:
    said = redact(words.format(secret))
    assert secret not in said
    assert secret[:12] not in said
    assert "[redacted]" in said


@pytest.mark.parametrize(
    ("said", "left"),
    [
        ("Authorization: Bearer f00-ba4", "Authorization: Bearer [redacted]"),
        ("authorization: Basic dXNlcjpwYXNz", "authorization: Basic [redacted]"),
        ('{"api_key": "0123456789"}', '{"api_key": "[redacted]"}'),
        ("https://me:hunter2@host/x", "https://me:[redacted]@host/x"),
        ("GET /v1?api-key=0123abcd", "GET /v1?api-key=[redacted]"),
    ],
)
def test_what_is_called_a_secret_is_hidden_whatever_it_looks_like(said: str, left: str) -> None:
    assert redact(said) == left


@pytest.mark.parametrize(
    "said",
    [
        "No tool output found for function call call_0123456789abcdef.",
        "Item with id 'rs_0123456789abcdef0123456789' not found.",
        "Previous response with id 'resp_0123456789abcdef' not found.",
        "Use bearer authentication, please",
        "api key: required",
        "Invalid 'input[95].call_id': string too long. Expected at most 64, got 116.",
        "risk-assessment-of-everything and task-management-board",
        "This endpoint's maximum context length is 32768 tokens.",
        "see https://platform.openai.com/account/api-keys and https://host:8080/@me",
    ],
)
def test_other_text_is_unchanged(said: str) -> None:
    assert redact(said) == said


def test_a_key_that_is_known_is_hidden_in_any_form() -> None:
    assert redact("you sent plain-word-key", "plain-word-key") == "you sent [redacted]"
    assert redact("none of it", "none") == "none of it"


def test_the_end_of_a_long_key_alone_is_hidden() -> None:
    key = "private-upstream-0a1b2c3d"
    assert redact("key ****0a1b2c3d is wrong", key) == "key ****[redacted] is wrong"
    assert redact("a password is wrong", "my-upstream-password") == "a password is wrong"
    once = redact("x", "0123456789edacted]")
    assert once == "x"


@given(st.lists(SECRETS | MARKS, max_size=12).map("".join))
def test_a_text_that_was_redacted_before_stays_as_it_is(text: str) -> None:
    once = redact(text, "hunter2hunter2")
    assert redact(once, "hunter2hunter2") == once
    assert "hunter2hunter2" not in once


def test_a_known_key_that_is_part_of_the_placeholder_is_left() -> None:
    assert redact("you sent [redacted]", "redacted") == "you sent [redacted]"


def test_a_key_that_is_partly_redacted_goes_as_a_whole() -> None:
    assert redact("api_key=ab[redacted]cdef") == "api_key=[redacted]"
