"""The command line: the door for people."""

import sys


def main() -> None:
    """Run the command line; `--version` answers without loading anything heavy."""
    if sys.argv[1:] == ["--version"]:
        from holdfast._version import __version__

        print(f"holdfast {__version__}")
        return
    from holdfast.cli.commands import run

    run()
