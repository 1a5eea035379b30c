"""Run the soak: all parts one after another, or those that are named by their numbers."""

import subprocess
import sys
import time

from tests.soak.parts import PART_NAMES

PYTEST = (sys.executable, "-m", "pytest", "-n", "2", "--dist", "worksteal", "-m", "soak")
NO_TESTS = 5
"""Exit code of pytest if a part has no tests."""


def main(arguments: list[str]) -> int:
    """Run the parts, print the minutes that each took, and return 1 if any failed."""
    numbers = [int(one) for one in arguments] or list(range(1, len(PART_NAMES) + 1))
    lines = []
    for number in numbers:
        print(f"soak part {number}: {PART_NAMES[number - 1]}", flush=True)
        began = time.monotonic()
        command = (*PYTEST, "--timeout", "7200", "--soak-part", str(number), "tests")
        code = subprocess.run(command, check=False).returncode
        result = {0: "passed", NO_TESTS: "has no tests"}.get(code, "FAILED")
        minutes = (time.monotonic() - began) / 60
        lines.append(f"soak part {number}: {PART_NAMES[number - 1]}: {result}, {minutes:.1f} min")
        print(lines[-1], flush=True)
    print("\n".join(lines))
    return any("FAILED" in line for line in lines)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
