"""`holdfast serve` with plain options, read here: what the other commands need takes longer to load
than serving does. Whatever is not plain is left to the tree of commands.
"""

from collections.abc import Sequence
from pathlib import Path

Flags = dict[str, dict[str, object]]

PLACES = {
    "--config": ("", "config"),
    "--host": ("server", "host"),
    "--port": ("server", "port"),
    "--store": ("store", "url"),
    "--upstream": ("upstream", "url"),
    "--upstream-api": ("upstream", "api"),
}
"""Where each option of `serve` belongs among the settings."""


def read_plain(arguments: Sequence[str]) -> tuple[Path | None, Flags] | None:
    """Return a configuration file and flags; None where an option is not plainly one of ours."""
    flags: Flags = {"server": {}, "store": {}, "upstream": {}, "": {}}
    left = list(arguments)
    while left:
        name, mark, value = left.pop(0).partition("=")
        if name not in PLACES or (not mark and not left):
            return None
        value = value if mark else left.pop(0)
        section, field = PLACES[name]
        if not value or value.startswith("-") or field in flags[section]:
            return None
        if field == "port" and not (value.isascii() and value.isdecimal()):
            return None
        flags[section][field] = int(value) if field == "port" else value
    config = flags.pop("").get("config")
    return (Path(str(config)) if config is not None else None), flags


def serve(config: Path | None, flags: Flags) -> int:
    """Serve until told to stop; return the exit code."""
    from holdfast.cli.commands.serve import run
    from holdfast.cli.output.terminal import failure_code
    from holdfast.core.errors import HoldfastError
    from holdfast.settings import load

    try:
        run(load(config, flags=flags))
    except (HoldfastError, OSError) as exc:
        return failure_code(exc)
    return 0
