"""What `dp.sample` reads of a regression, and what it returns: scales, constants, shapes."""

import arviz as az
import numpy as np
import pymc as pm
import pytensor.tensor as pt
import pytest
from scipy import special, stats

import pymc_dp as dp
from pymc_dp.plugins.regression import route as regression
from pymc_dp.reading.model import Reading
from tests.agreement import follows, has_moments, has_quantiles
from tests.chains import QUIET, SHORT

TWO = QUIET | {"chains": 2, "cores": 1}
LAPLACE = dp.LaplaceMechanism


def five(x, y):
    return pt.stack([x.sum(), (x**2).sum(), y.sum(), (x * y).sum(), (y**2).sum()])


def scaled(n, z, scale):
    """Standard deviations that are multiples of roots of variables, and entries that are no sums.

    y has twice the root of s2, the coefficients three times; x thrice that of t2, its mean twice.
    """
    with pm.Model() as model:
        t2 = pm.InverseGamma("t2", 4, 1)
        mu = pm.Normal("mu", 0.5, 2 * pt.sqrt(t2))
        s2 = pm.InverseGamma("s2", 5, 1)
        theta = pm.Normal("theta", [0.5, -0.5], 3 * pt.sqrt(s2), shape=2)
        x = pm.Normal("x", mu, 3 * pt.sqrt(t2), shape=n)
        y = pm.Normal("y", theta[0] + theta[1] * x, 2 * pt.sqrt(s2), shape=n)
        means = pt.stack([2 * x.mean() + 1, (x**2).mean(), 3 * y.mean() - 1])
        products = pt.stack([-2 * (x * y).mean() + 3, 0.5 * (y**2).mean()])
        dp.PrivateObservation("z", pt.concatenate([means, products]), LAPLACE(scale), observed=z)
    return model


NAMES = ("theta[0]", "theta[1]", "s2", "mu", "t2")


def simulate(n, size, rng):
    """Draw variables and statistics of `scaled`, by their definition."""
    t2, s2 = 1 / rng.gamma(4, size=size), 1 / rng.gamma(5, size=size)
    mu = 0.5 + 2 * np.sqrt(t2) * rng.normal(size=size)
    theta = np.array([[0.5], [-0.5]]) + 3 * np.sqrt(s2) * rng.normal(size=(2, size))
    mean = mu + 3 * np.sqrt(t2 / n) * rng.normal(size=size)
    scatter = 9 * t2 * rng.chisquare(n - 1, size=size)
    error = 2 * np.sqrt(s2)
    error_mean = error * rng.normal(size=size) / np.sqrt(n)
    along = error * rng.normal(size=size) * np.sqrt(scatter)  # deviations of x times errors
    squares = along**2 / scatter + error**2 * rng.chisquare(n - 2, size=size)
    y = theta[0] + theta[1] * mean + error_mean
    xy = (theta[1] * scatter + along) / n + mean * y
    yy = (theta[1] ** 2 * scatter + 2 * theta[1] * along + squares) / n + y**2
    xx = scatter / n + mean**2
    statistics = np.array([2 * mean + 1, xx, 3 * y - 1, -2 * xy + 3, 0.5 * yy])
    return np.array([*theta, s2, mu, t2]), statistics


def draws_of(tree):
    posterior = tree["posterior"]
    theta = posterior["theta"].to_numpy()
    others = [posterior[name].to_numpy() for name in NAMES[2:]]
    return dict(zip(NAMES, [theta[..., 0], theta[..., 1], *others], strict=True))


QUARTILES = (0.25, 0.5, 0.75)


def quartiles_agree(found, expected, error):
    """Compare shares of draws below given quartiles: variances need have no moments."""
    for name, cuts in zip(NAMES, expected, strict=True):
        cuts = dict(zip(QUARTILES, cuts, strict=True))
        has_quantiles(found[name], cuts, error=error, limit=4.5, least=500, where=name)


