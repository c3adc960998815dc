r"""What each record contributes to a sum :math:`\sum_i h(x_i)`, and where h is not smooth."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import numpy as np
import pymc as pm
import pytensor.tensor as pt
from pymc.distributions.distribution import _support_point
from pytensor import scalar as ps
from pytensor.graph.basic import Constant, Variable
from pytensor.graph.replace import clone_replace, graph_replace
from pytensor.graph.rewriting.utils import rewrite_graph
from pytensor.graph.traversal import ancestors
from pytensor.raise_op import CheckAndRaise
from pytensor.tensor.elemwise import DimShuffle, Elemwise
from pytensor.tensor.shape import SpecifyShape
from pytensor.tensor.subtensor import AdvancedSubtensor
from pytensor.tensor.variable import TensorVariable
from scipy.special import ndtr

from pymc_dp.graphs.declined import Declined
from pymc_dp.graphs.linear import linear_map
from pymc_dp.graphs.values import known_value, read_cast
from pymc_dp.laws.inverse import COMPARISONS, solved
from pymc_dp.laws.parts import parts_of
from pymc_dp.mechanisms.base import Mechanism, has_kink
from pymc_dp.plugins.inversion.kernels.draws import draw_sum
from pymc_dp.plugins.inversion.quadrature import (
    law_of_sum,
    log_density_of_sum,
    noise_parts,
    panel_counts,
)
from pymc_dp.reading.record_sums import sum_of_first
from pymc_dp.reading.statistic import stand_in_records
from pymc_dp.reading.sums import additive, column_vectors

# Functions that are smooth in all of their arguments: more may be added.
SMOOTH_FUNCTIONS: set[type] = {
    ps.Add, ps.Sub, ps.Neg, ps.Mul, ps.Sqr, ps.Exp, ps.Expm1, ps.Identity, ps.Second, ps.Sin,
    ps.Cos, ps.Tanh, ps.ArcTan, ps.math.Sigmoid, ps.math.Softplus, ps.math.Erf,
}  # fmt: skip
# Levels of quantiles, and their shares, that approximate the moments of a record: those of a Normal
# law at equal distances, so that a bound far out in a tail is met. A jump between two levels is
# placed wrongly by at most one share, 2% in the middle.
_SCORES = np.linspace(-5.0, 5.0, 200)
_QUANTILES, _SHARES = ndtr(_SCORES), np.exp(-0.5 * _SCORES**2)
_SHARES = _SHARES / _SHARES.sum()
_EXTREMES = (ps.Maximum, ps.Minimum)
_LOGICAL = (ps.AND, ps.OR, ps.XOR, ps.Invert)
_SINGULAR_AT_ZERO = (ps.Log, ps.Log2, ps.Log10, ps.Sqrt, ps.Reciprocal)


@dataclass(frozen=True)
class Summand:
    """The contribution of each record to a sum.

    Attributes
    ----------
    record : a stand-in for the records, a vector of any length.
    h : the contribution of a record, elementwise in `record`.
    breakpoints : values of the record between which h is smooth, in no order; NaN is no point.
    """

    record: TensorVariable
    h: TensorVariable
    breakpoints: tuple[TensorVariable, ...] = ()

    def at(self, x: TensorVariable) -> TensorVariable:
        """Return the contributions of records, of any shape."""
        replacements = {self.record: x.ravel().astype(self.record.dtype)}
        [h] = graph_replace([self.h], replacements, strict=False)
        return pt.broadcast_to(h, (x.size,)).reshape(x.shape)

    @property
    def multiple(self) -> tuple[float, float] | None:
        """The numbers a and b where h is a x + b of a record x; None of another h."""
        two = self.record.type.clone(shape=(2,))("two")
        [h] = clone_replace([self.h], {self.record: two}, rebuild_strict=False)
        try:
            slopes = linear_map(h, two).toarray()
            [at_zero] = clone_replace([h], {two: pt.zeros(2)}, rebuild_strict=False)
        except Declined:
            return None
        added = known_value(at_zero, fixed=True)
        if added is None or not np.isfinite([*slopes.flat, *added]).all():
            return None
        a, b = float(slopes[0, 0]), float(added[0])
        return (a, b) if a and np.array_equal(slopes, a * np.eye(2)) else None

    priced_as: ClassVar[str | None] = (
        None  # the name of the cost of all sums of this kind, if they have one cost
    )
    inverted: ClassVar[bool] = True  # whether by quadrature, which may not find the density

    def noise_parts(self, mechanism: Mechanism) -> tuple[TensorVariable, TensorVariable]:
        """Return Laplace scale and Gaussian spread of noise, see `quadrature.noise_parts`."""
        return noise_parts(mechanism)

    def require(self, records: TensorVariable, mechanism: Mechanism, factor, constant) -> None:
        """Decline noise under which quadrature does not find the density of ``factor * sum``.

        Such sums take several values only, and the density of the noise has a kink.
        """
        if has_kink(mechanism) and self.breakpoints and _steps(self) > 2:
            raise Declined(
                f"it counts the records {records.name!r} in more than two classes, which makes it "
                f"discrete but for Laplace noise: release one count, or use GaussianMechanism"
            )

    def in_steps(self, sizes, added, log_number, z, laplace, gaussian):
        """Return the added number, the release and its noise in the units of `log_density`."""
        return added, z, laplace, gaussian

    def log_density(self, parts, n, least, added, log_number, z, laplace, gaussian):
        """Log density of a noisy sum over n records, `least` being a number that n is not below.

        Vectors: the log weights of n, n + 1, ... records; z and noise for all of these or for each.
        A number is added to each summand. All but the first three are as `in_steps` returns them.
        """
        noisy = z, laplace, gaussian
        return log_density_of_sum(parts, n, least, self, added, log_number, *noisy)

    def nodes(self, parts, n, *noisy):
        """Return the arrays of the records' law that `draw_given` takes."""
        [node_set] = law_of_sum(parts, n, panel_counts(1)[-1:], self, *noisy)
        return list(node_set)

    def draw_given(self, rng, law, n: float, *noisy: float) -> float:
        """Draw the sum of n records given its release, by the `nodes` of their law."""
        return draw_sum(rng, *law, n, *noisy)

    def draw(self, rng, law, parameters, sizes):
        """Draw sums over groups of these sizes."""
        each, most = (p[..., None] for p in parameters), pt.max(sizes)
        rng, x = law(*each, size=(*sizes.shape, most), rng=rng, return_next_rng=True)
        return rng, sum_of_first(self.at, x, sizes)

    def mean_variance(self, law, parameters):
        """Return mean and variance of a record's contribution; decline laws without icdf."""
        like = pt.broadcast_arrays(*parameters)[-1]
        mean = square = pt.zeros_like(like, dtype="float64")
        each = [pt.broadcast_to(p[..., None], (*p.shape, _QUANTILES.size)) for p in parameters]
        for part in parts_of(law, each):
            share = 1.0 if part.share is None else part.share[..., 0]
            x = part.law if part.is_atom else _quantiles(part.law)
            h = self.at(pt.broadcast_to(part.clipped(x), (*like.shape, _QUANTILES.size)))
            mean += share * (_SHARES * h).sum(axis=-1)
            square += share * (_SHARES * h**2).sum(axis=-1)
        return mean, square - mean**2

    def support_point(self, law, parameters):
        """Return the contribution of a record at the support point of its law."""
        x: Any = 0.0
        for part in parts_of(law, parameters):
            variable, op = part.law, part.law.owner and part.law.owner.op
            at = variable if part.is_atom else _support_point(op, variable, *variable.owner.inputs)
            x += part.clipped(at) * (1.0 if part.share is None else part.share)
        return self.at(x)

    def rewritten(self, rewrite: Callable) -> Summand:
        """Return a summand of rewritten graphs; all are rewritten at once."""
        h, *breakpoints = rewrite([self.h, *self.breakpoints])
        return replace(self, h=h, breakpoints=tuple(breakpoints))


