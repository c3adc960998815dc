"""The tilted masses against quadrature in 40 digits."""

import math
from itertools import pairwise

import mpmath as mp
import numpy as np
import pytest
from scipy import integrate, stats

from pymc_dp.kernels.functions import gamma_ratio, quadrature, tilting
from tests.kernels.functions.laplace import (
    laplace_log_marginal_gamma,
    laplace_log_marginal_normal,
)

INF = math.inf


@pytest.fixture(autouse=True)
def _forty_digits():
    with mp.workdps(40):
        yield


def reach(g, start, end, drop):
    """Return a point from start towards end where the concave g has fallen by about drop."""
    sign = 1 if end > start else -1
    top = g(start)
    step = mp.mpf(1)
    while (end - start - sign * step) * sign > 0 and top - g(start + sign * step) <= drop:
        step *= 2
    step = min(step, abs(end - start))
    if top - g(start + sign * step) <= drop:
        return start + sign * step
    low = step
    while top - g(start + sign * low) > drop:
        low /= 2
    for _ in range(8):
        middle = (low + step) / 2
        low, step = (low, middle) if top - g(start + sign * middle) > drop else (middle, step)
    return start + sign * step


def moments(g, lo, hi, mode, functions):
    """Return the log of the integral of exp(g), g concave, and the means of the functions."""
    mode = min(max(mode, lo), hi)
    points = {mode}
    for drop in (1, 6, 25, 100):
        points |= {reach(g, mode, end, drop) for end in (lo, hi) if end != mode}
    points = sorted(points)
    top = g(mode)

    def integral(f):
        return mp.quad(lambda u: mp.exp(g(u) - top) * f(u), points)

    total = integral(lambda u: 1)
    return top + mp.log(total), [integral(f) / total for f in functions]


def gamma_reference(t, z, lo, hi, a, beta, slopes=True):
    t, z, a, beta, hi = map(mp.mpf, (t, z, a, beta, hi))
    lo = max(mp.mpf(lo), mp.mpf(0))
    if hi <= lo:
        return -mp.inf
    constant = a * mp.log(beta) - mp.loggamma(a)

    def g(u):
        s = mp.exp(u)
        return constant + a * u - beta * s + t * (s - z)

    low, high = (mp.log(lo) if lo > 0 else -mp.inf), (mp.log(hi) if hi < mp.inf else mp.inf)
    mode = mp.log(a / (beta - t)) if beta > t else high
    log_mass, means = moments(g, low, high, mode, [mp.exp, lambda u: u] if slopes else [])
    if not slopes:
        return log_mass
    at_low = mp.exp(g(low) - low - log_mass) if lo > 0 else mp.mpf(0)
    at_high = mp.exp(g(high) - high - log_mass) if hi < mp.inf else mp.mpf(0)
    return (
        log_mass,
        means[0] - z,
        -at_low,
        at_high,
        mp.log(beta) - mp.digamma(a) + means[1],
        a / beta - means[0],
    )


def normal_reference(t, z, lo, hi, m, v, slopes=True):
    t, z, lo, hi, m, v = map(mp.mpf, (t, z, lo, hi, m, v))
    if hi <= lo:
        return -mp.inf
    sd = mp.sqrt(v)

    def g(y):
        return -y * y / 2 + t * (m + sd * y - z) - mp.log(2 * mp.pi) / 2

    low, high = (lo - m) / sd, (hi - m) / sd
    functions = [lambda y: y, lambda y: y * y] if slopes else []
    log_mass, means = moments(g, low, high, t * sd, functions)
    if not slopes:
        return log_mass
    at_low = mp.exp(g(low) - log_mass) / sd if lo > -mp.inf else mp.mpf(0)
    at_high = mp.exp(g(high) - log_mass) / sd if hi < mp.inf else mp.mpf(0)
    mean, square = means
    return log_mass, m + sd * mean - z, -at_low, at_high, mean / sd, (square - 1) / (2 * v)


def log_density_error(got, expected):
    return float(abs(mp.mpf(got) - expected) / max(1, abs(expected)))


