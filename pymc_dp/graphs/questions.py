"""Questions about a graph: what it is computed from, and in what way."""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from functools import cache
from typing import Any

import numpy as np
import pytensor
import pytensor.tensor as pt
from pymc.distributions.transforms import _default_transform
from pymc.logprob.abstract import MeasurableOp
from pymc.logprob.transforms import IntervalTransform, LogOddsTransform, LogTransform
from pytensor.compile import optdb
from pytensor.compile.builders import OpFromGraph
from pytensor.compile.mode import Mode
from pytensor.compile.ops import ViewOp
from pytensor.compile.rewriting import inline_ofg_node
from pytensor.compile.sharedvalue import SharedVariable
from pytensor.graph.basic import Constant, Variable
from pytensor.graph.fg import FunctionGraph
from pytensor.graph.op import Op
from pytensor.graph.replace import clone_replace, graph_replace
from pytensor.graph.rewriting.basic import GraphRewriter
from pytensor.graph.rewriting.db import RewriteDatabaseQuery
from pytensor.graph.traversal import ancestors, toposort, walk
from pytensor.raise_op import CheckAndRaise
from pytensor.scalar import basic as ps
from pytensor.scalar.math import Sigmoid, Softplus
from pytensor.tensor.basic import Alloc, Join, MakeVector, ScalarFromTensor, TensorFromScalar
from pytensor.tensor.elemwise import DimShuffle, Elemwise
from pytensor.tensor.linalg import MatrixInverse
from pytensor.tensor.math import Dot, Sum
from pytensor.tensor.random.op import RandomVariable
from pytensor.tensor.random.type import RandomType
from pytensor.tensor.shape import Reshape, Shape, Shape_i, SpecifyShape
from pytensor.tensor.subtensor import (
    AdvancedIncSubtensor,
    AdvancedSubtensor,
    IncSubtensor,
    Subtensor,
)
from pytensor.tensor.variable import TensorVariable

from pymc_dp.graphs.declined import Declined, notice


class _Inline(GraphRewriter):
    """Write out graphs in others, which PyTensor compiles with C, whatever the mode."""

    def apply(self, fgraph):
        while nodes := [n for n in fgraph.apply_nodes if isinstance(n.op, OpFromGraph)]:
            for node in nodes:
                fgraph.replace_all(zip(node.outputs, inline_ofg_node(node), strict=True))


# Evaluates scalars while a model is being read: nothing worth compiling.
PLAIN_MODE = Mode(linker="py", optimizer=None).register((_Inline(), -0.02))


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


def public_data(expressions: Sequence[Variable]) -> list[SharedVariable]:
    """Return the `pm.Data` that expressions are computed from, not looking past RVs."""
    found = ancestors(expressions, blockers=nearest_rvs(expressions))
    return [
        v for v in found if isinstance(v, SharedVariable) and not isinstance(v.type, RandomType)
    ]


def depends_on(expression: Variable, variable: Variable) -> bool:
    """Whether `expression` is computed from `variable`, not looking past other RVs."""
    return variable in nearest_rvs([expression])


def known_value(graph: Variable, *, fixed: bool = False) -> np.ndarray | None:
    """Return the value of a constant of the model; None where random or unknown things decide it.

    What `pm.Data` holds now counts as known, though it may change: with ``fixed`` it does not.
    """
    roots = [v for v in ancestors([graph]) if v.owner is None]
    kinds = Constant if fixed else Constant | SharedVariable
    # A generator gives away every draw, those inside a Scan as well.
    if not all(isinstance(r, kinds) and not isinstance(r.type, RandomType) for r in roots):
        return None
    if any(isinstance(r, SharedVariable) for r in roots):
        notice(*valued(graph))
    if isinstance(graph, Constant):
        return np.asarray(graph.data)
    if isinstance(graph, SharedVariable):
        return np.asarray(graph.get_value(borrow=True))
    try:
        [value] = _computed([graph], {})
        return np.array(value)
    except NotImplementedError:  # an op that is no function of values, `ifelse` say
        return np.asarray(graph.eval(mode=PLAIN_MODE))


def plain_function(inputs: Sequence[Variable], outputs) -> Callable:
    """Return a function that is evaluated node by node, without compilation."""
    return pytensor.function(list(inputs), outputs, mode=PLAIN_MODE, on_unused_input="ignore")


