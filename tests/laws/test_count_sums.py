"""Counts integrated out of their release by sums, against every term written out."""

import pickle

import mpmath as mp
import numpy as np
import pymc as pm
import pytensor
import pytensor.tensor as pt
import pytest
from scipy import special, stats

import pymc_dp as dp
from pymc_dp.kernels.counts import laws as count_laws
from pymc_dp.kernels.counts import noise as count_noise
from pymc_dp.kernels.counts import sums as count_sums
from pymc_dp.laws import find_pair, row_sampler
from pymc_dp.laws.count_sums import COUNT_LAWS, CountSum
from tests.agreement import counts_follow, has_moments

LAWS = {
    "PoissonRV": lambda mu: stats.poisson(mu),
    "BinomialRV": lambda n, p: stats.binom(n, p),
    "BernoulliRV": lambda p: stats.bernoulli(p),
    "NegBinomialRV": lambda n, p: stats.nbinom(n, p),
    "GeometricRV": lambda p: stats.geom(p),
    "HyperGeometricRV": lambda good, bad, n: stats.hypergeom(good + bad, good, n),
    "Atom": lambda c: stats.randint(c, c + 1),
}
OPS = {
    "PoissonRV": pm.Poisson.dist(1.0).owner.op,
    "BinomialRV": pm.Binomial.dist(1, 0.5).owner.op,
    "BernoulliRV": pm.Bernoulli.dist(0.5).owner.op,
    "NegBinomialRV": pm.NegativeBinomial.dist(n=1.0, p=0.5).owner.op,
    "GeometricRV": pm.Geometric.dist(0.5).owner.op,
    "HyperGeometricRV": pm.HyperGeometric.dist(N=3, k=1, n=1).owner.op,
    "Atom": next(law for law in COUNT_LAWS if law.__name__ == "Atom")(),
}
SMOOTH = {type(OPS[name]) for name in LAWS} - {type(OPS["HyperGeometricRV"]), type(OPS["Atom"])}
TRIALS = {type(OPS["BinomialRV"])}  # whose first parameter is a whole number
ADDITIVE = (
    dp.LaplaceMechanism(2.0),
    dp.GeometricMechanism(2.0),
    dp.GaussianMechanism(3.0),
    dp.DiscreteGaussianMechanism(3.0),
)
OTHERS = (
    dp.GeometricMechanism(2.0).clipped(0),
    dp.LaplaceMechanism(2.0).clipped(0, 25),
    dp.GaussianMechanism(3.0).rounded(0),
    dp.DiscreteGaussianMechanism(4.0).rounded(-1),
    dp.BinomialMechanism(100, 20, 60),
)
WITHHELD = (
    dp.GeometricMechanism(2.0).suppressed(below=5),
    dp.GeometricMechanism(2.0).suppressed(below=6, above=1, sentinel=3),
    dp.LaplaceMechanism(1.1).rounded().suppressed(below=2).clipped(lower=4),
    dp.GeometricMechanism(2.0).suppressed(below=5, sentinel=-np.inf),
)
PAIRS = [(name, m) for name in OPS for m in (ADDITIVE[0], ADDITIVE[3])]
PAIRS += [("PoissonRV", m) for m in ADDITIVE]
PAIRS += [("PoissonRV", m) for m in (*OTHERS, *WITHHELD)] + [("NegBinomialRV", OTHERS[0])]


def values(mechanism):
    """Releases in the bulk, at atoms, negative, and far from every count."""
    if isinstance(mechanism, dp.BinomialMechanism):
        return np.array([0.0, 20.0, 55.0, 100.0])
    z = np.array([0.0, 3.0, 10.0, -10.0, -70.0, 120.0])
    if "suppressed" in repr(mechanism):  # withheld, printed, as the rule does not let it, clipped
        return np.array([np.nan, 7.0, 60.0, 2.0, 4.0])
    if "clipped" in repr(mechanism):
        z = np.array([0.0, 3.0, 10.0, 25.0])
    return np.round(z, -1) if "rounded(-1)" in repr(mechanism) else z


def brute(name, mechanism, z, parameters):
    """Log sum and posterior over the counts 0 ... 2999."""
    y = np.arange(3000.0)
    law = LAWS[name](*parameters).logpmf(y)
    joint = law + mechanism.logp(z[:, None], y[None, :]).eval()
    total = special.logsumexp(joint, axis=1)
    with np.errstate(invalid="ignore"):
        return total, np.exp(joint - total[:, None])


