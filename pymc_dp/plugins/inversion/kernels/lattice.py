r"""Density of a noisy sum of independent records of whole numbers, by roots of unity.

With :math:`G(x) = \sum_j w_j x^{k_j}` of one record, :math:`H = \sum_n p_n G^n` of their sum and
noise of density :math:`\eta`, for any tilt t

.. math::

    p(z) = H(e^t) \sum_s q_s\, \eta(z - s)\, e^{-ts}, \qquad
    q_s = \frac1M \sum_j \frac{H(e^t u^j)}{H(e^t)} u^{-js}, \quad u = e^{2 \pi i / M},

q being the tilted law of the sum, all but :math:`e^{-35}` of which is within a window of M sums.
The tilt is where q and the tilted noise have one mode, so that nothing cancels, however far z is
from what is possible. Where something does, since few sums are possible and none is near a narrow
noise, powers of G are multiplied out. What neither finds is NaN.
"""

import math

import numpy as np

from pymc_dp.kernels import jit
from pymc_dp.kernels.linked import V, linked
from pymc_dp.plugins.inversion.kernels.contour import extent, log_total, tilted
from pymc_dp.plugins.inversion.kernels.line import power
from pymc_dp.plugins.inversion.kernels.numbers import mixed

MOST = 1 << 20  # sums in a window
_FAR = 50.0  # fall of the log of noise, or of a transform, beyond which it is left out
_CANCELS = 1e-12  # largest rounding error, relative to the density, that is let through
_PRODUCTS = 3e8  # of which powers are multiplied out at most


@jit
def _rise(e, lam, tau):
    """Log of the noise one sum higher, half below to half above a sum that is e below z."""
    return lam * (abs(e + 0.5) - abs(e - 0.5)) + tau * e


