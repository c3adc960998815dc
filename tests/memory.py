"""What the tests take of memory: the five largest are printed, and what is too large fails.

A test is charged with the growth of its process from its start to its peak, and so with that of a
process that it started. Linux can be asked for the peak of a stretch of time; elsewhere a test has
what it adds to the peak of all before it.
"""

import os
import sys
from pathlib import Path

import pytest

try:
    import resource
except ImportError:  # Windows, where nothing is measured
    resource = None

ONE_TEST, ONE_PROCESS, WITH_TORCH = 1.5e9, 3e9, 6e9  # bytes
_STATUS, _CLEAR = Path("/proc/self/status"), Path("/proc/self/clear_refs")


def forget_peak():
    """Let the peak be the size of now, on Linux."""
    if _CLEAR.exists():
        _CLEAR.write_text("5")


def peak():
    """Return the largest size of this process since `forget_peak`, in bytes."""
    if _CLEAR.exists():
        found = next(s for s in _STATUS.read_text().splitlines() if s.startswith("VmHWM"))
        return 1024 * int(found.split()[1])
    return _ended(resource.RUSAGE_SELF)


def _ended(who=resource and resource.RUSAGE_CHILDREN):
    """Return the largest size of a child that has ended, in bytes."""
    unit = 1 if os.uname().sysname == "Darwin" else 1024
    return resource.getrusage(who).ru_maxrss * unit


class Memory:
    """Measure each test where it runs; print and judge where the reports are gathered."""

    def __init__(self):
        self.tests = []

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item):
        forget_peak()
        item.memory = peak(), _ended()
        return (yield)

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(self, item, call):
        report = yield
        if call.when == "teardown":
            start, ended = item.memory
            # Only a child larger than all before it shows.
            largest = max(peak(), _ended() if _ended() > ended else 0)
            # An attribute of a report travels to the process that gathers them.
            allowed = WITH_TORCH if "torch" in sys.modules else ONE_PROCESS
            report.memory = [largest - start, largest, allowed]
        return report

    def pytest_runtest_logreport(self, report):
        if report.when == "teardown":
            self.tests.append((*report.memory, report.nodeid))
            # For a look at all of them, also where a process is ended before the summary.
            name = os.environ.get("PYMC_DP_TEST_MEMORY")
            if name and "PYTEST_XDIST_WORKER" not in os.environ:
                with open(name, "a") as file:
                    print(*report.memory[:2], report.nodeid, file=file)

    def _faults(self):
        for growth, size, allowed, name in self.tests:
            if growth > ONE_TEST:
                yield f"{name} took {growth / 1e9:.1f} GB; a test may take {ONE_TEST / 1e9}"
            if size > allowed:
                yield f"{name} ran in {size / 1e9:.1f} GB; a process may have {allowed / 1e9}"

    def pytest_terminal_summary(self, terminalreporter):
        terminalreporter.section("memory")
        for growth, *_, name in sorted(self.tests, reverse=True)[:5]:
            terminalreporter.line(f"{growth / 1e6:.0f} MB in {name}")
        if self.tests:
            terminalreporter.line(
                f"{max(t[1] for t in self.tests) / 1e6:.0f} MB in the largest process"
            )
        for fault in self._faults():
            terminalreporter.line(fault, red=True)

    def pytest_sessionfinish(self, session):
        if session.exitstatus == 0 and any(self._faults()):
            session.exitstatus = pytest.ExitCode.TESTS_FAILED
