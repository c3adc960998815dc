"""Noise of a whole vector, whose density falls with its Euclidean length."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, NoReturn, Self

import numpy as np
import pytensor.tensor as pt

from pymc_dp.graphs.held import labelled_like
from pymc_dp.mechanisms.arguments import as_float, check_positive, positive_parameter
from pymc_dp.mechanisms.base import Mechanism
from pymc_dp.mechanisms.registry import register_mechanism

if TYPE_CHECKING:
    from numpy.typing import ArrayLike
    from pytensor.graph.basic import Variable
    from pytensor.tensor import TensorLike
    from pytensor.tensor.variable import TensorVariable


@dataclass(frozen=True, eq=False, repr=False)
class SphericalLaplace(Mechanism):
    r"""Release a vector with noise in any direction, whose length has a Gamma law.

    The last axis of the statistic, of length d, is one vector. With :math:`b = z - s`

    .. math::

        \eta(z \mid s) = \frac{\Gamma(d / 2)}{2 \pi^{d/2}\, \Gamma(d)}\, \beta^d
            e^{-\beta \lVert b \rVert_2}, \qquad
        \lVert b \rVert_2 \sim \mathrm{Gamma}(d, \text{rate } \beta).

    A vector that one record changes by at most :math:`\Delta` in Euclidean length is
    :math:`\varepsilon`-differentially private for :math:`\varepsilon = \beta \Delta`. This is the
    noise of private empirical risk minimisation [1]_, and of diffprivlib's `Vector`. Entries are
    not independent: the vector is released as a whole.

    Parameters
    ----------
    beta : tensor_like of float
        Rate of the length, positive. Of a matrix of vectors, one for each row or one for all.

    Raises
    ------
    ValueError
        A rate that is not finite and positive.
    TypeError
        A rate that depends on a random variable, or is not numeric.

    References
    ----------
    .. [1] K. Chaudhuri, C. Monteleoni, A. Sarwate (2011). Differentially private empirical risk
       minimization. Journal of Machine Learning Research 12, 1069-1109.

    Examples
    --------
    >>> import pymc_dp as dp
    >>> noise = dp.SphericalLaplace.from_epsilon(1.0, sensitivity=2.0)
    >>> noise
    SphericalLaplace(beta=0.5)
    >>> noise.logp([3.0, 4.0], [0.0, 0.0]).eval().round(4)  # 5 away, of two dimensions
    np.float64(-5.7242)
    """

    statistic_ndim: ClassVar[int] = 1

    beta: TensorLike
    parameter_names: ClassVar[tuple[str, ...]] = ("beta",)

    def __post_init__(self) -> None:
        """Validate the rate and keep it as a tensor."""
        self._keep("beta", positive_parameter)

    @classmethod
    def from_epsilon(cls, epsilon: ArrayLike, sensitivity: ArrayLike) -> Self:
        r"""Build the mechanism from its privacy loss: :math:`\beta = \varepsilon / \Delta`.

        Parameters
        ----------
        epsilon : array_like
            Privacy loss, > 0.
        sensitivity : array_like
            L2 sensitivity of the vector, > 0.

        Raises
        ------
        ValueError
            An argument that is not finite and positive.

        Examples
        --------
        >>> import pymc_dp as dp
        >>> dp.SphericalLaplace.from_epsilon(1.0, sensitivity=4.0)
        SphericalLaplace(beta=0.25)
        """
        loss, size = cls._arguments(epsilon=epsilon, sensitivity=sensitivity)
        return cls(labelled_like(loss / size, epsilon, sensitivity))

    def epsilon(self, sensitivity: ArrayLike) -> np.ndarray:
        """Privacy loss of a vector.

        Parameters
        ----------
        sensitivity : array_like
            L2 sensitivity of the vector, > 0.

        Raises
        ------
        ValueError
            A sensitivity that is not finite and positive, or a symbolic rate.
        """
        return self._argument("sensitivity", sensitivity) * self._value("beta")

    @property
    def release_ndim(self) -> int:
        """See `ReleaseLaw.release_ndim`."""
        return 1

    @property
    def log_concave(self) -> bool:
        """See `Mechanism.log_concave`: a norm is convex."""
        return True

    def attainable(self, value: TensorLike) -> TensorVariable:
        """See `Mechanism.attainable`: any vector of finite numbers."""
        return pt.abs(as_float(value)) < np.inf

    def noise_sample(self, rng: Variable, statistic: TensorLike) -> tuple[Variable, TensorVariable]:
        """Draw one vector; see `Mechanism.noise_sample`."""
        s = as_float(statistic)
        s = s + pt.zeros_like(self.beta)[..., None]
        shape = tuple(s.shape)
        rng, normal = pt.random.normal(size=shape, rng=rng, return_next_rng=True)
        rng, length = pt.random.gamma(
            as_float(s.shape[-1]), scale=1.0 / self.beta, size=shape[:-1], rng=rng,
            return_next_rng=True,
        )  # fmt: skip
        direction = normal / pt.sqrt(pt.sum(normal**2, axis=-1, keepdims=True))
        return rng, s + direction * length[..., None]

    def logp(self, value: TensorLike, statistic: TensorLike = 0.0) -> TensorVariable:
        """Log density of a vector; see `Mechanism.logp`."""
        noise = as_float(value) - as_float(statistic)
        square, d = pt.sum(noise**2, axis=-1), as_float(noise.shape[-1])
        some = square > 0
        length = pt.switch(some, pt.sqrt(pt.switch(some, square, 1.0)), 0.0)
        surface = np.log(2.0) + 0.5 * d * np.log(np.pi) - pt.gammaln(0.5 * d)
        constant = d * pt.log(self.beta) - surface - pt.gammaln(d)
        return check_positive(constant - self.beta * length, self.beta, "beta")

    def log_interval(
        self, lower: TensorLike, upper: TensorLike, statistic: TensorLike = 0.0
    ) -> NoReturn:
        """Vectors have no order; see `ReleaseLaw.log_interval`."""
        raise NotImplementedError("SphericalLaplace has no probabilities of intervals")


# The conformance tests take noise for each entry; this has tests of its own.
register_mechanism(SphericalLaplace, examples=list)
