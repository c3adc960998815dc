"""Ways to sample a model, each with what it is expected to give.

Every module of this package registers its routes; a new one is found by itself.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from pkgutil import iter_modules
from typing import Any

import pymc as pm
from xarray import DataTree


@dataclass(frozen=True)
class Route:
    """One way to sample a model.

    Attributes
    ----------
    name, rung : str
        What it is called and the rung of the ladder on which it samples.
    rate : callable
        Model to expected effective draws a second of the slowest parameter, measured on two cores
        on the blood-lead example (`benchmarks/`); raises ValueError or NotImplementedError with
        the reason where the route is shut.
    run : callable
        ``(model, **pm.sample arguments)`` to the result.
    arguments : frozenset of str, optional
        The arguments of `pm.sample` that the route takes, where it does not take them all.
    approximate : str, optional
        The approximation that it samples; `rate` and `run` then take ``moments=``, too.
    steps : bool, optional
        Whether some variables get steps of ours, so that it is not for ``nuts_sampler=``.
    """

    name: str
    rung: str
    rate: Callable[..., float]
    run: Callable[..., DataTree]
    arguments: frozenset[str] | None = None
    approximate: str | None = None
    steps: bool = False


_ROUTES: list[Route] = []


def register_route(route: Route) -> None:
    """Add a route to the table."""
    _ROUTES.append(route)


def registered_routes() -> tuple[Route, ...]:
    """Return the table, in which the tests of conformance look for what has no test."""
    return tuple(_ROUTES)


def routes(
    model: pm.Model, approximate: str | None = None, **options: Any
) -> list[tuple[Route, float, str]]:
    """Return every route with its expected rate (0 where it is shut) and the reason why it is."""
    table = []
    for route in _ROUTES:
        if route.approximate != approximate:
            continue
        try:
            table.append((route, route.rate(model, **options), ""))
        except (ValueError, NotImplementedError) as error:
            table.append((route, 0.0, str(error)))
    return table


for _module in iter_modules(__path__):
    import_module(f"{__name__}.{_module.name}")
