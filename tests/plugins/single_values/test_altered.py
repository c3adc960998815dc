"""Marginals of values that are withheld, clipped or compared, against integrals of the noise."""

from itertools import pairwise

import numpy as np
import pymc as pm
import pytensor
import pytensor.tensor as pt
import pytensor.tensor.random.basic as ptr
import pytest
from scipy import integrate, stats

import pymc_dp as dp
from pymc_dp.graphs.values import PLAIN_MODE, plain_function
from pymc_dp.laws import find_pair, row_sampler
from pymc_dp.plugins.single_values.altered import log_between
from pymc_dp.plugins.single_values.pair import general_pair

NAN = np.nan
NOISES = {
    "Laplace": (dp.LaplaceMechanism(0.5), stats.laplace(scale=0.5)),
    "Gaussian": (dp.GaussianMechanism(0.5), stats.norm(scale=0.5)),
}
LAWS = {
    "Normal": (ptr.normal, (1.3, 0.7), stats.norm(1.3, 0.7)),
    "Gamma": (ptr._gamma, (2.5, 0.6), stats.gamma(2.5, scale=0.6)),
}
RULES = {  # of each what values stand for: ends of noisy values, or None where they are kept
    "below": (
        lambda m: m.suppressed(below=1.0), {NAN: [(-np.inf, 1.0)], 1.4: None, 5.0: None},
    ),
    "above": (lambda m: m.suppressed(above=1.0), {NAN: [(1.0, np.inf)], 0.4: None}),
    "apart": (
        lambda m: m.suppressed(below=0.2, above=2.0, sentinel=-9.0),
        {NAN: [(-np.inf, 0.2), (2.0, np.inf)], -9.0: [(-np.inf, 0.2), (2.0, np.inf)], 0.7: None},
    ),
    "between": (lambda m: m.suppressed(below=1.0, above=0.2), {NAN: [(0.2, 1.0)], -0.4: None}),
    "clipped": (
        lambda m: m.clipped(0.2, 2.0),
        {0.2: [(-np.inf, 0.2)], 2.0: [(2.0, np.inf)], 0.9: None},
    ),
    "compared": (lambda m: m.thresholded(1.0), {0.0: [(-np.inf, 1.0)], 1.0: [(1.0, np.inf)]}),
}  # fmt: skip
IMPOSSIBLE = {"below": 0.7, "apart": 3.0, "between": 0.5, "clipped": 2.5, "compared": 0.5}


def expected(law, noise, value, ends):
    """Return the log of the integral over the values of the law."""

    def of_noise(s):
        if ends is None:
            return noise.pdf(value - s)
        return sum(
            noise.cdf(b - s) - noise.cdf(a - s) if a < s else noise.sf(a - s) - noise.sf(b - s)
            for a, b in ends
        )

    low, high = law.support()
    knots = [max(low, law.mean() - 30), law.mean(), min(high, law.mean() + 60)]
    knots += [b for pair in ends or [(value, value)] for b in pair if np.isfinite(b)]
    return np.log(
        sum(
            integrate.quad(
                lambda s: law.pdf(s) * of_noise(s), a, b, epsabs=0, epsrel=1e-11, limit=400
            )[0]
            for a, b in pairwise(sorted({k for k in knots if k >= low}))
            if b > a
        )
    )


def compiled(law, mechanism, values, count, *, known=True):
    """Return log marginals at values that are known or not, and slopes of their sum, by theta."""
    theta, z = [pt.dscalar() for _ in range(count)], pt.dvector()
    pair = find_pair(law, mechanism)
    each = [pt.broadcast_to(t, (len(values),)) for t in theta]
    logp = pair.log_marginal(mechanism, pt.constant(values) if known else z, *each)
    slopes = pytensor.grad(logp.sum(), theta)
    function = pytensor.function(
        [*theta, z], [logp, *slopes], mode=PLAIN_MODE, on_unused_input="ignore"
    )
    return lambda parameters: function(*parameters, values)


