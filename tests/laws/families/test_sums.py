"""Sums over groups of records, against convolutions, quadrature and closed forms."""

import arviz as az
import numpy as np
import pymc as pm
import pytensor.tensor as pt
import pytest
from pytensor import sparse as pts
from scipy import integrate, sparse, stats

import pymc_dp as dp
from pymc_dp.graphs.declined import Declined
from pymc_dp.graphs.questions import PLAIN_MODE as PLAIN
from tests.agreement import follows

LAPLACE, GAUSSIAN, GEOMETRIC = dp.LaplaceMechanism, dp.GaussianMechanism, dp.GeometricMechanism
RNG = np.random.default_rng(20)
SIZES = np.array([1, 4, 7])
G = RNG.permutation(np.repeat(np.arange(3), SIZES))
N = G.size
M = (np.arange(3)[:, None] == G).astype(float)
X = RNG.normal(size=(N, 2)).round(1)
THETA, SIGMA = np.array([0.4, -1.0, 2.0]), 0.7


def density(model, point, to="marginal"):
    """Log density of all releases of a model's rung without records, given its parameters."""
    collapsed = dp.collapse(model, to)
    names = [v.name for v in collapsed.free_RVs]
    assert sorted(names) == sorted(point)
    logps = [pm.logp(r, collapsed.rvs_to_values[r]).sum() for r in collapsed.observed_RVs]
    inputs = [collapsed[name] for name in names]
    return float(pm.compile(inputs, sum(logps), mode=PLAIN)(*(point[n] for n in names)))


def convolved(logpdf, noise, z, lower=-40.0, upper=40.0):
    """Log of the integral of a density times that of noise around a published value."""
    f = lambda s: np.exp(logpdf(s)) * noise.pdf(z - s)  # noqa: E731
    points = sorted({z, *np.clip([z - 1, z + 1, 0], lower, upper)})
    return np.log(
        integrate.quad(f, lower, upper, points=points, epsabs=0, epsrel=1e-11, limit=400)[0]
    )


# --- Spellings: the same density ----------------------------------------------------------------

Z = np.array([0.1, -0.4, 1.5])


def records():
    theta, sigma = pm.Normal("theta", shape=3), pm.HalfNormal("sigma")
    return theta, sigma, pm.Normal("x", theta[G], sigma, shape=N)


def matrix(mechanism):
    dp.PrivateObservation("z", pt.dot(M, records()[2]) / SIZES, mechanism, observed=Z)


def weighted_matrix(mechanism):
    dp.PrivateObservation("z", (M / SIZES[:, None]) @ records()[2], mechanism, observed=Z)


def sparse_matrix(mechanism):
    x = pts.dot(pts.as_sparse_variable(sparse.csr_matrix(M)), records()[2])
    dp.PrivateObservation("z", x / SIZES, mechanism, observed=Z)


def index(mechanism):
    *_, x = records()
    means = pt.stack([x[np.flatnonzero(j == G)].mean() for j in range(3)])
    dp.PrivateObservation("z", means, mechanism, observed=Z)


def mask(mechanism):
    *_, x = records()
    means = [x[j == G].mean() for j in range(3)]
    dp.PrivateObservation("z", means, mechanism, observed=Z)


def products(mechanism):
    *_, x = records()
    means = [(x * (j == G)).sum() / SIZES[j] for j in range(3)]
    dp.PrivateObservation("z", means, mechanism, observed=Z)


def chosen(mechanism):
    *_, x = records()
    means = [pt.where(j == G, x, 0).sum() / SIZES[j] for j in range(3)]
    dp.PrivateObservation("z", means, mechanism, observed=Z)


def added_by_index(mechanism):
    x = pt.inc_subtensor(pt.zeros(3)[G], records()[2])
    dp.PrivateObservation("z", x / SIZES, mechanism, observed=Z)


def bincount(mechanism):
    x = pt.bincount(G, weights=records()[2], minlength=3)
    dp.PrivateObservation("z", x / SIZES, mechanism, observed=Z)


