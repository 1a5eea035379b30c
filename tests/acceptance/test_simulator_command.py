"""`holdfast sim` as a user starts it: a process, flags, a scenario file, wrong input."""

import json
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
import pytest

from holdfast.testing.simulator.control import SimulatorControl

COMMAND = [sys.executable, "-c", "from holdfast.cli import main; main()", "sim"]
BODY = {"model": "gpt-4.1", "input": "hello"}
HEADERS = {"authorization": "Bearer sk-a"}
SCENARIO = """
seed = 3
profile = "openai"
unlink_models = ["gpt-5.4"]

[forget]
after_seconds = 3600

[[answer]]
when = { text = "weather" }
text = "It rains."

[[answer]]
when = { text = "tool" }
tool_calls = [{ name = "get_weather", arguments = { city = "Paris" } }]

[[fault]]
kind = "R02"
when = { text = "broken" }
times = 1
"""


@contextmanager
def running(*flags: str) -> Iterator[str]:
    with subprocess.Popen(
        [*COMMAND, "--port", "0", *flags], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        try:
            assert process.stdout is not None
            line = process.stdout.readline()
            assert line.startswith("holdfast sim listening on http://127.0.0.1:"), line
            yield line.split()[-1]
        finally:
            process.send_signal(signal.SIGTERM)
            _, errors = process.communicate(timeout=60)
        assert errors == ""
        assert process.returncode == 0


def refused(*flags: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*COMMAND, *flags], capture_output=True, text=True, timeout=60, check=False
    )


def test_a_scenario_file_and_flags_configure_the_simulator(tmp_path: Path) -> None:
    scenario, record = tmp_path / "scenario.toml", tmp_path / "record.jsonl"
    scenario.write_text(SCENARIO)
    flags = ["--scenario", str(scenario), "--seed", "7", "--record", str(record)]
    with running(*flags, "--fault", "rate_limit times=1 when.text=busy") as url:

        def ask(text: str) -> httpx.Response:
            body = BODY | {"input": text}
            return httpx.post(f"{url}/v1/responses", json=body, headers=HEADERS)

        assert ask("busy").status_code == 429
        assert ask("busy").status_code == 200
        assert ask("broken").json()["error"]["code"] == "previous_response_not_found"
        rain = ask("the weather").json()["output"][0]["content"][0]["text"]
        assert rain == "It rains."
        call = ask("a tool").json()["output"][0]
        assert (call["name"], json.loads(call["arguments"])) == ("get_weather", {"city": "Paris"})
        control = SimulatorControl(url)
        assert control.state()["seed"] == 7
        listed = [json.loads(line) for line in control.record_jsonl().splitlines()]
    written = [json.loads(line) for line in record.read_text().splitlines()]
    assert written == listed
    assert [entry["status"] for entry in written] == [429, 200, 400, 200, 200]
    assert written[0]["body"]["input"] == "busy"


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        (["--profile", "nope"], "--profile: no profile 'nope'; there are openai, azure-like"),
        (["--fault", "nope"], "--fault 'nope': no fault 'nope'; there are "),
        (["--fault", "R99"], "no fault 'R99'; there are "),
        (["--fault", "cut evnt=3"], "unknown field `evnt`"),
        (["--fault", "cut event"], "expected name=value, got 'event'"),
        (["--fault", "cut event=x"], "Expected `int | null`, got `str`"),
        (["--fault", "{"], "not JSON"),
        (["--fault", ""], "expected a kind"),
        (["--fault", "cut event=" + "9" * 5000], "the number or the nesting is too large"),
        (["--fault", "cut event=" + "[" * 50_000], "the number or the nesting is too large"),
        (["--fault", '{"kind": ' + "[" * 50_000], "the number or the nesting is too large"),
        (["--scenario", "/no/such/file.toml"], "No such file or directory"),
    ],
)
def test_invalid_flags_end_with_one_clear_line(flags: list[str], said: str) -> None:
    ended = refused(*flags)
    assert ended.returncode == 2
    assert ended.stdout == ""
    assert ended.stderr.count("\n") == 1
    assert ended.stderr.startswith("holdfast sim: ")
    assert said in ended.stderr


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("seed = ", "Invalid value (at"),
        ("sede = 1", "unknown field `sede`"),
        ("seed = 'x'", "Expected `int`, got `str` - at `$.seed`"),
        ("[[fault]]\nkind = 'cut'\nending = 'bang'", "fault[0]: Invalid enum value 'bang'"),
        ("[[fault]]\nwhen = {}", "fault[0]: Object missing required field `kind`"),
        ("fault = 3", "fault: expected a list of tables"),
        ("[[answer]]\ntxt = 'x'", "unknown field `txt`"),
        ("seed = " + "9" * 5000, "the number or the nesting is too large"),
        ("seed = " + "[" * 50_000, "the number or the nesting is too large"),
    ],
)
def test_an_invalid_scenario_ends_with_one_clear_line(tmp_path: Path, text: str, said: str) -> None:
    path = tmp_path / "wrong.toml"
    path.write_text(text)
    ended = refused("--scenario", str(path))
    assert ended.returncode == 2
    assert ended.stderr.count("\n") == 1
    assert ended.stderr.startswith(f"holdfast sim: {path}: ")
    assert said in ended.stderr


def test_a_port_in_use_is_reported_in_one_line() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        ended = refused("--port", str(port))
    assert ended.returncode == 1
    assert ended.stderr == f"holdfast sim: Address already in use: 127.0.0.1:{port}\n"
