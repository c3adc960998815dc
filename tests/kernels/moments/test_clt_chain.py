"""Regression from noisy sums: its law in closed form, its chain against exact posteriors."""

import json
from functools import partial

import arviz as az
import numpy as np
import pytest
from scipy import stats

from pymc_dp.kernels.functions import linear_algebra
from pymc_dp.kernels.moments import clt_chain as chain
from pymc_dp.plugins.regression.clt import read_moments
from pymc_dp.plugins.regression.kernels import clt_law as law
from tests.agreement import has_moments, weighted
from tests.references import references

CASES = {c["id"]: c for c in references("regression")}
EXACT = ["A_exact_n10_b5.0", "A_exact_n10_b0.2", "A_exact_n100_b5.0"]


def read(fourth):
    """Return eta and Xi."""
    found = read_moments(fourth)
    return found.second, found.root @ found.root.T


def root_of(xi):
    values, vectors = np.linalg.eigh(xi)
    return vectors * np.sqrt(np.maximum(values, 0.0))


def kernel_model(name, *, hierarchical=False, bounded=False):
    x = CASES[name]["inputs"]
    if "moments_1_to_4" in x:
        powers = x["moments_1_to_4"]
        if isinstance(powers, str):  # the sums of the data themselves, as text
            powers = np.array(json.loads(powers[powers.index("[") : powers.index("]") + 1])) / 46
        eta, xi = read(powers)
        precision = np.eye(2) * 0.25
    else:
        eta, xi = law.gaussian_moments(np.zeros(1), np.array([[0.04]]))
        precision = np.eye(2) * 0.5 / 19
    return chain.RegressionModel(
        n=float(x["n"]),
        z=np.array(x["z"]),
        laplace=np.array(x["b"]),
        gaussian=np.zeros(5),
        mu0=np.array(x["prior"]["mu0"], float),
        lambda0=precision,
        a0=20.0,
        b0=0.5,
        eta=eta,
        xi=xi,
        xi_root=root_of(xi),
        hierarchical=hierarchical,  # tau2 ~ InverseGamma(25, 0.5)
        m0=np.zeros(1),
        k0=1.0,
        psi0=np.eye(1),
        nu0=50.0,
        bounded=bounded,
        box=np.array([0.0, 1.0, 0.0, 1.0]),
    )


def sample(model, draws, seed=0, warm=2000):
    """Draws of (theta, sigma2, s[, root])."""
    rng, d = np.random.default_rng(seed), model.mu0.size
    width = d + 1 + model.z.size + (d * d if model.hierarchical else 0)
    state = chain.run_sweeps(
        rng, chain.initial_state(model), model, True, 1, np.empty((warm, width))
    )
    out = np.empty((draws, width))
    chain.run_sweeps(rng, state, model, False, 1, out)
    return out


agrees = partial(has_moments, sd_within=0.03, least=100)


def gaussian_moment(indices, mean, cov):
    """E of a product of jointly Normal variables, from its definition by recursion (Isserlis)."""
    if not indices:
        return 1.0
    first, rest = indices[0], indices[1:]
    total = mean[first] * gaussian_moment(rest, mean, cov)
    for at, other in enumerate(rest):
        left = rest[:at] + rest[at + 1 :]
        total += cov[first, other] * gaussian_moment(left, mean, cov)
    return total


def test_reference_law_of_a_row():
    x, exact = CASES["A_moments_d2"]["inputs"], CASES["A_moments_d2"]["expected"]
    for eta, xi in (
        read(x["eta4"]),
        law.gaussian_moments(np.array(x["mx"]), np.array(x["T"])),
    ):
        mean, cov = law.row_law(np.array(x["theta"]), x["sigma2"], eta, xi)
        np.testing.assert_allclose(mean, exact["mu_t"], rtol=1e-12)
        np.testing.assert_allclose(cov, exact["Sigma_t"], rtol=1e-12)


def three_features():
    mean_x, theta = np.array([0.4, -0.7]), np.array([0.3, -1.1, 0.6])
    cov_x, sigma2 = np.array([[0.5, 0.2], [0.2, 0.3]]), 0.4
    return mean_x, cov_x, theta, sigma2


