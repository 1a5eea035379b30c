"""Replies for our errors."""

import pytest

from holdfast.core import errors as err
from holdfast.http.server.errors import STATUS, reply_for_error


def _unavailable() -> list[err.HoldfastError]:
    kinds = [kind for kind, status in STATUS.items() if status == 503]
    return [kind("no") for kind in kinds] + [err.TurnFailed("no", failure_code="run_fenced")]


@pytest.mark.parametrize("error", _unavailable(), ids=lambda error: type(error).__name__)
def test_every_503_says_when_to_try_again(error: err.HoldfastError) -> None:
    reply = reply_for_error(error)
    assert reply.status == 503
    assert int(dict(reply.headers)[b"retry-after"]) >= 1
