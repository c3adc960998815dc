"""The rungs of a regression: the same posterior on each, the approximation by name only."""

import numpy as np
import pymc as pm
import pytensor.tensor as pt
import pytest
from scipy import stats

import pymc_dp as dp
from pymc_dp.ladder.collapse import integrable
from pymc_dp.plugins.regression.central_limit import covariate_moments
from pymc_dp.plugins.regression.clt import read_moments
from pymc_dp.plugins.regression.route import box
from pymc_dp.reading.columns import read_rows
from pymc_dp.reading.model import Reading
from tests.agreement import has_moments, same_means
from tests.models import as_model, five_sums, refuses, route_table, simple_regression
from tests.references import references
from tests.row_moments import product_law

CASES = {case["id"]: case for case in references("regression")}
FIVE = "A_exact_n10_b5.0"
CIRRHOSIS = 46, [9.0, 6.5, 20.5, 3.0, 10.0], 10.0  # rows, sums and noise of this size
QUIET = {"progressbar": False, "random_seed": 1, "chains": 2, "cores": 1}


@pytest.fixture(scope="module")
def reference():
    inputs = CASES[FIVE]["inputs"]
    return simple_regression(inputs["n"], inputs["z"], inputs["b"])


def agrees(tree, expected):
    posterior = tree["posterior"]
    draws = [posterior["theta"], posterior["sigma2"].to_numpy()[..., None]]
    draws = np.concatenate(draws, axis=-1)
    has_moments(draws, expected["mean"], expected["sd"], expected["mean_se"], sd_within=0.08)


def moments_of(model, stated=None):
    """Return the moments that are read of the covariates."""
    [block] = integrable(Reading(model))
    return covariate_moments(model, read_rows(Reading(model), block), stated)


@pytest.mark.parametrize(
    ("to", "approximate", "target"),
    [
        ("statistics", None, "exact_individual"),
        ("statistics", "clt", "clt_joint"),
        ("marginal", "clt", "clt_joint"),
    ],
)
@pytest.mark.nightly
def test_nuts_on_the_rungs(reference, to, approximate, target):
    collapsed = dp.collapse(reference, to, approximate=approximate)
    tree = pm.sample(2000, tune=1000, model=collapsed, **QUIET)
    agrees(tree, CASES[FIVE]["expected"][target])
    if to == "statistics":
        assert tree["posterior"]["x_y_cov"].shape[2:] == (2, 2)


def test_the_exact_route(reference):
    tree = dp.sample(reference, draws=5000, **QUIET)
    assert tree["posterior"].attrs["route"] == "exact regression"
    agrees(tree, CASES[FIVE]["expected"]["exact_individual"])
    assert tree["posterior"]["x_y_mean"].shape == (2, 5000, 2)
    assert tree["posterior"]["x_y_cov"].shape == (2, 5000, 2, 2)


@pytest.mark.parametrize("name", [FIVE, "A_exact_n10_b0.2", "A_exact_n100_b5.0"])
@pytest.mark.nightly
def test_the_central_limit_theorem_against_references(name):
    inputs, expected = CASES[name]["inputs"], CASES[name]["expected"]["clt_joint"]
    model = simple_regression(inputs["n"], inputs["z"], inputs["b"])
    tree = dp.sample(model, draws=4000, approximate="clt", **QUIET)
    agrees(tree, expected)
    if "x_y_mean" in tree["posterior"]:
        exact = dp.sample(model, draws=4000, **QUIET)
        means = [t["posterior"]["x_y_mean"].mean(("chain", "draw")) for t in (exact, tree)]
        np.testing.assert_allclose(*means, atol=0.03)


@pytest.mark.nightly
def test_stated_moments_against_the_reference_of_the_cirrhosis_data():
    case = CASES["A_KR_A_cltjoint_collapsed"]
    x, expected = case["inputs"], case["expected"]
    with pm.Model() as model:
        sigma2 = pm.InverseGamma("sigma2", x["prior"]["a0"], x["prior"]["b0"])
        theta = pm.Normal("theta", x["prior"]["mu0"], pt.sqrt(4 * sigma2), shape=2)
        rows = pm.Normal("x", 0, 1, shape=x["n"])
        y = pm.Normal("y", theta[0] + theta[1] * rows, pt.sqrt(sigma2), shape=x["n"])
        noise = dp.LaplaceMechanism(x["b"][0])
        dp.PrivateObservation("z", five_sums(rows, y), noise, observed=x["z"])
    options = {"approximate": "clt", "moments": x["moments_1_to_4"]}
    tree = dp.sample(model, draws=4000, **options, **QUIET)
    agrees(tree, expected | {"mean_se": expected["se"]})


