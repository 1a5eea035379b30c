"""`holdfast schedules add` tells cron, periods and times apart, and knows what a target is."""

import pytest

from holdfast.cli.commands.automation import schedules
from tests.cli.terminals import in_process


@pytest.mark.parametrize(
    ("when", "kind"),
    [
        ("0 9 * * 1-5", "cron"), ("0 9 * * TUE", "cron"), ("@daily", "cron"), ("* * * *", "cron"),
        ("15m", "every"), ("1500s", "every"), ("15", "every"),
        ("2026-05-01T09:00", "at"), ("2026-05-01 09:00", "at"), ("20260501T0900", "at"),
    ],
)  # fmt: skip
def test_a_time_is_sent_in_the_field_that_its_form_shows(when: str, kind: str) -> None:
    assert schedules._kind(when) == kind


@pytest.mark.parametrize("target", ["support", "support:", ""])
def test_a_target_without_a_chat_is_wrong_usage(
    target: str, capsys: pytest.CaptureFixture[str]
) -> None:
    outcome = in_process(capsys, "schedules", "add", "s", "5m", "hi", "--deliver", target)
    assert outcome.code == 2
    assert f"--deliver must be CHANNEL:CHAT, not {target!r}" in outcome.err
