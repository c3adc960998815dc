"""Models whose confidential values integrate out: NUTS, compiled once for each cell."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

import numpy as np
import nutpie
import pymc as pm
import pytensor
from nutpie.compiled_pyfunc import CompiledModel

from pymc_dp.ladder.collapse import collapse
from pymc_dp.records import releases
from pymc_dp.sampling import MARGINAL, routes
from pymc_dp.studies.engines import (
    Compiled,
    Released,
    anything_released,
    flat,
    observe,
    register_compiled,
)

# What dp.sample takes to compile the model of a replicate.
_COMPILATION, _DRAWS = 3.0, 1000


@register_compiled
def read(model: pm.Model) -> Compiled:
    """Read a model for `studies.engines`, unless `dp.sample` has a route that is faster still."""
    values = anything_released(model)
    if releases(model):
        table = routes(observe(model, values))
        [(rate, why)] = [(rate, why) for route, rate, why in table if route.name == MARGINAL]
        best, other, _ = max(table, key=lambda entry: entry[1])
        if why or _DRAWS / rate > _DRAWS / other + _COMPILATION:
            raise NotImplementedError(why or f"dp.sample has a faster route, {best.name}")
    data = {
        name: pytensor.shared(value, name=_data_name(name), shape=value.shape)
        for name, value in values.items()
    }
    given = pm.observe(model, data)
    marginal = collapse(given, "marginal") if releases(given) else given
    discrete = [rv.name for rv in marginal.free_RVs if rv.dtype.startswith(("int", "uint", "bool"))]
    if discrete:
        raise NotImplementedError(f"{discrete[0]!r} is discrete, and NUTS needs a density")
    names = tuple(v.name for v in (*marginal.free_RVs, *marginal.deterministics))
    return Compiled(names, partial(NutsSampler, nutpie.compile_pymc_model(marginal)))


def _data_name(release: str) -> str:
    return f"{release}_released"


class NutsSampler:
    """NUTS on a compiled density, without PyMC.

    Parameters
    ----------
    compiled : nutpie's CompiledModel
        With the releases for data.
    names : sequence of str
    draws, tune, chains : int
    thin, enough
        Not taken: they are for Gibbs kernels.
    """

    def __init__(
        self,
        compiled: CompiledModel,
        names: Sequence[str],
        *,
        draws: int,
        tune: int,
        chains: int,
        thin: int | None,
        enough: Callable[[np.ndarray], bool] | None,
    ):
        if thin is not None or enough is not None:
            wrong = "min_ess" if thin is None else "thin"
            raise NotImplementedError(
                f"{wrong}= is for Gibbs kernels, and NUTS samples this model: leave it out"
            )
        self._compiled, self._names = compiled, names
        self._size = {"draws": draws, "tune": tune, "chains": chains}

    def __call__(self, released: Released, rng: np.random.Generator) -> np.ndarray:
        """Sample given a release."""
        data = {_data_name(name): value for name, value in released.items()}
        tree = nutpie.sample(
            self._compiled.with_data(**data),
            **self._size,
            cores=1,
            seed=int(rng.integers(2**31)),
            progress_bar=False,
            save_warmup=False,
        )
        return flat({n: tree["posterior"][n].to_numpy() for n in self._names}, self._names)
