"""Operators see on the command line that a channel does not work."""

from pathlib import Path

from typer.testing import CliRunner

from holdfast.cli.app import app
from tests.acceptance.channel_stories import telegram_story
from tests.store_urls import sqlite_url


def test_a_token_that_was_revoked_fails_the_test_and_is_a_finding(tmp_path: Path) -> None:
    store, runner = sqlite_url(tmp_path), CliRunner()
    with telegram_story(store, tmp_path) as (telegram, _, gateway):
        test = ["channels", "test", "support", "--url", gateway.url]
        works = runner.invoke(app, test)
        assert (works.exit_code, works.output) == (0, "support: works, as @testbot\n")
        telegram.token = "42:REVOKED"
        telegram.say("ends the open poll")
        fails = runner.invoke(app, test)
        assert (fails.exit_code, fails.output) == (1, "support: getMe: Unauthorized\n")
        found = runner.invoke(app, ["doctor", "--store", store])
        while "channel_failing" not in found.output:
            found = runner.invoke(app, ["doctor", "--store", store])
        assert found.exit_code == 1
        assert "Unauthorized" in found.output
