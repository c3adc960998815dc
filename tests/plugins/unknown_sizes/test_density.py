"""Records of unknown number, against the sum over their numbers written out."""

import arviz_base as az
import numpy as np
import pymc as pm
import pytensor.tensor as pt
import pytest
from pytensor.graph.replace import graph_replace
from scipy import special, stats

import pymc_dp as dp
from pymc_dp.graphs.declined import Declined
from pymc_dp.plugins.unknown_sizes.density import Windows
from tests.agreement import follows, same_law, values_follow
from tests.models import route_table

MU, SIGMA, P, RATE = 1.3, 2.1, 0.35, 90.0
N = np.arange(2000)
LAPLACE, GEOMETRIC = dp.LaplaceMechanism, dp.GeometricMechanism


def geometric(d, scale):
    a = np.exp(-1 / scale)
    return np.log((1 - a) / (1 + a)) - np.abs(d) / scale


def normal_with_laplace(z, mean, sd, b):
    """Log density of a Normal value with Laplace noise."""
    r, k = (z - mean) / sd, sd / b
    sides = [k**2 / 2 - sign * r * k + special.log_ndtr(sign * r - k) for sign in (1, -1)]
    return np.logaddexp(*sides) - np.log(2 * b)


def normal_sum(z, n, b):
    found = normal_with_laplace(z, n * MU, np.sqrt(np.maximum(n, 1)) * SIGMA, b)
    return np.where(n > 0, found, -abs(z) / b - np.log(2 * b))


def normal_mean(z, n, b):
    m = np.maximum(n, 1)
    found = normal_with_laplace(z, np.full(n.size, MU), SIGMA / np.sqrt(m), b)
    return np.where(n > 0, found, -np.inf)


def ones(z, n, scale):
    k = np.arange(400)
    log = stats.binom.logpmf(k, n[:, None], P) + geometric(z - k, scale)
    return special.logsumexp(log, axis=1)


def mean_of_ones(z, n, b):
    k, m = np.arange(400), np.maximum(n, 1)[:, None]
    log = stats.binom.logpmf(k, m, P) + stats.laplace.logpdf(z, k / m, b)
    return np.where(n > 0, special.logsumexp(log, axis=1), -np.inf)


def normal(n):
    return pm.Normal("x", pm.Normal("mu"), pm.HalfNormal("sigma"), shape=n)


def bernoulli(n):
    return pm.Bernoulli("x", pm.Beta("p", 1, 1), shape=n)


def poisson(n):
    return stats.poisson.logpmf(n, RATE)


