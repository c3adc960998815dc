import mpmath
import numpy as np
import pytest

from pymc_dp.mechanisms import GeometricMechanism
from tests.mechanisms.noise import functions_of

SCALES = [1e-3, 0.02, 0.3, 1.0, 7.5, 1e3, 1e9]
# Ends in units of the scale, or of 1 where it is smaller.
ENDS = [
    (0, 0),
    (-1, 1),
    (0, 3),
    (-2, 0),
    (1, 2),
    (-5, -4),
    (-0.01, 4),
    (-40, 60),
    (-np.inf, 0),
    (-np.inf, -30),
    (-np.inf, 35),
    (0, np.inf),
    (-40, np.inf),
    (900, np.inf),
    (-np.inf, np.inf),
]


def exact_interval(first, last, scale):
    """Log probability of the noise, from its geometric series, in 60 digits."""
    mpmath.mp.dps = 60
    rate = 1 / mpmath.mpf(float(scale))
    a = mpmath.exp(-rate)

    def beyond(k):  # P(K >= k), k >= 0
        return mpmath.exp(-k * rate) / (1 + a) if np.isfinite(k) else mpmath.mpf(0)

    if last < 0:
        first, last = -last, -first
    if first >= 0:
        return float(mpmath.log(beyond(first) - beyond(last + 1)))
    return float(mpmath.log1p(-beyond(1 - first) - beyond(last + 1)))


@pytest.mark.parametrize("scale", SCALES)
def test_interval_against_mpmath(scale):
    call, unit = functions_of(GeometricMechanism), max(scale, 1.0)
    low, high = np.trunc(np.array(ENDS).T * unit)
    for s in (0, -17):
        actual = call(low=low + s, high=high + s, s=s, scale=scale)
        expected = [exact_interval(*row, scale) for row in zip(low, high, strict=True)]
        np.testing.assert_allclose(actual.interval, expected, rtol=2e-13, atol=1e-300)
        assert np.all(np.isfinite(actual.interval_by_scale))


@pytest.mark.parametrize("scale", SCALES)
def test_mass_against_mpmath(scale):
    k = np.unique(np.trunc(np.array([0, 1, 3, 40, 5000]) * max(scale, 1.0)))
    k = np.append(k, 1e9)
    expected = [exact_interval(x, x, scale) for x in k]
    actual = functions_of(GeometricMechanism)(-k + 4, s=4, scale=scale)
    np.testing.assert_allclose(actual.logp, expected, rtol=1e-13, atol=1e-300)
    # d log P / d scale = |k| / b^2 - csch(1 / b) / b^2
    mpmath.mp.dps = 40
    b = mpmath.mpf(float(scale))
    slopes = [float((x - mpmath.csch(1 / b)) / b**2) for x in k]
    # It cancels at the mean of |k|.
    np.testing.assert_allclose(actual.logp_by_scale, slopes, rtol=1e-12, atol=1e-15 / scale)


def test_lattice():
    call = functions_of(GeometricMechanism)
    off = call([0.5, 1e-9, 1.0, 3.5, 2.0, np.inf, np.nan], s=[0, 0, 0.5, 2.5, 0, 0, 0])
    assert list(np.isfinite(off.logp)) == [False, False, False, True, True, False, False]
    # Ends that a difference of doubles would move onto an atom.
    low, high = np.array([1e-20, -1.0, 0.0]), np.array([1.0, 1 - 1e-16, np.nextafter(1, 2)])
    actual = call(low=low, high=high, s=[1, 1, 1e9], scale=1e8)
    mass = call(value=[0, -1, -1e9 + 1], scale=1e8).logp
    expected = [
        mass[0],
        np.logaddexp(mass[0] - 1e-8, mass[0] - 2e-8),
        mass[2] + np.log1p(np.exp(-1e-8)),
    ]
    np.testing.assert_allclose(actual.interval, expected, rtol=1e-12)
