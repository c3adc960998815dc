r"""The number of ones among randomised binary reports, as scalar numba functions.

Of n records c are one. With `log_odds` :math:`\lambda = \log\{t / (1 - t)\}` of a truthful report,
the reported ones number :math:`Z = \mathrm{Binomial}(c, t) + \mathrm{Binomial}(n - c, 1 - t)`, two
independent draws, so that

.. math::

    P(Z = z) = \sum_k \binom{c}{k} \binom{n - c}{z - k} t^{n - c - z + 2 k} (1 - t)^{c + z - 2 k} ,

k being the ones that were reported truthfully. The terms are log-concave in k, and :math:`P(Z = z)`
is in z, as a sum of independent Bernoulli variables. Once neighbouring terms fall by the ratio
r < 1, those that follow add up to at most r / (1 - r) times the last one: a sum outwards from its
largest term can therefore stop as soon as the remaining terms are provably below `REST` of it.

Derivatives with respect to :math:`\lambda` are returned, too: that of :math:`\log P(Z = z)` is
:math:`E[M \mid z] - n t` for the number M of truthful reports.
"""

import math

import numpy as np

from pymc_dp.kernels import jit
from pymc_dp.kernels.functions.count_masses import log_binomial_of_logs, log_sigmoid

REST = 1e-17  # Share of a sum that may be left out: less than its rounding.


@jit
def _log_binomial(x, n, log_odds):
    """Return log P(X = x), X ~ Binomial(n, p) with the log odds of p, for 0 <= x <= n."""
    return log_binomial_of_logs(x, n, log_sigmoid(log_odds), log_sigmoid(-log_odds))


@jit
def _growth(k, z, c, n, w):
    """Return the numerator and the denominator of the ratio of terms k + 1 and k; w = odds^2."""
    return (c - k) * (z - k) * w, (k + 1.0) * (n - c - z + k + 1.0)


@jit
def _largest_term(z, c, n, w):
    """Return the k of the largest term, by bisection: the ratios of terms decrease."""
    low, high = max(0.0, z - (n - c)), min(c, z)
    while low < high:
        middle = np.floor(0.5 * (low + high))
        up, down = _growth(middle, z, c, n, w)
        if up > down:
            low = middle + 1.0
        else:
            high = middle
    return low


@jit
def log_count_mass(z, c, n, log_odds):
    r"""Return :math:`\log P(Z = z)` and its derivative in the log odds, for 0 <= z, c <= n."""
    w = math.exp(2.0 * log_odds)
    top = _largest_term(z, c, n, w)
    total = 1.0
    first = 0.0  # sum of (k - top) times terms
    term, k, last = 1.0, top, min(c, z)
    while k < last:
        up, down = _growth(k, z, c, n, w)
        term *= up / down
        k += 1.0
        total += term
        first += (k - top) * term
        # The next ratio is at most this one.
        if up < down and term * up <= REST * total * (down - up):
            break
    term, k, last = 1.0, top, max(0.0, z - (n - c))
    while k > last:
        up, down = _growth(k - 1.0, z, c, n, w)
        term *= down / up
        k -= 1.0
        total += term
        first += (k - top) * term
        if down < up and term * down <= REST * total * (up - down):
            break
    log_top = _log_binomial(top, c, log_odds) + _log_binomial(z - top, n - c, -log_odds)
    truthful = n - c - z + 2.0 * (top + first / total)
    return log_top + math.log(total), truthful - n * math.exp(log_sigmoid(log_odds))


@jit
def _log_run(start, step, end, c, n, log_odds):
    """Log mass, with derivative, from `start` to `end` in steps of 1 or -1, away from the mode."""
    log_first, slope = log_count_mass(start, c, n, log_odds)
    total, first, previous, z = 1.0, slope, 1.0, start
    while z != end:
        z += step
        log_mass, slope = log_count_mass(z, c, n, log_odds)
        term = math.exp(log_mass - log_first)
        total += term
        first += term * slope
        if term < previous and term * term <= REST * total * (previous - term):
            break
        previous = term
    return log_first + math.log(total), first / total