# Records; what is released of n and of them, the noise and the value; and the log density of all.
CASES = {
    "a number and a sum": (
        normal, lambda n, x: [(n, GEOMETRIC(1.5), 95), (x.sum(), LAPLACE(4.0), 131.0)],
        lambda n: geometric(95 - n, 1.5) + normal_sum(131.0, n, 4.0),
    ),
    "a sum and a number": (
        normal, lambda n, x: [(x.sum(), LAPLACE(4.0), 131.0), (n, GEOMETRIC(1.5), 95)],
        lambda n: geometric(95 - n, 1.5) + normal_sum(131.0, n, 4.0),
    ),
    "one list": (
        normal, lambda n, x: [(pt.stack([n, x.sum()]), LAPLACE([2.0, 9.0]), [88.3, 131.0])],
        lambda n: stats.laplace.logpdf(88.3, n, 2.0) + normal_sum(131.0, n, 9.0),
    ),
    "a mean": (
        normal, lambda n, x: [(n, LAPLACE(3.0), 80.2), (x.mean(), LAPLACE(0.2), 1.9)],
        lambda n: stats.laplace.logpdf(80.2, n, 3.0) + normal_mean(1.9, n, 0.2),
    ),
    "a multiple of a sum, twice the number": (
        normal,
        lambda n, x: [(2 * n, LAPLACE(3.0), 180.2), (1 + 3 * x.sum(), LAPLACE(12.0), 300.0)],
        lambda n: stats.laplace.logpdf(180.2, 2 * n, 3.0)
        + normal_sum(299.0 / 3, n, 4.0) - np.log(3),
    ),
    "far below all numbers": (
        normal, lambda n, x: [(n, GEOMETRIC(1.0), -12), (x.sum(), LAPLACE(4.0), 20.0)],
        lambda n: geometric(-12 - n, 1.0) + normal_sum(20.0, n, 4.0),
    ),
    "the number of ones": (
        bernoulli, lambda n, x: [(n, GEOMETRIC(2.0), 97), (x.sum(), GEOMETRIC(2.0), 30)],
        lambda n: geometric(97 - n, 2.0) + ones(30, n, 2.0),
    ),
    "a mean of ones": (
        bernoulli, lambda n, x: [(n, GEOMETRIC(2.0), 97), (x.mean(), LAPLACE(0.05), 0.3)],
        lambda n: geometric(97 - n, 2.0) + mean_of_ones(0.3, n, 0.05),
    ),
    "the number twice": (
        bernoulli,
        lambda n, x: [(pt.stack([n, n]), LAPLACE(5.0), [85.5, 99.0]), (x.sum(), GEOMETRIC(2), 30)],
        lambda n: sum(stats.laplace.logpdf(z, n, 5.0) for z in (85.5, 99.0)) + ones(30, n, 2.0),
    ),
}  # fmt: skip
VALUES = {"mu": MU, "sigma_log__": np.log(SIGMA), "p_logodds__": special.logit(P)}


def model_of(case):
    records, releases, _ = CASES[case]
    with pm.Model() as model:
        n = pm.Poisson("n", pm.Gamma("rate", 2, 0.02))
        for k, (statistic, noise, value) in enumerate(releases(n, records(n))):
            dp.PrivateObservation(f"z{k}", statistic, noise, observed=value)
    return model


def density(model, **values):
    collapsed = dp.collapse(model, "marginal")
    logp = collapsed.compile_fn(collapsed.logp(collapsed.observed_RVs), on_unused_input="ignore")
    given = VALUES | {"rate_log__": np.log(RATE)} | values
    return float(logp({v.name: given[v.name] for v in collapsed.value_vars}))


@pytest.mark.parametrize("case", CASES)
def test_density_against_enumeration(case):
    expected = special.logsumexp(poisson(N) + CASES[case][-1](N))
    np.testing.assert_allclose(density(model_of(case)), expected, atol=2e-9)


def test_what_is_added_for_each_record_is_added_as_often_as_there_are_records():
    with pm.Model() as model:
        x = pm.Normal(
            "x", pm.Normal("mu"), pm.HalfNormal("sigma"), shape=pm.DiscreteUniform("n", 3, 4)
        )
        dp.PrivateObservation("z", (2 * x - 1).sum(), dp.GaussianMechanism(0.7), observed=4.0)
    n = np.array([3, 4])
    law = stats.norm(n * (2 * MU - 1), np.sqrt(4 * n * SIGMA**2 + 0.49))
    assert density(model) == pytest.approx(np.log(law.pdf(4.0).mean()), abs=1e-9)


@pytest.mark.parametrize("what", ["sum", "mean"])
@pytest.mark.parametrize("released", [False, True])
def test_clamped_sums_of_a_few_possible_numbers(released, what):
    b, z = (2.0, 11.0) if what == "sum" else (0.25, 1.4)

    def law(n):
        return pt.clip(pm.Normal("x", pm.Normal("mu"), pm.HalfNormal("sigma"), shape=n), 0, 4)

    each = []
    for k in range(6, 10):
        with pm.Model() as known:
            dp.PrivateObservation("z", getattr(law(k), what)(), LAPLACE(b), observed=z)
        each.append(density(known) + released * stats.laplace.logpdf(7.7, k, 1.0) - np.log(4))
    with pm.Model() as model:
        n = pm.DiscreteUniform("n", 6, 9)
        dp.PrivateObservation("z", getattr(law(n), what)(), LAPLACE(b), observed=z)
        if released:
            dp.PrivateObservation("count", n, LAPLACE(1.0), observed=7.7)
    np.testing.assert_allclose(density(model), special.logsumexp(each), atol=1e-8)


