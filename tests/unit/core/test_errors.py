"""The error tree: every way of saying no, with a stable name of its own."""

import inspect
from collections.abc import Iterator

import pytest

from holdfast.core import errors
from holdfast.core.errors import HoldfastError

CODES = {
    "HoldfastError": "internal_error",
    "InvalidInput": "invalid_input",
    "InvalidSessionKey": "invalid_session_key",
    "InvalidItem": "invalid_item",
    "SessionNotKeyed": "session_not_keyed",
    "InvalidSetting": "invalid_setting",
    "NotFound": "not_found",
    "SessionNotFound": "session_not_found",
    "TurnNotFound": "turn_not_found",
    "ItemNotFound": "item_not_found",
    "Conflict": "conflict",
    "SessionRetired": "session_retired",
    "SessionChanged": "session_changed",
    "SessionBusy": "session_busy",
    "SessionHasForks": "session_has_forks",
    "SessionDeleted": "session_deleted",
    "IdempotencyMismatch": "idempotency_key_reused",
    "TurnAlreadyDone": "turn_already_done",
    "TurnCancelled": "turn_cancelled",
    "TurnInterrupted": "turn_interrupted",
    "LaneFull": "lane_full",
    "LaneTimeout": "lane_timeout",
    "RunFenced": "run_fenced",
    "TurnFailed": "turn_failed",
    "ProviderFailure": "provider_failure",
    "StoreError": "store_error",
    "StoreUnavailable": "store_unavailable",
    "ForeignDatabase": "foreign_database",
    "SchemaTooNew": "schema_too_new",
    "SchemaTooOld": "schema_too_old",
    "DurabilityRefused": "durability_refused",
}
"""Public names. A line may be added; none may change."""

RETRYABLE = {
    "SessionBusy", "TurnInterrupted", "LaneFull", "LaneTimeout", "StoreUnavailable",
}  # fmt: skip


def _walk(root: type[HoldfastError]) -> Iterator[type[HoldfastError]]:
    yield root
    for child in root.__subclasses__():
        yield from _walk(child)


TREE = [error for error in _walk(HoldfastError) if error.__module__ == errors.__name__]
every_error = pytest.mark.parametrize("error", TREE, ids=lambda error: error.__name__)


def test_every_promised_code_is_still_there() -> None:
    found = {error.__name__: error.code for error in TREE}
    assert CODES.items() <= found.items()


def test_codes_are_unique() -> None:
    assert len({error.code for error in TREE}) == len(TREE)


@every_error
def test_a_code_is_a_word_for_machines_of_its_own(error: type[HoldfastError]) -> None:
    assert "code" in vars(error), "inherited from its parent"
    assert error.code == error.code.lower()
    assert error.code.replace("_", "").isalpha()


@every_error
def test_retryable_errors_have_a_retryable_flag(error: type[HoldfastError]) -> None:
    if error.__name__ in CODES:
        assert error.retryable is (error.__name__ in RETRYABLE)


@every_error
def test_every_error_is_drawn_in_the_tree_at_the_top_and_described(
    error: type[HoldfastError],
) -> None:
    assert errors.__doc__ is not None
    assert error.__name__ in errors.__doc__.replace("/", " ").split()
    assert inspect.getdoc(error)


def test_the_tree_at_the_top_names_nothing_that_is_not_there() -> None:
    assert errors.__doc__ is not None
    drawn = {
        word
        for line in errors.__doc__.splitlines()
        if line.startswith(("├", "│", "└", "    ├", "    └", "HoldfastError"))
        for word in line.replace("/", " ").split()
        if word[0].isupper()
    }
    assert drawn == {error.__name__ for error in TREE}


def test_messages_name_the_values_and_attributes_carry_them() -> None:
    retired = errors.SessionRetired("ses_1", "ses_2")
    assert (str(retired), retired.live_id) == (
        "session ses_1 is retired; the live one is ses_2", "ses_2",
    )  # fmt: skip
    assert str(errors.SessionRetired("ses_1", None)) == "session ses_1 is retired"
    changed = errors.SessionChanged("ses_1", "ses_2")
    assert (str(changed), changed.live_id) == (
        "session ses_1 is not live; the live one is ses_2", "ses_2",
    )  # fmt: skip
    cancelled = errors.TurnCancelled("turn_1", "session_reset")
    assert (str(cancelled), cancelled.reason) == (
        "turn turn_1 was cancelled (session_reset)", "session_reset",
    )  # fmt: skip
    assert str(errors.TurnCancelled("turn_1", None)) == "turn turn_1 was cancelled (on request)"
    failed = errors.TurnFailed("it broke", failure_code="boom")
    assert (failed.message, failed.failure_code) == ("it broke", "boom")
