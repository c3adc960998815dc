r"""The fused Gibbs chain for a Gaussian whose mean and variance were released with noise.

One sweep updates, each from its exact full conditional,

.. math::

    \bar Y \mid \cdot,\quad S^2 \mid \cdot,\quad \mu \mid \cdot,\quad \sigma^2 \mid \cdot

for :math:`\bar Y \sim N(\mu, \sigma^2/n)`, :math:`S^2 \sim \mathrm{Gamma}((n-1)/2,
(n-1)/(2\sigma^2))`, :math:`\mu \sim N(\mu_0, (\kappa_0/\sigma^2 + \tau_0)^{-1})` and
:math:`p(\sigma^2) \propto (\sigma^2)^{-a_0-1} e^{-b_0/\sigma^2 - c_0\sigma^2}`: inverse gamma
(:math:`c_0 = 0`), flat on the variance (:math:`a_0 = -1`) or on the standard deviation
(:math:`a_0 = -1/2`), half-normal on the standard deviation (:math:`a_0 = -1/2, c_0 > 0`) or gamma
on the variance. A flat prior of the mean is :math:`\kappa_0 = \tau_0 = 0`. The cost of a sweep
does not depend on n. With `bounded`, every conditional is cut to the feasible region of records
in [lo, hi].
"""

import math
from typing import NamedTuple

from pymc_dp.kernels import jit
from pymc_dp.kernels.draws.log_concave import (
    TINY,
    draw_log_concave,
    draw_log_gamma,
    draw_tilted_gamma,
)


class GaussianModel(NamedTuple):
    """Everything that a sweep conditions on, in one unit of measurement.

    Noise enters as a Laplace rate `lam` (1/scale) or a Gaussian precision `tau`, 0 where the
    statistic was not released under that noise. `has_mean` and `has_var` are 1.0 for statistics
    that are part of the chain, and 0.0 for those that were not released and are left out.
    """

    n: float
    mu0: float
    kappa0: float
    tau0: float
    a0: float
    b0: float
    c0: float
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


@jit
def mean_range(var_over, lo, hi):
    """Range of a mean on [lo, hi] given that the variance is at most (mean-lo)(hi-mean)."""
    half = 0.5 * (hi - lo)
    width = math.sqrt(max(half * half - var_over, 0.0))
    middle = 0.5 * (lo + hi)
    return middle - width, middle + width


@jit
def draw_variance_statistic(rng, n, s2, lam, tau, z, cap):
    """Draw S² | σ², z on (0, cap]: the truncated gamma mixture under Laplace noise."""
    shape = 0.5 * (n - 1.0)
    rate = shape / s2
    if tau > 0.0:  # n >= 3: log-concave
        return draw_log_concave(rng, shape - 1.0, rate, tau, z, 0.0, 0.0, 0.0, cap)
    return draw_tilted_gamma(rng, shape, rate, lam, z, 0.0, cap)


@jit
def draw_normal_between(rng, precision, center, lo, hi):
    """Draw from a Normal cut to [lo, hi]: by plain rejection if that is quick, else exactly too."""
    sd = 1.0 / math.sqrt(precision)
    for _ in range(3):
        x = center + sd * rng.standard_normal()
        if lo < x < hi:
            return x
    return draw_log_concave(rng, 0.0, 0.0, precision, center, 0.0, 0.0, lo, hi)


@jit
def draw_inverse_gamma_below(rng, shape, scale, cap):
    """Draw from an inverse gamma law cut to (0, cap]; proper for shape 0 too."""
    if shape > 0.5:
        for _ in range(3):
            x = scale / rng.standard_gamma(shape)
            if x <= cap:
                return x
    return math.exp(-draw_log_gamma(rng, shape, scale, -math.log(cap), math.inf))


@jit
def _move_location(rng, mu, s2, ybar, var, model):
    """Draw a shift of (mu, mean) together, their difference held fixed: exact."""
    difference = mu - ybar
    prior_precision = model.kappa0 / s2 + model.tau0
    precision = prior_precision + model.tau_mean
    center = model.z_mean
    if precision > 0.0:
        center = (
            prior_precision * (model.mu0 - difference) + model.tau_mean * model.z_mean
        ) / precision
    lo, hi = -math.inf, math.inf
    if model.bounded:
        lo, hi = mean_range((model.n - 1.0) / model.n * var, model.lo, model.hi)
        mu_lo, mu_hi = mean_range(s2, model.lo, model.hi)
        # rounding must not exclude the current state
        lo = min(max(lo, mu_lo - difference), ybar)
        hi = max(min(hi, mu_hi - difference), ybar)
    ybar = draw_log_concave(rng, 0.0, 0.0, precision, center, model.lam_mean, model.z_mean, lo, hi)
    return ybar + difference, ybar


@jit
def is_feasible(mu, s2, ybar, var, model):
    """Whether the moments of the law and of the sample are possible between the bounds."""
    return (
        model.lo < mu < model.hi
        and s2 <= (mu - model.lo) * (model.hi - mu)
        and model.lo <= ybar <= model.hi
        and (model.n - 1.0) / model.n * var <= (ybar - model.lo) * (model.hi - ybar)
    )