def multinomial(z, p, noises, others=0.0):
    """Log density of noisy counts of classes for each number of records, by enumeration."""
    n = np.arange(40)
    cells = np.stack(np.meshgrid(*[n] * len(p), indexing="ij"), axis=-1).reshape(-1, len(p))
    cells = cells[cells.sum(axis=1) < n.size]
    log = special.gammaln(cells.sum(axis=1) + 1) - special.gammaln(cells + 1).sum(axis=1)
    log = log + (cells * np.log(p)).sum(axis=1)
    for k, noise in enumerate(noises):
        log = log + noise(z[k] - cells[:, k])
    return np.array([special.logsumexp(log[cells.sum(axis=1) == m]) for m in n])


PRIORS = {
    "poisson": (lambda: pm.Poisson("n", pm.Gamma("rate", 2, 0.02)), stats.poisson(9.0)),
    "binomial": (lambda: pm.Binomial("n", 25, 0.3), stats.binom(25, 0.3)),
    "negative binomial": (
        lambda: pm.NegativeBinomial("n", n=2.5, p=0.3), stats.nbinom(2.5, 0.3)
    ),
}  # fmt: skip
CHANCES = np.array([0.5, 0.3, 0.2])


def of_bins(x):
    return [(x < 0).sum(), ((x >= 0) & (x < 1.5)).sum(), pt.ge(x, 1.5).sum()]


HISTOGRAMS = {
    "all bins": (lambda n: normal(n), lambda n, x: of_bins(x), [2, 5, 4]),
    "some bins": (lambda n: normal(n), lambda n, x: of_bins(x)[1:], [5, 4]),
    "far from the prior": (lambda n: normal(n), lambda n, x: of_bins(x), [-3, 11, 4]),
    "categories": (
        lambda n: pm.Categorical("x", pm.Dirichlet("q", np.ones(3)), shape=n),
        lambda n, x: [pt.eq(x, k).sum() for k in range(3)], [2, 5, 4],
    ),
    "ones and zeros": (bernoulli, lambda n, x: [n - x.sum(), x.sum()], [2, 5]),
}  # fmt: skip


@pytest.mark.parametrize("case", HISTOGRAMS)
@pytest.mark.parametrize(
    ("prior", "beside"), [("poisson", True), *((prior, False) for prior in PRIORS)]
)
def test_histograms_against_enumeration(prior, case, beside):
    records, statistic, z = HISTOGRAMS[case]
    with pm.Model() as model:
        n = PRIORS[prior][0]()
        cells = pt.stack(statistic(n, records(n)))
        if beside:
            dp.PrivateObservation("count", n, LAPLACE(2.0), observed=8.3)
        dp.PrivateObservation("z", cells, GEOMETRIC(0.8), observed=z)
    below = stats.norm(MU, SIGMA).cdf([0.0, 1.5])
    p = {"categories": CHANCES, "ones and zeros": np.array([1 - P, P])}.get(
        case, np.diff([0.0, *below, 1.0])
    )
    first = case == "some bins"  # nothing is published of the first
    noises = [lambda d: 0.0 * d] * first + [lambda d: geometric(d, 0.8)] * len(z)
    m = np.arange(40)
    expected = multinomial([0] * first + z, p, noises) + PRIORS[prior][1].logpmf(m)
    if beside:
        expected = expected + stats.laplace.logpdf(8.3, m, 2.0)
    values = {"q_simplex__": np.log(CHANCES)[:2] - np.log(CHANCES).mean(), "rate_log__": np.log(9)}
    if first and prior == "poisson" and not beside:
        with pytest.raises(Declined, match="is not released"):
            density(model, **values)
        return
    found = density(model, **values)
    np.testing.assert_allclose(found, special.logsumexp(expected), atol=1e-8)


