r"""Sums of independent binomial counts of different probabilities, released with noise.

The law f of :math:`S = \sum_j N_j`, :math:`N_j \sim \mathrm{Binomial}(n_j, p_j)`, is log-concave,
and so is the noise :math:`g(s) = \eta(z \mid s)`. With the tilt t, both become

.. math::

    f_t(s) = f(s)\, e^{ts} / M(t), \qquad g_t(s) = \eta(z \mid s)\, e^{-ts}, \qquad
    M(t) = \prod_j (q_j + p_j e^t)^{n_j},

and f_t is the law of such a sum again, of the probabilities :math:`p_j e^t / (q_j + p_j e^t)`. We
choose the t for which g_t is largest at the mean of f_t. The mode of f_t is next to its mean
(Darroch 1964), so that :math:`\sum_s f_t g_t` is at least about :math:`\max f_t \max g_t`. The
error of the transform of f_t, a rounding relative to :math:`\max f_t`, is then a rounding of the
sum, too, wherever z is.

The transform takes a window of L counts that has all of f_t but a rounding, by Bernstein's
inequality, and those of the L frequencies at which the characteristic function of f_t has not
vanished: some 30 where S is spread out. The derivative by a probability needs the law of the sum
without one trial of its cell,

.. math::

    \partial_{p_j} \log p(z) = n_j \sum_s (f^{-j}(s - 1) - f^{-j}(s))\, \eta(z \mid s) / p(z),

whose characteristic function is the product over all other trials.
"""

import math
from collections.abc import Callable

import numpy as np

from pymc_dp.kernels import jit
from pymc_dp.kernels.counts.noise import CountNoise

_STEEPEST = 700.0  # larger tilts underflow or overflow
_NEAR = 0.02  # error of a tilt, in units of one over the standard deviation of the sum
_LOG_REST = 44.5  # -log of the mass that may lie outside of a window, up to a factor
_VANISHED = 1e-40  # squared modulus at which a characteristic function counts as zero
_FEW = 32  # number of trials up to which powers are taken by squaring


@jit
def _tilted(p, t):
    """Return the probability p e^t / (q + p e^t)."""
    if t <= 0.0:
        weight = math.exp(t)
        return p * weight / (1.0 - p + p * weight)
    weight = math.exp(-t)
    return p / (p + (1.0 - p) * weight)


@jit
def _moments(trials, chance, t):
    """Return mean and variance of the tilted sum."""
    mean, variance = 0.0, 0.0
    for n, p in zip(trials, chance):  # noqa: B905  (numba has no strict=)
        tilted = _tilted(p, t)
        mean += n * tilted
        variance += n * tilted * _tilted(1.0 - p, -t)
    return mean, variance


@jit
def _log_scale(trials, chance, t):
    """Return log M(t)."""
    total = 0.0
    for n, p in zip(trials, chance):  # noqa: B905
        change = p * math.expm1(t)
        inside = math.log1p(change) if abs(change) < 0.5 else math.log(1.0 - p + p * math.exp(t))
        total += n * inside
    return total


@jit
def _power(w, n):
    """Return a complex number to a small whole power."""
    result = 1.0 + 0.0j
    while n > 0:
        if n & 1:
            result *= w
        w *= w
        n >>= 1
    return result


@jit
def _factor(n, p, half, sine):
    """Return the characteristic functions of n trials and of n - 1 trials at a frequency u.

    `half` is sin^2(u / 2), and `sine` is sin(u).
    """
    w = complex(1.0 - 2.0 * p * half, p * sine)
    if n == 1.0:
        return w, 1.0 + 0.0j
    if n <= _FEW:
        less = _power(w, int(n) - 1)
        return less * w, less
    # Squaring would multiply the rounding error of w by n.
    log_modulus = 0.5 * math.log1p(-4.0 * p * (1.0 - p) * half)
    angle = math.atan2(w.imag, w.real)
    size, total_angle = math.exp((n - 1.0) * log_modulus), (n - 1.0) * angle
    less = complex(size * math.cos(total_angle), size * math.sin(total_angle))
    return less * w, less


@jit
def _window(mean, variance, total):
    """Return the first of the counts that hold the tilted sum, and an odd number of them."""
    rest = _LOG_REST + math.log1p(math.sqrt(variance))
    reach = np.ceil(rest / 3.0 + math.sqrt(rest * rest / 9.0 + 2.0 * rest * variance))
    first = max(np.floor(mean) - reach, 0.0)
    last = min(np.floor(mean) + reach + 1.0, total)
    length = int(last - first) + 1
    return first, length + 1 - length % 2


@jit
def _roots(length):
    angles = 2.0 * math.pi / length * np.arange(length)
    return np.cos(angles) + 1j * np.sin(angles)