@pytest.mark.nightly
def test_factors_and_a_law_of_covariates_against_importance_sampling():
    n, z, scale = 12, np.array([2.5, 8.0, 1.0, 7.0, 3.0]), np.array([2.0, 4.0, 3.0, 6.0, 2.0])
    values, s = simulate(n, 2_000_000, np.random.default_rng(1))
    weight = np.exp(-(np.abs(s - z[:, None]) / scale[:, None]).sum(axis=0))
    effective = weight.sum() ** 2 / (weight**2).sum()
    assert effective > 20_000
    tree = dp.sample(scaled(n, z, scale), draws=8000, random_seed=1, **TWO)
    assert tree["posterior"].attrs["route"] == "exact regression"
    weighted = {"weights": weight, "method": "inverted_cdf"}
    expected = [np.quantile(own, QUARTILES, **weighted) for own in values]
    quartiles_agree(draws_of(tree), expected, 0.5 / np.sqrt(effective))


@pytest.mark.nightly
def test_the_central_limit_theorem_agrees_for_many_rows():
    n, scale = 4000, np.array([0.2, 0.5, 0.3, 0.5, 0.3])
    rng = np.random.default_rng(2)
    _, s = simulate(n, 1, rng)
    model = scaled(n, s[:, 0] + rng.laplace(0, scale), scale)
    exact, clt = (
        draws_of(dp.sample(model, draws=8000, random_seed=1, approximate=a, **TWO))
        for a in (None, "clt")
    )
    expected = [np.quantile(exact[name], QUARTILES) for name in NAMES]
    error = max(0.5 / np.sqrt(float(az.ess(own))) for own in exact.values())
    quartiles_agree(clt, expected, error + 0.005)


def written(theta, spread=pt.sqrt, *, s2_shape=None, statistic=five, z=None):
    """Return a model of 30 rows with coefficients and a spread as given."""
    coords = {"coef": ["a", "b"]}
    with pm.Model(coords=coords) as model:
        s2 = pm.InverseGamma("s2", 3, 0.5, shape=s2_shape)
        theta = theta(s2)
        x = pm.Normal("x", 0, 1, shape=30)
        y = pm.Normal("y", theta[0] + theta[1] * x, spread(s2), shape=30)
        z = np.array([1.0, 30.0, 2.0, 25.0, 40.0]) if z is None else z
        dp.PrivateObservation("z", statistic(x, y), LAPLACE(1.0), observed=z)
    return model


def normal(**shape):
    return lambda s2: pm.Normal("theta", 0, 2 * pt.sqrt(s2), **shape)


def two_covariates(x, y):
    i, j = np.triu_indices(2)
    return pt.concatenate([x.sum(0), (x.T @ x)[i, j], y.sum()[None], x.T @ y, (y**2).sum()[None]])


def exact_draws(model, **arguments):
    tree = dp.sample(model, draws=200, tune=100, **({"random_seed": 1} | TWO | arguments))
    assert tree["posterior"].attrs["route"] == "exact regression"
    return tree["posterior"]


def deterministic_spread(s2):
    return pm.Deterministic("sd", pt.sqrt(s2))


@pytest.mark.parametrize(
    "model",
    [
        lambda: written(normal(dims="coef")),
        lambda: written(normal(shape=2), deterministic_spread),
        lambda: written(lambda s2: pm.Deterministic("same", normal(dims="coef")(s2))),
        lambda: written(normal(shape=2), s2_shape=1),
        lambda: written(
            lambda s2: pm.Normal("theta", 0, 2 * pt.sqrt(s2[0]), shape=2),
            lambda s2: pt.sqrt(s2[0]),
            s2_shape=1,
        ),
    ],
    ids=["dims", "Deterministic", "Deterministic of dims", "(1,)", "(1,)[0]"],
)
@pytest.mark.by_day("Deterministic of dims", "(1,)[0]")
def test_ways_to_write_the_same(model):
    plain, found = exact_draws(written(normal(shape=2))), exact_draws(model())
    np.testing.assert_array_equal(found["theta"], plain["theta"])
    assert found["s2"].shape in ((2, 200), (2, 200, 1))
    np.testing.assert_array_equal(found["s2"].to_numpy().ravel(), plain["s2"].to_numpy().ravel())
    if "sd" in found:
        np.testing.assert_allclose(found["sd"] ** 2, found["s2"])