@pytest.mark.parametrize("count", [16, 48])
def test_quadrature_rule_has_accurate_weights_near_the_ends(count):
    nodes, weights = quadrature.unit_rule(count)
    u = mp.findroot(lambda x: mp.legendre(count, 1 - 2 * x), mp.mpf(float(nodes[0])))
    slope = mp.diff(lambda x: mp.legendre(count, x), 1 - 2 * u)
    assert abs(nodes[0] / u - 1) < 1e-15
    assert abs(weights[0] * 4 * u * (1 - u) * slope**2 - 1) < 2e-14


SHAPES = [1e-3, 0.1, 0.5, 1.0, 5.0, 10.0, 29.999, 30.0, 1e3, 5e8]


def check_ratio(a, x, sign, parts):
    """Against the integral of exp(sign a y - x expm1(sign y)) over y > 0, and the mean of y."""
    total, first, _ = parts(a, abs(x - a), x, math.inf)
    shape, end, zero = mp.mpf(a), mp.mpf(x), mp.mpf(0)
    log_h, (mean,) = moments(
        lambda y: sign * shape * y - end * mp.expm1(sign * y), zero, mp.inf, zero, [lambda y: y]
    )
    # a - x is rounded here, so the tolerance follows the width of the peak.
    tolerance = 1e-13 + 1e-15 * math.sqrt(a)
    assert abs(mp.expm1(math.log(total) - log_h)) < tolerance
    assert abs(first / total / mean - 1) < tolerance


@pytest.mark.by_day("0.5", "30.0")
@pytest.mark.parametrize("a", SHAPES)
def test_gamma_lower_parts(a):
    points = [-1e8, -1e3, -60.01, -60.0, -5.0, -1e-8, 0.0]
    for x in points + [a * f for f in (1e-9, 0.1, 0.9, 0.999, 1 - 1e-8, 1.0)]:
        check_ratio(a, x, -1, gamma_ratio.g_parts)


@pytest.mark.parametrize("a", SHAPES)
@pytest.mark.by_day("29.999", "30.0", "1000.0")
def test_gamma_upper_parts(a):
    for x in [a * f for f in (1.0, 1 + 1e-8, 1.001, 1.1, 2.0, 10.0)] + [a + 1e9]:
        check_ratio(a, x, 1, gamma_ratio.h_parts)


def test_gamma_ratios_in_closed_form():
    a, x = 2.5, 1.75
    expected = mp.hyp1f1(1, a + 1, x) / a
    found = gamma_ratio.g_parts(a, a - x, x, math.inf)[0]
    assert math.log(found) == pytest.approx(float(mp.log(expected)), abs=1e-15)
    expected = mp.gammainc(a, 4.0) * mp.mpf(4) ** -mp.mpf(a) * mp.exp(4)
    found = gamma_ratio.h_parts(a, 4.0 - a, 4.0, math.inf)[0]
    assert math.log(found) == pytest.approx(float(mp.log(expected)), abs=1e-15)


def test_a_gamma_mass_up_to_its_mean():
    """There the gap between the shape and the rate at the end is zero, of either sign."""
    for shape in (3.0, 40.0):
        found = tilting.gamma_log_tilted_mass(0.0, 0.0, 0.0, 1.0, shape, shape)
        assert found == pytest.approx(stats.gamma.logcdf(1.0, shape, scale=1 / shape), abs=1e-13)


def gamma_cases(count):
    """Return tilts, intervals, shapes and rates that reach every branch."""
    rng = np.random.default_rng(2)
    cases = []
    for i in range(count):
        a = 10 ** (rng.uniform(-3, 8.7) if i % 2 else rng.uniform(-1, 2))
        mean = 10 ** rng.uniform(-4, 4)
        beta, sd = a / mean, mean / math.sqrt(a)
        t = 10 ** rng.uniform(-6, 6) / sd * rng.choice([-1, 1])
        if i % 5 == 0:  # tilts that cancel the rate almost or altogether
            t = beta * (1 + rng.choice([0.0, rng.normal() * 10 ** rng.uniform(-7, 0)]))
        end = mean + sd * rng.normal() * 10 ** rng.uniform(-2, 2)
        if end <= 0.0 or i % 3 == 0:
            end = mean * 10 ** rng.uniform(-4, 3)
        width = sd * 10 ** rng.uniform(-5, 3)
        if t > 0.0:
            cases.append((t, max(end - width, 0.0) if i % 4 < 2 else 0.0, end, a, beta))
        else:
            cases.append((t, end, end + width if i % 4 < 2 else INF, a, beta))
    # Two-sided intervals around the mode, tiny shapes above their mean, and tilt zero.
    cases += [
        (0.3, 1.0, 9.0, 3.0, 1.0),
        (-0.3, 0.1, 2.5, 3.0, 1.0),
        (-1.0, 1.9999, 2.0001, 4.0, 1.0),
        (-2.0, 1e-4, INF, 1e-3, 1.0),
        (-2.0, 1e-9, INF, 1e-2, 1.0),
        (-1e-3, 1e-9, 5.0, 1e-2, 1.0),
        (1.0, 0.0, 50.0, 0.2, 1.5),
        (0.5, 1e-7, 1e-3, 1e-3, 1.0),
    ]
    return [tuple(map(float, case)) for case in cases]