CASES = [  # the integral itself, of a Gamma law with Gaussian noise, is slower to compile
    (law, noise, rule)
    for law in LAWS
    for noise in NOISES
    for rule in RULES
    if (law, noise) != ("Gamma", "Gaussian") or rule == "apart"
]


@pytest.mark.parametrize(("law", "noise", "rule"), CASES)
def test_density_is_the_integral(law, noise, rule):
    op, parameters, of_values = LAWS[law]
    of_noise, density = NOISES[noise]
    altered, meanings = RULES[rule]
    mechanism, values = altered(of_noise), np.array(list(meanings))
    wanted = [expected(of_values, density, z, ends) for z, ends in meanings.items()]
    at = compiled(op, mechanism, values, len(parameters))
    got = at(parameters)
    np.testing.assert_allclose(got[0], wanted, rtol=1e-8, atol=1e-10)
    assert find_pair(op, mechanism).slow == (noise == "Gaussian" and law == "Gamma")
    at_run_time = compiled(op, mechanism, values, len(parameters), known=False)(parameters)
    for one, other in zip(got, at_run_time, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-9, atol=1e-10)
    for i, slope in enumerate(got[1:]):
        up, down = ([p + e * (i == j) for j, p in enumerate(parameters)] for e in (1e-5, -1e-5))
        ends = [at(p)[0].sum() for p in (up, down)]
        np.testing.assert_allclose(slope, (ends[0] - ends[1]) / 2e-5, rtol=1e-6, atol=1e-7)


@pytest.mark.parametrize("rule", IMPOSSIBLE)
def test_no_other_value_is_possible(rule):
    altered, meanings = RULES[rule]
    values = np.array([IMPOSSIBLE[rule], next(iter(meanings))])
    for known in (True, False):
        got = compiled(ptr.normal, altered(NOISES["Laplace"][0]), values, 2, known=known)(
            (0.5, 1.0)
        )
        assert got[0][0] == -np.inf
        assert np.isfinite([got[0][1], *got[1:]]).all()


@pytest.mark.parametrize("noise", NOISES)
@pytest.mark.parametrize("ends", [(-np.inf, -40.0), (40.0, np.inf), (25.0, 25.001), (-9.0, -8.0)])
def test_far_tails(noise, ends):
    """A probability of e^-80 or e^-1500 has as many digits as any other."""
    mechanism = NOISES[noise][0]
    got = log_between(ptr.normal, mechanism, *map(pt.constant, ends), 0.3, 1.2).eval()
    if noise == "Gaussian":
        total = stats.norm(0.3, np.hypot(1.2, 0.5))
        a, b = sorted((abs(e - 0.3) for e in ends), reverse=True)
        wanted = total.logcdf(0.3 - b)
        if np.isfinite(a):
            wanted += np.log(-np.expm1(total.logcdf(0.3 - a) - wanted))
    else:  # the noise alone brings the value there
        a, b = sorted((abs(e) for e in ends), reverse=True)
        sign = np.sign(next(e for e in ends if np.isfinite(e)))
        whole = 2 * 0.3 * sign + 0.5 * (1.2 / 0.5) ** 2  # of e^(s / scale)
        wanted = np.log(-0.5 * np.expm1((b - a) / 0.5)) + whole - b / 0.5
    np.testing.assert_allclose(got, wanted, rtol=1e-6 if ends == (-9.0, -8.0) else 1e-9)


def test_thresholds_that_withhold_nothing():
    rule = dp.LaplaceMechanism(0.5).suppressed(below=np.array([-np.inf, 1.0]))
    logp, *slopes = compiled(ptr.normal, rule, np.array([NAN, NAN]), 2)((1.0, 1.0))
    assert logp[0] == -np.inf
    np.testing.assert_allclose(logp[1], np.log(0.5))
    assert np.isfinite(slopes).all()


