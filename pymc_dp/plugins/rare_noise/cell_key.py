"""Counts that are changed by a table of probabilities, as statistical offices perturb cells."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np
import pytensor.tensor as pt
from pytensor.raise_op import Assert

from pymc_dp.graphs.ops import KernelOp
from pymc_dp.kernels import joined, key_of, part
from pymc_dp.mechanisms.arguments import as_float, just_met, nan_outside_unit, probability_rows
from pymc_dp.mechanisms.base import Mechanism
from pymc_dp.mechanisms.registry import MechanismExample, register_mechanism

if TYPE_CHECKING:
    from numpy.typing import ArrayLike
    from pytensor.graph.basic import Variable
    from pytensor.tensor import TensorLike
    from pytensor.tensor.variable import TensorVariable


@dataclass(frozen=True, eq=False, repr=False)
class CellKey(Mechanism):
    r"""Release a count that was changed by a whole number, by a table of probabilities: cell keys.

    Row c of the table p has the probabilities of the changes :math:`-D, \ldots, D` of a count c; of
    its R rows the last is for all larger counts, too:

    .. math::

        P(z \mid s) = p_{\min(s, R - 1),\; z - s + D}, \qquad |z - s| \le D, \; s \ge 0.

    A cell key is a number that belongs to the members of a cell, and picks its change [1]_. Cells
    with the same members have the same change: release such a cell once. It is not differentially
    private.

    ========  ====================================================
    Support   whole numbers :math:`z \ge 0`, :math:`|z - s| \le D`
    Mean      :math:`s`, where the changes of each row have mean 0
    ========  ====================================================

    Parameters
    ----------
    probabilities : array_like
        Matrix of shape (R, 2 D + 1). Its rows add up to one, and no count becomes negative.

    Raises
    ------
    ValueError
        Another shape, entries that are no probabilities, a row that does not add up to one, or one
        by which a count becomes negative.

    References
    ----------
    .. [1] G. Thompson, S. Broadfoot, D. Elazar (2013). Methodology for the automatic
       confidentialisation of statistical outputs from remote servers at the Australian Bureau of
       Statistics. UNECE Work Session on Statistical Data Confidentiality.

    Examples
    --------
    A zero stays, and a one is never published:

    >>> import numpy as np
    >>> import pymc_dp as dp
    >>> noise = dp.CellKey([
    ...     [0, 0, 1, 0, 0],  # changes by -2, ..., 2 of a zero
    ...     [0, 0.6, 0, 0.2, 0.2],  # of a one
    ...     [0.1, 0, 0.7, 0.2, 0],  # of all larger counts
    ... ])
    >>> np.exp(noise.logp([0, 1, 2, 3], 1).eval()).round(4)
    array([0.6, 0. , 0.2, 0.2])
    """

    probabilities: ArrayLike

    def __post_init__(self) -> None:
        """Validate the table and keep it."""
        name = "CellKey: probabilities"
        table = probability_rows(
            name, self.probabilities, "the probabilities of all changes of a count of {}", least=1
        )
        rows, width = table.shape
        if width % 2 == 0:
            raise ValueError(
                f"{name} has {width} columns: write one for each of the changes -D, ..., D"
            )
        count, column = np.nonzero(table)
        negative = np.flatnonzero(count + column < width // 2)
        if negative.size:
            s, change = count[negative[0]], column[negative[0]] - width // 2
            raise ValueError(
                f"{name}: a count of {s} changes by {change} with probability "
                f"{table[s, change + width // 2]:g}, and no result is negative: row {s} is for "
                f"{'counts from' if s == rows - 1 else 'a count of'} {s} on, columns are the "
                f"changes {-(width // 2)}, ..., {width // 2}"
            )
        object.__setattr__(self, "probabilities", table)

    @property
    def spacing(self) -> float:
        """Distance between neighbouring counts."""
        return 1.0

    @property
    def takes_whole(self) -> bool:
        """See `Mechanism.takes_whole`."""
        return True

    @property
    def _table(self) -> np.ndarray:
        return np.asarray(self.probabilities)

    @property
    def most(self) -> int:
        """The largest change D that the table has a column for."""
        return self._table.shape[1] // 2

    def kinks(self, value: TensorLike) -> Sequence[TensorVariable]:
        """Return the ends of the counts that lead to a release; see `Mechanism.kinks`."""
        z = as_float(value)
        return [pt.maximum(z - self.most, 0.0), z + self.most]

    def noise_sample(self, rng: Variable, statistic: TensorLike) -> tuple[Variable, TensorVariable]:
        """Draw one release; see `Mechanism.noise_sample`. A statistic must be a count."""
        s = as_float(statistic)
        s = Assert("CellKey: the statistic must be a count")(s, pt.all(_is_count(s)))
        changes = pt.constant(self._table)[self._row(s)]
        rng, column = pt.random.categorical(changes, rng=rng, return_next_rng=True)
        return rng, s.astype("int64") + column - self.most

    def logp(self, value: TensorLike, statistic: TensorLike = 0.0) -> TensorVariable:
        """Log mass of a release; see `Mechanism.logp`."""
        return _log(Mass(self._table).on(value, statistic))

    def log_interval(
        self, lower: TensorLike, upper: TensorLike, statistic: TensorLike = 0.0
    ) -> TensorVariable:
        """Log probability of the counts in an interval; see `Mechanism.log_interval`."""
        low, high, s = (pt.shape_padright(as_float(v)) for v in (lower, upper, statistic))
        z = s + np.arange(-self.most, self.most + 1.0)
        inside = (z >= low) & (z <= high) & _is_count(s)
        changes = pt.constant(self._table)[self._row(as_float(statistic))]
        return _log(pt.switch(inside, changes, 0.0).sum(axis=-1))

    def icdf(self, p: TensorLike, statistic: TensorLike = 0.0) -> TensorVariable:
        """Quantile function; see `Mechanism.icdf`."""
        p, s = as_float(p), as_float(statistic)
        changes = np.arange(-self.most, self.most)
        below = self.logcdf(pt.shape_padright(s) + changes, pt.shape_padright(s))
        column = pt.sum(below < pt.shape_padright(just_met(p)), axis=-1)
        quantile = pt.switch(_is_count(s), s + column - self.most, np.nan)
        return nan_outside_unit(quantile, p)

    def typical_statistic(self, value: TensorLike) -> TensorVariable:
        """Return the count that leads to a release with the largest probability."""
        z, (rows, most) = as_float(value), (len(self._table), self.most)
        likeliest = []
        for released in range(rows + most):  # those beyond come from counts of the last row
            s = np.arange(max(released - most, 0), released + most + 1)
            mass = self._table[np.minimum(s, rows - 1), released - s + most]
            likeliest.append(s[mass.argmax()] - released)
        known = pt.switch(_is_count(z), pt.minimum(z, rows + most - 1), 0.0).astype("int64")
        return z + pt.constant(np.array(likeliest, dtype="float64"))[known]

    def why_unattainable(self, value: float) -> str:
        """See `Mechanism.why_unattainable`."""
        if value < 0 or value != np.round(value):
            return "it publishes counts, which are whole and not negative"
        return "by its table no count becomes this one: check the table, and the order of its rows"

    def support_point(self, statistic: TensorLike) -> TensorVariable:
        """Return the statistic with its likeliest change; see `ReleaseLaw.support_point`."""
        change = self._table.argmax(axis=1) - self.most
        s = as_float(statistic)
        return s + pt.constant(change.astype("float64"))[self._row(s)]

    def _row(self, s: TensorVariable) -> TensorVariable:
        last = len(self._table) - 1.0
        return pt.switch(s >= 0, pt.minimum(s, last), 0.0).astype("int64")

    def __repr__(self) -> str:
        """Return the expression that builds it."""
        return f"CellKey({self._table.tolist()})"


def make_mass(table: np.ndarray) -> Callable:
    """Make ``(z, s)`` to the probability of a release."""
    last, most = len(table) - 1, table.shape[1] // 2

    def mass(z, s):
        if not (0.0 <= s < np.inf and s == np.floor(s) and abs(z - s) <= most and z == np.floor(z)):
            return 0.0
        return table[int(min(s, last)), int(z - s) + most]

    return mass


class Mass(KernelOp):
    """Probability of a release: an elementwise op, so that readers of sums over records take it."""

    nin = fixed = 2

    def __init__(self, table: np.ndarray):
        self.table, self.bytes, self.shape = table, table.tobytes(), table.shape
        super().__init__(name="cell_key")

    @cached_property
    def kernel(self):  # type: ignore[override]
        """The compiled look-up."""
        return part(make_mass(self.table))

    @property
    def key(self) -> str | None:
        """See `KernelOp.key`."""
        return joined(key_of(make_mass), self.bytes.hex(), self.shape)

    def impl(self, *inputs):
        """Look up without compiled code."""
        return make_mass(self.table)(*inputs)

    def pullback(self, inputs, outputs, output_gradients):
        """Return zeros: it is constant between whole numbers."""
        return [x.zeros_like(dtype="float64") for x in inputs]

    def __reduce__(self):
        """Pickle the table: other processes cannot load compiled code."""
        return Mass, (self.table,)

    def __eq__(self, other):
        """Compare the tables."""
        return type(other) is Mass and (self.shape, self.bytes) == (other.shape, other.bytes)

    def __hash__(self):
        """Hash the table."""
        return hash((self.shape, self.bytes))


def _is_count(x: TensorVariable) -> TensorVariable:
    return (x >= 0) & pt.eq(x, pt.floor(x)) & (x < np.inf)


def _log(mass: TensorVariable) -> TensorVariable:
    some = mass > 0
    return pt.switch(some, pt.log(pt.switch(some, mass, 1.0)), -np.inf)


def _examples() -> Sequence[MechanismExample]:
    kept = CellKey([[0.0, 1.0, 0.0], [0.3, 0.4, 0.3]])
    small = CellKey([
        [0.0, 0.0, 1.0, 0.0, 0.0],
        [0.0, 0.6, 0.0, 0.2, 0.2],
        [0.1, 0.0, 0.7, 0.2, 0.0],
        [0.05, 0.25, 0.4, 0.25, 0.05],
    ])  # fmt: skip
    return [
        MechanismExample(kept, 4, atoms=(3, 4, 5), smooth_in_statistic=False),
        MechanismExample(small, 1, atoms=(0, 2, 3), smooth_in_statistic=False),
        MechanismExample(small, 7, atoms=range(5, 10), smooth_in_statistic=False),
    ]


register_mechanism(CellKey, examples=_examples)