@jit
def _transform(trials, tilted, first, roots):
    """Return the characteristic function of the sum minus `first`, up to where it vanishes."""
    length = roots.size
    transform = np.empty((length + 1) // 2, dtype=np.complex128)
    start = int(first) % length
    for k in range(transform.size):
        half, sine = math.sin(math.pi * k / length) ** 2, roots[k].imag
        product = 1.0 + 0.0j
        for n, p in zip(trials, tilted):  # noqa: B905
            product *= _factor(n, p, half, sine)[0]
        if product.real**2 + product.imag**2 < _VANISHED:  # it falls with the frequency
            return transform[:k]
        transform[k] = product * roots[-(k * start) % length]
    return transform


@jit
def _masses(transform, roots):
    """Return the masses of a window, given its characteristic function."""
    length = roots.size
    masses = np.full(length, 0.5)
    for k in range(1, transform.size):
        place = 0
        for s in range(length):
            masses[s] += transform[k].real * roots[place].real
            masses[s] += transform[k].imag * roots[place].imag
            place += k
            if place >= length:
                place -= length
    return 2.0 / length * masses


def _make_window(noise: CountNoise) -> Callable:
    """Make ``(z, p, trials, chance, ones)``, the first part of sums and draws.

    Cells that are all zeros or all ones are taken out first; the latter are added to `ones`. It
    returns the indices of the other cells, their trials and probabilities, the tilt, the tilted
    probabilities, the first count of the window, ones included, the roots of unity of its length,
    the characteristic function, the log of the largest g_t in it, and g_t divided by that.
    """
    log_noise, find_center = noise.log_noise, noise.center

    @jit
    def gain(z, y, p):
        here = log_noise(z, y, p)
        if here == -math.inf:  # z cannot have come from y: tilt towards the center
            return _STEEPEST if y < find_center(z, p) else -_STEEPEST
        return min(max(log_noise(z, y + 1.0, p) - here, -_STEEPEST), _STEEPEST)

    @jit
    def find_tilt(z, p, trials, chance, ones, total):
        if total == 0.0:
            return 0.0
        low, high = gain(z, ones + total - 1.0, p), gain(z, ones, p)
        tilt = 0.5 * (low + high)
        while True:
            mean, variance = _moments(trials, chance, tilt)
            if not (high - low) * math.sqrt(1.0 + variance) > _NEAR:
                return tilt
            if gain(z, ones + min(np.floor(mean), total - 1.0), p) > tilt:
                low = tilt
            else:
                high = tilt
            tilt = 0.5 * (low + high)

    @jit
    def window(z, p, trials, chance, ones):
        free = np.flatnonzero((trials > 0.0) & (chance > 0.0) & (chance < 1.0))
        ones = ones + trials[chance == 1.0].sum()
        trials, chance = trials[free], chance[free]
        total = trials.sum()
        tilt = find_tilt(z, p, trials, chance, ones, total)
        tilted = np.empty(chance.size)
        for j in range(chance.size):
            tilted[j] = _tilted(chance[j], tilt)
        mean, variance = _moments(trials, chance, tilt)
        first, length = _window(mean, variance, total)
        log_g = np.full(length, -math.inf)
        for s in range(length):
            if first + s <= total:
                log_g[s] = log_noise(z, ones + first + s, p) - tilt * (first + s)
        top = log_g.max()
        g = np.exp(log_g - top) if top > -math.inf else np.zeros(length)
        roots = _roots(length)
        transform = _transform(trials, tilted, first, roots)
        return free, trials, chance, tilt, tilted, ones + first, roots, transform, top, g

    return window


@jit
def _possible(center, trials, chance):
    for n, p in zip(trials, chance):  # noqa: B905
        if not (0.0 <= p <= 1.0 and 0.0 <= n < math.inf and n == np.floor(n)):
            return False
    return not math.isnan(center)


@jit
def _gradient(trials, chance, tilted, tilt, transform, g, first, roots, total):
    """Return the derivatives by the probabilities of cells, given the sum over f_t g_t."""
    cells, length = chance.size, roots.size
    up, stay, by_chance = np.empty(cells), np.empty(cells), np.empty(cells)
    for j in range(cells):
        up[j] = 1.0 / ((1.0 - chance[j]) * math.exp(-tilt) + chance[j])
        stay[j] = 1.0 / (1.0 - chance[j] + chance[j] * math.exp(tilt))
        by_chance[j] = 0.5 * g.sum() * (up[j] - stay[j])
    without, whole = np.empty(cells, np.complex128), np.empty(cells, np.complex128)
    for k in range(1, transform.size):
        root, half = roots[k], math.sin(math.pi * k / length) ** 2
        product, place = 1.0 + 0.0j, 0
        for j in range(cells):
            whole[j], less = _factor(trials[j], tilted[j], half, root.imag)
            without[j] = product * less
            product *= whole[j]
        noise = 0.0 + 0.0j  # the transform of g
        for s in range(length):
            noise += g[s] * roots[place].conjugate()
            place += k
            if place >= length:
                place -= length
        product = roots[-(k * first) % length] * noise
        for j in range(cells - 1, -1, -1):
            rest = without[j] * product
            by_chance[j] += up[j] * (rest * root).real - stay[j] * rest.real
            product *= whole[j]
    return 2.0 / length * trials * by_chance / total


def make_binomial_sums(noise: CountNoise, unpack: Callable) -> Callable:
    """Make ``(rows, z, trials, chance, entry)`` to the log density of each entry of a release.

    Cell j, with trials[j] and chance[j], is part of the sum entry[j]; `entry` is sorted. Entry i
    has the noise ``unpack(rows[:, i])``. The derivatives by z and by the probabilities are
    returned, too.
    """
    slope, find_window, find_center = noise.slope, _make_window(noise), noise.center

    @jit
    def density_ratio(z, p, trials, chance, log_p, more):
        """Return the ratio of the density with `more` added to the sum, to the density."""
        _, n, q, tilt, _, _, roots, transform, top, g = find_window(z, p, trials, chance, more)
        total = (_masses(transform, roots) * g).sum()
        log_there = _log_scale(n, q, tilt) + top + math.log(max(total, 0.0))
        return math.exp(min(log_there - log_p, _STEEPEST))

    @jit
    def one_sum(z, p, trials, chance, by_chance):
        by_chance[:] = math.nan
        if not _possible(find_center(z, p), trials, chance):
            return math.nan, math.nan
        free, n, q, tilt, tilted, first, roots, transform, top, g = find_window(
            z, p, trials, chance, 0.0
        )
        weights = _masses(transform, roots) * g
        total, slopes = weights.sum(), 0.0
        if not total > 0.0:
            return -math.inf, math.nan
        for s in range(g.size):
            if g[s] > 0.0:
                slopes += weights[s] * slope(z, first + s, p)
        log_p = _log_scale(n, q, tilt) + top + math.log(total)
        # Cells with probability 0 or 1: the derivative adds 1 to the sum, or takes 1 away.
        zeros, ones = (trials * (chance == 0.0)).sum(), (trials * (chance == 1.0)).sum()
        above = density_ratio(z, p, trials, chance, log_p, 1.0) if zeros > 0.0 else 1.0
        below = density_ratio(z, p, trials, chance, log_p, -1.0) if ones > 0.0 else 1.0
        for j in range(chance.size):
            edge = above - 1.0 if chance[j] == 0.0 else 1.0 - below
            by_chance[j] = trials[j] * edge if trials[j] > 0.0 else 0.0
        by_chance[free] = _gradient(
            n, q, tilted, tilt, transform, g, int(first - ones), roots, total
        )
        return log_p, slopes / total

    @jit
    def binomial_sums(rows, z, trials, chance, entry):
        first = np.searchsorted(entry, np.arange(z.size + 1))
        log_p, by_z, by_chance = np.empty(z.size), np.empty(z.size), np.empty(chance.size)
        for i in range(z.size):
            a, b = first[i], first[i + 1]
            log_p[i], by_z[i] = one_sum(
                z[i], unpack(rows[:, i]), trials[a:b], chance[a:b], by_chance[a:b]
            )
        return log_p, by_z, by_chance

    return binomial_sums


def make_binomial_sum_draws(noise: CountNoise, unpack: Callable) -> Callable:
    """Make ``(rng, rows, z, trials, chance, entry)`` to exact draws of the sums of all entries."""
    find_window, find_center = _make_window(noise), noise.center

    @jit
    def draws(rng, rows, z, trials, chance, entry):
        first = np.searchsorted(entry, np.arange(z.size + 1))
        drawn = np.full(z.size, math.nan)
        for i in range(z.size):
            a, b = first[i], first[i + 1]
            n, chances, p = trials[a:b], chance[a:b], unpack(rows[:, i])
            if not _possible(find_center(z[i], p), n, chances):
                continue
            _, _, _, _, _, start, roots, transform, _, g = find_window(z[i], p, n, chances, 0.0)
            reached = np.cumsum(g * np.maximum(_masses(transform, roots), 0.0))
            if reached[-1] > 0.0:
                left = reached[-1] * (1.0 - rng.random())
                drawn[i] = start + np.searchsorted(reached, left)
        return drawn

    return draws