def read_summand(
    entry: TensorVariable,
    records: TensorVariable,
    n: int,
    *,
    column: int,
    positive: bool,
) -> tuple[Summand, float]:
    """Read a scalar statistic as a sum over records, and a number that is added.

    An added number that may change, from `pm.Data`, is spread over the records in equal parts.

    Parameters
    ----------
    entry, records, n : the statistic, and the n records that it is computed from.
    column : the index of the column of the records that is summed.
    positive : whether the support of a record starts at zero.

    Raises
    ------
    Declined
        If the statistic is no such sum, or h is not piecewise smooth as far as can be read.
    """
    form = additive(entry, {records: n})
    public = {symbol: graph.astype("float64") for symbol, graph in form.public}
    try:
        [(offset, coefficients)] = form.affine(public)
    except Declined as error:
        raise Declined(
            f"{error}, and only a sum of a function of single records is inverted. Sample with "
            f"rung='records'",
            near=1,
        ) from None
    whole = not records.dtype.startswith("float")
    record = pt.vector("record", dtype="int64" if whole else "float64")
    h = pt.zeros((), dtype="float64")
    for total, vector in zip(form.sums, form.maps, strict=True):
        if total in coefficients:
            h = h + coefficients[total] * vector
    if not coefficients:
        raise Declined("it does not depend on the records")
    h, offset = (pt.as_tensor(graph).astype("float64") for graph in (h, offset))
    centers = pt.zeros(len(form.columns), dtype="float64")
    replacements = {
        v: record.astype(v.dtype) if whole else record
        for v, j in column_vectors([h], records).items()
        if j == column
    }
    replacements[form.centers] = centers
    h, offset = clone_replace([h, offset], replacements, rebuild_strict=False)
    added = known_value(offset, fixed=True)
    h = h + offset / n if added is None else h
    h = rewrite_graph(_of_any_length(h), include=("canonicalize",))
    points = breakpoints_of(h, record, None if whole else positive)
    return Summand(record, h, points), 0.0 if added is None else float(added)


