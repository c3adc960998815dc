r"""Exact draws of the counts of a table given noisy releases of them.

A move exchanges records between two cells j and l, of which t together are kept: the conditional
of :math:`c = n_j` on :math:`0, \ldots, t` is proportional to :math:`w_j(c)\, w_l(t - c)\,
\eta(z \mid c)`, with the prior's weights

- :math:`w(c) = p^c / c!` for given probabilities (a binomial count),
- :math:`w(c) = \Gamma(c + a) / c!` with the probabilities integrated out of a Dirichlet law (a
  beta-binomial count). For a < 1 this is not log-concave, but a mixture of log-concave weights:
  :math:`\Gamma(c + a) \Gamma(1 - a) / c! = \int_0^1 u^{c + a - 1} (1 - u)^{-a} du`; drawing
  :math:`u \mid c \sim \mathrm{Beta}(c + a, 1 - a)` first leaves the weight :math:`u^c`.

The noise enters as ``log_eta(counts, rows, *data)``, the log density of the release's entries
`rows` (or of all entries); nothing is assumed of it but, for `concave`, that it is log-concave
along every move. A log-concave mass is drawn from by rejection, with an envelope that is flat
around the mode and exponential beyond, at a cost that does not depend on t; any other mass is
listed.
"""

import math
from collections.abc import Callable

import numpy as np

from pymc_dp.kernels import jit, part
from pymc_dp.kernels.draws.listed import draw_listed
from pymc_dp.kernels.functions.count_masses import log_binomial, stirling_error

_TINY_LOG = -1e300  # stands for the log of a probability that underflows
_MOST_LISTED = 1e6  # values that are listed to find a possible one
NO_DIRECTIONS = np.empty((0, 1))


@jit
def log_rising(c, a):
    """Log of Gamma(c + a) / c!, c >= 0, a > 0, accurate for large c."""
    x, d = c + 1.0, a - 1.0
    if x + d < 12.0 or x < 12.0:
        return math.lgamma(c + a) - math.lgamma(x)
    rise = (x + d - 0.5) * math.log1p(d / x) - d
    return rise + d * math.log(x) + stirling_error(x + d) - stirling_error(x)


@jit
def _log_weight(c, a, log_u):
    """Log weight of a cell with its probability integrated out; see the module."""
    return log_rising(c, a) if math.isnan(log_u) else c * log_u


@jit
def _log_mixing(rng, c, a, concave):
    """Draw log u, u ~ Beta(c + a, 1 - a), where log-concavity needs it; NaN where not."""
    if a >= 1.0 or not concave:
        return math.nan
    x, y = rng.standard_gamma(c + a), rng.standard_gamma(1.0 - a)
    return -math.log1p(y / x) if x > 0.0 else _TINY_LOG


@jit
def log_prior(counts, weights, integrated):
    """Return the log probability of a table, up to a constant of its total."""
    prior = 0.0
    for c, w in zip(counts, weights):  # noqa: B905
        if integrated:
            prior += log_rising(c, w)
        elif c > 0.0:
            prior += c * math.log(w) - math.lgamma(c + 1.0) if w > 0.0 else -math.inf
    return prior


def make_table_draw(log_eta: Callable) -> Callable:
    """Return the function that draws a table from all of its states, where moves leave gaps.

    Parameters
    ----------
    log_eta : compiled callable ``(counts, rows, *data)``
        Log density of the release, all entries; see the module.

    Returns
    -------
    callable
        As that of `make_table_sweep`, with all states of the table, one a row, instead of `slopes`.
    """

    @jit
    def draw_table(rng, counts, states, weights, integrated, concave, rounds, data):
        rows = np.empty(0, dtype=np.int64)
        values = np.empty(states.shape[0])
        for i in range(values.size):
            values[i] = log_prior(states[i], weights, integrated)
            if values[i] > -math.inf:
                values[i] += log_eta(states[i], rows, *data)
        drawn = draw_listed(rng, values)
        if drawn < 0:
            return False
        counts[:] = states[drawn]
        return True

    return draw_table