def check_parts(got, reference, floors, t, lo, hi, *parameters):
    """The log mass and its derivatives by t, the ends and the parameters of the law."""
    case = (t, lo, hi, *parameters)
    log_mass, dt, dlo, dhi, *by_law = reference(t, hi if t > 0 else lo, lo, hi, *parameters)
    dhi, dlo = (dhi - t, dlo) if t > 0 else (dhi, dlo - t)
    assert log_density_error(got[0], log_mass) < 1e-13, case
    names, expected = ("t", "lo", "hi", "first", "second"), (dt, dlo, dhi, *by_law)
    for name, x, y, floor in zip(names, got[1:], expected, floors, strict=True):
        assert abs(x - y) < 1e-11 * max(abs(y), floor), (name, case)


def test_gamma_tilted_parts(night):
    for case in gamma_cases(60 if night else 20):
        t, lo, hi, a, beta = case
        sd, anchor = math.sqrt(a) / beta, hi if t > 0 else lo
        # An end has the slope scale 1/sd (1/end for small shapes), which noise cannot refine.
        scale = max(1 / sd, 1 / anchor)
        floors = (sd * 1e-4, 1e-2 * scale, 1e-2 * scale, 1e-4, 1e-2 / beta)
        check_parts(tilting.gamma_tilted_parts(*case), gamma_reference, floors, *case)


def test_normal_tilted_parts(night):
    rng = np.random.default_rng(3)
    for i in range(60 if night else 20):
        m, sd = rng.normal() * 10 ** rng.uniform(-2, 2), 10 ** rng.uniform(-2, 2)
        v = sd * sd
        sd = math.sqrt(v)
        t = 10 ** rng.uniform(-6, 8) / sd * rng.choice([-1, 1])
        end = m + sd * rng.normal() * 10 ** rng.uniform(-2, 3)
        width = sd * 10 ** rng.uniform(-5, 3)
        lo, hi = (end - width, end) if t > 0 else (end, end + width)
        if i % 2:
            lo, hi = (-INF, end) if t > 0 else (end, INF)
        case = (t, lo, hi, m, v)
        floors = (sd * 1e-4, 1e-2 / sd, 1e-2 / sd, 1e-2 / sd, 1e-2 / v)
        check_parts(tilting.normal_tilted_parts(*case), normal_reference, floors, *case)


def check_marginal(got, reference, z, lam, first, second, lo, hi):
    """Of Laplace noise of the rate lam: both sides of the release, each a tilted mass."""
    left = reference(lam, z, lo, min(z, hi), first, second, slopes=False)
    right = reference(-lam, z, max(z, lo), hi, first, second, slopes=False)
    expected = mp.log(mp.mpf(lam) / 2 * (mp.exp(left) + mp.exp(right)))
    assert log_density_error(got, expected) < 1e-13


