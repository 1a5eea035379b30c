"""The command line."""

import os
import sys


def main() -> None:
    """Run the command line; `--version` and `serve` import only what they need."""
    if sys.argv[1:] == ["--version"]:
        from holdfast._version import __version__

        print(f"holdfast {__version__}")
        return
    if sys.argv[1:2] == ["--no-color"]:
        # Set it before importing the command tree, which fixes the style of the help.
        os.environ["NO_COLOR"] = "1"
        del sys.argv[1]
    if sys.argv[1:2] == ["serve"]:
        from holdfast.cli import quick

        simple = quick.parse_simple(sys.argv[2:])
        if simple is not None:
            raise SystemExit(quick.serve(*simple))
    from holdfast.cli.app import run

    run()
