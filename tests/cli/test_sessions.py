"""`holdfast sessions` and `holdfast status`, in a terminal and in a pipe."""

import json
from pathlib import Path

import pytest

from holdfast.testing.simulator.process import ProviderSimulator
from tests.acceptance.gateway_process import running_gateway
from tests.acceptance.stories import gateway_before
from tests.cli.conftest import GatewayUnderTest
from tests.cli.terminals import Terminal, in_pipe, in_process, in_terminal, lines_of
from tests.cli.test_export import make_older
from tests.store_urls import sqlite_url

ESCAPE = "\x1b"


def test_a_list_fits_the_terminal_and_shows_ids_whole(gateway: GatewayUnderTest) -> None:
    key = "agent:main:direct:somebody-with-quite-a-long-name-indeed"
    said = gateway.say(key, "hello")
    shown = in_terminal("sessions", "list", columns=80, env=gateway.env)
    assert shown.code == 0
    assert max(len(line) for line in lines_of(shown)) <= 80
    assert any(line.startswith(said["session"]) for line in lines_of(shown))


def test_a_list_in_a_pipe_is_whole_lines_split_by_tabs(gateway: GatewayUnderTest) -> None:
    key = "agent:main:direct:" + "x" * 200
    said = gateway.say(key, "hello")
    listed = in_pipe("sessions", "list", "--key", key, env=gateway.env)
    assert (listed.code, listed.err) == (0, f"holdfast: used gateway {gateway.url}\n")
    head, row = listed.out.splitlines()
    assert head.split("\t")[:3] == ["id", "key", "gen"]
    assert row.split("\t")[:5] == [said["session"], key, "1", "idle", "2"]


def test_a_list_in_json_is_the_gateways_answer(gateway: GatewayUnderTest) -> None:
    said = gateway.say("json", "hello")
    listed = in_pipe("sessions", "list", "--key", "json", "--json", env=gateway.env)
    (session,) = json.loads(listed.out)
    assert (session["id"], session["turn_count"]) == (said["session"], 1)


