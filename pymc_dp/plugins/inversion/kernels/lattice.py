r"""Density of a noisy sum of independent records of whole numbers, by roots of unity.

With :math:`G(x) = \sum_j w_j x^{k_j}` of one record, :math:`H = \sum_n p_n G^n` of their sum and
noise of density :math:`\eta`, for any tilt t

.. math::

    p(z) = H(e^t) \sum_s q_s\, \eta(z - s)\, e^{-ts}, \qquad
    q_s = \frac1M \sum_j \frac{H(e^t u^j)}{H(e^t)} u^{-js}, \quad u = e^{2 \pi i / M},

q being the tilted law of the sum, all but :math:`e^{-35}` of which is within a window of M sums.
With the tilt at which q and the tilted noise have the same mode nothing cancels, however far z is
from possible sums. If terms cancel nevertheless, since few sums are possible and none is near a
narrow noise, powers of G are multiplied out. If both fail, the result is NaN.
"""

import math

import numpy as np

from pymc_dp.kernels import jit
from pymc_dp.kernels.linked import V, linked
from pymc_dp.plugins.inversion.kernels.contour import extent, log_total, tilted
from pymc_dp.plugins.inversion.kernels.line import power
from pymc_dp.plugins.inversion.kernels.numbers import mixed

MOST_SUMS = 1 << 20  # in a window
_FAR = 50.0  # fall of the log of noise, or of a transform, beyond which it is left out
_CANCELS = 1e-12  # largest rounding error, relative to the density, that is let through
_MOST_PRODUCTS = 3e8  # when powers are multiplied out


@jit
def _rise(e, lam, tau):
    """Log of the noise at s + 1/2 less that at s - 1/2, for a sum s = z - e."""
    return lam * (abs(e + 0.5) - abs(e - 0.5)) + tau * e


@jit
def _log_noise(low, high, middle, z, lam, tau, t):
    """Return the sums in [low, high], and the logs of their tilted noise relative to `middle`."""
    s = np.arange(low, high + 1.0)
    off = s - middle
    fall = lam * (np.abs(z - s) - abs(z - middle)) + t * off
    return s, tau * off * (z - middle - 0.5 * off) - fall


@jit
def _tilt(lw, k, n, lp, z, lam, tau, least, most, pi, omega):
    """Find the tilt; fill the tilted laws of a record and of their number.

    Returns the tilt, the log of the generating function, mean and variance of the sum.
    """
    lo, hi = _rise(z - most, lam, tau), _rise(z - least, lam, tau)
    t = min(max(0.0, lo), hi)
    while True:
        base, extra, spread = log_total(lw, k, 0.0, n, lp, t, omega)
        mean, variance = tilted(lw, k, t, pi)
        variance = (n + extra) * variance + spread * mean * mean
        mean *= n + extra
        if _rise(z - mean, lam, tau) > t:
            lo = t
        else:
            hi = t
        middle = 0.5 * (lo + hi)
        if (hi - lo) * math.sqrt(1.0 + variance) < 0.01 or not lo < middle < hi:
            return t, base, mean, variance
        t = middle


