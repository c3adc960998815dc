"""Models whose confidential values integrate out: NUTS, compiled once for each cell."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import numpy as np
import nutpie
import pymc as pm
import pytensor
from pytensor.gradient import NullTypeGradError

from pymc_dp.ladder.collapse import collapse
from pymc_dp.reading.model import releases
from pymc_dp.routes.nuts import marginal_rate
from pymc_dp.studies.engines import (
    COMPILED,
    Compiled,
    Released,
    Sampler,
    anything_released,
    flat,
)
from pymc_dp.studies.settings import Settings


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
    return Compiled(names, partial(nuts_sampler, marginal), marginal_rate(marginal))


COMPILED.append(read)


def _data_name(release: str) -> str:
    return f"released {release}"  # unlike any name of the user


def nuts_sampler(marginal: pm.Model, names: Sequence[str], settings: Settings) -> Sampler:
    """Return NUTS on a compiled density, without PyMC.

    Parameters
    ----------
    marginal : pm.Model
        Without confidential values; its releases have observed values that are shared variables.
    names : sequence of str
    settings : Settings
        Without thin= and min_ess=, which are for Gibbs kernels.
    """
    for wrong in ("thin", "min_ess"):
        if getattr(settings, wrong) is not None:
            raise NotImplementedError(
                f"{wrong}= is for Gibbs kernels, and NUTS samples this model: leave it out"
            )
    density = nutpie.compile_pymc_model(marginal)

    def draw(released: Released, rng: np.random.Generator) -> np.ndarray:
        tree = nutpie.sample(
            density.with_data(**{_data_name(name): value for name, value in released.items()}),
            **settings.size,
            cores=1,
            seed=int(rng.integers(2**31)),
            progress_bar=False,
            save_warmup=False,
        )
        return flat(tree["posterior"], names)

    return draw