@pytest.mark.nightly
def test_without_noise_the_posterior_is_the_conjugate_one():
    case = next(c for c in CASES.values() if c["kind"] == "NIG update")["inputs"]
    rows, y = np.array(case["X"]), np.array(case["y"])
    expected = next(c for c in CASES.values() if c["kind"] == "NIG update")["expected"]
    n, d = rows.shape
    cov = np.linalg.inv(case["Lambda0"])
    with pm.Model() as model:
        v = pm.InverseGamma("v", alpha=case["a0"], beta=case["b0"])
        theta = pm.MvNormal("theta", np.array(case["mu0"]), cov * v)
        x = pm.Normal("x", 0, 1, shape=(n, d - 1))
        features = pt.concatenate([pt.ones((n, 1)), x], axis=1)
        response = pm.Normal("y", features @ theta, pt.sqrt(v), shape=n)
        i, j = np.triu_indices(d)
        sums = (features.T @ features)[i[1:], j[1:]]
        own = pt.concatenate([sums, features.T @ response, [(response**2).sum()]])
        published = np.concatenate([(rows.T @ rows)[i[1:], j[1:]], rows.T @ y, [y @ y]])
        dp.PrivateObservation("z", own, dp.LaplaceMechanism(1e-6), observed=published)
    exact = dp.sample(model, draws=2000, **QUIET)["posterior"]
    np.testing.assert_allclose(exact["theta"].mean(("chain", "draw")), expected["mu_n"], atol=0.03)
    v = exact["v"].mean()
    assert float(v) == pytest.approx(expected["b_n"] / (expected["a_n"] - 1), rel=0.03)


def test_marginal_density_under_gaussian_noise():
    n, scale = 50, np.array([1.0, 2.0, 3.0, 1.5, 2.5])
    z = np.array([2.0, 3.0, 20.0, 1.0, 15.0])
    model = simple_regression(n, z, scale, mechanism=dp.GaussianMechanism)
    marginal = dp.collapse(model, "marginal", approximate="clt")
    assert [rv.name for rv in marginal.free_RVs] == ["sigma2", "theta"]
    density = marginal.compile_logp(vars=[marginal["z"]])
    sums = (0,), (0, 0), (1,), (0, 1), (1, 1)
    for theta, v in (([0.6, -0.8], 0.03), ([0.0, 2.0], 0.2)):
        a, b = theta
        cov = 0.04 * np.outer([1, b], [1, b]) + np.diag([0, v])
        mean, cov = product_law(sums, np.array([0, a]), cov)
        law = stats.multivariate_normal(n * mean, n * cov + np.diag(scale**2))
        ours = density({"theta": np.array(theta), "sigma2_log__": np.log(v)})
        assert ours == pytest.approx(law.logpdf(z), rel=1e-7)  # 0.2 is a float32 in the graph


@pytest.mark.parametrize("n", [3, 10**7])
def test_cost_does_not_depend_on_n(n):
    truth = n * np.array([0.0, 0.04, 0.5, -0.02, 0.3])
    model = simple_regression(n, truth, 10.0)
    tree = dp.sample(model, draws=500, **QUIET)
    posterior = tree["posterior"]
    assert all(bool(np.isfinite(v).all()) for v in posterior.values())
    if n > 3:
        theta = posterior["theta"].mean(("chain", "draw")).to_numpy()
        np.testing.assert_allclose(theta, [0.5, -0.5], atol=0.01)


