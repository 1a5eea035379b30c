"""Check a configuration in practice: is the store writable, do upstreams answer?"""

import asyncio
import os
import sqlite3
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from urllib.parse import urlsplit

from holdfast.core.errors import HoldfastError, ProviderFailure
from holdfast.doctor.findings import Finding
from holdfast.engine.clock import RandomIds
from holdfast.ports.store import ApiKeyReader
from holdfast.providers.cli_agents.inspection import inspect_agent
from holdfast.providers.http.api_detection import FoundApis
from holdfast.providers.routing import UpstreamRouter
from holdfast.providers.settings import UpstreamSettings
from holdfast.stores.inspect import inspect_store
from holdfast.stores.open import sqlite_path
from holdfast.stores.sql.schema_info import StoreInspection

UPSTREAM_SECONDS = 15.0


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckResult:
    """The result of one check."""

    subject: str
    is_ok: bool
    detail: str
    is_warning: bool = False
    """Whether the check passed, but the configuration is probably a mistake."""


async def check_store(url: str, shown_url: str) -> list[CheckResult]:
    """Check that the store can be read and written, without changing it."""
    subject = f"store {shown_url}"
    try:
        inspection = await inspect_store(url)
        problem = (
            inspection.refusal
            or next(iter(inspection.damage), None)
            or _write_problem(url, inspection)
        )
    except HoldfastError as exc:
        problem = exc.message
    except (OSError, sqlite3.Error) as exc:
        problem = str(exc)
    if problem is not None:
        return [CheckResult(subject=subject, is_ok=False, detail=problem)]
    detail = "writable" if inspection.exists else "does not exist yet, can be created"
    if inspection.exists and inspection.is_bare:
        detail = "empty: the first start creates its tables"
    elif inspection.exists and inspection.pending:
        detail += f"; the next start applies {len(inspection.pending)} migration(s)"
    if inspection.kind == "memory":
        detail = "in memory: lost when the process ends"
    return [CheckResult(subject=subject, is_ok=True, detail=detail)]


def _write_problem(url: str, inspection: StoreInspection) -> str | None:
    """Return why the store cannot be written, or None."""
    if inspection.kind == "postgres":
        is_read_only = inspection.settings.get("transaction_read_only") == "on"
        return "the database is read-only" if is_read_only else None
    if inspection.kind != "sqlite":
        return None
    path = sqlite_path(url)
    if not inspection.exists:
        return _creation_problem(path.absolute())
    # Opening it to write would move a WAL that a killed gateway left into the database.
    beside = [Path(f"{path}{suffix}") for suffix in ("-wal", "-shm")]
    for place in (path.absolute().parent, path, *filter(Path.exists, beside)):
        if not os.access(place, os.W_OK):
            return f"{place} is not writable"
    return None


def _creation_problem(path: Path) -> str | None:
    """Return why a file and its folders cannot be created, or None."""
    existing = next(parent for parent in path.parents if parent.exists() or parent.is_symlink())
    if not existing.is_dir():
        return f"{existing} is not a folder"
    try:
        # Permissions are not enough: some file systems refuse everybody.
        with TemporaryDirectory(prefix=".holdfast-", dir=existing):
            return None
    except OSError as exc:
        return f"{existing} is not writable: {exc.strerror}"


async def check_upstreams(upstreams: Sequence[UpstreamSettings]) -> list[CheckResult]:
    """List the models of every upstream, which shows that it answers and accepts its key."""
    if not upstreams:
        detail = "none configured: the demo model answers"
        return [CheckResult(subject="upstream", is_ok=True, detail=detail)]
    return list(await asyncio.gather(*(_check_upstream(upstream) for upstream in upstreams)))


async def check_agents(upstreams: Sequence[UpstreamSettings]) -> list[Finding]:
    """Return the problems of the configured command-line agents."""
    return [
        Finding(code=problem.code, subject=upstream.name, detail=problem.detail)
        for upstream in upstreams
        if upstream.is_agent
        for problem in await inspect_agent(upstream)
    ]


async def check_agent_access(
    upstreams: Sequence[UpstreamSettings], read: ApiKeyReader
) -> list[Finding]:
    """Return the agents whose tools could ask the gateway itself for every session.

    No isolation keeps an agent from the network, and without API keys everybody is answered who
    reaches the gateway over the loopback interface.
    """
    agents = [upstream for upstream in upstreams if upstream.is_agent and upstream.needs_wall]
    if not agents or await read.api_keys():
        return []
    detail = "the gateway has no API keys and answers every process of this machine"
    return [
        Finding(code="agent_reads_sessions", subject=agent.name, detail=detail) for agent in agents
    ]


