"""Print the calls of one keyed turn, or what turns cost in the shapes that clients send.

`python -m benchmarks.counting [chat|responses] [first|queued]`, `… shapes`
"""

import sys
import tempfile
from pathlib import Path

from benchmarks.counting.profiled import queued_turn_functions, turn_functions
from benchmarks.counting.shapes import shape_costs, table


def main() -> None:
    """Print the functions of a turn (known, the first of its key, or queued), most calls first."""
    api = sys.argv[1] if len(sys.argv) > 1 else "chat"
    with tempfile.TemporaryDirectory(prefix="holdfast-bench-") as folder:
        if api == "shapes":
            print("\n".join(table(shape_costs(Path(folder)))))
            return
        if "queued" in sys.argv[2:]:
            functions = queued_turn_functions(Path(folder), api)
        else:
            functions = turn_functions(Path(folder), api, is_first="first" in sys.argv[2:])
    for name, count in sorted(functions.items(), key=lambda pair: (-pair[1], pair[0])):
        print(f"{count:5d}  {name}")
    print(f"{sum(functions.values()):5d}  calls in {len(functions)} functions")


if __name__ == "__main__":
    main()
