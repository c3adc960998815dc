"""What a route compiles before its first draw, while that is not on disk."""

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

_FOLDER = Path(pytensor.config.base_compiledir) / "pymc_dp"  # it goes when the user empties this
_WANTED = 1000  # effective draws of the first posterior
_WORTH = 60.0  # CPU seconds that a slower route has to save, and half of the wait


def compiling_seconds(route: Route, plan: Plan) -> float:
    """Return the CPU seconds that compiling is expected to take; 0 where the code is on disk."""
    if _mark(route, plan).exists():
        return 0.0
    inverted = any("inverted" in part for part in plan.cost)  # on a lattice it takes no longer
    return COMPILING.get(route.name, COMPILING["any"]) + inverted * COMPILING["inverted sums"]


def run(route: Route, plan: Plan, **arguments: Any) -> Any:
    """Take a route; note that its code is on disk then."""
    expect_compiling(compiling_seconds(route, plan))
    result = plan.run(**arguments)
    mark = _mark(route, plan)
    with suppress(OSError):  # nothing can be written: nothing is on disk, either
        mark.parent.mkdir(parents=True, exist_ok=True)
        mark.touch()
    return result


def _mark(route: Route, plan: Plan) -> Path:
    """Return a file beside PyTensor's code: models with one cost are compiled alike."""
    made_of = sha256(
        repr((route.name, sorted(plan.cost.items()), _versions())).encode()
    ).hexdigest()
    return _FOLDER / made_of


@cache
def _versions() -> list[str]:
    """Return what takes milliseconds to look up."""
    return [version(name) for name in ("pymc_dp", "pytensor", "numba")]


def by_preference(open_routes: Iterable[tuple[Plan, Route]]) -> list[tuple[Plan, Route]]:
    """Put routes in order, the best first.

    It is the one that samples fastest, but where another one's first posterior is there a minute
    earlier, and in half of the time, since less has to be compiled.
    """
    ordered = sorted(open_routes, key=lambda own: -own[1].standing(own[0].rate))

    def wait(own: tuple[Plan, Route]) -> float:
        plan, route = own
        return compiling_seconds(route, plan) + _WANTED / route.standing(plan.rate)

    if len(ordered) > 1:
        soonest = min(ordered, key=wait)
        first = wait(ordered[0])
        if wait(soonest) < min(first - _WORTH, first / 2):
            ordered.remove(soonest)
            ordered.insert(0, soonest)
    return ordered
