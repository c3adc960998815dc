"""Laws of counts as `kernels.counts.sums` takes them: log masses, and ratios of masses.

Every law is a `CountLaw` of compiled functions; theta is the tuple of its parameters.
"""

import math
from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from pymc_dp.kernels import jit
from pymc_dp.kernels.functions.count_masses import (
    HALF_LOG_2PI,
    deviance,
    log_binomial,
    log_poisson,
    stirling_error,
)
from pymc_dp.kernels.functions.gamma_mass import log_minus_digamma


@jit
def _one(y, theta):
    return 1.0


@jit
def zero(y, theta):
    """Return 0: the score is linear in y."""
    return 0.0


@jit
def _no_score(y, t, theta):
    return ()


@jit
def _no_edge(above, below, theta):
    return ()


class CountLaw(NamedTuple):
    """A law f on consecutive integers whose ratios f(y + 1) / f(y) are cheap.

    Attributes
    ----------
    name : for messages.
    n_parameters : the number of parameters.
    fixed : the number of parameters, the first ones, without derivatives.
    valid : ``(theta)`` to whether theta has valid values.
    support : ``(theta)`` to the smallest and the largest count.
    mode : ``(theta)`` to about the mode.
    log_mass : ``(y, theta)`` to log f(y).
    odds : ``(y, theta)`` to two numbers, the first over the second f(y + 1) / f(y).
    score : ``(y, T, theta)`` to the derivatives of log f by the parameters beyond `fixed`.
    edge : ``(above, below, theta)`` to the derivatives of log sum_v f(v) g(v) where f has
        all its mass at one y: `above` is g(y + 1) / g(y), `below` g(y - 1) / g(y).
    growth : ``(y, theta)`` to the largest ratio at v >= y over that at y; 1 exactly where f is
        log-concave.
    change : ``(y, theta)`` to T(y + 1) - T(y), of the part T of the score that is not linear in y.
    start : ``(y, theta)`` to T(y).
    """

    name: str
    n_parameters: int
    fixed: int
    valid: Callable
    support: Callable
    mode: Callable
    log_mass: Callable
    odds: Callable
    score: Callable = _no_score
    edge: Callable = _no_edge
    growth: Callable = _one
    change: Callable = zero
    start: Callable = zero


# --- Poisson(mu) --------------------------------------------------------------------------------


@jit
def _poisson_valid(theta):
    return 0.0 <= theta[0] < math.inf


@jit
def _poisson_support(theta):
    return 0.0, math.inf if theta[0] > 0.0 else 0.0


@jit
def _poisson_mode(theta):
    return np.floor(theta[0])


@jit
def _poisson_log_mass(y, theta):
    return log_poisson(y, theta[0])


@jit
def _poisson_odds(y, theta):
    return theta[0], y + 1.0


@jit
def _poisson_score(y, t, theta):
    return (y / theta[0] - 1.0,)


@jit
def _poisson_edge(above, below, theta):
    return (above - 1.0,)


POISSON = CountLaw(
    "poisson",
    1,
    0,
    _poisson_valid,
    _poisson_support,
    _poisson_mode,
    _poisson_log_mass,
    _poisson_odds,
    _poisson_score,
    _poisson_edge,
)

# --- Binomial(n, p) -----------------------------------------------------------------------------


@jit
def _binomial_valid(theta):
    n, p = theta
    return n >= 0.0 and n == np.floor(n) and n < math.inf and 0.0 <= p <= 1.0


@jit
def _binomial_support(theta):
    n, p = theta
    return n if p == 1.0 else 0.0, 0.0 if p == 0.0 else n


@jit
def _binomial_mode(theta):
    n, p = theta
    return min(np.floor((n + 1.0) * p), n)


@jit
def _binomial_log_mass(y, theta):
    n, p = theta
    return log_binomial(y, n, p, 1.0 - p)


@jit
def _binomial_odds(y, theta):
    n, p = theta
    return (n - y) * p, (y + 1.0) * (1.0 - p)


@jit
def _binomial_score(y, t, theta):
    n, p = theta
    return ((y / n - p) / (p * (1.0 - p)) * n if n > 0.0 else 0.0,)


@jit
def _binomial_edge(above, below, theta):
    n, p = theta
    if n == 0.0:
        return (0.0,)
    return (n * (above - 1.0) if p == 0.0 else n * (1.0 - below),)


BINOMIAL = CountLaw(
    "binomial",
    2,
    1,
    _binomial_valid,
    _binomial_support,
    _binomial_mode,
    _binomial_log_mass,
    _binomial_odds,
    _binomial_score,
    _binomial_edge,
)

# --- NegativeBinomial(p, r, q = 1 - p), failures before the r-th success --------------------------
# Derivatives by p go through q, which has all digits where p is nearly 1.


@jit
def _negative_binomial_valid(theta):
    p, r, q = theta
    return 0.0 < r < math.inf and 0.0 < p <= 1.0 and 0.0 <= q < 1.0


@jit
def _negative_binomial_support(theta):
    return 0.0, math.inf if theta[2] > 0.0 else 0.0


@jit
def _negative_binomial_mode(theta):
    p, r, q = theta
    return np.floor((r - 1.0) * q / p) if r > 1.0 else 0.0


@jit
def _log(p, q):
    return math.log1p(-q) if q < 0.5 else math.log(p)


