"""What `holdfast doctor` finds in the store of a campaign."""

import json
import subprocess
import sys

SECONDS = 120.0


def ask_doctor(url: str) -> list[str]:
    """Return the codes of the findings, or the error if it could not look."""
    done = subprocess.run(
        [sys.executable, "-m", "holdfast.cli", "doctor", "--json", "--store", url],
        capture_output=True,
        text=True,
        check=False,
        timeout=SECONDS,
    )
    try:
        return [str(finding["code"]) for finding in json.loads(done.stdout)]
    except ValueError:
        return [done.stderr.strip()]