def breakpoints_of(h, record: TensorVariable, positive: bool | None) -> tuple:
    """Return the values of a record between which a function of it is smooth.

    If `positive` is None, the function only has to be of one record each.
    """
    reader = _Breakpoints(record, positive)
    reader.visit(h)
    return tuple(reader.points)


def summand_of(part, rv: TensorVariable, n: int, positive: bool) -> Summand:
    """Read a function of each of n records `rv` as one of a vector of records."""
    alike = stand_in_records(n, "float64" if rv.dtype.startswith("float") else "int64")
    stand_in = alike.type()  # a clone would copy what is drawn
    column = stand_in.dimshuffle(0, *["x"] * (rv.type.ndim - 1))
    [of_column] = clone_replace([part], {rv: column}, rebuild_strict=False)
    vector = of_column.dimshuffle(0) if rv.type.ndim > 1 else of_column
    [entry] = graph_replace([vector.sum()], {stand_in: alike}, strict=False)
    summand, added = read_summand(entry, alike, n, column=0, positive=positive)
    return replace(summand, h=summand.h + added / n) if added else summand


def _of_any_length(h: TensorVariable) -> TensorVariable:
    """Return the graph without checks of the records' number."""
    while checks := [v for v in ancestors([h]) if v.owner and isinstance(v.owner.op, SpecifyShape)]:
        h = clone_replace(h, {checks[0]: checks[0].owner.inputs[0]}, rebuild_strict=False)
    return h