@jit
def _negative_binomial_log_mass(y, theta):
    p, r, q = theta
    if y == 0.0:
        return r * _log(p, q)
    # `log_binomial` of r successes among y + r trials, times r / (y + r), but computed from y and
    # r, since y is lost in y + r where r is large.
    n, excess = y + r, y * p - r * q
    ways = stirling_error(n) - stirling_error(r) - stirling_error(y)
    ways += 0.5 * math.log(r / n / y) - HALF_LOG_2PI
    return ways - deviance(-excess, n * p) - deviance(excess, n * q)


@jit
def _negative_binomial_odds(y, theta):
    return theta[2] * (y + theta[1]), y + 1.0


@jit
def _negative_binomial_growth(y, theta):
    r = theta[1]
    return (y + 1.0) / (y + r) if r < 1.0 else 1.0


@jit
def _negative_binomial_change(y, theta):
    return 1.0 / (y + theta[1])


@jit
def _negative_binomial_start(y, theta):
    r = theta[1]  # digamma(r + y) - digamma(r)
    if y > 30.0:
        return math.log1p(y / r) - log_minus_digamma(r + y) + log_minus_digamma(r)
    total = 0.0
    for j in range(int(y)):
        total += 1.0 / (r + j)
    return total


@jit
def _negative_binomial_score(y, t, theta):
    p, r, q = theta
    return t + _log(p, q), (y * p - r * q) / (p * q)


@jit
def _negative_binomial_edge(above, below, theta):
    return 0.0, theta[1] * (above - 1.0)


NEGATIVE_BINOMIAL = CountLaw(
    "negative_binomial",
    3,
    1,
    _negative_binomial_valid,
    _negative_binomial_support,
    _negative_binomial_mode,
    _negative_binomial_log_mass,
    _negative_binomial_odds,
    _negative_binomial_score,
    _negative_binomial_edge,
    _negative_binomial_growth,
    _negative_binomial_change,
    _negative_binomial_start,
)

# --- Geometric(p), trials until the first success -------------------------------------------------


@jit
def _geometric_valid(theta):
    return 0.0 < theta[0] <= 1.0


@jit
def _geometric_support(theta):
    return 1.0, math.inf if theta[0] < 1.0 else 1.0


@jit
def _geometric_mode(theta):
    return 1.0


@jit
def _geometric_log_mass(y, theta):
    p = theta[0]
    return math.log(p) + ((y - 1.0) * math.log1p(-p) if y > 1.0 else 0.0)


@jit
def _geometric_odds(y, theta):
    return 1.0 - theta[0], 1.0


@jit
def _geometric_score(y, t, theta):
    p = theta[0]
    return (1.0 / p - (y - 1.0) / (1.0 - p),)


@jit
def _geometric_edge(above, below, theta):
    return (1.0 - above,)


GEOMETRIC = CountLaw(
    "geometric",
    1,
    0,
    _geometric_valid,
    _geometric_support,
    _geometric_mode,
    _geometric_log_mass,
    _geometric_odds,
    _geometric_score,
    _geometric_edge,
)

# --- Hypergeometric(good, bad, drawn) -------------------------------------------------------------


@jit
def _hypergeometric_valid(theta):
    good, bad, drawn = theta
    whole = good == np.floor(good) and bad == np.floor(bad) and drawn == np.floor(drawn)
    return whole and good >= 0.0 and bad >= 0.0 and 0.0 <= drawn <= good + bad < math.inf


@jit
def _hypergeometric_support(theta):
    good, bad, drawn = theta
    return max(0.0, drawn - bad), min(drawn, good)


@jit
def _hypergeometric_mode(theta):
    good, bad, drawn = theta
    low, high = _hypergeometric_support(theta)
    mode = np.floor((drawn + 1.0) * (good + 1.0) / (good + bad + 2.0))
    return min(max(mode, low), high)


@jit
def _hypergeometric_log_mass(y, theta):
    good, bad, drawn = theta
    # The result does not depend on p; this p keeps every term small.
    p = drawn / (good + bad) if good + bad > 0.0 else 0.0
    q = (good + bad - drawn) / (good + bad) if good + bad > 0.0 else 1.0
    both = log_binomial(y, good, p, q) + log_binomial(drawn - y, bad, p, q)
    return both - log_binomial(drawn, good + bad, p, q)


@jit
def _hypergeometric_odds(y, theta):
    good, bad, drawn = theta
    return (good - y) * (drawn - y), (y + 1.0) * (bad - drawn + y + 1.0)


HYPERGEOMETRIC = CountLaw(
    "hypergeometric",
    3,
    3,
    _hypergeometric_valid,
    _hypergeometric_support,
    _hypergeometric_mode,
    _hypergeometric_log_mass,
    _hypergeometric_odds,
)

# --- One value, c ---------------------------------------------------------------------------------


@jit
def _atom_valid(theta):
    return theta[0] == np.floor(theta[0])


@jit
def _atom_support(theta):
    return theta[0], theta[0]


@jit
def _atom_mode(theta):
    return theta[0]


@jit
def _atom_odds(y, theta):
    return 0.0, 1.0


ATOM = CountLaw(
    "atom",
    1,
    1,
    _atom_valid,
    _atom_support,
    _atom_mode,
    zero,
    _atom_odds,
)
