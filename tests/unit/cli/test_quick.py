"""`serve` read quickly: the same options, the same meaning, or left to the tree of commands."""

from pathlib import Path

import pytest
import typer.main

from holdfast.cli import quick
from holdfast.cli.app import app
from holdfast.cli.quick import read_plain


def test_its_options_are_those_of_the_command() -> None:
    command = typer.main.get_command(app).commands["serve"]  # type: ignore[attr-defined]  # a group
    told = {name for option in command.params for name in option.opts if name != "--help"}
    assert told == set(quick.PLACES)


def test_plain_options_are_read() -> None:
    given = ["--port", "0", "--store=memory:", "--upstream", "http://x/v1", "--config", "a.toml"]
    assert read_plain(given) == (
        Path("a.toml"),
        {"server": {"port": 0}, "store": {"url": "memory:"}, "upstream": {"url": "http://x/v1"}},
    )
    assert read_plain([]) == (None, {"server": {}, "store": {}, "upstream": {}})


@pytest.mark.parametrize(
    "given",
    [
        ["--help"],
        ["--port"],
        ["--port", "many"],
        ["--port", "-1"],
        ["--port", ""],
        ["--port", "1", "--port", "2"],
        ["--prot", "1"],
        ["here"],
    ],
)
def test_whatever_is_not_plain_is_left_to_the_commands(given: list[str]) -> None:
    assert read_plain(given) is None