def test_law_of_a_row_by_brute_force():
    """Every moment of (1, x, y) as a jointly Normal vector."""
    mean_x, cov_x, theta, sigma2 = three_features()
    to_y = np.vstack([np.eye(3), theta])
    cov = np.zeros((3, 3))
    cov[1:, 1:] = cov_x
    cov = to_y @ cov @ to_y.T
    cov[3, 3] += sigma2
    mean = to_y @ np.append(1.0, mean_x)
    pairs = [(i, j) for i in range(3) for j in range(max(i, 1), 3)] + [(i, 3) for i in range(4)]
    expected = np.array([gaussian_moment(p, mean, cov) for p in pairs])
    second = np.array([[gaussian_moment(p + q, mean, cov) for q in pairs] for p in pairs])
    m, v = law.row_law(theta, sigma2, *law.gaussian_moments(mean_x, cov_x))
    np.testing.assert_allclose(m, expected, atol=1e-12)
    np.testing.assert_allclose(v, second - np.outer(expected, expected), atol=1e-12)


def test_density_of_the_sums_in_its_parts():
    """p(X'X) p(u) p(v) is the density of N(n m, n V): differences, since constants are left out."""
    mean_x, cov_x, theta, sigma2 = three_features()
    n, s = 20.0, np.array([7.0, -15, 12, -6, 17, 20, 15, -16, 60])
    values = []
    for scale in (1.0, 1.4):
        moments = law.gaussian_moments(scale * mean_x, scale * cov_x)
        t, v = scale * theta, scale * sigma2
        root, _ = linear_algebra.factor(moments[0])
        m, cov = law.row_law(t, v, *moments)
        exact = stats.multivariate_normal(n * m, n * cov).logpdf(s)
        parts = law.log_products(s, n, root) + law.log_responses(s, t, v, n, root)
        values.append((exact, parts))
    (a, b), (c, d) = values
    assert abs(a - c) > 1.0
    np.testing.assert_allclose(b - d, a - c, rtol=1e-9)


def test_singular_moments_and_repair():
    """A binary covariate has x^2 = x; released moments need not be moments of anything."""
    eta, xi = read([0.3] * 4)
    _, cov = law.row_law(np.array([0.5, -2.0]), 0.1, eta, xi)
    assert -1e-12 < np.linalg.eigvalsh(cov)[0] < 1e-12
    assert read_moments([0.3] * 4).moved == 0.0
    np.testing.assert_allclose(xi, 0.21, rtol=1e-12)

    found = read_moments([0.28, 0.07, 0.075, 0.05])  # var x < 0
    assert found.moved > 0.1
    eta, xi = found.second, found.root @ found.root.T
    assert np.linalg.eigvalsh(xi)[0] >= -1e-15
    assert eta[0, 0] == 1.0
    assert eta[0, 1] == pytest.approx(0.28)
    assert eta[1, 1] - eta[0, 1] ** 2 == pytest.approx(xi[0, 0], rel=1e-6)
    assert xi[0, 0] > 0
    assert found.mean[1] == eta[1, 1]
    assert linear_algebra.factor(eta)[1]


def test_reference_conjugate_update():
    x, exact = CASES["A_nig_d3"]["inputs"], CASES["A_nig_d3"]["expected"]
    rows = np.column_stack([x["X"], x["y"]])
    b, n = rows.T @ rows, float(len(rows))
    prior = np.array(x["mu0"]), np.array(x["Lambda0"]), x["a0"], x["b0"]
    mu, u, a_n, b_n, ok = chain.nig_update(b, n, *prior)
    assert ok
    for found, name in ((mu, "mu_n"), (u.T @ u, "Lambda_n"), (a_n, "a_n"), (b_n, "b_n")):
        np.testing.assert_allclose(found, exact[name], rtol=3e-7)
    i, j = np.triu_indices(4)
    s = b[i, j][[1, 2, 4, 5, 7, 3, 6, 8, 9]]  # moves y behind the features
    np.testing.assert_array_equal(law.cross_products(s, n, 3), b)

    point, other = (mu + 0.1, 0.3), (mu - 0.3, 0.8)

    def exact_logp(theta, sigma2):
        cov = sigma2 * np.linalg.inv(u.T @ u)
        return stats.multivariate_normal(mu, cov).logpdf(theta) + stats.invgamma(
            a_n, scale=b_n
        ).logpdf(sigma2)

    found = [chain.log_nig(*at, mu, u.T @ u, a_n, b_n) for at in (point, other)]
    assert abs(found[0] - found[1] - exact_logp(*point) + exact_logp(*other)) < 1e-9
    rng = np.random.default_rng(0)
    draws = [chain.draw_nig(rng, mu, u, a_n, b_n) for _ in range(20_000)]
    theta = np.array([t for t, _ in draws])
    np.testing.assert_allclose(np.mean([v for _, v in draws]), b_n / (a_n - 1), rtol=0.02)
    cov = b_n / (a_n - 1) * np.linalg.inv(u.T @ u)
    sd = np.sqrt(np.diag(cov))
    scale = np.outer(sd, sd)
    np.testing.assert_allclose(np.cov(theta.T) / scale, cov / scale, atol=0.03)


