"""Releases that the curator moved to multiples of a step before publishing them."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
import pytensor.tensor as pt

from pymc_dp.mechanisms.arguments import as_float, as_integer, just_met
from pymc_dp.mechanisms.gaussian import GaussianMechanism
from pymc_dp.mechanisms.geometric import GeometricMechanism
from pymc_dp.mechanisms.laplace import LaplaceMechanism
from pymc_dp.mechanisms.postprocessed import PostProcessed, next_to
from pymc_dp.mechanisms.registry import MechanismExample, register_mechanism

if TYPE_CHECKING:
    from pytensor.graph.basic import Variable
    from pytensor.tensor import TensorLike
    from pytensor.tensor.variable import TensorVariable

_MAX_DIGITS = 22  # 10.0**22 is the largest power of ten that a double holds exactly.


def _slack(index: TensorVariable) -> TensorVariable:
    """Return the rounding error that a product near a whole number may have."""
    return pt.minimum(1e-9 + 1e-15 * pt.abs(index), 0.25)


class OntoGrid(PostProcessed):
    r"""Release of another mechanism, moved to multiples of a step by a monotone function.

    With :math:`Z_0` the release of `inner`, the mass of a multiple is the probability that
    :math:`Z_0` lies in its cell. A subclass says which cells these are, by `_whole` and `_cell`, in
    units of the step.

    It is never taken from a density at the middle, so steps that are wide in units of the noise
    are right too. A value counts as a multiple within the error of single precision, at most a
    hundredth of a step; the log mass is that of the multiple. Any other value has log mass -inf.
    """

    base: float | None

    _power: float
    """The step or, if `_fine`, its inverse: a power of ten, which is exact as a double."""
    _fine: ClassVar[bool] = False

    def _keep_base(self) -> None:
        """Validate the step, a number."""
        try:
            step = 0.0 if isinstance(self.base, bool) else float(self.base)  # type: ignore[arg-type]
        except (TypeError, ValueError):
            step = 0.0
        if not 0 < step < np.inf:
            raise ValueError(
                f"{type(self).__name__}: base must be one number > 0, got {self.base!r}. Write the "
                "distance of neighbouring values, such as 5."
            )
        object.__setattr__(self, "_power", step)
        object.__setattr__(self, "base", int(step) if step == int(step) else step)

    @abstractmethod
    def _whole(self, index: TensorVariable) -> TensorVariable:
        """Return the number of the multiple to which a value goes."""

    @abstractmethod
    def _cell(self, index: TensorVariable) -> tuple[TensorVariable, TensorVariable]:
        """Return where the cell of a multiple begins, and where it ends."""

    @property
    def spacing(self) -> float:
        """Distance between neighbouring released values."""
        return 1.0 / self._power if self._fine else self._power

    def noise_sample(self, rng: Variable, statistic: TensorLike) -> tuple[Variable, TensorVariable]:
        """Draw one release; see `Mechanism.noise_sample`."""
        next_rng, draw = self.inner.noise_sample(rng, statistic)
        draw = as_float(draw)
        return next_rng, self._if_published(draw, self._round(draw), draw)

    def logp(self, value: TensorLike, statistic: TensorLike = 0.0) -> TensorVariable:
        """Log mass of a release; see `Mechanism.logp`."""
        value = as_float(value)
        index = self._to_index(value)
        nearest = pt.round(index)
        # Single precision has 24 bits. Past 1e13 the product itself may be off by more than 0.01.
        size = pt.abs(index)
        tolerance = pt.maximum(pt.minimum(1e-9 + 2e-7 * size, 0.01), 1e-15 * size)
        on_grid = (pt.abs(index - nearest) <= tolerance) & ~pt.isinf(index)
        nearest = pt.switch(on_grid, nearest, 0.0)
        mass = self._log_cells(nearest, nearest, statistic)
        return self._log_published(value, pt.switch(on_grid, mass, -np.inf), statistic)

    def log_interval(
        self, lower: TensorLike, upper: TensorLike, statistic: TensorLike = 0.0
    ) -> TensorVariable:
        """Log probability of the grid points in an interval; see `Mechanism.log_interval`."""
        first = self._index_of_end(lower, pt.ceil, -1.0)
        last = self._index_of_end(upper, pt.floor, 1.0)
        return self._log_cells(first, last, statistic)

    def icdf(self, p: TensorLike, statistic: TensorLike = 0.0) -> TensorVariable:
        """Quantile function; see `Mechanism.icdf`."""
        p = as_float(p)
        quantile = self._round(as_float(self.inner.icdf(p, statistic)))
        # A probability that is just met by the grid point below may round to the one above.
        below = self._from_index(pt.round(self._to_index(quantile)) - 1.0)
        enough = self.logcdf(below, statistic) >= just_met(p)
        return pt.switch(enough & ~pt.isinf(quantile), below, quantile)

    def _to_index(self, x: TensorVariable) -> TensorVariable:
        """Return a value in units of the step."""
        return x * self._power if self._fine else x / self._power

    def _from_index(self, index: TensorVariable) -> TensorVariable:
        return index / self._power if self._fine else index * self._power

    def _round(self, x: TensorVariable) -> TensorVariable:
        return self._from_index(self._whole(self._to_index(x)))

    def _index_of_end(self, end: TensorLike, to_integer: Any, sign: float) -> TensorVariable:
        """Return the number of an interval's first or last grid point, with room for error."""
        index = self._to_index(as_float(end))
        infinite = pt.isinf(index)
        safe = pt.switch(infinite, 0.0, index)
        return pt.switch(infinite, index, to_integer(safe + sign * _slack(safe)))

    def _log_cells(
        self, first: TensorVariable, last: TensorVariable, statistic: TensorLike
    ) -> TensorVariable:
        """Log mass of the cells numbered first to last, as one interval of `inner`."""
        lower = self._from_index(self._cell(first)[0])
        upper = self._from_index(self._cell(last)[1])
        if self.inner.is_discrete or isinstance(self.inner, PostProcessed):
            # `inner` can fall on the border of two cells, which belongs to the cell it is moved to.
            # Division is correctly rounded: the border is exactly the double that it releases.
            goes = [self._whole(self._to_index(end)) for end in (lower, upper)]
            lower = pt.switch(pt.lt(goes[0], first), next_to(lower, self.inner, 1.0), lower)
            upper = pt.switch(pt.gt(goes[1], last), next_to(upper, self.inner, -1.0), upper)
        # Without a cell (first > last) the ends are reversed, or meet where there is no atom.
        return self.inner.log_interval(lower, upper, statistic)


