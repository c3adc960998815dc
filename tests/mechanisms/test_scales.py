"""What holds for noise of one scale, by the four mechanisms that add it."""

import mpmath
import numpy as np
import pandas as pd
import pymc as pm
import pytensor
import pytensor.tensor as pt
import pytest
from pymc.logprob.utils import ParameterValueError
from scipy import stats

from pymc_dp.mechanisms import (
    DiscreteGaussianMechanism,
    GaussianMechanism,
    GeometricMechanism,
    LaplaceMechanism,
)
from tests.mechanisms.noise import PYTHON, evaluate, functions_of

LOSSES = {
    LaplaceMechanism: "epsilon",
    GeometricMechanism: "epsilon",
    GaussianMechanism: "rho",
    DiscreteGaussianMechanism: "rho",
}


@pytest.fixture(params=LOSSES, ids=lambda cls: cls.__name__)
def mechanism_class(request):
    return request.param


# --- The scale ----------------------------------------------------------------------------------


@pytest.mark.parametrize("bad", [0.0, -1.0, np.nan, np.inf])
def test_bad_scale(mechanism_class, bad):
    [name], loss = mechanism_class.parameter_names, LOSSES[mechanism_class]
    message = (
        rf"{mechanism_class.__name__}: {name} must be finite and > 0, got {bad}.*from_{loss}\("
    )
    with pytest.raises(ValueError, match=message):
        mechanism_class(bad)
    message = message.replace(f"got {bad}", f"got {bad} at index 1")
    for scale in ([1.0, bad], pytensor.shared(np.array([1.0, bad]))):
        with pytest.raises(ValueError, match=message):
            mechanism_class(scale)
    for argument in (loss, "sensitivity"):
        arguments = {loss: 1.0, "sensitivity": 1.0, argument: bad}
        with pytest.raises(ValueError, match=f"{argument} must be finite and > 0, got {bad}"):
            getattr(mechanism_class, f"from_{loss}")(**arguments)


def test_not_a_number(mechanism_class):
    [name], loss = mechanism_class.parameter_names, LOSSES[mechanism_class]
    with pytest.raises(
        TypeError, match=f"{name} must be a number, an array or a tensor, got 'two'"
    ):
        mechanism_class("two")
    with pytest.raises(TypeError, match=f"{loss} must be a number"):
        getattr(mechanism_class, f"from_{loss}")(pt.scalar("e"), 1.0)
    with pytest.raises(ValueError, match=f"{name} is empty"):
        mechanism_class([])


def test_random_scale_is_refused(mechanism_class):
    noise = pm.Exponential.dist(1.0, name="noise")
    mixture = pm.NormalMixture.dist([0.5, 0.5], [0, 1], [1, 1])
    for scale in (noise, 2 * pt.exp(noise), [1.0, noise], pt.abs(mixture)):
        with pytest.raises(TypeError, match=r"public and known, never estimated.*pm\.Data"):
            mechanism_class(scale)
    [name] = mechanism_class.parameter_names
    with pytest.raises(TypeError, match=f"{name} depends on the random variable 'noise'"):
        mechanism_class(2 * pt.exp(noise))


def test_data_scale_can_change(mechanism_class):
    with pm.Model() as model:
        data = pm.Data("noise_scale", [1, 4])
        logp = mechanism_class(data).logp([1.0, 2.0])
        f = pytensor.function([], logp, mode=PYTHON)
        for scales in ([1, 4], [3, 5]):
            pm.set_data({"noise_scale": scales}, model=model)
            expected = evaluate(mechanism_class(scales).logp([1.0, 2.0]))
            np.testing.assert_allclose(f(), expected, rtol=1e-12)
        pm.set_data({"noise_scale": [3, -5]}, model=model)
        with pytest.raises(ParameterValueError, match=r"0 < \w+ < inf"):
            f()


def test_unverified_scale_is_checked_in_the_graph(mechanism_class):
    b = pt.scalar("b")
    mechanism, [name] = mechanism_class(b), mechanism_class.parameter_names
    for graph in (
        mechanism.logp(0.0),
        mechanism.log_interval(0.0, 1.0),
        mechanism.logcdf(0.0),
        mechanism.icdf(0.3),
    ):
        f = pytensor.function([b], graph, mode=PYTHON)
        assert np.isfinite(f(2.0))
        for bad in (-1.0, 0.0, np.inf, np.nan):
            with (
                np.errstate(all="ignore"),
                pytest.raises(ParameterValueError, match=f"0 < {name} < inf"),
            ):
                f(bad)
    # A template may be rebuilt from any variable, and from numbers that nobody validated.
    assert mechanism_class(1.0).with_parameters(-1.0).parameters[0].data == -1.0