def segments(mechanism):
    """Records in the order of their groups, cut into pieces."""
    theta, sigma = pm.Normal("theta", shape=3), pm.HalfNormal("sigma")
    x = pm.Normal("x", pt.repeat(theta, SIZES), sigma, shape=N)
    ends = np.cumsum([0, *SIZES])
    means = [x[ends[j] : ends[j + 1]].mean() for j in range(3)]
    dp.PrivateObservation("z", means, mechanism, observed=Z)


def releases_of_their_own(mechanism):
    *_, x = records()
    for j in range(3):
        dp.PrivateObservation(f"z{j}", x[j == G].mean(), mechanism, observed=Z[j])


def variables_of_their_own(mechanism):
    theta, sigma = pm.Normal("theta", shape=3), pm.HalfNormal("sigma")
    x = [pm.Normal(f"x{j}", theta[j], sigma, shape=int(SIZES[j])) for j in range(3)]
    dp.PrivateObservation("z", [v.mean() for v in x], mechanism, observed=Z)


def by_hand(mechanism):
    theta, sigma = pm.Normal("theta", shape=3), pm.HalfNormal("sigma")
    y = pm.Normal("y", theta, sigma / np.sqrt(SIZES))
    dp.PrivateObservation("z", y, mechanism, observed=Z)


def data(mechanism):
    theta, sigma = pm.Normal("theta", shape=3), pm.HalfNormal("sigma")
    g = pm.Data("g", G)
    x = pm.Normal("x", theta[g], sigma, shape=g.shape)
    dp.PrivateObservation("z", pt.dot(M, x) / SIZES, mechanism, observed=Z)


def dims(mechanism):
    pm.modelcontext(None).add_coords({"hospital": list("abc"), "patient": range(N)})
    theta, sigma = pm.Normal("theta", dims="hospital"), pm.HalfNormal("sigma")
    x = pm.Normal("x", theta[G], sigma, dims="patient")
    dp.PrivateObservation("z", pt.dot(M, x) / SIZES, mechanism, observed=Z, dims="hospital")


def filled(mechanism):
    """Means that are written out for each record."""
    theta, sigma = pm.Normal("theta", shape=3), pm.HalfNormal("sigma")
    means = [pt.full(int(SIZES[0]), theta[0]), pt.full((int(SIZES[1]),), theta[1])]
    means.append(pt.broadcast_to(theta[2], (int(SIZES[2]),)))
    x = pm.Normal("x", pt.concatenate(means), pt.broadcast_to(sigma, (N,)), shape=N)
    parts = np.repeat(np.eye(3), SIZES, axis=1)
    dp.PrivateObservation("z", pt.dot(parts, x) / SIZES, mechanism, observed=Z)


SPELLINGS = [
    matrix, weighted_matrix, sparse_matrix, index, mask, products, added_by_index, chosen, bincount,
    segments, releases_of_their_own, variables_of_their_own, by_hand, data, dims, filled,
]  # fmt: skip


@pytest.mark.parametrize("spelling", SPELLINGS)
@pytest.mark.parametrize("mechanism", [LAPLACE(0.3), GAUSSIAN(0.3)], ids=["laplace", "gaussian"])
def test_every_spelling_has_the_same_density(spelling, mechanism):
    with pm.Model() as model:
        spelling(mechanism)
    found = density(model, {"theta": THETA, "sigma": SIGMA})
    noise = stats.laplace(scale=0.3) if isinstance(mechanism, LAPLACE) else stats.norm(scale=0.3)
    expected = sum(
        convolved(stats.norm(THETA[j], SIGMA / np.sqrt(SIZES[j])).logpdf, noise, Z[j])
        for j in range(3)
    )
    assert found == pytest.approx(expected, rel=1e-10)


