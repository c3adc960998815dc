r"""The discrete Gaussian law, with mass proportional to exp(-k^2 / (2 sigma^2)) on the integers.

Its normaliser is a theta function. It is summed directly for a small :math:`\sigma`, and through
Poisson's formula,

.. math::

    \sum_k e^{-k^2 / (2 \sigma^2)} = \sqrt{2 \pi}\, \sigma \sum_k e^{-2 \pi^2 \sigma^2 k^2},

for a large one. A partial sum on one side of 0 is taken term by term where few terms matter, and
else by the Euler-Maclaurin formula with the ends half a step out,

.. math::

    \sum_{k=f}^{l} g(k) = \int_{f - 1/2}^{l + 1/2} g(x)\, dx + \sum_{j \ge 1}
        \frac{B_{2j}(1/2)}{(2j)!} \left[ g^{(2j-1)} \right]_{f - 1/2}^{l + 1/2}.

With the slope :math:`\delta = x / \sigma^2` of :math:`\log g` at the nearer end, the terms fall
like :math:`(\delta / 2 \pi)^{2j}`: six of them leave out less than rounding for
:math:`\delta \le 1/4` and :math:`\sigma \ge 8`. Where the slope is larger, 150 terms
are all that matters.

Derivatives with respect to :math:`\log\sigma` are returned, too: that of the log of a partial sum
is the mean of :math:`k^2 / \sigma^2` over it.
"""

import math
from fractions import Fraction

import numpy as np

from pymc_dp.kernels import jit
from pymc_dp.kernels.functions.count_masses import HALF_LOG_2PI
from pymc_dp.kernels.functions.normal_mass import half_normal_parts

REST = 1e-17  # Share of a sum that may be left out: less than its rounding.
_FEW = 64.0  # sums of up to so many terms are always taken term by term
_BERNOULLI = [
    Fraction(1, 6),
    Fraction(-1, 30),
    Fraction(1, 42),
    Fraction(-1, 30),
    Fraction(5, 66),
    Fraction(-691, 2730),
]
# B_n(1/2) / n! = (2^(1 - n) - 1) B_n / n!, n = 2, 4, ..., 12
_MIDPOINT = np.array(
    [
        float((Fraction(2, 2**n) - 1) * b / math.factorial(n))
        for n, b in zip(range(2, 14, 2), _BERNOULLI, strict=True)
    ]
)


@jit
def log_normaliser(sigma):
    r"""Return :math:`\log \sum_k e^{-k^2 / (2 \sigma^2)}` and its derivative in log sigma.

    The derivative is the variance in units of sigma^2.
    """
    if not 0.0 < sigma < math.inf:  # the loops below would not end
        return math.nan, math.nan
    if sigma < 1.0:
        rest, second, k = 0.0, 0.0, 1.0
        while True:
            u = k / sigma
            term = 2.0 * math.exp(-0.5 * u * u)
            # The ratio of neighbouring terms is below exp(-1).
            if term == 0.0 or term * (1.0 + u * u) <= REST * second:
                break
            rest += term
            second += term * u * u
            k += 1.0
        return math.log1p(rest), second / (1.0 + rest)
    rest, second, k = 0.0, 0.0, 1.0
    while True:
        u = 2.0 * math.pi * sigma * k
        term = 2.0 * math.exp(-0.5 * u * u)
        if term * (1.0 + u * u) <= REST:
            break
        rest += term
        second += term * u * u
        k += 1.0
    return HALF_LOG_2PI + math.log(sigma) + math.log1p(rest), 1.0 - second / (1.0 + rest)


@jit
def normaliser_parts(sigma):
    """Return `log_normaliser` with its derivative in sigma."""
    value, slope = log_normaliser(sigma)
    return value, slope / sigma


@jit
def _term_by_term(first, last, sigma):
    """Sum exp((f^2 - k^2) / (2 sigma^2)), f <= k <= l, and the same times (k / sigma)^2; f >= 0."""
    u = first / sigma
    total, second = 1.0, u * u
    k = first
    previous = 1.0
    while k < last:
        k += 1.0
        u = k / sigma
        term = math.exp(-0.5 * ((k - first) / sigma) * ((k + first) / sigma))
        total += term
        second += term * u * u
        # Ratios of neighbouring terms decrease, and those of the second sum do beyond sigma.
        if term == 0.0 or (u > 2.0 and term * term <= REST * total * (previous - term)):
            break
        previous = term
    return total, second


@jit
def _end_correction(x, sigma):
    """Return Euler-Maclaurin's correction over g, at an end x, for g and for (x / sigma)^2 g.

    The n-th derivative of g is (-1 / sigma)^n He_n(u) g with u = x / sigma.
    """
    u = x / sigma
    plain, second = 0.0, 0.0
    before, here = 0.0, 1.0  # He_{n-1}, He_n
    before2 = 0.0  # He_{n-2}
    n = 0
    power = 1.0
    for j in range(_MIDPOINT.size):
        while n < 2 * j + 1:
            before2, before, here = before, here, u * here - n * before
            n += 1
            power /= -sigma
        weight = _MIDPOINT[j] * power
        plain += weight * here
        # Leibniz: u^2 and its derivatives 2u and 2, in units of sigma
        second += weight * (u * u * here - 2.0 * n * u * before + n * (n - 1.0) * before2)
    return plain, second


