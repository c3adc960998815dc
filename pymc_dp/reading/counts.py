"""Statistics of records with finitely many values, as functions of the values' counts."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import cached_property

import numpy as np
import pytensor.tensor as pt
from pytensor import scalar as ps
from pytensor.graph.basic import Constant, Variable
from pytensor.graph.replace import clone_replace
from pytensor.graph.traversal import ancestors, graph_inputs
from pytensor.scalar.basic import ScalarVariable
from pytensor.tensor.subtensor import AdvancedSubtensor, Subtensor
from pytensor.tensor.variable import TensorVariable

from pymc_dp.graphs.declined import Declined
from pymc_dp.graphs.shapes import known_shape
from pymc_dp.graphs.values import depends_on, known_value
from pymc_dp.reading.sums import Additive, additive, column_vectors

_MOST_STATISTIC_ENTRIES = 4096

# Counts that are tried one by one, where the noise is not known to be log-concave in them.
MOST_LISTED = 100_000

# Distance between neighbouring possible counts: a draw walks through the counts between them.
MOST_APART = 1000
_ROUNDING = 2.0**-44  # relative error of coefficients


@dataclass(frozen=True)
class CountStatistic:
    """A statistic ``outer(values @ counts)`` of how often each value occurs.

    Attributes
    ----------
    values : array (sums, cells): the additive maps, evaluated at the values of a record.
    form : the statistic as a function of its sums, the rows of ``values @ counts``.
    public : the numbers of the public scalars in `form`.
    """

    values: np.ndarray
    form: Additive
    public: dict[ScalarVariable, float]

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of the statistic."""
        return self.form.entries.shape

    @cached_property
    def affine(self) -> tuple[np.ndarray, np.ndarray] | None:
        """Slopes (entries, cells) and constants, if all entries are linear in the counts."""
        try:
            entries = self.form.affine(self.public)
        except Declined:
            return None
        rows = [[linear.get(s, 0.0) for s in self.form.sums] for _, linear in entries]
        slopes = np.array(rows, dtype="float64").reshape(len(entries), len(self.form.sums))
        return slopes @ self.values, np.array([offset for offset, _ in entries], dtype="float64")

    def of(self, counts: TensorVariable) -> TensorVariable:
        """Write the statistic in terms of counts, whose last axis is that of the cells."""
        batch = counts.type.ndim - 1
        if self.affine is not None:
            slopes, constants = self.affine
            identity = np.array_equal(slopes, np.eye(self.values.shape[1]))
            flat = counts if identity else pt.dot(counts, slopes.T)
            if constants.any():
                flat = flat + constants
        else:
            sums = pt.dot(counts, self.values.T)
            known = {scalar: pt.constant(number) for scalar, number in self.public.items()}
            known |= {scalar: sums[..., i] for i, scalar in enumerate(self.form.sums)}
            parts = self.form.at(known)
            flat = pt.stack(pt.broadcast_arrays(*parts, counts[..., 0])[:-1], axis=-1)
        if len(self.shape) == 1:
            return flat
        return flat.reshape((*(counts.shape[i] for i in range(batch)), *self.shape))

    def of_binary(self, ones: TensorVariable, n: int) -> TensorVariable:
        """Write the statistic of n binary records in terms of the number of ones (any shape)."""
        if self.affine is None:
            return self.of(pt.stack([n - ones, ones], axis=-1))
        slopes, constants = self.affine
        start = (constants + n * slopes[:, 0]).reshape(self.shape)
        slope = (slopes[:, 1] - slopes[:, 0]).reshape(self.shape)
        ones = ones.dimshuffle(*range(ones.type.ndim), *["x"] * len(self.shape))
        scaled = ones if np.all(slope == 1.0) and slope.size == 1 else slope * ones
        return scaled + start if start.any() else scaled


def possible_counts(slope: float, constant: float) -> tuple[int, int] | None:
    """Return (step, rest): ``slope * y + constant`` is whole only for y = rest + step k.

    The slope has to be a ratio of whole numbers, up to rounding, such as 1 / n in a mean of n. None
    if it is not, if `step` would exceed `MOST_APART`, or if no count y is possible.
    """
    ratio = Fraction(slope).limit_denominator(MOST_APART)
    step, shift = ratio.denominator, round(constant * ratio.denominator)
    near = abs(slope - float(ratio)) <= _ROUNDING * abs(slope)
    near &= abs(constant - shift / step) <= _ROUNDING * max(1.0, abs(constant))
    return (step, -shift * pow(ratio.numerator, -1, step) % step) if near else None