@pytest.mark.parametrize(
    ("statistic", "z"),
    [
        (lambda x: pt.stack([x.mean(), x[0] - x[2]]), np.ones(2)),
        (lambda x: pt.dot(M, x), np.ones(3)),
        (lambda x: pt.stack([x.sum(), x.var()]), np.ones(2)),
        (lambda x: pt.dot(M, x**2), 0.16 * SIZES),
    ],
)
def test_a_negative_spread_is_impossible(statistic, z):
    """Squared in a variance it is lost, and half of the posterior would be another one."""
    with pm.Model() as model:
        x = pm.Normal("x", pm.Normal("mu"), pm.Normal("sigma", 0.4), shape=N)
        dp.PrivateObservation("z", statistic(x), GAUSSIAN(0.3), observed=z)
    for rung in ("marginal", "statistics"):
        try:
            collapsed = dp.collapse(model, rung)
        except Declined:
            continue
        point = collapsed.initial_point()
        possible = collapsed.compile_logp()(point)
        with_negative = collapsed.compile_logp()(point | {"sigma": np.array(-0.4)})
        assert np.isfinite(possible)
        assert not with_negative > -np.inf


def test_rows_of_a_matrix():
    """Records of shape (groups, n), summed along an axis."""
    with pm.Model() as model:
        theta, sigma = pm.Normal("theta", shape=3), pm.HalfNormal("sigma", shape=3)
        x = pm.Normal("x", theta[:, None], sigma[:, None], shape=(3, 5))
        dp.PrivateObservation("z", x.mean(axis=1), GAUSSIAN(0.3), observed=Z)
    sigma = np.array([0.7, 0.1, 2.0])
    expected = stats.norm(THETA, np.sqrt(sigma**2 / 5 + 0.09)).logpdf(Z).sum()
    assert density(model, {"theta": THETA, "sigma": sigma}) == pytest.approx(expected, rel=1e-12)


# --- Laws ---------------------------------------------------------------------------------------


def gamma(a, scale):
    return lambda s: stats.gamma.logpdf(s, a, scale=scale)


@pytest.mark.parametrize("noise", ["laplace", "gaussian"])
@pytest.mark.parametrize("law", ["exponential", "gamma"])
def test_positive_records(law, noise):
    with pm.Model() as model:
        scale = pm.HalfNormal("scale", shape=3)
        if law == "exponential":
            x = pm.Exponential("x", scale=scale[G], shape=N)
        else:
            x = pm.Gamma("x", 2.5, 1 / scale[G], shape=N)
        mechanism = LAPLACE(0.8) if noise == "laplace" else GAUSSIAN(0.8)
        dp.PrivateObservation("z", pt.dot(M, x) / 2, mechanism, observed=[1.0, -0.5, 4.0])
    scale, a = np.array([0.5, 1.2, 0.9]), 1.0 if law == "exponential" else 2.5
    noise = stats.laplace(scale=0.8) if noise == "laplace" else stats.norm(scale=0.8)
    expected = sum(
        convolved(gamma(n * a, s / 2), noise, z, 0.0, 60.0)
        for n, s, z in zip(SIZES, scale, [1.0, -0.5, 4.0], strict=True)
    )
    assert density(model, {"scale": scale}) == pytest.approx(expected, rel=1e-8)


COUNTS = np.array([1, 3, -2])
P = np.array([0.3, 0.6, 0.05])


def counted(masses, mechanism, z):
    """Log of the sum over a count of its mass times that of the noise."""
    support = np.arange(len(masses))
    noise = np.exp(mechanism.logp(float(z), support.astype(float)).eval(mode=PLAIN))
    return np.log(np.dot(masses, noise))


@pytest.mark.parametrize(
    ("law", "mass"),
    [
        ("bernoulli", lambda n, p: stats.binom(n, p)),
        ("binomial", lambda n, p: stats.binom(3 * n, p)),
        ("poisson", lambda n, p: stats.poisson(n * p)),
        ("negative binomial", lambda n, p: stats.nbinom(2.0 * n, p)),
    ],
)
@pytest.mark.parametrize(
    "mechanism", [GEOMETRIC(0.9), dp.DiscreteGaussianMechanism(1.5), LAPLACE(1.1)]
)
def test_counts(law, mass, mechanism):
    with pm.Model() as model:
        p = pm.Uniform("p", shape=3)
        x = {
            "bernoulli": lambda: pm.Bernoulli("x", p[G], shape=N),
            "binomial": lambda: pm.Binomial("x", 3, p[G], shape=N),
            "poisson": lambda: pm.Poisson("x", p[G], shape=N),
            "negative binomial": lambda: pm.NegativeBinomial("x", n=2, p=p[G], shape=N),
        }[law]()
        dp.PrivateObservation("z", pt.dot(M, x), mechanism, observed=COUNTS)
    expected = sum(
        counted(mass(n, q).pmf(np.arange(400)), mechanism, z)
        for n, q, z in zip(SIZES, P, COUNTS, strict=True)
    )
    assert density(model, {"p": P}) == pytest.approx(expected, rel=1e-9)


