"""`holdfast chat`, typed in a real terminal, and fed through a pipe."""

import json
import os
import subprocess
from pathlib import Path

import httpx
import pytest

from holdfast.cli.commands.chat import reject_command
from holdfast.testing.simulator.process import ProviderSimulator
from tests.acceptance.gateway_process import GatewayProcess, free_port, running_gateway
from tests.acceptance.stories import gateway_before
from tests.cli.conftest import GatewayUnderTest
from tests.cli.terminals import COMMAND, Terminal, in_own_process, in_pipe
from tests.store_urls import sqlite_url


def test_chat_streams_remembers_and_shows_session_and_turn(gateway: GatewayUnderTest) -> None:
    with Terminal("chat", "talk", env=gateway.env) as terminal:
        terminal.expect(f"talk with holdfast-demo at {gateway.url}: a new conversation")
        terminal.expect("you: ")
        terminal.type("I am Ada\n")
        terminal.expect("You said: 'I am")  # its lines are wrapped between words
        terminal.expect("Ada'.")
        terminal.expect("[ses_")
        terminal.expect("generation 1")
        terminal.expect("turn_")
        terminal.expect("you: ")
        terminal.type("who am I?\n")
        terminal.expect("the first was 'I am Ada'.")
        terminal.expect("you: ")
        terminal.type("/history\n")
        terminal.expect("user: I am Ada")
        terminal.expect("user: who am I?")
        terminal.expect("you: ")
        terminal.type("/status\n")
        terminal.expect("generation     1")
        terminal.expect("you: ")
        terminal.type("\x04")
        assert terminal.wait().code == 0


def test_new_starts_the_next_generation_with_the_rest_of_the_line(
    gateway: GatewayUnderTest,
) -> None:
    gateway.say("fresh", "I am Ada")
    with Terminal("chat", "fresh", env=gateway.env) as terminal:
        terminal.expect(f"fresh with holdfast-demo at {gateway.url}: generation 1, 2 items")
        terminal.type("/new and who am I?\n")
        terminal.expect("generation 2 starts")
        terminal.expect("You said: 'and who")
        terminal.expect("am I?'.")
        terminal.expect("generation 2")
        terminal.expect("you: ")
        terminal.type("/quit\n")
        outcome = terminal.wait()
    assert outcome.code == 0
    assert "I am Ada" not in outcome.out
    shown = in_pipe(
        "sessions", "list", "--key", "fresh", "--generations", "--json", env=gateway.env
    )
    assert [one["generation"] for one in json.loads(shown.out)] == [2, 1]


def test_in_a_pipe_each_line_is_a_message_and_only_answers_are_printed(
    gateway: GatewayUnderTest,
) -> None:
    outcome = in_own_process("chat", "piped", said="I am Ada\n\nwho am I?\n", env=gateway.env)
    assert (outcome.code, outcome.err) == (0, f"holdfast: used gateway {gateway.url}\n")
    first, second = outcome.out.splitlines()
    assert first.endswith("You said: 'I am Ada'.")
    assert second.endswith("the first was 'I am Ada'.")


def test_the_configuration_defines_the_triggers(gateway: GatewayUnderTest, tmp_path: Path) -> None:
    config = tmp_path / "holdfast.toml"
    config.write_text('[sessions.reset]\ntriggers = ["/forget"]\n')
    said = "one\n/forget two\n/new three\n"
    outcome = in_pipe("chat", "custom", "--config", str(config), said=said, env=gateway.env)
    assert outcome.code == 1
    assert "generation 2 starts; the old one stays" in outcome.out
    assert "You said: 'two'." in outcome.out
    assert "three" not in outcome.out
    assert "unknown command /new, not sent; " in outcome.err


def test_a_mistyped_command_is_not_sent_and_a_leading_space_sends_it(
    gateway: GatewayUnderTest,
) -> None:
    lines = "/statsu\n /statsu please\n/etc/hosts is a file\n"
    outcome = in_pipe("chat", "typo", said=lines, env=gateway.env)
    assert outcome.code == 1
    assert "unknown command /statsu, not sent; did you mean /status?" in outcome.err
    first, second = outcome.out.splitlines()
    assert "/statsu please" in first
    assert "/etc/hosts is a file" in second


