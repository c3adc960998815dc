"""Releases that the curator clipped or rounded before publishing them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Self

import numpy as np
import pytensor.tensor as pt
from pymc.distributions.dist_math import check_parameters
from pytensor.graph.basic import Constant

from pymc_dp.graphs.questions import known_value
from pymc_dp.mechanisms.arguments import as_float, as_integer, as_parameter, just_met, show
from pymc_dp.mechanisms.base import (
    POSTPROCESSED,
    Mechanism,
    MechanismExample,
    register_mechanism,
)
from pymc_dp.mechanisms.gaussian import GaussianMechanism
from pymc_dp.mechanisms.laplace import LaplaceMechanism

if TYPE_CHECKING:
    from pytensor.graph.basic import Variable
    from pytensor.tensor import TensorLike
    from pytensor.tensor.variable import TensorVariable

_MAX_DIGITS = 22  # 10.0**22 is the largest power of ten that a double holds exactly.


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

    @property
    def _own(self) -> dict[str, TensorVariable]:
        """The step's own parameters by name, those that are there."""
        own = {name: getattr(self, name) for name in self.parameter_names}
        return {name: parameter for name, parameter in own.items() if parameter is not None}

    @property
    def parameters(self) -> tuple[TensorVariable, ...]:
        """The step's own parameters, then those of `inner`."""
        return (*self._own.values(), *self.inner.parameters)

    def wrong_parameter(self) -> str | None:
        """See `Mechanism.wrong_parameter`; those of the step itself are no scales."""
        return self.inner.wrong_parameter()

    @property
    def log_concave(self) -> bool:
        """That of `inner`: what is published of clipped and rounded releases are intervals."""
        return self.inner.log_concave

    def _with(self, parameters: Sequence[TensorLike]) -> Self:
        own = dict(zip(self._own, parameters, strict=False))
        return self._rebuilt(**own, inner=self.inner.with_parameters(*parameters[len(own) :]))

    def typical_statistic(self, value: TensorLike) -> TensorVariable:
        """Return one for `inner`; see `Mechanism.typical_statistic`."""
        return self.inner.typical_statistic(value)

    def why_unattainable(self, value: float) -> str:
        """Explain why a value cannot be published; see `Mechanism.why_unattainable`."""
        possible = known_value(self.inner.attainable(value))
        by_inner = possible is not None and not np.any(possible)
        return self.inner.why_unattainable(value) if by_inner else super().why_unattainable(value)


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
        if not self._own:
            raise ValueError(
                "ClippedMechanism: give lower=, upper= or both; without a bound nothing is clipped."
            )
        wrong = {"lower": np.inf, "upper": -np.inf}
        for name in self._own:
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

    @property
    def spacing(self) -> float | None:
        """That of `inner`; the atoms at the bounds need not lie on its lattice."""
        return self.inner.spacing

    def noise_sample(self, rng: Variable, statistic: TensorLike) -> tuple[Variable, TensorVariable]:
        """Draw one release; see `Mechanism.noise_sample`."""
        next_rng, draw = self.inner.noise_sample(rng, statistic)
        if self.lower is not None:
            draw = pt.maximum(draw, self.lower)
        if self.upper is not None:
            draw = pt.minimum(draw, self.upper)
        return next_rng, draw

    def logp(self, value: TensorLike, statistic: TensorLike = 0.0) -> TensorVariable:
        """Log density with respect to the mixed measure; see the class and `Mechanism.logp`."""
        value = as_float(value)
        lower, upper = self._bounds()
        at_lower, at_upper = pt.eq(value, lower), pt.eq(value, upper)
        # The tail behind a bound; both, and so everything, where the bounds fall together. Off
        # the bounds this interval is empty. It does not move with the value.
        tail = self.inner.log_interval(
            pt.switch(at_lower, -np.inf, upper), pt.switch(at_upper, np.inf, lower), statistic
        )
        within = (value > lower) & (value < upper)
        density = pt.switch(within, self.inner.logp(value, statistic), -np.inf)
        return self._checked(pt.switch(at_lower | at_upper, tail, density))

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
        shown = (f"{name}={show(bound)}" for name, bound in self._own.items())
        return f"{self.inner!r}.clipped({', '.join(shown)})"


