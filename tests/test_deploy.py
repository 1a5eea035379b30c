"""The files for deployment are well formed, and say nothing that the code does not know."""

import configparser
import re
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest
import typer
import yaml

from holdfast.cli.app import app
from holdfast.http.request.auth import OPEN_PATHS
from holdfast.settings import Settings, load

ROOT = Path(__file__).parent.parent
DEPLOY = ROOT / "deploy"
OWN_VARIABLES = {"HOLDFAST_CONFIG", "HOLDFAST_UPSTREAM_KEY"}


def variables() -> set[str]:
    """Return every environment variable that is a setting."""
    found = set(OWN_VARIABLES)
    for section in fields(Settings):
        if section.name in ("upstreams", "keys"):
            continue
        name = "sessions_reset" if section.name == "reset" else section.name
        kind = type(getattr(Settings(), section.name))
        found |= {f"HOLDFAST_{name}_{field.name}".upper() for field in fields(kind)}
    return found


@pytest.mark.parametrize("name", ["holdfast.toml", "compose.toml"])
def test_a_configuration_file_loads(name: str) -> None:
    environment = {"GATEWAY_KEY": "secret", "OPENAI_API_KEY": "sk-x"}
    settings = load(DEPLOY / name, environment=environment)
    assert settings.upstreams[0].key == "sk-x"


@pytest.mark.parametrize("name", ["holdfast.service", "Dockerfile", "compose.yaml"])
def test_every_variable_that_is_named_is_a_setting(name: str) -> None:
    named = set(re.findall(r"\bHOLDFAST_\w+", (DEPLOY / name).read_text()))
    assert named <= variables()


def test_the_unit_runs_a_command_that_exists_and_waits_for_its_grace() -> None:
    unit = configparser.ConfigParser(strict=False, interpolation=None)
    unit.optionxform = str  # type: ignore[assignment,method-assign]  # names keep their case
    unit.read(DEPLOY / "holdfast.service")
    assert set(unit.sections()) == {"Unit", "Service", "Install"}
    service = unit["Service"]
    program, command, *options = service["ExecStart"].split()
    assert program.endswith("/bin/holdfast")
    known: Any = typer.main.get_command(app)
    flags = {flag for option in known.commands[command].params for flag in option.opts}
    assert {option for option in options if option.startswith("--")} <= flags
    grace = load(DEPLOY / "holdfast.toml", environment={}).server.grace_seconds
    assert float(service["TimeoutStopSec"]) > grace
    assert service["Restart"] == "always"


def test_the_image_copies_what_exists_and_runs_as_nobody_special() -> None:
    lines = (DEPLOY / "Dockerfile").read_text().replace("\\\n", " ").splitlines()
    steps = [line.split(None, 1) for line in lines if line and not line.startswith("#")]
    known = {"FROM", "WORKDIR", "COPY", "RUN", "ENV", "USER", "VOLUME", "EXPOSE", "STOPSIGNAL",
             "HEALTHCHECK", "ENTRYPOINT", "CMD"}  # fmt: skip
    assert {word for word, _ in steps} <= known
    for word, rest in steps:
        if word == "COPY" and not rest.startswith("--from"):
            assert all((ROOT / name).exists() for name in rest.split()[:-1]), rest
    last = {step[0]: step[1] for step in steps}
    assert f"--uid {last['USER']} " in (DEPLOY / "Dockerfile").read_text()
    assert int(last["USER"]) > 0
    assert last["ENTRYPOINT"] == '["holdfast"]'
    assert any(path in last["HEALTHCHECK"] for path in OPEN_PATHS)
    extras = re.findall(r'"\.\[([\w,]+)\]"', (DEPLOY / "Dockerfile").read_text())[0].split(",")
    assert all(f"\n{extra} = [" in (ROOT / "pyproject.toml").read_text() for extra in extras)


def test_the_compose_file_has_postgresql_and_two_replicas() -> None:
    compose = yaml.safe_load((DEPLOY / "compose.yaml").read_text())
    services = compose["services"]
    gateway = services["gateway"]
    assert gateway["deploy"]["replicas"] == 2
    assert gateway["environment"]["HOLDFAST_STORE_URL"].startswith("postgresql://")
    assert gateway["depends_on"]["database"]["condition"] == "service_healthy"
    assert services["database"]["image"].startswith("postgres:")
    mounts = [mount for one in services.values() for mount in one.get("volumes", ())]
    for mount in mounts:
        source = mount.split(":")[0]
        assert source in compose["volumes"] or (DEPLOY / source).is_file(), mount
    assert (DEPLOY / gateway["build"]["context"] / gateway["build"]["dockerfile"]).is_file()


def test_nginx_buffers_no_stream_and_repeats_no_request() -> None:
    text = re.sub(r"#.*", "", (DEPLOY / "nginx.conf").read_text())
    assert text.count("{") == text.count("}")
    for line in filter(None, (line.strip() for line in text.splitlines())):
        assert line.endswith((";", "{", "}")), line
    directives = dict(re.findall(r"^\s*(\w+)\s+([^;{]+);", text, flags=re.MULTILINE))
    assert directives["proxy_buffering"] == "off"
    assert directives["proxy_next_upstream"] == "off"
    assert int(directives["proxy_read_timeout"].removesuffix("s")) >= 3600
    assert "$connection_upgrade" in text