@jit
def _move_scale(rng, step, mu, s2, ybar, var, model):
    """Propose a common factor c for (s2, var) and sqrt(c) for the deviations of the means.

    The Jacobian and the scale families of the statistics leave c^(-a0) of the inverse gamma
    prior; the rest of the ratio is written out.
    """
    log_c = step * rng.standard_normal()
    c = math.exp(log_c)
    root = math.sqrt(c)
    new_mu, new_ybar = mu, ybar
    if model.kappa0 > 0.0:  # the prior of mu has the same scale
        new_mu = model.mu0 + root * (mu - model.mu0)
        if model.has_mean > 0.0:
            new_ybar = model.mu0 + root * (ybar - model.mu0)
    elif model.has_mean > 0.0:
        new_mu = ybar + root * (mu - ybar)
    new_s2, new_var = c * s2, c * var if model.has_var > 0.0 else var
    ratio = -model.a0 * log_c - model.b0 * (1.0 / new_s2 - 1.0 / s2)
    ratio -= model.c0 * (new_s2 - s2)
    ratio -= model.lam_mean * (abs(model.z_mean - new_ybar) - abs(model.z_mean - ybar))
    ratio -= model.lam_var * (abs(model.z_var - new_var) - abs(model.z_var - var))
    if model.tau0 > 0.0:
        ratio -= 0.5 * model.tau0 * ((new_mu - model.mu0) ** 2 - (mu - model.mu0) ** 2)
    if model.tau_mean > 0.0:
        ratio -= 0.5 * model.tau_mean * (new_ybar - ybar) * (new_ybar + ybar - 2.0 * model.z_mean)
    if model.tau_var > 0.0:
        ratio -= 0.5 * model.tau_var * (new_var - var) * (new_var + var - 2.0 * model.z_var)
    if not (ratio >= 0.0 or rng.random() < math.exp(ratio)):  # NaN is refused, too
        return mu, s2, ybar, var
    if model.bounded and not is_feasible(new_mu, new_s2, new_ybar, new_var, model):
        return mu, s2, ybar, var
    return new_mu, new_s2, new_ybar, new_var


@jit
def sweep(rng, mu, s2, ybar, var, model):
    """One sweep; returns the new (mu, s2, ybar, var).

    Conditionals of var, mu and s2, and two interweaving moves (Yu & Meng, 2011) that keep the chain
    moving when the noise is much larger than the sampling error: a shift of (mu, mean), which takes
    the place of mean | mu, and random-walk steps of three sizes for the common scale.
    """
    n = model.n
    if model.has_mean > 0.0 and (
        model.bounded or model.lam_mean + model.tau_mean + model.kappa0 + model.tau0 > 0.0
    ):
        mu, ybar = _move_location(rng, mu, s2, ybar, var, model)
    if model.has_var > 0.0:
        cap = math.inf
        if model.bounded:
            cap = max(n / (n - 1.0) * (ybar - model.lo) * (model.hi - ybar), TINY)
        var = draw_variance_statistic(rng, n, s2, model.lam_var, model.tau_var, model.z_var, cap)

    from_mean = model.has_mean * n / s2
    from_prior = model.kappa0 / s2 + model.tau0
    precision = from_mean + from_prior
    center = (from_mean * ybar + from_prior * model.mu0) / precision
    if model.bounded:
        lo, hi = mean_range(s2, model.lo, model.hi)
        mu = draw_normal_between(rng, precision, center, lo, hi)
    else:
        mu = center + rng.standard_normal() / math.sqrt(precision)

    shape = model.a0 + 0.5 * (
        model.has_mean + model.has_var * (n - 1.0) + (1.0 if model.kappa0 > 0.0 else 0.0)
    )
    scale = model.b0 + 0.5 * (
        model.has_mean * n * (ybar - mu) ** 2
        + model.has_var * (n - 1.0) * var
        + model.kappa0 * (mu - model.mu0) ** 2
    )
    if model.bounded:
        cap = max((mu - model.lo) * (model.hi - mu), TINY)
        proposed = draw_inverse_gamma_below(rng, shape, scale, cap)
    else:
        proposed = scale / rng.standard_gamma(shape)
    # The exponential factor of the prior corrects the conjugate draw.
    if model.c0 == 0.0 or rng.random() < math.exp(min(model.c0 * (s2 - proposed), 0.0)):
        s2 = proposed
    for step in (0.2, 0.8, 3.0):
        mu, s2, ybar, var = _move_scale(rng, step, mu, s2, ybar, var, model)
    return mu, s2, ybar, var


@jit
def run_sweeps(rng, state, model, thin, out):
    """Fill `out` (draws, 2) with (mu, s2) after every `thin` sweeps; returns the last state."""
    mu, s2, ybar, var = state
    for i in range(out.shape[0]):
        for _ in range(thin):
            mu, s2, ybar, var = sweep(rng, mu, s2, ybar, var, model)
        out[i, 0] = mu
        out[i, 1] = s2
    return mu, s2, ybar, var
