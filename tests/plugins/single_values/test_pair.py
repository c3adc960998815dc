"""The general marginal of one value, against closed forms, adaptive quadrature and plain sums."""

import numpy as np
import pymc as pm
import pytensor
import pytensor.tensor as pt
import pytensor.tensor.random.basic as ptr
import pytest
from scipy import stats
from scipy.special import logsumexp

import pymc_dp as dp
from pymc_dp.graphs.values import PLAIN_MODE
from pymc_dp.laws import find_pair, row_sampler
from pymc_dp.laws.mixture import MixtureLaw
from pymc_dp.laws.of_function import Function, OfFunction
from pymc_dp.laws.parts import CensoredLaw, SymbolicLaw
from pymc_dp.plugins.single_values.grid import Grid
from pymc_dp.plugins.single_values.pair import general_pair, marginal, width
from pymc_dp.reading.kept import reads_outside

SKEWED = type(pm.SkewNormal.dist(0, 1, 2).owner.op)()
UNIFORM, STUDENT = dp.UniformMechanism(0.2), dp.StudentTMechanism(0.5, 3.0)


def of(write, mechanism):
    x = pt.dscalar("x")
    return OfFunction(mechanism, Function(x, (), write(x)))


def noise_of(mechanism):
    z, x = pt.dscalar(), pt.dvector()
    return pytensor.function([z, x], mechanism.logp(z, x), mode=PLAIN_MODE)


def evaluated(law, mechanism, values, parameters):
    """Return the log marginal at each value, and the slopes of its sum."""
    theta = [pt.dscalar() for _ in parameters]
    logp = general_pair(law, mechanism).log_marginal(mechanism, pt.constant(values), *theta)
    slopes = pytensor.grad(logp.sum(), theta)
    return pytensor.function(theta, [logp, *slopes], mode=PLAIN_MODE)(*parameters)


CLOSED = {
    "Normal, Laplace": (ptr.normal, dp.LaplaceMechanism(0.5), [(3.3, 0.7), (0.0, 1e-3), (3, 1e4)]),
    "Normal, Gaussian": (ptr.normal, dp.GaussianMechanism(0.5), [(3.3, 0.7), (0.0, 0.01)]),
    "Gamma, Laplace": (ptr._gamma, dp.LaplaceMechanism(2.0), [(0.5, 3.0), (40.0, 0.1)]),
    "Poisson, Laplace": (ptr.poisson, dp.LaplaceMechanism(3.0), [(3.3,), (900.0,), (0.01,)]),
    "Poisson, geometric": (ptr.poisson, dp.GeometricMechanism(3.0), [(3.3,), (20.0,)]),
    "NegBinomial, Gaussian": (ptr.nbinom, dp.GaussianMechanism(3.0), [(3.3, 0.2), (0.5, 0.01)]),
}


@pytest.mark.parametrize("case", CLOSED)
def test_agrees_with_closed_forms(case):
    law, mechanism, all_parameters = CLOSED[case]
    values = np.array([3.0, 2.0, 9.0, -40.0, 400.0])
    for parameters in all_parameters:
        theta = [pt.dscalar() for _ in parameters]
        closed = find_pair(law, mechanism, closed=True).log_marginal(mechanism, values, *theta)
        outputs = [closed, *pytensor.grad(closed.sum(), theta)]
        expected = pytensor.function(theta, outputs, mode=PLAIN_MODE)(*parameters)
        got = evaluated(law, mechanism, values, parameters)
        np.testing.assert_allclose(got[0], expected[0], rtol=1e-9, atol=1e-9)
        np.testing.assert_allclose(got[1:], expected[1:], rtol=1e-6, atol=1e-9)


