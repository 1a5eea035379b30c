"""What a list of turns says about one that failed."""

import pytest

from holdfast.cli.output.formatting import _turn_details


@pytest.mark.parametrize(
    ("message", "said"), [("too long", "superseded: too long"), (None, "superseded")]
)
def test_an_error_without_a_message_is_told_by_its_code(message: str | None, said: str) -> None:
    turn = {"runs": [], "error": {"code": "superseded", "message": message}}
    assert _turn_details(turn) == [said]
