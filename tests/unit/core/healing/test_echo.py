"""What a request said does not get into the log by way of an error message."""

import json
from collections.abc import Callable

import pytest

from holdfast.core.healing.echo import MAX_SEARCHED, strip_echo

PRIVATE = "I was born on 4 May 1990 in Žilina"
BODY = {
    "model": "gpt-4.1",
    "instructions": "Answer as the clinic's assistant",
    "input": [
        {"type": "message", "role": "user", "content": [{"type": "input_text", "text": PRIVATE}]},
        {"type": "function_call_output", "call_id": "call_1", "output": '{"iban": "DE89 3704"}'},
    ],
}


def strip(message: str, body: object = BODY) -> str | None:
    return strip_echo(message, [json.dumps(body).encode()])


@pytest.mark.parametrize(
    ("message", "logged"),
    [
        (f"Bad input: {PRIVATE}", "Bad input: [content]"),
        (f"Bad input: '{PRIVATE}' (400)", "Bad input: '[content]' (400)"),
        ("Bad input: born on 4 May 19", "Bad input: [content]"),
        ("cannot parse DE89 3704", "cannot parse [content]"),
        ('bad arguments {"iban": "DE89 3704"}', 'bad arguments {"[content]"}'),
        ("Answer as the clinic's assistant is too long", "[content] is too long"),
        ("odd word 'born'", "odd word '[content]'"),
    ],
)
def test_parts_of_the_request_are_left_out(message: str, logged: str) -> None:
    assert strip(message) == logged


@pytest.mark.parametrize(
    "message",
    [
        "The server is overloaded",
        "Invalid 'input[95].call_id': string too long. Expected at most 64, got 116.",
        "The model `gpt-4.1` does not exist",
        "No tool output found for function call call_1.",
        "in May it was on",
    ],
)
def test_the_providers_own_words_stay(message: str) -> None:
    assert strip(message) == message


@pytest.mark.parametrize(
    ("text", "message", "logged"),
    [
        ("HIV", "Bad input: HIV", "Bad input: [content]"),
        ("cancer", "Bad input: cancer.", "Bad input: [content]."),
        ("hello!", "hello! is refused", "[content]! is refused"),
        ("no", "the value was: no", "the value was: [content]"),
        ("a b", "bad: A  or a B", "bad: A  or [content]"),
        ("🤰🏽", "bad: 🤰🏽", "bad: [content]"),
    ],
)
def test_a_whole_text_of_the_request_is_content_whatever_its_length(
    text: str, message: str, logged: str
) -> None:
    body = {"input": [{"role": "user", "content": text}, {"role": "user", "content": "HIV is x"}]}
    assert strip(message, body) == logged


@pytest.mark.parametrize("case", [str.upper, str.lower, str.title, str.swapcase])
def test_content_in_another_case_is_recognised(case: Callable[[str], str]) -> None:
    assert strip(f"Bad: {case(PRIVATE)}") == "Bad: [content]"
    assert strip(f"Bad: {case('cancer')}", {"input": "Cancer"}) == "Bad: [content]"


def test_escaped_content_is_recognised() -> None:
    body = {"input": "first line\nsecond »line«"}
    assert strip("bad: first line\\nsecond \\u00bbline\\u00ab", body) == "bad: [content]"


def test_long_quotations_are_left_out_whoever_is_quoted() -> None:
    assert strip('earlier: "what the model said before"') == 'earlier: "[content]"'
    assert strip("it doesn't work because that's the way it is") == (
        "it doesn't work because that's the way it is"
    )


def test_files_are_not_searched() -> None:
    image = "data:image/png;base64," + "A" * (MAX_SEARCHED + 1)
    assert strip("The server is overloaded", {"input": [{"image_url": image}]}) is not None


def test_nothing_is_logged_of_a_message_about_a_request_too_large_to_compare() -> None:
    assert strip("The server is overloaded", {"input": "a b " * MAX_SEARCHED}) is None


def test_a_body_that_is_no_json_is_compared_as_text() -> None:
    assert strip_echo("bad: some private text", [b"--form\r\nsome private text"]) == (
        "bad: [content]"
    )