def test_kinds_of_rules_are_told_apart():
    """The integrals of two rules that have as many parameters are not one."""
    noise = dp.UniformMechanism(0.5)
    wanted = expected(stats.norm(1.3, 0.7), stats.uniform(-0.5, 1.0), NAN, [(-np.inf, 1.0)])
    of_rules = [noise.suppressed(below=1.0), noise.suppressed(above=1.0)]
    got = [compiled(ptr.normal, m, np.array([NAN]), 2)((1.3, 0.7))[0][0] for m in of_rules]
    np.testing.assert_allclose(got, [wanted, np.log1p(-np.exp(wanted))], rtol=1e-7)
    public = general_pair(ptr.normal, noise.suppressed(where=1.0))
    logp = public.log_marginal(noise.suppressed(where=1.0), pt.constant([NAN]), 1.3, 0.7)
    np.testing.assert_allclose(logp.eval(), 0.0, atol=1e-9)


@pytest.mark.parametrize("rule", ["clipped", "by"])
def test_atoms_are_no_part_of_an_interpolation(rule):
    """A thousand releases of one law: what lies at a bound, or is withheld, stays apart."""
    z, noise = np.random.default_rng(5).normal(size=1000), dp.LaplaceMechanism(0.5)
    altered = {"clipped": noise.clipped(-1, 1), "by": noise.suppressed(below=-0.5, by=noise)}
    z = np.clip(z, -1, 1) if rule == "clipped" else np.where(z < -0.5, NAN, z)
    mechanism, mu = altered[rule], pt.dscalar()
    pair, few = find_pair(ptr.normal, mechanism), np.argsort(z)[[0, 1, 500, -2, -1]]
    each = (pair.log_marginal(mechanism, pt.constant(values), mu, 1.0) for values in (z, z[few]))
    of_all, of_few = plain_function([mu], [*each])(0.3)
    np.testing.assert_allclose(of_all[few], of_few, rtol=1e-8, atol=1e-9)


def clinics(release, size):
    """Return a model of means of a few records, and the standard deviations of these."""
    rng = np.random.default_rng(2)
    n = rng.integers(5, 40, size)
    with pm.Model() as model:
        theta = pm.Normal("theta", 1.0, 1.0, shape=size)
        x = pm.Normal("x", theta[np.repeat(np.arange(size), n)], 2.0, shape=int(n.sum()))
        ends = np.cumsum(n)
        means = pt.stack([x[b - k : b].mean() for b, k in zip(ends, n, strict=True)])
        release(means)
    return model, 2.0 / np.sqrt(n)


@pytest.mark.parametrize("noise", NOISES)
def test_means_of_clinics(noise):
    """Means below a threshold are withheld, and those of two clinics by a public rule."""
    mechanism, density = NOISES[noise]
    z = np.linspace(1.0, 3.0, 40)
    z[::3] = NAN
    hidden = np.isin(np.arange(40), [3, 4])
    z[hidden] = NAN

    def release(means):
        rule = mechanism.suppressed(below=1.0, where=hidden)
        dp.PrivateObservation("z", means, rule, observed=z)

    model, spread = clinics(release, 40)
    collapsed = dp.collapse(model)
    assert [rv.name for rv in collapsed.free_RVs] == ["theta"]
    theta = np.linspace(0.0, 2.5, 40)
    logp = plain_function(
        [collapsed.rvs_to_values[collapsed["theta"]]], collapsed.logp(collapsed["z"], sum=False)
    )
    [got] = logp(theta)
    for j in (0, 3, 4, 5, 6, 38, 39):
        ends = [(-np.inf, 1.0)] if np.isnan(z[j]) else None
        wanted = expected(stats.norm(theta[j], spread[j]), density, z[j], ends)
        np.testing.assert_allclose(got[j], 0.0 if hidden[j] else wanted, rtol=1e-8, atol=1e-10)