@pytest.mark.parametrize(("name", "mechanism"), PAIRS, ids=lambda x: str(x))
@pytest.mark.by_day(
    "PoissonRV-LaplaceMechanism(scale=2.0)0",
    "BinomialRV-LaplaceMechanism(scale=2.0)",
    "BernoulliRV-DiscreteGaussianMechanism(sigma=3.0)",
    "NegBinomialRV-DiscreteGaussianMechanism(sigma=3.0)",
    "GeometricRV-LaplaceMechanism(scale=2.0)",
    "HyperGeometricRV-DiscreteGaussianMechanism(sigma=3.0)",
    "Atom-LaplaceMechanism(scale=2.0)",
    "PoissonRV-GeometricMechanism(scale=2.0)",
    "PoissonRV-GaussianMechanism(sigma=3.0)",
    "PoissonRV-GeometricMechanism(scale=2.0).clipped(lower=0.0)",
)
def test_log_marginal_and_gradient(name, mechanism):
    pair = find_pair(OPS[name], mechanism)
    family = COUNT_LAWS[type(OPS[name])]
    z = values(mechanism)
    value = pt.dvector("value")
    symbols = pt.dscalars(len(family.examples[0]))
    logp = pair.log_marginal(mechanism, value, *symbols)
    free = [
        s for s in symbols if pair.law in SMOOTH and not (s is symbols[0] and pair.law in TRIALS)
    ]
    wrt = [*free] if mechanism.is_discrete else [value, *free]
    gradient = pytensor.grad(logp.sum(), wrt) if wrt else []
    function = pytensor.function([value, *symbols], [logp, *gradient])
    for parameters in family.examples:
        found, *slopes = function(z, *parameters)
        expected, _ = brute(name, mechanism, z, parameters)
        np.testing.assert_allclose(found, expected, rtol=1e-10, atol=1e-10)
        if not np.all(np.isfinite(expected)):
            continue
        arguments = [z, *parameters]
        for variable, slope in zip(wrt, slopes, strict=True):
            j = [value, *symbols].index(variable)
            step = 1e-5 if j == 0 else 1e-5 * arguments[j]
            high, low = ([a + (i == j) * d for i, a in enumerate(arguments)] for d in (step, -step))
            numeric = (function(*high)[0] - function(*low)[0]) / (2 * step)
            smooth = np.ones(z.size, dtype=bool)
            if j == 0 and not isinstance(mechanism, dp.GaussianMechanism):
                # Kinks at whole numbers; at an atom of a clipped release there is no derivative.
                smooth = z < 0
            numeric = numeric if j == 0 else numeric.sum()
            slope, numeric = (slope[smooth], numeric[smooth]) if j == 0 else (slope, numeric)
            np.testing.assert_allclose(slope, numeric, rtol=2e-5, atol=2e-5)


@pytest.mark.by_day(
    "BinomialRV-LaplaceMechanism(scale=2.0)-2.4", "GeometricRV-GeometricMechanism(scale=2.0)--3.0"
)
@pytest.mark.parametrize(
    ("name", "mechanism", "z"),
    [
        ("PoissonRV", ADDITIVE[3], 9.0),
        ("BinomialRV", ADDITIVE[0], 2.4),
        ("NegBinomialRV", ADDITIVE[2], 30.0),  # two modes, at zero and near the release
        ("GeometricRV", ADDITIVE[1], -3.0),
        ("HyperGeometricRV", ADDITIVE[3], 7.0),
        ("PoissonRV", OTHERS[0], 0.0),
    ],
    ids=str,
)
def test_draw(name, mechanism, z):
    pair = find_pair(OPS[name], mechanism)
    for seed, parameters in enumerate(COUNT_LAWS[type(OPS[name])].examples):
        theta = pair.parameters(*map(pt.as_tensor, parameters))
        column = [z, *mechanism.parameters, -np.inf, np.inf, *theta]
        _, [posterior] = brute(name, mechanism, np.array([z]), parameters)
        draws_follow(pair, seed, column, posterior, where=str(parameters))


def draws_of(pair, seed, size, column):
    """Draws of a count given its release, the noise, a range and the law's parameters."""
    numbers = [float(np.ravel(pt.as_tensor(x).eval())[0]) for x in column]
    rows = np.repeat(np.array(numbers)[:, None], size, axis=1)
    return row_sampler(pair.draw, len(rows))(np.random.default_rng(seed), rows)


def draws_follow(pair, seed, column, posterior, size=20_000, where=""):
    drawn = draws_of(pair, seed, size, column).astype(int)
    counts_follow(np.bincount(drawn, minlength=posterior.size), posterior, where=where)