def test_poisson_rates_add_up_over_covariates_and_exposures():
    exposure = RNG.uniform(0.5, 2.0, N)
    with pm.Model() as model:
        b = pm.Normal("b", shape=2)
        x = pm.Poisson("x", exposure * pt.exp(X @ b), shape=N)
        dp.PrivateObservation("z", pt.dot(M, x), GEOMETRIC(0.9), observed=COUNTS)
    b = np.array([0.3, -0.2])
    rates = M @ (exposure * np.exp(X @ b))
    expected = sum(
        counted(stats.poisson(r).pmf(np.arange(300)), GEOMETRIC(0.9), z)
        for r, z in zip(rates, COUNTS, strict=True)
    )
    assert density(model, {"b": b}) == pytest.approx(expected, rel=1e-10)


def test_shares_of_groups():
    with pm.Model() as model:
        p = pm.Uniform("p", shape=3)
        x = pm.Bernoulli("x", p[G], shape=N)
        dp.PrivateObservation("z", 1 - pt.dot(M, x) / SIZES, LAPLACE(0.2), observed=[0.4, 0.1, 0.9])
    expected = sum(
        np.log(
            np.dot(
                stats.binom(n, q).pmf(np.arange(n + 1)),
                stats.laplace(scale=0.2).pdf(z - 1 + np.arange(n + 1) / n),
            )
        )
        for n, q, z in zip(SIZES, P, [0.4, 0.1, 0.9], strict=True)
    )
    assert density(model, {"p": P}) == pytest.approx(expected, rel=1e-10)


def test_two_arms_in_one_release():
    with pm.Model() as model:
        p, q = pm.Uniform("p"), pm.Uniform("q")
        a, b = pm.Bernoulli("a", p, shape=9), pm.Bernoulli("b", q, shape=14)
        dp.PrivateObservation("z", [a.sum(), b.sum()], GEOMETRIC(0.9), observed=[4, 15])
    expected = counted(stats.binom(9, 0.3).pmf(np.arange(10)), GEOMETRIC(0.9), 4)
    expected += counted(stats.binom(14, 0.8).pmf(np.arange(15)), GEOMETRIC(0.9), 15)
    assert density(model, {"p": 0.3, "q": 0.8}) == pytest.approx(expected, rel=1e-10)


def test_zero_inflated_counts_one_by_one():
    z = np.array([0, 3, -1, 7])
    with pm.Model() as model:
        psi, mu = pm.Uniform("psi"), pm.HalfNormal("mu", 5)
        x = pm.ZeroInflatedPoisson("x", psi, mu, shape=4)
        dp.PrivateObservation("z", x, GEOMETRIC(0.9), observed=z)
    masses = 0.7 * stats.poisson(2.5).pmf(np.arange(100))
    masses[0] += 0.3
    expected = sum(counted(masses, GEOMETRIC(0.9), v) for v in z)
    assert density(model, {"psi": 0.7, "mu": 2.5}) == pytest.approx(expected, rel=1e-10)


# --- Normal records, any linear statistic -------------------------------------------------------


def test_public_design():
    with pm.Model() as model:
        b, sigma = pm.Normal("b", shape=2), pm.HalfNormal("sigma")
        y = pm.Normal("y", X @ b, sigma, shape=N)
        dp.PrivateObservation("z", X.T @ y, GAUSSIAN(0.3), observed=[1.0, 2.0])
    b, sigma = np.array([0.3, -0.2]), 0.7
    cov = sigma**2 * X.T @ X + 0.09 * np.eye(2)
    expected = stats.multivariate_normal(X.T @ X @ b, cov).logpdf([1.0, 2.0])
    assert density(model, {"b": b, "sigma": sigma}) == pytest.approx(expected, rel=1e-11)


