"""Densities and interval probabilities of the less usual noise, against mpmath."""

import mpmath as mp
import numpy as np
import pytensor
import pytensor.tensor as pt
import pytest

import pymc_dp as dp
from pymc_dp.graphs.values import PLAIN_MODE
from tests.mechanisms.noise import evaluate

INF = float("inf")
SCALES = (1e-6, 1.0, 1e6)
# In units of the scale from the statistic: far out, narrow, wide, around, nearly certain, open.
ENDS = [(-1, 2), (0.2, 0.7), (-0.9, 0.3), (3.1, 3.1 + 2.0**-30), (-900.5, -900), (900, 2000)]
ENDS += [(-1e-9, 3e-9), (30, INF), (-INF, -0.5), (-INF, 30), (-40, 60), (-INF, INF), (2, 2)]
VALUES = [0, 0.31, -0.8, 2.35, -5.6, 40.1, 900.7]


def laplace(m):
    return lambda x: mp.exp(-x) / 2, lambda x: mp.exp(-x) / 2


def uniform(m):
    return lambda x: mp.mpf(x <= 1) / 2, lambda x: max(1 - x, 0) / 2


def cauchy(m):
    return lambda x: 1 / mp.pi / (1 + x * x), lambda x: mp.atan2(1, x) / mp.pi


def student_t(m):
    df = mp.mpf(m.df)
    peak = 1 / mp.sqrt(df) / mp.beta(df / 2, mp.mpf(1) / 2)

    def tail(x):
        return mp.betainc(df / 2, mp.mpf(1) / 2, 0, 1 / (1 + x * x / df), regularized=True) / 2

    return lambda x: peak * (1 + x * x / df) ** (-(df + 1) / 2), tail


def staircase(m):
    """Tail beyond x by the sum of whole steps; cut at a quantile for Tulap noise."""
    b = mp.exp(-mp.mpf(float(m.epsilon)))
    gamma, delta = (mp.mpf(float(getattr(m, n, d))) for n, d in (("gamma", 0.5), ("delta", 0)))
    height = (1 - b) / (2 * (gamma + b * (1 - gamma)))
    q = 2 * delta * b / (1 - b + 2 * delta * b)

    def tail(x):
        j = mp.floor(x + 1 - gamma)
        return height * b**j * (j + gamma - x + b / (1 - b)) if x < mp.inf else mp.mpf(0)

    def cut_density(x):
        return height * b ** mp.floor(x + 1 - gamma) / (1 - q) * (tail(x) >= q / 2)

    return cut_density, lambda x: max(tail(x) - q / 2, 0) / (1 - q)


LAWS = {
    dp.UniformMechanism: (uniform, [{}], "half_width"),
    dp.CauchyMechanism: (cauchy, [{}], "scale"),
    dp.StudentTMechanism: (student_t, [{"df": d} for d in (0.01, 3.0, 40.0, 200.0)], "scale"),
    dp.StaircaseMechanism: (
        staircase,
        [{"epsilon": e, "gamma": g} for e, g in ((0.01, 0.3), (1.0, 0.0), (2.0, 1.0), (30.0, 0.4))],
        "sensitivity",
    ),
    dp.TulapMechanism: (
        staircase,
        [{"epsilon": e, "delta": d} for e, d in ((1.0, 0.0), (0.1, 1e-3), (2.0, 0.2), (5.0, 1e-9))],
        "sensitivity",
    ),
}


def mass(tail, a, c):
    """Probability between two ends of a law that is symmetric about 0."""
    if c <= a:
        return mp.mpf(0)
    if a >= 0:
        return tail(a) - tail(c)
    return tail(-c) - tail(-a) if c <= 0 else 1 - tail(-a) - tail(c)