def test_moments_of_covariates():
    uniform = simple_regression(*CIRRHOSIS, x_law=lambda n: pm.Uniform("x", 0, 1, shape=n))
    refuses(uniform, "'x' follow Uniform", "statistics")
    law, stated = (moments_of(uniform, m) for m in (None, [1 / 2, 1 / 3, 1 / 4, 1 / 5]))
    np.testing.assert_allclose(law.second, stated.second, rtol=1e-12)
    np.testing.assert_allclose(law.root @ law.root.T, stated.root @ stated.root.T, rtol=1e-10)
    rows = np.column_stack([np.ones(9), np.random.default_rng(1).normal(size=(9, 2))])
    two = np.einsum("ni,nj,nk,nl->ijkl", rows, rows, rows, rows) / 9
    for moments, match in (
        ([0.1, 0.2], "first four moments"),
        (two, "are of 2 covariates"),
        ("data", "write an array, or 'released'"),
        ("released", "sum of x·x·x was not released"),
    ):
        options = {"approximate": "clt", "moments": moments}
        refuses(uniform, match, "statistics", error=ValueError, **options)
    for match, options in (
        ("approximate='clt' with it", {"moments": [0.5, 0.3, 0.2, 0.1]}),
        ("write 'clt'", {"approximate": "normal"}),
    ):
        refuses(uniform, match, "statistics", error=ValueError, **options)


def test_released_moments_are_used_up(caplog):
    with simple_regression(*CIRRHOSIS) as model:
        x = model["x"]
        powers = pt.stack([(x**3).sum(), (x**4).sum()])
        dp.PrivateObservation("powers", powers, dp.LaplaceMechanism(10.0), observed=[2.5, 1.9])
    match = "'powers' is of products of 4 columns"
    refuses(model, match, "statistics", approximate="clt")
    collapsed = dp.collapse(model, "statistics", approximate="clt", moments="released")
    assert [rv.name for rv in collapsed.observed_RVs] == ["z"]
    stated = np.array([9.0, 6.5, 2.5, 1.9]) / 46
    plain = simple_regression(*CIRRHOSIS)
    same = dp.collapse(plain, "statistics", approximate="clt", moments=stated)
    densities = []
    for m in (collapsed, same):
        point, name = m.initial_point(), "x_y_sums_standard_whitened__"
        point[name] = np.linspace(-1, 1, point[name].size)
        densities.append(m.compile_logp()(point))
    assert densities[0] == pytest.approx(densities[1], rel=1e-10)


def test_bounds_of_a_box():
    model = simple_regression(*CIRRHOSIS, bounds=(0, (1, 2)))
    assert "x in [0, 1], y in [0, 2]" in str(dp.explain(model, details=True))
    tree = dp.sample(model, draws=2000, **QUIET)
    posterior = tree["posterior"]
    theta, sigma2 = posterior["theta"].to_numpy(), posterior["sigma2"].to_numpy()
    ends = np.stack([theta[..., 0], theta.sum(axis=-1)])
    assert ends.max(axis=0).min() >= 0
    assert ends.min(axis=0).max() <= 2
    assert sigma2.max() <= 1.0
    mean = posterior["x_y_mean"].to_numpy()
    assert mean.min() >= 0
    assert (mean <= [1, 2]).all()
    for wrong, match in (((0, 0), "is not an interval"), ((0, (1, 2, 3)), "must be a pair")):
        with pytest.raises(ValueError, match=match):
            simple_regression(*CIRRHOSIS, bounds=wrong)
    refuses(model, "states bounds=", "marginal", approximate="clt")
    with pytest.raises(ValueError, match="walls of bounds= stop NUTS: leave approximate= out"):
        dp.sample(model, approximate="clt", **QUIET)


def test_box_density():
    """The release's own density knows the region: inside it is the noise's, outside nothing."""
    model = simple_regression(5, [1.0, 1.0, 1.0, 1.0, 1.0], 1.0, bounds=(0, 1))
    density = model.compile_logp(vars=[model["z"]])
    x, y = np.array([0.1, 0.5, 0.9, 0.3, 0.2]), np.array([0.2, 0.4, 0.6, 0.3, 0.3])
    point = {"theta": np.array([0.2, 0.5]), "sigma2_log__": np.log(0.02), "x": x, "y": y}
    expected = -np.abs(np.array(five_sums(x, y)) - 1.0).sum() - 5 * np.log(2)
    assert density(point) == pytest.approx(expected)
    for change in (
        {"sigma2_log__": np.log(0.26)},
        {"theta": np.array([1.1, 0.5])},
        {"x": x - 0.5},
        {"y": y * 3},
    ):
        assert density(point | change) == -np.inf