@pytest.mark.parametrize(
    "case",
    [  # z, lam, a, beta, lo, hi
        (2.0, 1.5, 3.0, 1.0, 0.0, INF),
        (2224.8, 0.01, 21.0, 0.0525, 0.0, INF),
        (2.0, 1e15, 3.0, 1.0, 0.0, INF),
        (2.0, 1e-12, 3.0, 1.0, 0.0, INF),
        (-1e5, 2.0, 3.0, 1.0, 0.0, INF),
        (-1e-9, 2.0, 0.5, 1.0, -INF, INF),
        (1e6, 0.01, 3.0, 1.0, 0.0, INF),
        (1e6, 3.0, 3.0, 1.0, 0.0, INF),
        (1e-12, 1.0, 3.0, 1.0, 0.0, INF),
        (1.0001, 1e4, 5e8, 5e8, 0.0, INF),
        (1.0001, 1e9, 5e8, 5e8, 0.0, INF),
        (0.9, 10.0, 5e8, 5e8, 0.0, INF),
        (3e-12, 1e12, 2.0, 1e12, 0.0, INF),
        (1.0, 1.0, 1.0, 1.0, 0.0, INF),
        (0.7, 4.0, 12.0, 20.0, 0.0, 1.0),
        (3.0, 4.0, 12.0, 20.0, 0.2, 1.0),
        (-3.0, 4.0, 12.0, 20.0, 0.2, 1.0),
        (0.6, 4.0, 12.0, 20.0, 0.599, 0.601),
        (40.0, 0.25, 30.0, 1.0, 0.0, INF),
    ],
)
def test_laplace_log_marginal_gamma(case):
    check_marginal(laplace_log_marginal_gamma(*case), gamma_reference, *case)


@pytest.mark.parametrize(
    "case",
    [  # z, lam, m, v, lo, hi
        (0.3, 1.0, 0.5, 2.0, -INF, INF),
        (0.5, 1.0, 0.5, 2.0, -INF, INF),
        (1e5, 0.1, 0.0, 1.0, -INF, INF),
        (-40.0, 1e8, 0.0, 1.0, -INF, INF),
        (3.0, 1e-12, 0.0, 1.0, -INF, INF),
        (1e9 + 1.0, 3.0, 1e9, 4.0, -INF, INF),
        (0.3, 50.0, 0.4, 0.01, 0.0, 1.0),
        (1.3, 50.0, 0.4, 0.01, 0.0, 1.0),
        (-0.2, 50.0, 0.4, 0.01, 0.0, 1.0),
        (0.5, 5.0, 30.0, 1.0, 0.0, 1.0),
        (0.5, 5.0, 0.5, 1.0, 0.4999, 0.5001),
    ],
)
def test_laplace_log_marginal_normal(case):
    check_marginal(laplace_log_marginal_normal(*case), normal_reference, *case)


@pytest.mark.parametrize(
    ("log_density", "args", "kinks"),
    [
        *(
            (laplace_log_marginal_gamma, (lam, a, beta, 0.0, INF), (0.0, a / beta))
            for a, beta, lam in [(0.5, 1.0, 2.0), (3.0, 2.0, 0.5), (40.0, 3.0, 10.0)]
        ),
        *((laplace_log_marginal_normal, (x, 1.0, 2.0, -INF, INF), (1.0,)) for x in (0.3, 20.0)),
    ],
)
def test_marginals_integrate_to_one(log_density, args, kinks):
    total = sum(
        integrate.quad(lambda z: math.exp(log_density(z, *args)), *ends, limit=200)[0]
        for ends in pairwise([-INF, *kinks, INF])
    )
    assert total == pytest.approx(1.0, abs=1e-8)


def test_empty_and_improper_intervals():
    assert tilting.gamma_log_tilted_mass(1.0, 0.0, 2.0, 1.0, 3.0, 1.0) == -INF
    assert tilting.gamma_log_tilted_mass(1.0, 0.0, -2.0, -1.0, 3.0, 1.0) == -INF
    assert tilting.gamma_log_tilted_mass(1.0, 0.0, 0.0, INF, 3.0, 1.0) == INF
    assert tilting.gamma_log_tilted_mass(0.0, 0.0, 0.0, INF, 3.0, 1.0) == 0.0
    assert tilting.normal_log_tilted_mass(1.0, 0.0, 2.0, 1.0, 3.0, 1.0) == -INF
    assert tilting.normal_log_tilted_mass(0.0, 0.0, -INF, INF, 3.0, 1.0) == 0.0
    assert tilting.gamma_tilted_parts(1.0, -INF, -1.0, 3.0, 1.0)[1:] == (0.0,) * 5
    assert tilting.normal_tilted_parts(1.0, 2.0, 1.0, 3.0, 1.0)[1:] == (0.0,) * 5
    assert math.isnan(tilting.gamma_log_tilted_mass(1.0, 0.0, 0.0, 1.0, -3.0, 1.0))
    assert math.isnan(tilting.normal_log_tilted_mass(1.0, 0.0, 0.0, 1.0, 0.0, -1.0))
