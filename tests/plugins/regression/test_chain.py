"""The exact chain for conjugate regressions: references, brute force and calibration."""

import arviz as az
import numpy as np
import pytest
from scipy import stats

from pymc_dp.plugins.regression.kernels.chain import Proposal, run_sweeps
from pymc_dp.plugins.regression.kernels.density import RegressionModel, log_density
from pymc_dp.plugins.regression.kernels.statistics import (
    products_of_features,
    scatter,
    sums,
    unpack,
)
from pymc_dp.plugins.regression.kernels.tuning import proposal_shape, tune_proposal, walked
from pymc_dp.plugins.regression.route import moments, start
from tests.agreement import follows, has_moments, weighted
from tests.references import references

CASES = {case["id"]: case for case in references("regression")}
# Columns, then products of two, of (x, y); the references' order is x, xx, y, xy, yy.
ORDER = [0, 2, 1, 3, 4]


def kernel_model(n, z, scale, *, hierarchical=False, box=None, mean_x=0.0, var_x=0.04, gaussian=0):
    scale = np.broadcast_to(np.asarray(scale, "float64"), (5,))
    noise = {"lam": 1 / scale, "tau": np.zeros(5)}
    if gaussian:
        noise = {"lam": np.zeros(5), "tau": scale**-2.0}
    return RegressionModel(
        n=float(n),
        z=np.asarray(z, "float64"),
        **noise,
        offset=np.zeros(5),
        terms=np.array(ORDER)[:, None],
        weights=np.ones((5, 1)),
        mean_x=np.array([0.0 if hierarchical else mean_x]),
        precision_x=np.array([[1.0 / var_x]]),
        hierarchical=hierarchical,
        kappa=1.0,
        psi=np.array([[1.0 if hierarchical else var_x]]),
        nu=50.0 if hierarchical else 1.0,
        mean_theta=np.zeros(2),
        basis=np.eye(2),
        precision=np.eye(2) * 0.5 / 19,
        shape=20.0,
        rate=0.5,
        bounded=box is not None,
        box=np.zeros(4) if box is None else np.array(box, "float64"),
    )


def sample(model, draws, rng, *, tune=1500, steps=2):
    *point, factor = tune_proposal(rng, *start(model, rng), model, tune)
    out = np.empty((draws, 3 + point[0].size))
    run_sweeps(rng, *point, model, factor, steps, out)
    return out


