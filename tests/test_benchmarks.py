"""The benchmarks work: their short form measures every section. Times are not judged."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
from benchmarks.__main__ import main
from benchmarks.load import Shape
from benchmarks.report import BEGIN, END, Report, draw, goals, markdown, publish
from benchmarks.sizing import PAGE as DEPLOYMENT
from benchmarks.sizing import publish_sizing, sizing

ROOT = Path(__file__).resolve().parent.parent


@pytest.mark.timeout(300)
def test_the_short_form_measures_every_section(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks", "--short", "--out", str(tmp_path)],
        cwd=ROOT, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    report = json.loads((tmp_path / "report.json").read_text())
    assert set(report["sections"]) >= {"start", "gateway", "growth", "store", "library"}
    assert all(rows for rows in report["sections"].values())
    served = [row for row in report["sections"]["gateway"] if row["system"] == "holdfast"]
    assert {(row["case"], row["keys"]) for row in served} == {
        ("whole", "many"), ("whole", "one"), ("stream", "many"), ("stream", "one"),
    }  # fmt: skip
    assert all(row["failures"] == 0 and row["requests_per_second"] > 0 for row in served)
    assert not report["notes"]
    assert (tmp_path / "gateway.svg").read_text().startswith("<svg")
    assert "holdfast serve" in (tmp_path / "report.md").read_text()


def test_goals_are_held_against_what_was_measured_and_nothing_else() -> None:
    report = Report()
    assert {goal.is_reached for goal in goals(report)} == {None}
    for system, rate in (("holdfast", 200.0), ("nginx", 1000.0), ("LiteLLM", 10.0)):
        report.add(
            "gateway", system=system, case="whole", keys="many", clients=32,
            requests_per_second=rate, cpu_us=100.0, p50_ms=1.0,
        )  # fmt: skip
    found = {goal.name: goal.is_reached for goal in goals(report)}
    assert found["share of nginx's requests/s"] is True
    assert found["times LiteLLM's requests/s"] is False
    assert found["µs of CPU for a turn"] is True
    assert found["seconds to start"] is None


def test_a_report_is_a_table_and_a_picture() -> None:
    report = Report()
    report.add(
        "gateway", system="holdfast", case="whole", keys="many", clients=1,
        requests_per_second=1000.0,
    )  # fmt: skip
    text = markdown(report.value())
    assert "| system | case | keys | clients | requests/s |" in text
    assert "| holdfast | whole | many | 1 | 1,000 |" in text
    assert text.index("### Gateway") < text.index("### Goals"), "results come before goals"
    assert "1,000/s, 1 clients" in draw(report.sections["gateway"])


def test_what_is_asked_is_a_request_of_its_api() -> None:
    assert json.loads(Shape(is_stream=True).body)["stream"] is True
    asked = json.loads(Shape(path="/v1/chat/completions").body)
    assert asked["messages"][0]["role"] == "user"


def test_tables_are_published_between_their_marks(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text(f"before\n{BEGIN}\nstale\n{END}\nafter\n")
    for _ in range(2):
        publish(Report().value(), page)
    text = page.read_text()
    assert text.startswith(f"before\n{BEGIN}\n\nMeasured on")
    assert text.endswith(f"{END}\nafter\n")
    assert "stale" not in text


def test_the_figures_for_sizing_are_taken_from_the_tables(tmp_path: Path) -> None:
    page = tmp_path / "deploy.md"
    page.write_text(f"before\n{BEGIN}\nstale\n{END}\nafter\n")
    found = Report()
    assert "Not measured yet" in sizing(found.value())
    turn = {"system": "holdfast", "keys": "many", "clients": 32, "p99_ms": 20.4, "cpu_us": 900.0}
    found.add("gateway", **turn, case="whole", requests_per_second=1234.5)
    found.add("scale", processes=2, requests_per_second=1500.0, p99_ms=30.0)
    found.add("growth", case="bytes on disk for each turn", bytes=2048.0)
    publish_sizing(found.value(), page)
    text = page.read_text()
    assert text.startswith(f"before\n{BEGIN}\n\nMeasured by `make bench` on ")
    assert "32 clients | 1,234 turns/s, p99 20 ms, 900 µs of CPU a turn |" in text
    assert "| 2 process(es) on one PostgreSQL | 1,500 turns/s, p99 30 ms |" in text
    assert "| disk for each turn, beside what was said | 2.0 KiB |" in text
    assert text.endswith(f"\n{END}\nafter\n")


def test_the_page_about_deployment_has_a_place_for_them() -> None:
    assert DEPLOYMENT.read_text().count(BEGIN) == 1
    assert DEPLOYMENT.read_text().count(END) == 1


def test_a_folder_that_cannot_be_written_to_is_told_before_anything_is_measured(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(SystemExit) as ended:
        main(["--short", "--only", "start", "--out", str(tmp_path / "file")])
    assert ended.value.code == 2
    told = capsys.readouterr()
    assert "cannot be written to" in told.err
    assert "start:" not in told.out