@as_model
def bounded_apart(x_bounds=(0, 1), y_bounds=(0, 1), mu=0.5):
    """Return a regression whose releases of x, and of y with x, state bounds or do not."""
    sigma2 = pm.InverseGamma("sigma2", 3, 0.1)
    theta = pm.Normal("theta", 0.5, pt.sqrt(sigma2), shape=2)
    x = pm.Normal("x", mu() if callable(mu) else mu, 0.2, shape=50)
    y = pm.Normal("y", theta[0] + theta[1] * x, pt.sqrt(sigma2), shape=50)
    own = [x.sum(), (x**2).sum()], [y.sum(), (y**2).sum()]
    if y_bounds is not None:  # a box needs both columns
        own[1].insert(1, (x * y).sum())
    z = {2: [25.0, 14.5], 3: [25.0, 14.0, 14.5]}
    for name, stated, sums in zip("ab", (x_bounds, y_bounds), own, strict=True):
        noise = dp.LaplaceMechanism(1.0)
        dp.PrivateObservation(name, sums, noise, observed=z[len(sums)], bounds=stated)


@pytest.mark.nightly
def test_bounds_of_the_covariate_alone_are_kept_on_the_records_only():
    model = bounded_apart(y_bounds=None)
    for approximate in (None, "clt"):
        match = "'a' states bounds= of 'x':.*rung='records'"
        refuses(model, match, "statistics", approximate=approximate)
    states = {route.name: (rate, reason) for route, rate, reason in route_table(model)}
    assert max(states, key=lambda name: states[name][0]) == "Metropolis on the records"
    assert "'a' states bounds= of 'x'" in states["Gibbs on the statistics"][1]
    assert "bounds= of 'x'" in states["exact regression"][1]
    tree = dp.sample(model, draws=20, tune=20, progressbar=False, chains=1, random_seed=1)
    assert np.isfinite(tree["posterior"]["theta"]).all()


@pytest.mark.nightly
def test_bounds_of_sums_in_two_releases():
    """Each states those of its own records; the region is that of a single release."""
    apart = bounded_apart(y_bounds=((0, 0), (1, 2)))
    text = str(dp.explain(apart, details=True))
    assert "x in [0, 1], y in [0, 2]" in text
    fields = box(read_rows(Reading(apart), integrable(Reading(apart))[0]))
    assert fields["bounded"]
    np.testing.assert_array_equal(fields["box"], [0.0, 1.0, 0.0, 2.0])
    exact = dp.sample(apart, draws=4000, **QUIET)
    assert exact["posterior"].attrs["route"] == "exact regression"
    records = dp.sample(apart, rung="records", draws=400, tune=300, **QUIET)
    for name in ("theta", "sigma2"):
        same_means(*(t["posterior"][name] for t in (exact, records)), where=name)


def test_bounds_that_confine_the_law_of_the_covariate():
    for mu in (0, lambda: pm.Normal("mu", 0.5, 1)):  # impossible, and unknown
        model = bounded_apart(mu=mu)
        with pytest.raises(NotImplementedError, match="bounds= of 'x' confine its law, too"):
            box(read_rows(Reading(model), integrable(Reading(model))[0]))


@pytest.mark.parametrize(
    ("x_bounds", "y_bounds", "shown"),
    [
        ((0, 1), ((0, 0), (2, 1)), r"\(0.0, 1.0\), \(0.0, 2.0\)"),
        (None, (0, 1), r"None, \(0.0, 1.0\)"),
        ((0, 2), (0, 1), r"\(0.0, 2.0\), \(0.0, 1.0\)"),
    ],
)
def test_bounds_of_a_record_have_to_agree(x_bounds, y_bounds, shown):
    match = f"'b': the releases of 'x' state different bounds {shown}:"
    with pytest.raises(ValueError, match=match):
        bounded_apart(x_bounds=x_bounds, y_bounds=y_bounds)