def test_a_line_that_starts_with_a_space_is_sent_even_if_it_is_a_command(
    gateway: GatewayUnderTest,
) -> None:
    commands = ["/quit", "/status", "/history", "/help", "/new"]
    said = "".join(f" {command}\n" for command in commands)
    outcome = in_pipe("chat", "escaped", said=said, env=gateway.env)
    assert outcome.code == 0, outcome.err
    answers = outcome.out.splitlines()
    assert len(answers) == len(commands)
    for command, answer in zip(commands, answers, strict=True):
        assert command in answer


@pytest.mark.parametrize(
    ("line", "hint"),
    [
        ("/rest", "did you mean /reset?"),
        ("/STATUS", "did you mean /status?"),
        ("/exit", "did you mean /quit?"),
        ("/clear", "see /help."),
        ("/status now", "/status takes no text."),
    ],
)
def test_an_unknown_command_is_answered_with_the_nearest_one(
    line: str, hint: str, capsys: pytest.CaptureFixture[str]
) -> None:
    reject_command(line, ("/new", "/reset"))
    assert f"not sent; {hint} Start the line with a space" in capsys.readouterr().err


def test_help_lists_the_configured_triggers(gateway: GatewayUnderTest, tmp_path: Path) -> None:
    config = tmp_path / "holdfast.toml"
    config.write_text('[sessions.reset]\ntriggers = ["/forget", "/start-over"]\n')
    outcome = in_pipe("chat", "help", "--config", str(config), said="/help\n", env=gateway.env)
    assert "/forget, /start-over [message]" in outcome.out
    assert "/new" not in outcome.out


def test_chat_continues_when_its_gateway_is_killed_during_an_answer(tmp_path: Path) -> None:
    port = str(free_port())
    with ProviderSimulator() as simulator, simulator.hold(times=1) as barrier:
        gateway = GatewayProcess(
            sqlite_url(tmp_path), "--upstream", simulator.base_url, "--port", port,
            env={"HOLDFAST_UPSTREAM_KEY": "sk-chat"},
        )  # fmt: skip
        gateway.start()
        url = {"HOLDFAST_URL": gateway.url}
        try:
            with Terminal("chat", "k", "--model", "gpt-4.1", env=url) as terminal:
                terminal.expect("you: ")
                terminal.type("remember me\n")
                barrier.wait_held(1)
                gateway.kill()
                terminal.expect("waiting for it to return")
                barrier.release()
                gateway.start()
                terminal.expect("Messages seen: 1. Last text: remember me")
                terminal.expect("you: ")
                terminal.type("and now\n")
                terminal.expect("Messages seen: 3. Last text: and now")
                terminal.expect("you: ")
                terminal.type("\x04")
                assert terminal.wait().code == 0
            found = httpx.get(f"{gateway.url}/v1/sessions", params={"key": "k"}).json()["data"]
            assert [session["item_count"] for session in found] == [4]
        finally:
            gateway.kill()


def test_a_failed_turn_is_reported_and_chat_continues(tmp_path: Path) -> None:
    with ProviderSimulator() as simulator:
        simulator.add_fault("quota", times=1)
        with gateway_before(simulator, sqlite_url(tmp_path), tmp_path) as gateway:
            outcome = in_pipe(
                "chat", "k", "--model", "gpt-4.1", said="one\ntwo\n",
                env={"HOLDFAST_URL": gateway.url},
            )  # fmt: skip
    assert outcome.code == 1
    failure, used = outcome.err.splitlines()
    assert "quota" in failure
    assert used == f"holdfast: used gateway {gateway.url}"
    assert "Last text: two" in outcome.out


