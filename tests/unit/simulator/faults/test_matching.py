"""Matching of calls and rules."""

from dataclasses import dataclass, field

import pytest

from holdfast.simulator.faults.matching import Counter, Match, matches


@dataclass
class Some:
    """A call that is what the test says."""

    api: str = "responses"
    operation: str = "create"
    method: str = "POST"
    path: str = "/v1/responses"
    model: str = "gpt-5.4"
    account_key: str = "sk-a"
    text: str = '{"input":"hello"}'
    headers: dict[str, str] = field(default_factory=lambda: {"x-who": "me"})
    is_stream: bool = False


@pytest.mark.parametrize(
    "match",
    [
        Match(),
        Match(api="responses", operation="create", method="POST"),
        Match(path="/v1/*", model="gpt-5.*", account="sk-a"),
        Match(text="hello", header={"X-Who": "m?"}, stream=False),
    ],
)
def test_a_call_matches_its_properties(match: Match) -> None:
    assert matches(match, Some())


@pytest.mark.parametrize(
    "match",
    [
        Match(api="chat"),
        Match(operation="retrieve"),
        Match(method="GET"),
        Match(path="/v2/*"),
        Match(model="gpt-4*"),
        Match(account="sk"),
        Match(text="goodbye"),
        Match(header={"x-who": "you"}),
        Match(header={"x-other": "*e"}),
        Match(stream=True),
    ],
)
def test_a_call_does_not_match_other_properties(match: Match) -> None:
    assert not matches(match, Some())


def test_nth_counts_matching_calls() -> None:
    counter = Counter(Match(api="responses", nth=2))
    calls = [Some(), Some(api="chat"), Some(), Some()]
    assert [counter.count_match(call) for call in calls] == [False, False, True, False]


def test_every_nth_match_applies_up_to_the_limit() -> None:
    counter = Counter(Match(every=2), times=2)
    assert [counter.count_match(Some()) for _ in range(8)] == [False, True] * 2 + [False] * 4


def test_a_blocked_rule_does_not_use_up_its_limit() -> None:
    counter = Counter(Match(), times=1)
    assert not counter.count_match(Some(), may_act=False)
    assert counter.count_match(Some())
