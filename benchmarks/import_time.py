"""How long `import holdfast` and `holdfast --version` take, beside an empty interpreter."""

import statistics
import subprocess
import sys
import time

ROUNDS = 7
CASES = {
    "python (nothing)": ["-c", "pass"],
    "import holdfast": ["-c", "import holdfast"],
    "holdfast --version": [
        "-c",
        "import sys; sys.argv=['holdfast','--version']; import holdfast.cli as c; c.main()",
    ],
}


def _median_ms(arguments: list[str]) -> float:
    times = []
    for _ in range(ROUNDS):
        began = time.perf_counter()
        subprocess.run([sys.executable, *arguments], check=True, capture_output=True)
        times.append((time.perf_counter() - began) * 1000)
    return statistics.median(times)


def main() -> None:
    """Print each case and its ratio to the empty interpreter."""
    bare = None
    for name, arguments in CASES.items():
        took = _median_ms(arguments)
        bare = bare or took
        print(f"{name:22} {took:7.1f} ms   {took / bare:5.2f} x")


if __name__ == "__main__":
    main()