def test_means_of_waiting_times():
    """The factor of a mean of Exponential records is one of their law."""
    with pm.Model() as model:
        mean = pm.HalfNormal("mean", 3.0)
        x = pm.Exponential("x", 1 / mean, shape=15)
        rule = dp.LaplaceMechanism(0.5).suppressed(below=1.0)
        means = pt.stack([x[:7].mean(), x[7:].mean()])
        dp.PrivateObservation("z", means, rule, observed=[NAN, 2.0])
    collapsed = dp.collapse(model)
    logp = collapsed.logp(collapsed["z"], sum=False)
    [got] = plain_function([collapsed.rvs_to_values[collapsed["mean"]]], logp)(np.log(1.4))
    for j, n, z, ends in ((0, 7, NAN, [(-np.inf, 1.0)]), (1, 8, 2.0, None)):
        of_mean = stats.gamma(n, scale=1.4 / n)
        np.testing.assert_allclose(
            got[j], expected(of_mean, NOISES["Laplace"][1], z, ends), rtol=1e-8
        )
    released = collapsed["z"].owner.op.law.statistic
    np.testing.assert_allclose(released.shown(np.array([7.0, 16.0])), [7.0, 16.0])  # sums


@pytest.mark.nightly
def test_draws_of_a_withheld_value():
    mechanism = dp.LaplaceMechanism(0.5).suppressed(below=1.0)
    pair = find_pair(ptr.normal, mechanism)
    rows = np.tile([[NAN], [1.0], [0.5], [-np.inf], [np.inf], [1.3], [0.7]], 20_000)
    drawn = row_sampler(pair.draw, len(rows))(np.random.default_rng(1), rows)
    grid = np.linspace(-4, 6, 20_001)
    density = stats.norm(1.3, 0.7).pdf(grid) * stats.laplace(scale=0.5).cdf(1.0 - grid)
    cdf = np.cumsum(density) / density.sum()
    assert stats.kstest(drawn, lambda s: np.interp(s, grid, cdf)).pvalue > 1e-3


LAPLACE = dp.LaplaceMechanism(0.4)
MULTIPLES = {
    "withheld": (
        lambda x: x.mean(axis=1), LAPLACE.suppressed(below=1.0), [3.1, np.nan, 2.4],
        lambda s, z: (stats.laplace.cdf(1.0, s / 5, 0.4) if np.isnan(z) else
                      stats.laplace.pdf(z, s / 5, 0.4))),
    "clipped": (lambda x: 2 * x.mean(axis=1) + 1, LAPLACE.clipped(lower=0), [3.1, 2.2, 6.4],
                lambda s, z: stats.laplace.pdf(z, 2 * s / 5 + 1, 0.4)),
    "heavy": (lambda x: x.mean(axis=1), dp.StudentTMechanism(3.0, 0.4), [3.1, 2.2, 2.4],
              lambda s, z: stats.t.pdf(z, 3, s / 5, 0.4)),
    "rounded": (lambda x: x.mean(axis=1), dp.GaussianMechanism(0.4).rounded(1), [3.1, 2.2, 2.4],
                lambda s, z: np.diff([stats.norm.cdf(z + e, s / 5, 0.4) for e in (-0.05, 0.05)],
                                     axis=0)[0]),
    "whole": (lambda x: x.sum(axis=1) - 1, dp.GeometricMechanism(0.9).clipped(lower=0),
              [3.0, 2.0, 4.0],
              lambda s, z: np.exp(dp.GeometricMechanism(0.9).logp(z, s - 1).eval())),
}  # fmt: skip


@pytest.mark.parametrize("ones", [False, True])
@pytest.mark.parametrize("case", MULTIPLES)
def test_multiples_of_counts(case, ones):
    """Noise that has no scale of its own is that of the sum, behind a linear function."""
    statistic, mechanism, released, noise = MULTIPLES[case]
    with pm.Model() as model:
        p = pm.Beta("p", 2, 2)
        law = pm.Bernoulli("x", p, shape=(3, 5)) if ones else pm.Poisson("x", 5 * p, shape=(3, 5))
        dp.PrivateObservation("z", statistic(law), mechanism, observed=released)
    collapsed = dp.collapse(model)
    got = collapsed.compile_logp([collapsed["z"]], sum=False)({"p_logodds__": np.array(0.0)})[0]
    s = np.arange(6) if ones else np.arange(200)
    law = stats.binom.pmf(s, 5, 0.5) if ones else stats.poisson.pmf(s, 12.5)
    expected = [np.log(law @ noise(s, z)) for z in released]
    np.testing.assert_allclose(got, expected, rtol=1e-9)
