"""`holdfast doctor`: look a store over, explain, and mend on request."""

import asyncio
import contextlib
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from holdfast.cli.options import JsonFlag, StoreFlag
from holdfast.cli.output.progress import progress
from holdfast.cli.output.terminal import complain, printable, say, say_json

if TYPE_CHECKING:
    from holdfast.doctor.findings import Finding
    from holdfast.settings import Settings

FATAL = frozenset(
    {"store_missing", "store_damaged", "schema_too_new", "schema_too_old", "store_in_memory"}
)
"""With these there is nothing to open."""


def doctor(
    fix: Annotated[bool, typer.Option("--fix", help="Mend what can be mended.")] = False,
    watch: Annotated[
        bool, typer.Option("--watch", help="Go on looking; report each finding once.")
    ] = False,
    every: Annotated[
        float, typer.Option(min=0.1, help="With --watch: seconds between two looks.")
    ] = 30.0,
    deep: Annotated[bool, typer.Option("--deep", help="Read every session, not the newest.")] = (
        False
    ),
    config: Annotated[Path | None, typer.Option(help="A configuration file (TOML).")] = None,
    store: StoreFlag = None,
    as_json: JsonFlag = False,
) -> None:
    """Check the store for problems, explain each one and suggest a fix."""
    from holdfast.settings import load

    settings = load(config, flags={"store": {"url": store}})
    if watch:
        with contextlib.suppress(KeyboardInterrupt):
            asyncio.run(_watch(settings, every, is_fixing=fix, is_deep=deep, as_json=as_json))
        return
    with progress("examining") as advance:
        advance(settings.store.url.partition(":")[0])
        found, mended = asyncio.run(_look(settings, is_fixing=fix, is_deep=deep))
    if as_json:
        say_json([{**_value(finding), "mended": finding in mended} for finding in found])
    else:
        _tell(found, mended)
    if any(one.kind.severity == "problem" for one in found if one not in mended):
        raise typer.Exit(1)


async def _look(
    settings: "Settings", *, is_fixing: bool, is_deep: bool
) -> "tuple[list[Finding], set[Finding]]":
    """Return what is found, and which of it was mended."""
    from holdfast.app import open_configured_store
    from holdfast.doctor.examination import from_inside, from_outside
    from holdfast.doctor.fixing import fix
    from holdfast.stores.inspect import look_at

    found = list(from_outside(await look_at(settings.store.url)))
    is_behind = any(finding.code == "schema_behind" for finding in found)
    if any(finding.code in FATAL for finding in found) or (is_behind and not is_fixing):
        return found, set()
    failures: dict[Finding, str] = {}
    opened = await open_configured_store(settings)
    try:
        inside = [
            finding
            async for finding in from_inside(
                opened, turn_seconds=settings.heals.turn_seconds, is_deep=is_deep
            )
        ]
        if is_fixing:
            failures = await fix(opened, inside, settings.lanes)
    finally:
        await opened.close()
    for failure in failures.values():
        complain(failure)
    every = found + inside
    mended = {one for one in every if is_fixing and one.is_fixable and one not in failures}
    return every, mended


async def _watch(
    settings: "Settings", every: float, *, is_fixing: bool, is_deep: bool, as_json: bool
) -> None:
    """Report what is new since the last look; what went away is new when it comes again."""
    from holdfast.core.errors import HoldfastError

    known: set[Finding] = set()
    trouble: str | None = None
    while True:
        try:
            found, _ = await _look(settings, is_fixing=is_fixing, is_deep=is_deep)
        except HoldfastError as exc:
            if exc.message != trouble:
                complain(exc.message)
            trouble = exc.message
        else:
            trouble = None
            for finding in found:
                if finding in known:
                    continue
                if as_json:
                    say_json(_value(finding))
                else:
                    say(_line(finding))
            known = set(found)
        await asyncio.sleep(every)


def _tell(found: "Sequence[Finding]", mended: "set[Finding]") -> None:
    if not found:
        say("nothing found: the store is well")
        return
    for finding in found:
        kind = finding.kind
        say(_line(finding))
        say(f"  it means: {kind.meaning}")
        if finding in mended:
            say("  mended")
        else:
            say(f"  remedy: {kind.remedy}")
    counts = [
        f"{sum(one.kind.severity == severity for one in found)} {severity}(s)"
        for severity in ("problem", "warning", "note")
    ]
    say("\n" + ", ".join(counts))


def _line(finding: "Finding") -> str:
    return printable(f"{finding.kind.severity}: {finding.code}: {finding.detail}")


def _value(finding: "Finding") -> dict[str, Any]:
    return {
        "code": finding.code,
        "severity": finding.kind.severity,
        "subject": finding.subject,
        "detail": finding.detail,
        "meaning": finding.kind.meaning,
        "remedy": finding.kind.remedy,
        "fixable": finding.is_fixable,
    }
