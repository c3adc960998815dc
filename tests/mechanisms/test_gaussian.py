import mpmath
import numpy as np
import pytest
from scipy import stats

from pymc_dp.mechanisms import GaussianMechanism

# epsilon, delta over the range that the class promises, and where the profile changes its form.
BUDGETS = [
    (epsilon, delta)
    for epsilon in (1e-6, 1e-3, 0.1, 1.0, 30.0, 1e3, 1e6)
    for delta in (1e-300, 1e-30, 1e-10, 1e-5, 1e-2, 0.3, 0.5, 0.7, 0.999, 1 - 1e-12)
]


def exact_log_profile(epsilon, t):
    """Logs of delta and 1 - delta of Balle & Wang (2018), theorem 8, to 50 digits."""
    mpmath.mp.dps = 400  # delta is as small as 1e-300
    epsilon, t = mpmath.mpf(float(epsilon)), mpmath.mpf(t)

    def below(x):
        return mpmath.erfc(-x / mpmath.sqrt(2)) / 2

    delta = below(t / 2 - epsilon / t) - mpmath.exp(epsilon) * below(-t / 2 - epsilon / t)
    return mpmath.log(delta), mpmath.log(1 - delta)


def test_analytic_gaussian_against_mpmath():
    epsilon, delta = np.array(BUDGETS).T
    mechanism = GaussianMechanism.from_epsilon_delta(epsilon, delta, sensitivity=3.0)
    for e, d, sigma in zip(epsilon, delta, mechanism.sigma.data, strict=True):
        # The exact root lies within a relative 1e-13 of the sigma found.
        t = 3 / mpmath.mpf(float(sigma))
        less, _ = exact_log_profile(e, t * (1 - mpmath.mpf("1e-13")))
        more, _ = exact_log_profile(e, t * (1 + mpmath.mpf("1e-13")))
        assert less < mpmath.log(mpmath.mpf(float(d))) < more, (e, d)


def test_delta_against_mpmath():
    epsilon = np.array([0.0, 1e-9, 1e-6, 0.5, 1.0, 10.0, 1e4, 0.0, 3.0, 1e6])
    t = np.array([1.0, 1e-3, 1e-5, 0.04, 1.0, 0.6, 141.0, 1e-12, 9.0, 1400.0])
    delta = GaussianMechanism(1 / t).delta(epsilon, sensitivity=1.0)
    expected = [
        float(mpmath.exp(exact_log_profile(e, 1 / mpmath.mpf(1 / float(t_)))[0]))
        for e, t_ in zip(epsilon, t, strict=True)
    ]
    np.testing.assert_allclose(delta, expected, rtol=1e-11)
    # Hopeless budgets on either side.
    assert GaussianMechanism(1e12).delta(1.0, 1.0) == 0.0
    assert GaussianMechanism(1e-12).delta(1.0, 1.0) == 1.0


def test_epsilon_inverts_delta():
    epsilon, delta = np.array(BUDGETS).T
    mechanism = GaussianMechanism.from_epsilon_delta(epsilon, delta, sensitivity=1.0)
    back = mechanism.epsilon(1.0, delta)
    # At delta near 1 epsilon hardly matters, and so cannot be told from sigma.
    np.testing.assert_allclose(back, epsilon, rtol=1e-9, atol=1e-10)
    # delta is enough alone: the total variation distance is 2 Phi(t/2) - 1.
    assert GaussianMechanism(1.0).epsilon(1.0, 2 * stats.norm.cdf(0.5) - 1 + 1e-9) == 0.0
    assert GaussianMechanism(1.0).epsilon(1.0, 2 * stats.norm.cdf(0.5) - 1 - 1e-9) > 0.0


def test_privacy_loss_broadcasts():
    sigma = GaussianMechanism.from_epsilon_delta([0.5, 1.0], 1e-6, [[1.0], [2.0]])
    assert sigma.sigma.type.shape == (2, 2)
    np.testing.assert_allclose(sigma.epsilon([[1.0], [2.0]], 1e-6), [[0.5, 1.0], [0.5, 1.0]])
    np.testing.assert_allclose(sigma.delta([0.5, 1.0], [[1.0], [2.0]]), np.full((2, 2), 1e-6))
    assert np.ndim(GaussianMechanism(1.0).epsilon(1.0, 1e-6)) == 0
    # Known value: the classical formula asks for 4.84 at this budget, the exact one for less.
    scalar = GaussianMechanism.from_epsilon_delta(1.0, 1e-5, 1.0).sigma.data
    assert abs(scalar - 3.730632) < 1e-6


@pytest.mark.parametrize("bad", [0.0, -1.0, np.nan, np.inf])
def test_bad_arguments(bad):
    good = {"epsilon": 1.0, "delta": 1e-6, "sensitivity": 1.0}
    for name in good:
        with pytest.raises(ValueError, match=f"{name} must be "):
            GaussianMechanism.from_epsilon_delta(**(good | {name: bad}))
    with pytest.raises(ValueError, match=r"delta must be > 0 and < 1, got 1\.0"):
        GaussianMechanism(1.0).epsilon(1.0, 1.0)
