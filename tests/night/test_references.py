"""Every reference posterior on the rungs with latent variables: records, and statistics.

The marginal rung is compared in tests/laws/moments/test_one_column.py without any sampling, the
fused chain in tests/kernels/moments/test_gaussian_chain.py. The separate steps on the statistics
mix slowly where the noise dominates, so that their kernels run here in plain Gibbs loops; the
records move along with their parameters.
"""

import numpy as np
import pytest
from pymc.step_methods.compound import CompoundStep

import pymc_dp as dp
from pymc_dp.kernels import njit
from pymc_dp.kernels.draws.log_concave import draw_tilted_gamma, draw_tilted_normal
from pymc_dp.kernels.moments.gaussian_chain import (
    draw_inverse_gamma_below,
    draw_normal_between,
    mean_range,
)
from pymc_dp.reading.bounds import feasible_point
from tests.agreement import has_moments
from tests.models import GAUSSIAN_CASES, reference_model

EXACT = [c for c in GAUSSIAN_CASES if c["name"] != "n10_e02_uncon_flat"]  # truncated on request


@njit(cache=True)
def _parameters(rng, mu, s2, center, squares, n, prior, bounded):
    """Draw the parameters given the sample mean and the squared deviations from it."""
    mu0, kappa0, a0, b0 = prior
    precision = (n + kappa0) / s2
    location = (n * center + kappa0 * mu0) / (n + kappa0)
    lo, hi = mean_range(s2, 0.0, 1.0) if bounded else (-np.inf, np.inf)
    mu = draw_normal_between(rng, precision, location, lo, hi)
    shape = a0 + (n + (1.0 if kappa0 > 0 else 0.0)) / 2
    scale = b0 + (squares + n * (center - mu) ** 2 + kappa0 * (mu - mu0) ** 2) / 2
    cap = mu * (1 - mu) if bounded else np.inf
    return mu, draw_inverse_gamma_below(rng, shape, scale, cap) if bounded else (
        scale / rng.standard_gamma(shape)
    )


@njit(cache=True)
def _on_statistics(rng, n, lam, z, prior, bounded, draws, thin):
    mu, s2, ybar, var = 0.4, 0.05, 0.4, 0.05
    a = (n - 1) / 2
    out = np.empty((draws, 2))
    for i in range(draws):
        for _ in range(thin):
            lo, hi = mean_range((n - 1) / n * var, 0.0, 1.0) if bounded else (-np.inf, np.inf)
            ybar = draw_tilted_normal(rng, mu, s2 / n, lam[0], z[0], lo, hi)
            cap = n / (n - 1) * ybar * (1 - ybar) if bounded else np.inf
            var = draw_tilted_gamma(rng, a, a / s2, lam[1], z[1], 0.0, cap)
            mu, s2 = _parameters(rng, mu, s2, ybar, (n - 1) * var, n, prior, bounded)
        out[i] = mu, s2
    return out


def statistics_draws(case):
    x, p = case["input"], case["input"]["prior"]
    n = x["n"]
    prior = (0.0, 0.0, -1.0, 0.0)
    if p:
        prior = (p["mu_0"], p["kappa_0"], p["nu_0"] / 2, p["nu_0"] * p["sigma_0_sq"] / 2)
    lam = np.array([n * x["eps_1"], n * x["eps_2"]])
    z = np.array([x["z1_priv_mean"], x["z2_priv_var"]])
    rng = np.random.default_rng(5)
    return _on_statistics(rng, n, lam, z, prior, x["constrained"], 20_500, 150)[500:]


def records_draws(case, draws=4_000, tune=500):
    model = reference_model(case)
    chain = CompoundStep(dp.steps(model))
    chain.setup_chain(np.random.default_rng(5), tune, draws)
    point = feasible_point(model)
    out = np.empty((draws, 2))
    for i in range(-tune, draws):
        if i == 0:
            chain.stop_tuning()
        point, _ = chain.step(point)
        if i >= 0:
            out[i] = point["mu"], np.exp(point["s2_log__"])
    return out


@pytest.mark.parametrize("draws", [records_draws, statistics_draws])
@pytest.mark.parametrize("case", EXACT, ids=lambda c: c["name"])
@pytest.mark.by_day("n10_e02_uncon_flat_notrunc-statistics_draws")
def test_reference(case, draws):
    exact, n = case["output"], case["input"]["n"]
    out = draws(case)
    for j, name in enumerate(("mu", "s2")):
        x, mean, sd = out[:, j], exact[f"{name}_mean"], exact[f"{name}_sd"]
        if name == "s2" and not case["input"]["constrained"] and n < 20:  # a heavy tail
            x, mean, sd = np.sqrt(x), exact["sigma_mean"], exact["sigma_sd"]
        has_moments(x, mean, sd, where=name)
