"""The files for deployment are well formed, and say nothing that the code does not know."""

import asyncio
import configparser
import json
import re
from dataclasses import fields
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, get_args, get_type_hints

import kubernetes_validate
import pytest
import typer
import yaml
from website import configuration

from holdfast.app import new_meter, open_configured_store
from holdfast.cli.app import app
from holdfast.core.errors import FailureClass
from holdfast.http.request.auth import OPEN_PATHS
from holdfast.http.server.connection import KEEP_ALIVE_SECONDS
from holdfast.observability.metrics import PrometheusMeter
from holdfast.ports.provider import Answer
from holdfast.settings import Settings, StoreSettings, load

ROOT = Path(__file__).parent.parent
DEPLOY = ROOT / "deploy"
OWN_VARIABLES = {"HOLDFAST_CONFIG", "HOLDFAST_UPSTREAM_KEY"}


def variables() -> set[str]:
    """Return every environment variable that is a setting."""
    found = set(OWN_VARIABLES)
    for section in fields(Settings):
        if section.name in configuration.TABLES:
            continue
        name = "sessions_reset" if section.name == "reset" else section.name
        kind = type(getattr(Settings(), section.name))
        found |= {f"HOLDFAST_{name}_{field.name}".upper() for field in fields(kind)}
    return found


@pytest.mark.parametrize("name", ["holdfast.toml", "compose.toml"])
def test_a_configuration_file_loads(name: str) -> None:
    environment = {"GATEWAY_API_KEY": "secret", "OPENAI_API_KEY": "sk-x"}
    settings = load(DEPLOY / name, environment=environment)
    assert settings.upstreams[0].key == "sk-x"


@pytest.mark.parametrize(
    "name", ["holdfast.service", "Dockerfile", "compose.yaml", "kubernetes/holdfast.yaml"]
)
def test_every_variable_in_the_files_is_a_setting(name: str) -> None:
    named = set(re.findall(r"\bHOLDFAST_\w+", (DEPLOY / name).read_text()))
    assert named <= variables()


def test_the_unit_runs_an_existing_command_and_waits_for_its_grace_time() -> None:
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
    for url in ("sqlite:////var/lib/holdfast/holdfast.db", "postgresql:///holdfast"):
        settings = load(DEPLOY / "holdfast.toml", environment={"HOLDFAST_STORE_URL": url})
        stop_seconds = settings.drain_seconds + settings.server.grace_seconds
        assert float(service["TimeoutStopSec"]) > stop_seconds
    assert service["Restart"] == "always"


def test_the_drop_in_for_agents_switches_off_settings_of_the_unit() -> None:
    unit = (DEPLOY / "holdfast.service").read_text().splitlines()
    page = (ROOT / "docs" / "how-to" / "deploy.md").read_text()
    switched_off = re.findall(r"^(\w+)=false$", page, flags=re.MULTILINE)
    assert switched_off
    assert {f"{name}=true" for name in switched_off} <= set(unit)


def test_the_image_copies_existing_files_and_runs_without_root() -> None:
    lines = (DEPLOY / "Dockerfile").read_text().replace("\\\n", " ").splitlines()
    steps = [line.split(None, 1) for line in lines if line and not line.startswith("#")]
    known = {"FROM", "WORKDIR", "COPY", "RUN", "ENV", "USER", "VOLUME", "EXPOSE", "STOPSIGNAL",
             "HEALTHCHECK", "ENTRYPOINT", "CMD"}  # fmt: skip
    assert {word for word, _ in steps} <= known
    sent: set[str] = set()
    for word, rest in steps:
        if word == "COPY" and not rest.startswith("--from"):
            assert all((ROOT / name).exists() for name in rest.split()[:-1]), rest
            sent |= {name.removeprefix("./") for name in rest.split()[:-1]}
    ignored = (ROOT / ".dockerignore").read_text().splitlines()
    assert ignored[1] == "*"
    assert {line[1:] for line in ignored if line.startswith("!")} == sent
    last = {step[0]: step[1] for step in steps}
    assert f"--uid {last['USER']} " in (DEPLOY / "Dockerfile").read_text()
    assert int(last["USER"]) > 0
    assert last["ENTRYPOINT"] == '["holdfast"]'
    assert any(path in last["HEALTHCHECK"] for path in OPEN_PATHS)
    assert last["VOLUME"] == "/var/lib/holdfast"
    assert "PYTHONDONTWRITEBYTECODE=1" in last["ENV"], "the root file system is read-only"
    extras = re.findall(r'"\.\[([\w,]+)\]"', (DEPLOY / "Dockerfile").read_text())[0].split(",")
    assert all(f"\n{extra} = [" in (ROOT / "pyproject.toml").read_text() for extra in extras)