class _Breakpoints:
    """Visits an elementwise expression of a record and collects where it is not smooth."""

    def __init__(self, record: TensorVariable, positive: bool | None):
        self.record, self.positive = record, positive
        self.points: list[TensorVariable] = []
        self._seen: set[Variable] = set()

    def touches(self, variable: Variable) -> bool:
        return self.record in ancestors([variable])

    def solved(self, expression: Variable, level: Variable) -> list[TensorVariable]:
        """Solve expression = level for the record."""
        return solved(expression, self.record, level)

    def fail(self, op, why: str):
        name = getattr(op, "name", None) or type(op).__name__.lower()
        raise Declined(f"`{name}` of a record {why}", near=1)

    def visit(self, variable: Variable) -> None:
        if variable is self.record or variable in self._seen:
            return
        self._seen.add(variable)
        if not self.touches(variable):
            if not all(variable.type.broadcastable):
                raise Declined(
                    "it weighs or selects the records one by one, so that they do not contribute "
                    "alike"
                )
            return
        node = variable.owner
        if isinstance(node.op, DimShuffle):
            return self.visit(node.inputs[0])
        if isinstance(node.op, AdvancedSubtensor) and not self.touches(node.inputs[0]):
            for i in node.inputs[1:]:  # entries of a table
                self.visit(i)
            return
        if not isinstance(node.op, Elemwise):
            self.fail(node.op, "is not computed record by record")
        for i in node.inputs:
            self.visit(i)
        if self.positive is not None:
            self._collect(node.op.scalar_op, node.inputs)

    def _collect(self, op, inputs) -> None:
        touched = [i for i in inputs if self.touches(i)]
        match op:
            case ps.Clip():
                if touched != [inputs[0]]:
                    self.fail(op, "has bounds that depend on the record")
                self.points += self.solved(inputs[0], inputs[1]) + self.solved(inputs[0], inputs[2])
            case ps.Abs() | ps.Sign():
                self.points += self.solved(inputs[0], pt.zeros(()))
            case ps.Switch():
                if inputs[0].type.dtype != "bool":
                    self.fail(op, "chooses by a number: write a comparison as its condition")
            case ps.TrueDiv() if touched == [inputs[0]]:
                pass
            case ps.Pow() if self._whole(inputs[1]):
                pass
            case ps.Pow() if touched == [inputs[0]]:
                self._off_zero(op, inputs[0])
            case ps.Cast() if op.o_type.dtype == "bool":
                self.points += self.solved(inputs[0], pt.zeros(()))
            case ps.Cast():
                if read_cast(op, inputs[0]) is not None:
                    self.fail(op, "rounds it")
            case _ if isinstance(op, _SINGULAR_AT_ZERO):
                self._off_zero(op, inputs[0])
            case _ if isinstance(op, COMPARISONS + _EXTREMES):
                if len(inputs) != 2 or len(touched) != 1:
                    self.fail(op, "compares more than the record with one number")
                [level] = [i for i in inputs if i not in touched]
                self.points += self.solved(touched[0], level)
            case _ if not isinstance(op, (*SMOOTH_FUNCTIONS, *_LOGICAL)):
                self.fail(op, "has no registered smooth pieces")

    @staticmethod
    def _whole(exponent: Variable) -> bool:
        value = _number(exponent)
        return value is not None and value >= 0 and value == int(value)

    def _off_zero(self, op, inner: Variable) -> None:
        """Require an argument that is positive: singular at most at the end of the support."""
        node = inner.owner
        if node is not None and isinstance(node.op, Elemwise):
            if isinstance(node.op.scalar_op, ps.Clip) and self._positive(node.inputs[1]):
                return
            scaled = all(i is self.record or self._positive(i) for i in node.inputs)
            if isinstance(node.op.scalar_op, ps.Mul) and scaled:
                inner = self.record
        if not (inner is self.record and self.positive):
            self.fail(op, "may be singular: clip the record to positive values first")

    @staticmethod
    def _positive(variable: Variable) -> bool:
        return (_number(variable) or 0.0) > 0


def _number(variable: Variable) -> float | None:
    """Return the value of a constant number."""
    while variable.owner is not None and isinstance(variable.owner.op, DimShuffle):
        variable = variable.owner.inputs[0]
    return float(variable.data.squeeze()) if isinstance(variable, Constant) else None


def _quantiles(record: TensorVariable) -> TensorVariable:
    """Return the `_QUANTILES` of a variable; NaN where its parameters are invalid."""
    try:
        x = pm.icdf(record, _QUANTILES)
    except NotImplementedError:
        raise Declined from None
    # Invalid parameters are to give NaN; PyMC's check would raise an error.
    checks = (v for v in ancestors([x]) if v.owner and isinstance(v.owner.op, CheckAndRaise))
    [x] = graph_replace([x], {v: v.owner.inputs[0] for v in checks}, strict=False)
    return pt.switch(x[..., -1:] >= x[..., :1], x, np.nan)


def _steps(summand: Summand) -> int:
    """Count the values of a summand that is constant between breakpoints; 0 for others."""
    points = [known_value(p) for p in summand.breakpoints]
    if not points or any(p is None for p in points):
        return 0
    known = np.array([float(np.squeeze(p)) for p in points if p is not None])
    edges = np.unique(known[np.isfinite(known)])
    if edges.size == 0:
        return 0
    edges = np.concatenate([[edges[0] - 1.0], edges, [edges[-1] + 1.0]])
    inner = np.concatenate([edges[:-1] + s * np.diff(edges) for s in (0.3, 0.6)])
    replacements = {summand.record: pt.as_tensor(inner)}
    value = known_value(clone_replace(summand.h, replacements, rebuild_strict=False))
    if value is None:
        return 0  # it depends on a parameter, or on data without a value
    first, second = np.split(np.broadcast_to(value, inner.shape), 2)
    return np.unique(first).size if np.array_equal(first, second) else 0