def test_draws_of_histograms_follow_the_model():
    with pm.Model() as model:
        n = pm.Poisson("n", 30)
        x = pm.Normal("x", MU, SIGMA, shape=n)
        dp.PrivateObservation("count", n, LAPLACE(1.0), observed=30.0)
        dp.PrivateObservation("z", pt.stack(of_bins(x)), GEOMETRIC(0.5), observed=[9, 8, 13])
    collapsed = dp.collapse(model)
    drawn = pm.draw([collapsed["count"], collapsed["z"]], 4000, random_seed=1)
    rng = np.random.default_rng(2)
    chances = np.diff([0.0, *stats.norm(MU, SIGMA).cdf([0.0, 1.5]), 1.0])
    sums = rng.poisson(30 * chances, (4000, 3))
    found = [drawn[1].sum(axis=1), drawn[1][:, 2], drawn[1][:, 0]]
    for mine, cells in zip(found, [sums.sum(axis=1), sums[:, 2], sums[:, 0]], strict=True):
        assert abs(mine.mean() - cells.mean()) < 6 * cells.std() / 60


def recovered(model, draws, **values):
    posterior = {name: np.full((1, draws), value) for name, value in values.items()}
    return dp.recover(model, az.from_dict({"posterior": posterior}), random_seed=1)["posterior"]


@pytest.mark.parametrize("case", ["a mean", "the number of ones"])
def test_recovered_sums_follow_their_law(case):
    """Against the law of the sum given the number and the release, averaged over the numbers."""
    draws, records = 4_000, {"p": P} if case == "the number of ones" else {"mu": MU, "sigma": SIGMA}
    found = recovered(model_of(case), draws, rate=RATE, **records)
    sums = found["x_count" if case == "the number of ones" else "x_sum"].values.ravel()
    chance = special.softmax(poisson(N) + CASES[case][-1](N))
    if case == "the number of ones":
        k = np.arange(400)
        terms = stats.binom.logpmf(k, N[:, None], P) + geometric(30 - k, 2.0)
        values_follow(sums, k, chance @ special.softmax(terms, axis=1))
        return
    z, b = 1.9 * N, 0.2 * np.maximum(N, 1)
    grid, density = np.linspace(-150, 500, 6501), 0.0
    for m in np.flatnonzero(chance > 1e-12):
        log = stats.norm.logpdf(grid, m * MU, np.sqrt(m) * SIGMA) - abs(grid - z[m]) / b[m]
        density = density + chance[m] * special.softmax(log)
    follows(sums, (grid, density))


def test_recovered_clamped_sums_follow_their_law():
    draws = 400
    with pm.Model() as model:
        n = pm.DiscreteUniform("n", 0, 4)
        x = pm.Normal("x", pm.Normal("mu"), 1.0, shape=n)
        total = pt.clip(x, 0, 1).sum() / 2
        dp.PrivateObservation(
            "z", pt.stack([total, n]), dp.GaussianMechanism(0.7), observed=[0.9, 2]
        )
    found = recovered(model, draws, mu=0.4)
    both = found["z_confidential"].values[0]
    np.testing.assert_array_equal(both[:, 1], found["n"].values[0])
    step = 1e-3
    one = np.diff(np.r_[0.0, stats.norm(0.4, 1).cdf(np.arange(0.5, 1 / step) * step), 1.0])
    masses = [np.array([1.0])]
    for _ in range(4):
        masses.append(np.convolve(masses[-1], one))
    law = np.zeros(4 * one.size)
    for m, mass in enumerate(masses):
        s = np.arange(mass.size) * step
        law[: s.size] += mass * np.exp(-0.5 * ((0.9 - s / 2) ** 2 + (2 - m) ** 2) / 0.49)
    k = np.rint(2 * both[:, 0] / step).astype(int)
    place = np.r_[0.0, np.cumsum(law)][k] + np.random.default_rng(1).random(draws) * law[k]
    follows(place / law.sum(), "uniform")


