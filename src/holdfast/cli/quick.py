"""Fast path of `holdfast serve`: parse simple options here.

The command tree takes longer to import than the server itself. Options that this parser does not
understand are left to the command tree.
"""

from collections.abc import Sequence
from pathlib import Path

Flags = dict[str, dict[str, object]]

OPTION_FIELDS = {
    "--config": ("", "config"),
    "--host": ("server", "host"),
    "--port": ("server", "port"),
    "--store": ("store", "url"),
    "--upstream": ("upstream", "url"),
    "--upstream-api": ("upstream", "api"),
    "--log-level": ("log", "level"),
    "--log-format": ("log", "format"),
}
"""Section and field of each option of `serve`."""


def parse_simple(arguments: Sequence[str]) -> tuple[Path | None, Flags] | None:
    """Return the configuration file and flags; None if an option needs the full parser."""
    flags: Flags = {section: {} for section, _ in OPTION_FIELDS.values()}
    rest = list(arguments)
    while rest:
        name, separator, value = rest.pop(0).partition("=")
        if name not in OPTION_FIELDS or (not separator and not rest):
            return None
        value = value if separator else rest.pop(0)
        section, field = OPTION_FIELDS[name]
        if not value or value.startswith("-") or field in flags[section]:
            return None
        if field == "port" and not (value.isascii() and value.isdecimal()):
            return None
        flags[section][field] = int(value) if field == "port" else value
    config = flags.pop("").get("config")
    return (Path(str(config)) if config is not None else None), flags


def serve(config: Path | None, flags: Flags) -> int:
    """Serve until stopped; return the exit code."""
    from holdfast.cli.commands.serve import run
    from holdfast.cli.output.terminal import report_failure
    from holdfast.core.errors import HoldfastError
    from holdfast.settings import load

    try:
        run(load(config, flags=flags))
    except (HoldfastError, OSError) as exc:
        return report_failure(exc)
    return 0
