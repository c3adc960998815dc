"""Ways to sample a model, each with what it is expected to give.

Every module of this package registers its routes; a new one is found by itself.
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
    """A route through one model, with what was built for it.

    Attributes
    ----------
    rate : effective draws of the slowest parameter to be expected of a CPU second.
    run : ``(**pm.sample arguments)`` to the result.
    moved : names the variables that are moved in coordinates other than PyMC's.
    cost : what the rate is computed from, see `routes.costs`.
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
        """Return a plan of the rate that goes with a cost."""
        return cls(expected_rate(cost), run, moved, cost)


@dataclass(frozen=True, eq=False)
class Route:
    """One way to sample a model.

    Attributes
    ----------
    name, rung : str
        What it is called and the rung of the ladder on which it samples.
    plan : callable
        Reading to `Plan`; where the route is shut, it is declined with the reason.
    arguments : frozenset of str, optional
        The arguments of `pm.sample` that the route takes, where it does not take them all.
    approximate : str, optional
        The approximation that it samples; `plan` then takes ``moments=``, too.
    steps : bool, optional
        Whether some variables get steps of ours, so that it is not for ``nuts_sampler=``.
    usual : mapping, optional
        What it usually costs, to tell what is lost where a word of the model shuts it.
    chain : callable, optional
        Reading to a compiled chain that can be run again for other released values, see
        `studies.chains`.
    careful : float, optional
        How many times faster it has to be than others, as it may mix slowly on other data.
    """

    name: str
    rung: str
    plan: Callable[..., Plan]
    arguments: frozenset[str] | None = None
    approximate: str | None = None
    steps: bool = False
    usual: Mapping[str, float] | None = None
    careful: float = 1.0
    chain: Callable[[Reading], Any] | None = None

    @property
    def usual_rate(self) -> float:
        """The rate that goes with what it usually costs, 0 where that is not known."""
        return expected_rate(self.usual) if self.usual else 0.0

    def standing(self, rate: float) -> float:
        """Return what the route of the most is taken by: the rate, or less where it may fail."""
        return rate / self.careful


ROUTES: Registry[Route, Route] = Registry()
AS_WRITTEN = "as written"  # the rung of models without records


def routes(
    reading: Reading, approximate: str | None = None, **options: Any
) -> list[tuple[Route, Plan | Declined]]:
    """Return every route of a model's rungs with its plan, or with why it is shut."""
    has_records = bool(privatized(reading))
    table: list[tuple[Route, Plan | Declined]] = []
    # A fifth of the time would go to notes of the lines that made the graphs, all of them ours.
    with pytensor.config.change_flags(traceback__limit=0):
        for route in ROUTES:
            if route.approximate != approximate or has_records == (route.rung == AS_WRITTEN):
                continue
            try:
                table.append((route, route.plan(reading, **options)))
            except Declined as reason:
                table.append((route, reason))
            except ValueError as error:  # an improper posterior, or values that are none
                table.append((route, Declined(str(error))))
    return table


load(__name__)
