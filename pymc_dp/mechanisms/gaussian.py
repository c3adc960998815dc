"""The Gaussian mechanism, with zero-concentrated and (epsilon, delta) privacy accounting."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Self

import numpy as np
import pytensor.tensor as pt
from scipy import special

from pymc_dp.graphs.held import labelled_like
from pymc_dp.mechanisms.arguments import as_float
from pymc_dp.mechanisms.registry import MechanismExample, register_mechanism
from pymc_dp.mechanisms.scales import (
    GaussianNoise,
    SymmetricNoise,
    decreasing_root,
    standard_interval,
)

if TYPE_CHECKING:
    from numpy.typing import ArrayLike
    from pytensor.graph.basic import Variable
    from pytensor.tensor import TensorLike
    from pytensor.tensor.variable import TensorVariable

_LOG_ROOT_2PI = 0.5 * np.log(2.0 * np.pi)
_ROOT2 = np.sqrt(2.0)
_NODES, _WEIGHTS = np.polynomial.legendre.leggauss(8)


@dataclass(frozen=True, eq=False, repr=False)
class GaussianMechanism(SymmetricNoise, GaussianNoise):
    r"""Release a statistic with Gaussian noise added.

    Given the statistic :math:`s`, the release :math:`Z` has the density

    .. math::

        \eta(z \mid s) = \frac{1}{\sqrt{2 \pi}\, \sigma}
            \exp\left(-\frac{(z - s)^2}{2 \sigma^2}\right).

    ========  ==========================
    Support   :math:`z \in \mathbb{R}`
    Mean      :math:`s`
    Variance  :math:`\sigma^2`
    ========  ==========================

    With L2 sensitivity :math:`\Delta_2` of the statistic the release is :math:`\rho`-zero-
    concentrated differentially private for :math:`\rho = \Delta_2^2 / (2 \sigma^2)` [1]_, and
    :math:`(\varepsilon, \delta)`-differentially private exactly when [2]_

    .. math::

        \Phi\left(\frac{t}{2} - \frac{\varepsilon}{t}\right)
            - e^{\varepsilon}\, \Phi\left(-\frac{t}{2} - \frac{\varepsilon}{t}\right)
            \le \delta, \qquad t = \Delta_2 / \sigma.

    Parameters
    ----------
    sigma : tensor_like of float
        Standard deviation of the noise, > 0, in the units of the statistic (not the variance).
        It broadcasts against the statistic. `pm.Data` and other tensors are allowed as long as
        they hold no random variable.

    Raises
    ------
    ValueError
        A sigma that is not finite and positive.
    TypeError
        A sigma that depends on a random variable, or is not numeric.

    References
    ----------
    .. [1] M. Bun, T. Steinke (2016). Concentrated differential privacy: simplifications,
       extensions, and lower bounds. Theory of Cryptography, 635-658.
    .. [2] B. Balle, Y.-X. Wang (2018). Improving the Gaussian mechanism for differential privacy:
       analytical calibration and optimal denoising. ICML, 394-403.

    Examples
    --------
    >>> import pymc_dp as dp
    >>> dp.GaussianMechanism.from_rho(0.125, sensitivity=[1.0, 3.0])
    GaussianMechanism(sigma=[2., 6.])
    >>> mechanism = dp.GaussianMechanism.from_epsilon_delta(1.0, 1e-6, sensitivity=1.0)
    >>> float(mechanism.epsilon(sensitivity=1.0, delta=1e-6).round(9))
    1.0
    """

    sigma: TensorLike

    _instead = (
        "Write the standard deviation of the noise in the units of the statistic, or "
        "GaussianMechanism.from_rho(rho, sensitivity) or "
        "GaussianMechanism.from_epsilon_delta(epsilon, delta, sensitivity)."
    )

    @classmethod
    def from_rho(cls, rho: ArrayLike, sensitivity: ArrayLike) -> Self:
        r"""Build the mechanism from its zCDP loss: :math:`\sigma = \Delta_2 / \sqrt{2 \rho}`.

        Parameters
        ----------
        rho : array_like
            Zero-concentrated privacy loss, > 0.
        sensitivity : array_like
            L2 sensitivity, > 0, in the units of the statistic.

        Raises
        ------
        ValueError
            An argument that is not finite and positive.

        Examples
        --------
        >>> import pymc_dp as dp
        >>> dp.GaussianMechanism.from_rho(0.125, sensitivity=1.0)
        GaussianMechanism(sigma=2.0)
        """
        return cls._from_rho(rho, sensitivity)

    @classmethod
    def from_epsilon_delta(
        cls, epsilon: ArrayLike, delta: ArrayLike, sensitivity: ArrayLike
    ) -> Self:
        r"""Build the analytic Gaussian mechanism: the least noise that is (ε, δ)-private.

        Any :math:`\varepsilon > 0` is allowed, also beyond 1, where the classical formula
        :math:`\sigma = \Delta_2 \sqrt{2 \log(1.25 / \delta)} / \varepsilon` does not hold. If the
        curator used that formula, give its sigma to the constructor instead.

        Parameters
        ----------
        epsilon : array_like
            Privacy loss, > 0.
        delta : array_like
            Failure probability, 0 < delta < 1.
        sensitivity : array_like
            L2 sensitivity, > 0, in the units of the statistic.

        Raises
        ------
        ValueError
            An argument out of its range.

        Examples
        --------
        >>> import pymc_dp as dp
        >>> mechanism = dp.GaussianMechanism.from_epsilon_delta(1.0, 1e-6, sensitivity=1.0)
        >>> mechanism.sigma.eval().round(4)
        np.float64(4.2247)
        """
        loss, size = cls._arguments(epsilon=epsilon, sensitivity=sensitivity)
        failure = cls._argument("delta", delta, below=1.0)
        sigma = size / _ratio_for(loss, failure)
        return cls(labelled_like(sigma, epsilon, delta, sensitivity))

    def rho(self, sensitivity: ArrayLike) -> np.ndarray:
        r"""Zero-concentrated loss of each component, :math:`\rho = \Delta_2^2 / (2 \sigma^2)`.

        Components computed from the same records compose: the total is the sum of the array.

        Parameters
        ----------
        sensitivity : array_like
            L2 sensitivity, > 0, in the units of the statistic.

        Raises
        ------
        ValueError
            A sensitivity that is not finite and positive, or a symbolic sigma.
        """
        return 0.5 * self._ratio(sensitivity) ** 2

    def delta(self, epsilon: ArrayLike, sensitivity: ArrayLike) -> np.ndarray:
        r"""Smallest :math:`\delta` for which the release is (ε, δ)-private.

        Each component is accounted for alone. For components computed from the same records,
        use the single ratio :math:`t = (\sum_i \Delta_i^2 / \sigma_i^2)^{1/2}`, that is
        ``GaussianMechanism(1.0).delta(epsilon, t)``.

        Parameters
        ----------
        epsilon : array_like
            Privacy loss, >= 0.
        sensitivity : array_like
            L2 sensitivity, > 0, in the units of the statistic.

        Raises
        ------
        ValueError
            An argument out of its range, or a symbolic sigma.
        """
        epsilon = self._argument("epsilon", epsilon, zero_ok=True)
        t = self._ratio(sensitivity)
        u, v = epsilon / t - 0.5 * t, epsilon / t + 0.5 * t
        return np.exp(_log_delta(u, v, t))[()]

    def epsilon(self, sensitivity: ArrayLike, delta: ArrayLike) -> np.ndarray:
        r"""Smallest :math:`\varepsilon` for which the release is (ε, δ)-private; 0 if δ suffices.

        Each component is accounted for alone; see `delta` for several together.

        Parameters
        ----------
        sensitivity : array_like
            L2 sensitivity, > 0, in the units of the statistic.
        delta : array_like
            Failure probability, 0 < delta < 1.

        Raises
        ------
        ValueError
            An argument out of its range, or a symbolic sigma.
        """
        delta = self._argument("delta", delta, below=1.0)
        t = self._ratio(sensitivity)
        t, delta = np.broadcast_arrays(t, delta)

        # In s = epsilon / t the ends of the profile are s - t/2 and s + t/2; its first term alone
        # bounds s from above.
        def excess(s: np.ndarray) -> np.ndarray:
            return _log_delta(s - 0.5 * t, s + 0.5 * t, t) - np.log(delta)

        upper = np.maximum(0.5 * t - special.ndtri(delta), 0.0)
        enough = excess(np.zeros_like(t)) <= 0
        s = decreasing_root(excess, np.zeros_like(t), upper)
        return np.where(enough, 0.0, s * t)[()]

    @classmethod
    def _scale_of_sd(cls, sd: np.ndarray) -> np.ndarray:
        return sd

    @classmethod
    def _scale_of_accuracy(cls, accuracy: np.ndarray, alpha: np.ndarray) -> np.ndarray:
        return accuracy / (_ROOT2 * special.erfcinv(alpha))

    def noise_sample(self, rng: Variable, statistic: TensorLike) -> tuple[Variable, TensorVariable]:
        """Draw one release; see `Mechanism.noise_sample`."""
        return pt.random.normal(as_float(statistic), self._scale, rng=rng, return_next_rng=True)

    def _log_density(self, x: TensorVariable) -> TensorVariable:
        return -0.5 * pt.sqr(x) - _LOG_ROOT_2PI

    def log_interval(
        self, lower: TensorLike, upper: TensorLike, statistic: TensorLike = 0.0
    ) -> TensorVariable:
        """Log probability of an interval; see `Mechanism.log_interval`."""
        interval = standard_interval(lower, upper, statistic, self._scale)
        # Reflect, so that the middle is not negative and the lower end is the nearer one.
        reflect = interval.lower + interval.upper < 0
        a = pt.switch(reflect, -interval.upper, interval.lower)
        b = pt.switch(reflect, -interval.lower, interval.upper)
        width, middle = interval.width, 0.5 * (a + b)

        # Narrow: quadrature of the density about the middle. Differences of tails would cancel.
        narrow = width * pt.maximum(middle, 1.0) <= 1.0
        w, m = pt.switch(narrow, width, 1.0), pt.switch(narrow, middle, 0.0)
        mean_ratio = pt.zeros_like(w)
        for node, weight in zip(_NODES[4:], _WEIGHTS[4:], strict=True):
            step = 0.5 * float(node) * w
            mean_ratio += float(weight) * pt.exp(-0.5 * pt.sqr(step)) * pt.cosh(m * step)
        inside = -0.5 * pt.sqr(m) - _LOG_ROOT_2PI + pt.log(w) + pt.log(mean_ratio)

        # Wide and on one side: the tail beyond the nearer end, less the one beyond the farther.
        beside = ~narrow & (a >= 0)
        a_, b_ = pt.switch(beside, a, 1.0), pt.switch(beside, b, 3.0)
        w, m = pt.switch(beside, width, 2.0), pt.switch(beside, middle, 2.0)
        log_near, log_far = pt.log(pt.erfcx(a_ / _ROOT2)), pt.log(pt.erfcx(b_ / _ROOT2))
        outside = (
            -np.log(2.0) - 0.5 * pt.sqr(a_) + log_near + pt.log1mexp(log_far - log_near - w * m)
        )

        # Wide and around the statistic: one less both tails, at most 2/3.
        around = ~narrow & (a < 0)
        a_, b_ = pt.switch(around, a, -1.0), pt.switch(around, b, 1.0)
        across = pt.log1p(-0.5 * (pt.erfc(-a_ / _ROOT2) + pt.erfc(b_ / _ROOT2)))

        result = pt.switch(narrow, inside, pt.switch(beside, outside, across))
        return self._checked(pt.switch(interval.possible, result, -np.inf))

    def _distance(self, tail: TensorVariable) -> TensorVariable:
        return _ROOT2 * pt.erfcinv(2.0 * tail)


# --- Privacy profile ----------------------------------------------------------------------------
#
# With u = eps/t - t/2 and v = eps/t + t/2, phi the normal density and R = (1 - Phi)/phi Mills'
# ratio, e^eps phi(v) = phi(u), so that the profile of Balle & Wang is
#     delta = phi(u) (R(u) - R(v))     and     1 - delta = Phi(u) + phi(u) R(v).
# Nothing here overflows, and the only difference is the one between two values of R.


def _mills(x: np.ndarray) -> np.ndarray:
    """Mills' ratio of the standard normal law."""
    return np.sqrt(0.5 * np.pi) * special.erfcx(x / _ROOT2)


