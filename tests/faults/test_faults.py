"""Every fault of the list is noticed by the tests that are named for it."""

from collections import Counter
from pathlib import Path

import pytest

from tests.faults.fault import ROOT, Fault, copy_sources, run_tests
from tests.faults.faults import FAULTS

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


@pytest.mark.parametrize(
    ("test", "end", "is_noticed"),
    [("assert False", "pass", True), ("pass", "raise OSError", False), ("pass", "pass", False)],
)
def test_only_a_test_that_failed_notices_a_fault(
    test: str, end: str, is_noticed: bool, tmp_path: Path
) -> None:
    (tmp_path / "conftest.py").write_text(f"def pytest_sessionfinish() -> None: {end}\n")
    (tmp_path / "test_one.py").write_text(f"def test_one() -> None: {test}\n")
    done = run_tests(tmp_path, (str(tmp_path),))
    assert done.is_noticed == is_noticed, done.output


@pytest.mark.soak
def test_without_a_fault_the_named_tests_pass_on_a_copy_of_the_code(tmp_path: Path) -> None:
    copy_sources(tmp_path)
    tests = tuple(sorted({test for fault in FAULTS for test in fault.caught_by}))
    done = run_tests(tmp_path, tests)
    assert (done.returncode, done.failures) == (0, 0), done.output[-8000:]


@pytest.mark.soak
@each_fault
def test_a_fault_is_noticed(fault: Fault, tmp_path: Path) -> None:
    copy_sources(tmp_path)
    fault.apply(tmp_path)
    done = run_tests(tmp_path, fault.caught_by)
    assert done.is_noticed, done.output[-8000:]
