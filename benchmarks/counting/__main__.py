"""Print the calls of one keyed turn: `python -m benchmarks.counting [chat|responses] [queued]`."""

import sys
import tempfile
from pathlib import Path

from benchmarks.counting.profiled import queued_turn_functions, turn_functions


def main() -> None:
    """Print the functions of a turn, most calls first."""
    api = sys.argv[1] if len(sys.argv) > 1 else "chat"
    with tempfile.TemporaryDirectory(prefix="holdfast-bench-") as folder:
        read = queued_turn_functions if "queued" in sys.argv[2:] else turn_functions
        functions = read(Path(folder), api)
    for name, count in sorted(functions.items(), key=lambda pair: (-pair[1], pair[0])):
        print(f"{count:5d}  {name}")
    print(f"{sum(functions.values()):5d}  calls in {len(functions)} functions")


if __name__ == "__main__":
    main()
