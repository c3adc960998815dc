"""Student's t and Cauchy mechanisms, for smooth sensitivity."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Self

import numpy as np
import pytensor.tensor as pt
from scipy import special

from pymc_dp.mechanisms.arguments import as_float, refuse_unless
from pymc_dp.mechanisms.registry import MechanismExample, register_mechanism
from pymc_dp.mechanisms.scales import ScaleNoise, SymmetricNoise, standard_interval

if TYPE_CHECKING:
    from numpy.typing import ArrayLike
    from pytensor.graph.basic import Variable
    from pytensor.tensor import TensorLike
    from pytensor.tensor.variable import TensorVariable

_OPEN = np.array(1e140)  # an end beyond it counts as infinite
_MOST_DF = 200.0  # degrees of freedom; tails of more underflow before their series holds
_NODES, _WEIGHTS = np.polynomial.legendre.leggauss(12)


class HeavyNoise(SymmetricNoise, ScaleNoise):
    """Noise of Student's t law with `df` degrees of freedom."""

    df: float
    scale: TensorLike

    parameter_names = ("scale",)

    @property
    def may_jump(self) -> bool:
        """It does not."""
        return False

    @property
    def log_concave(self) -> bool:
        """The tails are too heavy."""
        return False

    @classmethod
    def _scale_of_sd(cls, sd: np.ndarray, df: float = 1.0) -> np.ndarray:
        if not df > 2:
            raise ValueError(
                f"{cls.__name__}: the noise has a variance where df= is given and > 2 only. Write "
                "the scale, or use from_accuracy."
            )
        return sd * np.sqrt((df - 2.0) / df)

    @classmethod
    def _scale_of_accuracy(
        cls, accuracy: np.ndarray, alpha: np.ndarray, df: float = 1.0
    ) -> np.ndarray:
        return -accuracy / special.stdtrit(df, 0.5 * alpha)

    @classmethod
    def from_epsilon(cls, epsilon: ArrayLike, sensitivity: ArrayLike, **fields: Any) -> Self:
        """Build the mechanism from its privacy loss, the inverse of `epsilon`.

        Parameters
        ----------
        epsilon : array_like
            Privacy loss, > 0.
        sensitivity : array_like
            Sensitivity, > 0, in the units of the statistic.
        **fields
            `df` of Student's t.

        Raises
        ------
        ValueError
            An argument that is not finite and positive.

        Examples
        --------
        >>> import pymc_dp as dp
        >>> mechanism = dp.StudentTMechanism.from_epsilon(1.0, sensitivity=1.0, df=3.0)
        >>> mechanism.scale.eval().round(4), mechanism.epsilon(1.0).round(4)
        (np.float64(1.1428), np.float64(1.0))
        """
        loss, size = cls._arguments(epsilon=epsilon, sensitivity=sensitivity)
        df = fields.get("df", 1.0)
        scale = 0.5 * size / np.sqrt(df) / np.sinh(loss / (df + 1.0))
        return cls._of_scale(scale, fields, epsilon, sensitivity)

    def epsilon(self, sensitivity: ArrayLike) -> np.ndarray:
        """Privacy loss of each component; see the class.

        Parameters
        ----------
        sensitivity : array_like
            Sensitivity, > 0, in the units of the statistic.

        Raises
        ------
        ValueError
            A sensitivity that is not finite and positive, or a symbolic scale.
        """
        return (self.df + 1.0) * np.arcsinh(0.5 * self._ratio(sensitivity) / np.sqrt(self.df))

    def noise_sample(self, rng: Variable, statistic: TensorLike) -> tuple[Variable, TensorVariable]:
        """Draw one release; see `Mechanism.noise_sample`."""
        s = as_float(statistic)
        return pt.random.t(self.df, s, self._scale, rng=rng, return_next_rng=True)

    @property
    def _unit(self) -> TensorVariable:
        return as_float(self.scale) * np.sqrt(self.df)

    def _log_density(self, x: TensorVariable) -> TensorVariable:
        # log(1 + x^2), also where the square overflows.
        log_square = pt.log1p(pt.minimum(x, _OPEN) ** 2) + 2.0 * pt.log(pt.maximum(x / _OPEN, 1.0))
        return -special.betaln(0.5 * self.df, 0.5) - 0.5 * (self.df + 1.0) * log_square

    def log_interval(
        self, lower: TensorLike, upper: TensorLike, statistic: TensorLike = 0.0
    ) -> TensorVariable:
        """Log probability of an interval; see `Mechanism.log_interval`."""
        interval = standard_interval(lower, upper, statistic, self._unit)
        reflect = interval.lower + interval.upper < 0
        a = pt.switch(reflect, -interval.upper, interval.lower)
        b = pt.switch(reflect, -interval.lower, interval.upper)
        middle = 0.5 * (a + b)
        # Narrow: quadrature of the density about the middle. Differences of tails would cancel.
        narrow = interval.width / pt.maximum(middle, 1.0) * (self.df + 1.0) <= 1.0
        w, m = pt.switch(narrow, interval.width, 0.5), pt.switch(narrow, middle, 0.0)
        steps = (0.5 * float(node) * w for node in _NODES)
        rises = (pt.log1p(step * (2.0 * m + step) / (1.0 + m * m)) for step in steps)
        parts = (pt.exp(-0.5 * (self.df + 1.0) * rise) for rise in rises)
        mean = sum(float(weight) * part for weight, part in zip(_WEIGHTS, parts, strict=True))
        inside = self._log_density(m) + pt.log(0.5 * w) + pt.log(mean)
        # Wide and on one side: the tail beyond the nearer end, less the one beyond the farther.
        beside = ~narrow & (a >= 0)
        near = self._log_tail(pt.switch(beside, a, 1.0))
        outside = near + pt.log1mexp(self._log_tail(pt.switch(beside, b, 3.0)) - near)
        # Wide and around the statistic: one less both tails.
        around = ~narrow & (a < 0)
        tails = (pt.exp(self._log_tail(pt.switch(around, x, 1.0))) for x in (-a, b))
        result = pt.switch(narrow, inside, pt.switch(beside, outside, pt.log1p(-sum(tails))))
        return self._checked(pt.switch(interval.possible, result, -np.inf))

    def _log_tail(self, x: TensorVariable) -> TensorVariable:
        """Log probability beyond x >= 0 in units of `_unit`."""
        half = 0.5 * self.df
        close, far, farther = x < 1e-8, x > 1.0, x > 40.0
        y = 1.0 / (1.0 + pt.switch(close | farther, 2.0, x) ** 2)
        first, second = pt.switch(far, half, 0.5), pt.switch(far, 0.5, half)
        part = pt.betainc(first, second, pt.switch(far, y, 1.0 - y))
        tail = pt.switch(far, pt.log(part), pt.log1p(-part)) - np.log(2.0)
        # Close to the statistic: a line, as the derivative of betainc is infinite there.
        line = pt.log1p(-2.0 * np.exp(-special.betaln(half, 0.5)) * pt.switch(close, x, 0.0))
        tail = pt.switch(close, line - np.log(2.0), tail)
        # Far out: a series in y, each term computed from the term before it.
        y = 1.0 / (1.0 + pt.switch(farther, x, 40.0) ** 2)
        series, term = pt.ones_like(y), pt.ones_like(y)
        for k in range(1, 6):
            term = term * (k - 0.5) / k * y
            series += term * half / (half + k)
        tiny = half * pt.log(y) + pt.log(series) - special.betaln(half, 0.5) - np.log(self.df)
        return pt.switch(x < _OPEN, pt.switch(farther, tiny, tail), -np.inf)

    def _distance(self, tail: TensorVariable) -> TensorVariable:
        half = 0.5 * self.df
        y, z = pt.betaincinv(half, 0.5, 2.0 * tail), pt.betaincinv(0.5, half, 1.0 - 2.0 * tail)
        return pt.sqrt(pt.switch(tail < 0.25, (1.0 - y) / y, z / (1.0 - z)))