def density(model, c, shear=None, gradient=None, blunt=1.0):
    p = model.mean_x.size
    shear = np.zeros((p + 1, (p + 1) * (p + 2) // 2)) if shear is None else shear
    proposal = Proposal(np.eye(c.size), shear, 1.0, blunt)
    return log_density(model, c, proposal, np.empty(c.size) if gradient is None else gradient)


def agrees(model, *moments):
    """Two chains have these means and standard deviations of theta and sigma2."""
    rngs = np.random.default_rng(1).spawn(2)
    draws = np.stack([sample(model, 10_000, rng)[:, :3] for rng in rngs])
    has_moments(draws, *moments, least=2000)
    assert az.ess(draws, method="sd").min() > 1000


@pytest.mark.by_day("False-A_exact_n10_b5.0")
@pytest.mark.parametrize("name", ["A_exact_n10_b5.0", "A_exact_n10_b0.2", "A_exact_n100_b5.0"])
@pytest.mark.parametrize("hierarchical", [False, True])
def test_references(name, hierarchical):
    inputs = CASES[name]["inputs"]
    expected = CASES[name]["expected"]["exact_individual" + "_hier" * hierarchical]
    model = kernel_model(inputs["n"], inputs["z"], inputs["b"], hierarchical=hierarchical)
    agrees(model, expected["mean"], expected["sd"], expected["mean_se"])


def rows(rng, size, n, *, hierarchical=False, mean_x=0.0, var_x=0.04):
    """Draw parameters and the sums of n rows by their definition: scatter and mean."""
    sigma2 = 0.5 / rng.gamma(20.0, size=size)
    theta = rng.normal(size=(2, size)) * np.sqrt(sigma2 * 38)
    mean, var = np.full(size, mean_x), np.full(size, var_x)
    if hierarchical:
        var = 0.5 / rng.gamma(25.0, size=size)
        mean = rng.normal(size=size) * np.sqrt(var)
    xbar = mean + rng.normal(size=size) * np.sqrt(var / n)
    sxx = var * rng.chisquare(n - 1, size=size)
    noise = np.sqrt(sigma2)
    ebar = rng.normal(size=size) * noise / np.sqrt(n)
    sxe = rng.normal(size=size) * noise * np.sqrt(sxx)
    see = sxe**2 / sxx + sigma2 * rng.chisquare(n - 2, size=size)
    ybar = theta[0] + theta[1] * xbar + ebar
    sxy = theta[1] * sxx + sxe
    syy = theta[1] ** 2 * sxx + 2 * theta[1] * sxe + see
    sums = np.array(
        [n * xbar, sxx + n * xbar**2, n * ybar, sxy + n * xbar * ybar, syy + n * ybar**2]
    )
    return theta, sigma2, sums


BOX = (-1.0, 1.5, -0.5, 2.0)


def in_box(theta, sigma2, s, n):
    """Whether sums and parameters are within the bounds."""
    ax, bx, ay, by = BOX
    x, xx, y, xy, yy = s
    # The constraints in the box's own terms: a row with its ends, summed.
    inside = ((x - n * ax) * 1 >= 0) & (x <= n * bx) & (y >= n * ay) & (y <= n * by)
    inside &= (bx + ax) * x - xx - n * ax * bx >= 0  # sum (x - ax)(bx - x)
    inside &= (by + ay) * y - yy - n * ay * by >= 0
    for cx, sx in ((ax, 1), (bx, -1)):
        for cy, sy in ((ay, 1), (by, -1)):
            inside &= sx * sy * (xy - cx * y - cy * x + n * cx * cy) >= 0
    left, right = theta[0] + theta[1] * ax, theta[0] + theta[1] * bx
    inside &= (np.maximum(left, right) >= ay) & (np.minimum(left, right) <= by)
    return inside & (sigma2 <= (by - ay) ** 2 / 4)


@pytest.mark.parametrize(
    ("n", "z", "scale", "law", "options"),
    [
        (20, [5, 9, 12, 2, 14], [5] * 5, {"mean_x": 0.2, "var_x": 0.3}, {"box": BOX}),
        (5, [0.5, 0.4, 3.0, 0.2, 2.5], [1, 0.5, 2, 1, 2], {}, {"gaussian": True}),
        # Sums of squares tell about the means: the walk is sheared.
        (20, [40, 81, 20, 41, 25], [5, 5, 5, 10, 10], {"mean_x": 2.0}, {}),
    ],
    ids=["bounded", "Gaussian noise", "covariates far from zero"],
)
@pytest.mark.nightly
def test_against_importance_sampling(n, z, scale, law, options):
    theta, sigma2, s = rows(np.random.default_rng(3), 1_500_000, n, **law)
    error = np.abs(s.T - z) / scale
    weight = np.exp(-(0.5 * error**2 if "gaussian" in options else error).sum(axis=1))
    values, free = np.array([*theta, sigma2]).T, weight
    if "box" in options:
        weight = weight * in_box(theta, sigma2, s, n)
    assert weight.sum() ** 2 / (weight**2).sum() > 2000
    mean, sd, se = weighted(values, weight)
    agrees(kernel_model(n, z, scale, **law, **options), mean, sd, se)
    if "box" in options:  # the bounds matter
        assert np.abs((weighted(values, free)[0] - mean) / se).max() > 10


@pytest.mark.parametrize("n", [5, 10**9])
@pytest.mark.nightly
def test_noise_without_end_leaves_the_prior(n):
    model = kernel_model(n, np.ones(5), 1e14 * n)
    rng = np.random.default_rng(4)
    draws = sample(model, 20_000, rng, steps=4, tune=4000)[::5]
    sigma2 = draws[:, 2]
    follows(sigma2, stats.invgamma(20, scale=0.5))
    for k in range(2):
        follows(draws[:, k] / np.sqrt(sigma2 * 38), "norm")
    mean, cov = moments(draws[:, 3:], 1, n)
    if n == 5:
        follows(mean[:, 0] * np.sqrt(n / 0.04), "norm")
        follows(cov[:, 0, 0] * (n - 1) / 0.04, stats.chi2(n - 1))


@pytest.mark.nightly
@pytest.mark.parametrize(
    ("n", "scale", "hierarchical"),
    [
        (100, 160.0, True),
        (10, 16.0, False),
        (10, 160.0, False),
        (10, 16.0, True),
        (100, 16.0, False),
        (100, 16.0, True),
    ],
)
def test_calibration(n, scale, hierarchical):
    """Ranks of the true parameters over 300 simulated releases: epsilon .1 and 1."""
    trials, draws = 300, 99
    rng = np.random.default_rng(5)
    theta, sigma2, s = rows(rng, trials, n, hierarchical=hierarchical)
    truth = np.array([*theta, sigma2])
    z = s + rng.laplace(scale=scale, size=s.shape)
    ranks = np.empty((3, trials))
    for t in range(trials):
        model = kernel_model(n, z[:, t], scale, hierarchical=hierarchical)
        found = sample(model, draws, rng, tune=500, steps=5)
        ranks[:, t] = (truth[:, t : t + 1] > found[:, :3].T).sum(axis=1)
    for own in ranks:
        follows((own + rng.random(trials)) / (draws + 1), "uniform", level=0.01 / 3)


def test_rows_that_are_all_alike_give_a_proposal():
    """A release far away may lead there; the products of the features are then singular."""
    model = kernel_model(10, np.ones(5), 160.0)
    c, _, _ = start(model, np.random.default_rng(0))
    factors = c.copy()
    factors[1] = -40.0  # the logarithm of a spread
    for at in (c, factors):
        assert np.all(np.isfinite(proposal_shape(model, at).factor))


def test_impossible_coordinates_have_no_density():
    model = kernel_model(10, np.ones(5), 1.0)
    c, _, _ = start(model, np.random.default_rng(0))
    assert np.isfinite(density(model, c))
    c[-1] = 1e4
    assert density(model, c) == -np.inf


@pytest.mark.parametrize("hierarchical", [False, True])
def test_chains_start_wherever_the_release_is(hierarchical):
    """Sums that no data have, small and huge, and those of data, give a point with a density."""
    rng = np.random.default_rng(5)
    for n, scale in ((10, 0.1), (10, 30.0), (10**9, 1e-3)):
        model = kernel_model(n, np.zeros(5), scale, hierarchical=hierarchical)
        for far in (0.0, 1.0, 1e3, 1e6):
            for _ in range(10):
                c, theta, sigma2 = start(model._replace(z=far * scale * rng.laplace(size=5)), rng)
                assert np.isfinite(density(model, c))
                assert np.all(np.isfinite(theta))
                assert 0 < sigma2 < np.inf


@pytest.mark.nightly
@pytest.mark.parametrize("mean_x", [0.0, 30.0, 400.0])
@pytest.mark.parametrize("hierarchical", [False, True])
def test_mixing_does_not_depend_on_the_means(mean_x, hierarchical):
    """The mean over the standard deviation of x is up to 2000, and that of y likewise."""
    n, var = 1000, 0.04
    x, y = mean_x, 1.0 + 2.0 * mean_x
    z = n * np.array([x, x**2 + var, y, x * y + 2 * var, y**2 + 4 * var + 0.03])
    model = kernel_model(n, z, 20 * np.array([0.2, 0.04, 1, 0.2, 1]), mean_x=mean_x)
    model = model._replace(precision=np.diag([1e-6 / max(1.0, mean_x**2), 1e-4]))
    if hierarchical:
        model = model._replace(
            hierarchical=True, kappa=0.01, mean_x=np.array([1.1 * mean_x]), psi=np.array([[2.0]])
        )
        model = model._replace(nu=50.0)
    rngs = np.random.default_rng(1).spawn(4)
    draws = np.stack([sample(model, 1000, rng) for rng in rngs])
    for own in (draws[..., 1], draws[..., 0] + mean_x * draws[..., 1], draws[..., 2]):
        assert az.rhat(own) < 1.01
        assert az.ess(own) > 2000


@pytest.mark.parametrize("hierarchical", [False, True])
@pytest.mark.parametrize("mean_x", [0.0, 100.0])
@pytest.mark.by_day("0.0-False")
def test_slopes_of_both_signs(mean_x, hierarchical):
    """Noise that hides X'y, not y'y, leaves two modes; the prior has no sign either.

    Given y'y the prior of the slope alone, and that of the scatter of x, say how large it is.
    """
    n, var = 1000, 0.04
    z = n * np.array([mean_x, mean_x**2 + var, 0.0, 0.0, 1.0])
    noise = n * np.array([1e-3, 1e-3 * max(mean_x, 0.01), 1e-3, 10 * max(mean_x, 1.0), 1e-3])
    model = kernel_model(n, z, noise, hierarchical=hierarchical, mean_x=mean_x)
    model = model._replace(mean_x=np.array([mean_x]), psi=np.array([[2.0]]))
    # Of the intercept at the mean of x, and of the slope, which is 1 with an error of as much.
    turn = np.array([[1.0, mean_x], [0.0, 1.0]])
    model = model._replace(precision=turn.T @ np.diag([1.0, 0.01]) @ turn)
    rngs = np.random.default_rng(2).spawn(4)
    slope = np.stack([sample(model, 2000, rng)[:, 1] for rng in rngs])
    assert az.rhat(slope) < 1.02
    assert np.all(np.abs((slope > 0).mean(axis=1) - 0.5) < 0.15)
    assert np.quantile(np.abs(slope), 0.25) > 1.0  # and both are away from zero


def test_scatter_of_coordinates():
    """The products of deviations are the sums' own, of three columns."""
    rng = np.random.default_rng(0)
    c = rng.normal(size=2 + 3 + 3 + 1)
    _, lower, theta, rss = unpack(c, 2)
    mean, cov = moments(c, 2, 12)
    found = scatter(c, 2)
    np.testing.assert_allclose(found, 11 * cov[np.triu_indices(3)])
    total = sums(products_of_features(12.0, c[:2], lower), theta, rss)
    second = 11 * cov + 12 * np.outer(mean, mean)
    np.testing.assert_allclose(total, [*12 * mean, *second[np.triu_indices(3)]])


@pytest.mark.parametrize("hierarchical", [False, True])
@pytest.mark.parametrize(("p", "betas"), [(1, 2), (3, 4), (9, 10), (1, 1), (3, 3)])
def test_gradients(p, betas, hierarchical):
    """Of linear releases of several sums each, by differences, away from the edges."""
    rng = np.random.default_rng(p)
    q, entries, size = p + 1, p + 4, p + p * (p + 1) // 2 + p + 2
    sums_of = q + q * (q + 1) // 2
    model = RegressionModel(
        n=20.0,
        z=5 * rng.normal(size=entries),
        lam=rng.random(entries),
        tau=rng.random(entries),
        offset=rng.normal(size=entries),
        terms=rng.integers(sums_of, size=(entries, 3)),
        weights=rng.normal(size=(entries, 3)),
        mean_x=rng.normal(size=p),
        precision_x=np.cov(rng.normal(size=(p, 3 * p))).reshape(p, p),
        hierarchical=hierarchical,
        kappa=0.7,
        psi=np.cov(rng.normal(size=(p, 3 * p))).reshape(p, p),
        nu=p + 3.0,
        mean_theta=rng.normal(size=q),
        basis=np.ascontiguousarray(np.eye(q)[:, q - betas :]),
        precision=np.cov(rng.normal(size=(betas, 3 * betas))).reshape(betas, betas),
        shape=3.0,
        rate=2.0,
        bounded=False,
        box=np.zeros(4),
    )
    shear = 0.1 * rng.normal(size=(q, sums_of - q))
    c, found, means = 0.5 * rng.normal(size=size), np.empty(size), [*range(p), size - p - 2]
    density(model, c, shear, found, blunt=1e-9)

    def at(moved):
        own = moved.copy()
        own[means] += shear @ scatter(own, p)
        return density(model, own)

    x = walked(c, shear)
    expected = [(at(x + e) - at(x - e)) / 2e-6 for e in 1e-6 * np.eye(size)]
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-6 * np.abs(found).max())
