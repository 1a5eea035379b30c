"""JSON for programs, which people also read in a terminal."""

import json

import pytest

from holdfast.cli.output.terminal import print_json

HOSTILE = (
    "\x1b[2J \x9b2J \x85 \x7f \u202etxt.exe\u202c \u2066x\u2069 \u200b \u2028 \U000e0041 \ud83d"
)


def test_no_control_character_or_direction_mark_reaches_the_terminal(
    capsys: pytest.CaptureFixture[str],
) -> None:
    value = {HOSTILE: [HOSTILE], "plain": "Grüße, 世界 😀"}
    print_json(value)
    [line, rest] = capsys.readouterr().out.split("\n")
    assert line.isprintable()
    assert "Grüße, 世界 😀" in line
    assert (json.loads(line), rest) == (value, "")
