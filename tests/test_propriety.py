"""Improper posteriors are refused where the prior gives them away, and only there."""

import numpy as np
import pymc as pm
import pytensor.tensor as pt
import pytest

import pymc_dp as dp
from pymc_dp.graphs import power_law

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
        with (
            pm.Model(),
            pytest.raises(
                ValueError,
                match=rf"improper: the flat prior on 'w' needs n >= {n} records.*"
                rf"'x' has n = {n - 1}\. Give 'w' a proper prior .*bounds=",
            ),
        ):
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
        logp = collapsed.compile_fn(
            collapsed.logp(vars=[collapsed["z"]]),
            inputs=collapsed.value_vars,
            on_unused_input="ignore",
        )
        at = [float(logp({"mu": np.array(0.0), "w_log__": np.log(x)})) for x in v]
        slope = (at[1] - at[0]) / np.log(v[1] / v[0])
        np.testing.assert_allclose(slope, -(n - 1) / 2, rtol=1e-3)


@pytest.mark.parametrize("prior", ["flat log variance", "flat log scale", "flat precision"])
@pytest.mark.parametrize("bounds", [None, (0, 1)])
def test_one_over_v_is_refused_even_with_bounds(prior, bounds):
    with (
        pm.Model(),
        pytest.raises(ValueError, match=r"improper: a flat prior on 'w' puts the density 1/v"),
    ):
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
    message = r"improper: 'mu' has a flat prior and no release of 'x'.*pm\.Normal"
    for to in ("statistics", "marginal"):
        with pytest.raises(ValueError, match=message):
            dp.collapse(model, to)
    with pytest.raises(ValueError, match=message):
        dp.steps(model)
    with model:
        dp.PrivateObservation("z2", model["x"].mean(), ONE, observed=0.0)
    dp.collapse(model, "statistics")
    assert dp.steps(model)


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


@pytest.mark.parametrize(
    ("expression", "expected"),
    [
        (lambda w: w, (1.0, 1.0)),
        (lambda w: 3 * w, (3.0, 1.0)),
        (lambda w: (2 * w) ** 2, (4.0, 2.0)),
        (lambda w: 5 / w, (5.0, -1.0)),
        (lambda w: pt.sqrt(w) ** 2, (1.0, 1.0)),
        (lambda w: w**0.25, (1.0, 0.25)),
        (lambda w: w + 1, None),
        (lambda w: -w, None),
        (lambda w: pt.log(w), None),
        (lambda w: w**2 + w, None),
    ],
)
def test_power_law(expression, expected):
    w = pm.HalfFlat.dist()
    found = power_law(expression(w), w)
    if expected is None:
        assert found is None
    else:
        np.testing.assert_allclose(found, expected, rtol=1e-12)


def test_power_law_marks_exponentials_and_needs_one_variable():
    w, other = pm.Flat.dist(), pm.Flat.dist()
    assert power_law(pt.exp(2 * w), w)[1] == np.inf
    assert power_law(w * other, w) is None