@jit
def _log_noise(low, high, middle, z, lam, tau, t):
    """Return sums, and the log of the tilted noise of each, relative to that of one of them."""
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
        base, more, spread = log_total(lw, k, 0.0, n, lp, t, omega)
        mean, variance = tilted(lw, k, t, pi)
        variance = (n + more) * variance + spread * mean * mean
        mean *= n + more
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
    """Tilted law of the sum from `first` on, as far as e goes, by `count` roots of unity.

    Returns it, the sizes of the terms of its product with e, added up, and the derivatives of this
    product by the log weights of a record's values and of the numbers.
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
        own = below * y if n > 0.0 else complex(1.0, 0.0)
        value = slope = complex(0.0, 0.0)
        for i in range(omega.size - 1, -1, -1):
            slope = slope * y + value
            value = value * y + omega[i]
        times = (1.0 if 2 * j in (0, count) else 2.0) / count
        step, h = roots[j].conjugate(), own * value * times
        at = transform = complex(0.0, 0.0)
        for i in range(e.size):
            if i % 64 == 0:  # without what rounding adds up to
                at = roots[(j * (first + i)) % count].conjugate()
            q[i] += h.real * at.real - h.imag * at.imag
            transform += e[i] * at
            at *= step
        size += abs(h) * abs(transform)
        transform *= times
        by_record = (n * below * value + own * slope) * transform
        for i in range(k.size):
            root = roots[(j * int(k[i])) % count]
            grad[i] += by_record.real * root.real - by_record.imag * root.imag
        if omega.size > 1:
            term = own * transform
            for i in range(omega.size):
                by_number[i] += term.real
                term *= y
    return q, size, grad * pi, by_number * omega


@jit
def _multiplied(pi, k, n, omega, least, log_e):
    """`_by_roots` by products of positive numbers, of all sums from `least` on.

    `log_e` has an entry for each; the largest of a possible sum is returned, too.
    """
    low = int(k.min())
    most = int(n) + omega.size - 1
    width = int(k.max()) - low
    law, before = np.zeros(most * width + 1), np.zeros(most * width + 1)
    of_sum, of_others = np.zeros(log_e.size), np.zeros((omega.size, law.size))
    law[0] = 1.0
    for number in range(most + 1):
        if number > 0:
            before[:] = law
            law[:] = 0.0
            for i in range(k.size):
                at, end = int(k[i]) - low, (number - 1) * width + 1
                law[at : at + end] += pi[i] * before[:end]
        i = number - int(n)
        if i >= 0:
            start, end = number * low - least, number * width + 1
            of_sum[start : start + end] += omega[i] * law[:end]
            of_others[i] = before
    top = -math.inf
    for s in range(log_e.size):
        if of_sum[s] > 0.0:
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
            part = omega[i] * pi[j] * np.dot(of_others[i, :end], e[start : start + end])
            grad[j] += number * part
            by_number[i] += part
    return of_sum * e, top, grad, by_number


@linked(f"Tuple((f8, f8, {V}, {V}, i8, {V}))({V}, {V}, f8, {V}, f8, f8, f8)")
def lattice_line(lw, k, n, lp, z, b, sd):
    """Log density of one noisy sum.

    Parameters
    ----------
    lw, k : log masses, normalised, and whole numbers.
    n, lp : the least number of records, and the log weights of n, n + 1, ... of them; [0] for a
        known number.
    z, b, sd : released value, scale of a Laplace noise, or standard deviation of a Gaussian one.

    Returns
    -------
    log density, its derivatives by z, lw and lp; the first of some sums, and the chance of each of
    them given the release.
    """
    grad, by_number = np.zeros(lw.size), np.zeros(lp.size)
    nothing = math.nan, 0.0, grad, by_number, 0, np.ones(1)
    [own] = np.nonzero(lw > -math.inf)
    [likely] = np.nonzero(lp > -math.inf)
    if likely.size == 0:
        return -math.inf, 0.0, grad, by_number, 0, np.ones(1)
    if own.size == 0 or math.isnan(lw.sum() + lp.sum() + z) or not max(b, sd) > 0.0:
        return nothing
    lam, tau = 1.0 / b if b > 0.0 else 0.0, 1.0 / (sd * sd) if sd > 0.0 else 0.0
    kept = slice(likely[0], likely[-1] + 1)
    n, lp, lw, k = n + likely[0], lp[kept], lw[own], k[own]
    pi, omega = np.empty(k.size), np.empty(lp.size)
    last = n + lp.size - 1.0
    least, most = min(n * k.min(), last * k.min()), max(n * k.max(), last * k.max())
    t, base, mean, variance = _tilt(lw, k, n, lp, z, lam, tau, least, most, pi, omega)
    start = 8.0 / math.sqrt(variance + 0.1)
    right, _ = extent(lw, k, 0.0, n, lp, mean, 0.0, t, base, start, 1.0, np.empty(lp.size))
    left, _ = extent(lw, k, 0.0, n, lp, mean, 0.0, t, base, start, -1.0, np.empty(lp.size))
    low, high = max(least, math.floor(mean - left)), min(most, math.ceil(mean + right))
    if not high - low < MOST:
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
    chance, size, found, numbered = _by_roots(pi, k, n, omega, count, e, int(s[0]))
    chance *= e
    total = chance.sum()
    if not 1e-16 * size < _CANCELS * total:
        sums = most - least + 1.0
        if last * sums * k.size > _PRODUCTS or sums * lp.size > _PRODUCTS / 10.0:
            return nothing
        s, log_e = _log_noise(least, most, middle, z, lam, tau, t)
        chance, top, found, numbered = _multiplied(pi, k, n, omega, int(least), log_e)
        total = chance.sum()
    chance = np.maximum(chance, 0.0) / total
    slope = -np.dot(chance, lam * np.sign(z - s) + tau * (z - s))
    for i in range(own.size):
        grad[own[i]] = found[i] / total
    by_number[kept] = numbered / total if lp.size > 1 else np.ones(1)
    return constant + top + math.log(total), slope, grad, by_number, int(s[0]), chance


@linked(f"Tuple((f8, {V}, {V}, {V}))({V}, {V}, f8, {V}, {V}, {V}, {V})")
def lattice_release(lw, k, n, lp, z, b, sd):
    """`lattice_line`, also of a release that depends on the number of records.

    Then z, b and sd have an entry for each number, and the derivatives by z, too.
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
    """Draw a sum of n records given its release; NaN where its density is not found."""
    logp, _, _, _, first, chance = lattice_line(lw, k, n, np.zeros(1), z, b, sd)
    if math.isnan(logp):
        return math.nan
    at = np.searchsorted(np.cumsum(chance), rng.random())
    return float(first + min(at, chance.size - 1))
