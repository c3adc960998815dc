"""Report noisy max: which of several noisy utilities is the largest, and how large."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar, Self

import numpy as np
import pytensor.tensor as pt
from pytensor.gradient import disconnected_grad

from pymc_dp.mechanisms.arguments import as_float, positive_parameter, show
from pymc_dp.mechanisms.laplace import LaplaceMechanism
from pymc_dp.mechanisms.registry import register_mechanism
from pymc_dp.plugins.selections.selection import ExponentialMechanism, IndexSelection, is_at

if TYPE_CHECKING:
    from numpy.typing import ArrayLike
    from pytensor.graph.basic import Variable
    from pytensor.tensor import TensorLike
    from pytensor.tensor.variable import TensorVariable

_NOISES = ("laplace", "gumbel", "exponential")
_FAR = 36.0  # exp(-36) is the rounding of one
_PANEL, _NODES = 1.5, 12


@dataclass(frozen=True, eq=False, repr=False, init=False)
class NoisyMax(IndexSelection):
    r"""Release which of several utilities is the largest after noise is added to each.

    The statistic is a vector of the utilities :math:`u_0, \ldots, u_{k-1}` of public candidates,
    the release the position i of the largest of :math:`V_j = u_j + b N_j`, counted from 0. With
    the density f and the distribution function F of the noise,

    .. math::

        P(i \mid u) = \int f(v - u_i) \prod_{j \ne i} F(v - u_j) \, dv,

    and the density of i with :math:`v = V_i`, where the noisy value is published too, is what is
    under the integral. It is taken between the sorted utilities, where it is smooth, to 1e-12.

    Parameters
    ----------
    noise : LaplaceMechanism, "gumbel" or "exponential"
        Noise of each utility: that of ``dp.LaplaceMechanism(b)``; standard Gumbel noise, with which
        the index has the law of ``dp.ExponentialMechanism(1 / b)``; or one-sided exponential noise
        (permute and flip [1]_).
    scale : tensor_like of float, optional
        Scale b of Gumbel or exponential noise. Of a matrix of utilities, one for each row, or one
        for all.
    value : bool, default False
        Whether the noisy value was published, too. The release then is the pair (i, v).

    Raises
    ------
    ValueError
        Another kind of noise, a scale that is missing, or not finite and positive.
    TypeError
        A scale that depends on a random variable, or is not numeric.

    Notes
    -----
    OpenDP's ``make_noisy_max`` draws exponential noise under ``max_divergence()`` and Gumbel noise
    under ``zero_concentrated_divergence()``, of the scale that it is given.
    The index alone is :math:`\varepsilon`-differentially private for
    :math:`\varepsilon = 2 \Delta / b`, and for :math:`\Delta / b` where utilities are monotone; see
    `from_epsilon`.

    References
    ----------
    .. [1] R. McKenna, D. Sheldon (2020). Permute-and-flip: a new mechanism for differentially
       private selection. NeurIPS 33.

    Examples
    --------
    >>> import pymc_dp as dp
    >>> dp.NoisyMax(dp.LaplaceMechanism(2.0)).logp(1, [3.0, 5.0]).eval().round(4)
    np.float64(-0.3228)
    """

    noise: str
    scale: TensorVariable
    value: bool = field(default=False)
    parameter_names: ClassVar[tuple[str, ...]] = ("scale",)

    def __init__(
        self,
        noise: LaplaceMechanism | str,
        scale: TensorLike | None = None,
        *,
        value: bool = False,
    ) -> None:
        """Validate the arguments and keep the scale as a tensor."""
        kind: Any = noise
        if isinstance(noise, LaplaceMechanism) and scale is None:
            kind, scale = "laplace", noise.scale
        if kind not in _NOISES or scale is None:
            raise ValueError(
                f"NoisyMax: got noise={noise!r}, scale={scale!r}: write dp.LaplaceMechanism(scale) "
                f'for the noise, or "gumbel" or "exponential" with scale='
            )
        object.__setattr__(self, "noise", kind)
        object.__setattr__(self, "scale", scale)
        object.__setattr__(self, "value", bool(value))
        self._keep("scale", positive_parameter)

    @classmethod
    def from_epsilon(
        cls, noise: str, epsilon: ArrayLike, sensitivity: ArrayLike, monotone: bool = False
    ) -> Self:
        r"""Build the mechanism that releases the index alone from its privacy loss.

        The scale is :math:`2 \Delta / \varepsilon`, half of it for monotone utilities.

        Parameters
        ----------
        noise : {"laplace", "gumbel", "exponential"}
            Noise of each utility.
        epsilon : array_like
            Privacy loss of a choice, > 0.
        sensitivity : array_like
            Largest change of a utility by one record, > 0.
        monotone : bool, default False
            Whether adding a record lowers no utility.

        Raises
        ------
        ValueError
            Another kind of noise, or an argument that is not finite and positive.

        Examples
        --------
        >>> import pymc_dp as dp
        >>> dp.NoisyMax.from_epsilon("gumbel", 1.0, sensitivity=1.0)
        NoisyMax('gumbel', scale=2.0)
        """
        loss, change = cls._arguments(epsilon=epsilon, sensitivity=sensitivity)
        return cls(noise, (1.0 if monotone else 2.0) * change / loss)

    @property
    def release_ndim(self) -> int:
        """See `ReleaseLaw.release_ndim`."""
        return int(self.value)

    @property
    def one_release(self) -> str:
        """See `ReleaseLaw.one_release`."""
        return super().one_release + ", [position, noisy value]" * self.release_ndim

    @property
    def spacing(self) -> float | None:
        """Distance between neighbouring positions; None of pairs."""
        return None if self.value else 1.0

    def work(self, candidates: int) -> int:
        """See `Selection.work`."""
        if self.value or self.noise == "gumbel":
            return candidates
        inside = _NODES * (2 * _FAR / _PANEL + candidates) if self.noise == "laplace" else 0
        return int(candidates * (inside + candidates / 2 + 1))

    def attainable(self, value: TensorLike) -> TensorVariable:
        """See `Mechanism.attainable`."""
        z = as_float(value)
        if not self.value:
            return super().attainable(z)
        if z.type.ndim == 0 or z.type.shape[-1] not in (2, None):
            raise ValueError(f"{self!r} publishes pairs: write [position, noisy value]")
        whole = super().attainable(z[..., 0])
        return pt.stack([whole, pt.ones_like(whole)], axis=-1)

    def check_released(self, name: str, value: np.ndarray, length: int | None) -> None:
        """See `Mechanism.check_released`."""
        super().check_released(name, value[..., 0] if self.value else value, length)

    def support_point(self, statistic: TensorLike) -> TensorVariable:
        """Return the position of the largest utility, and a value above it."""
        first = super().support_point(statistic)
        if not self.value:
            return first
        return pt.stack([first, pt.max(statistic, axis=-1) + self.scale], axis=-1)

    def noise_sample(self, rng: Variable, statistic: TensorLike) -> tuple[Variable, TensorVariable]:
        """Draw one release; see `Mechanism.noise_sample`."""
        u, top = self._from_the_top(statistic)
        law = getattr(pt.random, self.noise)
        arguments = (1.0,) if self.noise == "exponential" else (0.0, 1.0)
        rng, noise = law(*arguments, size=tuple(u.shape), rng=rng, return_next_rng=True)
        noisy = u + noise
        index = pt.argmax(noisy, axis=-1).astype("float64")
        if self.value:
            index = pt.stack([index, top + self.scale * pt.max(noisy, axis=-1)], axis=-1)
        return rng, index

    def logp(self, value: TensorLike, statistic: TensorLike = 0.0) -> TensorVariable:
        """Log probability of a position, log density of a pair; see `Mechanism.logp`."""
        z = as_float(value)
        if self.noise == "gumbel" and not self.value:
            return ExponentialMechanism(1.0).with_parameters(1.0 / self.scale).logp(z, statistic)
        u, top = self._from_the_top(statistic)
        chosen = is_at(z[..., 0] if self.value else z, u)
        if self.value:
            noise = (z[..., 1] - top)[..., None] / self.scale[..., None] - u
            log_p = pt.sum(self._each(noise, chosen), axis=-1) - pt.log(self.scale)
        else:
            log_p = self._of_index(u, chosen)
        return self._checked(pt.switch(pt.any(chosen, axis=-1), log_p, -np.inf))

    def _from_the_top(self, statistic: TensorLike) -> tuple[TensorVariable, TensorVariable]:
        """Return utilities less the largest one, in units of the scale, and the largest one."""
        u = as_float(statistic)
        top = pt.sort(u, axis=-1)[..., -1]
        return (u - top[..., None]) / self.scale[..., None], top

    def _each(self, noise: TensorVariable, chosen: TensorVariable) -> TensorVariable:
        """Log density of the chosen candidate's noise, log distribution function of the others'."""
        above = noise > 0
        distance = pt.abs(noise)
        if self.noise == "laplace":
            below = pt.switch(above, pt.log1p(-0.5 * pt.exp(-distance)), -distance - math.log(2.0))
            return pt.switch(chosen, -distance - math.log(2.0), below)
        if self.noise == "gumbel":
            return pt.switch(chosen, -noise, 0.0) - pt.exp(-noise)
        below = pt.switch(above, pt.log1mexp(-pt.switch(above, distance, 1.0)), -np.inf)
        return pt.switch(chosen, pt.switch(noise >= 0, -distance, -np.inf), below)

    def _of_index(self, u: TensorVariable, chosen: TensorVariable) -> TensorVariable:
        """Log probability of a position, by Gauss-Legendre quadrature over the largest value."""
        x, w = _rule(_NODES)
        steps = np.arange(0.0, _FAR + _PANEL, _PANEL)
        # Above the largest utility the integrand has no kink.
        points = (steps[:-1, None] + _PANEL * x).ravel()
        weight = np.tile(_PANEL * w, len(steps) - 1)
        k = u.type.shape[-1]
        if k is not None and k < points.size:  # in exp(-v) it is a polynomial of degree k - 1
            t, weight = _rule((k + 1) // 2)
            points, weight = -np.log(t), weight / t
        terms = [pt.sum(self._each(points[:, None] - u[..., None, :], chosen[..., None, :]), -1)]
        weights = [weight + pt.zeros_like(terms[0])]
        if self.noise == "laplace":
            # From far below the second largest, where the density falls at least as exp(v), to far
            # above it: after that the others are below with certainty, up to the largest.
            ordered = pt.sort(u, axis=-1)
            second = ordered[..., pt.maximum(u.shape[-1] - 2, 0)][..., None]
            inside = pt.clip(ordered - second, -_FAR, 0.0)
            grid = pt.minimum(np.concatenate([-steps[:0:-1], steps]), -second)
            inside = pt.sort(pt.concatenate([inside, grid], axis=-1), axis=-1)
            # Only the outer ends contribute to the gradient: they are appended, not sorted.
            ends = pt.concatenate(
                [-steps[-1] + 0.0 * second, inside, pt.minimum(steps[-1], -second)], axis=-1
            )
            width = pt.diff(ends, axis=-1)[..., None]
            points = (ends[..., :-1, None] + width * x).flatten(u.type.ndim)
            noise = points[..., None] - (u - second)[..., None, :]
            terms.append(pt.sum(self._each(noise, chosen[..., None, :]), -1))
            weights.append((width * w).flatten(u.type.ndim))
            rest = pt.maximum(-second - steps[-1], 0.0)
            utility = pt.sum(pt.switch(chosen, u, 0.0), axis=-1, keepdims=True)
            largest = pt.eq(utility, 0.0)
            terms.append(pt.switch(largest, math.log(0.5), utility + math.log(0.25)))
            weights.append(pt.switch(largest, -pt.expm1(-rest), rest))
        log_terms, size = (pt.concatenate(parts, axis=-1) for parts in (terms, weights))
        peak = disconnected_grad(pt.max(log_terms, axis=-1, keepdims=True))
        return pt.log(pt.sum(size * pt.exp(log_terms - peak), axis=-1)) + peak[..., 0]

    def __repr__(self) -> str:
        """Return the expression that builds it."""
        more: Any = ", value=True" if self.value else ""
        if self.noise == "laplace":
            return f"NoisyMax(LaplaceMechanism(scale={show(self.scale)}){more})"
        return f"NoisyMax({self.noise!r}, scale={show(self.scale)}{more})"


def _rule(nodes: int) -> tuple[np.ndarray, np.ndarray]:
    """Return nodes and weights of Gauss-Legendre quadrature from 0 to 1."""
    x, w = np.polynomial.legendre.leggauss(nodes)
    return (x + 1.0) / 2.0, w / 2.0


register_mechanism(NoisyMax, examples=tuple)