@jit
def log_count_interval(lower, upper, c, n, log_odds):
    r"""Return :math:`\log P(l \le Z \le u)` and its derivative in the log odds.

    Parameters
    ----------
    lower, upper : float
        Ends of the interval, infinite ones allowed.
    c, n : float
        Number of ones, and of records. The probability is 0 unless they are integers and
        0 <= c <= n.
    log_odds : float
        Log odds of a truthful report.

    Returns
    -------
    tuple of float
    """
    if math.isnan(log_odds):
        return math.nan, math.nan
    low, high = max(np.ceil(lower), 0.0), min(np.floor(upper), n)
    # Comparisons with NaN are false.
    if not (lower <= upper and low <= high and 0.0 <= c <= n < math.inf):
        return -math.inf, 0.0
    if c != np.floor(c) or n != np.floor(n):
        return -math.inf, 0.0
    if low == high:
        return log_count_mass(low, c, n, log_odds)
    mean = c * math.exp(log_sigmoid(log_odds)) + (n - c) * math.exp(log_sigmoid(-log_odds))
    if high < mean:
        return _log_run(high, -1.0, low, c, n, log_odds)
    if low > mean:
        return _log_run(low, 1.0, high, c, n, log_odds)
    outside, change = 0.0, 0.0
    if low > 0.0:
        log_mass, slope = _log_run(low - 1.0, -1.0, 0.0, c, n, log_odds)
        outside += math.exp(log_mass)
        change += math.exp(log_mass) * slope
    if high < n:
        log_mass, slope = _log_run(high + 1.0, 1.0, n, c, n, log_odds)
        outside += math.exp(log_mass)
        change += math.exp(log_mass) * slope
    if outside < 0.5:
        return math.log1p(-outside), -change / (1.0 - outside)
    middle = np.floor(mean)
    middle = min(max(middle, low), high - 1.0)
    left, slope_left = _log_run(middle, -1.0, low, c, n, log_odds)
    right, slope_right = _log_run(middle + 1.0, 1.0, high, c, n, log_odds)
    inside = math.exp(left) + math.exp(right)
    slope = (math.exp(left) * slope_left + math.exp(right) * slope_right) / inside
    return math.log(inside), slope


@jit
def _binomial_mode(n, log_odds):
    """Return the odds, the mode, the probability of the mode and that of all smaller counts."""
    odds = math.exp(log_odds)
    mode = np.floor((n + 1.0) * math.exp(log_sigmoid(log_odds)))
    mode = min(max(mode, 0.0), n)
    at_mode = math.exp(_log_binomial(mode, n, log_odds))
    below, term, k = 0.0, at_mode, mode  # P(Z < mode)
    while k > 0.0 and term > 1e-17 * at_mode:
        term *= k / ((n - k + 1.0) * odds)
        k -= 1.0
        below += term
    return odds, mode, at_mode, below


@jit
def _binomial_quantile(p, n, odds, mode, at_mode, below):
    """Return the quantile of a binomial law by sums from the mode; NaN if in doubt.

    The recursion of the probabilities costs a few nanoseconds a step, and most draws are near.
    """
    k, term, total = mode, at_mode, below + at_mode
    if total >= p:
        while k > 0.0 and total - term >= p:
            total -= term
            term *= k / ((n - k + 1.0) * odds)
            k -= 1.0
    else:
        while k < n and total < p:
            term *= (n - k) * odds / (k + 1.0)
            k += 1.0
            total += term
    in_doubt = min(abs(total - p), abs(total - term - p)) < 1e-10 * p
    return math.nan if in_doubt else k


@jit
def count_quantile(p, c, n, log_odds):
    r"""Return :math:`\min\{z \ge 0 : P(Z \le z) \ge p\}`; NaN where undefined."""
    if not (0.0 <= p <= 1.0 and 0.0 <= c <= n < math.inf) or math.isnan(log_odds):
        return math.nan
    if c != np.floor(c) or n != np.floor(n):
        return math.nan
    if p == 0.0:
        return 0.0
    if p == 1.0:
        return n
    if c == n and 1e-4 < p < 1.0 - 1e-4:  # further out the sums would cancel
        quantile = _binomial_quantile(p, n, *_binomial_mode(n, log_odds))
        if not math.isnan(quantile):
            return quantile
    # P(Z <= z) may fall short of p by rounding.
    log_p = math.log(p)
    target = log_p - 4.0 * 2.0**-52 * (1.0 - log_p)
    low, high = 0.0, n
    while low < high:
        middle = np.floor(0.5 * (low + high))
        if log_count_interval(-math.inf, middle, c, n, log_odds)[0] >= target:
            high = middle
        else:
            low = middle + 1.0
    return low


@jit
def binomial_quantiles(p, n, log_odds):
    """Return quantiles of Binomial(n[j], sigmoid(log_odds[i, j])) for an array p[i, j].

    Sums at the mode are kept for the next row: rows with equal laws should follow each other.
    """
    out = np.empty_like(p)
    for j in range(p.shape[1]):
        known = math.nan
        kept = (0.0, 0.0, 0.0, 0.0)
        for i in range(p.shape[0]):
            quantile = math.nan
            if 1e-4 < p[i, j] < 1.0 - 1e-4:
                if log_odds[i, j] != known:
                    known = log_odds[i, j]
                    kept = _binomial_mode(n[j], known)
                quantile = _binomial_quantile(p[i, j], n[j], *kept)
            if math.isnan(quantile):
                quantile = count_quantile(p[i, j], n[j], n[j], log_odds[i, j])
            out[i, j] = quantile
    return out