@dataclass(frozen=True, eq=False, repr=False)
class RoundedMechanism(PostProcessed):
    r"""Release of another mechanism, rounded to a number of decimal places.

    With :math:`Z_0` the release of `inner` and :math:`h = 10^{-d} / 2`, the release is the
    multiple of :math:`10^{-d}` next to :math:`Z_0`, with the mass

    .. math::

        \eta(z \mid s) = P(z - h \le Z_0 \le z + h \mid s), \qquad 10^d z \in \mathbb{Z}.

    Where `inner` is discrete, so that it can fall halfway, the half goes to the even neighbour,
    as with `round` and `numpy.round`.

    ========  ==================================================
    Support   multiples of :math:`10^{-d}`
    Mean      within :math:`h` of that of `inner`
    Variance  that of `inner`, plus about :math:`h^2 / 3`
    ========  ==================================================

    Parameters
    ----------
    inner : Mechanism
        What was released before rounding. Its privacy loss is an upper bound for the rounded
        release; ask ``mechanism.inner`` for it.
    digits : int, default 0
        Decimal places :math:`d`, from -22 to 22; -1 rounds to tens.

    Raises
    ------
    TypeError
        `digits` is no integer, or `inner` is no mechanism.
    ValueError
        `digits` out of range.

    Notes
    -----
    A value counts as a multiple of :math:`10^{-d}` within the error of single precision, at most
    a hundredth of a step; the log mass is that of the multiple. Any other value has log mass
    -inf. The probability of a cell is never taken from a density at its middle, so steps that are
    wide in units of the noise are right too. The grid must be one that doubles can show: the
    width of a cell is right to one part in :math:`10^{16} / |10^d z|`.

    Rounding after clipping equals clipping, to the rounded bounds, after rounding, and is
    computed so: the mass at a bound belongs to the cell of that bound.

    Examples
    --------
    >>> import pymc_dp as dp
    >>> mechanism = dp.LaplaceMechanism(2.0).rounded(1)
    >>> mechanism
    LaplaceMechanism(scale=2.0).rounded(1)
    >>> mechanism.logp([34.3, 34.35], 30.0).eval().round(4)
    array([-5.8388,    -inf])
    """

    digits: int = 0

    def __post_init__(self) -> None:
        """Validate the number of digits."""
        super().__post_init__()
        digits = as_integer(self.digits, mechanism="RoundedMechanism", name="digits")
        if abs(digits) > _MAX_DIGITS:
            raise ValueError(
                f"RoundedMechanism: digits must lie between -{_MAX_DIGITS} and {_MAX_DIGITS}, "
                f"where powers of ten are exact, got {digits}. A release that fine can be modelled "
                "without rounding."
            )
        object.__setattr__(self, "digits", digits)

    @property
    def spacing(self) -> float:
        """Distance between neighbouring released values."""
        return 10.0**-self.digits

    def noise_sample(self, rng: Variable, statistic: TensorLike) -> tuple[Variable, TensorVariable]:
        """Draw one release; see `Mechanism.noise_sample`."""
        next_rng, draw = self.inner.noise_sample(rng, statistic)
        return next_rng, self._round(as_float(draw))

    def logp(self, value: TensorLike, statistic: TensorLike = 0.0) -> TensorVariable:
        """Log mass of a release; see `Mechanism.logp`."""
        index = self._to_index(as_float(value))
        nearest = pt.round(index)
        # Single precision has 24 bits. Past 1e13 the product itself may be off by more than 0.01.
        size = pt.abs(index)
        tolerance = pt.maximum(pt.minimum(1e-9 + 2e-7 * size, 0.01), 1e-15 * size)
        on_grid = (pt.abs(index - nearest) <= tolerance) & ~pt.isinf(index)
        nearest = pt.switch(on_grid, nearest, 0.0)
        reordered = self._clipped_last()
        if reordered is not None:
            mass = reordered.logp(self._from_index(nearest), statistic)
        else:
            mass = self._log_cells(nearest, nearest, statistic)
        return pt.switch(on_grid, mass, -np.inf)

    def log_interval(
        self, lower: TensorLike, upper: TensorLike, statistic: TensorLike = 0.0
    ) -> TensorVariable:
        """Log probability of the grid points in an interval; see `Mechanism.log_interval`."""
        reordered = self._clipped_last()
        if reordered is not None:
            # An end within rounding error of a bound must fall on the same side as its grid point.
            first = self._from_index(self._index_of_end(lower, pt.ceil, -1.0))
            last = self._from_index(self._index_of_end(upper, pt.floor, 1.0))
            return reordered.log_interval(first, last, statistic)
        first = self._index_of_end(lower, pt.ceil, -1.0)
        last = self._index_of_end(upper, pt.floor, 1.0)
        return self._log_cells(first, last, statistic)

    def icdf(self, p: TensorLike, statistic: TensorLike = 0.0) -> TensorVariable:
        """Quantile function; see `Mechanism.icdf`."""
        reordered = self._clipped_last()
        if reordered is not None:
            return reordered.icdf(p, statistic)
        p = as_float(p)
        quantile = self._round(as_float(self.inner.icdf(p, statistic)))
        # A probability that is just met by the grid point below may round to the one above.
        below = self._from_index(pt.round(self._to_index(quantile)) - 1.0)
        enough = self.logcdf(below, statistic) >= just_met(p)
        return pt.switch(enough & ~pt.isinf(quantile), below, quantile)

    def _to_index(self, x: TensorVariable) -> TensorVariable:
        """Return the number of a value on the grid; the power of ten is always exact."""
        power = 10.0 ** abs(self.digits)
        return x * power if self.digits >= 0 else x / power

    def _from_index(self, index: TensorVariable) -> TensorVariable:
        power = 10.0 ** abs(self.digits)
        return index / power if self.digits >= 0 else index * power

    def _round(self, x: TensorVariable) -> TensorVariable:
        return self._from_index(pt.round(self._to_index(x)))

    def _index_of_end(self, end: TensorLike, to_integer: Any, sign: float) -> TensorVariable:
        """Return the number of an interval's first or last grid point, with room for error."""
        index = self._to_index(as_float(end))
        infinite = pt.isinf(index)
        safe = pt.switch(infinite, 0.0, index)
        tolerance = 1e-9 + 1e-15 * pt.abs(safe)
        return pt.switch(infinite, index, to_integer(safe + sign * tolerance))

    def _log_cells(
        self, first: TensorVariable, last: TensorVariable, statistic: TensorLike
    ) -> TensorVariable:
        """Log mass of the cells numbered first to last, as one interval of `inner`."""
        lower = self._from_index(first - 0.5)
        upper = self._from_index(last + 0.5)
        atom_spacing = self.inner.spacing
        if atom_spacing is not None:
            # `inner` can fall on the border of two cells: it counts here if it is rounded to here.
            # Division is correctly rounded, so the border is the very double that it releases.
            shift = 1e-6 * atom_spacing
            lower = pt.switch(pt.lt(pt.round(self._to_index(lower)), first), lower + shift, lower)
            upper = pt.switch(pt.gt(pt.round(self._to_index(upper)), last), upper - shift, upper)
        # Without a cell (first > last) the ends are reversed, or meet where there is no atom.
        return self.inner.log_interval(lower, upper, statistic)

    def _clipped_last(self) -> ClippedMechanism | None:
        """Return the same release with clipping after rounding; None if `inner` does not clip.

        Rounding is monotone, so it commutes with clipping once the bounds are rounded too.
        """
        inner = self.inner
        if not isinstance(inner, ClippedMechanism):
            return None
        bounds = {name: self._round(as_float(bound)) for name, bound in inner._own.items()}
        return inner._rebuilt(inner=self._rebuilt(inner=inner.inner), **bounds)

    def __repr__(self) -> str:
        """Return the expression that builds it."""
        return f"{self.inner!r}.rounded({self.digits})"


