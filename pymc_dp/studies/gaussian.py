"""Normal records with a released mean and variance, by the fused Gibbs kernel."""

from __future__ import annotations

import math
from functools import partial
from typing import Any

import numpy as np
import pymc as pm

from pymc_dp.kernels.moments.gaussian_chain import is_feasible
from pymc_dp.reading.model import Reading
from pymc_dp.routes.gaussian import GaussianChain
from pymc_dp.studies.engines import (
    COMPILED,
    ChainSampler,
    Compiled,
    Released,
    anything_released,
    observe,
)


@COMPILED.register()
def read(model: pm.Model) -> Compiled:
    """Read a model for `studies.engines`."""
    chain = GaussianChain.read(Reading(observe(model, anything_released(model))))

    def release(values: dict[str, Any], rng: np.random.Generator) -> Released | None:
        mean, spread = (float(np.squeeze(values[name])) for name in chain.names)
        return simulate(chain, mean, spread**chain.power, rng)

    def values(rows: np.ndarray, _: np.random.Generator) -> dict[str, np.ndarray]:
        return chain.values(rows)

    sampler = partial(ChainSampler, chain, values)
    return Compiled(chain.names, sampler, needed=chain.names, release=release)


def simulate(
    chain: GaussianChain, mean: float, variance: float, rng: np.random.Generator
) -> Released | None:
    """Release the statistics of Normal records; None where bounds exclude them.

    The sample mean is Normal, the sample variance has a gamma law, and they are independent.
    """
    kernel = chain.kernel
    freedom = 0.5 * (kernel.n - 1)
    own = {
        "z_mean": mean + math.sqrt(variance / kernel.n) * rng.standard_normal(),
        "z_var": variance * rng.standard_gamma(freedom) / freedom if freedom > 0 else 0.0,
    }
    if kernel.bounded and not is_feasible(mean, variance, own["z_mean"], own["z_var"], kernel):
        return None
    noise = {
        "z_mean": _noise(kernel.lam_mean, kernel.tau_mean, rng),
        "z_var": _noise(kernel.lam_var, kernel.tau_var, rng),
    }
    return {
        name: np.array([offset + factor * (own[f] + noise[f]) for f, offset, factor in entries])
        for name, entries in chain.entries.items()
    }


def _noise(lam: float, tau: float, rng: np.random.Generator) -> float:
    if lam > 0.0:
        return rng.laplace(0.0, 1.0 / lam)
    return rng.standard_normal() / math.sqrt(tau) if tau > 0.0 else 0.0
