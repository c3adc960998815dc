"""Noisy sums of few records under Laplace noise, against closed forms and nested quadrature."""

from itertools import pairwise

import mpmath as mp
import numpy as np
import pytest
from scipy import special, stats

from pymc_dp.plugins.inversion.kernels.few import few_records
from pymc_dp.plugins.inversion.kernels.nodes import NODES, WEIGHTS

RULE = np.polynomial.legendre.leggauss(40)
NORMAL = stats.norm(0.3, 0.7)


def law_on(edges, log_density, atoms=(), h=np.array):
    """Nodes on panels in a coordinate of which h is the value, and atoms."""
    y = [0.5 * (a + b + (b - a) * NODES) for a, b in pairwise(edges)]
    scale = np.diff(edges).tolist() + [mass for _, mass in atoms]
    values = [h(part) for part in y] + [np.full(16, value) for value, _ in atoms]
    weights = np.log(np.outer(scale, 0.5 * WEIGHTS))
    weights[: len(y)] += log_density(np.reshape(y, (-1, 16)))
    return weights.ravel(), np.ravel(values), np.zeros(weights.size)


def clamped(h, low, high):
    """Nodes of Normal records y clamped to [low, high] that add h(y), and the quadrature."""
    atoms = [(h(low), NORMAL.cdf(low)), (h(high), NORMAL.sf(high))]

    def density(n, z, b):
        if n == 0:
            return np.exp(-np.abs(z) / b) / (2 * b)
        kinks = z - np.array([k * h(low) + (n - 1 - k) * h(high) for k in range(n)])
        layers = b * np.array([-40, -12, -4, 0, 4, 12, 40])
        points = np.add.outer(np.clip(kinks, h(low), h(high)), layers)
        points = np.clip(np.ravel(points), h(low), h(high))
        inverse = np.log if h is np.exp else np.array
        total = sum(mass * density(n - 1, z - value, b) for value, mass in atoms)
        for a, c in pairwise(inverse(np.unique([h(low), *points, h(high)]))):
            y = 0.5 * (a + c + (c - a) * RULE[0])
            p = [density(n - 1, z - value, b) for value in h(y)]
            total += 0.5 * (c - a) * np.dot(RULE[1] * NORMAL.pdf(y), p)
        return total

    nodes = law_on(np.linspace(low, high, 4), NORMAL.logpdf, atoms, h)
    return nodes, lambda n, z, b: np.log(density(n, z, b))


def uniform(n, z, b):
    """Irwin's and Hall's sum, over repeated integrals of the density of the noise."""

    def integral(y):
        if y <= 0:
            return b ** (n - 1) * mp.exp(y / b) / 2
        powers = (b**j * y ** (n - 1 - j) / mp.factorial(n - 1 - j) for j in range(0, n, 2))
        return sum(powers) + (-b) ** n / b * mp.exp(-y / b) / 2

    with mp.workdps(60):
        z, b = mp.mpf(min(z, n - z)), mp.mpf(b)
        return mp.log(sum((-1) ** k * mp.binomial(n, k) * integral(z - k) for k in range(n + 1)))


def exponential(n, z, b):
    with mp.workdps(60):
        z, b = mp.mpf(z), mp.mpf(b)
        above = mp.exp(z / b) * mp.gammainc(n, (1 + 1 / b) * max(z, 0)) / (1 + 1 / b) ** n
        below = mp.exp(-z / b) * mp.gammainc(n, 0, (1 - 1 / b) * max(z, 0)) / (1 - 1 / b) ** n
        return mp.log((above + below).real / mp.factorial(n - 1) / (2 * b))


def two_values(n, z, b):
    k = np.arange(n + 1)
    noise = -np.abs(z - 2.5 * k) / b - np.log(2 * b)
    return special.logsumexp(stats.binom(n, 0.7).logpmf(k) + noise)


LAWS = {
    "uniform": (law_on([0.0, 0.4, 1.0], np.zeros_like), uniform, 4),
    "exponential": (law_on([0, 1, 2, 4, 7, 11, 16, 22, 28, 34, 40], np.negative), exponential, 4),
    "two values": (law_on([], np.array, [(0.0, 0.3), (2.5, 0.7)]), two_values, 4),
    "Normal": (*clamped(np.array, -0.5, 1.5), 2),
    "LogNormal": (*clamped(np.exp, -0.5, 1.0), 2),
}


@pytest.mark.parametrize("name", LAWS)
@pytest.mark.parametrize(("z", "b"), [
    (0.0, 0.5), (1.3, 1e-4), (2.5, 0.5), (1.7, 0.05), (2.0, 2e-3), (1.3, 300.0), (-300.0, 0.5),
    (31.0, 0.05),
])  # fmt: skip
def test_it_is_the_exact_density_of_few_records(name, z, b):
    nodes, exact, most = LAWS[name]
    logp, _, _, error = few_records(*nodes, most, z, b)
    expected = [-abs(z) / b - np.log(2 * b)] + [float(exact(n, z, b)) for n in range(1, most + 1)]
    np.testing.assert_allclose(logp, expected, atol=1e-9, rtol=1e-13)
    assert (error < 1e-8).all()


@pytest.mark.parametrize("name", LAWS)
@pytest.mark.parametrize("b", [0.5, 0.02])
def test_derivatives_are_those_of_the_density(name, b):
    (log_weight, h, cut), z, step = LAWS[name][0], 1.2, 1e-5
    _, slope, grad, _ = few_records(log_weight, h, cut, 4, z, b)
    up, down = (few_records(log_weight, h, cut, 4, z + s, b)[0] for s in (step, -step))
    np.testing.assert_allclose(slope, (up - down) / (2 * step), atol=1e-6, rtol=1e-6)
    way = np.cos(h) + 0.1 * h
    up, down = (few_records(log_weight + s * way, h, cut, 4, z, b)[0] for s in (step, -step))
    np.testing.assert_allclose(grad @ way, (up - down) / (2 * step), atol=1e-8)


def test_what_is_not_resolved_is_said():
    log_weight, h, cut = law_on([0.0, 5.0], lambda y: -np.abs(y - 2.0))
    assert few_records(log_weight, h, cut, 1, 2.0, 0.1)[3][1] > 1e-5
    h[3] = h[8]
    assert np.isinf(few_records(log_weight, h, cut, 1, 2.0, 0.1)[3][1])
