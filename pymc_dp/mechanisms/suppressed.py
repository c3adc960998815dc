"""Releases with withheld entries, and releases of whether a threshold was reached."""

from __future__ import annotations

import operator
from collections.abc import Sequence
from dataclasses import dataclass
from functools import reduce
from typing import TYPE_CHECKING, ClassVar, Self

import numpy as np
import pytensor.tensor as pt

from pymc_dp.graphs.values import known_value
from pymc_dp.mechanisms.arguments import as_float, as_parameter, show
from pymc_dp.mechanisms.base import Mechanism
from pymc_dp.mechanisms.geometric import GeometricMechanism
from pymc_dp.mechanisms.laplace import LaplaceMechanism
from pymc_dp.mechanisms.postprocessed import PostProcessed, next_to
from pymc_dp.mechanisms.registry import MechanismExample, register_mechanism

if TYPE_CHECKING:
    from pytensor.graph.basic import Variable
    from pytensor.tensor import TensorLike
    from pytensor.tensor.variable import TensorVariable


@dataclass(frozen=True, eq=False, repr=False)
class SuppressedMechanism(PostProcessed):
    r"""Release of another mechanism, withheld where a rule says so.

    With :math:`Z_0` the release of `inner` and D the values that are withheld, the release is NaN
    where :math:`Z_0 \in D` and :math:`Z_0` elsewhere. Its density is one with respect to a mixed
    measure, that of `inner` plus a unit mass at NaN:

    .. math::

        \eta(\mathrm{NaN} \mid s) = P(Z_0 \in D \mid s), \qquad
        \eta(z \mid s) = \eta_0(z \mid s)\, 1[z \notin D].

    =================================  =======================================================
    `below`                            :math:`D = (-\infty, \text{below})`
    `above`                            :math:`D = (\text{above}, \infty)`
    both, `above` < `below`            :math:`D = (\text{above}, \text{below})`: zeros are printed
                                       and 1 to 9 are withheld with below=10, above=0
    both, `above` >= `below`           the union of the two
    `where`                            everything, at the entries that it names
    =================================  =======================================================

    Where a second noisy value :math:`Y` of the same statistic decides (`by`), which is not
    published, :math:`P(Y \in D \mid s)` stands for the first and
    :math:`\eta_0(z \mid s)\, P(Y \notin D \mid s)` for the second.

    Where groups without members have no row at all (`empty`), as in a query that groups, the
    entry of a statistic of zero is withheld with probability one.

    Parameters
    ----------
    inner : Mechanism
        What was released where it was not withheld. The privacy loss of a threshold on it is that
        of `inner`; a threshold that hides which groups exist costs a delta of its own.
    below, above : tensor_like, optional
        Thresholds, in the units of the statistic. A value that equals one is published. They
        broadcast against the statistic; -inf and inf stand for no threshold of an entry.
    where : tensor_like of bool, optional
        Entries that a public rule withholds, such as those of a small area. NaN says nothing about
        the statistic there.
    by : Mechanism, optional
        Mechanism of a second value, which decides. Its noise is independent of that of `inner`. A
        decision by another statistic is a separate release: see the notes.
    empty : bool, default False
        Whether a statistic of zero is always withheld. It is one that can be zero, such as a count.
    sentinel : float, optional
        A number that was printed in the place of a withheld value, such as -1; NaN is taken too.

    Raises
    ------
    ValueError
        No rule, a threshold that is NaN, `by` without a threshold, or a sentinel that could be a
        published value.
    TypeError
        A rule that is a function, or depends on a random variable.

    Notes
    -----
    Where a noisy number of members decided about sums or means, and was not published itself, the
    decision is a release of that number, ``LaplaceMechanism(b).thresholded(tau)``. The release of
    the sums then has `where` for the groups that were left out.

    Examples
    --------
    >>> import numpy as np
    >>> import pymc_dp as dp
    >>> mechanism = dp.GeometricMechanism(2.0).suppressed(below=10)
    >>> mechanism
    GeometricMechanism(scale=2.0).suppressed(below=10.0)
    >>> mechanism.logp([np.nan, 9, 12], 9.0).eval().round(4)
    array([-0.4741,    -inf, -2.9068])
    """

    below: TensorLike | None = None
    above: TensorLike | None = None
    where: TensorLike | None = None
    by: Mechanism | None = None
    empty: bool = False
    sentinel: float | None = None

    _between: ClassVar[bool]  # of each instance, set when it is made

    parameter_names = ("below", "above", "where")

    def __post_init__(self) -> None:
        """Validate the rule and make its thresholds tensors."""
        super().__post_init__()
        name = "SuppressedMechanism"
        if any(callable(rule) for rule in (self.below, self.above, self.where)):
            raise TypeError(
                f"{name}: a rule is no function here. Write below= or above= for values beyond a "
                f"threshold, both with above < below for those between them, and where= for entries"
            )
        if not (self._step_parameters or self.empty):
            raise ValueError(
                f"{name}: without a rule nothing is withheld: write below= or above= (a threshold "
                f"of the noisy value), where= (entries), or empty=True (rows of groups without "
                f"members)."
            )
        for field in self._step_parameters:
            self._keep(field, as_parameter)
            value = known_value(getattr(self, field))
            if value is not None and np.any(np.isnan(value)):
                raise ValueError(f"{name}: {field} must be a number, got {value}.")
        if self.by is not None and not isinstance(self.by, Mechanism):
            raise TypeError(f"{name}: by must be a mechanism, got {self.by!r}")
        if self.by is not None and self.below is None and self.above is None:
            raise ValueError(f"{name}: by= decides by a threshold: write below= or above=, too.")
        if self.by is not None and (self.by.withholds or self.inner.withholds):
            raise ValueError(
                f"{name}: by= and the release itself are noise that withholds nothing."
            )
        object.__setattr__(self, "empty", int(bool(self.empty)))
        between = self._orders()
        if between is not None and np.any(between) and not np.all(between):
            raise ValueError(
                f"{name}: above is smaller than below for some entries, where the values between "
                f"are withheld, and not for others. Write two releases."
            )
        object.__setattr__(self, "_between", between is not None and bool(np.all(between)))
        if self.sentinel is None:
            return
        mark = float(self.sentinel)
        object.__setattr__(self, "sentinel", mark)
        as_printed = self._log_printed(as_float(mark), self.inner.typical_statistic(mark))
        possible = known_value(as_printed > -np.inf)
        if self.inner.is_discrete and possible is not None and np.any(possible):
            raise ValueError(
                f"{name}: {self.sentinel:g} can be a published value as well: write NaN where a "
                f"value was withheld, and leave sentinel= out."
            )

    def _orders(self) -> np.ndarray | None:
        """Return whether the values between two thresholds are withheld, as far as is known."""
        known = [None if t is None else known_value(t) for t in (self.below, self.above)]
        return None if known[0] is None or known[1] is None else known[1] < known[0]

    @property
    def keeps_printed(self) -> bool:
        """Whether a printed value has the density that it would have without the rule."""
        return self.by is None and not self.empty

    @property
    def is_between(self) -> bool:
        """Whether values between two thresholds are withheld."""
        return self._between

    @property
    def parameters(self) -> tuple[TensorVariable, ...]:
        """Parameters of the rule, of `inner` and of `by`, in this order."""
        return (*super().parameters, *(self.by.parameters if self.by is not None else ()))

    def _with(self, parameters: Sequence[TensorLike]) -> Self:
        if self.by is None:
            return super()._with(parameters)
        count = len(self.by.parameters)
        cut = len(parameters) - count
        new = super()._with(parameters[:cut])
        return new._rebuilt(by=self.by.with_parameters(*parameters[cut:]))

    def wrong_parameter(self) -> str | None:
        """See `Mechanism.wrong_parameter`; thresholds may be any numbers."""
        for name, parameter in self._step_parameters.items():
            value = known_value(parameter)
            if value is not None and np.any(np.isnan(value)):
                return f"{name}={value} is not a number"
        between = self._orders()
        if between is not None and np.any(between != self._between):
            return "below and above are in another order than they were"
        return super().wrong_parameter() or (self.by.wrong_parameter() if self.by else None)

    @property
    def withholds(self) -> bool:
        """See `Mechanism.withholds`."""
        return True

    @property
    def log_concave(self) -> bool:
        """Log-concave if values beyond one threshold, or values between two, are withheld.

        With two thresholds it is not if values beyond either are withheld, or if `by` decides.
        """
        two = self.below is not None and self.above is not None
        apart = two and not (self._between and self.by is None)
        deciding = self.inner if self.by is None else self.by
        concave = self.inner.log_concave and deciding.log_concave
        return concave and not (self.inner.withholds or apart or self.empty)

    @property
    def has_gap(self) -> bool:
        """See `Mechanism.has_gap`."""
        return self.inner.has_gap or (self._between and self.by is None)

    def is_withheld(self, value: TensorLike) -> TensorVariable:
        """See `Mechanism.is_withheld`."""
        value = as_float(value)
        withheld = pt.isnan(value) | self.inner.is_withheld(value)
        return withheld if self.sentinel is None else withheld | pt.eq(value, self.sentinel)

    def typical_statistic(self, value: TensorLike) -> TensorVariable:
        """Return a statistic beyond the threshold where the entry was withheld."""
        value = as_float(value)
        step = self.spacing or 0.0
        beyond = [as_float(0.0)]  # withheld in an empty group, or by a public rule
        beyond += [] if self.below is None else [as_float(self.below) - step]
        beyond += [] if self.above is None else [as_float(self.above) + step]
        withheld_value = (
            (beyond[1] + beyond[2]) / 2 if self._between else beyond[0 if self.empty else -1]
        )
        withheld_value = pt.switch(
            pt.isinf(withheld_value), 0.0, withheld_value
        )  # an infinite threshold withholds nothing
        withheld = self.is_withheld(value)
        typical = self.inner.typical_statistic(pt.switch(withheld, withheld_value, value))
        # A printed value is not that of an empty group.
        return pt.switch(pt.eq(typical, 0) & ~withheld, 1.0, typical) if self.empty else typical

    def why_unattainable(self, value: float) -> str:
        """See `Mechanism.why_unattainable`."""
        if known_value(self.is_withheld(value)):
            return "the rule withholds nothing there: check below=, above= and where="
        return "the rule withholds this value; " + super().why_unattainable(value)

    def noise_sample(self, rng: Variable, statistic: TensorLike) -> tuple[Variable, TensorVariable]:
        """Draw one release; see `Mechanism.noise_sample`."""
        rng, draw = self.inner.noise_sample(rng, statistic)
        deciding = draw
        if self.by is not None:
            rng, deciding = self.by.noise_sample(rng, statistic)
        withheld = self._rule_withholds(as_float(deciding)) | self._always_withheld(statistic)
        mark = np.nan if self.sentinel is None else self.sentinel
        return rng, pt.switch(withheld, mark, as_float(draw))

    def logp(self, value: TensorLike, statistic: TensorLike = 0.0) -> TensorVariable:
        """Log density with respect to the mixed measure; see the class and `Mechanism.logp`."""
        value = as_float(value)
        withheld = self.is_withheld(value)
        # NaN must not enter arithmetic: the gradient of the unused branch would be NaN.
        printed = pt.switch(withheld, self.typical_statistic(value), value)
        return pt.switch(
            withheld, self._log_withheld(statistic), self._log_printed(printed, statistic)
        )

    def _log_printed(self, value: TensorVariable, statistic: TensorLike) -> TensorVariable:
        """Log density of a value that was printed."""
        density = self.inner.logp(value, statistic)
        possible = ~self._always_withheld(statistic)
        if self.by is None:
            possible &= ~self._rule_withholds(value)
        else:
            density = density + self._log_mass(self.by, self._kept, statistic)
        return pt.switch(possible, density, -np.inf)

    def log_interval(
        self, lower: TensorLike, upper: TensorLike, statistic: TensorLike = 0.0
    ) -> TensorVariable:
        """Log probability of a printed value in an interval; see `Mechanism.log_interval`."""
        if self.by is None:
            lower, upper = as_float(lower), as_float(upper)
            parts = [(pt.maximum(lower, a), pt.minimum(upper, b)) for a, b in self._kept]
            result = self._log_mass(self.inner, parts, statistic)
        else:
            result = self.inner.log_interval(lower, upper, statistic)
            result = result + self._log_mass(self.by, self._kept, statistic)
        return pt.switch(self._always_withheld(statistic), -np.inf, result)

    def _always_withheld(self, statistic: TensorLike) -> TensorVariable:
        """Whether an entry is withheld whatever its noise is."""
        statistic = as_float(statistic)
        always = pt.zeros_like(statistic, dtype="bool")
        if self.where is not None:
            always = always | pt.neq(self.where, 0.0)
        return always | pt.eq(statistic, 0.0) if self.empty else always

    def _rule_withholds(self, value: TensorVariable) -> TensorVariable:
        """Whether a noisy value is withheld by the thresholds."""
        return ~reduce(operator.or_, [(value >= a) & (value <= b) for a, b in self._kept])

    @property
    def _kept(self) -> list[tuple[TensorVariable, TensorVariable]]:
        """Intervals of noisy values that the thresholds do not withhold."""
        low = as_float(-np.inf if self.below is None else self.below)
        high = as_float(np.inf if self.above is None else self.above)
        return (
            [(as_float(-np.inf), high), (low, as_float(np.inf))] if self._between else [(low, high)]
        )

    def _log_withheld(self, statistic: TensorLike) -> TensorVariable:
        """Log probability that an entry is withheld."""
        law, infinity = self.inner if self.by is None else self.by, as_float(np.inf)
        last = None if self.below is None else next_to(self.below, law, -1.0)
        first = None if self.above is None else next_to(self.above, law, 1.0)
        parts = [(-infinity, last)] if last is not None else []
        parts += [(first, infinity)] if first is not None else []
        result = self._log_mass(law, [(first, last)] if self._between else parts, statistic)
        if self.inner.withholds:  # entries that `inner` withholds stay withheld
            result = _either(result, self.inner.logp(np.nan, statistic))
        return pt.switch(self._always_withheld(statistic), 0.0, result)

    def _log_mass(self, law: Mechanism, parts: Sequence, statistic: TensorLike) -> TensorVariable:
        """Log probability that a value lies in one of several disjoint intervals."""
        sides = [law.log_interval(*ends, statistic) for ends in parts]
        return reduce(_either, sides) if sides else pt.full_like(as_float(statistic), -np.inf)

    def __repr__(self) -> str:
        """Return the expression that builds it."""
        shown = [f"{name}={show(parameter)}" for name, parameter in self._step_parameters.items()]
        shown += [f"by={self.by!r}"] if self.by is not None else []
        shown += ["empty=True"] if self.empty else []
        shown += [] if self.sentinel is None else [f"sentinel={self.sentinel}"]
        return f"{self.inner!r}.suppressed({', '.join(shown)})"


