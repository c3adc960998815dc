"""Reading a statistic as a linear function of the sample mean and variance."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pytensor.tensor as pt
from pytensor.graph.basic import Variable
from pytensor.graph.traversal import ancestors
from pytensor.raise_op import Assert
from pytensor.scalar import basic as ps
from pytensor.tensor.basic import Join, MakeVector
from pytensor.tensor.elemwise import DimShuffle, Elemwise
from pytensor.tensor.math import Sum
from pytensor.tensor.shape import Shape, Shape_i
from pytensor.tensor.subtensor import Subtensor
from pytensor.tensor.variable import TensorVariable

from pymc_dp.graphs.declined import Declined
from pymc_dp.graphs.questions import keeps_values, known_value


def _sum(a: float, b: float) -> float:
    """Add coefficients; what cancels but for rounding is zero."""
    total = a + b
    return 0.0 if abs(total) <= 1e-13 * max(abs(a), abs(b)) else total


@dataclass(frozen=True)
class LinearStatistic:
    """``constant + mean * (sample mean) + variance * (sample variance, ddof=1)``."""

    constant: float = 0.0
    mean: float = 0.0
    variance: float = 0.0

    def __add__(self, other: LinearStatistic) -> LinearStatistic:
        """Add two statistics of the same records."""
        return LinearStatistic(
            _sum(self.constant, other.constant),
            _sum(self.mean, other.mean),
            _sum(self.variance, other.variance),
        )

    def scaled(self, factor: float) -> LinearStatistic:
        """Multiply by a number."""
        return LinearStatistic(factor * self.constant, factor * self.mean, factor * self.variance)

    @property
    def is_constant(self) -> bool:
        """Whether it does not depend on the records."""
        return self.mean == 0.0 and self.variance == 0.0

    def expression(self, mean, variance) -> TensorVariable:
        """Write it in terms of a sample mean and a sample variance."""
        terms = [
            term if factor == 1.0 else factor * term
            for factor, term in ((self.mean, mean), (self.variance, variance))
            if factor != 0.0
        ]
        if self.constant != 0.0 or not terms:
            terms.append(pt.constant(self.constant))
        return sum(terms[1:], start=terms[0])


@dataclass(frozen=True)
class _PerRecord:
    """Per-record value ``level + slope (x - mean) + square (x - mean)^2``."""

    level: LinearStatistic
    slope: float = 0.0
    square: float = 0.0

    def scaled(self, factor: float) -> _PerRecord:
        return _PerRecord(self.level.scaled(factor), factor * self.slope, factor * self.square)


class TooFewRecordsError(ValueError):
    """A variance of fewer than two records."""


_Value = LinearStatistic | _PerRecord | np.ndarray | list


class _Reader:
    """Abstract interpretation of a statistic's graph as a linear function of (mean, variance)."""

    def __init__(self, records: TensorVariable, n: int):
        self.records, self.n = records, n
        self.memo: dict[Variable, _Value] = {records: _PerRecord(LinearStatistic(mean=1.0), 1.0)}

    def read(self, variable: Variable) -> _Value:
        if variable not in self.memo:
            self.memo[variable] = self._read(variable)
        return self.memo[variable]

    def fail(self, variable: Variable, why: str | None = None):
        op = variable.owner.op if variable.owner else variable
        op = getattr(op, "scalar_op", op)
        name = getattr(op, "name", None) or type(op).__name__
        raise Declined(
            why or f"`{name}` makes it something else than a sum, mean or variance of the records"
        )

    def _read(self, variable: Variable) -> _Value:
        if not self._touches(variable):
            return self._public(variable)
        op, inputs = variable.owner.op, variable.owner.inputs
        match op:
            case Shape():
                if isinstance(self.read(inputs[0]), _PerRecord):
                    return np.array([self.n])
            case Shape_i():
                if isinstance(self.read(inputs[0]), _PerRecord):
                    return np.asarray(self.n)
            case Subtensor():
                base = self.read(inputs[0])
                index = [self._public(i) for i in inputs[1:]]
                if isinstance(base, np.ndarray) and len(index) <= 1:
                    return np.asarray(base[int(index[0])] if index else base[op.idx_list[0]])
            case DimShuffle():
                value = self.read(inputs[0])
                kept = [i for i in op.new_order if i != "x"]
                if isinstance(value, LinearStatistic) or (
                    isinstance(value, _PerRecord) and kept == [0] and variable.type.ndim == 1
                ):
                    return value
                if isinstance(value, np.ndarray):
                    return value.reshape(())
                if isinstance(value, list) and kept == sorted(kept) and op.new_order[-1] != "x":
                    return value  # further axes in front
            case Sum():
                value = self.read(inputs[0])
                if isinstance(value, LinearStatistic):  # a sum over an expanded axis of length 1
                    return value
                if isinstance(value, _PerRecord):
                    if value.square != 0.0 and self.n < 2:
                        raise TooFewRecordsError(
                            f"a variance needs n >= 2 records; {self.records.name!r} has {self.n}"
                        )
                    # sum (x - mean) = 0 and sum (x - mean)^2 = (n - 1) S^2
                    return value.level.scaled(self.n) + LinearStatistic(
                        variance=value.square * (self.n - 1)
                    )
            case MakeVector() | Join(axis=0):
                return [component for part in inputs for component in self.components(part)]
            case Elemwise():
                return self._elemwise(variable, op.scalar_op, [self.read(i) for i in inputs])
            case Assert():
                return self.read(inputs[0])
        return self.fail(variable)

    def _touches(self, variable: Variable) -> bool:
        return self.records in ancestors([variable], blockers=[self.records])

    def _public(self, variable: Variable) -> np.ndarray:
        value = known_value(variable, fixed=True)
        if value is not None:
            return value
        return self.fail(
            variable,
            f"`{variable}` in it is neither a number nor computed from the records: "
            f"write a number, or sample with the records",
        )

    def components(self, variable: Variable) -> list[LinearStatistic]:
        value = self.read(variable)
        if isinstance(value, list):
            return value
        if isinstance(value, np.ndarray):
            return [LinearStatistic(float(v)) for v in value.ravel()]
        if isinstance(value, LinearStatistic):
            return [value]
        return self.fail(variable, "it still has one value per record")

    def _elemwise(self, variable, scalar_op, values) -> _Value:
        if keeps_values(scalar_op, variable.owner.inputs[0]):
            return values[0]
        if isinstance(scalar_op, ps.Cast):
            if isinstance(values[0], np.ndarray):
                return values[0].astype(scalar_op.o_type.dtype)
            return self.fail(variable, f"`{variable}` in it rounds, wraps or compares values")
        if any(isinstance(v, list) for v in values):
            return self._vector_elemwise(variable, scalar_op, values)
        if all(isinstance(v, np.ndarray) for v in values):
            return np.asarray(scalar_op.impl(*(v.item() for v in values)))
        factors = [v.item() if isinstance(v, np.ndarray) and v.size == 1 else None for v in values]
        match scalar_op:
            case ps.Neg():
                return values[0].scaled(-1.0)
            case ps.Add():
                total = values[0]
                for other in values[1:]:
                    total = self._add(variable, total, other)
                return total
            case ps.Sub():
                return self._add(variable, values[0], self._scale(variable, values[1], -1.0))
            case ps.Mul() if sum(f is None for f in factors) == 1:
                [value] = [v for v, f in zip(values, factors, strict=True) if f is None]
                return value.scaled(float(np.prod([f for f in factors if f is not None])))
            case ps.Mul() if _is_square(values):
                return self._square(variable, values[0])
            case ps.TrueDiv() if factors[1] is not None:
                return values[0].scaled(1.0 / factors[1])
            case ps.Sqr():
                return self._square(variable, values[0])
            case ps.Pow() if factors[1] == 2:
                return self._square(variable, values[0])
        return self.fail(variable)

    def _vector_elemwise(self, variable, scalar_op, values) -> list[LinearStatistic]:
        """Element by element on a stack of statistics, broadcasting numbers."""
        length = max(len(v) for v in values if isinstance(v, list))
        columns = []
        for value in values:
            if isinstance(value, np.ndarray) and value.size == length:
                columns.append([np.asarray(entry) for entry in value.ravel()])
            elif isinstance(value, list):
                columns.append([np.asarray(v.constant) if v.is_constant else v for v in value])
            else:
                columns.append([value] * length)
        rows = [
            self._elemwise(variable, scalar_op, list(row)) for row in zip(*columns, strict=True)
        ]
        return [
            LinearStatistic(float(r)) if isinstance(r, np.ndarray) else self._entry(variable, r)
            for r in rows
        ]

    def _entry(self, variable, value) -> LinearStatistic:
        return value if isinstance(value, LinearStatistic) else self.fail(variable)

    def _scale(self, variable, value, factor: float):
        if isinstance(value, np.ndarray):
            return np.asarray(value * factor)  # an array of no axes times a number is none
        return value.scaled(factor)

    def _add(self, variable, left, right):
        pair = [
            LinearStatistic(float(v.item())) if isinstance(v, np.ndarray) and v.size == 1 else v
            for v in (left, right)
        ]
        if any(isinstance(v, np.ndarray) for v in pair):
            return self.fail(variable, "it combines the records with a vector of numbers")
        if all(isinstance(v, LinearStatistic) for v in pair):
            return pair[0] + pair[1]
        a, b = (v if isinstance(v, _PerRecord) else _PerRecord(v) for v in pair)
        return _PerRecord(a.level + b.level, _sum(a.slope, b.slope), _sum(a.square, b.square))

    def _square(self, variable, value) -> _PerRecord:
        if not isinstance(value, _PerRecord) or value.square != 0.0 or not value.level.is_constant:
            return self.fail(
                variable,
                "it squares something else than the deviations from the mean "
                "(write records.var(ddof=1))",
            )
        c = value.level.constant
        return _PerRecord(LinearStatistic(c * c), 2 * c * value.slope, value.slope**2)


def _is_square(values: list[_Value]) -> bool:
    return (
        len(values) == 2
        and all(isinstance(v, _PerRecord) for v in values)
        and values[0] == values[1]
    )


def linear_statistics(
    statistic: TensorVariable, records: TensorVariable, n: int
) -> list[LinearStatistic]:
    """Read a statistic as linear functions of the sample mean and variance of `records`.

    Raises
    ------
    Declined
        Naming the op that makes it something else.
    """
    return _Reader(records, n).components(statistic)