def read_counts(
    statistic: TensorVariable,
    records: TensorVariable,
    n: int,
    cells: int,
    column: int = 0,
    codes: np.ndarray | None = None,
) -> CountStatistic:
    """Read a statistic of records with values 0, ..., cells - 1 as a function of their counts.

    Nothing of size n is evaluated. `column` is the number of the records' column that is released;
    `codes` are the records' values, if they are not 0, ..., cells - 1.

    Raises
    ------
    Declined
        Naming an op that no function of sums over the records has, or a sum that depends on the
        records' positions or on data that can change, or is not finite.
    """
    codes = np.arange(cells) if codes is None else codes
    if n == 1:
        return _of_one_record(statistic, records, codes, column)
    _check_positions(statistic, records)
    size = math.prod(1 if length is None else length for length in statistic.type.shape)
    if size > _MOST_STATISTIC_ENTRIES:
        raise Declined(
            f"it has {size} entries; a function of counts has at most {_MOST_STATISTIC_ENTRIES}"
        )
    reading = additive(statistic, {records: n})
    # Each value twice, at a length other than n, to see whether positions are used.
    codes = np.tile(codes, 3 if 2 * cells == n else 2)
    of_values = pt.constant(codes.astype(records.dtype))
    inputs = {v: of_values for v, j in column_vectors(reading.maps, records).items() if j == column}
    inputs[reading.centers] = pt.constant(np.zeros(len(reading.columns)))
    values = np.array([_values(m, inputs, codes.size, cells) for m in reading.maps])
    public = {scalar: float(_number(graph, inputs)) for scalar, graph in reading.public}
    form = replace(reading, maps=(), public=(), columns=())  # holds no variables of the model
    return CountStatistic(values.reshape(len(reading.maps), cells), form, public)


def _of_one_record(statistic, records, codes, column) -> CountStatistic:
    """Read a statistic of one record, which is linear in indicators of the record's value."""
    width, cells = known_shape(records)[1:], len(codes)

    def of_value(k: float) -> np.ndarray:
        record = np.zeros((1, *(int(w or 1) for w in width)), dtype=records.dtype)
        record[..., column] = k
        return _number(statistic, {records: pt.constant(record)})

    by_value = np.array([of_value(k) for k in codes])
    values = by_value.reshape(cells, -1).T
    if not np.all(np.isfinite(values)):
        raise Declined(f"it is not finite for records of some value: {values}")
    sums = tuple(ps.float64(f"s{i}") for i in range(values.shape[0]))
    entries = np.empty(by_value.shape[1:], dtype=object)
    entries.flat = sums
    return CountStatistic(values, Additive((), sums, entries, (), pt.dvector(), ()), {})


def _check_positions(statistic: TensorVariable, records: TensorVariable) -> None:
    """Decline an index that drops the records' axis, before anything of its length is built."""
    length = records.type.shape[0]
    for variable in ancestors([statistic], blockers=[records]):
        node = variable.owner
        if node is None or not isinstance(node.op, Subtensor | AdvancedSubtensor):
            continue
        per_record = depends_on(node.inputs[0], records) and length in node.inputs[0].type.shape
        if per_record and length not in variable.type.shape:
            raise Declined("it takes some of the records by their position")


def _changeable(graph: Variable) -> list[Variable]:
    return [v for v in graph_inputs([graph]) if not isinstance(v, Constant)]


def _number(graph: TensorVariable, inputs: dict) -> np.ndarray:
    replaced = clone_replace(graph, inputs, rebuild_strict=False)
    value = known_value(replaced, fixed=True)
    if value is None:
        raise Declined(
            f"`{_changeable(replaced)[0]}` in it is neither a number nor computed from the "
            f"records: write a number, or sample with the records"
        )
    return value.astype("float64")


def _values(graph: TensorVariable, inputs: dict, length: int, cells: int) -> np.ndarray:
    """Evaluate a map over the records at each of their values."""
    try:
        rounds = np.broadcast_to(_number(graph, inputs), (length,)).reshape(-1, cells)
    except Declined:
        raise
    except Exception:  # shapes that do not fit: the map has an entry for each record
        rounds = np.array([[0.0], [1.0]])
    if not np.array_equal(rounds[0], rounds[1], equal_nan=True):
        raise Declined("it does not treat all records alike")
    if not np.all(np.isfinite(rounds[0])):
        raise Declined(f"it is not finite for records of some value: {rounds[0]}")
    return rounds[0]


def is_concave(points: np.ndarray, values: np.ndarray) -> bool:
    """Whether the values at increasing points lie on a concave function, up to rounding.

    Minus infinity is allowed at both ends.
    """
    finite = np.flatnonzero(np.isfinite(values))
    if finite.size == 0 or np.any(np.isnan(values) | np.isposinf(values)):
        return False
    inside = slice(finite[0], finite[-1] + 1)
    x, y = points[inside], values[inside]
    if not np.all(np.isfinite(y)):
        return False
    share = (x[1:-1] - x[:-2]) / (x[2:] - x[:-2])
    chord = y[:-2] * (1.0 - share) + y[2:] * share
    size = np.abs(y[:-2]) + np.abs(y[1:-1]) + np.abs(y[2:])
    return bool(np.all(y[1:-1] >= chord - 1e-12 * (1.0 + size)))


def probes(n: int, log_density) -> tuple[np.ndarray, np.ndarray]:
    """Evaluate a function of a count at points of all scales around its maximum on 0, ..., n."""
    points = np.unique(np.linspace(0, n, 65).round())
    for _ in range(4):  # zoom in on the maximum
        best = points[np.argmax(log_density(points))]
        steps = np.concatenate([[0.0], 2.0 ** np.arange(np.ceil(np.log2(n + 1.0)))])
        around = np.concatenate([best - steps, best + steps])
        around = around[(around >= 0) & (around <= n)]
        if np.isin(around, points).all():
            break
        points = np.union1d(points, around)
    return points, log_density(points)