def test_draw_keeps_to_a_range():
    pair = find_pair(OPS["PoissonRV"], ADDITIVE[2])
    assert set(draws_of(pair, 1, 2000, [9.0, 3.0, 4.0, 6.0, 3.5])) == {4.0, 5.0, 6.0}


@pytest.mark.parametrize("mechanism", [ADDITIVE[0], ADDITIVE[3], OTHERS[0]], ids=str)
@pytest.mark.parametrize(
    ("law", "edge", "inward"),
    [
        (lambda x: pm.Poisson.dist(x), 0.0, 1e-6),
        (lambda x: pm.Binomial.dist(7, x), 0.0, 1e-6),
        (lambda x: pm.Binomial.dist(7, x), 1.0, -1e-6),
        (lambda x: pm.NegativeBinomial.dist(n=2.5, p=x), 1.0, -1e-6),
        (lambda x: pm.Geometric.dist(x), 1.0, -1e-6),
    ],
    ids=["Poisson", "Binomial 0", "Binomial 1", "NegativeBinomial", "Geometric"],
)
def test_gradient_where_the_count_is_certain(law, edge, inward, mechanism):
    """As for a cell without population, whose rate is zero: NaN would spoil every gradient."""
    x = pt.dscalar("x")
    rv = law(x)
    pair = find_pair(rv.owner.op, mechanism)
    z = pt.constant(np.array([0.0, 3.0, 9.0]))
    logp = pair.log_marginal(mechanism, z, *rv.owner.op.dist_params(rv.owner)).sum()
    function = pytensor.function([x], [logp, pytensor.grad(logp, x)])
    (at, slope), (near, _), (far, _) = (function(edge + k * inward) for k in range(3))
    np.testing.assert_allclose(slope, (4 * near - 3 * at - far) / (2 * inward), rtol=1e-5)


def test_extremes():
    poisson = count_sums.make_count_sum(count_laws.POISSON, count_noise.ADDITIVE)
    # The normal limit, n = 1e9: sd of the count 31623, of the noise 10.
    logp, slope, by_mu = poisson(1e9 + 1e4, (0.0, 0.01), (1e9,))
    variance = 1e9 + 100.0
    expected = stats.norm.logpdf(1e4, 0, variance**0.5) + 0.5 * np.log(2 * np.pi * 100.0)
    np.testing.assert_allclose(logp, expected, atol=2e-5)
    np.testing.assert_allclose(slope, -1e4 / variance, rtol=1e-3)
    np.testing.assert_allclose(by_mu, 1e4 / variance, rtol=1e-3)
    # No noise to speak of, hardly any count, a release far off, a rate of zero.
    np.testing.assert_allclose(
        poisson(7.0, (0.0, 1e12), (3.0,))[0], stats.poisson.logpmf(7, 3), rtol=1e-12
    )
    np.testing.assert_allclose(
        poisson(7.0, (1e6, 0.0), (3.0,))[0], stats.poisson.logpmf(7, 3), rtol=1e-12
    )
    np.testing.assert_allclose(poisson(-1e6, (0.1, 0.0), (1e-8,))[0], -1e5, rtol=1e-12)
    np.testing.assert_allclose(poisson(2.0, (1.0, 0.0), (0.0,)), (-2.0, -1.0, np.e - 1), rtol=1e-12)
    # A release that speaks against what is certain does not outvote it.
    assert poisson(30.0, (0.0, 100.0), (0.0,))[0] == -45_000.0
    binomial = count_sums.make_count_sum(count_laws.BINOMIAL, count_noise.ADDITIVE)
    np.testing.assert_allclose(binomial(1.0, (50.0, 0.0), (5.0, 1.0))[0], -200.0, rtol=1e-12)
    # A negative binomial that is nearly Poisson, from parameters as PyMC's law takes them.
    alpha = pt.dscalar("alpha")
    law = pm.NegativeBinomial.dist(mu=np.float64(9.0), alpha=alpha)
    pair = find_pair(law.owner.op, ADDITIVE[2])
    logp = pair.log_marginal(ADDITIVE[2], pt.constant(12.0), *law.owner.op.dist_params(law.owner))
    function = pytensor.function([alpha], [logp, pytensor.grad(logp, alpha)])
    limit = poisson(12.0, (0.0, 1 / 9), (9.0,))[0] + float(ADDITIVE[2].logp(0.0, 0.0).eval())
    for r in (1e6, 1e9, 1e15, 1e20, 1e300):
        found, by_alpha = function(r)
        np.testing.assert_allclose(found, limit, atol=20 / r + 1e-13)
        assert abs(by_alpha) < 100 / r / r + 1e-12 / r
    # Where sums have no end in sight, and where doubles do not hold whole numbers.
    assert np.isnan(poisson(1e17, (0.0, 1e-18), (1e17,))[0])
    assert np.isnan(poisson(1e14, (1e-8, 0.0), (1e14,))[0])  # a kink: all would have to be summed
    np.testing.assert_allclose(poisson(1e14, (0.0, 1e-20), (1e14,))[0], 0.0, atol=1e-4)
    # Nor is there an end where the sum of two counts is rounded.
    assert not poisson(2.0**53 + 2, (0.0, 0.25), (1.35,))[0] > -1e15
    for bad in (-1.0, np.nan, np.inf):
        assert np.isnan(poisson(2.0, (1.0, 0.0), (bad,))[0])