MIXED = MixtureLaw((ptr.normal, ptr._gamma), (2, 2))
QUADRATURE = {
    "Normal, uniform": (
        ptr.normal, UNIFORM, (3.3, 0.7), lambda x: stats.norm(3.3, 0.7).pdf(x), lambda x: x,
    ),
    "Beta, uniform": (
        ptr.beta, UNIFORM, (0.6, 2.0), lambda x: stats.beta(0.6, 2.0).pdf(x), lambda x: x,
    ),
    "Student, Student": (
        ptr.t, STUDENT, (2.5, 1.0, 0.3), lambda x: stats.t(2.5, 1.0, 0.3).pdf(x), lambda x: x,
    ),
    "logistic, exp": (
        ptr.logistic, of(pt.exp, dp.LaplaceMechanism(0.3)), (0.2, 0.4),
        lambda x: stats.logistic(0.2, 0.4).pdf(x), np.exp,
    ),
    "skewed, square": (
        SymbolicLaw(SKEWED) if not hasattr(SKEWED, "ndims_params") else SKEWED,
        of(lambda x: x**2, UNIFORM), (0.5, 1.0, 2.0),
        lambda x: stats.skewnorm(2.0, 0.5, 1.0).pdf(x), lambda x: x**2,
    ),
    "mixture": (
        MIXED, UNIFORM, (0.3, 0.7, 1.0, 0.5, 2.0, 0.8),
        lambda x: 0.3 * stats.norm(1.0, 0.5).pdf(x) + 0.7 * stats.gamma(2.0, scale=0.8).pdf(x),
        lambda x: x,
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", QUADRATURE)
def test_agrees_with_quadrature(case):
    law, mechanism, parameters, density, function = QUADRATURE[case]
    values = np.array([0.3, 0.7, 1.1])
    got, *slopes = evaluated(law, mechanism, values, parameters)
    noise = noise_of(getattr(mechanism, "inner", mechanism))
    points = np.linspace(-12.0, 12.0, 400_001)
    heights = density(points) if case != "Beta, uniform" else None
    for i, value in enumerate(values):
        if heights is None:  # a pole at zero
            ends = np.clip([value - 0.2, value + 0.2], 0, 1)
            expected = np.diff(stats.beta(0.6, 2.0).cdf(ends))[0] / 0.4
        else:
            with np.errstate(over="ignore", invalid="ignore"):
                terms = heights * np.exp(noise(value, function(points)))
            expected = np.nan_to_num(terms).sum() * (points[1] - points[0])
        np.testing.assert_allclose(
            np.exp(got[i]), expected, rtol=3e-4 if heights is not None else 1e-8
        )
    steps = 1e-5 * np.maximum(1.0, np.abs(parameters))
    if case != "mixture":  # whose weights add up to one
        for j, step in enumerate(steps):
            up, down = (
                [p + sign * step * (i == j) for i, p in enumerate(parameters)] for sign in (1, -1)
            )
            ends = [evaluated(law, mechanism, values, p)[0].sum() for p in (up, down)]
            np.testing.assert_allclose(
                slopes[j], np.diff(ends[::-1])[0] / (2 * step), rtol=1e-4, atol=1e-6
            )


def cells_below(k):
    return k, k + 1.0


STEPS = {
    "Normal, floor": (
        ptr.normal, lambda s: (0.9, s), lambda s: stats.norm(0.9, s), pt.floor, cells_below,
        dp.GaussianMechanism, stats.norm,
    ),
    "Student, round": (
        ptr.t, lambda s: (3.0, 0.9, s), lambda s: stats.t(3.0, 0.9, s), pt.round,
        lambda k: (k - 0.5, k + 0.5), dp.LaplaceMechanism, stats.laplace,
    ),
    "Gamma, ceil": (
        ptr._gamma, lambda s: (2.0, s), lambda s: stats.gamma(2.0, scale=s), pt.ceil,
        lambda k: (k - 1.0, k), dp.GaussianMechanism, stats.norm,
    ),
    "LogNormal, trunc": (
        ptr.lognormal, lambda s: (0.0, min(s, 2)), lambda s: stats.lognorm(min(s, 2)),
        pt.trunc, cells_below, dp.GaussianMechanism, stats.norm,
    ),
}  # fmt: skip


@pytest.mark.parametrize(
    "case", [pytest.param(c, marks=[pytest.mark.nightly] * (c > "O")) for c in STEPS]
)
def test_steps_are_sums_over_cells(case):
    op, parameters, law, step, cell, noise, noise_law = STEPS[case]
    theta, scale = [pt.dscalar() for _ in parameters(1.0)], pt.dscalar()
    released = np.array([1.003, 2.5, 7.0, 40.2])
    mechanism = of(step, noise(1.0)).with_parameters(scale)
    density = general_pair(op, mechanism).log_marginal(mechanism, pt.constant(released), *theta)
    function = pytensor.function([*theta, scale], density, mode=PLAIN_MODE)
    k = np.arange(-4000.0, 4001.0)
    for spread in (0.05, 1.0, 50.0):
        of_x, (low, high) = law(spread), cell(k)
        above = low > of_x.median()
        mass = np.where(above, of_x.sf(low) - of_x.sf(high), of_x.cdf(high) - of_x.cdf(low))
        for b in (0.05, 0.3, 50.0):
            with np.errstate(divide="ignore"):
                terms = np.log(mass) + noise_law(0, b).logpdf(released[:, None] - k)
            expected = logsumexp(terms, axis=1)
            known = expected > -600.0
            got = function(*parameters(spread), b)
            np.testing.assert_allclose(got[known], expected[known], atol=1e-8)


@pytest.mark.parametrize("scale", [200.0, 2_000.0])
def test_steps_of_more_cells_than_panels(scale):
    mechanism = of(pt.round, dp.LaplaceMechanism(scale))
    density = general_pair(ptr.normal, mechanism).log_marginal(
        mechanism, pt.constant([100.0, -900.0]), pt.constant(3.0), pt.constant(1e3)
    )
    k, law = np.arange(-20_000.0, 20_001.0)[:, None], stats.norm(3.0, 1e3)
    terms = np.log(law.cdf(k + 0.5) - law.cdf(k - 0.5) + 1e-300)
    expected = logsumexp(terms + stats.laplace(k, scale).logpdf([100.0, -900.0]), axis=0)
    np.testing.assert_allclose(density.eval(mode=PLAIN_MODE), expected, atol=1e-6)


def test_a_sign_jumps_at_zero_alone():
    mechanism = of(pt.sign, dp.LaplaceMechanism(1.0))
    density = general_pair(ptr.normal, mechanism).log_marginal(
        mechanism, pt.constant([1.0]), pt.constant(0.0), pt.constant(1e5)
    )
    expected = np.log(0.25 * (1.0 + np.exp(-2.0)))
    np.testing.assert_allclose(density.eval(mode=PLAIN_MODE), expected, atol=1e-8)


def test_clipped_values_are_points():
    law = CensoredLaw(ptr.normal)
    parameters = (0.5, 1.0, 0.0, 1.0)
    assert width(law) == 4
    got = evaluated(law, UNIFORM, np.array([0.1, 0.5, 0.95]), parameters)[0]
    normal = stats.norm(0.5, 1.0)
    expected = [
        (normal.cdf(0.3)) / 0.4,
        (normal.cdf(0.7) - normal.cdf(0.3)) / 0.4,
        (1 - normal.cdf(0.75)) / 0.4,
    ]
    np.testing.assert_allclose(np.exp(got), expected, rtol=1e-8)


@pytest.mark.parametrize("n", [50, 3_000])
def test_values_between_nodes(n):
    values = np.random.default_rng(1).normal(3.0, 1.0, n)
    grid = Grid(values, smooth=True)
    assert (grid.nodes.size == n) == (n == 50)
    smooth = pt.log1p((pt.constant(grid.nodes) - 2.0) ** 2)
    np.testing.assert_allclose(
        grid.at_all(smooth).eval(mode=PLAIN_MODE), np.log1p((values - 2.0) ** 2), atol=1e-6
    )


def test_atoms_and_withheld_values_are_no_nodes_of_their_neighbours():
    values = np.random.default_rng(1).normal(3.0, 1.0, 3_000)
    values[::7], values[3::70] = 0.5, np.nan
    at = lambda z: np.where(np.isnan(z), -7.0, np.where(z == 0.5, 40.0, np.log1p(z**2)))  # noqa: E731
    grid = Grid(values, smooth=True)
    assert grid.nodes.size < 400
    found = grid.at_all(pt.constant(at(grid.nodes))).eval(mode=PLAIN_MODE)
    np.testing.assert_allclose(found, at(values), atol=1e-6)
    whole = np.round(values * 1e3)
    assert set(Grid(whole, smooth=False).nodes[:-1]) <= set(whole)


def test_a_support_that_moves_is_declined_where_noise_may_jump():
    with pm.Model():
        top = pm.Exponential("top", 1.0)
    law, parameters = ptr.uniform, (pt.constant(0.0), top)
    with pytest.raises(NotImplementedError, match="'top'"):
        general_pair(law, UNIFORM).require(*parameters)
    general_pair(law, dp.LaplaceMechanism(1.0)).require(*parameters)
    general_pair(law, UNIFORM).require(pt.constant(0.0), pt.constant(1.0))


def test_many_releases_of_counts_are_not_interpolated():
    """Between whole numbers the density jumps."""
    values = np.random.default_rng(1).uniform(0.0, 12.0, 700)
    got = evaluated(ptr.poisson, dp.UniformMechanism(0.6), values, (5.0,))[0]
    counts = np.arange(60)
    near = np.abs(values[:, None] - counts) <= 0.6
    np.testing.assert_allclose(np.exp(got), near @ stats.poisson(5.0).pmf(counts) / 1.2, rtol=1e-9)


@pytest.mark.parametrize("how", [{"lower": 0.2}, {"below": 0.2}], ids=str)
def test_many_releases_with_points_are_not_interpolated(how):
    noise = dp.LaplaceMechanism(0.5)
    noise = noise.clipped(**how) if "lower" in how else noise.suppressed(**how)
    values = np.random.default_rng(1).normal(1.0, 1.0, 700)
    values[values < 0.2] = 0.2 if "lower" in how else np.nan
    many = evaluated(ptr.normal, noise, values, (1.0, 1.0))[0]
    few = evaluated(ptr.normal, noise, values[:40], (1.0, 1.0))[0]
    np.testing.assert_allclose(many[:40], few, rtol=1e-9)


@pytest.mark.by_day("law0-mechanism0-2.0-parameters0", "law2-mechanism2-4.2-parameters2")
@pytest.mark.compiled
@pytest.mark.parametrize(
    ("law", "mechanism", "z", "parameters"),
    [
        (ptr.normal, UNIFORM, 2.0, (3.3, 0.7)),
        (ptr.beta, dp.LaplaceMechanism(0.2), 0.9, (0.6, 2.0)),
        (ptr.poisson, STUDENT, 4.2, (6.0,)),
        (MIXED, UNIFORM, 1.1, (0.3, 0.7, 1.0, 0.5, 2.0, 0.8)),
    ],
)
def test_draws_follow_law_times_noise(law, mechanism, z, parameters):
    """Their means and squares are slopes of the marginal in what tilts the law."""
    pair = general_pair(law, mechanism)
    noise = [float(p.eval()) for p in mechanism.parameters]
    row = [z, *noise, -np.inf, np.inf, *parameters]
    draws = 40_000
    rows = np.repeat(np.array(row, dtype=float)[:, None], draws, axis=1)
    drawn = row_sampler(pair.draw, len(row))(np.random.default_rng(2), rows)
    if law is ptr.poisson:
        counts = np.arange(60)
        weights = stats.poisson(6.0).pmf(counts) * np.exp(noise_of(mechanism)(z, counts * 1.0))
        expected = np.cumsum(weights / weights.sum())
        got = np.array([(drawn <= k).mean() for k in counts])
        np.testing.assert_allclose(got, expected, atol=4 * np.sqrt(0.25 / draws))
        return
    densities = {
        ptr.normal: lambda x: stats.norm(3.3, 0.7).pdf(x),
        ptr.beta: lambda x: stats.beta(0.6, 2.0).pdf(x),
        MIXED: QUADRATURE["mixture"][3],
    }
    points = np.linspace(-4.0, 8.0, 1_200_001)[1:] + 1e-9
    weights = densities[law](points) * np.exp(noise_of(mechanism)(z, points))
    cdf = np.cumsum(weights) / weights.sum()
    assert stats.kstest(drawn, lambda x: np.interp(x, points, cdf)).pvalue > 1e-4


READ = {"sd": 1.0}  # a number that functions below read


def _normal(value, mean):
    return -0.5 * ((value - mean) / READ["sd"]) ** 2 - np.log(READ["sd"] * np.sqrt(2 * np.pi))


def _draws(mean, rng=None, size=None):
    return rng.normal(mean, READ["sd"], size)


OWN_LAW = pm.CustomDist.dist(0.0, logp=_normal, random=_draws).owner.op
OWN_NOISE = dp.CustomMechanism(_normal, _draws)


@pytest.mark.parametrize(
    ("law", "mechanism", "parameters"),
    [
        (OWN_LAW, dp.GaussianMechanism(0.5), (0.7,)),
        (ptr.normal, OWN_NOISE, (0.7, 0.5)),
        (ptr.normal, of(lambda x: x + 0.0, OWN_NOISE), (0.7, 0.5)),
    ],
)
def test_a_number_that_a_function_reads_counts_as_it_is(law, mechanism, parameters, monkeypatch):
    """The same objects give the density of the number now."""
    values = np.array([0.1, 3.0])
    for sd in (1.0, 3.0):
        monkeypatch.setitem(READ, "sd", sd)
        found = evaluated(law, mechanism, values, parameters)[0]
        truth = stats.norm.logpdf(values, 0.7, np.hypot(0.5, sd))
        np.testing.assert_allclose(found, truth, rtol=1e-7)


def test_what_has_a_function_of_the_users_is_not_kept():
    mixed = MixtureLaw((ptr.normal, OWN_LAW), (2, 1))
    symbolic = pm.Truncated.dist(pm.CustomDist.dist(0.0, logp=_normal, random=_draws), 0, 9)
    for law in (OWN_LAW, mixed, CensoredLaw(OWN_LAW), symbolic.owner.op):
        assert reads_outside(law)
        assert marginal(law, 0, STUDENT, 1, 1) is not marginal(law, 0, STUDENT, 1, 1)
    for noise in (OWN_NOISE, OWN_NOISE.clipped(0, 1)):
        assert marginal(ptr.normal, 0, noise, 2, 1) is not marginal(ptr.normal, 0, noise, 2, 1)
    assert not reads_outside(MIXED)
    assert marginal(ptr.normal, 0, STUDENT, 2, 1) is marginal(ptr.normal, 0, STUDENT, 2, 1)