async def _check_upstream(settings: UpstreamSettings) -> CheckResult:
    subject = f"upstream {settings.name}"
    if settings.is_agent:
        problems = await inspect_agent(settings)
        detail = "; ".join(problem.detail for problem in problems) or "its program can be used"
        return CheckResult(subject=subject, is_ok=not problems, detail=detail)
    upstreams = UpstreamRouter([settings], RandomIds().new)
    found: FoundApis | None = None
    try:
        async with asyncio.timeout(UPSTREAM_SECONDS):
            [found] = await detect_servers(upstreams) or [None]
            models = (await upstreams.models()).models
    except ProviderFailure as failure:
        return _with_found(settings, found, _failed_listing(settings, failure))
    except TimeoutError:
        detail = f"no answer within {UPSTREAM_SECONDS:.0f} s"
        return CheckResult(subject=subject, is_ok=False, detail=detail)
    finally:
        await upstreams.close()
    return _with_found(settings, found, _listed(settings, len(models)))


async def detect_servers(upstreams: UpstreamRouter) -> list[FoundApis | None]:
    """Ask the servers of `auto` upstreams what they speak."""
    await upstreams.detect(lambda _: None)
    return [server.found for server in upstreams.detected]


async def check_server_apis(upstreams: Sequence[UpstreamSettings]) -> list[Finding]:
    """Ask the servers of `auto` upstreams what they speak, and say it in one line each."""
    servers = [one for one in upstreams if one.api == "auto"]
    if not servers:
        return []
    router = UpstreamRouter(servers, RandomIds().new)
    try:
        await detect_servers(router)
        return api_findings(router)
    finally:
        await router.close()


def api_findings(upstreams: UpstreamRouter) -> list[Finding]:
    """Return what each `auto` upstream told about its API, or that it did not tell."""
    return [
        Finding(
            code="upstream_api" if server.settled is not None else "upstream_api_unknown",
            subject=server.name,
            detail=f"upstream {server.name} {_described(server.upstream.settings, server.found)}",
        )
        for server in upstreams.detected
        if server.found is not None
    ]


def _described(settings: UpstreamSettings, found: FoundApis) -> str:
    return found.describe(settings.url.rstrip("/"))


def _with_found(
    settings: UpstreamSettings, found: FoundApis | None, result: CheckResult
) -> CheckResult:
    """Return a result that also says what an `auto` upstream speaks."""
    if found is None:
        return result
    is_missing = found.responses == found.chat == "absent"
    if not (result.is_ok or is_missing or found.is_known):
        return result  # it did not tell for the same reason
    detail = f"{result.detail}; {_described(settings, found)}"
    if found.is_known:
        return replace(result, detail=detail)
    is_ok = result.is_ok and not is_missing
    return replace(result, detail=detail, is_ok=is_ok, is_warning=is_ok)


def _failed_listing(settings: UpstreamSettings, failure: ProviderFailure) -> CheckResult:
    """Return the result for an upstream that lists no models."""
    # Some servers do not list models; that they answer is all that can be checked.
    is_ok = failure.status in (404, 405, 501)
    detail = "reachable, but lists no models" if is_ok else _reason(settings, failure)
    if failure.status == 404:
        path = urlsplit(settings.url).path.rstrip("/")
        detail = f"{path}/models answers with status 404"
        if not path.endswith("/v1"):
            detail += ": is /v1 missing at the end of `url`?"
    return _upstream_result(settings, detail, is_ok=is_ok, is_warning=failure.status == 404)


def _listed(settings: UpstreamSettings, count: int) -> CheckResult:
    """Return the result for an upstream where `models` matches this many listed models."""
    detail = f"answers, {count} model(s)"
    if not count:
        detail = f"answers, but lists no model that `models` matches: {', '.join(settings.models)}"
    return _upstream_result(settings, detail, is_ok=True, is_warning=not count)


def _upstream_result(
    settings: UpstreamSettings, detail: str, *, is_ok: bool, is_warning: bool
) -> CheckResult:
    """Return a result that also mentions a missing key, which some servers do not need."""
    is_unset = settings.key_env is not None and settings.key is None
    if is_unset:
        detail += f"; called without a key: the environment variable {settings.key_env} is not set"
    return CheckResult(
        subject=f"upstream {settings.name}",
        is_ok=is_ok,
        detail=detail,
        is_warning=is_ok and (is_warning or is_unset),
    )


def _reason(settings: UpstreamSettings, failure: ProviderFailure) -> str:
    message = failure.message.removeprefix(f"upstream {settings.name}: ")
    if failure.provider_code == "upstream_auth_failed" and settings.key is not None:
        source = settings.key_env or "HOLDFAST_UPSTREAM_KEY"
        return f"the key of {source} is not accepted: {message}"
    return message