MIXTURES = {
    "zero-inflated Poisson": (
        lambda: pm.ZeroInflatedPoisson.dist(psi=np.float64(0.3), mu=np.float64(4.0), shape=4),
        lambda y: 0.7 * (y == 0) + 0.3 * stats.poisson(4).pmf(y),
    ),
    "one component with an axis": (
        lambda: pm.Mixture.dist(
            np.array([0.3, 0.7]), pm.Poisson.dist(np.array([1.0, 20.0])), shape=4
        ),
        lambda y: 0.3 * stats.poisson(1).pmf(y) + 0.7 * stats.poisson(20).pmf(y),
    ),
}


@pytest.mark.by_day("zero-inflated Poisson")
@pytest.mark.parametrize("case", MIXTURES)
def test_mixtures(case):
    build, law = MIXTURES[case]
    z, y = np.array([0, 3, -4, 10.0]), np.arange(400)
    mechanism = dp.DiscreteGaussianMechanism(3.0)
    with pm.Model() as model:
        dp.PrivateObservation("z", build(), mechanism, observed=z)
    joint = law(y) * np.exp(mechanism.logp(z[:, None], y[None, :]).eval())
    expected = np.log(joint.sum(1))
    np.testing.assert_allclose(model.compile_logp()({}), expected.sum(), rtol=1e-12)
    # Prior predictive: the mean of a release is that of the count.
    drawn = pm.draw(model["z"], 2000, random_seed=1).ravel()
    has_moments(drawn, law(y) @ y)
    # Draws of the count given the release.
    pair = find_pair(model["z"].owner.op.law.statistic.law, mechanism)
    column = [*mechanism.parameters, -np.inf, np.inf]
    column += pair.parameters(*model["z"].owner.op.split(model["z"].owner.inputs)[1])
    for seed, (z_j, row) in enumerate(zip(z, joint, strict=True)):
        draws_follow(pair, seed, [z_j, *column], row, size=5000)


def test_what_cannot_be_integrated_out_is_named():
    noise = dp.GeometricMechanism(1.0)
    with pm.Model():
        with pytest.raises(NotImplementedError, match=r"'z': .*Register the confidential value"):
            dp.PrivateObservation("z", pm.Dirichlet.dist([1, 1]), noise, observed=[3, 4])
        hurdle = pm.HurdlePoisson.dist(psi=0.5, mu=2.0)
        dp.PrivateObservation("y", hurdle, noise, observed=3)
        truncated = pm.Mixture.dist([0.5, 0.5], [pm.DiracDelta.dist(0), pm.Geometric.dist(0.5)])
        dp.PrivateObservation("z", truncated, noise, observed=3)


def test_the_op_pickles():
    op = CountSum(count_laws.POISSON, dp.GeometricMechanism(2.0).clipped(0))
    again = pickle.loads(pickle.dumps(op))
    assert again == op
    assert hash(again) == hash(op)
    assert again.impl(0.0, 2.0, 3.0, 1.5) == op.impl(0.0, 2.0, 3.0, 1.5)


def exactly(name, z, lam, tau, theta):
    """Log sum, slope by z and the slope by the last parameter, all terms with many digits."""
    with mp.workdps(40):
        *whole, x = map(mp.mpf, theta)
        total = by_z = by_x = mp.mpf(0)
        for y in range(int(whole[0]) + 1 if name == "binomial" else 300):
            if name == "poisson":
                term, score = x**y / mp.factorial(y) * mp.exp(-x), y / x - 1
            else:
                n = whole[0]
                term = mp.binomial(n, y) * x**y * (1 - x) ** (n - y)
                score = y / x - (n - y) / (1 - x)
            e = mp.mpf(z) - y
            term *= mp.exp(-lam * abs(e) - tau * e * e / 2)
            total, by_x = total + term, by_x + term * score
            by_z -= term * (tau * e + (lam if e >= 0 else -lam))
        return float(mp.log(total)), float(by_z / total), float(by_x / total)


