"""What the reply to an empty request says about its path."""

import pytest

from holdfast.providers.http.api_detection import FoundApis, Presence, judge

ERROR = b'{"error":{"message":"you must provide a model"}}'


@pytest.mark.parametrize(
    ("status", "body", "verdict"),
    [
        (400, ERROR, "present"),
        (422, b'{"detail":[{"loc":["body","model"],"msg":"Field required"}]}', "present"),
        (400, b"<html>400 Bad Request</html>", "unclear"),
        (422, b"missing field `model`", "unclear"),
        (404, b"404 page not found", "absent"),
        (404, b"", "absent"),
        (404, b'{"detail":"Not Found"}', "absent"),
        (405, b'{"detail":"Method Not Allowed"}', "absent"),
        (404, ERROR, "unclear"),
        (404, b'[{"error":{"message":"no such model"}}]', "unclear"),
        (404, b'{"object":"error","message":"The model `` does not exist."}', "unclear"),
        (200, b'{"detail":"Not Found"}', "absent"),
        (200, b"<html></html>", "absent"),
        (200, b'{"error":"Unexpected endpoint"}', "unclear"),
        (200, b'{"object":"response","output":[]}', "present"),
        (200, b'{"choices":[]}', "present"),
        (204, b"", "absent"),
        (301, b"", "unknown"),
        (401, ERROR, "unknown"),
        (403, ERROR, "unknown"),
        (429, ERROR, "unknown"),
        (500, ERROR, "unknown"),
        (503, b"", "unknown"),
        (404, b"[" * 100_000, "absent"),
        (200, b"\xff\xfe", "absent"),
    ],
)
def test_a_reply_says_whether_its_path_is_there(status: int, body: bytes, verdict: str) -> None:
    assert judge(status, body) == verdict


@pytest.mark.parametrize(
    ("responses", "chat", "is_known"),
    [
        ("present", "present", True),
        ("present", "unknown", True),
        ("unknown", "present", True),
        ("absent", "unknown", True),
        ("unknown", "absent", True),
        ("absent", "absent", False),
        ("unknown", "unknown", False),
    ],
)
def test_one_path_that_is_missing_leaves_the_other(
    responses: Presence, chat: Presence, *, is_known: bool
) -> None:
    found = FoundApis(base="http://a/v1", responses=responses, chat=chat)
    assert found.is_known is is_known


def test_a_line_never_shows_the_query_of_an_address() -> None:
    url = "http://a/v1?key=secret"
    found = FoundApis(base=url, responses="present", chat="present")
    assert found.describe(url) == "speaks Responses and Chat Completions at http://a/v1"