@dataclass(frozen=True, eq=False, repr=False)
class CauchyMechanism(HeavyNoise):
    r"""Release a statistic with Cauchy noise added.

    Given the statistic :math:`s`, the release has the density

    .. math::

        \eta(z \mid s) = \frac{b}{\pi (b^2 + (z - s)^2)}.

    It has no variance. With sensitivity :math:`\Delta` of the statistic the release is
    :math:`\varepsilon`-differentially private for
    :math:`\varepsilon = 2 \operatorname{arsinh}(\Delta / (2 b))` exactly. Noise of this law may
    follow a smooth bound S(x) on the sensitivity near the data [1]_: where S changes by a factor of
    at most :math:`e^\beta` between neighbours, :math:`b = S / \alpha` costs
    :math:`\alpha + \beta` at most. The scale has to be public for the release to have a
    likelihood.

    Parameters
    ----------
    scale : tensor_like of float
        Noise scale :math:`b > 0`: half the noise is no larger.

    Raises
    ------
    ValueError
        A scale that is not finite and positive.
    TypeError
        A scale that depends on a random variable, or is not numeric.

    References
    ----------
    .. [1] K. Nissim, S. Raskhodnikova, A. Smith (2007). Smooth sensitivity and sampling in private
       data analysis. STOC, 75-84.

    Examples
    --------
    >>> import pymc_dp as dp
    >>> dp.CauchyMechanism(2.0).logp([30.0, 36.0], 30.0).eval().round(4)
    array([-1.8379, -4.1405])
    """

    scale: TensorLike

    df = 1.0
    _instead = "Write the noise scale b, or {}.from_epsilon(epsilon, sensitivity)."


