r"""Draws of a table of counts along directions in which several cells move at once.

Where cells share noisy sums, :math:`X'y` of a regression say, a cell alone cannot move by more than
the noise lets its sums move. A direction v, whole numbers one for each cell, moves the counts y to
y + c v. Given all directions but one, c has for independent counts f_i the law

.. math::

    p(c \mid \ldots) \propto \prod_i f_i(y_i + c v_i) \prod_m \eta_m(z_m \mid S_m + c\, (A v)_m),

which a slice sampler on the whole numbers leaves invariant (Neal 2003), at a cost that does not
depend on the width of that law; the law need not be log-concave. `short_directions` chooses the
directions: the vectors of a reduced basis of the lattice of counts (Lenstra, Lenstra and Lovász
1982), in the metric of their precision given the releases. With little noise, the shortest vectors
are those that leave all sums unchanged; with much noise they are single cells.

Cells with a fixed total move along directions of sum zero. There a multinomial law is that of
independent Poisson counts, and with its probabilities integrated out of a Dirichlet law that of
independent counts of weights Gamma(y + a) / y!, `RISING`.
"""

import math
from collections.abc import Callable
from functools import cache

import numpy as np
from numba.np.unsafe.ndarray import to_fixed_tuple

from pymc_dp.kernels import jit, part
from pymc_dp.kernels.counts.exchanges import log_rising
from pymc_dp.kernels.counts.laws import POISSON, CountLaw
from pymc_dp.kernels.counts.tables import sums_of
from pymc_dp.kernels.draws.lines import make_line_draw

_LOVASZ = 0.75
_MOST_STEPS = 100_000  # of a reduction, whose basis is then taken as it is


@jit
def short_directions(metric):
    """Return a reduced basis of the lattice of whole numbers, in rows; `metric` is Q of v'Qv."""
    size = metric.shape[0]
    basis = np.eye(size)
    # Coefficients and squared lengths of the Gram-Schmidt vectors.
    mu, length = np.eye(size), np.zeros(size)
    for i in range(size):
        for j in range(i):
            inner = metric[i, j]
            for k in range(j):
                inner -= mu[i, k] * mu[j, k] * length[k]
            mu[i, j] = inner / length[j]
        length[i] = metric[i, i]
        for k in range(i):
            length[i] -= mu[i, k] ** 2 * length[k]
    k = 1
    for _ in range(_MOST_STEPS):
        if k >= size:
            break
        for j in range(k - 1, -1, -1):
            times = np.round(mu[k, j])
            if times != 0.0:
                basis[k] -= times * basis[j]
                mu[k, : j + 1] -= times * mu[j, : j + 1]
        m = mu[k, k - 1]
        new = length[k] + m * m * length[k - 1]
        if new >= _LOVASZ * length[k - 1]:
            k += 1
            continue
        for j in range(size):
            basis[k - 1, j], basis[k, j] = basis[k, j], basis[k - 1, j]
        mu[k, k - 1] = m * length[k - 1] / new
        length[k] *= length[k - 1] / new
        length[k - 1] = new
        for j in range(k - 1):
            mu[k - 1, j], mu[k, j] = mu[k, j], mu[k - 1, j]
        for i in range(k + 1, size):
            above = mu[i, k]
            mu[i, k] = mu[i, k - 1] - m * above
            mu[i, k - 1] = above + mu[k, k - 1] * mu[i, k]
        k = max(k - 1, 1)
    return basis


@jit
def _rising_log_mass(y, theta):
    return log_rising(y, theta[0])


# No law, but a weight: for cells whose total is fixed, and in moves along directions only.
RISING = POISSON._replace(name="rising", log_mass=_rising_log_mass)


@cache
def make_direction_sweep(law: CountLaw) -> Callable:
    """Make ``(rng, y, theta, directions, widths, releases, rounds)``: moves along each in turn.

    Column i of `theta` holds the law's parameters for cell i, `widths` the approximate width of the
    slice along each direction, in steps. It returns False where the counts are impossible.
    """
    log_mass, support, width = law.log_mass, law.support, law.n_parameters

    @part
    def log_density(c, y, theta, cells, steps, releases, sums, moved, slopes):
        """Return the log density c steps along a direction."""
        total = 0.0
        for i, step in zip(cells, steps):  # noqa: B905  (numba has no strict=)
            column: tuple = to_fixed_tuple(theta[:, i], width)
            value, (low, high) = y[i] + step * c, support(column)
            if not low <= value <= high:
                return -math.inf
            total += log_mass(value, column)
        for m, slope in zip(moved, slopes):  # noqa: B905
            e = releases.z[m] - sums[m] - slope * c
            total -= releases.lam[m] * abs(e) + 0.5 * releases.tau[m] * e * e
        return total

    draw = make_line_draw(log_density)

    @jit
    def direction_sweep(rng, y, theta, directions, widths, releases, rounds):
        sums = sums_of(y, releases)
        lines = []
        for direction in directions:
            cells = np.flatnonzero(direction)
            steps = direction[cells]
            slopes = np.zeros(sums.size)
            for i, step in zip(cells, steps):  # noqa: B905
                for e in range(releases.first[i], releases.first[i + 1]):
                    slopes[releases.which[e]] += releases.weight[e] * step
            moved = np.flatnonzero(slopes)
            lines.append((cells, steps, moved, slopes[moved]))
        for _ in range(rounds):
            for d in range(widths.size):
                cells, steps, moved, slopes = lines[d]
                line = (y, theta, cells, steps, releases, sums, moved, slopes)
                c = draw(rng, -math.inf, math.inf, widths[d], *line)
                if math.isnan(c):
                    return False
                if c != 0.0:
                    for i, step in zip(cells, steps):  # noqa: B905
                        y[i] += c * step
                    for m, slope in zip(moved, slopes):  # noqa: B905
                        sums[m] += c * slope
        return True

    return direction_sweep