def test_dims_of_coefficients_of_several_covariates():
    z = np.array([0.0, 1.0, 30.0, 5.0, 30.0, 3.0, 20.0, -10.0, 40.0])

    def model(**shape):
        with pm.Model(coords={"coef": ["a", "b"]}) as own:
            s2 = pm.InverseGamma("s2", 3, 0.5)
            intercept = pm.Normal("intercept", 0, 2 * pt.sqrt(s2))
            theta = normal(**shape)(s2)
            x = pm.Normal("x", 0, 1, shape=(30, 2))
            y = pm.Normal("y", intercept + x @ theta, pt.sqrt(s2), shape=30)
            dp.PrivateObservation("z", two_covariates(x, y), LAPLACE(1.0), observed=z)
        return own

    plain, found = exact_draws(model(shape=2)), exact_draws(model(dims="coef"))
    np.testing.assert_array_equal(found["theta"], plain["theta"])
    assert list(found["coef"].to_numpy()) == ["a", "b"]


@pytest.mark.parametrize(
    "statistic",
    [
        lambda x, y: pt.stack([(x - x + y - y).sum() + 5.0]),
        lambda x, y: pt.stack([(x * y - y * x + 1).sum()]),
    ],
    ids=["cancelled", "number of rows"],
)
def test_releases_that_tell_nothing_leave_the_prior(statistic):
    model = written(normal(shape=2), statistic=statistic, z=[5.0])
    follows(exact_draws(model)["s2"].to_numpy().ravel()[::4], stats.invgamma(3, scale=0.5))


@pytest.mark.nightly
def test_seeds_of_any_kind_are_those_of_the_chains():
    z, scale = np.array([2.5, 8.0, 1.0, 7.0, 3.0]), np.ones(5)
    model, found = scaled(12, z, scale), []
    seeds = (lambda: 1, lambda: [1, 2], lambda: np.random.default_rng(3))
    for seed in seeds:
        first, again = (exact_draws(model, random_seed=seed()) for _ in range(2))
        np.testing.assert_array_equal(first["t2"], again["t2"])
        np.testing.assert_array_equal(first["s2"], again["s2"])
        found.append(first["t2"].to_numpy())
    assert not np.array_equal(found[0], found[1])


@pytest.mark.nightly
def test_several_covariates_with_a_normal_wishart_prior():
    """The exact chain against importance sampling from the prior, by the Bartlett factors."""
    n, scale = 12, 6.0
    z = np.array([4.0, -2.0, 14.0, 3.0, 16.0, 9.0, 8.0, 1.0, 22.0])
    v, center = np.array([[0.2, 0.05], [0.05, 0.3]]), np.array([0.2, -0.1])
    with pm.Model() as model:
        precision = pm.Wishart("T", nu=5, V=v)
        mu = pm.MvNormal("mu", center, tau=0.5 * precision)
        x = pm.MvNormal("x", mu, tau=precision, shape=(n, 2))
        s2 = pm.InverseGamma("s2", 3, 2.0)
        b = pm.Normal("b", 0, pt.sqrt(s2), shape=3)
        y = pm.Normal("y", b[0] + x @ b[1:], pt.sqrt(s2), shape=n)
        upper = np.triu_indices(2)
        parts = [x.sum(0), (x.T @ x)[upper], y.sum()[None], x.T @ y, (y * y).sum()[None]]
        dp.PrivateObservation("z", pt.concatenate(parts), LAPLACE(scale), observed=z)
    posterior = dp.sample(model, draws=8000, random_seed=3, **TWO)["posterior"]

    rng, size = np.random.default_rng(0), 600_000
    wishart = stats.wishart(5, v).rvs(size, random_state=1)
    root = np.linalg.cholesky(np.linalg.inv(wishart))
    normal = rng.normal(size=(2, size, 2, 1))
    location = center + (root @ normal[0])[..., 0] / np.sqrt(0.5)
    mean = location + (root @ normal[1])[..., 0] / np.sqrt(n)
    scatter = stats.wishart(n - 1, np.eye(2)).rvs(size, random_state=2)
    scatter = root @ scatter @ np.swapaxes(root, 1, 2)
    variance = 2 / rng.gamma(3, size=size)
    beta = np.sqrt(variance)[:, None] * rng.normal(size=(size, 3))
    u = np.empty((size, 3, 3))
    u[:, 0, 0], u[:, 0, 1:], u[:, 1:, 0] = n, n * mean, n * mean
    u[:, 1:, 1:] = scatter + n * mean[:, :, None] * mean[:, None]
    noise = np.sqrt(variance)[:, None] * rng.normal(size=(size, 3))
    xy = (u @ beta[..., None] + np.linalg.cholesky(u) @ noise[..., None])[..., 0]
    fitted = (np.linalg.solve(u, xy[..., None])[..., 0] * xy).sum(1)
    yy = variance * rng.chisquare(n - 3, size) + fitted
    own = np.column_stack([n * mean, u[:, 1, 1], u[:, 1, 2], u[:, 2, 2], xy, yy])
    weight = special.softmax(-np.abs(own - z).sum(1) / scale)
    effective = 1 / (weight**2).sum()
    assert effective > 2000
    for name, prior in (("b", beta), ("s2", variance), ("mu", location), ("T", wishart)):
        expected = np.average(prior, axis=0, weights=weight)
        sd = np.sqrt(np.average((prior - expected) ** 2, axis=0, weights=weight))
        error = {"mean_se": sd / np.sqrt(effective), "sd_within": 0.1, "limit": 4.5}
        has_moments(posterior[name], expected, sd, least=500, where=name, **error)
    clt = dp.sample(model, approximate="clt", draws=2000, random_seed=3, **TWO)
    for name in ("b", "mu"):
        near = clt["posterior"][name].mean(("chain", "draw"))
        np.testing.assert_allclose(near, posterior[name].mean(("chain", "draw")), atol=0.06)