@dataclass(frozen=True, eq=False, repr=False)
class StudentTMechanism(HeavyNoise):
    r"""Release a statistic with Student t noise added.

    Given the statistic :math:`s`, the release has the density

    .. math::

        \eta(z \mid s) = \frac{1}{\sqrt\nu\, b\, B(\nu / 2, 1 / 2)}
            \left(1 + \frac{(z - s)^2}{\nu b^2}\right)^{-(\nu + 1) / 2}.

    With sensitivity :math:`\Delta` of the statistic the release is
    :math:`\varepsilon`-differentially private for
    :math:`\varepsilon = (\nu + 1) \operatorname{arsinh}(\Delta / (2 \sqrt\nu b))` exactly.
    As Cauchy noise it may follow a smooth bound on the sensitivity, which costs
    :math:`\max(\nu, 1) \beta` on top where the bound changes by a factor of at most
    :math:`e^\beta`: for trimmed means, say, with noise that has a variance [1]_.

    ========  ==========================================
    Support   :math:`z \in \mathbb{R}`
    Mean      :math:`s`, for :math:`\nu > 1`
    Variance  :math:`b^2 \nu / (\nu - 2)`, :math:`\nu > 2`
    ========  ==========================================

    Parameters
    ----------
    df : float
        Degrees of freedom :math:`\nu`, > 0 and at most 200.
    scale : tensor_like of float
        Noise scale :math:`b > 0`, in the units of the statistic.

    Raises
    ------
    ValueError
        A parameter out of its range.
    TypeError
        A parameter that depends on a random variable, or is not numeric.

    References
    ----------
    .. [1] M. Bun, T. Steinke (2019). Average-case averages: private algorithms for smooth
       sensitivity and mean estimation. NeurIPS.

    Examples
    --------
    >>> import pymc_dp as dp
    >>> dp.StudentTMechanism(3.0, 2.0).logp([30.0, 36.0], 30.0).eval().round(4)
    array([-1.694 , -4.4666])
    """

    df: float
    scale: TensorLike

    _instead = "Write the noise scale b, or {}.from_sd(sd, df=...)."

    def __post_init__(self) -> None:
        """Validate the parameters."""
        df, close = self._argument("df", self.df), "More are close to GaussianMechanism(scale)."
        rule = ("StudentTMechanism", "df", f"one, <= {_MOST_DF:g}", close)
        refuse_unless((df <= _MOST_DF) & (df.ndim == 0), df, *rule)
        object.__setattr__(self, "df", float(df))
        super().__post_init__()


def _cauchys() -> Sequence[MechanismExample]:
    ends = np.append(0.0, 30.0 ** np.arange(9))
    pieces = np.concatenate([-ends[:0:-1], ends])
    cases = ((CauchyMechanism(2.0), 1.5), (CauchyMechanism.from_epsilon(1.0, 0.05), -30.0))
    return [MechanismExample(m, s, pieces=s + float(m.scale) * pieces) for m, s in cases]


def _student_ts() -> Sequence[MechanismExample]:
    def example(df: float, scale: float, s: float, ends: Sequence[float]) -> MechanismExample:
        pieces = s + scale * np.concatenate([-np.array(ends[::-1]), [0.0], ends])
        return MechanismExample(StudentTMechanism(df, scale), s, pieces=pieces)

    return [example(5.0, 2.0, 1.5, (10.0, 100.0, 1000.0)), example(30.0, 0.01, -3.0, (10.0, 30.0))]


register_mechanism(CauchyMechanism, examples=_cauchys)
register_mechanism(StudentTMechanism, examples=_student_ts)
