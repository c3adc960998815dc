"""Models that a compiled chain of `pymc_dp.routes` covers: PyMC is no part of a replicate."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import pymc as pm

from pymc_dp.kernels.moments.gaussian_chain import is_feasible
from pymc_dp.routes import ROUTES, Route
from pymc_dp.routes.gaussian import GaussianChain
from pymc_dp.studies.engines import (
    COMPILED,
    Compiled,
    Reader,
    Released,
    flat,
    with_anything_released,
)
from pymc_dp.studies.settings import Settings
from pymc_dp.studies.summaries import effective


@dataclass(frozen=True)
class ChainSampler:
    """Samples by a compiled chain.

    Attributes
    ----------
    chain : compiled chain
        With ``given(released)``, ``begin(rng, tune, thin)`` and ``advance(rng, state, draws,
        thin)``, as `GaussianChain`.
    values : callable
        ``(rows, rng)`` to draws by name.
    names : sequence of str
        The parameters that are drawn.
    settings : Settings
        ``thin`` are sweeps to a draw, by default the chain's own.
    """

    chain: Any
    values: Callable[[np.ndarray, np.random.Generator], dict[str, np.ndarray]]
    names: Sequence[str]
    settings: Settings

    def __call__(self, released: Released, rng: np.random.Generator) -> np.ndarray:
        """Sample given a release."""
        size, wanted = self.settings, self.settings.min_ess
        thin = {} if size.thin is None else {"thin": size.thin}
        chain = self.chain.given(released)
        states = [chain.begin(rng, size.tune, **thin) for _ in range(size.chains)]
        draws = np.empty((size.chains, 0, 0))
        while (done := draws.shape[1]) < size.draws:
            # Each part is as long as all before it.
            more = size.draws if wanted is None else max(done, size.draws // 16, 50)
            more = min(more, size.draws - done)
            outs = []
            for c, state in enumerate(states):
                states[c], out = chain.advance(rng, state, more, **thin)
                outs.append(out)
            part = flat(self.values(np.stack(outs), rng), self.names)
            draws = np.concatenate([draws, part], axis=1) if done else part
            if wanted is not None and all(
                effective(draws[:, :, j]) >= wanted for j in range(draws.shape[2])
            ):
                break
        return draws


def gaussian(model: pm.Model) -> Compiled:
    """Read Normal records with a released mean and variance."""
    chain = GaussianChain.read(with_anything_released(model))

    def release(values: dict[str, Any], rng: np.random.Generator) -> Released | None:
        mean, spread = (float(np.squeeze(values[name])) for name in chain.names)
        return simulate(chain, mean, spread**chain.power, rng)

    sampler = partial(ChainSampler, chain, lambda rows, _: chain.values(rows))
    return Compiled(chain.names, sampler, needed=chain.names, release=release)


def _of_route(route: Route) -> Reader:
    def read(model: pm.Model) -> Compiled:
        assert route.chain is not None
        chain = route.chain(with_anything_released(model))
        names = tuple(rv.name for rv in chain.variables)
        return Compiled(names, partial(ChainSampler, chain, chain.values))

    return read


COMPILED += [gaussian, *(_of_route(route) for route in ROUTES if route.chain is not None)]


def simulate(
    chain: GaussianChain, mean: float, variance: float, rng: np.random.Generator
) -> Released | None:
    """Release the statistics of Normal records; None where bounds exclude them.

    The sample mean is Normal, the sample variance has a gamma law, and they are independent.
    """
    kernel = chain.kernel
    freedom = 0.5 * (kernel.n - 1)
    statistics = {
        "z_mean": mean + math.sqrt(variance / kernel.n) * rng.standard_normal(),
        "z_var": variance * rng.standard_gamma(freedom) / freedom if freedom > 0 else 0.0,
    }
    if kernel.bounded and not is_feasible(
        mean, variance, statistics["z_mean"], statistics["z_var"], kernel
    ):
        return None
    noise = {
        "z_mean": _noise(kernel.lam_mean, kernel.tau_mean, rng),
        "z_var": _noise(kernel.lam_var, kernel.tau_var, rng),
    }
    return {
        name: np.array(
            [offset + factor * (statistics[f] + noise[f]) for f, offset, factor in entries]
        )
        for name, entries in chain.entries.items()
    }


def _noise(lam: float, tau: float, rng: np.random.Generator) -> float:
    if lam > 0.0:
        return rng.laplace(0.0, 1.0 / lam)
    return rng.standard_normal() / math.sqrt(tau) if tau > 0.0 else 0.0