def test_normal_inverse_wishart():
    m, k = np.array([0.5, -1.0]), 3.0
    psi, nu = np.array([[2.0, 0.5], [0.5, 1.0]]), 9.0
    rng = np.random.default_rng(1)
    draws = [chain.draw_niw(rng, m, k, psi, nu)[:2] for _ in range(30_000)]
    covs = np.array([c for _, c in draws])
    exact = stats.invwishart(nu, psi)
    np.testing.assert_allclose(covs.mean(0), exact.mean(), atol=0.01)
    np.testing.assert_allclose(covs.var(0), exact.var(), rtol=0.2)
    np.testing.assert_allclose(
        np.cov(np.array([a for a, _ in draws]).T) * k, exact.mean(), atol=0.02
    )

    def both(mean, cov):
        root = np.eye(3)
        root[0, 1:], root[1:, 1:] = mean, np.linalg.cholesky(cov).T
        exact_logp = exact.logpdf(cov) + stats.multivariate_normal(m, cov / k).logpdf(mean)
        return np.array([exact_logp, chain.log_niw(root, m, k, psi, nu)])

    apart = both(*draws[0]) - both(*draws[1])
    assert abs(apart[0] - apart[1]) < 1e-9


def norm_product(mean, cov, z, noise):
    precision = np.linalg.inv(cov) + np.diag(1 / noise)
    out = np.linalg.inv(precision)
    return out @ (np.linalg.solve(cov, mean) + z / noise), out


@pytest.mark.parametrize("hierarchical", [False, True])
def test_statistics_given_the_noise_variances(hierarchical):
    """The draw's mean and covariance are those of the product of the two Normals."""
    x, exact = CASES["A_normproduct"]["inputs"], CASES["A_normproduct"]["expected"]
    names = ("mu1", "Sigma1", "z", "omega2")
    mean, cov = norm_product(*(np.array(x[name]) for name in names))
    np.testing.assert_allclose(mean, exact["mu3"], rtol=1e-6)
    np.testing.assert_allclose(cov, exact["Sigma3"], rtol=1e-6)

    model = kernel_model("A_exact_n10_b5.0", hierarchical=hierarchical)
    eta, xi = law.gaussian_moments(np.array([0.3]), np.array([[0.2]]))
    model = model._replace(eta=eta, xi=xi, xi_root=root_of(xi))
    theta, sigma2, noise = np.array([0.5, -1.0]), 0.3, np.array([0.2, 5, 1, 0.5, 3])
    released = np.array([0, 2, 3, 4])  # x'x was not
    rng, root = np.random.default_rng(3), linear_algebra.factor(eta)[0]
    s = np.array(
        [
            chain.draw_statistics(rng, model, released, noise, theta, sigma2, root)[0]
            for _ in range(40_000)
        ]
    )
    m, v = law.row_law(theta, sigma2, eta, xi)
    noise[1] = 1e12
    mean, cov = norm_product(10 * m, 10 * v, model.z, noise)
    sd = np.sqrt(np.diag(cov))
    assert np.all(np.abs(s.mean(0) - mean) < 4 * sd / 200)
    np.testing.assert_allclose(np.cov(s.T) / np.outer(sd, sd), cov / np.outer(sd, sd), atol=0.03)


