r"""Modified Bessel functions, and the Skellam and Bessel laws, whose masses contain them.

With :math:`w = \sqrt{v^2 + x^2}` and :math:`q = v^2 / w^2`, Debye's expansion [1]_ is one in 1/w:

.. math::

    I_v(x) \sim \frac{e^{w - v \operatorname{asinh}(v / x)}}{\sqrt{2 \pi w}}
        \sum_j \frac{A_j(q)}{w^j},

for any order, zero included. Its exponent is that of two Poisson laws: with
:math:`y_{1,2} = (w \pm v) / 2`, so that :math:`y_1 - y_2 = v` and :math:`4 y_1 y_2 = x^2`, a
Skellam law with the rates :math:`\mu_1, \mu_2`, :math:`x^2 = 4 \mu_1 \mu_2`, has

.. math::

    \log p(v) = -D(y_1, \mu_1) - D(y_2, \mu_2) - \tfrac12 \log(2 \pi w) + \log \sum_j A_j / w^j ,
    \qquad D(y, \mu) = y \log(y / \mu) - y + \mu,

where nothing cancels; the differences :math:`y_i - \mu_i` are found without subtraction. Below
w = 40 the power series of :math:`I_v`, of positive terms, takes over.

References
----------
.. [1] NIST Digital Library of Mathematical Functions, 10.41(ii).
"""

import math
from fractions import Fraction

import numpy as np

from pymc_dp.kernels import jit
from pymc_dp.kernels.functions.count_masses import (
    HALF_LOG_2PI,
    deviance,
    log_poisson,
    propose_offset,
)

LARGE = 40.0  # w from which on the expansion has all digits
_TERMS = 13


def _debye_coefficients() -> tuple[np.ndarray, np.ndarray]:
    """Coefficients in q of A_j, and of the terms that the expansion of the derivative of I adds."""
    u = [Fraction(1)]  # coefficients of U_j(p), in powers of p
    a = np.zeros((_TERMS, _TERMS))
    b = np.zeros((_TERMS, _TERMS))
    for j in range(_TERMS):
        # U_j(p) / v^j = A_j(q) / w^j
        a[j, : j + 1] = [float(u[j + 2 * k]) for k in range(j + 1)]
        slope = [k * c for k, c in enumerate(u)][1:]
        if j + 1 < _TERMS:
            # V_{j+1} - U_{j+1} = -p (1 - p^2) (U_j / 2 + p U_j'): q-polynomials once more.
            inner = [c / 2 for c in u]
            for k, c in enumerate(slope):
                inner[k + 1] += c
            for k in range(j + 1):
                b[j + 1, k] -= float(inner[j + 2 * k])
        new = [Fraction(0)] * (3 * (j + 1) + 1)
        for k, c in enumerate(slope):
            new[k + 2] += c / 2
            new[k + 4] -= c / 2
        for k, c in enumerate(u):
            new[k + 1] += c / (8 * (k + 1))
            new[k + 3] -= 5 * c / (8 * (k + 3))
        u = new
    return a, b


_A, _B = _debye_coefficients()


@jit
def _sum(coefficients, q, w):
    """Sum over j of a polynomial in q over w^j."""
    total = 0.0
    for j in range(_TERMS - 1, -1, -1):
        value = 0.0
        for k in range(j, -1, -1):
            value = value * q + coefficients[j, k]
        total = total / w + value
    return total


@jit
def _series(v, x):
    """Sum of (x^2 / 4)^k / (k! (v + 1)_k)."""
    y = 0.25 * x * x
    total = term = 1.0
    k = 1.0
    while term > 1e-17 * total:
        term *= y / (k * (v + k))
        total += term
        k += 1.0
    return total


@jit
def _beyond(v, x, w):
    """Mean of the Bessel law minus y_2 = (w - v) / 2, for a large w."""
    q = (v / w) ** 2
    # I' / I = (w / x) sum V / sum U, and V - U has the factor 1 - q = (x / w)^2.
    return 0.5 * x * (x / w) * _sum(_B, q, w) / _sum(_A, q, w)


@jit
def bessel_mean(v, a):
    """Mean of the Bessel law, (a / 2) I_{v+1}(a) / I_v(a)."""
    if a <= 0.0:
        return 0.0
    w = math.hypot(v, a)
    if w < LARGE:
        return 0.25 * a * a / (v + 1.0) * _series(v + 1.0, a) / _series(v, a)
    return 0.5 * a * a / (w + v) + _beyond(v, a, w)


@jit
def log_bessel(k, v, a):
    """Log mass of the Bessel law at an integer k, v >= 0, a > 0."""
    if k < 0.0:
        return -math.inf
    if a <= 0.0:
        return 0.0 if k == 0.0 else -math.inf
    w = math.hypot(v, a)
    if w < LARGE:
        weight = 2.0 * k * math.log(0.5 * a) - math.lgamma(k + 1.0)
        return weight + math.lgamma(v + 1.0) - math.lgamma(k + v + 1.0) - math.log(_series(v, a))
    y1 = 0.5 * (w + v)
    y2 = 0.25 * a * (a / y1)
    # Two Poisson counts given their difference v.
    difference = -HALF_LOG_2PI - 0.5 * math.log(w) + math.log(_sum(_A, (v / w) ** 2, w))
    return log_poisson(k + v, y1) + log_poisson(k, y2) - difference