def test_refusals():
    model = simple_regression(*CIRRHOSIS)
    refuses(model, "Wishart law, which has no marginal", "marginal")
    with pytest.raises(ValueError, match="moments= is part of the approximation"):
        dp.sample(model, moments=[0.1, 0.2, 0.3, 0.4])
    with pm.Model() as latent:
        m = pm.Normal("m")
        dp.PrivateObservation("z", m, dp.LaplaceMechanism(1.0), observed=0.3)
    for other, arguments in (
        (latent, {}),
        (model, {"step": pm.Metropolis([model["sigma2"]], model=model)}),
        (model, {"var_names": ["x"]}),
        (model, {"rung": "records"}),
    ):
        with pytest.raises(ValueError, match="approximate='clt' integrates rows of several"):
            dp.sample(other, approximate="clt", **arguments, **QUIET)
    unpublished = simple_regression(46, None, 10.0)
    with pytest.raises(ValueError, match="moments= is part of the approximation"):
        dp.sample(unpublished, moments="released", **QUIET)
    with pm.Model() as single:  # and has no exact collapse
        x = pm.Beta("x", 2.0, pm.Gamma("b", 1, 1), shape=10)
        sums = pt.stack([x.sum(), (x**2).sum()])
        dp.PrivateObservation("z", sums, dp.LaplaceMechanism(1.0), observed=[0.3, 0.4])
    with simple_regression(*CIRRHOSIS) as beside:
        w = pm.Normal("w", pm.Normal("m"), 1, shape=9)
        dp.PrivateObservation("w_z", w.sum(), dp.LaplaceMechanism(1.0), observed=0.3)
    for other, name in ((single, "x"), (beside, "w")):
        match = rf"is for rows of several columns, .* the records '{name}' .*: leave it out"
        refuses(other, match, "statistics", error=ValueError, approximate="clt")


def test_misreadings_are_refused():
    """Models that look like a conjugate regression, and are not."""
    published = np.array([0.0, 50.0, 0.0, 0.0, 50.0])
    with pm.Model() as shared:  # one variance for both columns
        v = pm.InverseGamma("v", 3, 2)
        mean = pm.Normal("mean", 0, pt.sqrt(v))
        slope = pm.Normal("slope", 0, pt.sqrt(v), shape=2)
        x = pm.Normal("x", mean, pt.sqrt(v), shape=50)
        y = pm.Normal("y", slope[0] + slope[1] * x, pt.sqrt(v), shape=50)
        dp.PrivateObservation("z", five_sums(x, y), dp.LaplaceMechanism(1.0), observed=published)
    states = {route.name: why for route, _, why in route_table(shared)}
    assert "'v' is part of the law of the covariates" in states["exact regression"]
    with pm.Model() as apart:  # rows of different lengths
        x = pm.Normal("x", pm.Normal("mu"), 1, shape=20)
        y = pm.Normal("y", x.mean(), 1, shape=30)
        dp.PrivateObservation("zx", x.mean(), dp.GaussianMechanism(0.1), observed=0.0)
        dp.PrivateObservation("zy", y.mean(), dp.GaussianMechanism(0.1), observed=2.0)
    refuses(apart, "no columns of the same rows")
    third = simple_regression(
        50, [*published, 0.0], 1.0, statistic=lambda x, y: [*five_sums(x, y), (x**3).sum()]
    )
    for moments in (None, [0.0, 1.0, 0.0, 3.0]):
        with pytest.raises(ValueError, match="products of 3 columns"):
            dp.sample(third, approximate="clt", moments=moments)
    match = "declare two releases"
    refuses(third, match, "statistics", approximate="clt", moments="released")
    uneven = simple_regression(
        50, published, 1.0, x_law=lambda n: pm.Uniform("x", 0, np.linspace(1, 2, n), shape=n)
    )
    refuses(uneven, "'x' are not identically distributed", "statistics", approximate="clt")


def test_moments_of_laws_with_whole_numbers_and_other_units():
    whole = simple_regression(50, np.ones(5), 1.0, x_law=lambda n: pm.Uniform("x", 18, 65, shape=n))
    found = moments_of(whole)
    law = stats.uniform(18, 47)
    np.testing.assert_allclose(found.mean, [law.mean(), law.moment(2)], rtol=1e-12)
    cov = found.root @ found.root.T
    assert cov[1, 1] == pytest.approx(law.moment(4) - law.moment(2) ** 2)
    assert cov[0, 0] == pytest.approx(law.var())
    table = np.array(
        [stats.uniform(0, width).moment(k) if k else 1.0 for width in (1e6, 1) for k in range(5)]
    )
    table = np.vstack([np.ones(5), table.reshape(2, 5)])
    index = np.indices((3, 3, 3, 3)).reshape(4, -1)
    fourth = np.prod([table[j, (index == j).sum(axis=0)] for j in range(1, 3)], axis=0)
    both = read_moments(fourth.reshape(3, 3, 3, 3))
    cov = both.root @ both.root.T
    assert cov[1, 1] == pytest.approx(1 / 12, rel=1e-8)
    assert both.moved == 0.0