def compare(mechanism, s, z, low, high, laws):
    """Of each row, values by a density, and intervals by their probabilities."""
    expected = []
    for (density, probability), *row in zip(laws, z, low, high, strict=True):
        points, lower, upper = ([mp.mpf(float(x)) for x in part] for part in row)
        p = [*map(density, points), *map(probability, lower, upper)]
        expected.append([float(mp.log(x)) if x > 0 else -np.inf for x in p])
    found = np.hstack(evaluate(mechanism.logp(z, s), mechanism.log_interval(low, high, s)))
    np.testing.assert_allclose(found, expected, rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("cls", LAWS, ids=lambda cls: cls.__name__)
def test_added_noise(cls):
    law, fields, unit = LAWS[cls]
    b = np.array(SCALES)[:, None]
    s, (low, high) = 0.3 * b, np.transpose(ENDS)
    with mp.workdps(60):
        for others in fields:
            mechanism = cls(**others, **{unit: b})
            laws = [
                added(law(mechanism), mp.mpf(x), mp.mpf(y)) for [x], [y] in zip(b, s, strict=True)
            ]
            compare(mechanism, s, s + np.array(VALUES) * b, s + low * b, s + high * b, laws)


def added(law, b, s):
    density, tail = law
    return (
        lambda z: density(abs(z - s) / b) / b,
        lambda low, high: mass(tail, (low - s) / b, (high - s) / b),
    )


def within(cls, b, s, low, high):
    """Laplace noise given that it is within bounds, or summed over its mirror images."""
    density, probability = added(laplace(None), b, s)
    span, whole, images = high - low, mp.mpf(1), [lambda z: z]
    if cls is dp.BoundedLaplaceMechanism:
        whole = probability(low, high)
    else:
        turns = [2 * k * span for k in range(-int(40 * b / span) - 2, int(40 * b / span) + 3)]
        images = [lambda z, t=t: z + t for t in turns]
        images += [lambda z, t=t: 2 * low - z + t for t in turns]

    def between(a, c):
        a, c = max(a, low), min(c, high)
        parts = (probability(*sorted((image(a), image(c)))) for image in images)
        return mp.fsum(parts) / whole if a < c else mp.mpf(0)

    return lambda z: (low <= z <= high) * mp.fsum(density(i(z)) for i in images) / whole, between


@pytest.mark.parametrize("cls", [dp.BoundedLaplaceMechanism, dp.FoldedLaplaceMechanism])
@pytest.mark.parametrize(("low", "high"), [(0.0, 10.0), (-0.6, 0.9), (-3.0, 4000.0)])
def test_noise_within_bounds(cls, low, high):
    rows = [(b, low * b, high * b) for b in SCALES]
    rows = [(b, low + x * (high - low), low, high) for b, low, high in rows for x in (0, 0.3, 1)]
    scale, s, low, high = np.transpose(rows)[..., None]
    ends = [(0, 0.2), (0.4, 0.4 + 2.0**-30), (-1, 0.99), (-INF, INF), (0.2, 0.8)]
    z, left, right = (
        low + np.array(part) * (high - low) for part in ([-1, 0, 0.1, 0.5, 1], *np.transpose(ends))
    )
    z[:, -1:] = high
    with mp.workdps(60):
        laws = [within(cls, *map(mp.mpf, row)) for row in rows]
        compare(cls(scale, low, high), s, z, left, right, laws)


def test_snapping_adds_up_cells():
    for scale in SCALES:
        m = dp.SnappingMechanism(scale, -20 * scale, 21 * scale, step=1.5 * scale)
        middle, s = 0.5 * scale, 3.1 * scale
        z = middle + 1.5 * scale * np.arange(-13, 14)
        cells = dp.LaplaceMechanism(scale).log_interval(z - 0.75 * scale, z + 0.75 * scale, s)
        found, cells = evaluate(m.logp(z, s), cells)
        np.testing.assert_allclose(found, cells, rtol=1e-10)
        ends = evaluate(m.logp([-20 * scale, 21 * scale, 0.0], s))
        total = np.exp(np.append(found, ends)).sum()
        assert np.isneginf(ends[2])
        np.testing.assert_allclose(total, 1.0, rtol=1e-12)


def test_published_size_and_loss():
    """What was published of the noise gives it back; the Student t and Cauchy losses are exact."""
    for cls, others in ((dp.UniformMechanism, {}), (dp.StudentTMechanism, {"df": 3.0})):
        [name] = cls.parameter_names
        m = cls.from_sd(2.0, **others)
        low, high, middle = evaluate(m.icdf([0.05, 0.95, 0.5], 1.0))
        for again in (cls.from_variance(4.0, **others), cls.from_accuracy(high - 1, 0.1, **others)):
            np.testing.assert_allclose(getattr(again, name).data, getattr(m, name).data, rtol=1e-9)
        np.testing.assert_allclose(low + high, 2.0 * middle, rtol=1e-12)
    np.testing.assert_allclose(float(dp.UniformMechanism.from_sd(2.0).half_width), 2 * 3**0.5)
    np.testing.assert_allclose(float(dp.StudentTMechanism.from_sd(2.0, df=4.0).scale), 2 * 0.5**0.5)
    np.testing.assert_allclose(float(dp.CauchyMechanism.from_accuracy(3.0, 0.5).scale), 3.0)
    for heavy in (dp.CauchyMechanism, dp.StudentTMechanism):
        with pytest.raises(ValueError, match=f"{heavy.__name__}: the noise has a variance where"):
            heavy.from_sd(1.0)
    z = np.linspace(-5, 5, 200_001)
    for m in (
        dp.CauchyMechanism.from_epsilon(0.7, 2.0),
        dp.StudentTMechanism.from_epsilon(0.7, 2.0, df=3.0),
        dp.BoundedLaplaceMechanism.from_epsilon(0.7, 2.0, -5.0, 5.0),
    ):
        np.testing.assert_allclose(m.epsilon(2.0), 0.7, rtol=1e-12)
        pairs = [np.subtract(*evaluate(m.logp(z, s), m.logp(z, s + 2.0))) for s in (-5.0, 0.0, 3.0)]
        np.testing.assert_allclose(np.abs(pairs).max(), 0.7, rtol=1e-6)


def test_defaults_are_those_of_diffprivlib():
    """The staircase's first step has the least mean size; a snapping step is a power of two."""
    epsilon = np.array([0.1, 1.0, 4.0])
    gamma = dp.StaircaseMechanism(epsilon, 1.0).gamma.data
    np.testing.assert_allclose(gamma, 1 / (1 + np.exp(epsilon / 2)), rtol=1e-14)
    assert [dp.SnappingMechanism(b, 0, 9).step for b in (0.5, 0.51, 3.0)] == [0.5, 1.0, 4.0]
    mechanism = dp.SnappingMechanism.from_epsilon(0.3, 2.0, 0.0, 100.0)
    assert mechanism.step == 8.0
    np.testing.assert_allclose(mechanism.epsilon(2.0), 0.3, rtol=1e-14)


@pytest.mark.parametrize("mechanism", [dp.CauchyMechanism(2.0), dp.StudentTMechanism(3.0, 2.0)])
def test_tail_from_the_statistic_on_has_a_gradient(mechanism):
    s = pt.dscalar()
    for end in (0.0, 1e-9, -1e-9):
        tail = mechanism.clipped(lower=end).logp(end, s)
        own = pt.exp(mechanism.logp(end, s) - mechanism.log_interval(-np.inf, end, s))
        found = pytensor.function([s], [pytensor.grad(tail, s), -own, tail], mode=PLAIN_MODE)(0.0)
        np.testing.assert_allclose(found[0], found[1], rtol=1e-7)
        np.testing.assert_allclose(found[2], np.log(0.5), rtol=1e-7)
