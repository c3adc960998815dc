"""The law of sums over rows: exact, and by the central limit theorem."""

import numpy as np
import pymc as pm
import pytensor
import pytensor.tensor as pt
import pytest
from pymc.distributions.distribution import _support_point
from pytensor.compile.mode import Mode
from scipy import stats

import pymc_dp as dp
from pymc_dp.laws.integrated import integrated_release
from pymc_dp.laws.moments.latents import Linearised, row_latents
from pymc_dp.laws.moments.normal import NormalStatistics
from pymc_dp.laws.moments.sums import (
    ExactLatents,
    column_products,
    nearest_sample,
    normal_law,
    normal_sums,
)
from pymc_dp.plugins.regression.clt import moment_latents, moment_law, moment_sums, read_moments
from tests.agreement import follows, same_law
from tests.models import five_sums
from tests.row_moments import gaussian_moment, product_law

PLAIN = Mode(linker="py", optimizer=None)
RNG = np.random.default_rng(1)


def value(*graphs):
    return [np.asarray(v) for v in pytensor.function([], list(graphs), mode=PLAIN)()]


def normal_rows(width):
    root = np.linalg.cholesky(np.cov(RNG.normal(size=(width, 3 * width))) + 0.1 * np.eye(width))
    return RNG.normal(size=width), root


def test_law_of_rows_by_brute_force():
    """Every moment of a Normal row; stated moments of its covariates give the same law."""
    d = 3  # two covariates, and the intercept
    mean_x, root_x = normal_rows(d - 1)
    theta, sigma = RNG.normal(size=d), 0.7
    row = np.concatenate([theta[1:] @ root_x, [sigma]])
    root = np.block([[root_x, np.zeros((d - 1, 1))], [row[None]]])
    mean = np.append(mean_x, theta[0] + theta[1:] @ mean_x)
    features, cov_x = np.append(1.0, mean_x), np.zeros((d, d))
    cov_x[1:, 1:] = root_x @ root_x.T
    fourth = [gaussian_moment(index, features, cov_x) for index in np.ndindex(d, d, d, d)]
    moments = read_moments(np.reshape(fourth, (d, d, d, d)))
    parts = pt.constant(theta[0]), pt.constant(theta[1:]), pt.constant(sigma)
    for law in (normal_law(pt.constant(mean), pt.constant(root), d), moment_law(moments, *parts)):
        m, cov = product_law(law.products, mean, root @ root.T)
        ours, factor = value(law.mean, law.factor)
        np.testing.assert_allclose(ours, m, rtol=1e-11)
        np.testing.assert_allclose(factor @ factor.T, cov, rtol=1e-9, atol=1e-10)


def fourth_moments(features):
    return np.einsum("ni,nj,nk,nl->ijkl", *[features] * 4) / len(features)


def of_sums(sums, products):
    """Return the sums as one vector, around zero."""
    center, first, second = value(sums.center, sums.first, sums.second)
    assert not center.any()
    return np.array([first[p[0]] if len(p) == 1 else second[p] for p in products])


