"""Reading a model: which records were privatized, and what a release says about them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import singledispatch

import numpy as np
import pymc as pm
import pytensor.tensor as pt
from pymc.distributions.transforms import _default_transform
from pymc.logprob.abstract import MeasurableOp
from pytensor.compile.mode import Mode
from pytensor.graph.basic import Constant, Variable
from pytensor.graph.traversal import ancestors, walk
from pytensor.raise_op import Assert
from pytensor.scalar import basic as ps
from pytensor.tensor.basic import Join, MakeVector
from pytensor.tensor.elemwise import DimShuffle, Elemwise
from pytensor.tensor.math import Sum
from pytensor.tensor.random.basic import NormalRV
from pytensor.tensor.random.op import RandomVariable
from pytensor.tensor.shape import Shape, Shape_i
from pytensor.tensor.subtensor import Subtensor
from pytensor.tensor.variable import TensorVariable

from pymc_dp.mechanisms.base import as_float
from pymc_dp.release import PrivateReleaseRV

# Evaluates scalars while a model is being read: nothing worth compiling.
PLAIN_MODE = Mode(linker="py", optimizer=None)


def as_model(model: pm.Model | None, call: str) -> pm.Model:
    """Return the model of the argument or of the context; `call` shows how to pass it."""
    if model is None:
        try:
            return pm.modelcontext(None)
        except TypeError:
            raise TypeError(f"no model: write {call}, or call it within `with model:`") from None
    if not isinstance(model, pm.Model):
        raise TypeError(f"a pm.Model is needed, not a {type(model).__name__}: write {call}")
    return model


def is_tagged(rv: Variable) -> bool:
    """Whether `PrivateObservation` tagged a variable as records that have a step of ours."""
    return isinstance(getattr(rv.tag, "dp_release", None), str)


def is_random(variable: Variable) -> bool:
    """Whether a variable is the direct output of a random variable's op."""
    return variable.owner is not None and isinstance(
        variable.owner.op, RandomVariable | MeasurableOp
    )


def nearest_rvs(expressions: Sequence[Variable]) -> list[Variable]:
    """Return the random variables that the expressions are computed from, not looking past them."""

    def expand(variable):
        if is_random(variable) or variable.owner is None:
            return None
        return variable.owner.inputs

    found = [v for v in walk(expressions, expand, bfs=False) if is_random(v)]
    return list(dict.fromkeys(found))


def depends_on(expression: Variable, variable: Variable) -> bool:
    """Whether `expression` is computed from `variable`, not looking past other RVs."""
    return variable in nearest_rvs([expression])


def is_linear(entry: TensorVariable, rv: TensorVariable) -> bool:
    """Decide linearity by the ops on the way: sums, and products and quotients with constants."""
    if entry is rv or not depends_on(entry, rv):
        return True
    node = entry.owner
    touched = [i for i in node.inputs if depends_on(i, rv)]
    if isinstance(node.op, DimShuffle):
        return is_linear(node.inputs[0], rv)
    if not isinstance(node.op, Elemwise) or not all(is_linear(i, rv) for i in touched):
        return False
    match node.op.scalar_op:
        case ps.Add() | ps.Sub() | ps.Neg() | ps.Identity() | ps.Cast():
            return True
        case ps.Mul():
            return len(touched) == 1
        case ps.TrueDiv():
            return touched == [node.inputs[0]]
    return False


def children(model: pm.Model, rv: TensorVariable) -> list[TensorVariable]:
    """Model variables (random ones and potentials) computed directly from `rv`."""
    found = []
    for other in model.basic_RVs:
        if other is not rv and rv in nearest_rvs(other.owner.inputs):
            found.append(other)
    found += [p for p in model.potentials if depends_on(p, rv)]
    return found


def releases(model: pm.Model) -> list[TensorVariable]:
    """Return the releases of a model, in the order in which they were declared."""
    return [rv for rv in model.basic_RVs if isinstance(rv.owner.op, PrivateReleaseRV)]


@singledispatch
def record_moments(op, rv: TensorVariable) -> tuple[TensorVariable, TensorVariable]:
    """Mean and variance of one record, unbroadcast; dispatched on the record RV's op.

    Register an implementation for a new record law; it is called with the op and the RV.
    """
    raise NotImplementedError(
        f"the records {rv.name!r} follow {op}, whose mean and variance are not registered: "
        "records with Normal(mu, sigma) are supported"
    )


@record_moments.register
def _normal_moments(op: NormalRV, rv):
    # Integer parameters are small integers in the graph, whose powers overflow.
    mu, sigma = (as_float(unbroadcast(p, rv)) for p in op.dist_params(rv.owner))
    return mu, sigma**2


def unbroadcast(parameter: TensorVariable, rv: TensorVariable) -> TensorVariable:
    """Return the scalar that a parameter of identically distributed records repeats."""
    if all(parameter.type.broadcastable):
        node = parameter.owner
        if node is not None and isinstance(node.op, DimShuffle) and node.inputs[0].type.ndim == 0:
            return node.inputs[0]
        return parameter.squeeze() if parameter.type.ndim else parameter
    raise ValueError(
        f"the records {rv.name!r} are not identically distributed: one of the parameters has "
        f"{parameter.type.ndim} dimension(s). Write one scalar mean and one scalar spread for all "
        f"of {rv.name!r}, or sample on the records"
    )


