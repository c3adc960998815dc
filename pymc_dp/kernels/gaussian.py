r"""The fused Gibbs chain for a Gaussian whose mean and variance were released with noise.

One sweep updates, each from its exact full conditional,

.. math::

    \bar Y \mid \cdot,\quad S^2 \mid \cdot,\quad \mu \mid \cdot,\quad \sigma^2 \mid \cdot

for :math:`\bar Y \sim N(\mu, \sigma^2/n)`, :math:`S^2 \sim \mathrm{Gamma}((n-1)/2,
(n-1)/(2\sigma^2))`, :math:`\mu \sim N(\mu_0, (\kappa_0/\sigma^2 + \tau_0)^{-1})` and
:math:`\sigma^2 \sim \mathrm{InverseGamma}(a_0, b_0)`; flat priors are the limits
:math:`\kappa_0 = \tau_0 = 0` and :math:`a_0 = -1, b_0 = 0`. The cost of a sweep does not depend
on n. With `bounded`, every conditional is cut to the feasible region of records in [lo, hi].
"""

import math
from typing import NamedTuple

from numba import njit

from pymc_dp.kernels.logconcave import draw_log_concave, draw_log_gamma, draw_tilted_gamma


class GaussianModel(NamedTuple):
    """Everything that a sweep conditions on, in one unit of measurement.

    Noise enters as a Laplace rate `lam` (1/scale) or a Gaussian precision `tau`, 0 where the
    statistic was not released under that noise. `has_mean` and `has_var` are 1.0 for statistics
    that are part of the chain and 0.0 for those that are integrated out trivially.
    """

    n: float
    mu0: float
    kappa0: float
    tau0: float
    a0: float
    b0: float
    has_mean: float
    lam_mean: float
    tau_mean: float
    z_mean: float
    has_var: float
    lam_var: float
    tau_var: float
    z_var: float
    bounded: bool
    lo: float
    hi: float


@njit(cache=True, nogil=True, error_model="numpy")
def mean_range(var_over, lo, hi):
    """Range of a mean on [lo, hi] given that the variance is at most (mean-lo)(hi-mean)."""
    half = 0.5 * (hi - lo)
    width = math.sqrt(max(half * half - var_over, 0.0))
    middle = 0.5 * (lo + hi)
    return middle - width, middle + width


@njit(cache=True, nogil=True, error_model="numpy")
def draw_variance_statistic(rng, n, s2, lam, tau, z, cap):
    """Draw S² | σ², z on (0, cap]: the truncated gamma mixture under Laplace noise."""
    shape = 0.5 * (n - 1.0)
    rate = shape / s2
    if tau > 0.0:
        return draw_log_concave(rng, shape - 1.0, rate, tau, z, 0.0, 0.0, 0.0, cap)
    return draw_tilted_gamma(rng, shape, rate, lam, z, 0.0, cap)


@njit(cache=True, nogil=True, error_model="numpy")
def sweep(rng, mu, s2, ybar, var, model):
    """One Gibbs sweep; returns the new (mu, s2, ybar, var)."""
    n = model.n
    lo, hi = -math.inf, math.inf
    if model.has_mean > 0.0:
        if model.bounded:
            lo, hi = mean_range((n - 1.0) / n * var, model.lo, model.hi)
        precision = n / s2
        center = mu
        if model.tau_mean > 0.0:
            center = (precision * mu + model.tau_mean * model.z_mean) / (precision + model.tau_mean)
            precision += model.tau_mean
        if model.lam_mean == 0.0 and not model.bounded:
            ybar = center + rng.standard_normal() / math.sqrt(precision)
        else:
            ybar = draw_log_concave(
                rng, 0.0, 0.0, precision, center, model.lam_mean, model.z_mean, lo, hi
            )
    if model.has_var > 0.0:
        cap = math.inf
        if model.bounded:
            cap = n / (n - 1.0) * (ybar - model.lo) * (model.hi - ybar)
        var = draw_variance_statistic(
            rng, n, s2, model.lam_var, model.tau_var, model.z_var, cap
        )

    from_mean = model.has_mean * n / s2
    from_prior = model.kappa0 / s2 + model.tau0
    precision = from_mean + from_prior
    center = (from_mean * ybar + from_prior * model.mu0) / precision
    if model.bounded:
        lo, hi = mean_range(s2, model.lo, model.hi)
        mu = draw_log_concave(rng, 0.0, 0.0, precision, center, 0.0, 0.0, lo, hi)
    else:
        mu = center + rng.standard_normal() / math.sqrt(precision)

    shape = model.a0 + 0.5 * (
        model.has_mean + model.has_var * (n - 1.0) + (1.0 if model.kappa0 > 0.0 else 0.0)
    )
    rate = model.b0 + 0.5 * (
        model.has_mean * n * (ybar - mu) ** 2
        + model.has_var * (n - 1.0) * var
        + model.kappa0 * (mu - model.mu0) ** 2
    )
    if model.bounded:
        cap = (mu - model.lo) * (model.hi - mu)
        s2 = math.exp(-draw_log_gamma(rng, shape, rate, -math.log(cap), math.inf))
    else:
        s2 = rate / rng.standard_gamma(shape)
    return mu, s2, ybar, var


@njit(cache=True, nogil=True, error_model="numpy")
def run_sweeps(rng, state, model, thin, out):
    """Fill `out` (draws, 2) with (mu, s2) after every `thin` sweeps; returns the last state."""
    mu, s2, ybar, var = state
    for i in range(out.shape[0]):
        for _ in range(thin):
            mu, s2, ybar, var = sweep(rng, mu, s2, ybar, var, model)
        out[i, 0] = mu
        out[i, 1] = s2
    return mu, s2, ybar, var