@jit
def _integrated(first, last, sigma):
    """Return `_term_by_term` by the Euler-Maclaurin formula; f >= 1 and sigma large."""
    a, b = first - 0.5, last + 0.5
    k, w = a / sigma, (last - first + 1.0) / sigma
    mass, mean, square, end = half_normal_parts(k, w)
    total = sigma * mass
    second = sigma * mass * (k * k + 2.0 * k * mean + square)
    plain, weighted = _end_correction(a, sigma)
    total -= plain
    second -= weighted
    if end > 0.0:
        plain, weighted = _end_correction(b, sigma)
        total += plain * end
        second += weighted * end
    # From units of g(a) to units of g(f): a^2 - f^2 = 1/4 - f
    shift = math.exp(0.5 * ((first - 0.25) / sigma) / sigma)
    return total * shift, second * shift


@jit
def _log_side(first, last, sigma):
    """Log of the unnormalised sum from f >= 0 to l, possibly infinite, and its log derivative."""
    few = last - first < _FEW
    if few or first < 1.0 or sigma < 8.0 or first > 0.25 * sigma * sigma:
        total, second = _term_by_term(first, last, sigma)
    else:
        total, second = _integrated(first, last, sigma)
    u = first / sigma
    return -0.5 * u * u + math.log(total), second / total


@jit
def log_between(first, last, sigma):
    r"""Return :math:`\log P(f \le K \le l)` and its derivative in sigma.

    Parameters
    ----------
    first, last : float
        Ends of the interval, whole numbers or infinite.
    sigma : float
        Parameter of the law.

    Returns
    -------
    tuple of float
    """
    if not 0.0 < sigma < math.inf:
        return math.nan, math.nan
    # Comparisons with NaN are false.
    if not (first <= last and first < math.inf and last > -math.inf):
        return -math.inf, 0.0
    if last < 0.0:
        first, last = -last, -first
    log_all, variance = log_normaliser(sigma)
    if first > 0.0:
        log_sum, second = _log_side(first, last, sigma)
        return log_sum - log_all, (second - variance) / sigma
    outside, change = 0.0, 0.0
    for end in (last, -first):
        if end < math.inf:
            log_sum, second = _log_side(end + 1.0, math.inf, sigma)
            tail = math.exp(log_sum - log_all)
            outside += tail
            change += tail * (second - variance)
    if outside < 0.5:
        return math.log1p(-outside), -change / ((1.0 - outside) * sigma)
    total, moment = 1.0, 0.0
    for end in (last, -first):
        if end > 0.0:
            log_sum, second = _log_side(1.0, end, sigma)
            total += math.exp(log_sum)
            moment += math.exp(log_sum) * second
    return math.log(total) - log_all, (moment / total - variance) / sigma


@jit
def quantile(p, sigma):
    r"""Return :math:`\min\{k : P(K \le k) \ge p\}`; NaN where undefined."""
    if not (0.0 <= p <= 1.0 and 0.0 < sigma < math.inf):
        return math.nan
    if p == 0.0:
        return -math.inf
    if p == 1.0:
        return math.inf
    # P(K <= k) may fall short of p by rounding.
    log_p = math.log(p)
    target = log_p - 4.0 * 2.0**-52 * (1.0 - log_p)
    # Gallop away from 0 until low < quantile <= high, then bisect.
    step = max(1.0, np.floor(sigma))
    if log_between(-math.inf, 0.0, sigma)[0] >= target:
        low, high = -step, 0.0
        while log_between(-math.inf, low, sigma)[0] >= target:
            low, high, step = low - 2.0 * step, low, 2.0 * step
    else:
        low, high = 0.0, step
        while log_between(-math.inf, high, sigma)[0] < target:
            low, high, step = high, high + 2.0 * step, 2.0 * step
    while high - low > 1.0:
        middle = np.floor(0.5 * (low + high))
        if log_between(-math.inf, middle, sigma)[0] >= target:
            high = middle
        else:
            low = middle
    return high


@jit
def draw(rng, sigma):
    """Draw from the law, by rejection from a two-sided geometric one [1]_.

    References
    ----------
    .. [1] C. Canonne, G. Kamath, T. Steinke (2020). The discrete Gaussian for differential
       privacy. NeurIPS, algorithm 3.
    """
    t = np.floor(sigma) + 1.0
    while True:
        # The whole part of an exponential variable of mean t is geometric.
        k = np.floor(t * rng.standard_exponential()) - np.floor(t * rng.standard_exponential())
        excess = abs(k) / sigma - sigma / t
        if rng.standard_exponential() >= 0.5 * excess * excess:
            return k
