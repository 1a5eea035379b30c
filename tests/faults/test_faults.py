"""Every fault of the list is noticed by the tests that are named for it."""

from collections import Counter
from pathlib import Path

import pytest

from tests.faults.fault import ROOT, Fault, copy_sources, run_tests
from tests.faults.faults import FAULTS

NOTICED = 1
"""What pytest answers when a test failed; other numbers mean that it did not come so far."""
each_fault = pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.name)


def test_every_fault_has_a_name_of_its_own() -> None:
    assert [
        name for name, count in Counter(fault.name for fault in FAULTS).items() if count > 1
    ] == []


@each_fault
def test_a_fault_can_still_be_put_into_the_code(fault: Fault) -> None:
    assert fault.count() == 1, f"in {fault.path}: {fault.old!r}"
    assert fault.new != fault.old
    for test in fault.caught_by:
        assert (ROOT / test.partition("::")[0]).exists(), test


@pytest.mark.soak
def test_without_a_fault_the_named_tests_pass_on_a_copy_of_the_code(tmp_path: Path) -> None:
    copy_sources(tmp_path)
    tests = tuple(sorted({test for fault in FAULTS for test in fault.caught_by}))
    done = run_tests(tmp_path, tests)
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-4000:]


@pytest.mark.soak
@each_fault
def test_a_fault_is_noticed(fault: Fault, tmp_path: Path) -> None:
    copy_sources(tmp_path)
    fault.apply(tmp_path)
    done = run_tests(tmp_path, fault.caught_by)
    assert done.returncode == NOTICED, done.stdout[-4000:] + done.stderr[-4000:]