@jit
def bessel_parts(k, v, a):
    """Log mass of the Bessel law and its derivative by a."""
    return log_bessel(k, v, a), 2.0 * (k - bessel_mean(v, a)) / a


@jit
def draw_bessel(rng, v, a):
    """Draw from the Bessel law: it is log-concave (Devroye 1987), a few trials for any v and a."""
    if a <= 0.0:
        return 0.0
    mode = math.floor(0.5 * a * (a / (math.hypot(v, a) + v)))
    if mode < 4.0:
        # Inversion from 0 upwards, by ratios of neighbouring masses.
        y = 0.25 * a * a
        u = rng.random()
        k, p = 0.0, math.exp(log_bessel(0.0, v, a))
        while u > p and k < 500.0:
            u -= p
            k += 1.0
            p *= y / (k * (k + v))
        return k
    top = log_bessel(mode, v, a)
    height = math.exp(top)
    while True:
        offset, log_cap = propose_offset(rng, height)
        k = mode + offset
        if k >= 0.0 and math.log(1.0 - rng.random()) + log_cap <= log_bessel(k, v, a) - top:
            return k


@jit
def _skellam_parts(k, mu1, mu2):
    """Return `skellam_parts` for k >= 0."""
    if mu1 <= 0.0 or mu2 <= 0.0:
        logp = log_poisson(k, mu1) if mu2 <= 0.0 else -mu2 if k == 0.0 else -math.inf
        if logp == -math.inf:
            return logp, 0.0, 0.0
        # One rate is 0; the derivative by it compares with one event of its count.
        by_1 = k / mu1 - 1.0 if mu1 > 0.0 else -1.0
        by_2 = mu1 / (k + 1.0) - 1.0
        return logp, by_1, by_2
    x = 2.0 * math.sqrt(mu1) * math.sqrt(mu2)
    w = math.hypot(k, x)
    if w < LARGE:
        logp = -mu1 - mu2 + k * math.log(mu1) - math.lgamma(k + 1.0) + math.log(_series(k, x))
        mean = bessel_mean(k, x)
        return logp, (k + mean) / mu1 - 1.0, mean / mu2 - 1.0
    y1 = 0.5 * (w + k)
    y2 = mu1 * (mu2 / y1)
    e = k - (mu1 - mu2)
    d1, d2 = mu1 * (e / (mu1 + y2)), -mu2 * (e / (mu2 + y1))
    logp = -deviance(d1, mu1) - deviance(d2, mu2) - HALF_LOG_2PI - 0.5 * math.log(w)
    logp += math.log(_sum(_A, (k / w) ** 2, w))
    beyond = _beyond(k, x, w)
    return logp, (d1 + beyond) / mu1, (d2 + beyond) / mu2


@jit
def skellam_parts(k, mu1, mu2):
    """Log mass of the Skellam law at an integer k, and its derivatives by both rates."""
    if k < 0.0:
        logp, by_2, by_1 = _skellam_parts(-k, mu2, mu1)
        return logp, by_1, by_2
    return _skellam_parts(k, mu1, mu2)


@jit
def _log_mass(k, skellam, first, second):
    return skellam_parts(k, first, second)[0] if skellam else log_bessel(k, first, second)


@jit
def _sum_outwards(start, step, skellam, first, second):
    """Log of the sum of a unimodal mass from `start` away from its mode."""
    top = _log_mass(start, skellam, first, second)
    if top == -math.inf or start + step == start:
        return top
    total, j, before = 0.0, start, 0.0
    while True:
        term = math.exp(_log_mass(j, skellam, first, second) - top)
        total += term
        # The ratio of neighbours falls: the remaining terms are less than a geometric series.
        if term <= before and term * term <= 1e-17 * total * (before - term):
            return top + math.log(total)
        before = term
        j += step


@jit
def _log_cdf(k, mean, skellam, first, second):
    """Log distribution function, by the sum over the nearer tail."""
    if math.isnan(k) or math.isinf(k):
        return math.nan if math.isnan(k) else 0.0 if k > 0.0 else -math.inf
    k = math.floor(k)
    if k <= mean:
        return _sum_outwards(k, -1.0, skellam, first, second)
    tail = _sum_outwards(k + 1.0, 1.0, skellam, first, second)
    return math.log1p(-math.exp(tail)) if tail < 0.0 else -math.inf


@jit
def skellam_logcdf(k, mu1, mu2):
    """Log probability that a Skellam variable is at most k."""
    valid = mu1 >= 0.0 and mu2 >= 0.0
    return _log_cdf(k, mu1 - mu2, True, mu1, mu2) if valid else math.nan


@jit
def bessel_logcdf(k, v, a):
    """Log probability that a Bessel variable is at most k."""
    valid = v >= 0.0 and a > 0.0
    return _log_cdf(k, bessel_mean(v, a), False, v, a) if valid else math.nan