def test_repr(mechanism_class):
    start = f"{mechanism_class.__name__}({mechanism_class.parameter_names[0]}"
    for scale, shown in (
        ([2.3, 0.4], "[2.3, 0.4]"),
        (3, "3.0"),
        (pt.scalar("b"), "b"),
        (2 * pt.scalar("b"), "<symbolic>"),
        (pytensor.shared(2.0), "2.0"),
    ):
        assert repr(mechanism_class(scale)) == f"{start}={shown})"


# --- Privacy loss -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("mechanism_class", "loss", "sensitivity", "scale"),
    [
        (LaplaceMechanism, [0.25, 0.5], [[2.0], [1.0]], [[8.0, 4.0], [4.0, 2.0]]),
        (GeometricMechanism, [0.5, 2.0], 2, [4.0, 1.0]),
        (GaussianMechanism, [0.5, 2.0], [[1.0], [3.0]], [[1.0, 0.5], [3.0, 1.5]]),
        (DiscreteGaussianMechanism, [0.5, 0.02], [1, 2], [1.0, 10.0]),
    ],
)
def test_from_privacy_loss(mechanism_class, loss, sensitivity, scale):
    measure = LOSSES[mechanism_class]
    mechanism = getattr(mechanism_class, f"from_{measure}")(loss, sensitivity=sensitivity)
    [found] = mechanism.parameters
    np.testing.assert_allclose(found.data, scale)
    back = getattr(mechanism, measure)(sensitivity)
    np.testing.assert_allclose(back, np.broadcast_to(loss, np.shape(scale)))


def test_privacy_loss_is_a_number(mechanism_class):
    [name], loss = mechanism_class.parameter_names, LOSSES[mechanism_class]
    expected = {"epsilon": [2.0, 1.0], "rho": [2.0, 0.5]}[loss]
    shared = pytensor.shared(np.array([1.0, 2.0]))
    np.testing.assert_allclose(getattr(mechanism_class(2 * shared), loss)(4.0), expected)
    with pytest.raises(ValueError, match=f"privacy loss is a number, but {name} is symbolic"):
        getattr(mechanism_class(pt.scalar("b")), loss)(1.0)
    for bad in (0.0, -1.0, np.nan, np.inf):
        with pytest.raises(ValueError, match="sensitivity must be finite and > 0"):
            getattr(mechanism_class(1.0), loss)(bad)


def test_a_count_changes_by_one():
    assert LaplaceMechanism(4).epsilon(1) == GeometricMechanism(4).epsilon() == 0.25
    assert DiscreteGaussianMechanism(2.0).rho() == 0.125


def test_stated_epsilon():
    for mechanism_class in (LaplaceMechanism, GeometricMechanism):
        mechanism = mechanism_class.from_epsilon([0.5, 2.0], sensitivity=2)
        assert mechanism.stated_epsilon((2,)) == 2.5
        assert mechanism.stated_epsilon((3, 2)) == 7.5
        assert mechanism.stated_epsilon((None,)) is None
        assert mechanism_class(2.0).stated_epsilon((2,)) is None
    assert DiscreteGaussianMechanism.from_rho([0.5, 2.0]).stated_epsilon((2,)) is None


# --- Noise as it is published ---------------------------------------------------------------------

SCALES = [0.05, 0.3, 1.0, 7.25, 1e6]


def size_and_tail(mechanism_class, scale, bound):
    """Standard deviation, and P(|noise| >= bound), by the exact laws."""
    with mpmath.workdps(50):
        b, a = mpmath.mpf(scale), mpmath.mpf(bound)
        if mechanism_class is LaplaceMechanism:
            return mpmath.sqrt(2) * b, mpmath.exp(-a / b)
        if mechanism_class is GaussianMechanism:
            return b, mpmath.erfc(a / b / mpmath.sqrt(2))
        if mechanism_class is GeometricMechanism:
            x = mpmath.exp(-1 / b)
            return mpmath.sqrt(2 * x) / (1 - x), 2 * x**a / (1 + x)
        if scale > 1e3:  # as the density, to all digits, but for its cells
            return b, mpmath.erfc((mpmath.floor(a) - 0.5) / b / mpmath.sqrt(2))
        mass = [mpmath.exp(-(mpmath.mpf(k) ** 2) / (2 * b * b)) for k in range(int(40 * b) + 10)]
        all_ = 2 * mpmath.fsum(mass) - 1
        variance = 2 * mpmath.fsum(k * k * m for k, m in enumerate(mass)) / all_
        return mpmath.sqrt(variance), 2 * mpmath.fsum(mass[int(bound) :]) / all_


