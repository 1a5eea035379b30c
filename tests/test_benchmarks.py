"""Run the short form of the benchmarks and check reports, goals and comparisons; judge no times."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from benchmarks.__main__ import SECTIONS, main
from benchmarks.compare import compare
from benchmarks.goals import goals
from benchmarks.load import KNOWN_KEYS, Load
from benchmarks.report import BEGIN, END, Report, draw, markdown, publish
from benchmarks.sizing import PAGE as DEPLOYMENT
from benchmarks.sizing import publish_sizing, sizing
from benchmarks.spin import Spin

ROOT = Path(__file__).resolve().parent.parent
SHOWN = {"start": "holdfast serve"}
"""What the table of a section contains."""
TURN = {"system": "holdfast", "upstream": "chat", "case": "whole", "keys": "known", "clients": 32}


def _measure_shortly(section: str, folder: Path) -> dict[str, Any]:
    """Run the short form of one section; return its report."""
    copy = folder / "copy.json"
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks", "--short", "--only", section, "--out", str(folder),
         "--json", str(copy)],
        cwd=ROOT, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    report: dict[str, Any] = json.loads((folder / "report.json").read_text())
    assert json.loads(copy.read_text()) == report
    assert report["sections"]
    assert all(rows for rows in report["sections"].values())
    assert not report["notes"]
    return report


# Several processes on PostgreSQL are measured by the long form alone.
@pytest.mark.timeout(300)
@pytest.mark.parametrize("section", sorted({*SECTIONS} - {"gateway", "scale"}))
def test_the_short_form_measures_a_section(section: str, tmp_path: Path) -> None:
    assert section in _measure_shortly(section, tmp_path)["sections"]
    assert SHOWN.get(section, "") in (tmp_path / "report.md").read_text()


@pytest.mark.timeout(300)
def test_the_short_form_loads_the_gateway_in_every_way(tmp_path: Path) -> None:
    report = _measure_shortly("gateway", tmp_path)
    served = [row for row in report["sections"]["gateway"] if row["system"] == "holdfast"]
    assert {(row["upstream"], row["case"], row["keys"]) for row in served} == {
        (upstream, case, keys)
        for upstream in ("responses", "chat")
        for case in ("whole", "stream")
        for keys in ("known", "first", "hot")
    }
    bare = [row for row in report["sections"]["gateway"] if row["system"] == "bare turn"]
    assert {(row["upstream"], row["keys"]) for row in bare} == {
        (upstream, keys) for upstream in ("responses", "chat") for keys in ("known", "hot")
    }
    assert all(row["failures"] == 0 and row["requests_per_second"] > 0 for row in served + bare)
    assert (tmp_path / "gateway.svg").read_text().startswith("<svg")


def test_goals_are_judged_by_measured_values_only() -> None:
    report = Report()
    assert {goal.is_reached for goal in goals(report.sections)} == {None}
    for system, rate in (("holdfast", 200.0), ("nginx", 1000.0), ("LiteLLM", 10.0)):
        row = {**TURN, "system": system, "cpu_us": 100.0, "p50_ms": 1.0}
        report.add("gateway", **row, requests_per_second=rate)
    found = {goal.name: goal.is_reached for goal in goals(report.sections)}
    assert found["share of nginx's requests/s, Chat"] is True
    assert found["times LiteLLM's requests/s, Chat"] is False
    assert found["µs of CPU per turn, 32 clients, chat upstream"] is True
    assert found["µs of CPU per turn, 32 clients, responses upstream"] is None
    assert found["seconds to start"] is None


def test_a_hot_key_is_judged_with_and_without_what_a_bare_turn_costs_there() -> None:
    report = Report()
    for system, keys, cpu in (
        ("holdfast", "known", 300.0),
        ("holdfast", "hot", 600.0),
        ("bare turn", "known", 50.0),
        ("bare turn", "hot", 250.0),
    ):
        report.add("gateway", **{**TURN, "system": system, "keys": keys, "cpu_us": cpu})
    found = {goal.name: goal for goal in goals(report.sections)}
    name = "CPU on one hot key, times many keys, 32 clients"
    assert (found[name].measured, found[name].is_reached) == ("2", False)
    less = found[f"{name}, each less a bare turn"]
    assert (less.measured, less.is_reached) == ("1.4", True)


def test_the_worst_operation_stands_for_its_axis_among_the_goals() -> None:
    report = Report()
    for count, value in (("length, chat, turn", 1.0), ("length, chat, page", 7.0)):
        report.add("counts", count=count, value=value, limit=8.0, goal=1.1)
    report.add("counts", count="calls per turn, chat", value=100.0, limit=640, goal=130)
    found = {goal.name: goal for goal in goals(report.sections) if goal.is_reached is not None}
    assert set(found) == {
        "calls per turn, chat",
        "growth of work with length, chat upstream (worst: page)",
    }
    assert found["calls per turn, chat"].is_reached is True


def test_two_reports_are_compared_figure_by_figure() -> None:
    before, after = Report(), Report()
    for report, cpu in ((before, 800.0), (after, 200.0)):
        report.add("gateway", **TURN, cpu_us=cpu, requests_per_second=1.0)
    after.add("start", case="new", seconds=1.0)
    text = compare(before.value(), after.value())
    assert "| µs of CPU per turn, 32 clients, chat upstream | at most 200 | 800 | 200 |" in text
    assert (
        "| gateway | holdfast, chat, whole, known, 32 clients | cpu_us | 800 | 200 | 0.25 |" in text
    )
    assert "| start | new |" not in text


def test_the_command_compares_two_files(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    report = Report()
    report.add("start", case="holdfast serve", seconds=0.25)
    for name in ("before.json", "after.json"):
        (tmp_path / name).write_text(json.dumps(report.value()))
    main(["--compare", str(tmp_path / "before.json"), str(tmp_path / "after.json")])
    assert "| start | holdfast serve | seconds | 0.25 | 0.25 | 1.00 |" in capsys.readouterr().out
    (tmp_path / "after.json").write_text("{")
    with pytest.raises(SystemExit) as ended:
        main(["--compare", str(tmp_path / "before.json"), str(tmp_path / "after.json")])
    assert ended.value.code == 2
    assert "not a report" in capsys.readouterr().err


def test_a_report_is_a_table_and_a_chart() -> None:
    report = Report()
    report.add("gateway", **{**TURN, "clients": 1}, requests_per_second=1000.0)
    text = markdown(report.value())
    assert "| system | upstream | case | keys | clients | requests/s |" in text
    assert "| holdfast | chat | whole | known | 1 | 1,000 |" in text
    assert "1,000/s, 1 clients" in draw(report.sections["gateway"])


def test_a_report_shows_results_before_goals() -> None:
    report = Report()
    report.add("start", case="holdfast serve", seconds=0.25)
    for clients in (1, 32):
        row = {**TURN, "clients": clients, "p50_ms": 1.5, "cpu_us": 300.0, "rss_mb": 64.0}
        report.add("gateway", **row, requests_per_second=1000.0 * clients)
    text = markdown(report.value())
    main_results = "| holdfast | 32,000 | 1.5 | 300 | 64 |"
    places = [text.index(part) for part in (main_results, "### Turns", "### Start", "### Goals")]
    assert places == sorted(places)


def test_a_request_fits_its_api_and_its_key() -> None:
    assert json.loads(Load(is_stream=True).body)["stream"] is True
    body = json.loads(Load(api="chat").body)
    assert body["messages"][0]["role"] == "user"
    assert Load(keys="known").key(KNOWN_KEYS + 1) == "1"
    assert Load(keys="first").key(KNOWN_KEYS + 1) == str(KNOWN_KEYS + 1)
    assert Load(keys="hot").key(63) == Load(keys="hot").key(0) != Load(keys="hot").key(64)


def test_the_spin_loop_gives_a_factor() -> None:
    assert Spin().factor() > 0


def test_tables_are_published_between_their_marks(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text(f"before\n{BEGIN}\nstale\n{END}\nafter\n")
    for _ in range(2):
        publish(Report().value(), page)
    text = page.read_text()
    assert text.startswith(f"before\n{BEGIN}\n\nMeasured on")
    assert text.endswith(f"{END}\nafter\n")
    assert "stale" not in text


def test_the_sizing_figures_come_from_the_tables(tmp_path: Path) -> None:
    page = tmp_path / "deploy.md"
    page.write_text(f"before\n{BEGIN}\nstale\n{END}\nafter\n")
    found = Report()
    assert "Not measured yet" in sizing(found.value())
    found.add("gateway", **TURN, p99_ms=20.4, cpu_us=900.0, requests_per_second=1234.5)
    found.add("scale", processes=2, requests_per_second=1500.0, p99_ms=30.0)
    found.add("process", case="bytes on disk per reference turn", bytes=2048.0)
    publish_sizing(found.value(), page)
    text = page.read_text()
    assert text.startswith(f"before\n{BEGIN}\n\nMeasured by `make bench` on ")
    assert "32 clients | 1,234 turns/s, p99 20 ms, 900 µs of CPU per turn |" in text
    assert "| 2 process(es) on one PostgreSQL | 1,500 turns/s, p99 30 ms |" in text
    assert "| disk for a turn of 128 bytes of text | 2.0 KiB |" in text
    assert text.endswith(f"\n{END}\nafter\n")


def test_the_page_about_deployment_has_marks_for_them() -> None:
    assert DEPLOYMENT.read_text().count(BEGIN) == 1
    assert DEPLOYMENT.read_text().count(END) == 1


def test_a_folder_that_cannot_be_written_to_is_an_error_before_anything_is_measured(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(SystemExit) as ended:
        main(["--short", "--only", "start", "--out", str(tmp_path / "file")])
    assert ended.value.code == 2
    output = capsys.readouterr()
    assert "cannot be written to" in output.err
    assert "start:" not in output.out