def precisions(s2):
    return pm.MvNormal("theta", np.zeros(2), tau=np.eye(2) / (4 * s2))


def test_precisions_are_read():
    """As standard deviations are, of the rows and of the coefficients."""
    plain = exact_draws(written(normal(shape=2)))
    with_tau = written(normal(shape=2), lambda s2: pt.sqrt(1 / (1 / s2)))
    for model in (written(precisions), with_tau):
        found = exact_draws(model)
        np.testing.assert_allclose(found["theta"], plain["theta"], rtol=1e-9)
    with pm.Model() as model:
        s2 = pm.InverseGamma("s2", 3, 0.5)
        theta = normal(shape=2)(s2)
        x = pm.Normal("x", 0, 1, shape=30)
        y = pm.Normal("y", theta[0] + theta[1] * x, tau=1 / s2, shape=30)
        dp.PrivateObservation("z", five(x, y), LAPLACE(1.0), observed=[1.0, 30, 2, 25, 40])
    np.testing.assert_allclose(exact_draws(model)["theta"], plain["theta"], rtol=1e-9)


def diagonal(x, y):
    products = pt.stack([x, y], axis=1)
    products = products.T @ products
    return pt.stack([x.sum(), pt.diag(products)[0], y.sum(), products[0, 1], pt.diag(products)[1]])


def test_the_diagonal_of_a_matrix_of_sums():
    plain = exact_draws(written(normal(shape=2)))
    found = exact_draws(written(normal(shape=2), statistic=diagonal))
    np.testing.assert_allclose(found["theta"], plain["theta"], rtol=1e-9)


def proportional(intercept, *, low=None, z=(4.0, 18.0, 8.0, 20.0, 35.0)):
    """Twelve rows with a known intercept."""
    with pm.Model() as model:
        s2 = pm.InverseGamma("s2", 4, 3.0)
        slope = pm.Normal("slope", 0.5, 2 * pt.sqrt(s2))
        x = pm.Normal("x", 0.3, 1.2, shape=12)
        y = pm.Normal("y", intercept + slope * x, pt.sqrt(s2), shape=12)
        bounds = {} if low is None else {"bounds": ((low, low), (5.0, 5.0))}
        dp.PrivateObservation("z", five(x, y), LAPLACE(6.0), observed=np.array(z), **bounds)
    return model


@pytest.mark.compiled
@pytest.mark.parametrize("intercept", [0.0, 1.5])
def test_an_intercept_that_is_a_number(intercept):
    """The exact chain against importance sampling from the prior."""
    found = dp.sample(proportional(intercept), draws=4000, random_seed=1, **TWO)["posterior"]
    assert found.attrs["route"] == "exact regression"
    rng, size = np.random.default_rng(2), 600_000
    s2 = 3.0 / rng.gamma(4, size=size)
    slope = 0.5 + 2 * np.sqrt(s2) * rng.normal(size=size)
    x = 0.3 + 1.2 * rng.normal(size=(12, size))
    y = intercept + slope * x + np.sqrt(s2) * rng.normal(size=(12, size))
    sums = np.array([x.sum(0), (x**2).sum(0), y.sum(0), (x * y).sum(0), (y**2).sum(0)])
    z = np.array([4.0, 18.0, 8.0, 20.0, 35.0])
    weight = special.softmax(-np.abs(sums - z[:, None]).sum(0) / 6.0)
    effective = 1 / (weight**2).sum()
    assert effective > 3000
    for name, own in (("slope", slope), ("s2", s2)):
        mean = weight @ own
        sd = np.sqrt(weight @ (own - mean) ** 2)
        error = {"mean_se": sd / np.sqrt(effective), "sd_within": 0.1, "limit": 4.5}
        has_moments(found[name], mean, sd, least=1000, where=name, **error)


