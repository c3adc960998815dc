r"""Poisson counts under two-sided geometric noise, by the augmentation of Schein et al. (2019).

A release :math:`z = y + g_1 - g_2` of :math:`y \sim \mathrm{Poisson}(\mu)`, the :math:`g_i`
geometric with mass :math:`(1 - \alpha) \alpha^g`, which are Poisson counts of random rates: given
:math:`\lambda_i \sim \mathrm{Exponential}` of mean :math:`\alpha / (1 - \alpha)`,
:math:`g_i \sim \mathrm{Poisson}(\lambda_i)`. Then

.. math::

    m = \min(y + g_1, g_2) \mid z &\sim
        \mathrm{Bessel}(|z|, 2 \sqrt{(\lambda_1 + \mu) \lambda_2}), \qquad
        y + g_1 = m + \max(z, 0), \\
    y \mid y + g_1 &\sim \mathrm{Binomial}(y + g_1, \mu / (\mu + \lambda_1)), \\
    \lambda_i \mid g_i &\sim \mathrm{Gamma}(1 + g_i, \text{rate } 1 / \alpha) .

Given y and z the law of the noise is known, too: :math:`g_1 - g_2 = d` with :math:`d = z - y`, and
:math:`\min(g_1, g_2)` is geometric of ratio :math:`\alpha^2`. So all auxiliary variables are drawn
afresh, and y is the whole state of the chain. Rates are kept in units of :math:`\alpha` until two
are multiplied, since :math:`\alpha = e^{-1 / b}` itself underflows.
"""

import math

import numpy as np

from pymc_dp.kernels import jit
from pymc_dp.kernels.counts.poisson import draw_poisson_two_sided
from pymc_dp.kernels.functions.bessel import draw_bessel


@jit
def draw_rates(rng, y, z, scale):
    r"""Draw :math:`\lambda_i / \alpha` given the count and its release."""
    d = z - y
    both = np.floor(0.5 * scale * rng.standard_exponential())  # geometric of ratio alpha^2
    first, second = both + max(d, 0.0), both + max(-d, 0.0)
    return rng.standard_gamma(1.0 + first), rng.standard_gamma(1.0 + second)


@jit
def draw_count(rng, z, alpha, mu, first, second):
    r"""Draw the count given its release and the rates :math:`\lambda_i / \alpha`; NaN if invalid.

    The binomial law is drawn from the side of the smaller probability, which keeps its digits.
    Returns the sum :math:`y + g_1`, too.
    """
    a = 2.0 * math.sqrt(alpha * first + mu) * math.sqrt(alpha * second)
    if not (mu >= 0.0 and alpha >= 0.0 and math.isfinite(z) and math.isfinite(a)):
        return math.nan, math.nan
    total = draw_bessel(rng, abs(z), a) + max(z, 0.0)
    if not total < 9e15:  # the binomial generator takes an integer
        return math.nan, math.nan
    if mu <= 0.0:
        return 0.0, total
    odds = alpha * first / mu  # odds that a unit of the sum is noise
    if odds > 1.0:
        return float(rng.binomial(int(total), 1.0 / (1.0 + odds))), total
    return total - rng.binomial(int(total), odds / (1.0 + odds)), total


@jit
def draw_count_augmented(rng, z, alpha, mu, augmentation):
    """Draw a count as in the paper: its rates, `augmentation`, are kept from draw to draw.

    The rates are then drawn given all else.
    """
    y, total = draw_count(rng, z, alpha, mu, augmentation[0], augmentation[1])
    if y >= 0.0:
        augmentation[0] = rng.standard_gamma(1.0 + total - y)
        augmentation[1] = rng.standard_gamma(1.0 + total - z)
    return y


@jit
def start_augmentation(rng, z, noise, mu, augmentation):
    """Draw the rates of every cell exactly given its release and the rate of its count."""
    for d in range(z.shape[0]):
        for v in range(z.shape[1]):
            y = draw_poisson_two_sided(rng, z[d, v], noise[d, v], 0.0, math.inf, mu[d, v])
            augmentation[d, v] = draw_rates(rng, y, z[d, v], noise[d, v])


@jit
def draw_skellam_bessel(rng, y, z, scale, mu):
    """Move each count of an array once, by drawing the rates given it and then the count anew.

    Parameters
    ----------
    rng : Generator
        Random generator.
    y : ndarray
        Counts of the last sweep.
    z : ndarray
        Their releases, whole numbers.
    scale : ndarray
        Scale b of the noise of each, in counts.
    mu : ndarray
        Rate of each count.

    Returns
    -------
    ndarray
        New counts; NaN where a release or a parameter is invalid.
    """
    out = np.empty(y.size)
    for i in range(y.size):
        if not (0.0 < scale[i] < math.inf and math.isfinite(z[i])):
            out[i] = math.nan  # the Gamma generator would not return
            continue
        first, second = draw_rates(rng, y[i], z[i], scale[i])
        alpha = math.exp(-1.0 / scale[i]) if scale[i] > 0.0 else math.nan
        out[i], _ = draw_count(rng, z[i], alpha, mu[i], first, second)
    return out
