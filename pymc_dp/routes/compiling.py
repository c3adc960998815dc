"""The time that a route compiles before its first draw, if its code is not on disk."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import suppress
from functools import cache
from hashlib import sha256
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pytensor

from pymc_dp.graphs.stages import expect_compiling
from pymc_dp.routes import Plan, Route
from pymc_dp.routes.costs import COMPILING

_FOLDER = Path(pytensor.config.base_compiledir) / "pymc_dp"  # emptied with PyTensor's cache
_WANTED = 1000  # effective draws that a first posterior has
_WORTH = 60.0  # CPU seconds that a slower route has to save, beside half of the wait


def compiling_seconds(route: Route, plan: Plan) -> float:
    """Return the CPU seconds that compiling is expected to take; 0 where the code is on disk."""
    if _mark(route, plan).exists():
        return 0.0
    inverted = any("inverted" in part for part in plan.cost)  # sums on a lattice compile no longer
    return COMPILING.get(route.name, COMPILING["any"]) + inverted * COMPILING["inverted sums"]


def run(route: Route, plan: Plan, **arguments: Any) -> Any:
    """Run a plan of a route, and leave a mark that its code is on disk."""
    expect_compiling(compiling_seconds(route, plan))
    result = plan.run(**arguments)
    mark = _mark(route, plan)
    with suppress(OSError):  # a cache that cannot be written has no code, either
        mark.parent.mkdir(parents=True, exist_ok=True)
        mark.touch()
    return result


def _mark(route: Route, plan: Plan) -> Path:
    """Return the path of the mark: models of equal cost are taken to compile to the same code."""
    made_of = sha256(
        repr((route.name, sorted(plan.cost.items()), _versions())).encode()
    ).hexdigest()
    return _FOLDER / made_of


@cache
def _versions() -> list[str]:
    """Return the versions that compiled code depends on; a look-up takes milliseconds."""
    return [version(name) for name in ("pymc_dp", "pytensor", "numba")]


def by_preference(open_routes: Iterable[tuple[Plan, Route]]) -> list[tuple[Plan, Route]]:
    """Sort routes by priority, the best first.

    One that compiles less goes to the front if its first posterior is done a minute earlier, and in
    half of the time.
    """
    ordered = sorted(open_routes, key=lambda candidate: -candidate[1].priority(candidate[0].rate))

    def wait(candidate: tuple[Plan, Route]) -> float:
        plan, route = candidate
        return compiling_seconds(route, plan) + _WANTED / route.priority(plan.rate)

    if len(ordered) > 1:
        soonest = min(ordered, key=wait)
        first = wait(ordered[0])
        if wait(soonest) < min(first - _WORTH, first / 2):
            ordered.remove(soonest)
            ordered.insert(0, soonest)
    return ordered