def noticed_function(inputs: Sequence[Variable], outputs) -> Callable:
    """Return a plain function for use while a model is read; the data in it are noticed."""
    notice(*public_data([outputs] if isinstance(outputs, Variable) else outputs))
    return plain_function(inputs, outputs)


def valued(graph: Variable) -> list[SharedVariable]:
    """Return the shared variables of which a graph takes more than the shape."""

    def expand(variable: Variable):
        node = variable.owner
        return None if node is None or isinstance(node.op, Shape | Shape_i) else node.inputs

    return [v for v in walk([graph], expand) if isinstance(v, SharedVariable)]


def _computed(graphs: Sequence[Variable], known: Mapping[Variable, Any]) -> list[Any]:
    """Compute graphs of numbers op by op: to make a function of them takes longer than all else."""
    found = dict(known)

    def value(variable: Variable):
        if variable in found:
            return found[variable]
        return variable.data if isinstance(variable, Constant) else variable.get_value(borrow=True)

    for node in toposort(graphs):
        if isinstance(node.op, OpFromGraph):
            inner = dict(zip(node.op.fgraph.inputs, map(value, node.inputs), strict=True))
            own = _computed(node.op.fgraph.outputs, inner)
            found |= dict(zip(node.outputs, own, strict=True))
            continue
        if not hasattr(node.op, "perform") or node.op.destroy_map:
            raise NotImplementedError
        node.op.prepare_node(node, None, None, "py")
        storage: list[list] = [[None] for _ in node.outputs]
        node.op.perform(node, [value(i) for i in node.inputs], storage)
        found |= dict(zip(node.outputs, [s[0] for s in storage], strict=True))
    return [value(graph) for graph in graphs]


def keeps_values(op: Op, given: Variable | str) -> bool:
    """Whether an op returns its first input, or any input of this dtype, as it is.

    A cast does where every value of the one type is one of the other; to floats, but for rounding;
    of whole numbers to int64. To fewer integers it may wrap around, to truth
    values it compares with zero.
    """
    dtype = given if isinstance(given, str) else getattr(given.type, "dtype", None)
    match getattr(op, "scalar_op", op):
        case ps.Identity() | ViewOp() | SpecifyShape() | CheckAndRaise():
            return True
        case TensorFromScalar() | ScalarFromTensor():
            return True
        case ps.Cast() as cast if dtype is not None:
            target = np.dtype(cast.o_type.dtype)
            if target.kind == "f":
                return target.itemsize >= 4
            whole = (
                np.dtype(dtype).kind == "f"
                and not isinstance(given, str)
                and is_whole(given, fixed=True)
            )
            return (whole and target == np.int64) or np.can_cast(dtype, target)
        case ps.Floor() | ps.Ceil() | ps.Trunc() if dtype is not None:
            return np.dtype(dtype).kind in "biu"
    return False


def is_whole(graph: Variable, *, fixed: bool = False) -> bool:
    """Whether every value of a graph is known to be a whole number.

    Of what `pm.Data` holds, that now; with ``fixed`` any that it may come to hold.
    """

    def all_whole(graphs) -> bool:
        return all(is_whole(g, fixed=fixed) for g in graphs)

    if np.dtype(graph.type.dtype).kind in "biu":
        return True
    value, node = known_value(graph, fixed=fixed), graph.owner
    if value is not None:
        return bool(np.all(value == np.round(value)))
    if node is None:
        return False
    match getattr(node.op, "scalar_op", _core(node.op)):
        case (
            ps.RoundHalfToEven() | ps.RoundHalfAwayFromZero() | ps.Floor() | ps.Ceil() | ps.Trunc()
        ):
            return True
        case ps.Add() | ps.Sub() | ps.Mul() | ps.Neg() | ps.Abs() | ps.Sqr() | Dot():
            return all_whole(node.inputs)
        case Join() | MakeVector() | ps.ScalarMaximum() | ps.ScalarMinimum():
            return all_whole(node.inputs)
        case ps.Switch():
            return all_whole(node.inputs[1:])
        case ps.Second():
            return all_whole(node.inputs[1:2])
        case IncSubtensor() | AdvancedIncSubtensor():
            return all_whole(node.inputs[:2])
        case Reshape() | DimShuffle() | Subtensor() | AdvancedSubtensor() | Alloc():
            return all_whole(node.inputs[:1])
        case ps.Identity() | ps.Cast() | ViewOp() | SpecifyShape() | CheckAndRaise():
            return all_whole(node.inputs[:1])
    return False


