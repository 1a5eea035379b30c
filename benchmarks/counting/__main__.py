"""Print the calls of one keyed turn: `python -m benchmarks.counting [chat|responses] [first]`."""

import sys
import tempfile
from pathlib import Path

from benchmarks.counting.profiled import turn_functions


def main() -> None:
    """Print the functions of a turn, known or the first of its key, most calls first."""
    api = sys.argv[1] if len(sys.argv) > 1 else "chat"
    is_first = sys.argv[2:] == ["first"]
    with tempfile.TemporaryDirectory(prefix="holdfast-bench-") as folder:
        functions = turn_functions(Path(folder), api, is_first=is_first)
    for name, count in sorted(functions.items(), key=lambda pair: (-pair[1], pair[0])):
        print(f"{count:5d}  {name}")
    print(f"{sum(functions.values()):5d}  calls in {len(functions)} functions")


if __name__ == "__main__":
    main()