def test_chat_gives_up_on_a_gateway_that_does_not_return(tmp_path: Path) -> None:
    outcome = in_pipe("chat", "k", "--url", "http://127.0.0.1:1", said="hello\n")
    assert (outcome.code, outcome.out) == (1, "")
    assert outcome.err.count("\n") == 1
    with running_gateway(sqlite_url(tmp_path)) as gateway:
        env = {"HOLDFAST_URL": gateway.url}
        with Terminal("chat", "k", "--patience", "0.5", env=env) as terminal:
            terminal.expect("you: ")
            gateway.kill()
            terminal.type("hello\n")
            terminal.expect("waiting for it to return")
            terminal.expect("no gateway at")
            terminal.expect("you: ")
            terminal.type("/quit\n")
            assert terminal.wait().code == 0


def test_ctrl_c_cancels_the_answer_and_not_the_chat(tmp_path: Path) -> None:
    with (
        ProviderSimulator() as simulator,
        simulator.hold(times=1) as barrier,
        gateway_before(simulator, sqlite_url(tmp_path), tmp_path) as gateway,
        Terminal("chat", "k", "--model", "gpt-4.1", env={"HOLDFAST_URL": gateway.url}) as terminal,
    ):
        terminal.expect("you: ")
        terminal.type("slow\n")
        barrier.wait_held(1)
        terminal.type("\x03")
        terminal.expect("[cancelled]")
        barrier.release()
        terminal.expect("you: ")
        terminal.type("quick\n")
        terminal.expect("Last text: quick")
        terminal.expect("you: ")
        terminal.type("\x04")
        assert terminal.wait().code == 0


@pytest.mark.parametrize("key", ["ünï", "ключ", "🔑"])
def test_a_key_may_contain_non_ascii_characters(gateway: GatewayUnderTest, key: str) -> None:
    outcome = in_pipe("chat", key, said="I am Ada\n", env=gateway.env)
    assert (outcome.code, outcome.err) == (0, f"holdfast: used gateway {gateway.url}\n")
    shown = in_pipe("sessions", "list", "--key", key, "--json", env=gateway.env)
    assert [one["key"] for one in json.loads(shown.out)] == [key]


def test_an_invalid_key_prints_one_line(gateway: GatewayUnderTest) -> None:
    outcome = in_pipe("chat", "a\nb", said="hi\n", env=gateway.env)
    assert (outcome.code, outcome.out) == (1, "")
    assert (
        outcome.err
        == f"holdfast: x-session-key must not contain control characters (gateway {gateway.url})\n"
    )
    outcome = in_own_process("chat", "a\udcffb", said="hi\n", env=gateway.env)
    assert (outcome.code, outcome.out) == (1, "")
    assert (
        outcome.err
        == f"holdfast: x-session-key must be valid Unicode text (gateway {gateway.url})\n"
    )


def test_an_api_key_with_a_line_break_prints_one_line(gateway: GatewayUnderTest) -> None:
    outcome = in_pipe("status", env={**gateway.env, "HOLDFAST_API_KEY": "hf_a\nb"})
    assert (outcome.code, outcome.out) == (1, "")
    assert (
        outcome.err
        == f"holdfast: authorization must not contain control characters (gateway {gateway.url})\n"
    )


def test_lines_that_are_not_utf8_are_not_sent_and_others_are(gateway: GatewayUnderTest) -> None:
    done = subprocess.run(
        [*COMMAND, "chat", "bytes"], input=b"caf\xe9\nhello\n", capture_output=True,
        env={**os.environ, **gateway.env, "PYTHONUTF8": "1"}, timeout=60, check=False,
    )  # fmt: skip
    assert (done.returncode, done.stdout.count(b"You said: 'hello'")) == (1, 1)
    assert (
        done.stderr
        == (
            f"holdfast: the line is not UTF-8 text and was not sent\n"
            f"holdfast: used gateway {gateway.url}\n"
        ).encode()
    )


def test_no_color_disables_escape_codes_in_chat(gateway: GatewayUnderTest) -> None:
    for env, is_styled in (({}, True), ({"NO_COLOR": "1"}, False)):
        with Terminal("chat", "plain", env={**gateway.env, **env, "TERM": "xterm"}) as terminal:
            terminal.expect("you: ")
            terminal.type("hello\n")
            terminal.expect("generation 1")
            terminal.expect("you: ")
            assert ("\x1b[2m" in terminal.seen) == is_styled
            terminal.type("/quit\n")
            assert terminal.wait().code == 0