def test_more_sessions_than_one_page_are_all_listed(
    gateway: GatewayUnderTest, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "many.jsonl"
    path.write_text('{"messages":[{"role":"user","content":"hello"}]}\n' * 103)
    in_process(capsys, "sessions", "import", str(path), "--store", gateway.store)
    listed = in_pipe("sessions", "list", "--limit", "0", "--json", env=gateway.env)
    keys = {session["key"] for session in json.loads(listed.out)}
    assert {f"many:{number}" for number in range(1, 104)} <= keys
    fewer = in_pipe("sessions", "list", "--limit", "3", "--json", env=gateway.env)
    assert len(json.loads(fewer.out)) == 3


def test_no_color_disables_colours(gateway: GatewayUnderTest) -> None:
    gateway.say("colour", "hello")
    assert ESCAPE in in_terminal("sessions", "list", env=gateway.env).out
    assert ESCAPE in in_terminal("sessions", "list", env={**gateway.env, "NO_COLOR": ""}).out
    for asked, env in (((), {"NO_COLOR": "1"}), (("--no-color",), {})):
        plain = in_terminal(*asked, "sessions", "list", env={**gateway.env, **env})
        assert (plain.code, ESCAPE in plain.out) == (0, False)
        told = in_terminal(*asked, "sessions", "--help", env={**gateway.env, **env})
        assert (told.code, ESCAPE in told.out, "export" in told.out) == (0, False, True)
    assert ESCAPE not in in_pipe("sessions", "list", env=gateway.env).out


def test_show_prints_generations_turns_and_runs(gateway: GatewayUnderTest) -> None:
    first = gateway.say("story", "one")
    in_pipe("sessions", "reset", "story", env=gateway.env)
    second = gateway.say("story", "two")
    shown = in_terminal("sessions", "show", "story", columns=160, env=gateway.env)
    assert shown.code == 0
    for part in (first["session"], second["session"], second["turn"], "completed", "generation"):
        assert part in shown.out
    told = json.loads(in_pipe("sessions", "show", "story", "--json", env=gateway.env).out)
    assert [one["generation"] for one in told["generations"]] == [1, 2]
    assert [turn["id"] for turn in told["turns"]] == [second["turn"]]
    assert told["turns"][0]["runs"][0]["status"] == "completed"


def test_show_prints_heals_and_failures(tmp_path: Path) -> None:
    with ProviderSimulator() as simulator:
        simulator.add_fault("R07", times=1)
        with gateway_before(simulator, sqlite_url(tmp_path), tmp_path) as gateway:
            env = {"HOLDFAST_URL": gateway.url}
            assert in_pipe("chat", "k", "--model", "gpt-4.1", said="one\n", env=env).code == 0
            simulator.add_fault("quota", times=1)
            assert in_pipe("chat", "k", "--model", "gpt-4.1", said="two\n", env=env).code == 1
            shown = in_pipe("sessions", "show", "k", env=env)
    first, second = shown.out.splitlines()[-2:]
    assert "completed" in first
    assert "healed: stripped_opaque" in first
    assert "failed" in second
    assert "quota" in second


def test_items_are_printed_in_order_and_escaped(
    gateway: GatewayUnderTest,
) -> None:
    gateway.say("items", "wipe \x1b[2J the screen")
    shown = in_terminal("sessions", "items", "items", env=gateway.env)
    lines = lines_of(shown)
    assert lines[0] == r"user: wipe \x1b[2J the screen"
    assert lines[1].startswith("assistant: This is the Holdfast demo model")
    assert ESCAPE not in shown.out
    log = in_pipe("sessions", "items", "items", "--log", env=gateway.env)
    assert log.out.splitlines()[0].split()[:2] == ["1", "user:"]


def test_reset_starts_the_next_generation_and_restore_makes_the_old_one_live(
    gateway: GatewayUnderTest,
) -> None:
    said = gateway.say("life", "hello")
    fresh = json.loads(in_pipe("sessions", "reset", "life", "--json", env=gateway.env).out)
    assert (fresh["generation"], fresh["item_count"]) == (2, 0)
    wrong = in_pipe("sessions", "reset", "life", "--expect", said["session"], env=gateway.env)
    assert (wrong.code, wrong.out) == (1, "")
    assert wrong.err.startswith("holdfast: ")
    assert fresh["id"] in wrong.err
    back = in_terminal("sessions", "restore", said["session"], env=gateway.env)
    assert back.code == 0
    live = json.loads(in_pipe("sessions", "show", "life", "--json", env=gateway.env).out)
    assert live["session"]["id"] == said["session"]


def test_a_fork_shares_history_up_to_an_item(gateway: GatewayUnderTest) -> None:
    gateway.say("trunk", "hello")
    forked = in_pipe("sessions", "fork", "trunk", "--after", "1", "--json", env=gateway.env)
    fork = json.loads(forked.out)
    assert (fork["key"], fork["item_count"]) == (None, 1)
    refused = in_pipe("sessions", "fork", "trunk", "--after", "99", env=gateway.env)
    assert (refused.code, refused.err.count("\n")) == (1, 1)


def test_delete_asks_in_a_terminal_and_needs_a_flag_in_a_pipe(gateway: GatewayUnderTest) -> None:
    gateway.say("gone", "hello")
    piped = in_pipe("sessions", "delete", "gone", env=gateway.env)
    assert piped.code == 2
    assert "--yes" in piped.err
    with Terminal("sessions", "delete", "gone", env=gateway.env) as terminal:
        terminal.expect("for good? [y/N]")
        terminal.type("n\n")
        terminal.expect("nothing was changed")
        assert terminal.wait().code == 1
    with Terminal("sessions", "delete", "gone", env=gateway.env) as terminal:
        terminal.expect("for good? [y/N]")
        terminal.type("y\n")
        terminal.expect("is deleted")
        assert terminal.wait().code == 0
    missing = in_pipe("sessions", "delete", "gone", "--yes", env=gateway.env)
    assert missing.code == 1
    used = f"(gateway {gateway.url})"
    assert missing.err == f"holdfast: no session has the id or key 'gone' {used}\n"


def test_status_is_one_screen_and_counts_what_ran(gateway: GatewayUnderTest) -> None:
    gateway.say("status", "hello")
    shown = in_terminal("status", columns=80, env=gateway.env)
    assert shown.code == 0
    assert len(lines_of(shown)) < 24
    for part in (gateway.url, "ready", "holdfast-demo", "completed", "no sessions"):
        assert part in shown.out
    told = json.loads(in_pipe("status", "--json", "--url", gateway.url + "/v1").out)
    assert told["state"] == "ready"
    assert told["since_start"]["runs"]["completed"] > 0


def test_status_works_while_no_upstream_answers(tmp_path: Path) -> None:
    with (
        ProviderSimulator({"keys": ["sk-other"]}) as simulator,
        gateway_before(
            simulator, sqlite_url(tmp_path), tmp_path, upstream='name = "shut"'
        ) as gateway,
    ):
        env = {"HOLDFAST_URL": gateway.url}
        shown = in_pipe("status", env=env)
        told = json.loads(in_pipe("status", "--json", env=env).out)
    assert (shown.code, shown.err) == (0, f"holdfast: used gateway {gateway.url}\n")
    for part in (gateway.url, "ready", "unknown", "unavailable", "upstream shut: ", "no sessions"):
        assert part in shown.out
    assert (told["state"], told["models"], told["running"]) == ("ready", [], [])
    [why] = told["models_unavailable"]
    assert "upstream shut: " in why


def test_status_names_an_unavailable_upstream_beside_the_models_of_others(
    tmp_path: Path,
) -> None:
    down = f'[[upstream]]\nname = "down"\nurl = "{NOWHERE}/v1"\nmodels = ["llama-3", "qwen-*"]\n'
    with ProviderSimulator({"models": ["gpt-5.4"]}) as simulator:
        config = tmp_path / "holdfast.toml"
        config.write_text(f'{down}[[upstream]]\nname = "up"\nurl = "{simulator.base_url}"\n')
        arguments = (sqlite_url(tmp_path), "--config", str(config))
        with running_gateway(*arguments, env={"OPENAI_API_KEY": "sk-x"}) as gateway:
            env = {"HOLDFAST_URL": gateway.url}
            shown = in_pipe("status", env=env)
            told = json.loads(in_pipe("status", "--json", env=env).out)
    assert shown.code == 0
    assert told["models"] == ["llama-3", "gpt-5.4"]
    [why] = told["models_unavailable"]
    assert why.startswith("upstream down: ")
    assert "llama-3, gpt-5.4" in shown.out
    assert why in shown.out


NOWHERE = "http://127.0.0.1:1"
TALKING = [
    ("status",),
    ("sessions", "list"),
    ("sessions", "show", "k"),
    ("sessions", "items", "k"),
    ("sessions", "reset", "k"),
    ("sessions", "restore", "k"),
    ("sessions", "fork", "k"),
    ("sessions", "delete", "k", "--yes"),
]


@pytest.mark.parametrize("command", TALKING, ids=" ".join)
def test_an_unreachable_gateway_prints_one_line(
    command: tuple[str, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    outcome = in_process(capsys, *command, "--url", NOWHERE)
    assert (outcome.code, outcome.out) == (1, "")
    assert outcome.err.startswith(f"holdfast: no gateway at {NOWHERE}")
    assert outcome.err.count("\n") == 1


WRONG = [
    (("nope",), "No such command"),
    (("serve", "--port", "x"), "--port"),
    (("sim", "--port", "99999"), "--port"),
    (("sessions", "list", "--status", "asleep"), "'--status': 'asleep' is not one of 'idle'"),
    (("sessions", "list", "--limit", "many"), "--limit"),
    (("sessions", "show"), "session"),
    (("sessions", "show", "a", "b"), "b"),
    (("keys", "create", "--nope"), "--nope"),
    (("status", "--url", "ftp://x"), "http://"),
    (("status", "--url", "http://u:p@x"), "HOLDFAST_API_KEY"),
    (("config", "show", "--config", "/no/such/file.toml"), "/no/such/file.toml"),
]


@pytest.mark.parametrize(
    ("command", "named"), WRONG, ids=lambda v: " ".join(v) if isinstance(v, tuple) else ""
)
def test_wrong_usage_prints_one_line_and_exits_with_2(
    command: tuple[str, ...], named: str, capsys: pytest.CaptureFixture[str]
) -> None:
    outcome = in_process(capsys, *command)
    assert (outcome.code, outcome.out) == (2, "")
    assert outcome.err.startswith("holdfast")
    assert outcome.err.count("\n") == 1
    assert named in outcome.err


def test_wrong_usage_prints_one_line_in_a_terminal_and_in_a_pipe() -> None:
    outcome = in_terminal("sessions", "list", "--limit", "many", columns=200)
    assert outcome.code == 2
    assert len(lines_of(outcome)) == 1
    piped = in_pipe("sessions", "list", "--limit", "many")
    assert (piped.code, piped.out, piped.err.count("\n")) == (2, "", 1)


def test_sessions_are_listed_by_last_activity(tmp_path: Path) -> None:
    store = sqlite_url(tmp_path)
    with running_gateway(store) as process:
        for key in ("older", "newer"):
            GatewayUnderTest(process).say(key, "hello")
    make_older(tmp_path / "holdfast.db", seconds=1000)
    with running_gateway(store) as process:
        GatewayUnderTest(process).say("older", "hello again")
        listed = in_pipe("sessions", "list", "--json", "--url", process.url)
    assert [session["key"] for session in json.loads(listed.out)] == ["older", "newer"]