def _core(op: Op) -> Op:
    """Return what an op applies to each entry of a batch, a product of matrices say."""
    return getattr(op, "core_op", op)


def is_itself(expression: TensorVariable, rv: TensorVariable) -> bool:
    """Whether an expression is a variable as it is, but for its dtype."""
    while expression is not rv:
        node = expression.owner
        if node is None or not keeps_values(node.op, node.inputs[0]):
            return False
        expression = node.inputs[0]
    return True


def entry_of(variable: TensorVariable) -> tuple[TensorVariable, tuple[int, ...]] | None:
    """Return the variable and the index of which a scalar is an entry; None if not known."""
    source = variable
    moved = DimShuffle | Subtensor | SpecifyShape | ViewOp  # dims= and Deterministic leave these
    while source.owner is not None and isinstance(source.owner.op, moved):
        source, *index = source.owner.inputs
        if not all(isinstance(i, Constant) for i in index):
            return None
    shape = [n for n in known_shape(source) if n is not None]
    if variable.type.ndim or len(shape) < source.type.ndim:
        return None
    numbered = np.arange(np.prod(shape, dtype=int)).reshape(shape).astype(source.dtype)
    place = graph_replace(variable, {source: pt.constant(numbered)}, strict=False)
    place = known_value(place)
    if place is None:
        return None
    found = np.unravel_index(int(place), shape) if shape else ()
    return source, tuple(int(k) for k in found)


def leaves(
    graph: TensorVariable, places: np.ndarray
) -> Iterator[tuple[TensorVariable, np.ndarray]]:
    """Return what a graph is joined from, with the places that each part has in it.

    `places` are those of the graph itself, an array of its shape.
    """
    node = graph.owner
    match node and node.op:
        case MakeVector():
            for part, own in zip(node.inputs, places, strict=True):
                yield from leaves(part, own)
        case Join(axis=axis):
            ends = np.cumsum([lengths(part)[axis] for part in node.inputs])
            for part, own in zip(node.inputs, np.split(places, ends[:-1], axis), strict=True):
                yield from leaves(part, own)
        case Reshape() | DimShuffle(drop=[]) if graph.type.ndim:
            given = lengths(node.inputs[0])
            if isinstance(node.op, DimShuffle):  # back in the order of the axes of what is given
                places = places.reshape([given[axis] for axis in node.op.shuffle])
                places = places.transpose(np.argsort(node.op.shuffle))
            yield from leaves(node.inputs[0], places.reshape(given))
        case op if node is not None and keeps_values(op, node.inputs[0]):
            yield from leaves(node.inputs[0], places)
        case _:
            yield graph, places


def of_nothing(expression: TensorVariable) -> list[TensorVariable]:
    """Return the largest parts of an expression that are computed from no entry of an RV.

    What is computed from RVs all the same is picked by an index that is empty, or taken times zero.
    """
    # What is computed from RVs, and whether from an entry of theirs.
    random: dict[Variable, bool] = {
        rv: 0 not in known_shape(rv) for rv in nearest_rvs([expression])
    }
    for node in toposort([expression], blockers=random):
        inputs = [i for i in node.inputs if i in random]
        if not inputs or isinstance(node.op, Shape | Shape_i):
            continue
        used = [i for i in inputs if random[i]]
        match getattr(node.op, "scalar_op", _core(node.op)):
            case ps.Mul() | Dot() if any(_is_zero(i) for i in node.inputs if i not in random):
                used = []
            case ps.Switch() if node.inputs[0] not in random and _is_zero(node.inputs[0]):
                used = [i for i in used if i is node.inputs[2]]
            case Subtensor() | AdvancedSubtensor() if used and 0 in known_shape(node.outputs[0]):
                used = []
        random |= dict.fromkeys(node.outputs, bool(used))

    def unlike(variable: Variable) -> list[Variable] | None:
        return variable.owner.inputs if random.get(variable) and not is_random(variable) else None

    return [v for v in walk([expression], unlike) if random.get(v) is False and not is_random(v)]


def _is_zero(graph: Variable) -> bool:
    value = known_value(graph, fixed=True)
    return value is not None and not np.any(value)


def varies_with(expression: TensorVariable, rv: TensorVariable) -> bool:
    """Whether an expression depends on a variable, and on more of it than its shape."""
    blockers = nearest_rvs([expression])
    above = list(ancestors([expression], blockers=blockers))
    shapes = [v for v in above if v.owner is not None and isinstance(v.owner.op, Shape | Shape_i)]
    return rv in ancestors([expression], blockers=[*blockers, *shapes])


