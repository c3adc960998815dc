"""Day and night.

Nothing heavy is imported at the top: the process that hands the tests out to workers needs none.
"""

import gc
import os
from importlib.util import find_spec

import pytest

# The workers take all cores: threads of the linear algebra wait for each other, and matrices are
# small. It is read once, when numpy is imported.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

# run.py says so, and how to bring them in.
collect_ignore = [] if find_spec("torch") else ["neural"]


def pytest_addoption(parser):
    parser.addoption(
        "--night",
        action="store_true",
        help="run all tests, in full, and compile every graph, as users do",
    )


def pytest_configure(config):
    from tests import memory

    if memory.resource:
        config.pluginmanager.register(memory.Memory())


def pytest_collection_finish(session):
    """Prepare a process that runs tests."""
    import pytensor

    # Where in the code each variable was made: nothing here asks, and it costs a quarter of the
    # time.
    pytensor.config.traceback__limit = 0
    # Graphs are full of circles. Looking for them among all that is imported, and as often as
    # Python does, costs a tenth.
    gc.collect()
    gc.freeze()
    gc.set_threshold(10_000, 10, 10)


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config, items):
    """Leave the night's tests out by day, and so the cases that a mark `by_day` does not name."""
    unknown = {}
    for item in items:
        if mark := item.get_closest_marker("by_day"):
            left = unknown.setdefault((item.path, item.originalname), set(mark.args))
            if item.callspec.id in mark.args:
                left.discard(item.callspec.id)
            else:
                item.add_marker("nightly")
    chosen = any("::" in arg for arg in config.args) or config.getoption("lf", False)
    if any(unknown.values()) and not chosen:
        raise pytest.UsageError(f"by_day names cases that are not there: {unknown}")
    if not (config.getoption("night") or config.getoption("markexpr")):
        left_out = [item for item in items if "nightly" in item.keywords]
        items[:] = [item for item in items if "nightly" not in item.keywords]
        config.hook.pytest_deselected(items=left_out)


def pytest_terminal_summary(terminalreporter):
    """Print what tests found out beside passing, wherever they ran."""
    for outcome in ("passed", "failed"):
        for report in terminalreporter.stats.get(outcome, ()):
            for name, value in report.user_properties:
                terminalreporter.line(f"{report.nodeid}: {name}: {value}")


@pytest.fixture
def night(request):
    """Whether to draw as often as it takes to see a small error, too."""
    return request.config.getoption("night") or "nightly" in request.keywords


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item):
    """Evaluate graphs uncompiled by day: most are called once, and numba takes seconds for each."""
    if item.config.getoption("night") or {"compiled", "nightly"} & set(item.keywords):
        return (yield)
    import pytensor

    with pytensor.config.change_flags(mode="FAST_COMPILE"):
        return (yield)


@pytest.fixture(scope="session")
def gaussian_case():
    """Look a reference case up by its name."""
    from tests.models import GAUSSIAN_CASES

    return {case["name"]: case for case in GAUSSIAN_CASES}.__getitem__