def covariates(law, n=50):
    """Return the moments that are read of a law of covariates."""
    with pm.Model() as model:
        x = law(n)
        columns = x[:, None] if x.ndim == 1 else x
        y = pm.Normal("y", columns.sum(axis=1), 1.0, shape=n)
        dp.PrivateObservation("z", columns.T @ y, dp.LaplaceMechanism(1.0))
    return moments_of(model)


def test_moments_of_a_law_far_from_zero():
    for low in (0.0, 1e4, 1e8):
        found = covariates(lambda n, low=low: pm.Uniform("x", low, low + 1, shape=n))
        np.testing.assert_allclose(found.mean, [low + 0.5, low**2 + low + 1 / 3], rtol=1e-14)
        root = np.linalg.qr(found.root.T, mode="r").T
        assert root[0, 0] ** 2 == pytest.approx(1 / 12)
        assert root[1, 1] ** 2 == pytest.approx(1 / 180)
        assert found.moved == 0.0


@pytest.mark.parametrize("p", [1e-6, 0.3, 0.5, 0.5 + 1e-9])
def test_moments_of_two_values(p):
    """The square is the covariate itself, and at 1/2 its deviations have squares that are fixed."""
    found = covariates(lambda n: pm.Bernoulli("x", p, shape=n))
    np.testing.assert_allclose(found.root @ found.root.T, p * (1 - p), rtol=1e-9)
    np.testing.assert_allclose(found.mean, p)
    assert found.moved == 0.0
    with pytest.raises(ValueError, match=r"'x' has the variance 0\.0"):
        covariates(lambda n: pm.Bernoulli("x", 1.0, shape=n))


def test_each_column_has_its_own_parameters():
    low, high = np.array([0.0, 2.0]), np.array([1.0, 5.0])
    found = covariates(lambda n: pm.Uniform("x", low, high, shape=(n, 2)))
    np.testing.assert_allclose(found.second[0], [1.0, 0.5, 3.5])
    np.testing.assert_allclose(np.diag(found.second), [1.0, 1 / 3, 13.0])
    shared = covariates(lambda n: pm.Uniform("x", 0.0, high, shape=(n, 2)))
    np.testing.assert_allclose(shared.second[0], [1.0, 0.5, 2.5])


@as_model
def released_means(factor=1.0, shift=0.0, values=(0.3, 0.2, 0.15, 0.12), data=False):
    """Return a regression of which powers of x were published as means, and in other units."""
    z = np.array([9.0, 6.5, 20.5, 3.0, 10.0])
    sigma2 = pm.InverseGamma("sigma2", alpha=20, beta=0.5)
    theta = pm.Normal("theta", 0, pt.sqrt(sigma2 * 38), shape=2)
    x = pm.Normal("x", 0, 0.2, shape=46)
    y = pm.Normal("y", theta[0] + theta[1] * x, pt.sqrt(sigma2), shape=46)
    own = pt.stack([y.sum(), (x * y).sum(), (y**2).sum()])
    dp.PrivateObservation("z", own, dp.LaplaceMechanism(1.0), observed=z[2:])
    powers = pt.stack([(x**k).mean() for k in range(1, 5)])
    for k in range(2):
        own = slice(2 * k, 2 * k + 2)
        observed = shift + factor * np.asarray(values[own])
        dp.PrivateObservation(
            f"powers{k}",
            shift + factor * powers[own],
            dp.LaplaceMechanism(0.1),
            observed=pm.Data(f"powers{k}_data", observed) if data else observed,
        )


@pytest.mark.parametrize(("factor", "shift"), [(1.0, 0.0), (46.0, 0.0), (-3.0, 7.0)])
def test_released_moments_in_any_units(factor, shift):
    model = released_means(factor, shift)
    found = moments_of(model, "released")
    expected = read_moments([0.3, 0.2, 0.15, 0.12])
    np.testing.assert_allclose(found.mean, expected.mean, rtol=1e-10)
    cov = expected.root @ expected.root.T
    np.testing.assert_allclose(found.root @ found.root.T, cov, rtol=1e-8)