def computation(graph: Variable, of: Variable) -> Hashable:
    """Return what equals that of another graph where both compute the same of a variable."""
    numbers: dict[Variable, Hashable] = {of: 0}

    def known(variable: Variable) -> Hashable:
        given = variable.signature() if isinstance(variable, Constant) else variable
        return numbers.setdefault(variable, (variable.type, given))

    steps = []
    for node in toposort([graph], blockers=[of]):
        steps.append((node.op, *map(known, node.inputs)))
        numbers |= {output: (len(numbers), k) for k, output in enumerate(node.outputs)}
    return (*steps, known(graph))


def substitute(
    expression: TensorVariable, replace: dict[TensorVariable, TensorVariable]
) -> TensorVariable:
    """Replace variables of an expression; its other random variables stay those of the model.

    `clone_replace` would copy these, and a model does not know the copies: they would be drawn.
    """
    kept = {rv: rv for rv in nearest_rvs([expression])}
    return graph_replace(expression, kept | replace, strict=False)


@cache
def _simplifier() -> GraphRewriter:
    return optdb.query(RewriteDatabaseQuery(include=("ShapeOpt", "canonicalize")))


def simplified(graphs: Sequence[Variable]) -> list[Variable]:
    """Return graphs as PyTensor simplifies them, by what is known of shapes; those given stay."""
    copy = FunctionGraph(outputs=graphs, clone=True, copy_inputs=False)
    _simplifier().rewrite(copy)
    return copy.outputs


def known_shape(variable: TensorVariable) -> tuple[int | None, ...]:
    """Shape of a variable; where only `dims` or `pm.Data` give it, as they stand now."""
    if None not in variable.type.shape:
        return variable.type.shape
    shape = known_value(*simplified([variable.shape]))
    return variable.type.shape if shape is None else tuple(int(length) for length in shape)


def may_broadcast(shape: Sequence[int | None], to: Sequence[int | None]) -> bool:
    """Whether a shape can be that of what is broadcast to another; None is a length not known."""
    pairs = zip(reversed(shape), reversed(to), strict=False)
    return len(shape) <= len(to) and all(None in (a, b) or a in (b, 1) for a, b in pairs)


def with_shapes(graph: TensorVariable) -> TensorVariable:
    """Return a graph with numbers for the shapes in it that are known."""
    numbers: dict[Variable, Variable] = {}
    for variable in ancestors([graph], blockers=nearest_rvs([graph])):
        node = variable.owner
        if node is None or not isinstance(node.op, Shape | Shape_i):
            continue
        shape = known_shape(node.inputs[0])
        if None not in shape:
            found = shape[node.op.i] if isinstance(node.op, Shape_i) else shape
            numbers[variable] = pt.constant(np.array(found, dtype="int64"))
    return graph_replace([graph], numbers, strict=False)[0] if numbers else graph


def is_nonnegative(graph: TensorVariable) -> bool:
    """Whether a graph is known to have no negative values, by its ops and its variables."""
    value = known_value(graph, fixed=True)
    if value is not None:
        return bool(np.all(value >= 0))
    if is_random(graph):
        transform = _default_transform(graph.owner.op, graph)
        if isinstance(transform, IntervalTransform):
            lower = transform.args_fn(*graph.owner.inputs)[0]
            value = None if lower is None else known_value(lower, fixed=True)
            return value is not None and bool(np.all(value >= 0))
        return isinstance(transform, LogTransform | LogOddsTransform)
    node = graph.owner
    if node is None:
        return False
    match getattr(node.op, "scalar_op", node.op):
        case ps.Exp() | ps.Sqr() | ps.Sqrt() | ps.Abs() | Sigmoid() | Softplus():
            return True
        case ps.Add() | ps.Mul() | ps.TrueDiv() | ps.Sign() if isinstance(node.op, Elemwise | Sum):
            return all(map(is_nonnegative, node.inputs))
        case ps.Pow():
            power = known_value(node.inputs[1], fixed=True)
            even = power is not None and bool(np.all(power % 2 == 0))
            return even or is_nonnegative(node.inputs[0])
        case ps.ScalarMaximum() if isinstance(node.op, Elemwise):
            return any(map(is_nonnegative, node.inputs))
        case MakeVector():
            return all(map(is_nonnegative, node.inputs))
        case Join():
            return all(map(is_nonnegative, node.inputs[1:]))
        case DimShuffle() | Subtensor() | AdvancedSubtensor() | Reshape() | Alloc() | ps.Cast():
            return is_nonnegative(node.inputs[0])
    return False