@pytest.mark.parametrize("name", EXACT)
@pytest.mark.by_day("A_exact_n100_b5.0")
def test_reference_posteriors(name):
    exact = CASES[name]["expected"]["clt_joint"]
    draws = sample(kernel_model(name), 60_000)[:, :3]
    agrees(draws, exact["mean"], exact["sd"], exact["mean_se"], sd_within=0.04)
    quantiles = np.quantile(draws, [0.05, 0.25, 0.5, 0.75, 0.95], axis=0).T
    off = np.abs(quantiles - exact["q05_25_50_75_95"])
    assert np.all(off < 0.08 * np.array(exact["sd"])[:, None])


@pytest.mark.parametrize("name", ["A_KR_A_mh", "A_KR_A_cltjoint_collapsed"])
@pytest.mark.by_day("A_KR_A_cltjoint_collapsed")
def test_references_of_the_cirrhosis_data(name):
    exact = CASES[name]["expected"]
    draws = sample(kernel_model(name), 60_000)
    agrees(draws[:, : len(exact["mean"])], exact["mean"], exact["sd"], exact["se"])


def importance_sample(model, count=400_000, seed=9):
    """Draws from the prior of everything, s by its law, weighed by the noise and the bounds."""
    rng, n = np.random.default_rng(seed), model.n
    sigma2 = model.b0 / rng.gamma(model.a0, size=count)
    theta = model.mu0 + np.sqrt(sigma2)[:, None] * (
        rng.standard_normal((count, 2)) / np.sqrt(np.diag(model.lambda0))
    )
    mean, var = np.full(count, model.eta[0, 1]), np.full(count, model.eta[1, 1])
    if model.hierarchical:
        var = 0.5 * model.psi0[0, 0] / rng.gamma(0.5 * model.nu0, size=count)
        mean = model.m0[0] + np.sqrt(var / model.k0) * rng.standard_normal(count)
        e, q = np.sqrt(n) * rng.standard_normal((2, count))
        sx = n * mean + np.sqrt(var) * e
        # sum of (x - mean)^2 = var (n + sqrt(2) q)
        sxx = var * (n + np.sqrt(2) * q) + 2 * mean * sx - n * mean**2
        second = var + mean**2
    else:
        sx, sxx = rng.multivariate_normal(n * model.eta[[0, 1], 1], n * model.xi, count).T
        second = var
    g = np.sqrt(n * sigma2) * rng.standard_normal((2, count))
    u0, u1 = g[0], mean * g[0] + np.sqrt(second - mean**2) * g[1]
    sy = theta[:, 0] * n + theta[:, 1] * sx + u0
    sxy = theta[:, 0] * sx + theta[:, 1] * sxx + u1
    v = sigma2 * (n + np.sqrt(2 * n) * rng.standard_normal(count))
    syy = v + theta[:, 0] * (sy + u0) + theta[:, 1] * (sxy + u1)
    s = np.column_stack([sx, sxx, sy, sxy, syy])
    logw = -np.sum(np.abs(model.z - s) / model.laplace, axis=1)
    inside = np.ones(count, bool)
    if model.bounded:
        gram = np.stack([np.full(count, n), sx, sy, sx, sxx, sxy, sy, sxy, syy], -1)
        inside = np.linalg.eigvalsh(gram.reshape(-1, 3, 3))[:, 0] > 0
        inside &= (sxx >= 0) & (sxx <= sx) & (sx <= n) & (syy >= 0) & (syy <= sy) & (sy <= n)
        inside &= (np.maximum(0, sx + sy - n) <= sxy) & (sxy <= np.minimum(sx, sy))
        ends = np.column_stack([theta[:, 0], theta.sum(1)])
        inside &= (sigma2 <= 0.25) & (ends.max(1) >= 0) & (ends.min(1) <= 1)
    w = np.where(inside, np.exp(logw - logw.max()), 0.0)
    values = np.column_stack([theta, sigma2, s, mean])[:, : 9 if model.hierarchical else 8]
    return weighted(values, w), inside.mean()


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("A_KR_A_unc", {"bounded": True}),
        ("A_exact_n10_b5.0", {"hierarchical": True}),
        ("A_KR_A_unc", {"hierarchical": True, "bounded": True}),
    ],
)
@pytest.mark.by_day("A_KR_A_unc-options0")
def test_against_importance_sampling(name, options):
    model = kernel_model(name, **options)
    if model.bounded and model.hierarchical:
        model = model._replace(m0=np.array([0.3]), psi0=np.array([[0.4]]), nu0=8.0)
    moments, inside = importance_sample(model)
    if model.bounded:
        assert inside < 0.9  # the bounds matter
    draws = sample(model, 60_000)
    if model.hierarchical:
        draws = draws[:, [*range(8), 9]]  # root[0, 1] is the mean of x
    agrees(draws, *moments)


