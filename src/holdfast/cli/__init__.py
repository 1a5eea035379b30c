"""The command line: the door for people."""

import os
import sys


def main() -> None:
    """Run the command line; `--version` and `serve` load nothing that they do not need."""
    if sys.argv[1:] == ["--version"]:
        from holdfast._version import __version__

        print(f"holdfast {__version__}")
        return
    if sys.argv[1:2] == ["--no-color"]:
        # Before anything is loaded: how help looks is settled then.
        os.environ["NO_COLOR"] = "1"
        del sys.argv[1]
    if sys.argv[1:2] == ["serve"]:
        from holdfast.cli import quick

        plain = quick.read_plain(sys.argv[2:])
        if plain is not None:
            raise SystemExit(quick.serve(*plain))
    from holdfast.cli.app import run

    run()