def _either(one: TensorVariable, other: TensorVariable) -> TensorVariable:
    """Log probability of either of two events that exclude each other."""
    larger, smaller = pt.maximum(one, other), pt.minimum(one, other)
    both = smaller > -np.inf
    return larger + pt.switch(both, pt.log1p(pt.exp(pt.switch(both, smaller - larger, -1.0))), 0.0)


@dataclass(frozen=True, eq=False, repr=False)
class ThresholdedMechanism(PostProcessed):
    r"""Release whether the noisy value reaches a threshold, and nothing else.

    The release is :math:`Z = 1[Z_0 \ge t]` with :math:`Z_0` that of `inner`. Examples are which
    groups of a table have a row, where an unpublished noisy number of members decided, and the
    answers of a sparse vector.

    ========  ==========================================
    Support   0, 1
    Mean      :math:`p = P(Z_0 \ge t \mid s)`
    Variance  :math:`p (1 - p)`
    ========  ==========================================

    Parameters
    ----------
    inner : Mechanism
        Mechanism of the value that decides.
    threshold : tensor_like
        In the units of the statistic. It broadcasts against the statistic.

    Examples
    --------
    >>> import pymc_dp as dp
    >>> dp.LaplaceMechanism(2.0).thresholded(10.0).logp([0, 1], 12.0).eval().round(4)
    array([-1.6931, -0.2033])
    """

    threshold: TensorLike

    parameter_names = ("threshold",)

    def __post_init__(self) -> None:
        """Validate the threshold and make it a tensor."""
        super().__post_init__()
        if self.inner.withholds:
            raise ValueError(
                f"ThresholdedMechanism: {self.inner!r} withholds values, and only whether it does "
                f"can be published of it: write .thresholded(...) of the noise that decides."
            )
        self._keep("threshold", as_parameter)
        value = known_value(self.threshold)
        if value is not None and not np.all(np.isfinite(value)):
            raise ValueError(f"ThresholdedMechanism: threshold must be finite, got {value}.")

    @property
    def spacing(self) -> float:
        """Distance between the two releases."""
        return 1.0

    @property
    def outcomes(self) -> np.ndarray:
        """See `Mechanism.outcomes`."""
        return np.array([0.0, 1.0])

    def noise_sample(self, rng: Variable, statistic: TensorLike) -> tuple[Variable, TensorVariable]:
        """Draw one release; see `Mechanism.noise_sample`."""
        next_rng, draw = self.inner.noise_sample(rng, statistic)
        return next_rng, pt.ge(draw, self.threshold).astype("int64")

    def typical_statistic(self, value: TensorLike) -> TensorVariable:
        """Return a statistic on the same side of the threshold."""
        step = self.inner.spacing or 0.0
        reaching = as_float(self.threshold) - pt.switch(pt.eq(value, 0), step, 0.0)
        return self.inner.typical_statistic(reaching)

    def log_interval(
        self, lower: TensorLike, upper: TensorLike, statistic: TensorLike = 0.0
    ) -> TensorVariable:
        """Log probability of an interval; see `Mechanism.log_interval`."""
        lower, upper = as_float(lower), as_float(upper)
        zero, one = (lower <= 0) & (upper >= 0), (lower <= 1) & (upper >= 1)
        reached, last = as_float(self.threshold), next_to(self.threshold, self.inner, -1.0)
        return self.inner.log_interval(
            pt.switch(zero, -np.inf, pt.switch(one, reached, np.inf)),
            pt.switch(one, np.inf, pt.switch(zero, last, -np.inf)),
            statistic,
        )

    def __repr__(self) -> str:
        """Return the expression that builds it."""
        return f"{self.inner!r}.thresholded({show(self.parameters[0])})"


def _suppressed_examples() -> Sequence[MechanismExample]:
    laplace, geometric, grid = LaplaceMechanism(2.0), GeometricMechanism(2.0), np.arange(-80, 81)
    decided = geometric.suppressed(below=4, by=GeometricMechanism(1.0), empty=True)
    return [
        MechanismExample(laplace.suppressed(below=4.0), 5.0, pieces=(4.0, 5.0, 85.0)),
        MechanismExample(geometric.suppressed(below=4), 5, atoms=grid[84:]),
        MechanismExample(geometric.suppressed(above=0, below=3), 2, atoms=[*grid[:81], *grid[83:]]),
        MechanismExample(decided, 5, atoms=grid),
    ]


def _thresholded_examples() -> Sequence[MechanismExample]:
    laplace, geometric = LaplaceMechanism(2.0), GeometricMechanism(2.0)
    pairs = (laplace.thresholded(4.0), 5.0), (geometric.thresholded(4), 3)
    return [MechanismExample(mechanism, at, atoms=(0, 1)) for mechanism, at in pairs]


register_mechanism(SuppressedMechanism, examples=_suppressed_examples, how="suppressed")
register_mechanism(ThresholdedMechanism, examples=_thresholded_examples, how="thresholded")