@pytest.mark.nightly
def test_huge_noise_returns_the_prior():
    """Three features, Laplace and Gaussian noise and a sum that was not released."""
    mean_x, cov_x, theta, _ = three_features()
    eta, xi = law.gaussian_moments(mean_x, cov_x)
    laplace, gaussian = np.full(9, 1e7), np.zeros(9)
    laplace[[1, 4, 7]], gaussian[[4, 7]] = 0.0, 1e7
    model = kernel_model(EXACT[0], hierarchical=True)._replace(
        n=50.0,
        z=np.full(9, 3.0),
        laplace=laplace,
        gaussian=gaussian,
        mu0=theta,
        lambda0=np.diag([1.0, 2.0, 4.0]),
        a0=6.0,
        b0=5.0,
        eta=eta,
        xi=xi,
        xi_root=root_of(xi),
        m0=mean_x,
        k0=2.0,
        psi0=15 * cov_x,
        nu0=18.0,
    )
    draws = sample(model, 50_000, warm=4000)
    sd = np.sqrt(1 / np.array([1.0, 2.0, 4.0]))  # E sigma2 = 1
    agrees(draws[:, :4], [*theta, 1.0], [*sd, 0.5], sd_within=0.06)
    root = draws[:, -9:].reshape(-1, 3, 3)
    covs = np.einsum("nij,nik->njk", root[:, 1:, 1:], root[:, 1:, 1:])
    means = root[:, 0, 1:]
    agrees(means, mean_x, np.sqrt(np.diag(cov_x) / 2), sd_within=0.06)
    entries = np.triu_indices(2)
    exact = stats.invwishart(18.0, 15 * cov_x)
    sd = np.sqrt(exact.var()[entries])
    agrees(covs[:, *entries], exact.mean()[entries], sd, sd_within=0.15)


@pytest.mark.by_day("False")
@pytest.mark.parametrize("hierarchical", [False, True])
def test_slopes_of_both_signs(hierarchical):
    """Noise that hides X'y, not y'y, leaves two modes; the prior has no sign either."""
    model = kernel_model("A_exact_n100_b5.0", hierarchical=hierarchical)
    noise = np.array([1.0, 0.1, 1.0, 1e3, 1.0])
    model = model._replace(z=np.array([0.0, 4.0, 0.0, 0.0, 100.0]), laplace=noise)
    draws = np.stack([sample(model, 8000, seed=seed) for seed in range(4)])
    slope = draws[..., 1]
    assert az.rhat(slope) < 1.02
    assert np.all(np.abs((slope > 0).mean(axis=1) - 0.5) < 0.15)
    assert np.quantile(np.abs(slope), 0.25) > 1.0


@pytest.mark.parametrize(("scale", "floor"), [(0.2, 0.1), (5.0, 0.1), (160.0, 0.1)])
def test_mixing_at_any_noise(scale, floor):
    """The pseudo-Gibbs chain has 0.005 effective draws a sweep at the largest scale."""
    rng = np.random.default_rng(5)
    x = rng.normal(0, 0.2, 100)
    y = 0.6 - 0.8 * x + rng.normal(0, 0.17, 100)
    s = np.array([x.sum(), x @ x, y.sum(), x @ y, y @ y])
    model = kernel_model("A_exact_n100_b5.0")
    z = s + scale * rng.laplace(size=5)
    draws = sample(model._replace(z=z, laplace=np.full(5, scale)), 20_000)
    assert az.ess(draws[None, :, :3]).min() > floor * len(draws)


def test_released_without_a_possible_law_of_the_statistics():
    """Sums far outside of what data can give leave the chain moving."""
    model = kernel_model("A_exact_n10_b0.2")._replace(z=np.array([0.6, -3.0, 5.8, 0.1, -4.0]))
    draws = sample(model, 20_000)
    assert np.all(np.isfinite(draws))
    assert np.all(draws[:, 2] > 0)
    assert np.mean(np.diff(draws[:, 0]) != 0) > 0.2
