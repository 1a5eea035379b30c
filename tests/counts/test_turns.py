"""Count the Python calls of turns, of a streamed chunk and of an append."""

from pathlib import Path

import pytest
from benchmarks.counting.appends import calls_per_append
from benchmarks.counting.histories import history_counts
from benchmarks.counting.profiled import queued_turn_counts, stream_calls, turn_counts
from benchmarks.counting.shapes import shape_costs

from tests.counts.limits import LIMITS

KINDS = ("chat", "responses")


@pytest.mark.parametrize("kind", KINDS)
def test_a_known_whole_turn_needs_no_more_calls_than_its_limit(kind: str, tmp_path: Path) -> None:
    counts = turn_counts(tmp_path, kind)
    # No statements would mean that the counters see nothing.
    assert counts.statements > 0
    assert counts.steps > 0
    assert 0 < counts.calls <= LIMITS[f"calls per turn, {kind}"].limit


@pytest.mark.parametrize("kind", KINDS)
def test_the_first_turn_of_a_key_needs_no_more_calls_than_its_limit(
    kind: str, tmp_path: Path
) -> None:
    counts = turn_counts(tmp_path, kind, is_first=True)
    assert counts.statements > 0
    assert 0 < counts.calls <= LIMITS[f"calls per first turn, {kind}"].limit


@pytest.mark.parametrize("is_same", [False, True], ids=["other text", "same text"])
@pytest.mark.parametrize("kind", KINDS)
def test_a_turn_that_waits_for_its_lane_needs_no_more_calls_than_its_limit(
    kind: str, is_same: bool, tmp_path: Path
) -> None:
    counts = queued_turn_counts(tmp_path, kind, is_same=is_same)
    assert counts.statements > 0
    assert 0 < counts.calls <= LIMITS[f"calls per queued turn, {kind}"].limit


def test_turns_as_clients_send_them_need_no_more_calls_than_their_limits(tmp_path: Path) -> None:
    costs = shape_costs(tmp_path)
    assert all(cost.calls > cost.package_changes > cost.modules > 0 for cost in costs.values())
    limits = {name: LIMITS[f"calls per turn: {name}"].limit for name in costs}
    assert {name: cost.calls for name, cost in costs.items() if cost.calls > limits[name]} == {}


@pytest.mark.parametrize("client", KINDS)
@pytest.mark.parametrize("kind", KINDS)
def test_a_stream_and_its_chunks_need_no_more_calls_than_their_limits(
    kind: str, client: str, tmp_path: Path
) -> None:
    calls = stream_calls(tmp_path, kind, client)
    assert 0 < calls.per_chunk <= LIMITS[f"calls per streamed chunk, {kind}"].limit
    limit = LIMITS[f"calls per stream beside its chunks, {kind} to {client}"].limit
    assert 0 < calls.beside_chunks <= limit


def test_an_append_of_an_sdk_session_needs_no_more_calls_than_its_limit(tmp_path: Path) -> None:
    calls = calls_per_append(tmp_path)
    assert 0 < calls <= LIMITS["calls per append of an SDK session"].limit


@pytest.mark.parametrize("kind", KINDS)
def test_an_item_of_a_known_history_needs_no_more_calls_than_its_limit(
    kind: str, tmp_path: Path
) -> None:
    counts = history_counts(tmp_path, kind)
    assert 0 < counts.calls_per_item <= LIMITS[f"calls per item of a known history, {kind}"].limit
    assert counts.statements_per_item == 0