def test_draws_follow_the_model():
    collapsed = dp.collapse(model_of("one list"), "marginal")
    given = pm.do(collapsed, {"mu": MU, "sigma": SIGMA, "rate": RATE})
    count, total = pm.draw(given["z0"], 20_000, random_seed=1).T
    rng = np.random.default_rng(2)
    n = rng.poisson(RATE, 20_000)
    sums = rng.normal(n * MU, np.sqrt(n) * SIGMA) + rng.laplace(0, 9.0, n.size)
    same_law(count, n + rng.laplace(0, 2.0, n.size))
    same_law(total, sums)


def test_route_and_nothing_of_their_number_is_sampled():
    model = model_of("a number and a sum")
    open_routes = [route.name for route, rate, _ in route_table(model) if rate]
    assert open_routes == ["NUTS on the marginal"]
    with model, pytest.raises(ValueError, match=r"dp.sample\(model\)"):
        pm.sample(draws=1, tune=1, chains=1, progressbar=False)


@pytest.mark.parametrize(("z", "warns"), [(1000.0, True), (120.0, False)])
def test_numbers_that_are_left_out_are_told_where_they_matter(caplog, z, warns):
    """The prior allows some 22 to 208 records of about one, and the sum is of a thousand."""
    with pm.Model() as model:
        x = pm.Normal("x", pm.Normal("t", 1, 0.1), 0.1, shape=pm.Poisson("n", 100))
        dp.PrivateObservation("z", x.sum(), dp.GaussianMechanism(1.0), observed=z)
    draws = {"draws": 60, "tune": 60, "chains": 1, "random_seed": 1, "progressbar": False}
    with caplog.at_level("WARNING", "pymc.dp"):
        dp.sample(model, **draws)
    assert ("other numbers matter" in caplog.text) == warns


def test_a_billion_records():
    with pm.Model() as model:
        n = pm.Poisson("n", pm.Gamma("rate", 2, 1e-9))
        x = pm.Normal("x", pm.Normal("mu"), pm.HalfNormal("sigma"), shape=n)
        dp.PrivateObservation("count", n, GEOMETRIC(10.0), observed=1_000_000_007)
        dp.PrivateObservation("sum", x.sum(), LAPLACE(50.0), observed=1.3e9)
    assert np.isfinite(density(model, rate_log__=np.log(1e9)))


@pytest.mark.parametrize(
    "law",
    [
        lambda n: pm.Censored("x", pm.Normal.dist(0, 1), 0.2, 1.2, shape=n),
        lambda n: pm.NormalMixture("x", [0.3, 0.7], [0.0, 1.0], 0.5, shape=n),
        pytest.param(
            lambda n: pm.HurdleGamma("x", 0.6, 2.0, 1.0, shape=n),
            marks=pytest.mark.filterwarnings("ignore:No safe default transform"),
        ),
    ],
)
def test_classes_of_records_of_several_parts_are_refused(law):
    with pm.Model() as model:
        x = law(pm.DiscreteUniform("n", 3, 6))
        dp.PrivateObservation("z", (x > 1).sum(), LAPLACE(1.0), observed=2.0)
    with pytest.raises(Declined, match=r"'z' of the records 'x': .* no number in classes"):
        dp.collapse(model, "marginal")