def test_spreads_by_group_nested_totals_and_an_offset():
    weights = np.vstack([M, np.ones(N), 0.5 * X[:, 0]])
    with pm.Model() as model:
        theta, b = pm.Normal("theta", shape=3), pm.Normal("b")
        sigma = pm.HalfNormal("sigma", shape=3)
        x = pm.Normal("x", theta[G] - 2 * b * X[:, 1] + 0.1 * X[:, 0], sigma[G], shape=N)
        z = np.arange(5.0)
        dp.PrivateObservation("z", weights @ x + 3.0, GAUSSIAN([0.3] * 5), observed=z)
    sigma, b = np.array([0.7, 0.2, 1.5]), 0.4
    mean = weights @ (THETA[G] - 2 * b * X[:, 1] + 0.1 * X[:, 0]) + 3
    cov = weights @ np.diag(sigma[G] ** 2) @ weights.T + 0.09 * np.eye(5)
    expected = stats.multivariate_normal(mean, cov).logpdf(z)
    found = density(model, {"theta": THETA, "b": b, "sigma": sigma})
    assert found == pytest.approx(expected, rel=1e-9)


def test_crossed_groups():
    h = RNG.integers(0, 2, N)
    with pm.Model() as model:
        theta, tau = pm.Normal("theta", shape=3), pm.HalfNormal("tau")
        raw, scale = pm.Normal("raw", shape=2), pm.HalfNormal("scale", shape=2)
        x = pm.Normal("x", theta[G] + tau * raw[h], scale[h], shape=N)
        dp.PrivateObservation("z", pt.dot(M, x), GAUSSIAN(0.3), observed=Z)
    raw, scale, tau = np.array([0.4, -0.9]), np.array([0.3, 1.1]), 0.6
    sd = np.sqrt(M @ scale[h] ** 2 + 0.09)
    expected = stats.norm(M @ (THETA[G] + tau * raw[h]), sd).logpdf(Z).sum()
    point = {"theta": THETA, "tau": tau, "raw": raw, "scale": scale}
    assert density(model, point) == pytest.approx(expected, rel=1e-11)


def test_statistics_of_several_variables_of_many_spreads():
    """Every record with a spread of its own, and weights that differ."""
    with pm.Model() as model:
        a, s = pm.Normal("a"), pm.HalfNormal("s")
        x = pm.Normal("x", a, s * np.arange(1.0, N + 1), shape=N)
        dp.PrivateObservation("z", pt.dot(M * X[:, 0], x), GAUSSIAN(0.3), observed=Z)
    weights = M * X[:, 0]
    sd = np.sqrt(weights**2 @ (0.5 * np.arange(1.0, N + 1)) ** 2 + 0.09)
    expected = stats.norm(weights.sum(1) * 1.5, sd).logpdf(Z).sum()
    assert density(model, {"a": 1.5, "s": 0.5}) == pytest.approx(expected, rel=1e-11)


# --- Edges --------------------------------------------------------------------------------------


@pytest.mark.parametrize("law", ["normal", "bernoulli", "poisson", "exponential"])
def test_empty_groups_are_noise_alone(law):
    padded = np.vstack([M[:1], np.zeros(N), M[1:]])
    full, short = [1.0, 4.0, 2.0, 3.0], [1.0, 2.0, 3.0]

    def model(weights, z):
        with pm.Model() as made:
            p = pm.Uniform("p", shape=3)
            x = {
                "normal": lambda: pm.Normal("x", p[G], 1.0, shape=N),
                "bernoulli": lambda: pm.Bernoulli("x", p[G], shape=N),
                "poisson": lambda: pm.Poisson("x", p[G], shape=N),
                "exponential": lambda: pm.Exponential("x", scale=p[G], shape=N),
            }[law]()
            dp.PrivateObservation("z", pt.dot(weights, x), LAPLACE(0.7), observed=z)
        return made

    with_empty, without = model(padded, full), model(M, short)
    noise = stats.laplace(scale=0.7).logpdf(4.0)
    found = density(with_empty, {"p": P})
    assert found == pytest.approx(density(without, {"p": P}) + noise, rel=1e-11)
    assert np.isfinite(dp.collapse(with_empty, "statistics").point_logps()["z"])
    collapsed = dp.collapse(with_empty)
    slopes = [
        m.compile_dlogp(mode=PLAIN)(m.initial_point()) for m in (collapsed, dp.collapse(without))
    ]
    np.testing.assert_allclose(*slopes, rtol=1e-9)