def _minus_mills_slope(x: np.ndarray) -> np.ndarray:
    """Return -R'(x) = 1 - x R(x) > 0.

    It cancels like 1/x^2, which costs three digits at x = 38, where phi(x) underflows.
    """
    return np.maximum(1.0 - x * _mills(x), 0.0)


def _log_delta(u: np.ndarray, v: np.ndarray, t: np.ndarray) -> np.ndarray:
    """Log of the delta that the Gaussian mechanism achieves, v = u + t."""
    u, v, t = np.broadcast_arrays(u, v, t)
    log_density = -0.5 * u**2 - _LOG_ROOT_2PI
    # Left of -2 the difference of ratios would overflow, and delta is more than 0.9.
    left = u <= -2.0
    missing = np.minimum(special.ndtr(u) + np.exp(log_density) * _mills(v), 1.0)
    u, v = np.where(left, -2.0, u), np.where(left, 0.0, v)
    # R(u) - R(v): the integral of its slope where u and v are close.
    close = t < 0.5
    length = np.where(close, t, 0.0)
    slope = sum(
        weight * _minus_mills_slope(u + 0.5 * length * (1.0 + node))
        for node, weight in zip(_NODES, _WEIGHTS, strict=True)
    )
    drop = np.where(close, 0.5 * length * slope, _mills(u) - _mills(v))
    with np.errstate(divide="ignore"):
        return np.where(left, np.log1p(-missing), log_density + np.log(drop))


