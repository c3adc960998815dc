"""Every reference posterior on the rungs with latent variables: records, and statistics.

The marginal rung is compared in test_marginal.py without any sampling, the fused chain in
kernels/test_gaussian.py. Here the kernels of the separate steps run in plain Gibbs loops: they mix
slowly where the noise dominates, so that a loop of PyMC's would take minutes.
"""

import arviz as az
import numpy as np
import pytest
from numba import njit

from pymc_dp.kernels.gaussian import (
    draw_inverse_gamma_below,
    draw_normal_between,
    mean_range,
)
from pymc_dp.kernels.logconcave import draw_tilted_gamma, draw_tilted_normal
from pymc_dp.kernels.records import draw_records, sweep_records
from tests.conftest import GAUSSIAN_CASES

EXACT = [c for c in GAUSSIAN_CASES if c["name"] != "n10_e02_uncon_flat"]  # truncated on request


@njit
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


@njit
def _on_records(rng, n, lam, z, prior, bounded, draws, thin):
    mu, s2 = 0.4, 0.05
    eye, zero = np.eye(2), np.zeros(2)
    x = draw_records(rng, n, mu, np.sqrt(s2), bounded, 0.0, 1.0)
    out = np.empty((draws, 2))
    for i in range(draws):
        for _ in range(thin):
            sweep_records(
                rng, x, mu, np.sqrt(s2), eye[0], eye[1], zero, lam, zero, z, bounded, 0.0, 1.0
            )
            center = x.mean()
            squares = ((x - center) ** 2).sum()
            mu, s2 = _parameters(rng, mu, s2, center, squares, n, prior, bounded)
        out[i] = mu, s2
    return out


@njit
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


@pytest.mark.parametrize("rung", ["records", "statistics"])
@pytest.mark.parametrize("case", EXACT, ids=lambda c: c["name"])
def test_reference(case, rung):
    x, exact = case["input"], case["output"]
    n = x["n"]
    p = x["prior"]
    prior = (0.0, 0.0, -1.0, 0.0)
    if p:
        prior = (p["mu_0"], p["kappa_0"], p["nu_0"] / 2, p["nu_0"] * p["sigma_0_sq"] / 2)
    lam = np.array([n * x["eps_1"], n * x["eps_2"]])
    z = np.array([x["z1_priv_mean"], x["z2_priv_var"]])
    run, sweeps = _on_statistics, 3e6
    if rung == "records":
        run, sweeps = _on_records, min(3e6, 1.2e10 / (20 * n))
    thin = max(int(sweeps) // 20_000, 1)
    out = run(np.random.default_rng(5), n, lam, z, prior, x["constrained"], 20_500, thin)[500:]
    for j, name in enumerate(("mu", "s2")):
        draws, mean, sd = out[:, j], exact[f"{name}_mean"], exact[f"{name}_sd"]
        if name == "s2" and not x["constrained"] and n < 20:  # a heavy tail
            draws, mean, sd = np.sqrt(draws), exact["sigma_mean"], exact["sigma_sd"]
        ess = float(az.ess(draws[None]))
        assert ess > 400, (name, ess)
        assert abs(draws.mean() - mean) < 4 * float(az.mcse(draws[None], method="mean")), name
        assert abs(draws.std() / sd - 1) < 0.2, name
