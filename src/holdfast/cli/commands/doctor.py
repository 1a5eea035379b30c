"""`holdfast doctor`: check a store for problems, explain them, and fix them on request."""

import asyncio
import contextlib
from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated

import typer

from holdfast.cli.options import ConfigFlag, JsonFlag, StoreFlag, store_settings
from holdfast.cli.output.progress import progress
from holdfast.cli.output.terminal import print_error, print_json, print_line, printable

if TYPE_CHECKING:
    from holdfast.doctor.findings import Finding
    from holdfast.doctor.store_checks import Coverage
    from holdfast.settings import Settings

FATAL = frozenset(
    {"store_missing", "store_damaged", "store_foreign", "store_in_memory",
     "schema_too_new", "schema_too_old"}
)  # fmt: skip
"""Findings after which the store cannot be opened."""


def doctor(
    fix: Annotated[bool, typer.Option("--fix", help="Fix what can be fixed.")] = False,
    watch: Annotated[
        bool, typer.Option("--watch", help="Keep checking; report each finding once.")
    ] = False,
    every: Annotated[
        float, typer.Option(min=0.1, help="With --watch: seconds between two checks.")
    ] = 30.0,
    deep: Annotated[
        bool, typer.Option("--deep", help="Read the whole store, not only what is new.")
    ] = False,
    config: ConfigFlag = None,
    store: StoreFlag = None,
    as_json: JsonFlag = False,
) -> None:
    """Check the store for problems and suggest fixes."""
    from holdfast.doctor.findings import finding_value
    from holdfast.doctor.store_checks import Coverage

    settings = store_settings(config, store)
    if watch:
        with contextlib.suppress(KeyboardInterrupt):
            asyncio.run(_watch(settings, every, is_fixing=fix, is_deep=deep, as_json=as_json))
        return
    with progress("checking") as advance:
        advance(settings.store.url.partition(":")[0])
        coverage = Coverage(is_deep=deep)
        findings, fixed = asyncio.run(_check(settings, coverage, is_fixing=fix))
        findings += asyncio.run(_check_servers(settings))
    if as_json:
        print_json([{**finding_value(found), "mended": found in fixed} for found in findings])
    else:
        _print_findings(findings, fixed)
        if not (coverage.is_whole or deep):
            print_line(coverage.describe())
    unfixed = (finding for finding in findings if finding not in fixed)
    if any(finding.kind.severity == "problem" for finding in unfixed):
        raise typer.Exit(1)


async def _check_servers(settings: "Settings") -> "list[Finding]":
    """Return what `auto` upstreams speak, and the MCP servers that cannot be used."""
    from holdfast.doctor.configuration import check_server_apis
    from holdfast.doctor.findings import Finding

    apis = await check_server_apis(settings.upstreams)
    if not settings.mcp:
        return apis
    from holdfast.tools.mcp.check import check_servers

    return apis + [
        Finding(code="mcp_unavailable", subject=finding.name, detail=finding.detail)
        for finding in await check_servers(settings.mcp)
        if not finding.is_ok
    ]


async def _check(
    settings: "Settings", coverage: "Coverage", *, is_fixing: bool
) -> "tuple[list[Finding], set[Finding]]":
    """Return the findings, and which of them were fixed; note what was looked at."""
    from holdfast.app import open_configured_store, read_configured_store
    from holdfast.doctor.configuration import check_agent_access, check_agents
    from holdfast.doctor.fixing import fix, fix_before_open
    from holdfast.doctor.store_checks import check_contents, check_inspection
    from holdfast.stores.inspect import inspect_store

    inspection = await inspect_store(settings.store.url, is_deep=coverage.is_deep)
    coverage.is_whole &= inspection.is_verified
    findings = list(check_inspection(inspection))
    findings += await check_agents(settings.upstreams)
    if any(finding.code in ("store_read_only", "store_standby") for finding in findings):
        is_fixing = False
    is_outdated = any(finding.code == "schema_behind" for finding in findings)
    failures: dict[Finding, str] = {}
    if is_fixing:
        failures |= fix_before_open(findings)
    if any(finding.code in FATAL for finding in findings) or (is_outdated and not is_fixing):
        return findings, {one for one in findings if _is_fixed(one, failures, is_fixing)}
    open_it = open_configured_store if is_fixing else read_configured_store
    store = await open_it(settings)
    try:
        contents = [
            finding
            async for finding in check_contents(
                store, turn_seconds=settings.heals.turn_seconds, coverage=coverage
            )
        ]
        if not settings.keys:
            contents += await check_agent_access(settings.upstreams, store.read)
        if is_fixing:
            failures |= await fix(store, contents, settings.lanes)
    finally:
        await store.close()
    for failure in failures.values():
        print_error(failure)
    findings += contents
    return findings, {finding for finding in findings if _is_fixed(finding, failures, is_fixing)}


def _is_fixed(finding: "Finding", failures: "dict[Finding, str]", is_fixing: bool) -> bool:
    return is_fixing and finding.is_fixable and finding not in failures


async def _watch(
    settings: "Settings", every: float, *, is_fixing: bool, is_deep: bool, as_json: bool
) -> None:
    """Report findings that are new since the previous check."""
    from holdfast.core.errors import HoldfastError
    from holdfast.doctor.findings import finding_value
    from holdfast.doctor.store_checks import Coverage

    reported: set[Finding] = set()
    error: str | None = None
    while True:
        try:
            findings, _ = await _check(settings, Coverage(is_deep=is_deep), is_fixing=is_fixing)
        except HoldfastError as exc:
            if exc.message != error:
                print_error(exc.message)
            error = exc.message
        else:
            error = None
            for finding in findings:
                if finding in reported:
                    continue
                if as_json:
                    print_json(finding_value(finding))
                else:
                    print_line(_format(finding))
            reported = set(findings)
        await asyncio.sleep(every)


def _print_findings(findings: "Sequence[Finding]", fixed: "set[Finding]") -> None:
    if not findings:
        print_line("no problems found")
        return
    for finding in findings:
        kind = finding.kind
        print_line(_format(finding))
        print_line(f"  meaning: {kind.meaning}")
        if finding in fixed:
            print_line("  fixed")
        else:
            print_line(f"  remedy: {kind.remedy}")
    counts = [
        f"{sum(finding.kind.severity == severity for finding in findings)} {severity}(s)"
        for severity in ("problem", "warning", "note")
    ]
    print_line("\n" + ", ".join(counts))


def _format(finding: "Finding") -> str:
    return printable(f"{finding.kind.severity}: {finding.code}: {finding.detail}")