@pytest.mark.parametrize("statistic", [lambda x: x, lambda x: pt.stack([x[:2].sum(), x[2:].sum()])])
def test_groups_with_the_same_parameters(statistic):
    z = [3, 1, 0, 2]
    with pm.Model() as model:
        p = pm.Uniform("p")
        x = pm.Binomial("x", 3, p, shape=4)
        s = statistic(x)
        k = s.type.shape[0] or 2
        dp.PrivateObservation("z", s, GEOMETRIC(0.9), observed=z[:k])
    masses = stats.binom(3 * 4 // k, 0.3).pmf(np.arange(13))
    expected = sum(counted(masses, GEOMETRIC(0.9), v) for v in z[:k])
    assert density(model, {"p": 0.3}) == pytest.approx(expected, rel=1e-11)
    assert pm.draw(dp.collapse(model)["z"], random_seed=1).shape == (k,)


def test_an_offset_of_an_empty_group_and_of_what_is_recovered():
    weights = np.vstack([M / SIZES[:, None], np.zeros(N)])
    with pm.Model() as model:
        theta, sigma = pm.Normal("theta", shape=3), pm.HalfNormal("sigma")
        x = pm.Normal("x", theta[G], sigma, shape=N)
        z = [*(Z + 5), 8.0]
        dp.PrivateObservation("z", weights @ x + [5, 5, 5, 8], LAPLACE(0.01), observed=z)
    law = stats.norm(THETA, SIGMA / np.sqrt(SIZES))
    expected = sum(
        convolved(
            stats.norm(THETA[j], SIGMA / np.sqrt(SIZES[j])).logpdf, stats.laplace(scale=0.01), Z[j]
        )
        for j in range(3)
    )
    found = density(model, {"theta": THETA, "sigma": SIGMA})
    assert found == pytest.approx(expected + stats.laplace(scale=0.01).logpdf(0), rel=1e-9)
    assert law.pdf(Z).min() > 0
    collapsed = dp.collapse(model)
    slopes = collapsed.compile_dlogp()(collapsed.initial_point())
    assert np.isfinite(slopes).all()
    posterior = {"theta": np.tile(THETA, (1, 50, 1)), "sigma": np.full((1, 50), SIGMA)}
    idata = az.from_dict({"posterior": posterior})
    means = dp.recover(model, idata, random_seed=1)["posterior"]["x_mean"].to_numpy()
    np.testing.assert_allclose(means.mean(axis=(0, 1)), [*Z, 0.0], atol=0.02)


@pytest.mark.parametrize(
    ("records", "mechanism"),
    [
        (lambda p: pm.Bernoulli("x", p[G], shape=N), GEOMETRIC(0.9).clipped(lower=0)),
        (lambda p: pm.Poisson("x", p[G], shape=N), GEOMETRIC(0.9).clipped(lower=0)),
    ],
)
def test_clipped_noise_around_a_shifted_sum_is_declined(records, mechanism):
    with pm.Model() as model:
        x = records(pm.Uniform("p", shape=3))
        dp.PrivateObservation("z", pt.dot(M, x) - 1, mechanism, observed=[0, 1, 2])
    with pytest.raises(Declined, match="linear function of a sum"):
        dp.collapse(model)


def test_truth_values_and_whole_numbers_in_parameters():
    b = np.array([0.0, -1.5, 0.5])
    with pm.Model() as model:
        beta = pm.Normal("b", shape=3)
        x = pm.Normal("x", (beta > -1)[G] + (beta > -2)[G], 1, shape=N)
        dp.PrivateObservation("z", pt.dot(M, x), GAUSSIAN(0.3), observed=Z)
    mean = ((b > -1) | (b > -2)).astype(float)  # as PyTensor adds truth values
    expected = stats.norm(SIZES * mean, np.sqrt(SIZES + 0.09)).logpdf(Z).sum()
    assert density(model, {"b": b}) == pytest.approx(expected, rel=1e-11)


@pytest.mark.parametrize("spelling", [lambda b: X @ b, lambda b: (X * b).sum(axis=-1)])
def test_impossible_parameters_of_some_records(spelling):
    with pm.Model() as model:
        b = pm.Normal("b", shape=2)
        x = pm.Poisson("x", 1 + spelling(b), shape=N)
        dp.PrivateObservation("z", pt.dot(M, x), GEOMETRIC(0.9), observed=COUNTS)
    assert np.isnan(density(model, {"b": np.array([0.0, 2.0])}))
    b = np.array([0.1, -0.2])
    expected = sum(
        counted(stats.poisson(r).pmf(np.arange(100)), GEOMETRIC(0.9), z)
        for r, z in zip(M @ (1 + X @ b), COUNTS, strict=True)
    )
    assert density(model, {"b": b}) == pytest.approx(expected, rel=1e-10)


def test_two_variables_in_two_releases():
    with pm.Model() as model:
        p = pm.Uniform("p")
        a, b = pm.Poisson("a", p, shape=6), pm.Poisson("b", 5 * p, shape=8)
        for name, part in (("r1", slice(0, 3)), ("r2", slice(3, None))):
            observed = [1, 12]
            statistic = [a[part].sum(), b[part].sum()]
            dp.PrivateObservation(name, statistic, GEOMETRIC(0.9), observed=observed)
    names = {v.name for v in dp.collapse(model, "statistics").free_RVs}
    assert names == {"p", *(f"{v}_{r}_sum" for v in "ab" for r in ("r1", "r2"))}
    posterior = az.from_dict({"posterior": {"p": np.full((1, 5), 0.4)}})
    assert names - {"p"} <= set(dp.recover(model, posterior, random_seed=1)["posterior"])


def test_some_of_the_records():
    with pm.Model() as model:
        p = pm.Uniform("p")
        x = pm.Bernoulli("x", p, shape=9)
        dp.PrivateObservation("z", x[2:6].sum(), GEOMETRIC(0.9), observed=2)
    expected = counted(stats.binom(4, 0.3).pmf(np.arange(5)), GEOMETRIC(0.9), 2)
    assert density(model, {"p": 0.3}) == pytest.approx(expected, rel=1e-11)


def test_the_groups_parameters_stay_in_the_model():
    """A hierarchy of the same length as what is released is no part of the record."""
    with pm.Model() as model:
        m, tau = pm.Normal("m"), pm.HalfNormal("tau")
        raw = pm.Normal("raw", shape=3)
        theta = pm.Deterministic("theta", m + tau * raw)
        y = pm.Normal("y", theta, 0.5)
        dp.PrivateObservation("z", y, LAPLACE(0.3), observed=Z)
    collapsed = dp.collapse(model)
    assert {"m", "tau", "raw", "theta"} <= set(collapsed.named_vars)
    assert "y" not in collapsed.named_vars
    assert "one of y" in str(dp.explain(model))


REFUSALS = {
    "unequal weights": (
        lambda: pm.Exponential("x", scale=pm.HalfNormal("s"), shape=N),
        lambda x: pt.dot(M * np.arange(1, N + 1), x),
        "weighs the records 'x' unequally",
    ),
    "different parameters": (
        lambda: pm.Exponential("x", scale=pm.HalfNormal("s", shape=3)[G], shape=N),
        lambda x: pt.stack([x.sum(), x.sum() * 0 + 1.0])[:1],
        "adds records of 'x' with different parameters",
    ),
    "shared records": (
        lambda: pm.Exponential("x", scale=pm.HalfNormal("s"), shape=N),
        lambda x: pt.stack([x[:4].sum(), x[2:].sum()]),
        "use the same records more than once",
    ),
    "data": (
        lambda: pm.Normal("x", pm.Normal("m"), 1, shape=N),
        lambda x: pt.dot(M, pm.Data("w", np.ones(N)) * x),
        "computed from 'w', which pm.set_data may change",
    ),
    "not finite": (
        lambda: pm.Normal("x", pm.Normal("m"), 1, shape=N),
        lambda x: pt.dot(np.where(M, np.nan, 0.0), x),
        "numbers that are not finite",
    ),
    "not linear": (
        lambda: pm.Normal("x", pm.Normal("m", shape=3)[G], 1, shape=N),
        lambda x: pt.dot(M, x**3),
        "not linear in 'x': `Pow`|of sums of the records and their products|products of 3",
    ),
}


@pytest.mark.parametrize("name", REFUSALS)
def test_refusals_say_why(name):
    make, statistic, match = REFUSALS[name]
    with pm.Model() as model:
        value = statistic(make())
        observed = np.ones([n or 3 for n in value.type.shape])
        dp.PrivateObservation("z", value, LAPLACE(1.0), observed=observed)
    with pytest.raises(Declined, match=match):
        dp.collapse(model, "statistics")


def test_noise_without_a_density_is_of_a_release():
    """The reason names it: a Bernoulli record of each group is reported by itself."""
    with pm.Model() as model:
        x = pm.Bernoulli("x", pm.Beta("p", 1, 1, shape=3)[G], shape=N)
        dp.PrivateObservation("z", x, dp.RandomizedResponse(0.8), observed=np.ones(N, dtype=int))
    with pytest.raises(Declined, match="the release 'z': the probability of a release"):
        dp.collapse(model)


def test_covariates_that_are_nan():
    with pm.Model() as model:
        x = pm.Poisson("x", pm.math.exp(pm.Normal("b") * np.where(G, 1.0, np.nan)), shape=N)
        dp.PrivateObservation("z", pt.dot(M, x), GEOMETRIC(1.0), observed=COUNTS)
    with pytest.raises(ValueError, match="NaN"):
        dp.collapse(model)


# --- Draws --------------------------------------------------------------------------------------


def test_recovered_means_follow_their_law():
    with pm.Model() as model:
        matrix(GAUSSIAN(0.3))
    posterior = {"theta": np.tile(THETA, (1, 4000, 1)), "sigma": np.full((1, 4000), SIGMA)}
    found = dp.recover(model, az.from_dict({"posterior": posterior}), random_seed=1)
    prior = SIGMA**2 / SIZES
    gain = prior / (prior + 0.09)
    for j in range(3):
        draws = found["posterior"]["x_mean"].values[0, :, j]
        law = stats.norm(THETA[j] + gain[j] * (Z[j] - THETA[j]), np.sqrt(prior[j] * (1 - gain[j])))
        follows(draws, law)


def test_prior_predictive_draws_have_the_density():
    with pm.Model() as model:
        theta, sigma = np.array([0.4, -1.0, 2.0]), 0.7
        pm.Normal("other")
        x = pm.Normal("x", theta[G], sigma, shape=N)
        dp.PrivateObservation("z", pt.dot(M, x) / SIZES, GAUSSIAN(0.3), observed=Z)
    collapsed = dp.collapse(model)
    draws = pm.draw(collapsed["z"], 4000, random_seed=2)
    for j in range(3):
        follows(draws[:, j], stats.norm(theta[j], np.sqrt(sigma**2 / SIZES[j] + 0.09)))


def test_covariates_that_are_nan_are_refused():
    with pm.Model() as model:
        covariates = np.array([0.0, 1.0, np.nan])
        x = pm.Normal("x", pm.Normal("b") * covariates, 1, shape=3)
        dp.PrivateObservation("z", x.sum(), LAPLACE(1.0), observed=1.0)
    with pytest.raises(ValueError, match=r"records .x.: .* NaN"):
        dp.collapse(model, "marginal")