def test_latents_and_law_are_the_same():
    n, width = 50, 3
    mean, root = normal_rows(width)
    z = RNG.normal(size=width + width * (width + 1) // 2)
    sums = normal_sums(pt.constant(mean), pt.constant(root), n, width, pt.constant(z))
    center, first, second = value(sums.center, sums.first, sums.second)
    raw = first + n * center
    products = second + np.outer(center, first) + np.outer(first, center)
    products += n * np.outer(center, center)
    law = normal_law(pt.constant(mean), pt.constant(root), width)
    m, f = value(law.mean, law.factor)
    expected = n * m + np.sqrt(n) * f @ z
    ours = [raw[p[0]] if len(p) == 1 else products[p] for p in law.products]
    np.testing.assert_allclose(ours, expected, rtol=1e-11)


def test_latents_and_law_are_the_same_for_stated_moments():
    n = 50
    features = np.column_stack([np.ones(400), RNG.gamma(2.0, size=(400, 2))])
    fourth = fourth_moments(features)
    moments = read_moments(fourth)
    parts = moments, pt.constant(0.3), pt.constant([1.0, -2.0]), pt.constant(0.7)
    z = RNG.normal(size=moment_latents(moments))
    law = moment_law(*parts)
    m, f = value(law.mean, law.factor)
    ours = of_sums(moment_sums(*parts, n, pt.constant(z)), law.products)
    np.testing.assert_allclose(ours, n * m + np.sqrt(n) * f @ z, rtol=1e-10)
    # Errors of three values with the moments of a Normal one, up to the fourth.
    rows = np.repeat(features, 3, axis=0)
    error = np.tile([-1.0, 0.0, 1.0], 400) * np.sqrt(3.0) * 0.7
    columns = np.column_stack([rows[:, 1:], rows @ [0.3, 1.0, -2.0] + error])
    weight = np.tile([1.0, 4.0, 1.0], 400) / 2400
    own = np.column_stack([columns[:, p].prod(axis=1) for p in map(list, law.products)])
    mean = weight @ own
    np.testing.assert_allclose(m, mean, rtol=1e-12)
    cov = (own - mean).T @ (weight[:, None] * (own - mean))
    np.testing.assert_allclose(f @ f.T, cov, rtol=1e-8, atol=1e-9)


def test_moments_of_two_values_are_singular():
    """The square of a binary covariate is the covariate."""
    moments = read_moments([0.3] * 4)
    assert moments.moved == 0.0
    np.testing.assert_allclose(moments.root @ moments.root.T, 0.21, rtol=1e-12)
    law = moment_law(moments, pt.constant(0.5), pt.constant([-2.0]), pt.constant(np.sqrt(0.1)))
    [factor] = value(law.factor)
    assert -1e-12 < np.linalg.eigvalsh(factor @ factor.T)[0] < 1e-12


def test_moments_of_no_distribution_are_projected():
    moments = read_moments([0.2, 0.05, 0.1, 0.02])
    assert moments.moved > 0.01
    kept = moments.root @ moments.root.T
    assert np.linalg.eigvalsh(kept).min() > -1e-12
    assert moments.second[0, 0] == 1.0
    assert moments.second[0, 1] == pytest.approx(0.2)
    spread = moments.second[1, 1] - 0.2**2
    assert spread == pytest.approx(kept[0, 0], rel=1e-6)
    assert kept[0, 0] > 0.0
    negative = read_moments([0.28, 0.07, 0.075, 0.05])  # var x < 0
    assert negative.moved > 0.1
    assert negative.mean[1] == negative.second[1, 1]
    assert np.linalg.eigvalsh(negative.second)[0] > 0.0
    for wrong, match in (
        ([0.1, 0.2], "first four moments"),
        (np.ones((2, 2, 2)), "shape"),
        (2 * np.ones((2, 2, 2, 2)), "its moments are 1"),
    ):
        with pytest.raises(ValueError, match=match):
            read_moments(wrong)


def test_moments_are_shifted_as_those_of_shifted_covariates():
    x, by = RNG.gamma(2.0, size=(400, 2)), np.array([3.0, -7.0])
    found, expected = (
        read_moments(fourth_moments(np.column_stack([np.ones(400), v]))) for v in (x, x + by)
    )
    found = found.shifted(by)
    np.testing.assert_allclose(found.mean, expected.mean, rtol=1e-10)
    np.testing.assert_allclose(found.second, expected.second, rtol=1e-10)
    np.testing.assert_allclose(found.second_root @ found.second_root.T, found.second, rtol=1e-10)
    cov = expected.root @ expected.root.T
    np.testing.assert_allclose(found.root @ found.root.T, cov, rtol=1e-8)


def test_moments_that_cannot_be_read_are_refused():
    x = np.column_stack([np.ones(50), RNG.normal(size=(50, 2))])
    fourth = fourth_moments(x)
    assert read_moments(fourth).moved == 0.0
    for k in (0, 1, 2):
        index = (k, 1, 2, 2)
        wrong = fourth.copy()
        wrong[index] += 1e-3
        with pytest.raises(ValueError, match="Write every order of the indices"):
            read_moments(wrong)
    sorted_only = np.zeros_like(fourth)
    for index in np.ndindex(*fourth.shape):
        if list(index) == sorted(index):
            sorted_only[index] = fourth[index]
    with pytest.raises(ValueError, match="are moments of the same product"):
        read_moments(sorted_only)
    for k, refused in ((100.0, False), (1e4, True)):
        law = stats.uniform(k, 1)
        powers = [law.moment(j) for j in range(1, 5)]
        if refused:
            with pytest.raises(ValueError, match="the covariate 1 is so far from zero"):
                read_moments(powers)
        else:
            root = np.linalg.qr(read_moments(powers).root.T, mode="r").T
            assert root[1, 1] ** 2 == pytest.approx(1 / 180, rel=1e-3)


@pytest.mark.parametrize("width", [2, 3])
@pytest.mark.nightly
def test_exact_sums_follow_the_wishart_law(width):
    """Against data: means, scatter matrices and their dependence, in a fixed simulation."""
    n, draws = 6, 20_000
    mean, root = normal_rows(width)
    exact = ExactLatents(width, n)
    latents, transform = row_latents(exact.size, exact.alpha)
    assert transform is None
    z = pt.vector(shape=(exact.size,))
    sums = exact.sums(pt.constant(mean), pt.constant(root), z)
    function = pytensor.function([z], list(sums.moments(n)))
    rng, lower = np.random.default_rng(2), np.tril_indices(width)
    ours, data = [], []
    for own in pm.draw(latents, draws, random_seed=3):
        m, c = function(own)
        ours.append([*m, *c[lower], np.linalg.det(c)])
        rows = mean + rng.normal(size=(n, width)) @ root.T
        c = np.cov(rows.T)
        data.append([*rows.mean(axis=0), *c[lower], np.linalg.det(c)])
    same_law(ours, data, level=1e-4)


@pytest.mark.parametrize("alpha", [0.5, 3.0, 5e8])
def test_latents_are_normal_and_logarithms_of_gamma(alpha):
    latents, _ = row_latents(3, np.full(2, alpha))
    value = np.array([0.3, -1.2, 0.8])
    scaled = value[1:] / np.sqrt(alpha)
    # The law of log(g) for g ~ Gamma(alpha, 1), moved by log(alpha) and stretched.
    gamma = stats.loggamma(alpha).logpdf(scaled + np.log(alpha)) - 0.5 * np.log(alpha)
    expected = stats.norm.logpdf(value[0]) + gamma.sum()
    assert pm.logp(latents, value).eval() == pytest.approx(expected, rel=1e-6)
    draws = pm.draw(latents, 4000, random_seed=1)
    log = stats.loggamma(alpha, loc=-np.log(alpha))
    follows(draws[:, 0], "norm")
    for own in draws[:, 1:].T:
        follows(own / np.sqrt(alpha), log)
    if alpha > 1:
        assert np.abs(draws.std(axis=0) - 1).max() < 0.3


def test_whitened_latents():
    """The transform undoes itself, and standardises what the linearised release says."""
    size, entries = 4, 3
    jacobian, target = RNG.normal(size=(entries, size)), RNG.normal(size=entries)
    variance = np.array([0.1, 1e-8, 5.0])
    release = Linearised(*(pt.constant(v) for v in (jacobian, target, variance)))
    latents, transform = row_latents(size, np.array([7.0]), [release])
    inputs = latents.owner.inputs
    u = pt.vector(shape=(size,))
    back = transform.backward(u, *inputs)
    derivative = pytensor.gradient.jacobian(back, u)
    graphs = [back, transform.forward(back, *inputs), derivative, transform.log_jac_det(u, *inputs)]
    point = RNG.normal(size=size)
    found, again, d, log_det = pytensor.function([u], graphs)(point)
    np.testing.assert_allclose(again, point, atol=1e-6)
    assert log_det == pytest.approx(np.linalg.slogdet(d)[1], rel=1e-9)
    precision = np.eye(size) + jacobian.T @ (jacobian / variance[:, None])
    cov = np.linalg.inv(precision)
    np.testing.assert_allclose(d @ d.T, cov, atol=1e-7)
    center = cov @ (jacobian.T @ (target / variance))
    np.testing.assert_allclose(found - d @ point, center, rtol=1e-5)
    start = _support_point(latents.owner.op, latents, *inputs).eval()
    np.testing.assert_allclose(start, center, rtol=1e-5)


def test_a_release_without_noise_leaves_the_coordinates_finite():
    release = Linearised(pt.ones((2, 3)), pt.constant([1e8, -1e8]), pt.zeros(2))
    latents, _ = row_latents(3, None, [release])
    assert all(np.isfinite(v.eval()).all() for v in latents.owner.inputs[1:])


def sample_of_rows(width, n):
    """Return the mean of rows, and the Cholesky factor of their scatter."""
    mean, root = normal_rows(width)
    return mean, np.sqrt(n) * root


def sums_of(mean, factor, n):
    """Return the sums of such rows and of their products."""
    second = factor @ factor.T + n * np.outer(mean, mean)
    return np.concatenate([n * mean, second[np.triu_indices(mean.size)]])


@pytest.mark.parametrize("width", [1, 2, 3])
def test_latents_of_a_sample(width):
    exact = ExactLatents(width, 20)
    mean, root = (pt.constant(v) for v in normal_rows(width))
    own_mean, factor = sample_of_rows(width, 20)
    z = exact.at(mean, root, pt.constant(own_mean), pt.constant(factor))
    sums = exact.sums(mean, root, z)
    center, scatter = value(sums.center, sums.second)
    np.testing.assert_allclose(center, own_mean, rtol=1e-10)
    np.testing.assert_allclose(scatter, factor @ factor.T, rtol=1e-10)


@pytest.mark.parametrize("width", [1, 2, 3])
def test_tangent_is_the_derivative_of_the_sums(width):
    """At the latents of a sample that has the mean and the covariance matrix of the law."""
    n = 10**6  # where n and n - 1 are nearly the same
    exact = ExactLatents(width, n)
    mean, factor = sample_of_rows(width, n)
    own_mean, own_factor = exact.tangent(mean, factor)
    own, root = pt.constant(mean), pt.constant(factor / np.sqrt(n))
    z = pt.vector(shape=(exact.size,))
    sums = exact.sums(own, root, z)
    second = sums.second + n * pt.outer(sums.center, sums.center)
    graph = pt.concatenate([n * sums.center, second[np.triu_indices(width)]])
    at = exact.at(own, root, own, pt.constant(factor)).eval()
    rows = [pytensor.grad(graph[i], z) for i in range(len(column_products(width)))]
    found, *rows = pytensor.function([z], [graph, *rows], mode=PLAIN)(at)
    expected = np.array(rows)
    np.testing.assert_allclose(n * own_mean, found, rtol=1e-9)
    ours = np.sqrt(n) * own_factor
    np.testing.assert_allclose(ours, expected, rtol=1e-4, atol=1e-6 * np.abs(expected).max())


@pytest.mark.parametrize("width", [1, 2, 3])
@pytest.mark.parametrize("n", [100, 10**4, 10**9])
@pytest.mark.parametrize(("location", "sd", "noise"), [(0, 1, 1.0), (50, 10, 1e-6), (1e4, 1, 1.0)])
def test_nearest_sample_recovers_a_sample(width, n, location, sd, noise):
    mean, factor = sample_of_rows(width, n)
    mean, factor = location + sd * mean, sd * factor
    sums = sums_of(mean, factor, n)
    far = np.zeros(width), np.sqrt(n) * np.eye(width)
    matrices = [np.eye(sums.size)]
    if location < 1e4:  # further off, double precision keeps too little of sums of sums
        matrices.append(np.triu(np.ones((sums.size, sums.size))))
    for start in (far, (1.1 * mean, 2 * factor)):
        for matrix in matrices:
            noises = np.full(sums.size, noise)
            found, root = nearest_sample(matrix, matrix @ sums, noises, n, start)
            # Both in standard errors.
            scatter = factor @ factor.T
            error = np.abs(root @ root.T - scatter).max() / scatter.max() * np.sqrt(n)
            assert error < 0.01
            assert np.abs(found - mean).max() / sd * np.sqrt(n) < 1e-4


@pytest.mark.parametrize("location", [400.0, 2000.0])
def test_nearest_sample_where_noise_hides_the_scatter(location):
    """Sums of squares may then be those of no rows: what is near is found all the same."""
    n, start = 500, (np.zeros(2), np.sqrt(500) * np.eye(2))
    for seed in range(5):
        rng = np.random.default_rng(seed)
        x = rng.normal(location, 1.0, n)
        y = rng.normal(1 + 0.5 * (x - location))
        sums = np.array([x.sum(), y.sum(), x @ x, x @ y, y @ y])
        noise = np.array([5.0, 5.0, 5 * location, 5 * location, 5.0])
        z = sums + noise * rng.standard_normal(5)
        mean, factor = nearest_sample(np.eye(5), z, noise, n, start)
        assert np.all(np.abs(sums_of(mean, factor, n) - z) < 3 * noise)


def test_nearest_sample_of_sums_of_no_rows_and_of_few_sums():
    n, start = 1000, (np.array([1.0, 2.0]), np.sqrt(1000) * np.eye(2))
    impossible = np.array([5000.0, 5000.0, -9000.0, 1e5, -9000.0])
    for noise in (1e-6, 1.0, 1e3):
        mean, factor = nearest_sample(np.eye(5), impossible, np.full(5, noise), n, start)
        assert np.isfinite(mean).all()
        assert np.isfinite(np.log(np.diag(factor))).all()
    only_y = np.eye(5)[[1, 4]]  # sums of y and y^2: x stays where it was
    mean, factor = nearest_sample(only_y, np.array([3000.0, 13_000.0]), np.ones(2), n, start)
    np.testing.assert_allclose(mean, [1.0, 3.0], rtol=1e-6)
    np.testing.assert_allclose(factor @ factor.T / n, [[1.0, 0.0], [0.0, 4.0]], atol=1e-4)


def test_nearest_sample_of_rows_whose_covariance_is_known_about():
    """Little noise: the released sums. Much: what rows have. Between them: off the wall."""
    n, root = 40, np.array([[1.0, 0.0], [0.5, 0.8]])
    mean, factor = sample_of_rows(2, n)
    sums = sums_of(mean, factor, n)
    start, prior = (mean, factor), root * np.sqrt([n - 1, n - 2])
    for noise, expected in ((1e-6, factor), (1e6, prior)):
        found = nearest_sample(np.eye(5), sums, np.full(5, noise), n, start, root)[1]
        np.testing.assert_allclose(found @ found.T, expected @ expected.T, rtol=1e-4)
    impossible = sums - [0, 0, 0, 0, 2 * sums[-1]]
    wall = nearest_sample(np.eye(5), impossible, np.full(5, 20.0), n, start)
    found = nearest_sample(np.eye(5), impossible, np.full(5, 20.0), n, wall, root)[1]
    off = np.log(np.diag(found) / np.diag(prior))
    assert np.all(np.abs(off) < 5 / np.sqrt(2 * n))


@pytest.mark.by_day("0.001")
@pytest.mark.parametrize("noise", [1e-3, 1.0, 100.0])
def test_coordinates_change_no_posterior(noise):
    """The density of the collapsed model is that of the plain latents, by scipy."""
    n, z = 40, np.array([4.0, 45.0, 18.0, 30.0, 60.0])
    with pm.Model() as model:
        slope = pm.Normal("slope", 0, 2)
        x = pm.Normal("x", 0, 1, shape=n)
        y = pm.Normal("y", 0.5 + slope * x, 0.7, shape=n)
        dp.PrivateObservation("z", five_sums(x, y), dp.LaplaceMechanism(noise), observed=z)
    collapsed = dp.collapse(model, "statistics")
    name = "x_y_sums_standard"
    u = collapsed.rvs_to_values[collapsed[name]]
    assert u.name == f"{name}_whitened__"
    latents = collapsed.replace_rvs_by_values([collapsed[name]])[0]
    graphs = [latents, pytensor.gradient.jacobian(latents, u)]
    read = collapsed.compile_fn(
        graphs, inputs=collapsed.value_vars, on_unused_input="ignore", mode=PLAIN
    )
    density = collapsed.compile_logp()
    alpha = (n - 1 - np.arange(2)) / 2
    point = collapsed.initial_point()
    for slope_value in (0.3, 0.9):
        point["slope"] = np.array(slope_value)
        for _ in range(3):
            point[u.name] = RNG.normal(size=5)
            zeta, d = read(point)
            factor = np.diag(np.sqrt(2 * alpha * np.exp(zeta[3:] / np.sqrt(alpha))))
            factor[1, 0] = zeta[2]
            root = np.array([[1.0, 0.0], [slope_value, 0.7]])
            mean = np.array([0.0, 0.5]) + root @ zeta[:2] / np.sqrt(n)
            second = root @ factor @ factor.T @ root.T + n * np.outer(mean, mean)
            first = n * mean
            sums = [first[0], second[0, 0], first[1], second[0, 1], second[1, 1]]
            expected = stats.norm(0, 2).logpdf(slope_value)
            expected += stats.norm.logpdf(zeta[:3]).sum()
            log = zeta[3:] / np.sqrt(alpha) + np.log(alpha)
            expected += (stats.loggamma(alpha).logpdf(log) - 0.5 * np.log(alpha)).sum()
            expected += stats.laplace(0, noise).logpdf(z - sums).sum() + np.linalg.slogdet(d)[1]
            assert density(point) == pytest.approx(expected, rel=1e-7)


def test_normal_release():
    k, count = 4, 3
    mean, factor = RNG.normal(size=k), RNG.normal(size=(k, count))
    sigma = np.array([[0.5, 1.0], [2.0, 0.7]])
    law = NormalStatistics((2, 2), ("s",))
    rv = integrated_release(law, dp.GaussianMechanism(sigma), mean, factor)
    z = RNG.normal(size=(2, 2))
    law = stats.multivariate_normal(mean, factor @ factor.T + np.diag(sigma.ravel() ** 2))
    assert pm.logp(rv, z).eval() == pytest.approx(law.logpdf(z.ravel()), rel=1e-12)
    draws = pm.draw(rv, 4000, random_seed=1).reshape(4000, -1)
    np.testing.assert_allclose(draws.mean(axis=0), mean, atol=0.2)
    np.testing.assert_allclose(np.cov(draws.T), law.cov, atol=0.6)
