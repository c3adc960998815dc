"""Models whose confidential values integrate out: NUTS, compiled once for each cell."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

import numpy as np
import nutpie
import pymc as pm
import pytensor
from pytensor.gradient import NullTypeGradError

from pymc_dp.ladder.collapse import collapse
from pymc_dp.reading.model import releases
from pymc_dp.routes.nuts import nuts_rate
from pymc_dp.studies.engines import COMPILED, Compiled, Released, anything_released, flat


@COMPILED.register()
def read(model: pm.Model) -> Compiled:
    """Read a model for `studies.engines`."""
    data = {
        name: pytensor.shared(value, name=_data_name(name), shape=value.shape)
        for name, value in anything_released(model).items()
    }
    marginal = pm.observe(model, data)
    if releases(marginal):
        marginal = collapse(marginal, "marginal")
    discrete = [rv.name for rv in marginal.free_RVs if rv.dtype.startswith(("int", "uint", "bool"))]
    if discrete:
        raise NotImplementedError(f"{discrete[0]!r} is discrete, and NUTS needs a density")
    try:
        marginal.dlogp()
    except NullTypeGradError as error:
        raise NotImplementedError(f"the density has no gradient: {error}") from None
    names = tuple(v.name for v in (*marginal.free_RVs, *marginal.deterministics))
    return Compiled(names, partial(NutsSampler, marginal), nuts_rate(marginal))


def _data_name(release: str) -> str:
    return f"released {release}"  # no name of a user's


class NutsSampler:
    """NUTS on a compiled density, without PyMC.

    Parameters
    ----------
    marginal : pm.Model
        Without confidential values; its releases have observed values that are shared variables.
    names : sequence of str
    draws, tune, chains : int
    thin, enough
        Not taken: they are for Gibbs kernels.
    """

    def __init__(
        self,
        marginal: pm.Model,
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
        self._compiled, self._names = nutpie.compile_pymc_model(marginal), names
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