@pytest.mark.parametrize(("total", "says"), [(1000.0, True), (2003.0, False)])
def test_collapse_says_what_its_density_leaves_out(total, says, caplog):
    with pm.Model() as model:
        n = pm.Poisson("n", 200.0)
        x = pm.Normal("x", pm.Normal("mu", 10, 0.05), 1.0, shape=n)
        dp.PrivateObservation("count", n, dp.LaplaceMechanism(1.0), observed=200.0)
        dp.PrivateObservation("sum", x.sum(), dp.GaussianMechanism(2.0), observed=total)
    dp.collapse(model)
    assert ("near the mode of the density other numbers matter" in caplog.text) == says


def test_the_moments_of_sums_in_another_order():
    """Given the noisy numbers; entries are not in the order of the groups."""
    with pm.Model() as model:
        n = pm.Poisson("n", 40.0, shape=2)
        law = pm.Normal.dist(pm.Normal("mu", shape=2), 2.0)
        total = dp.RecordSums("x", law, n, of=lambda x: x.clip(-1, 3), shape=2)
        dp.PrivateObservation("number", n, GEOMETRIC(2.0), observed=[35, 44])
        z = pt.stack([2.0 * total[1] + 5.0, total[0]])
        dp.PrivateObservation("z", z, LAPLACE(8.0), observed=[90.0, 30.0])
    op = (marginal := dp.collapse(model))["z"].owner.op
    assert op.law.by_inversion
    _, parameters = op.split(marginal["z"].owner.inputs)
    fixed = {marginal["mu"]: np.array([0.4, 1.5]), marginal["number"]: np.array([35, 44])}
    at = graph_replace(parameters, {v: pt.constant(x) for v, x in fixed.items()}, strict=False)
    _, draw = op.law.draw(pt.random.shared_rng(seed=1), *at)
    draws = pm.draw(draw, 20_000, random_seed=1)
    for law in (op.law, op.law.coarse):
        mean, variance = pm.draw(law.mean_variance(*at))
        assert abs(mean - draws.mean(axis=0)).max() < 0.5  # of 90 and 30
        np.testing.assert_allclose(variance, draws.var(axis=0), rtol=0.06)


@pytest.mark.parametrize("likely", [None, np.array([-3.0, 30.0, 180.0])])
def test_some_numbers_stand_for_all(likely):
    every = Windows(np.array([0, 7, 100]), np.array([60, 7, 260]), likely)
    some = every.coarse
    assert some.sizes.shape[1] < every.sizes.shape[1]
    for function in (lambda n: 1.0 + 0 * n, lambda n: 2.0 + 3.0 * n):
        exact = (every.within * function(every.sizes)).sum(axis=1)
        np.testing.assert_allclose((some.times * function(some.sizes)).sum(axis=1), exact)
    few = Windows(np.array([0]), np.array([5]))
    assert few.coarse is few


def clipped_sums(release):
    """Two groups of clipped records; `release` takes their numbers and sums."""
    with pm.Model() as model:
        mu, n = pm.Normal("mu"), pm.Poisson("n", np.array([60.0, 150.0]), shape=2)
        sums = [pt.clip(pm.Normal(f"x{j}", mu + j, 1.0, shape=n[j]), 0, 3).sum() for j in range(2)]
        release(n, sums)
    return dp.collapse(model, "marginal")


def law_of(model, name):
    op, inputs = model[name].owner.op, model[name].owner.inputs
    return op.law, *op.split(inputs)


def test_a_density_by_inversion_is_not_thinned():
    """It takes consecutive numbers."""

    def release(n, sums):
        dp.PrivateObservation("z0", sums[0], LAPLACE(4.0), observed=30.0)
        both = pt.stack([1.0 * n[0], sums[1]])
        dp.PrivateObservation("z1", both, LAPLACE(4.0), observed=[60.0, 220.0])

    model = clipped_sums(release)
    first, last = (law_of(model, name)[0] for name in ("z0", "z1"))
    assert first.by_inversion
    assert first.coarse is not first
    assert not last.by_inversion
    assert last.coarse is last