def test_moments_that_were_moved_are_reported_once(caplog):
    model = released_means(values=(0.3, 0.2, 0.15, 0.08))
    assert any(not why for *_, why in route_table(model, "clt", moments="released"))
    said = [r for r in caplog.records if "replaced by the nearest" in r.getMessage()]
    assert len(said) == 1


@pytest.mark.parametrize("to", ["statistics", "marginal"])
def test_new_data_reach_a_collapsed_clt_model(to):
    def collapsed(weight, offset):
        with pm.Model() as model:
            weight, offset = pm.Data("weight", weight), pm.Data("offset", offset)
            slope = pm.Normal("slope")
            x = pm.Uniform("x", 0, 1, shape=50)
            y = pm.Normal("y", slope * x, 1.0, shape=50)
            own = pt.stack([(weight * x).sum(), weight * (x * y).sum(), (y**2).sum() / weight])
            z = np.array([25.0, 10.0, 40.0])
            dp.PrivateObservation("z", own + offset, dp.GaussianMechanism(1.0), observed=z)
        return dp.collapse(model, to, approximate="clt")

    changed, fresh = collapsed(1.0, 0.0), collapsed(2.0, 3.0)
    point = {k: v + 0.3 for k, v in fresh.initial_point().items()}
    density = changed.compile_logp()
    before = density(point)
    changed.set_data("weight", 2.0)
    changed.set_data("offset", 3.0)
    assert density(point) == pytest.approx(fresh.compile_logp()(point), rel=1e-10)
    assert density(point) != pytest.approx(before)


def test_moments_that_may_change_are_for_sample():
    """It reads them at every call; a collapsed model would hold the numbers of its beginning."""

    def uniform(n):
        low = pm.Data("low", 0.0)
        return pm.Uniform("x", low, low + 1, shape=n)

    law = simple_regression(*CIRRHOSIS, x_law=uniform)
    released = released_means(data=True)
    for model, moments, source, data, *rungs in (
        (law, None, "x", "low"),
        (released, "released", "powers0", "powers0_data", "statistics"),
    ):
        match = f"from '{source}', which.*'{data}'.*dp.sample"
        refuses(model, match, *rungs, approximate="clt", moments=moments)
        assert any(not why for *_, why in route_table(model, "clt", moments=moments))
    law.set_data("low", 3.0)
    found = moments_of(law)
    np.testing.assert_allclose(found.mean, [3.5, 3.5**2 + 1 / 12])
    released.set_data("powers0_data", [0.4, 0.3])
    found = moments_of(released, "released")
    np.testing.assert_allclose(found.mean, [0.4, 0.3], rtol=1e-10)


@pytest.mark.nightly
def test_new_data_reach_the_moments_of_the_next_sample():
    def uniform(low):
        def law(n):
            start = pm.Data("low", low)
            return pm.Uniform("x", start, start + 1, shape=n)

        return simple_regression(*CIRRHOSIS, x_law=law)

    def draws(model):
        few = {"draws": 20, "tune": 20, "approximate": "clt"} | QUIET
        return dp.sample(model, **few)["posterior"]["theta"].to_numpy()

    model = uniform(0.0)
    before = draws(model)
    model.set_data("low", 3.0)
    np.testing.assert_allclose(draws(model), draws(uniform(3.0)))
    assert not np.allclose(draws(model), before)


def test_data_stay_in_the_collapsed_graph():
    with pm.Model(coords={"row": range(30), "feature": ["a", "b"]}) as model:
        weight = pm.Data("weight", 2.0)
        slope = pm.Normal("slope", shape=2)
        x = pm.Normal("x", 0, 1, dims=("row", "feature"))
        y = pm.Normal("y", weight * (x @ slope), 1.0, dims="row")
        dp.PrivateObservation("z", x.T @ y, dp.LaplaceMechanism(1.0), observed=[1.0, 2.0])
    collapsed = dp.collapse(model, "statistics")
    density, point = collapsed.compile_logp(), collapsed.initial_point()
    point["slope"] = np.array([1.0, -1.0])
    before = density(point)
    collapsed.set_data("weight", 5.0)
    assert density(point) != before