@pytest.mark.parametrize("scale", SCALES)
def test_from_published_size(mechanism_class, scale):
    for bound in (1.0, 2.0, 5.5, 1e6):
        sd, tail = size_and_tail(mechanism_class, scale, bound)
        found = [mechanism_class.from_sd(float(sd)), mechanism_class.from_variance(float(sd**2))]
        # What is nearly certain, or underflows, says nothing of the scale.
        if 1e-300 < tail < 0.9:
            found.append(mechanism_class.from_accuracy(bound, float(tail)))
        for mechanism in found:
            np.testing.assert_allclose(mechanism.parameters[0].data, scale, rtol=1e-12)


def test_published_size_keeps_labels(mechanism_class):
    published = pd.Series([2.0, 4.0], index=["a", "b"])
    of_accuracy = mechanism_class.from_accuracy(published, 0.1)
    for mechanism in (mechanism_class.from_sd(published), of_accuracy):
        [scale] = mechanism.parameters
        assert scale.tag.held.labels == (("a", "b"),)
        assert scale.data[1] > 1.9 * scale.data[0]
    for bad, name in (((0.0, 0.1), "accuracy"), ((1.0, 1.0), "alpha"), ((1.0, np.nan), "alpha")):
        with pytest.raises(ValueError, match=rf"{mechanism_class.__name__}: {name} must be .* got"):
            mechanism_class.from_accuracy(*bad)
    if mechanism_class(1.0).is_discrete:
        with pytest.raises(ValueError, match=r"accuracy must be finite and >= 1.*at least 1"):
            mechanism_class.from_accuracy(0.5, 0.1)


@pytest.mark.parametrize(
    ("mechanism_class", "name"),
    [
        (LaplaceMechanism, "laplacian"),
        (GaussianMechanism, "gaussian"),
        (GeometricMechanism, "discrete_laplacian"),
        (DiscreteGaussianMechanism, "discrete_gaussian"),
    ],
)
def test_accuracy_is_that_of_opendp(mechanism_class, name):
    opendp = pytest.importorskip("opendp.prelude", reason="needs the extra [opendp]")
    opendp.enable_features("contrib")
    for accuracy in (1.0, 1.5, 2.0, 7.5, 100.0):
        for alpha in (0.01, 0.05, 0.5):
            expected = getattr(opendp, f"accuracy_to_{name}_scale")(accuracy, alpha)
            [scale] = mechanism_class.from_accuracy(accuracy, alpha).parameters
            np.testing.assert_allclose(scale.data, expected, rtol=1e-12)


# --- Noise with a density -----------------------------------------------------------------------

# lower, upper, statistic, scale: around the statistic, beside it, far out, narrow, nearly certain,
# straddling by a hair, one-sided, and in units from 1e-12 to 1e12; the last ones are on both sides
# of the switches between the formulas of the Gaussian (width times distance from the statistic
# equal to 1).
INTERVALS = np.array(
    [
        (-1.0, 2.0, 0.5, 1.0),
        (-0.3, 0.1, 0.0, 2.5),
        (1.0, 2.0, 0.0, 1.0),
        (1.0, 2.5, 0.0, 1.0),
        (-7.0, -6.5, 1.0, 0.5),
        (3000.0, 3000.5, 0.0, 1.0),
        (-3000.5, -3000.0, 0.0, 1.0),
        (3000.0, 3000.0 + 2.0**-30, 0.0, 1.0),
        (5.0, 5.0 + 2.0**-40, 0.0, 1.0),
        (5.0, 5.0 + 2.0**-40, 0.1, 0.3),
        (-(2.0**-50), 2.0**-50, 0.0, 1.0),
        (-3e-9, 5e-9, 0.0, 1.0),
        (-(2.0**-60), 3.0, 0.0, 1.0),
        (-45.0, 60.0, 0.0, 1.0),
        (-45.0, np.inf, 0.0, 1.0),
        (-6.5, 8.5, 0.0, 1.0),
        (-6.5, np.inf, 0.0, 1.0),
        (-np.inf, 6.0, 0.0, 1.0),
        (-np.inf, 40.0, 0.0, 1.0),
        (-np.inf, -40.0, 0.0, 1.0),
        (-np.inf, np.inf, 3.0, 1.0),
        (5000.0, np.inf, 0.0, 1.0),
        (1e-12, 3e-12, 2e-12, 1e-12),
        (0.5, 0.75, 0.25, 1e-12),
        (1e-3, 2e-3, -4.0, 1e12),
        (-1e15, 3e15, 1e3, 1e12),
        (-0.5, 0.5, 0.0, 1.0 - 1e-9),
        (-0.5, 0.5, 0.0, 1.0 + 1e-9),
        (0.0, 0.999, 0.0, 1.0),
        (0.0, 1.001, 0.0, 1.0),
        (9.95, 10.0499, 0.0, 1.0),
        (9.95, 10.0501, 0.0, 1.0),
        (-10.05, -9.949, 0.0, 1.0),
    ]
)


