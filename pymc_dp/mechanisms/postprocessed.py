"""Steps after a release: their base class, and clipping."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Self

import numpy as np
import pytensor.tensor as pt
from pymc.distributions.dist_math import check_parameters
from pytensor.graph.basic import Constant

from pymc_dp.graphs.values import known_value
from pymc_dp.mechanisms.arguments import as_float, as_parameter, show
from pymc_dp.mechanisms.base import Mechanism
from pymc_dp.mechanisms.gaussian import GaussianMechanism
from pymc_dp.mechanisms.laplace import LaplaceMechanism
from pymc_dp.mechanisms.registry import MechanismExample, register_mechanism

if TYPE_CHECKING:
    from pytensor.graph.basic import Variable
    from pytensor.tensor import TensorLike
    from pytensor.tensor.variable import TensorVariable


@dataclass(frozen=True, eq=False, repr=False)
class PostProcessed(Mechanism):
    """A release passed through a fixed function; it loses no more privacy than `inner`."""

    inner: Mechanism

    def __post_init__(self) -> None:
        """Validate `inner`."""
        if not isinstance(self.inner, Mechanism):
            raise TypeError(
                f"{type(self).__name__}: the first argument must be a mechanism, such as "
                f"LaplaceMechanism(scale); got {self.inner!r}"
            )
        if getattr(self.inner, "sentinel", None) is not None:
            raise ValueError(
                f"{type(self).__name__}: {self.inner!r} prints a sentinel, and this step might "
                f"turn another value into the same number: leave sentinel= out, and "
                f"write NaN where a value was withheld"
            )
        for part in (self.inner, getattr(self, "by", None)):
            if isinstance(part, Mechanism) and part.statistic_ndim:
                raise TypeError(
                    f"{type(self).__name__}: {part!r} makes one release of all its statistic, "
                    f"which cannot be rounded, clipped or withheld: leave this step out"
                )

    @property
    def spacing(self) -> float | None:
        """Spacing of `inner`; atoms at bounds need not lie on its lattice."""
        return self.inner.spacing

    @property
    def _step_parameters(self) -> dict[str, TensorVariable]:
        """Parameters of this step by name, without those that are None."""
        parameters = {name: getattr(self, name) for name in self.parameter_names}
        return {name: parameter for name, parameter in parameters.items() if parameter is not None}

    @property
    def parameters(self) -> tuple[TensorVariable, ...]:
        """Parameters of this step, then those of `inner`."""
        return (*self._step_parameters.values(), *self.inner.parameters)

    def wrong_parameter(self) -> str | None:
        """See `Mechanism.wrong_parameter`; parameters of this step are no scales."""
        return self.inner.wrong_parameter()

    @property
    def log_concave(self) -> bool:
        """Log-concavity of `inner`: a clipped or rounded value stands for an interval of releases.

        The interval has a gap where `inner` withholds values between two others.
        """
        return self.inner.log_concave and not self.inner.has_gap

    @property
    def may_jump(self) -> bool:
        """That of `inner`."""
        return self.inner.may_jump

    @property
    def has_more_kinks(self) -> bool:  # type: ignore[override]
        """Also those of an interval of releases."""
        return self.inner.has_more_kinks or self.inner.may_jump

    def kinks(self, value):
        """See `Mechanism.kinks`."""
        return [*self.inner.kinks(value), self.typical_statistic(value)]

    @property
    def has_gap(self) -> bool:
        """That of `inner`."""
        return self.inner.has_gap

    @property
    def withholds(self) -> bool:
        """That of `inner`."""
        return self.inner.withholds

    def is_withheld(self, value: TensorLike) -> TensorVariable:
        """See `Mechanism.is_withheld`; withheld entries of `inner` stay withheld."""
        return self.inner.is_withheld(value)

    def _if_published(self, value: TensorVariable, published, withheld) -> TensorVariable:
        """Return `published` where `inner` published a value, `withheld` elsewhere."""
        if not self.inner.withholds:
            return published
        return pt.switch(self.inner.is_withheld(value), withheld, published)

    def _log_published(
        self, value: TensorVariable, log_density: TensorVariable, statistic: TensorLike
    ) -> TensorVariable:
        """Return `log_density`; where `inner` withheld the entry, its log probability of that."""
        if not self.inner.withholds:
            return log_density
        return self._if_published(value, log_density, self.inner.logp(value, statistic))

    def _with(self, parameters: Sequence[TensorLike]) -> Self:
        of_step = dict(zip(self._step_parameters, parameters, strict=False))
        return self._rebuilt(
            **of_step, inner=self.inner.with_parameters(*parameters[len(of_step) :])
        )

    @property
    def label(self) -> str:
        """The last step comes first, as in RoundedClippedLaplace."""
        step, inner = super().label, self.inner.label
        return step if inner in step else step + inner

    def _rows(self) -> list[tuple[str, str]]:
        noise = (
            [] if isinstance(self.inner, PostProcessed) else [("noise", type(self.inner).__name__)]
        )
        return [*noise, *self.inner._rows(), ("then", repr(self).removeprefix(f"{self.inner!r}."))]

    def typical_statistic(self, value: TensorLike) -> TensorVariable:
        """Return a typical statistic of `inner`; see `Mechanism.typical_statistic`."""
        return self.inner.typical_statistic(value)

    def why_unattainable(self, value: float) -> str:
        """Explain why a value cannot be published; see `Mechanism.why_unattainable`."""
        possible = known_value(self.inner.attainable(value))
        by_inner = possible is not None and not np.any(possible)
        return self.inner.why_unattainable(value) if by_inner else super().why_unattainable(value)


def layers(mechanism: Mechanism) -> list[Mechanism]:
    """Return a mechanism and the mechanisms inside it, the noise last."""
    chain = [mechanism]
    while isinstance(chain[-1], PostProcessed):
        chain.append(chain[-1].inner)
    return chain


def next_to(value: TensorLike, law: Mechanism, sign: float) -> TensorVariable:
    """Return a value on one side, farther than rounding error and nearer than a step of the law."""
    value, step = as_float(value), 1e-6 * (law.spacing or 0.0)
    size = pt.switch(pt.isinf(value), 0.0, pt.abs(value))
    return value + sign * pt.maximum(step, 2.0**-51 * size + 2.0**-1074)


@dataclass(frozen=True, eq=False, repr=False)
class ClippedMechanism(PostProcessed):
    r"""Release of another mechanism, clipped to an interval.

    With :math:`Z_0` the release of `inner`, the release is :math:`Z = \min(\max(Z_0, l), u)`. It
    has atoms at the bounds, so that its density is one with respect to a mixed measure, Lebesgue
    measure plus a unit mass at each bound (counting measure if `inner` is discrete):

    .. math::

        \eta(z \mid s) = \begin{cases}
            P(Z_0 \le l \mid s) & z = l \\
            \eta_0(z \mid s) & l < z < u \\
            P(Z_0 \ge u \mid s) & z = u \\
            0 & \text{otherwise.}
        \end{cases}

    Which values are atoms is known, so a likelihood may mix the two kinds of component freely.

    ========  =================================================
    Support   :math:`z \in [l, u]`
    Mean      no closed form in general; biased towards [l, u]
    Variance  at most that of `inner`
    ========  =================================================

    Parameters
    ----------
    inner : Mechanism
        What was released before clipping. Its privacy loss is an upper bound for the clipped
        release; ask ``mechanism.inner`` for it.
    lower, upper : tensor_like, optional
        Bounds, in the units of the statistic, at least one of them; None leaves that side alone.
        They broadcast against the statistic. -inf and inf are allowed inside arrays.

    Raises
    ------
    ValueError
        No bound, a NaN, or `lower` not below `upper`.
    TypeError
        A bound that depends on a random variable, or an `inner` that is no mechanism.

    Examples
    --------
    A noisy count that was published as zero whenever it came out negative:

    >>> import pymc_dp as dp
    >>> mechanism = dp.LaplaceMechanism(2.0).clipped(lower=0)
    >>> mechanism
    LaplaceMechanism(scale=2.0).clipped(lower=0.0)
    >>> mechanism.logp([0.0, 3.0, -1.0], 1.0).eval().round(4)
    array([-1.1931, -2.3863,    -inf])
    """

    lower: TensorLike | None = None
    upper: TensorLike | None = None

    parameter_names = ("lower", "upper")

    def __post_init__(self) -> None:
        """Validate the bounds and make them tensors."""
        super().__post_init__()
        if not self._step_parameters:
            raise ValueError(
                "ClippedMechanism: give lower=, upper= or both; without a bound nothing is clipped."
            )
        wrong = {"lower": np.inf, "upper": -np.inf}
        for name in self._step_parameters:
            self._keep(name, as_parameter)
            value = known_value(getattr(self, name))
            if value is not None and np.any(np.isnan(value) | (value == wrong[name])):
                raise ValueError(
                    f"ClippedMechanism: {name} must be a number, got {value}. "
                    f"Write {name}=None where that side was not clipped."
                )
        lower, upper = (known_value(bound) for bound in self._bounds())
        if lower is not None and upper is not None and not np.all(lower < upper):
            raise ValueError(
                f"ClippedMechanism: lower must be below upper, got lower={lower} and upper={upper}."
            )

    def wrong_parameter(self) -> str | None:
        """See `Mechanism.wrong_parameter`; bounds may be anything, in their order."""
        lower, upper = (known_value(bound) for bound in self._bounds())
        # Comparisons with NaN are false.
        fine = [np.all(b == b) for b in (lower, upper) if b is not None]
        if lower is not None and upper is not None:
            fine.append(np.all(lower <= upper))
        if not all(fine):
            return f"lower={lower} is not below upper={upper}"
        return super().wrong_parameter()

    def noise_sample(self, rng: Variable, statistic: TensorLike) -> tuple[Variable, TensorVariable]:
        """Draw one release; see `Mechanism.noise_sample`."""
        next_rng, draw = self.inner.noise_sample(rng, statistic)
        clipped = draw
        if self.lower is not None:
            clipped = pt.maximum(clipped, self.lower)
        if self.upper is not None:
            clipped = pt.minimum(clipped, self.upper)
        return next_rng, self._if_published(draw, clipped, draw)

    def logp(self, value: TensorLike, statistic: TensorLike = 0.0) -> TensorVariable:
        """Log density with respect to the mixed measure; see the class and `Mechanism.logp`."""
        value = as_float(value)
        lower, upper = self._bounds()
        at_lower, at_upper = pt.eq(value, lower), pt.eq(value, upper)
        # At a bound: the tail beyond it, or everything where both bounds are equal. Elsewhere the
        # interval is empty. Its ends do not move with the value.
        tail = self.inner.log_interval(
            pt.switch(at_lower, -np.inf, upper), pt.switch(at_upper, np.inf, lower), statistic
        )
        within = (value > lower) & (value < upper)
        density = pt.switch(within, self.inner.logp(value, statistic), -np.inf)
        result = self._checked(pt.switch(at_lower | at_upper, tail, density))
        return self._log_published(value, result, statistic)

    def log_interval(
        self, lower: TensorLike, upper: TensorLike, statistic: TensorLike = 0.0
    ) -> TensorVariable:
        """Log probability of a closed interval, atoms included; see `Mechanism.log_interval`."""
        lower, upper = as_float(lower), as_float(upper)
        lowest, highest = self._bounds()
        empty = (upper < lowest) | (lower > highest) | (lower > upper)
        result = self.inner.log_interval(
            pt.switch(lower <= lowest, -np.inf, lower),
            pt.switch(upper >= highest, np.inf, upper),
            statistic,
        )
        return self._checked(pt.switch(empty, -np.inf, result))

    def icdf(self, p: TensorLike, statistic: TensorLike = 0.0) -> TensorVariable:
        """Quantile function, that of `inner` clipped; see `Mechanism.icdf`."""
        quantile = self.inner.icdf(p, statistic)
        lower, upper = self._bounds()
        return self._checked(pt.minimum(pt.maximum(quantile, lower), upper))

    def _bounds(self) -> tuple[TensorVariable, TensorVariable]:
        floor = -np.inf if self.lower is None else self.lower
        ceiling = np.inf if self.upper is None else self.upper
        return as_float(floor), as_float(ceiling)

    def _checked(self, expression: TensorVariable) -> TensorVariable:
        if self.lower is None or self.upper is None:
            return expression
        lower, upper = self._bounds()
        if isinstance(lower, Constant) and isinstance(upper, Constant):
            return expression
        # Equal bounds are allowed here: rounding may bring two bounds together.
        return check_parameters(expression, lower <= upper, msg="lower <= upper")

    def __repr__(self) -> str:
        """Return the expression that builds it."""
        shown = (f"{name}={show(bound)}" for name, bound in self._step_parameters.items())
        return f"{self.inner!r}.clipped({', '.join(shown)})"


def _clipped_examples() -> Sequence[MechanismExample]:
    grid = np.arange(-2, 201)
    laplace, gaussian = LaplaceMechanism(2.0), GaussianMechanism(1.5)
    rounded, twice = LaplaceMechanism(4.0).rounded(0), laplace.clipped(lower=0.0).clipped(upper=2.0)
    return [
        MechanismExample(laplace.clipped(-1.0, 4.5), 0.5, (-1.0, 0.5, 4.5), (-1, 4.5)),
        MechanismExample(gaussian.clipped(lower=0.0), 1.0, (0.0, 14.0), (0.0,)),
        MechanismExample(LaplaceMechanism(1.0).clipped(upper=3.0), 30.0, (-10.0, 3.0), (3.0,)),
        MechanismExample(rounded.clipped(-2.5, 200.0), 3.2, atoms=(-2.5, *grid)),
        MechanismExample(twice, 1.0, (0.0, 1.0, 2.0), (0.0, 2.0)),
    ]


register_mechanism(ClippedMechanism, examples=_clipped_examples, how="clipped")
