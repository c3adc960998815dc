"""Improper posteriors are refused where the prior gives them away, and only there."""

import numpy as np
import pymc as pm
import pytensor.tensor as pt
import pytest

import pymc_dp as dp

ONE = dp.LaplaceMechanism(1.0)


def variance(prior):
    """The records' standard deviation under a prior of some spread."""
    return {
        "flat variance": lambda: pt.sqrt(pm.HalfFlat("w")),
        "flat variance, both signs": lambda: pt.sqrt(pm.Flat("w")),
        "flat scale": lambda: pm.HalfFlat("w"),
        "flat multiple of the variance": lambda: pt.sqrt(3.0 * pm.HalfFlat("w")),
        "flat log variance": lambda: pt.sqrt(pt.exp(pm.Flat("w"))),
        "flat log scale": lambda: pt.exp(pm.Flat("w")),
        "flat precision": lambda: pm.HalfFlat("w") ** -0.5,
        "proper": lambda: pm.HalfNormal("w", 1.0),
        "inverse gamma": lambda: pt.sqrt(pm.InverseGamma("w", 1.0, 1.0)),
    }[prior]()


def release(n, prior, *, mean="flat", what="both", bounds=None):
    mu = {"flat": lambda: pm.Flat("mu"), "proper": lambda: pm.Normal("mu", 0, 1)}[mean]()
    x = pm.Normal("x", mu, variance(prior), shape=n)
    statistic, observed = {
        "both": ([x.mean(), x.var(ddof=1)], [0.0, 1.0]),
        "mean": (x.mean(), 0.0),
        "variance": (x.var(ddof=1), 1.0),
    }[what]
    dp.PrivateObservation("z", statistic, ONE, observed=observed, bounds=bounds)


def refused(model, message, **options):
    """Assert that nothing is done with a model, for one reason."""
    for ask in (
        lambda: dp.collapse(model, "statistics", **options),
        lambda: dp.collapse(model, "marginal", **options),
        lambda: dp.steps(model),
        lambda: dp.sample(model, progressbar=False),
    ):
        with pytest.raises(ValueError, match=message):
            ask()


# The smallest n with a proper posterior when mean and variance are released.
SMALLEST = [
    ("flat variance", "flat", 4),
    ("flat variance, both signs", "flat", 4),
    ("flat multiple of the variance", "flat", 4),
    ("flat scale", "flat", 3),
    ("flat variance", "proper", 3),
    ("flat scale", "proper", 2),
    ("proper", "flat", 2),
    ("inverse gamma", "flat", 2),
]


@pytest.mark.parametrize(("prior", "mean", "n"), SMALLEST)
def test_smallest_number_of_records(prior, mean, n):
    with pm.Model() as model:
        release(n, prior, mean=mean)
    dp.collapse(model, "statistics")
    if n > 2:
        message = (
            rf"'w' needs n >= {n} records.*has n = {n - 1}\. Give 'w' a proper prior .*bounds="
        )
        with pm.Model(), pytest.raises(ValueError, match=f"improper: the flat prior on {message}"):
            release(n - 1, prior, mean=mean)


def test_the_number_of_records_is_right():
    """The tail of the marginal likelihood in v, for the released variance and a flat mean."""
    for n in (3, 4):
        v = np.array([1e6, 1e8])
        with pm.Model() as model:
            w = pm.HalfNormal("w", 1.0)
            mu = pm.Normal("mu", 0, 1e9)  # as good as flat
            x = pm.Normal("x", mu, pt.sqrt(w), shape=n)
            dp.PrivateObservation("z", x.var(ddof=1), ONE, observed=1.0)
        collapsed = dp.collapse(model)
        logp = collapsed.compile_logp(vars=[collapsed["z"]])
        at = [logp({"mu": np.array(0.0), "w_log__": np.log(x)}) for x in v]
        slope = (at[1] - at[0]) / np.log(v[1] / v[0])
        np.testing.assert_allclose(slope, -(n - 1) / 2, rtol=1e-3)


@pytest.mark.parametrize("prior", ["flat log variance", "flat log scale", "flat precision"])
@pytest.mark.parametrize("bounds", [None, (0, 1)])
def test_one_over_v_is_refused_even_with_bounds(prior, bounds):
    message = "improper: a flat prior on 'w' puts the density 1/v"
    with pm.Model(), pytest.raises(ValueError, match=message):
        release(1000, prior, bounds=bounds)


@pytest.mark.parametrize("prior", ["flat variance", "flat scale"])
def test_bounds_make_other_flat_priors_proper(prior):
    with pm.Model() as model:
        release(2, prior, bounds=(0, 1))
    dp.collapse(model, "statistics")
    with pm.Model() as model:
        release(5, prior, what="variance", bounds=(0, 1))
    dp.collapse(model, "statistics")