def test_a_commit_of_the_cluster_always_waits_for_a_standby() -> None:
    patroni = yaml.safe_load((DEPLOY / "patroni.yml").read_text())
    cluster = patroni["bootstrap"]["dcs"]
    assert cluster["synchronous_mode"] is cluster["synchronous_mode_strict"] is True
    assert cluster["postgresql"]["parameters"]["synchronous_commit"] == "on"
    assert all(rule.endswith("scram-sha-256") for rule in patroni["postgresql"]["pg_hba"])


def test_the_compose_file_has_postgresql_and_two_replicas() -> None:
    compose = yaml.safe_load((DEPLOY / "compose.yaml").read_text())
    services = compose["services"]
    gateway = services["gateway-1"]
    assert services["gateway-2"] == gateway
    named = set(re.findall(r"server ([\w-]+):8377", (DEPLOY / "nginx.conf").read_text()))
    assert named == {"gateway-1", "gateway-2"}
    assert gateway["read_only"] is True
    assert gateway["cap_drop"] == ["ALL"]
    environment = {"GATEWAY_API_KEY": "x", "HOLDFAST_STORE_URL": "postgresql://database/holdfast"}
    settings = load(DEPLOY / "compose.toml", environment=environment)
    stop_seconds = float(gateway["stop_grace_period"].removesuffix("s"))
    assert settings.drain_seconds == 2
    assert stop_seconds > settings.drain_seconds + settings.server.grace_seconds
    assert gateway["environment"]["HOLDFAST_STORE_URL"].startswith("postgresql://")
    assert gateway["depends_on"]["database"]["condition"] == "service_healthy"
    assert services["database"]["image"].startswith("postgres:")
    mounts = [mount for one in services.values() for mount in one.get("volumes", ())]
    for mount in mounts:
        source = mount.split(":")[0]
        assert source in compose["volumes"] or (DEPLOY / source).is_file(), mount
    assert (DEPLOY / gateway["build"]["context"] / gateway["build"]["dockerfile"]).is_file()


def manifests(name: str) -> list[dict[str, Any]]:
    """Return the objects of a file for Kubernetes."""
    return list(yaml.safe_load_all((DEPLOY / "kubernetes" / name).read_text()))


@pytest.mark.parametrize("version", ["1.31", "1.37"])
@pytest.mark.parametrize("name", ["holdfast.yaml", "postgres.yaml"])
def test_the_manifests_keep_the_schemas_of_kubernetes(name: str, version: str) -> None:
    for manifest in manifests(name):
        kubernetes_validate.validate(manifest, version, strict=True)


def test_the_gateways_on_kubernetes_are_those_that_nginx_knows_and_may_drain() -> None:
    objects = manifests("holdfast.yaml")
    found = {(one["kind"], one["metadata"]["name"]): one["spec"] for one in objects}
    gateways = found["StatefulSet", "gateway"]
    first = gateways["ordinals"]["start"]
    names = {f"gateway-{n}" for n in range(first, first + gateways["replicas"])}
    assert names == set(re.findall(r"server ([\w-]+):8377", (DEPLOY / "nginx.conf").read_text()))
    for name in names:
        assert found["Service", name]["selector"] == {"statefulset.kubernetes.io/pod-name": name}
    pod = gateways["template"]["spec"]
    (container,) = pod["containers"]
    variables = {one["name"]: one.get("value", "postgresql://d/x") for one in container["env"]}
    settings = load(DEPLOY / "compose.toml", environment=variables)
    stop_seconds = settings.drain_seconds + settings.server.grace_seconds
    assert pod["terminationGracePeriodSeconds"] > stop_seconds
    probes = [container[f"{kind}Probe"] for kind in ("readiness", "liveness", "startup")]
    assert {probe["httpGet"]["path"] for probe in probes} <= set(OPEN_PATHS)
    assert probes[0]["periodSeconds"] * probes[0]["failureThreshold"] < settings.drain_seconds
    user = re.findall(r"^USER (\d+)$", (DEPLOY / "Dockerfile").read_text(), flags=re.MULTILINE)
    assert [str(pod["securityContext"]["runAsUser"])] == user


