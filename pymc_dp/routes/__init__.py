"""Routes: ways to sample a model, each with the speed that it is expected to have.

Every module of this package registers its routes when it is imported; all are imported here.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import pytensor
from xarray import DataTree

from pymc_dp.graphs.declined import Declined
from pymc_dp.graphs.registry import Registry, load
from pymc_dp.reading.model import Reading, privatized
from pymc_dp.routes.costs import expected_rate


class Plan(NamedTuple):
    """A route for one model, with a function that samples it.

    Attributes
    ----------
    rate : expected effective draws of the slowest parameter in a CPU second.
    run : takes the arguments of `pm.sample`, returns its result.
    moved : returns the names of the variables that it moves in coordinates other than PyMC's.
    cost : the terms that the rate is computed from, see `routes.costs`.
    """

    rate: float
    run: Callable[..., DataTree]
    moved: Callable[[], list[str]] = list
    cost: Mapping[str, float] = {}

    @classmethod
    def costing(
        cls,
        cost: Mapping[str, float],
        run: Callable[..., DataTree],
        moved: Callable[[], list[str]] = list,
    ) -> Plan:
        """Return a plan whose rate follows from its cost."""
        return cls(expected_rate(cost), run, moved, cost)


@dataclass(frozen=True, eq=False)
class Route:
    """One way to sample a model.

    Attributes
    ----------
    name, rung : str
        Its name, and the rung of the ladder on which it samples.
    plan : callable
        Takes a reading, returns a `Plan`; raises `Declined` with the reason where it is shut.
    arguments : frozenset of str, optional
        The arguments of `pm.sample` that the route takes; None if it takes them all.
    approximate : str, optional
        The approximation that it samples, None if exact; `plan` then takes ``moments=``, too.
    steps : bool, optional
        Whether some variables get steps other than NUTS, which shuts out ``nuts_sampler=``.
    usual : mapping, optional
        Its usual cost, to tell users how much faster it would be where it is shut.
    chain : callable, optional
        Takes a reading, returns a compiled chain that runs again for other released values, see
        `studies.chains`.
    handicap : float, optional
        How many times faster than another route it has to be to be taken: it may mix slowly.
    """

    name: str
    rung: str
    plan: Callable[..., Plan]
    arguments: frozenset[str] | None = None
    approximate: str | None = None
    steps: bool = False
    usual: Mapping[str, float] | None = None
    handicap: float = 1.0
    chain: Callable[[Reading], Any] | None = None

    @property
    def usual_rate(self) -> float:
        """The rate at its usual cost; 0 where that is not known."""
        return expected_rate(self.usual) if self.usual else 0.0

    def priority(self, rate: float) -> float:
        """Return the rate divided by the handicap: the route with the highest priority is taken."""
        return rate / self.handicap


ROUTES: Registry[Route, Route] = Registry()
AS_WRITTEN = "as written"  # the rung of models without records to integrate out


def routes(
    reading: Reading, approximate: str | None = None, **options: Any
) -> list[tuple[Route, Plan | Declined]]:
    """Return every route of a model's rungs, with its plan or with the reason why it is shut."""
    has_records = approximate is not None or bool(privatized(reading))
    table: list[tuple[Route, Plan | Declined]] = []
    # PyTensor would note the line that made each variable, which takes a fifth of the time.
    with pytensor.config.change_flags(traceback__limit=0):
        for route in ROUTES:
            if route.approximate != approximate or has_records == (route.rung == AS_WRITTEN):
                continue
            try:
                table.append((route, route.plan(reading, **options)))
            except Declined as reason:
                table.append((route, reason))
            except ValueError as error:  # an improper posterior, or an impossible value
                table.append((route, Declined(str(error), near=1)))
    return table


load(__name__)