def test_a_flat_mean_needs_a_released_mean():
    with pm.Model() as model:
        release(50, "proper", what="variance")  # a release of the mean may still follow
    refused(model, r"improper: 'mu' has a flat prior and no release of 'x'.*pm\.Normal")
    with model:
        dp.PrivateObservation("z2", model["x"].mean(), ONE, observed=0.0)
    dp.collapse(model, "statistics")
    assert dp.steps(model)


WITHHELD = ONE.suppressed(below=3.0)


@pytest.mark.parametrize(
    ("mechanism", "observed", "proper"),
    [
        (WITHHELD, [np.nan, 4.0], False),
        (WITHHELD, [4.0, np.nan], True),
        (WITHHELD, [4.0, 4.0], True),
        (ONE.suppressed(where=[True, False]), [np.nan, 4.0], False),
        (ONE.thresholded(3.0), [1.0, 1.0], False),
    ],
    ids=str,
)
def test_a_flat_mean_needs_a_mean_that_was_printed(mechanism, observed, proper):
    with pm.Model() as model:
        x = pm.Normal("x", pm.Flat("mu"), 2.0, shape=20)
        dp.PrivateObservation("z", [x.mean(), x.var(ddof=1)], mechanism, observed=observed)
    if proper:
        dp.collapse(model, "statistics")
    else:
        refused(model, r"improper: 'mu' has a flat prior and no release of 'x'.*pm\.Normal")


def test_a_flat_variance_needs_a_released_variance():
    with pm.Model() as model:
        release(50, "flat variance", what="mean")
    with pytest.raises(ValueError, match=r"n >= 4 records with a released variance"):
        dp.collapse(model, "statistics")


def test_the_advice_on_n_is_not_what_the_model_has():
    """A proper mean that is not released does not help the variance."""
    with pm.Model() as model:
        release(3, "flat variance", mean="proper", what="variance")
    with pytest.raises(ValueError, match=r"needs n >= 4 records; 'x' has n = 3"):
        dp.collapse(model, "statistics")


def test_other_data_may_make_the_posterior_proper():
    with pm.Model() as model:
        mu, w = pm.Flat("mu"), pm.HalfFlat("w")
        pm.Normal("public", mu, pt.sqrt(w), observed=np.arange(10.0))
        x = pm.Normal("x", mu, pt.sqrt(w), shape=3)
        dp.PrivateObservation("z", x.var(ddof=1), ONE, observed=1.0)
    dp.collapse(model, "statistics")


def test_a_normal_inverse_gamma_prior_is_proper():
    with pm.Model() as model:
        w = pm.InverseGamma("w", 1.0, 1.0)
        mu = pm.Normal("mu", 0.0, pt.sqrt(w / 2))
        x = pm.Normal("x", mu, pt.sqrt(w), shape=2)
        dp.PrivateObservation("z", [x.mean(), x.var(ddof=1)], ONE, observed=[0.0, 1.0])
    dp.collapse(model, "statistics")


# --- Regressions ----------------------------------------------------------------------------------

SUMS = {
    "x": lambda x, y: x.sum(),
    "xx": lambda x, y: (x**2).sum(),
    "y": lambda x, y: y.sum(),
    "xy": lambda x, y: (x * y).sum(),
    "xxy": lambda x, y: (x**2 * y).sum(),
    "y-x": lambda x, y: 2 * y.mean() - x.sum() + 3,
    "yy": lambda x, y: (y**2).sum(),
    "var": lambda x, y: y.var(),
    "log": lambda x, y: pt.log1p(pt.exp(y)).sum(),
}
FLAT = {
    "both": lambda: (pm.Flat("a"), pm.Flat("b")),
    "vector": lambda: pm.Flat("theta", shape=2),
    "slope": lambda: (pm.Normal("a"), 2 * pm.Flat("b")),
    "intercept": lambda: (pm.Flat("a") + 1, pm.Normal("b")),
    "neither": lambda: pm.Normal("theta", shape=2),
}
NORMAL = lambda n: pm.Normal("x", 0.0, 1.0, shape=n)  # noqa: E731
UNIFORM = lambda n: pm.Uniform("x", 1.0, 2.0, shape=n)  # noqa: E731


def regression(sums, coefficients="neither", spread=1.0, *, x=NORMAL, mechanism=ONE, bounds=None):
    with pm.Model() as model:
        a, b = FLAT[coefficients]() if isinstance(coefficients, str) else coefficients()
        sd = spread if isinstance(spread, float) else spread()
        x = x(30)
        y = pm.Normal("y", a + b * x, sd, shape=30)
        statistic = pt.stack([SUMS[name](x, y) for name in sums.split()])
        z = np.ones(len(sums.split()))
        dp.PrivateObservation("z", statistic, mechanism, observed=z, bounds=bounds)
    return model