@dataclass(frozen=True, eq=False, repr=False)
class RoundedMechanism(OntoGrid):
    r"""Release of another mechanism, rounded to decimal places or to multiples of a base.

    With :math:`Z_0` the release of `inner` and the step :math:`b = 10^{-d}`, or `base`, the release
    is the multiple of b next to :math:`Z_0`, with the mass

    .. math::

        \eta(z \mid s) = P(z - b / 2 \le Z_0 \le z + b / 2 \mid s), \qquad z / b \in \mathbb{Z}.

    Where `inner` is discrete, so that it can fall halfway, the half goes to the even neighbour,
    as with `round` and `numpy.round`.

    ========  ==================================================
    Support   multiples of b
    Mean      within :math:`b / 2` of that of `inner`
    Variance  that of `inner`, plus about :math:`b^2 / 12`
    ========  ==================================================

    Parameters
    ----------
    inner : Mechanism
        What was released before rounding. Its privacy loss is an upper bound for the rounded
        release; ask ``mechanism.inner`` for it.
    digits : int, default 0
        Decimal places :math:`d`, from -22 to 22; -1 rounds to tens.
    base : float, optional
        Step, > 0, in the place of `digits`: 5 rounds to multiples of five.

    Raises
    ------
    TypeError
        `digits` is no integer, or `inner` is no mechanism.
    ValueError
        `digits` out of range, a `base` that is not positive, or both.

    Notes
    -----
    The grid must be one that doubles can show: the width of a cell is right to one part in
    :math:`10^{16} b / |z|`.

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
    base: float | None = None

    def __post_init__(self) -> None:
        """Validate the number of digits, or the base."""
        super().__post_init__()
        digits = as_integer(self.digits, mechanism="RoundedMechanism", name="digits")
        if abs(digits) > _MAX_DIGITS:
            raise ValueError(
                f"RoundedMechanism: digits must lie between -{_MAX_DIGITS} and {_MAX_DIGITS}, "
                f"where powers of ten are exact, got {digits}. A release that fine can be modelled "
                "without rounding."
            )
        object.__setattr__(self, "digits", digits)
        object.__setattr__(self, "_power", 10.0 ** abs(digits))
        object.__setattr__(self, "_fine", self.base is None and digits >= 0)
        if self.base is None:
            if digits > 0 and self.inner.spacing == 1:
                raise ValueError(
                    f"RoundedMechanism: digits={digits} changes nothing of whole numbers; write "
                    f"base={digits} for multiples of {digits}, digits=-1 for tens"
                )
            return
        if digits:
            raise ValueError(
                f"RoundedMechanism: got digits={digits} and base={self.base!r}; write the one that "
                "the curator rounded to."
            )
        self._keep_base()

    def _whole(self, index: TensorVariable) -> TensorVariable:
        return pt.round(index)

    def _cell(self, index: TensorVariable) -> tuple[TensorVariable, TensorVariable]:
        return index - 0.5, index + 0.5

    def __repr__(self) -> str:
        """Return the expression that builds it."""
        step = f"base={self.base}" if self.base is not None else self.digits
        return f"{self.inner!r}.rounded({step})"


@dataclass(frozen=True, eq=False, repr=False)
class _OneWay(OntoGrid):
    """A release cut to multiples of a base in one direction; see the subclasses."""

    base: float = 1

    _how: ClassVar[str]
    _side: ClassVar[Callable]
    """Side of a multiple on which the values moved to it lie: 1 above, -1 below, 0 both."""

    def __post_init__(self) -> None:
        """Validate the base."""
        super().__post_init__()
        self._keep_base()

    def _whole(self, index: TensorVariable) -> TensorVariable:
        side = self._side(index)
        index = index + side * _slack(index)
        return pt.switch(side > 0, pt.floor(index), pt.ceil(index))

    def _cell(self, index: TensorVariable) -> tuple[TensorVariable, TensorVariable]:
        side = self._side(index)
        return index - (side <= 0), index + (side >= 0)

    def __repr__(self) -> str:
        """Return the expression that builds it."""
        base = "" if self.base == 1 else f"base={self.base}"
        return f"{self.inner!r}.{self._how}({base})"


@dataclass(frozen=True, eq=False, repr=False)
class FlooredMechanism(_OneWay):
    r"""Release of another mechanism, rounded down: :math:`Z = b \lfloor Z_0 / b \rfloor`.

    ========  ==================================================
    Support   multiples of b
    Mean      at most b below that of `inner`
    Variance  that of `inner`, plus about :math:`b^2 / 12`
    ========  ==================================================

    Parameters
    ----------
    inner : Mechanism
        What was released before.
    base : float, default 1
        Step b, > 0.

    Examples
    --------
    >>> import pymc_dp as dp
    >>> dp.GaussianMechanism(2.0).floored().logp([-1, 0], 0.0).eval().round(4)
    array([-1.6531, -1.6531])
    """

    _how = "floored"
    _side = staticmethod(pt.ones_like)


@dataclass(frozen=True, eq=False, repr=False)
class CeiledMechanism(_OneWay):
    r"""Release of another mechanism, rounded up: :math:`Z = b \lceil Z_0 / b \rceil`.

    Counts that were rounded up to bins of eight, as Tor's are, are ``.ceiled(base=8)``.

    ========  ==================================================
    Support   multiples of b
    Mean      at most b above that of `inner`
    Variance  that of `inner`, plus about :math:`b^2 / 12`
    ========  ==================================================

    Parameters
    ----------
    inner : Mechanism
        What was released before.
    base : float, default 1
        Step b, > 0.

    Examples
    --------
    >>> import pymc_dp as dp
    >>> dp.GaussianMechanism(2.0).ceiled(base=8).logp([0, 8, 12], 8.0).eval().round(4)
    array([-10.3601,  -0.6932,     -inf])
    """

    _how = "ceiled"
    _side = staticmethod(lambda index: -pt.ones_like(index))


@dataclass(frozen=True, eq=False, repr=False)
class TruncatedMechanism(_OneWay):
    r"""Release of another mechanism, cut toward zero, as `int` does it.

    The cell of zero is twice as wide as the others: with the base b,

    .. math::

        \eta(0 \mid s) = P(-b < Z_0 < b \mid s), \qquad
        \eta(z \mid s) = P(z \le Z_0 < z + b \mid s), \quad z > 0.

    ========  ==================================================
    Support   multiples of b
    Mean      at most b nearer to zero than that of `inner`
    Variance  no closed form
    ========  ==================================================

    Parameters
    ----------
    inner : Mechanism
        What was released before.
    base : float, default 1
        Step b, > 0.

    Examples
    --------
    >>> import pymc_dp as dp
    >>> dp.LaplaceMechanism(2.0).truncated().logp([0, 1], 0.0).eval().round(4)
    array([-0.9328, -2.1259])
    """

    _how = "truncated"
    _side = staticmethod(pt.sign)


def _rounded_examples() -> Sequence[MechanismExample]:
    grid = np.arange(-400, 401)
    return [
        MechanismExample(LaplaceMechanism(0.3).rounded(1), 3.14, atoms=grid / 10),
        MechanismExample(GaussianMechanism(30.0).rounded(-1), 12.0, atoms=grid * 10.0),
        MechanismExample(GaussianMechanism(0.2).rounded(), 0.3, atoms=grid[397:404]),
        # The bound -2.5 is rounded to the even -2, the bound 3.5 to 4.
        MechanismExample(LaplaceMechanism(4.0).clipped(-2.5, 3.5).rounded(0), 1, (), grid[398:405]),
        MechanismExample(GaussianMechanism(0.8).rounded(1).rounded(0), 0.3, atoms=grid[380:421]),
        MechanismExample(GeometricMechanism(2.0).rounded(base=5), 7.0, atoms=grid * 5.0),
    ]


def _floored_examples() -> Sequence[MechanismExample]:
    grid = np.arange(-400, 401)
    geometric = GeometricMechanism(2.0).floored(base=3)
    return [
        MechanismExample(LaplaceMechanism(1.5).floored(), 0.4, atoms=grid),
        MechanismExample(geometric, -4.0, atoms=grid * 3),
    ]


def _ceiled_examples() -> Sequence[MechanismExample]:
    grid, geometric = np.arange(-400, 401), GeometricMechanism(2.0).ceiled(base=8)
    return [
        MechanismExample(GaussianMechanism(3.0).ceiled(base=0.5), 0.4, atoms=grid[340:461] * 0.5),
        MechanismExample(geometric, 11, atoms=grid * 8, smooth_in_statistic=False),
    ]


def _truncated_examples() -> Sequence[MechanismExample]:
    grid, laplace = np.arange(-400, 401), LaplaceMechanism(2.0)
    return [
        MechanismExample(LaplaceMechanism(1.5).truncated(), 0.4, atoms=grid),
        MechanismExample(laplace.clipped(lower=-0.5).truncated(), 1, atoms=grid[400:]),
        MechanismExample(LaplaceMechanism(1.0).rounded(1).truncated(), -2.0, atoms=grid[300:501]),
    ]


register_mechanism(RoundedMechanism, examples=_rounded_examples, how="rounded")
register_mechanism(FlooredMechanism, examples=_floored_examples, how="floored")
register_mechanism(CeiledMechanism, examples=_ceiled_examples, how="ceiled")
register_mechanism(TruncatedMechanism, examples=_truncated_examples, how="truncated")