def test_a_spike_apart_from_the_mode_is_part_of_a_wide_sum():
    y, r, mu = np.arange(400_001.0), 1e-10, 1e5
    law = stats.nbinom(r, r / (r + mu)).logpmf(y)
    noise = dp.GaussianMechanism(1.24e4)
    expected = special.logsumexp(law + noise.logp(np.array(1e5), y).eval())
    parameters = pt.constant(r), pt.constant(r / (r + mu))
    found = find_pair(OPS["NegBinomialRV"], noise).log_marginal(noise, 1e5, *parameters)
    np.testing.assert_allclose(found.eval(), expected, atol=1e-8)


def test_wide_sums():
    """Of hundreds of thousands of terms; as many as these are not summed one by one."""
    z, wide = 1.01e6, np.arange(9.0e5, 1.15e6)
    smooth = [
        ("NegBinomialRV", (60000.0, 60000.0 / 1.06e6), dp.GaussianMechanism(2e4), z),
        ("BinomialRV", (4e6, 0.25), dp.DiscreteGaussianMechanism(9e3), z),
        ("PoissonRV", (1e6,), dp.GeometricMechanism(50.0).suppressed(below=4), np.nan),
        ("PoissonRV", (1e6,), dp.LaplaceMechanism(900.0), z),  # this has a kink
    ]
    for name, parameters, mechanism, released in smooth:
        law = LAWS[name](*parameters).logpmf(wide)
        joint = law + mechanism.logp(np.array(released), wide).eval()
        symbols = pt.dscalars(len(parameters))
        logp = find_pair(OPS[name], mechanism).log_marginal(mechanism, released, *symbols)
        slope = pytensor.grad(logp, symbols[-1])
        found, by_last = pytensor.function(symbols, [logp, slope])(*parameters)
        if released == z:
            assert found == pytest.approx(special.logsumexp(joint), abs=5e-9)  # of gammaln
        step = 1e-6 * parameters[-1]
        high, low = (
            LAWS[name](*parameters[:-1], parameters[-1] + d).logpmf(wide) for d in (step, -step)
        )
        weights = np.exp(joint - special.logsumexp(joint))
        numeric = (weights @ (high - low)) / (2 * step)
        if released == z:
            assert by_last == pytest.approx(numeric, rel=1e-5)
        else:  # the terms are far below: sum of a law that is shifted, in closed form
            rate, fall = parameters[0], np.exp(-1 / 50.0)
            expected = rate * (fall - 1) + 3 / 50.0 - np.log1p(fall)
            assert found == pytest.approx(expected, rel=1e-10)
            assert by_last == pytest.approx(fall - 1, rel=1e-9)


@pytest.mark.parametrize("noise", [(0.0, 1 / 16), (0.25, 0.0), (3.0, 0.0), (0.0, 40.0), (0.1, 0.3)])
@pytest.mark.parametrize(
    ("name", "theta"),
    [
        *(("poisson", (mu,)) for mu in (1e-300, 1e-3, 0.6, 4.0, 11.5, 33.0, 90.0)),
        *(("binomial", (n, p)) for n, p in ((1.0, 0.3), (7.0, 0.999), (8.0, 0.5), (60.0, 0.2))),
    ],
)
def test_short_sums(name, theta, noise):
    """Their ends are looked for now and then, and they begin beside a mode: no digit is lost."""
    law = {"poisson": count_laws.POISSON, "binomial": count_laws.BINOMIAL}[name]
    found_by = count_sums.make_count_sum(law, count_noise.ADDITIVE)
    for z in (-60.0, 0.0, 0.4, 7.0, 12.5, 64.0, 150.0):
        found, expected = found_by(z, noise, theta), exactly(name, z, *noise, theta)
        scale = max(1.0, abs(expected[0]), 0.5 * noise[1] * z * z)  # of what is rounded
        assert abs(found[0] - expected[0]) <= 4e-15 * scale, z
        np.testing.assert_allclose(found[1:], expected[1:], rtol=1e-12 + 1e-14 * scale, atol=3e-13)