@jit
def _by_roots(pi, k, n, omega, count, e, first):
    """Tilted law of the sums first, first + 1, ..., one for each entry of e, by roots of unity.

    `count` is the number of roots. Returns the law; the sum of the absolute values of the terms of
    its scalar product with e; and the derivatives of this product by the log weights of a record's
    values and of the numbers of records.
    """
    angle = 2.0 * math.pi / count * np.arange(count)
    roots = np.cos(angle) + 1j * np.sin(angle)
    q, grad, by_number = np.zeros(e.size), np.zeros(k.size), np.zeros(omega.size)
    size = 0.0
    for j in range(count // 2 + 1):
        y = complex(0.0, 0.0)
        for i in range(k.size):
            y += pi[i] * roots[(j * int(k[i])) % count]
        modulus = abs(y)
        if n * math.log(modulus) < -_FAR if modulus > 0.0 else n > 1.0:
            continue
        below = complex(0.0, 0.0)  # y^(n - 1)
        if n == 1.0:
            below = complex(1.0, 0.0)
        elif n > 1.0:
            log_size, phase = power(y.real - 1.0, y.imag, n - 1.0)
            below = math.exp(log_size) * complex(math.cos(phase), math.sin(phase))
        power_n = below * y if n > 0.0 else complex(1.0, 0.0)
        value = slope = complex(0.0, 0.0)
        for i in range(omega.size - 1, -1, -1):
            slope = slope * y + value
            value = value * y + omega[i]
        times = (1.0 if 2 * j in (0, count) else 2.0) / count
        step, h = roots[j].conjugate(), power_n * value * times
        root_to_sum = transform = complex(0.0, 0.0)
        for i in range(e.size):
            if i % 64 == 0:  # afresh, before rounding errors add up
                root_to_sum = roots[(j * (first + i)) % count].conjugate()
            q[i] += h.real * root_to_sum.real - h.imag * root_to_sum.imag
            transform += e[i] * root_to_sum
            root_to_sum *= step
        size += abs(h) * abs(transform)
        transform *= times
        by_record = (n * below * value + power_n * slope) * transform
        for i in range(k.size):
            root = roots[(j * int(k[i])) % count]
            grad[i] += by_record.real * root.real - by_record.imag * root.imag
        if omega.size > 1:
            term = power_n * transform
            for i in range(omega.size):
                by_number[i] += term.real
                term *= y
    return q, size, grad * pi, by_number * omega


@jit
def _multiplied(pi, k, n, omega, least, log_e):
    """`_by_roots` by products of positive numbers, of all sums from `least` on.

    `log_e` has an entry for each sum; its largest entry at a possible sum is returned, too.
    """
    low = int(k.min())
    most = int(n) + omega.size - 1
    width = int(k.max()) - low
    law, before = np.zeros(most * width + 1), np.zeros(most * width + 1)
    law_of_sum, without_one = np.zeros(log_e.size), np.zeros((omega.size, law.size))
    law[0] = 1.0
    for number in range(most + 1):
        if number > 0:
            before[:] = law
            law[:] = 0.0
            for i in range(k.size):
                shift, end = int(k[i]) - low, (number - 1) * width + 1
                law[shift : shift + end] += pi[i] * before[:end]
        i = number - int(n)
        if i >= 0:
            start, end = number * low - least, number * width + 1
            law_of_sum[start : start + end] += omega[i] * law[:end]
            without_one[i] = before
    top = -math.inf
    for s in range(log_e.size):
        if law_of_sum[s] > 0.0:
            top = max(top, log_e[s])
    e = np.exp(np.minimum(log_e - top, 0.0))
    grad, by_number = np.zeros(k.size), np.zeros(omega.size)
    for i in range(omega.size):
        number = int(n) + i
        if number == 0:
            by_number[i] = omega[i] * e[-least]
            continue
        end = (number - 1) * width + 1
        for j in range(k.size):
            start = (number - 1) * low + int(k[j]) - least
            part = omega[i] * pi[j] * np.dot(without_one[i, :end], e[start : start + end])
            grad[j] += number * part
            by_number[i] += part
    return law_of_sum * e, top, grad, by_number


@linked(f"Tuple((f8, f8, {V}, {V}, i8, {V}))({V}, {V}, f8, {V}, f8, f8, f8)")
def lattice_line(lw, k, n, lp, z, b, sd):
    """Log density of one noisy sum.

    Parameters
    ----------
    lw, k : log masses, normalised, and whole numbers.
    n, lp : the least number of records, and the log weights of n, n + 1, ... records; [0] for a
        known number.
    z, b, sd : released value, scale of a Laplace noise, or standard deviation of a Gaussian one.

    Returns
    -------
    log density, its derivatives by z, lw and lp; the first of the sums in a window, and the
    probabilities of these sums given the release.
    """
    grad, by_number = np.zeros(lw.size), np.zeros(lp.size)
    nothing = math.nan, 0.0, grad, by_number, 0, np.ones(1)
    [possible] = np.nonzero(lw > -math.inf)
    [likely] = np.nonzero(lp > -math.inf)
    if likely.size == 0:
        return -math.inf, 0.0, grad, by_number, 0, np.ones(1)
    if possible.size == 0 or math.isnan(lw.sum() + lp.sum() + z) or not max(b, sd) > 0.0:
        return nothing
    lam, tau = 1.0 / b if b > 0.0 else 0.0, 1.0 / (sd * sd) if sd > 0.0 else 0.0
    kept = slice(likely[0], likely[-1] + 1)
    n, lp, lw, k = n + likely[0], lp[kept], lw[possible], k[possible]
    pi, omega = np.empty(k.size), np.empty(lp.size)
    last = n + lp.size - 1.0
    least, most = min(n * k.min(), last * k.min()), max(n * k.max(), last * k.max())
    t, base, mean, variance = _tilt(lw, k, n, lp, z, lam, tau, least, most, pi, omega)
    start = 8.0 / math.sqrt(variance + 0.1)
    right, _ = extent(lw, k, 0.0, n, lp, mean, 0.0, t, base, start, 1.0, np.empty(lp.size))
    left, _ = extent(lw, k, 0.0, n, lp, mean, 0.0, t, base, start, -1.0, np.empty(lp.size))
    low, high = max(least, math.floor(mean - left)), min(most, math.ceil(mean + right))
    if not high - low < MOST_SUMS:
        return nothing
    middle = min(max(round(mean), low), high)
    constant = -math.log(2.0 * b) if b > 0.0 else -math.log(sd * math.sqrt(2.0 * math.pi))
    constant += base - t * middle - lam * abs(z - middle) - 0.5 * tau * (z - middle) ** 2

    s, log_e = _log_noise(low, high, middle, z, lam, tau, t)
    top = log_e.max()
    [near] = np.nonzero(log_e > top - _FAR)
    s = s[near[0] : near[-1] + 1]
    e = np.exp(log_e[near[0] : near[-1] + 1] - top)
    count = int(high - low) + 1
    chance, size, by_record, numbered = _by_roots(pi, k, n, omega, count, e, int(s[0]))
    chance *= e
    total = chance.sum()
    if not 1e-16 * size < _CANCELS * total:
        sums = most - least + 1.0
        if last * sums * k.size > _MOST_PRODUCTS or sums * lp.size > _MOST_PRODUCTS / 10.0:
            return nothing
        s, log_e = _log_noise(least, most, middle, z, lam, tau, t)
        chance, top, by_record, numbered = _multiplied(pi, k, n, omega, int(least), log_e)
        total = chance.sum()
    chance = np.maximum(chance, 0.0) / total
    slope = -np.dot(chance, lam * np.sign(z - s) + tau * (z - s))
    for i in range(possible.size):
        grad[possible[i]] = by_record[i] / total
    by_number[kept] = numbered / total if lp.size > 1 else np.ones(1)
    return constant + top + math.log(total), slope, grad, by_number, int(s[0]), chance


@linked(f"Tuple((f8, {V}, {V}, {V}))({V}, {V}, f8, {V}, {V}, {V}, {V})")
def lattice_release(lw, k, n, lp, z, b, sd):
    """`lattice_line`, also for a release that depends on the number of records.

    In that case z, b, sd and the derivatives by z have an entry for each number.
    """
    if z.size == 1:
        logp, slope, grad, by_number, _, _ = lattice_line(lw, k, n, lp, z[0], b[0], sd[0])
        return logp, np.full(1, slope), grad, by_number
    each, slopes, grads = np.zeros(lp.size), np.zeros(lp.size), np.zeros((lp.size, lw.size))
    [possible] = np.nonzero(lp > -math.inf)
    for i in possible:
        each[i], slopes[i], grads[i], _, _, _ = lattice_line(
            lw, k, n + i, np.zeros(1), z[i], b[i], sd[i]
        )
    return mixed(lp, each, slopes, grads, np.arange(lp.size), np.zeros((0, 0)))


@jit
def draw_lattice(rng, lw, k, n, z, b, sd):
    """Draw a sum of n records given its release; NaN where `lattice_line` is NaN."""
    logp, _, _, _, first, chance = lattice_line(lw, k, n, np.zeros(1), z, b, sd)
    if math.isnan(logp):
        return math.nan
    index = np.searchsorted(np.cumsum(chance), rng.random())
    return float(first + min(index, chance.size - 1))