def _clipped_examples() -> Sequence[MechanismExample]:
    grid = np.arange(-400, 401)
    return [
        MechanismExample(
            LaplaceMechanism(2.0).clipped(-1.0, 4.5), 0.5, pieces=(-1.0, 0.5, 4.5), atoms=(-1, 4.5)
        ),
        MechanismExample(
            GaussianMechanism(1.5).clipped(lower=0.0), 1.0, pieces=(0.0, 14.0), atoms=(0.0,)
        ),
        MechanismExample(
            LaplaceMechanism(1.0).clipped(upper=3.0), 30.0, pieces=(-10.0, 3.0), atoms=(3.0,)
        ),
        MechanismExample(
            LaplaceMechanism(4.0).rounded(0).clipped(-2.5, 200.0),
            3.2,
            atoms=(-2.5, *grid[(grid > -2.5) & (grid <= 200)]),
        ),
        MechanismExample(
            LaplaceMechanism(2.0).clipped(lower=0.0).clipped(upper=2.0),
            1.0,
            pieces=(0.0, 1.0, 2.0),
            atoms=(0.0, 2.0),
        ),
    ]


def _rounded_examples() -> Sequence[MechanismExample]:
    grid = np.arange(-400, 401)
    return [
        MechanismExample(LaplaceMechanism(0.3).rounded(1), 3.14, atoms=grid / 10),
        MechanismExample(GaussianMechanism(30.0).rounded(-1), 12.0, atoms=grid * 10.0),
        MechanismExample(GaussianMechanism(0.2).rounded(), 0.3, atoms=(-3, -2, -1, 0, 1, 2, 3)),
        # The bound -2.5 is rounded to the even -2, the bound 3.5 to 4.
        MechanismExample(
            LaplaceMechanism(4.0).clipped(-2.5, 3.5).rounded(0), 1.0, atoms=(-2, -1, 0, 1, 2, 3, 4)
        ),
        MechanismExample(GaussianMechanism(0.8).rounded(1).rounded(0), 0.3, atoms=grid[380:421]),
    ]


POSTPROCESSED.add(ClippedMechanism, "clipped")
POSTPROCESSED.add(RoundedMechanism, "rounded")
register_mechanism(ClippedMechanism, examples=_clipped_examples)
register_mechanism(RoundedMechanism, examples=_rounded_examples)
