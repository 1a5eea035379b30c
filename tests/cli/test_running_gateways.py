"""Commands that open a store use that of the gateway that runs, unless another one is named."""

import json
import os
import stat
from pathlib import Path

import pytest

from holdfast.settings.running import RunningGateway, announced, running_gateways
from tests.acceptance.gateway_process import GatewayProcess, running_gateway
from tests.cli.terminals import in_process
from tests.postgres import PostgresServer


@pytest.fixture(autouse=True)
def own_data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A data directory without a store."""
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data"))
    return tmp_path / "data"


def _other(url: str, store: str) -> RunningGateway:
    return RunningGateway(pid=os.getpid(), url=url, store=store, has_secret="****" in store)


def test_keys_backup_and_doctor_use_the_store_of_the_gateway_that_runs(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    store = f"sqlite:///{tmp_path}/elsewhere.db"
    with running_gateway(store) as gateway:
        said = f"the gateway at {gateway.url} uses {store}"
        created = in_process(capsys, "keys", "create", "--json")
        assert (created.code, said in created.err) == (0, True)
        listed = in_process(capsys, "keys", "list", "--store", store, "--json")
        assert [key["id"] for key in json.loads(listed.out)] == [json.loads(created.out)["id"]]
        copied = in_process(capsys, "backup", str(tmp_path / "copy.db"))
        assert (copied.code, said in copied.err) == (0, True)
        checked = in_process(capsys, "doctor", "--json")
        assert (checked.code, json.loads(checked.out)) == (0, [])


def test_a_named_store_is_used_whatever_runs(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    named = f"sqlite:///{tmp_path}/named.db"
    with running_gateway(f"sqlite:///{tmp_path}/elsewhere.db"):
        created = in_process(capsys, "keys", "create", "--store", named)
        assert created.code == 0
        assert "the gateway at" not in created.err
        assert f"{tmp_path}/named.db is a new store" in created.err
    assert in_process(capsys, "keys", "list", "--store", named).out.count("key_") == 1


def test_a_killed_gateway_is_forgotten_and_a_stopped_one_leaves_no_file(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    state = Path(os.environ["XDG_STATE_HOME"]) / "holdfast"
    gateway = GatewayProcess(f"sqlite:///{tmp_path}/elsewhere.db")
    gateway.start()
    (path,) = state.iterdir()
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert stat.S_IMODE(state.stat().st_mode) == 0o700
    gateway.kill()
    assert list(state.iterdir()) == [path]
    refused = in_process(capsys, "keys", "create")
    assert (refused.code, "there is no store at" in refused.err) == (1, True)
    assert list(state.iterdir()) == []
    gateway.start()
    gateway.stop()
    assert list(state.iterdir()) == []


def test_keys_do_not_create_the_default_store_and_serve_says_that_it_is_new(
    own_data: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    refused = in_process(capsys, "keys", "create")
    assert (refused.code, refused.out) == (1, "")
    assert "start `holdfast serve`, or name one with --store" in refused.err
    assert not own_data.exists()
    store = f"sqlite:///{own_data}/holdfast/holdfast.db"
    with running_gateway(store) as gateway:
        assert in_process(capsys, "keys", "create").code == 0
        gateway.stop()
        assert f"Data: {store} (new)\n" in gateway.output
    with running_gateway(store) as gateway:
        gateway.stop()
        assert f"Data: {store}\n" in gateway.output


def test_several_gateways_with_other_stores_are_named(
    capsys: pytest.CaptureFixture[str],
) -> None:
    one, two = _other("http://127.0.0.1:1", "sqlite:////a.db"), _other("http://127.0.0.1:2", "b")
    with announced(one), announced(two):
        refused = in_process(capsys, "doctor")
    assert (refused.code, refused.out) == (1, "")
    assert "the gateway at http://127.0.0.1:1 uses sqlite:////a.db" in refused.err
    assert "the gateway at http://127.0.0.1:2 uses b; add --store" in refused.err


def test_a_gateway_on_the_default_store_decides_nothing(
    own_data: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    store = f"sqlite:///{own_data}/holdfast/holdfast.db"
    with announced(_other("http://127.0.0.1:1", "b")), running_gateway(store):
        assert in_process(capsys, "keys", "list").code == 0


def test_a_password_is_not_kept_and_the_store_has_to_be_named(
    postgres_server: PostgresServer, capsys: pytest.CaptureFixture[str]
) -> None:
    url = postgres_server.url("postgres").replace("postgres:@", "postgres:sekret@")
    masked = url.replace("sekret", "********")
    gateway = _other("http://127.0.0.1:1", masked)
    with announced(gateway):
        assert running_gateways() == [gateway]
        refused = in_process(capsys, "keys", "list")
    assert refused.code == 1
    assert f"the gateway at http://127.0.0.1:1 uses {masked}; add --store" in refused.err


def test_a_store_in_memory_cannot_be_opened_by_others(capsys: pytest.CaptureFixture[str]) -> None:
    with running_gateway("memory:") as gateway:
        refused = in_process(capsys, "keys", "list")
    assert refused.code == 1
    assert f"the gateway at {gateway.url} uses memory:, which no other process" in refused.err


def test_a_file_that_is_not_one_of_ours_is_passed_over() -> None:
    state = Path(os.environ["XDG_STATE_HOME"]) / "holdfast"
    with announced(_other("http://127.0.0.1:1", "a")):
        (state / "gateway-1-x.json").symlink_to("/etc/passwd")
        assert [one.store for one in running_gateways()] == ["a"]


def test_a_gateway_without_a_state_directory_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "file"))
    with running_gateway(f"sqlite:///{tmp_path}/elsewhere.db"):
        assert running_gateways() == []