def nonnegative(parameter: TensorVariable) -> TensorVariable:
    """Return what a law needs to be nonnegative; NaN where it is not, as a square hides it."""
    known = is_nonnegative(parameter)
    return parameter if known else pt.switch(parameter >= 0, parameter, np.nan)


def lengths(variable: TensorVariable) -> tuple[int, ...]:
    """Return the shape of a variable; decline one that is not known."""
    shape = known_shape(variable)
    if None in shape:
        raise Declined(f"the shape of `{variable}` is not known: give it a shape= or dims=")
    return tuple(int(n or 0) for n in shape)


def value_lengths(model: Any, rv: TensorVariable) -> tuple[int, ...]:
    """Return the shape of a variable's value, transformed perhaps, as of a precision matrix."""
    value, transform = model.rvs_to_values[rv], model.rvs_to_transforms[rv]
    if transform is not None and None in known_shape(value):
        return lengths(transform.forward(rv, *rv.owner.inputs))
    return lengths(value)


def power_law(
    expression: TensorVariable, variable: TensorVariable, *, positive: bool = False
) -> tuple[float, float] | None:
    """Return (c, k) with ``expression == c * variable**k``, c > 0; None if it is not such a power.

    k = inf stands for an exponential, ``log(expression)`` linear. See `power` for `positive`.
    """
    if nearest_rvs([expression]) != [variable]:
        return None
    k = power(expression, variable, positive=positive)
    if k is None:
        return None
    unit = np.ones([1] * variable.type.ndim, variable.dtype)
    if any(length not in (None, 1) for length in variable.type.shape):
        return None
    one = known_value(clone_replace(expression, {variable: pt.constant(unit)}))
    c = np.squeeze(math.nan if one is None else one)
    return (float(c), k) if c.ndim == 0 and np.isfinite(c) and c > 0 else None


def power(
    expression: TensorVariable, variable: TensorVariable, *, positive: bool = False
) -> float | None:
    """Return k where an expression is proportional to ``variable**k``, decided by its ops.

    Other variables may be part of the factor. None if it is no power, inf for an exponential.
    Absolute values and signs, which ``pm.Normal(tau=)`` takes, are powers of a variable that is
    known to be `positive`.
    """
    if expression is variable:
        return 1.0
    if not depends_on(expression, variable):
        return 0.0
    node = expression.owner
    whole = isinstance(node.op, DimShuffle) or keeps_values(node.op, node.inputs[0])
    if whole or (isinstance(node.op, Subtensor) and all(variable.type.broadcastable)):
        return power(node.inputs[0], variable, positive=positive)
    found = [power(i, variable, positive=positive) for i in node.inputs]
    exponents = [k for k in found if k is not None]
    if len(exponents) < len(found):
        return None
    match node.op.scalar_op if isinstance(node.op, Elemwise) else _core(node.op):
        case Dot():
            return None if math.inf in exponents else sum(exponents)
        case MatrixInverse():
            return -exponents[0]
        case MakeVector() | Join():  # of entries with factors of their own
            [k, *others] = {*exponents}
            return None if others or k == math.inf else k
        case ps.Abs() if positive:
            return exponents[0]
        case ps.Sign() if positive:
            return 0.0
        case ps.Mul():
            other = any(k not in (0, math.inf) for k in exponents)
            return None if other and math.inf in exponents else sum(exponents)
        case ps.TrueDiv():
            return None if math.inf in exponents else exponents[0] - exponents[1]
        case ps.Sqr():
            return 2 * exponents[0]
        case ps.Sqrt():
            return exponents[0] / 2
        case ps.Reciprocal():
            return exponents[0] if exponents[0] == math.inf else -exponents[0]
        case ps.Pow() if exponents[1] == 0:
            exponent = known_value(node.inputs[1], fixed=True)
            if exponent is None or exponent.size != 1:
                return None
            k = float(exponent.item())
            return exponents[0] if exponents[0] == math.inf and k else exponents[0] * k
        case ps.Exp() if exponents[0] == 1:
            return math.inf
    return None
