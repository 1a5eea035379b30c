"""The goals, each with the measured value."""

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

Sections = Mapping[str, Sequence[dict[str, Any]]]


class Goal(msgspec.Struct, frozen=True):
    """A figure to reach."""

    name: str
    wanted: str
    measured: str
    is_reached: bool | None
    """None if it was not measured."""


def find(sections: Sections, section: str, **wanted: Any) -> dict[str, Any]:
    """Return the first row of a section with these values; empty if there is none."""
    for row in sections.get(section, []):
        if all(row.get(name) == value for name, value in wanted.items()):
            return row
    return {}


def goals(sections: Sections) -> list[Goal]:
    """Return every goal with its measured value."""
    return [
        *_goals_of_turns(sections),
        *_goals_of_growth(sections),
        *_goals_of_process(sections),
        *_goals_of_sessions(sections),
        *_goals_of_counts(sections),
        *_goals_of_search(sections),
    ]


def _turn(
    sections: Sections, system: str, clients: int, *, api: str = "chat", case: str = "whole",
    keys: str = "known",
) -> dict[str, Any]:  # fmt: skip
    return find(
        sections, "gateway", system=system, upstream=api, case=case, keys=keys, clients=clients
    )


def _goals_of_turns(sections: Sections) -> list[Goal]:
    rate = "requests_per_second"
    nginx = _turn(sections, "nginx", 32).get(rate)
    litellm = _turn(sections, "LiteLLM", 32).get(rate)
    direct = _turn(sections, "stub", 1).get("p50_ms")
    ours = _turn(sections, "holdfast", 32)
    hot = _turn(sections, "holdfast", 32, keys="hot").get("cpu_us")
    found = [
        _least("share of nginx's requests/s, Chat", _over(ours.get(rate), nginx), 0.15),
        _least("times LiteLLM's requests/s, Chat", _over(ours.get(rate), litellm), 60),
    ]
    for keys, most in (("known", 1.0), ("first", 1.3)):
        p50 = _turn(sections, "holdfast", 1, keys=keys).get("p50_ms")
        words = "known session" if keys == "known" else "first contact"
        found.append(_most(f"ms added at p50, one client, {words}", _minus(p50, direct), most))
    for api in ("chat", "responses"):
        whole = _turn(sections, "holdfast", 32, api=api).get("cpu_us")
        stream = _turn(sections, "holdfast", 32, api=api, case="stream").get("cpu_us_per_chunk")
        found.append(_most(f"µs of CPU per turn, 32 clients, {api} upstream", whole, 200))
        found.append(_most(f"µs of CPU per streamed chunk, {api} upstream", stream, 35))
    name, many = "CPU on one hot key, times many keys, 32 clients", ours.get("cpu_us")
    bare_hot, bare_many = (
        _turn(sections, "bare turn", 32, keys=keys).get("cpu_us") for keys in ("hot", "known")
    )
    added = _over(_minus(hot, bare_hot), _minus(many, bare_many))
    return [
        *found,
        _most(name, _over(hot, many), 1.5),
        _most(f"{name}, each less a bare turn", added, 1.5),
    ]


def _goals_of_growth(sections: Sections) -> list[Goal]:
    found = []
    for api in ("chat", "responses"):
        early = find(sections, "growth", upstream=api, turns=5).get("added_cpu_us")
        for turns in (1000, 5000):
            late = find(sections, "growth", upstream=api, turns=turns).get("added_cpu_us")
            name = f"CPU added at turn {turns:,}, times turn 5, {api} upstream"
            found.append(_most(name, _over(late, early), 1.1))
    return found


def _goals_of_process(sections: Sections) -> list[Goal]:
    def process(case: str, field: str) -> float | None:
        return find(sections, "process", case=case).get(field)

    memory = process("memory after a small turn in each of 1,000 sessions", "mb")
    recovery = process("recovery of 10,000 orphaned turns", "seconds")
    start = find(sections, "start", case="holdfast serve").get("seconds")
    writers = find(sections, "store", case="SQLite, 8 writers").get("ratio")
    grouped = find(sections, "store", case="PostgreSQL, 64 writers").get("ratio")
    return [
        _most("MB of memory after a small turn in each of 1,000 sessions", memory, 50),
        _most("seconds to recover 10,000 orphaned turns", recovery, 2),
        _most("seconds to start", start, 0.35),
        _least("8 writers, times SQLite's own commits", writers, 4),
        _least("PostgreSQL, 64 writers, times its own commits", grouped, 8),
    ]


def _goals_of_sessions(sections: Sections) -> list[Goal]:
    """Return the goals relative to the Agents SDK's own sessions, the best of them per database."""

    def ratio(case: str) -> float | None:
        return find(sections, "agents ratios", case=case).get("ratio")

    def read(case: str) -> float | None:
        return find(sections, "agents", case=case, session="holdfast").get("p50_ms")

    found: list[Goal] = []
    for database in ("SQLite", "PostgreSQL"):
        for what, least in (
            ("appends, 1 sessions", 2),
            ("appends, 8 sessions", 5),
            ("read all of 10,000 for the first time", 2),
        ):
            case = f"{database}: {what}"
            found.append(_least(f"{case}, times the SDK's best", ratio(case), least))
        long, short = (read(f"{database}: read last 20 of {n}") for n in ("10,000", "1,000"))
        found.append(_most(f"{database}: last 20 of 10,000, times 1,000", _over(long, short), 1.2))
    return found


def _goals_of_counts(sections: Sections) -> list[Goal]:
    """Return the counts; growth ratios are shown by their worst operation per axis and kind."""
    found = []
    worst: dict[str, dict[str, Any]] = {}
    for row in sections.get("counts", []):
        axis, _, operation = row["count"].rpartition(", ")
        if ", " not in axis:
            found.append(_most(row["count"], row["value"], row["goal"]))
        elif axis not in worst or row["value"] > worst[axis]["value"]:
            worst[axis] = row | {"operation": operation}
    for axis, row in worst.items():
        name = f"growth of work with {axis} upstream (worst: {row['operation']})"
        found.append(_most(name, row["value"], row["goal"]))
    return found


def _goals_of_search(sections: Sections) -> list[Goal]:
    """Return the slowest kind of query on each database, by its median."""
    found = []
    for store in ("SQLite", "PostgreSQL"):
        rows = [row for row in sections.get("search", []) if row.get("store") == store]
        medians = [row["p50_ms"] for row in rows if "p50_ms" in row]
        name = f"ms of the slowest kind of search at p50, {store}"
        found.append(_most(name, max(medians, default=None), 20))
    return found


def _minus(value: float | None, base: float | None) -> float | None:
    return None if value is None or base is None else value - base


def _over(value: float | None, base: float | None) -> float | None:
    return None if value is None or not base else value / base


def _least(name: str, measured: float | None, least: float) -> Goal:
    wanted = f"at least {least:g}"
    if measured is None:
        return Goal(name, wanted, "not measured", None)
    return Goal(name, wanted, f"{measured:.3g}", measured >= least)


def _most(name: str, measured: float | None, most: float) -> Goal:
    wanted = f"at most {most:g}"
    if measured is None:
        return Goal(name, wanted, "not measured", None)
    return Goal(name, wanted, f"{measured:.4g}", measured <= most)