def log_laplace(a, b):
    def below(x):
        return mpmath.exp(x) / 2

    if a >= 0:
        p = below(-a) - below(-b)
    elif b <= 0:
        p = below(b) - below(a)
    else:
        p = 1 - below(a) - below(-b)
    return mpmath.log(p)


def log_gaussian(a, b):
    a, b = a / mpmath.sqrt(2), b / mpmath.sqrt(2)
    if a > -b:
        a, b = -b, -a
    # The nearer tail is now the one below b, and erfc never cancels beyond 60 digits.
    return mpmath.log((mpmath.erfc(-b) - mpmath.erfc(-a)) / 2)


# The law of scipy; the log probability between two ends in units of the scale, by mpmath.
DENSITIES = {
    LaplaceMechanism: (stats.laplace, log_laplace),
    GaussianMechanism: (stats.norm, log_gaussian),
}


def exact_interval(log_mass, lower, upper, statistic, scale):
    def end(x):
        return mpmath.mpf(x) if np.isfinite(float(x)) else mpmath.inf * np.sign(x)

    with mpmath.workdps(60):
        return log_mass(*((end(x) - end(statistic)) / end(scale) for x in (lower, upper)))


@pytest.mark.parametrize(("mechanism_class", "laws"), DENSITIES.items())
def test_interval_against_mpmath(mechanism_class, laws):
    low, high, s, scale = INTERVALS.T
    found = functions_of(mechanism_class)(s=s, scale=scale, low=low, high=high)
    expected = [float(exact_interval(laws[1], *row)) for row in INTERVALS]
    np.testing.assert_allclose(found.interval, expected, rtol=1e-12, atol=1e-300)
    assert np.all(np.isfinite(found.interval_by_s))
    assert np.all(np.isfinite(found.interval_by_scale))
    # Slopes, also where finite differences of doubles say nothing.
    laplace = mechanism_class is LaplaceMechanism
    for slope, row in zip(found.interval_by_s, INTERVALS, strict=True):
        low, high, s, scale = map(float, row)
        if scale == 1.0 and np.all(np.isfinite(row)) and not (laplace and low < s < high):
            with mpmath.workdps(60):
                h = mpmath.mpf(10) ** -25
                up, down = (exact_interval(laws[1], low, high, s + d, 1.0) for d in (h, -h))
                expected = float((up - down) / (2 * h))
            rtol = 1e-12 if laplace else 1e-8
            np.testing.assert_allclose(slope, expected, rtol=rtol, atol=1e-12)


@pytest.mark.parametrize(("mechanism_class", "laws"), DENSITIES.items())
def test_density_and_distribution_against_scipy(mechanism_class, laws):
    value = np.array([-50.0, -30.0, -3.0, -0.1, 0.2, 0.25, 4.0, 60.0, 90.0])
    p = np.array([1e-290, 1e-5, 0.3, 0.5, 0.75, 1 - 1e-9, 1.0, 0.1, 0.9])
    for scale in (1e-12, 0.3, 7.0, 1e12):
        found = functions_of(mechanism_class)(value * scale, s=0.2 * scale, scale=scale, p=p)
        law = laws[0](0.2 * scale, scale)
        np.testing.assert_allclose(found.logp, law.logpdf(value * scale), rtol=1e-12)
        np.testing.assert_allclose(found.icdf, law.ppf(p), rtol=1e-12)
        np.testing.assert_allclose(found.logcdf, law.logcdf(value * scale), rtol=1e-12, atol=1e-300)


@pytest.mark.parametrize("mechanism_class", DENSITIES)
def test_extremes_are_finite_and_right(mechanism_class):
    value, b = np.array([1e-9, 1e6, -1e6, 1e15]), 1e-12
    logp, logcdf = {
        LaplaceMechanism: (-np.log(2 * b) - np.abs(value) / b, -np.log(2) - 1e18),
        GaussianMechanism: (-0.5 * (value / b) ** 2 - np.log(b * np.sqrt(2 * np.pi)), -0.5e36),
    }[mechanism_class]
    call = functions_of(mechanism_class)
    found = call(value, scale=b)
    np.testing.assert_allclose(found.logp, logp, rtol=1e-12)
    np.testing.assert_allclose(found.logcdf[2], logcdf, rtol=1e-12)
    for name, slopes in vars(found).items():
        assert "_by_" not in name or np.all(np.isfinite(slopes))
    assert np.all(np.isneginf(call([np.inf, -np.inf]).logp))