def test_the_deployment_page_creates_what_the_manifests_expect() -> None:
    page = (ROOT / "docs" / "how-to" / "deploy.md").read_text()
    text = "".join(path.read_text() for path in (DEPLOY / "kubernetes").glob("*.yaml"))
    for name in set(re.findall(r"configMap: \{name: ([\w-]+)\}", text)):
        assert f"kubectl create configmap {name} " in page
    assert "kubectl create secret generic holdfast " in page
    for key in set(re.findall(r"secretKeyRef: \{name: holdfast, key: ([\w-]+)\}", text)):
        assert f"--from-literal={key}=" in page


def test_nginx_buffers_no_stream_and_repeats_no_request_that_was_sent() -> None:
    text = re.sub(r"#.*", "", (DEPLOY / "nginx.conf").read_text())
    assert text.count("{") == text.count("}")
    for line in filter(None, (line.strip() for line in text.splitlines())):
        assert line.endswith((";", "{", "}")), line
    directives = dict(re.findall(r"^\s*(\w+)\s+([^;{]+);", text, flags=re.MULTILINE))
    assert directives["proxy_buffering"] == "off"
    assert directives["proxy_next_upstream"] == "error timeout"
    assert int(directives["proxy_read_timeout"].removesuffix("s")) >= 3600
    assert "$connection_upgrade" in text
    # The gateway must not close an idle connection that nginx may be about to use.
    assert int(directives["keepalive_timeout"].removesuffix("s")) < KEEP_ALIVE_SECONDS


async def _meter(folder: str) -> PrometheusMeter:
    settings = Settings(store=StoreSettings(url=f"sqlite:///{folder}/a.db"))
    store = await open_configured_store(settings)
    try:
        return new_meter(store, settings)
    finally:
        await store.close()


@cache
def metric_names() -> set[str]:
    """Return the names of all samples that a gateway on SQLite may export."""
    with TemporaryDirectory() as folder:
        meter = asyncio.run(_meter(folder))
    suffixes = {"counter": ["_total"], "histogram": ["_bucket", "_count", "_sum"], "gauge": [""]}
    return {f"{one.name}{end}" for one in meter.collect() for end in suffixes[one.type]}


def check_expression(expression: str) -> None:
    """Check that an expression is balanced and uses metrics that exist."""
    for opening, closing in ("()", "[]", "{}"):
        assert expression.count(opening) == expression.count(closing), expression
    names = set(re.findall(r"\bholdfast_\w+", expression))
    assert names <= metric_names(), expression
    assert names or "up{" in expression, expression


def test_the_alert_rules_use_metrics_that_exist() -> None:
    rules = yaml.safe_load((DEPLOY / "prometheus" / "holdfast.rules.yml").read_text())
    alerts = [rule for group in rules["groups"] for rule in group["rules"]]
    assert len({rule["alert"] for rule in alerts}) == len(alerts) >= 8
    for rule in alerts:
        assert set(rule) <= {"alert", "expr", "for", "labels", "annotations"}
        assert re.fullmatch(r"\d+[smh]", rule.get("for", "0s"))
        assert rule["labels"]["severity"] in ("page", "warn")
        assert rule["annotations"]["summary"]
        check_expression(rule["expr"])


def test_only_failures_count_in_the_alert_about_upstreams() -> None:
    rules = yaml.safe_load((DEPLOY / "prometheus" / "holdfast.rules.yml").read_text())
    alerts = {rule["alert"]: rule["expr"] for group in rules["groups"] for rule in group["rules"]}
    operator, pattern = re.findall(
        r'outcome(=~|!~|!=|=)"([^"]+)"', alerts["HoldfastUpstreamFails"]
    )[0]
    assert operator == "!~"
    answered = {*get_args(get_type_hints(Answer)["status"]), "left"}
    excluded = {name for name in answered if re.fullmatch(pattern, name)}
    assert excluded == answered, "a short or abandoned answer is no failure of the upstream"
    assert not [name for name in get_args(FailureClass) if re.fullmatch(pattern, name)]


def test_the_dashboard_uses_metrics_that_exist() -> None:
    dashboard = json.loads((DEPLOY / "grafana" / "holdfast.json").read_text())
    panels = dashboard["panels"]
    assert len({panel["id"] for panel in panels}) == len(panels) >= 10
    variables = {variable["name"] for variable in dashboard["templating"]["list"]}
    used: set[str] = set()
    for panel in panels:
        assert panel["title"]
        for target in panel["targets"]:
            check_expression(target["expr"])
            used |= set(re.findall(r"\$(\w+)", target["expr"]))
            used |= set(re.findall(r"\$\{(\w+)\}", panel["datasource"]["uid"]))
    assert used - {"__rate_interval"} == variables