def record_count(rv: TensorVariable) -> int:
    """Return the number of records, without drawing any."""
    if rv.type.ndim != 1:
        raise ValueError(
            f"the records {rv.name!r} have {rv.type.ndim} dimensions; a vector is needed: write "
            f"shape=n (one record per entry)"
        )
    if rv.type.shape[0] is not None:
        return int(rv.type.shape[0])
    size = rv.owner.op.size_param(rv.owner)
    try:
        return int(size.eval(mode=PLAIN_MODE)[0])
    except (AttributeError, TypeError, IndexError):
        raise ValueError(
            f"the number of records {rv.name!r} is not known: give {rv.name!r} a shape= or dims="
        ) from None


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


class NotLinearError(ValueError):
    """A statistic that is not linear in the sample mean and variance; says which op broke it."""


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
        raise NotLinearError(
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
        if isinstance(variable, Constant):
            return np.asarray(variable.data)
        if all(isinstance(v, Constant) for v in ancestors([variable]) if v.owner is None):
            return np.asarray(variable.eval(mode=PLAIN_MODE))
        return self.fail(
            variable, f"`{variable}` in it is neither a number nor computed from the records"
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
        if isinstance(scalar_op, ps.Cast | ps.Identity):
            return values[0]
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
        return value * factor if isinstance(value, np.ndarray) else value.scaled(factor)

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
    NotLinearError
        Naming the op that makes it something else.
    """
    return _Reader(records, n).components(statistic)


@dataclass(frozen=True)
class LinearRelease:
    """One release of a mean, sum or variance, as found in a model."""

    rv: TensorVariable
    components: tuple[LinearStatistic, ...]

    @property
    def op(self) -> PrivateReleaseRV:
        """The release's op."""
        return self.rv.owner.op

    @property
    def name(self) -> str:
        """The release's name."""
        return self.rv.name

    @property
    def parameters(self) -> list[TensorVariable]:
        """The mechanism's parameters in this graph."""
        return list(self.rv.owner.inputs[2 : 2 + len(self.op.mechanism.parameters)])


@dataclass(frozen=True)
class PrivatizedRecords:
    """Identically distributed records with every release of them, as found in a model."""

    rv: TensorVariable
    n: int
    mean: TensorVariable
    variance: TensorVariable
    releases: tuple[LinearRelease, ...]

    @property
    def name(self) -> str:
        """The records' name."""
        return self.rv.name

    @property
    def bounds(self) -> tuple[float, float] | None:
        """Publicly known bounds of the records."""
        return next((r.op.bounds for r in self.releases if r.op.bounds is not None), None)

    @property
    def uses_mean(self) -> bool:
        """Whether some release depends on the sample mean."""
        return any(c.mean for r in self.releases for c in r.components)

    @property
    def uses_variance(self) -> bool:
        """Whether some release depends on the sample variance."""
        return any(c.variance for r in self.releases for c in r.components)


def release_statistic(release: TensorVariable) -> TensorVariable:
    """Return the confidential statistic that a release adds noise to."""
    return release.owner.inputs[1]


def read_records(
    model: pm.Model, records: TensorVariable, pending: Sequence[TensorVariable] = ()
) -> PrivatizedRecords:
    """Read records and all of their releases; errors name what cannot be read.

    `pending` are further releases that are not registered with the model yet.
    """
    check_transform(model, records)
    n = record_count(records)
    mean, variance = record_moments(records.owner.op, records)
    found = []
    for release in [*releases(model), *pending]:
        if not depends_on(release_statistic(release), records):
            continue
        others = [rv for rv in nearest_rvs([release_statistic(release)]) if rv is not records]
        if others:
            raise NotLinearError(
                f"the release {release.name!r} mixes the records {records.name!r} with "
                f"{', '.join(repr(o.name) for o in others)}"
            )
        try:
            components = linear_statistics(release_statistic(release), records, n)
        except NotLinearError as error:
            raise NotLinearError(
                f"the statistic of the release {release.name!r}: {error}"
            ) from None
        found.append(LinearRelease(release, tuple(components)))
    return PrivatizedRecords(records, n, mean, variance, tuple(found))


def check_transform(model: pm.Model, rv: TensorVariable) -> None:
    """Refuse a transform that the user put on a variable: it may cut the variable's support."""
    actual = model.rvs_to_transforms.get(rv)
    default = _default_transform(rv.owner.op, rv)
    if actual is not None and type(actual) is not type(default):
        raise NotImplementedError(
            f"{rv.name!r} has the transform {type(actual).__name__}, which is not its default one "
            f"and may cut its support: leave transform= out, and state the support by the "
            f"distribution (pm.Uniform, pm.Truncated)"
        )


def privatized(model: pm.Model) -> list[TensorVariable]:
    """Return the vectors of records that feed some release, in model order."""
    feeding = nearest_rvs([release_statistic(r) for r in releases(model)])
    return [rv for rv in model.free_RVs if rv in feeding and rv.type.ndim > 0]
