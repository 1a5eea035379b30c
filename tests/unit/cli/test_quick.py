"""`serve` read quickly: the same options, the same meaning, or left to the tree of commands."""

from pathlib import Path

import pytest
import typer.main

from holdfast.cli import quick
from holdfast.cli.app import app
from holdfast.cli.quick import parse_simple


def test_the_fast_parser_knows_every_option_of_serve() -> None:
    command = typer.main.get_command(app).commands["serve"]  # type: ignore[attr-defined]  # a group
    told = {name for option in command.params for name in option.opts if name != "--help"}
    assert told == set(quick.OPTION_FIELDS)


def test_simple_options_are_parsed() -> None:
    given = ["--port", "0", "--store=memory:", "--upstream", "http://x/v1", "--config", "a.toml"]
    given += ["--log-format", "json"]
    assert parse_simple(given) == (
        Path("a.toml"),
        {
            "server": {"port": 0},
            "store": {"url": "memory:"},
            "upstream": {"url": "http://x/v1"},
            "log": {"format": "json"},
        },
    )
    assert parse_simple([]) == (None, {"server": {}, "store": {}, "upstream": {}, "log": {}})


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
def test_other_options_are_left_to_the_command_tree(given: list[str]) -> None:
    assert parse_simple(given) is None
