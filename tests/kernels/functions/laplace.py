"""The law of a value under Laplace noise, from both masses beside its release."""

import math

import numpy as np

from pymc_dp.kernels.functions.tilting import gamma_log_tilted_mass, normal_log_tilted_mass


def _log_marginal(mass, z, lam, first, second, lo, hi):
    left = mass(lam, z, lo, min(z, hi), first, second)
    return math.log(lam / 2) + np.logaddexp(left, mass(-lam, z, max(z, lo), hi, first, second))


def laplace_log_marginal_gamma(z, lam, a, beta, lo, hi):
    """Log density at z of a Gamma(a, rate beta) value on [lo, hi] and noise of the rate lam."""
    return _log_marginal(gamma_log_tilted_mass, z, lam, a, beta, lo, hi)


def laplace_log_marginal_normal(z, lam, m, v, lo, hi):
    """Log density at z of a Normal(m, variance v) value on [lo, hi] and noise of the rate lam."""
    return _log_marginal(normal_log_tilted_mass, z, lam, m, v, lo, hi)