def test_bounds_need_coefficients_with_a_prior():
    with pytest.raises(NotImplementedError, match="a coefficient of 'y' is a number: with bounds="):
        regression.covered(Reading(proportional(0.0, low=-5.0)))


@pytest.mark.parametrize(
    ("theta", "reason"),
    [
        (lambda _: pm.Flat("theta", shape=2), "the prior of 'theta' is not Normal"),
        (lambda _: pm.Normal("theta", 0, 1, shape=2), "proportional to that of 'y'"),
    ],
    ids=["flat", "no conjugate prior"],
)
def test_reasons_against_the_compiled_chain(theta, reason):
    with pytest.raises(NotImplementedError, match=reason):
        regression.covered(Reading(written(theta)))


@pytest.mark.parametrize("law", ["normal", "bernoulli"])
def test_moments_leave_nothing_to_learn_about_a_law(law):
    """Their parameters would come back as draws from the prior."""
    with pm.Model() as model:
        s2 = pm.InverseGamma("s2", 3, 2)
        theta = normal(shape=2)(s2)
        if law == "normal":
            mu = pm.Normal("mu", 1.0, 3.0)
            x = pm.Normal("x", mu, 1.0, shape=100)
        else:
            x = pm.Bernoulli("x", pm.Beta("mu", 1, 1), shape=100)
        y = pm.Normal("y", theta[0] + theta[1] * x, pt.sqrt(s2), shape=100)
        dp.PrivateObservation("z", five(x, y), LAPLACE(3.0), observed=[100.0, 900, 300, 500, 2000])
    for to in ("marginal", "statistics"):
        with pytest.raises(NotImplementedError, match="nothing is left to learn about 'mu'"):
            dp.collapse(model, to, approximate="clt", moments=[0.5, 1, 2, 4])


def test_rows_along_the_second_axis_are_refused():
    with pm.Model() as model:
        theta = pm.Normal("theta", 0, 1, shape=2)
        x = pm.Normal("x", 0, 1, shape=(2, 12))
        y = pm.Normal("y", theta @ x, 1.0, shape=12)
        dp.PrivateObservation("z", pt.concatenate([x @ y, x.sum(1)]), LAPLACE(3.0))
    with pytest.raises(NotImplementedError, match=r"shapes \(2, 12\) and \(12,\).*shape=\(n, d\)"):
        dp.collapse(model, "statistics")


def test_statistics_of_rows_are_not_recovered_from_a_result_without_them():
    model = written(normal(shape=2))
    tree = dp.sample(model, draws=20, tune=20, **SHORT)
    assert "x_y_mean" in dp.recover(model, tree)["posterior"]
    del tree["posterior"]["x_y_mean"]
    with pytest.raises(ValueError, match=r"no 'x_y_mean'.*rung='statistics'"):
        dp.recover(model, tree)


def test_bounds_are_shown_by_variable():
    with pm.Model() as model:
        theta = pm.Normal("theta", 0, 1, shape=2)
        x = pm.Normal("x", 2, 1, shape=12)
        y = pm.Normal("y", theta[0] + theta[1] * x, 1.0, shape=12)
        dp.PrivateObservation("z", five(x, y), LAPLACE(3.0), bounds=((0, 5), (10, 20)))
    [row] = dp.explain(model, details=True).tables[0][2]
    assert row[-1] == "x in [0, 10], y in [5, 20]"


def test_moments_that_cannot_be_read_are_refused_before_any_route():
    with pytest.raises(ValueError, match=r"^moments= must be"):
        dp.sample(written(normal(shape=2)), approximate="clt", moments=np.ones(3))