def _ratio_for(epsilon: np.ndarray, delta: np.ndarray) -> np.ndarray:
    """Ratio t = sensitivity / sigma at which the mechanism is exactly (epsilon, delta)-private."""
    epsilon, delta = np.broadcast_arrays(epsilon, delta)

    # Solve for u: v = sqrt(u^2 + 2 eps) follows without cancellation, and then t = v - u.
    def ends(u: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        v = np.sqrt(u**2 + 2.0 * epsilon)
        return v, np.where(u > 0, 2.0 * epsilon / (v + np.abs(u)), v - u)

    def excess(u: np.ndarray) -> np.ndarray:
        v, t = ends(u)
        return _log_delta(u, v, t) - np.log(delta)

    # delta < 1 - Phi(u) bounds u from above; 1 - delta < 2 Phi(u) for u < 0 bounds it from below.
    u = decreasing_root(excess, special.ndtri(0.5 * (1.0 - delta)), -special.ndtri(delta))
    return ends(u)[1]


def _examples() -> Sequence[MechanismExample]:
    return [
        MechanismExample(GaussianMechanism(1.7), -2.0, pieces=(-2.0 - 14.0, -2.0, -2.0 + 14.0)),
        MechanismExample(
            GaussianMechanism.from_rho(0.5, sensitivity=0.01), 100.0, pieces=(99.92, 100.08)
        ),
    ]


register_mechanism(GaussianMechanism, examples=_examples)