def make_table_sweep(log_eta: Callable, directions: np.ndarray = NO_DIRECTIONS) -> Callable:
    """Return the function that draws a table's counts given a release of them, in place.

    Parameters
    ----------
    log_eta : compiled callable ``(counts, rows, *data)``
        Log density of the release; see the module.
    directions : whole numbers of sum zero, one row each
        Along which more than two cells move at once, where exact releases hold pairs.

    Returns
    -------
    callable
        See its docstring.
    """

    @part
    def log_mass(c, data, counts, rows, j, j_prior, k, k_prior, integrated):
        """Log mass of cell j holding c and cell k the rest of `j_prior[0]`; writes the counts."""
        total = j_prior[0]
        counts[j], counts[k] = c, total - c
        if integrated:
            prior = _log_weight(c, j_prior[1], j_prior[2]) + _log_weight(total - c, *k_prior)
        else:
            prior = log_binomial(c, total, *k_prior)
        if prior == -math.inf:
            return prior
        return prior + log_eta(counts, rows, *data)

    @part
    def rises(c, start, *args):
        """Whether the mass at c + 1 is larger than at c, or c is below all possible counts."""
        here = log_mass(c, *args)
        return (here == -math.inf and c < start) or log_mass(c + 1.0, *args) > here

    @part
    def find_mode(start, total, *args):
        """First c at which a log-concave mass does not rise any more: gallop, then bisect.

        If the mass at `start` is zero, the direction to the mode is unknown, and any c may result.
        """
        step = 1.0
        if start < total and rises(start, start, *args):
            low = start
            while True:
                high = min(low + step, total)
                if high == total or not rises(high, start, *args):
                    break
                low, step = high, 2.0 * step
        else:
            high = start
            while True:
                low = high - step
                if low < 0.0:
                    low = -1.0
                    break
                if rises(low, start, *args):
                    break
                high, step = low, 2.0 * step
        while high - low > 1.0:
            middle = math.floor(0.5 * (low + high))
            if rises(middle, start, *args):
                low = middle
            else:
                high = middle
        return high

    @part
    def find_tail(mode, top, side, room, *args):
        """Find where a log-concave mass has dropped by one, and an exponential bound beyond.

        Returns the distance d from the mode, the log of the bound at d relative to the mode, and
        its slope. The chord that gives the slope spans half of d: rounding does not decide it.
        """
        near, far = 0.0, 1.0
        while far < room and top - log_mass(mode + side * far, *args) < 1.0:
            near, far = far, 2.0 * far
        far = min(far, room)
        if far < 1.0 or top - log_mass(mode + side * far, *args) < 1.0:
            return room + 1.0, -math.inf, -math.inf
        while far - near > max(1.0, 0.1 * far):
            middle = math.floor(0.5 * (near + far))
            if top - log_mass(mode + side * middle, *args) < 1.0:
                near = middle
            else:
                far = middle
        half = math.floor(0.5 * far)
        height = log_mass(mode + side * far, *args) - top
        if height == -math.inf:
            return far, height, height
        rise = log_mass(mode + side * half, *args) - top - height
        return far, height, -rise / (far - half)

    @part
    def draw_any(rng, total, *args):
        """Draw from any mass by listing all of it; -1 if it is zero or NaN."""
        values = np.empty(int(total) + 1)
        for c in range(values.size):
            values[c] = log_mass(float(c), *args)
        return float(draw_listed(rng, values))

    @part
    def draw_concave(rng, start, total, *args):
        """Draw from a log-concave mass by rejection; -1 if it is zero or NaN."""
        mode = find_mode(start, total, *args)
        top = log_mass(mode, *args)
        if top == -math.inf and total <= _MOST_LISTED:
            return draw_any(rng, total, *args)
        if not abs(top) < math.inf:
            return -1.0
        right, right_height, right_slope = find_tail(mode, top, 1.0, total - mode, *args)
        left, left_height, left_slope = find_tail(mode, top, -1.0, mode, *args)
        flat = left + right - 1.0
        right_mass = math.exp(right_height) / -math.expm1(right_slope)
        left_mass = math.exp(left_height) / -math.expm1(left_slope)
        while True:
            u = rng.random() * (flat + right_mass + left_mass)
            if u < flat:
                offset, height = math.floor(u) - (left - 1.0), 0.0
            else:
                side = 1.0 if u < flat + right_mass else -1.0
                first, height, slope = right, right_height, right_slope
                if side < 0.0:
                    first, height, slope = left, left_height, left_slope
                further = math.floor(math.log(1.0 - rng.random()) / slope)
                offset, height = side * (first + further), height + slope * further
            c = mode + offset
            if c < 0.0 or c > total:
                continue
            if math.log(1.0 - rng.random()) + height <= log_mass(c, *args) - top:
                return c

    @part
    def draw_pair(rng, counts, rows, j, k, weights, integrated, concave, data):
        """Draw the counts of cells j and k given their sum; False leaves them as they were."""
        start, rest = counts[j], counts[k]
        total = start + rest
        if total == 0.0:
            return True
        a, b = weights[j], weights[k]
        if integrated:
            j_prior = (total, a, _log_mixing(rng, start, a, concave))
            k_prior = (b, _log_mixing(rng, rest, b, concave))
        else:
            j_prior = (total, 0.0, 0.0)
            k_prior = (a / (a + b), b / (a + b))
        args = (data, counts, rows, j, j_prior, k, k_prior, integrated)
        drawn = draw_concave(rng, start, total, *args) if concave else draw_any(rng, total, *args)
        if drawn < 0.0:
            counts[j], counts[k] = start, rest
            return False
        counts[j], counts[k] = drawn, total - drawn
        return True

    @part
    def draw_along(rng, counts, direction, rows, weights, integrated, data):
        """Draw the counts on their line along a direction, by listing all of them."""
        low, high = -math.inf, math.inf
        for i in range(counts.size):
            if direction[i] > 0.0:
                low = max(low, -math.floor(counts[i] / direction[i]))
            elif direction[i] < 0.0:
                high = min(high, math.floor(-counts[i] / direction[i]))
        if high - low > _MOST_LISTED:
            return True  # the line is as long from each of its points
        start = counts.copy()
        values = np.empty(int(high - low) + 1)
        for c in range(values.size):
            counts[:] = start + (low + c) * direction
            values[c] = log_prior(counts, weights, integrated)
            if values[c] > -math.inf:
                values[c] += log_eta(counts, rows, *data)
        drawn = draw_listed(rng, values)
        counts[:] = start + (low + drawn if drawn >= 0 else 0.0) * direction
        return drawn >= 0

    @jit
    def sweep_table(rng, counts, slopes, weights, integrated, concave, rounds, data):
        """Draw counts, two cells at a time given their sum, in a random order of the cells.

        Every round pairs each cell with the next one of a random cycle; two cells are one pair.

        Parameters
        ----------
        rng : numpy Generator
        counts : float array, updated in place.
        slopes : matrix (entries of the release, cells) if the release is linear in the counts and
            log_eta uses the entries `rows` only; a matrix without rows if log_eta uses all.
        weights : the cells' probabilities, or the parameters of their Dirichlet law.
        integrated : whether `weights` are the latter.
        concave : whether log_eta is concave along every move; if not, all values are listed.
        rounds : int
        data : tuple, passed to log_eta.

        Returns
        -------
        bool
            False if the mass is zero or NaN.
        """
        cells = counts.size
        order = np.arange(cells)
        rows = np.empty(slopes.shape[0], dtype=np.int64)
        for _ in range(rounds if cells > 2 else 1):
            for i in range(cells - 1, 0, -1):
                other = int(rng.random() * (i + 1))
                order[i], order[other] = order[other], order[i]
            for i in range(cells if cells > 2 else cells - 1):
                j, k = order[i], order[(i + 1) % cells]
                size = 0
                for row in range(slopes.shape[0]):
                    if slopes[row, j] != slopes[row, k]:
                        rows[size] = row
                        size += 1
                if not draw_pair(
                    rng, counts, rows[:size], j, k, weights, integrated, concave, data
                ):
                    return False
            for d in range(len(directions)):
                every = np.arange(slopes.shape[0])
                if not draw_along(rng, counts, directions[d], every, weights, integrated, data):
                    return False
        return True

    return sweep_table