IMPROPER_COEFFICIENTS = [
    ("x y", "both", NORMAL, "'a', 'b' of 'y'.*Release the sum of x · y too.*pm.Normal to 'a', 'b'"),
    ("x xx y", "vector", UNIFORM, r"'theta\[0\]', 'theta\[1\]' of 'y'.*the sum of x · y too"),
    ("x xy", "both", UNIFORM, "'a', 'b' of 'y'.*Release the sum of y too"),
    ("x xxy", "both", NORMAL, "Release the sum of y and that of x · y too"),
    ("xx y-x", "both", NORMAL, "Release the sum of x · y too"),
    ("y-x y", "both", NORMAL, "Release the sum of x · y too"),
    ("x xx y", "slope", NORMAL, "'b' of 'y' have.*Release the sum of x · y too"),
    ("x xx xy", "intercept", NORMAL, "'a' of 'y' have.*Release the sum of y too"),
]


@pytest.mark.parametrize(("sums", "coefficients", "x", "message"), IMPROPER_COEFFICIENTS)
def test_flat_coefficients_need_sums_that_tell_of_them(sums, coefficients, x, message):
    model = regression(sums, coefficients, x=x)
    approximate = "clt" if x is UNIFORM else None
    refused(model, f"improper: the coefficients .*{message}", approximate=approximate)


FLAT_SPREADS = {
    "variance": lambda: pt.sqrt(pm.HalfFlat("w")),
    "multiple": lambda: pt.sqrt(3.0 * pm.Flat("w")),
    "scale": lambda: pm.HalfFlat("w"),
    "log scale": lambda: pt.exp(pm.Flat("w")),
}


@pytest.mark.parametrize(
    ("sums", "spread"),
    [
        ("x xx y xy", "variance"),
        ("x xx y xy", "multiple"),
        ("x y", "scale"),
        ("x y xy xxy", "log scale"),
    ],
)
def test_a_flat_variance_of_the_response_needs_its_squares(sums, spread):
    model = regression(sums, spread=FLAT_SPREADS[spread])
    message = r"'w' in the variance of 'y' has a flat prior, and no .* sum of y · y\. Give 'w' a"
    if spread != "log scale":
        message += r".*or release \(y\*\*2\)\.sum\(\) too"
    refused(model, message)


def confined():
    transform = pm.distributions.transforms.Interval(0, 1)
    return pm.Flat("a", transform=transform), pm.Flat("b", transform=transform)


def informed():
    a, b = pm.Flat("a"), pm.Flat("b")
    pm.Normal("public", pt.stack([a, b]), 1.0, observed=[0.0, 1.0])
    return a, b


@pytest.mark.parametrize(
    ("sums", "arguments"),
    [
        ("x y xy", {"coefficients": "both"}),
        ("x y xxy", {"coefficients": "vector"}),
        ("x y yy", {"coefficients": "both"}),  # the squares tell of the slope
        ("x y var", {"coefficients": "both"}),
        ("x y log", {"coefficients": "both"}),
        ("x xx y", {"coefficients": "slope", "x": UNIFORM}),  # the sum of x is not zero
        ("x xx y", {"coefficients": "intercept"}),
        ("x xy", {"coefficients": "slope"}),
        ("x y", {"coefficients": informed}),
        ("x y", {"coefficients": confined}),
        ("x y", {"coefficients": "both", "bounds": (0, 1)}),
        ("x y yy", {"spread": FLAT_SPREADS["variance"]}),
        ("x y xy xxy", {"spread": FLAT_SPREADS["variance"]}),  # falls like v^(-3/2)
        ("x y xy", {"spread": FLAT_SPREADS["scale"]}),
        ("x y", {"spread": FLAT_SPREADS["variance"], "bounds": (0, 1)}),
        ("x y", {"spread": lambda: pm.HalfNormal("w")}),
    ],
)
@pytest.mark.by_day(
    "x y xy-arguments0",
    "x xx y-arguments5",
    "x y-arguments8",
    "x y-arguments10",
    "x y yy-arguments11",
    "x y xy-arguments13",
)
def test_regressions_that_may_be_proper_are_not_refused(sums, arguments):
    assert dp.steps(regression(sums, **arguments))


def test_the_tail_in_a_flat_slope_is_right():
    """Released sums of x and y: the likelihood falls like 1/b with a proper intercept."""
    n, rng = 30, np.random.default_rng(1)
    total = rng.normal(0.0, np.sqrt(n), size=2_000_000)
    level = rng.normal(size=total.size)
    seen = np.exp(-np.abs(1.0 - total))
    b = np.array([30.0, 300.0])
    given = [np.exp(-np.abs(1.0 - n * level - k * total)) * seen for k in b]
    slope = np.log(np.mean(given[1]) / np.mean(given[0])) / np.log(10.0)
    np.testing.assert_allclose(slope, -1.0, atol=0.15)
