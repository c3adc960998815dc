"""Laws of records made of other laws: mixtures, hurdles, zero-inflated and censored ones."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import pymc as pm
import pytensor.tensor as pt
from pymc.distributions.censored import CensoredRV
from pymc.distributions.continuous import TruncatedNormalRV
from pymc.distributions.distribution import DiracDeltaRV, SymbolicRandomVariable
from pymc.distributions.mixture import _BaseMixtureRV
from pymc.distributions.truncated import TruncatedRV
from pytensor.graph.replace import vectorize_graph
from pytensor.tensor.random.basic import CategoricalRV, normal
from pytensor.tensor.random.op import RandomVariable
from pytensor.tensor.random.type import RandomType
from pytensor.tensor.variable import TensorVariable

from pymc_dp.graphs.declined import Declined
from pymc_dp.graphs.shapes import known_shape
from pymc_dp.graphs.values import known_value
from pymc_dp.laws.count_sums import Atom
from pymc_dp.laws.counted import mixture_of, read_op
from pymc_dp.laws.mixture import MixtureLaw


@dataclass(frozen=True)
class SymbolicLaw:
    """The law of a `SymbolicRandomVariable`, to be called as a `RandomVariable` is."""

    op: SymbolicRandomVariable

    def __call__(self, *parameters, rng, size=None, return_next_rng=True):
        """Return the next generator and a draw."""
        drawn = self.op.rebuild_rv(*parameters, rng=rng, size=size)
        [following] = (v for v in drawn.owner.outputs if isinstance(v.type, RandomType))
        return following, drawn


@dataclass(frozen=True)
class CensoredLaw:
    """A law that is censored; its last two parameters are the bounds."""

    law: Any

    def __call__(self, *parameters, rng, size=None, return_next_rng=True):
        """Return the next generator and a draw."""
        *law_parameters, lower, upper = parameters
        rng, drawn = self.law(*law_parameters, rng=rng, size=size, return_next_rng=True)
        return rng, pt.clip(drawn, lower, upper)


@dataclass(frozen=True)
class TruncatedLaw:
    """A law that is cut to an interval, of counts between whole numbers."""

    law: RandomVariable
    lower: float
    upper: float

    def __call__(self, *parameters, rng, size=None, return_next_rng=True):
        """Return the next generator and a draw."""
        _, base = self.law(*parameters, rng=rng, size=size, return_next_rng=True)
        ends = (None if np.isinf(end) else end for end in (self.lower, self.upper))
        # Its shape must not be that of `base`, which then were drawn by the same generator.
        size = pt.broadcast_shape(*parameters) if size is None else size
        node = pm.Truncated.dist(base, *ends, size=size).owner
        inputs = [rng if isinstance(i.type, RandomType) else i for i in node.inputs]
        outputs = node.op.make_node(*inputs).outputs
        following, drawn = sorted(outputs, key=lambda v: not isinstance(v.type, RandomType))
        return following, drawn


class Part(NamedTuple):
    """A part of a record's law.

    Attributes
    ----------
    law : a continuous variable, or a number that the record then is.
    share : the probability of the part; None if it is the whole law.
    ends : pairs of bounds to which its draws are clipped, one after the other.
    cut : the whole numbers to which a law of counts is truncated; None without truncation.
    """

    law: TensorVariable
    share: TensorVariable | None = None
    ends: tuple[tuple[TensorVariable, TensorVariable], ...] = ()
    cut: tuple[float, float] | None = None

    @property
    def is_atom(self) -> bool:
        """Whether the part is a single number."""
        op = self.law.owner and self.law.owner.op
        return not isinstance(op, RandomVariable | SymbolicRandomVariable)

    def truncated(self) -> Part:
        """Return the part with a law that is truncated itself."""
        if self.cut is None:
            return self
        node = self.law.owner
        law = TruncatedLaw(node.op, *self.cut)
        variable = law(*node.op.dist_params(node), rng=node.inputs[0])[1]
        return self._replace(law=variable, cut=None)

    def clipped(self, x: TensorVariable) -> TensorVariable:
        """Return records for draws of the variable."""
        for lower, upper in self.ends:
            x = pt.clip(x, lower, upper)
        return x


def parts_of(law, parameters) -> list[Part]:
    """Return the parts of a law with these parameters."""
    match law:
        case MixtureLaw():
            shares, by_component = law.split(parameters)
            return [
                part._replace(share=share if part.share is None else share * part.share)
                for component, share, p in zip(law.components, shares, by_component, strict=True)
                for part in parts_of(component, p)
            ]
        case CensoredLaw():
            *law_parameters, lower, upper = parameters
            ends = (lower, upper)
            return [p._replace(ends=(*p.ends, ends)) for p in parts_of(law.law, law_parameters)]
        case TruncatedLaw():
            [part] = parts_of(law.law, parameters)
            return [part._replace(cut=(law.lower, law.upper))]
        case Atom():
            return [Part(pt.as_tensor(parameters[0]).astype("float64"))]
    _, variable = law(*parameters, rng=pt.random.shared_rng(seed=None), return_next_rng=True)
    return [Part(variable)]


def law_of_record(
    rv: TensorVariable, *, truncated: bool = False
) -> tuple[Any, list[TensorVariable]]:
    """Return the law of some records and its parameters, as they are written.

    Continuous laws that are `truncated` are read where that is asked for. A law draws by
    ``law(*parameters, rng=rng, size=size, return_next_rng=True)``.
    """
    node = rv.owner
    match node.op:
        case _BaseMixtureRV():
            return mixture_of(node, partial(law_of_record, truncated=truncated))
        case CensoredRV():
            base, *bounds = node.inputs
            law, parameters = law_of_record(base, truncated=truncated)
            return CensoredLaw(law), [*parameters, *bounds]
        case DiracDeltaRV():
            return Atom(), [node.inputs[-1]]
        case CategoricalRV():
            p = node.op.dist_params(node)[0]
            count = p.type.shape[-1]
            if count is None:
                raise Declined(f"the number of values of {rv.name!r} is not known")
            law = MixtureLaw((Atom(),) * count, (1,) * count)
            return law, [*(p[..., k] for k in range(count)), *map(pt.constant, range(count))]
        case TruncatedNormalRV() as op if truncated:
            *params, lower, upper = op.dist_params(node)
            return TruncatedLaw(normal, *_cut(rv, lower, upper)), params
        case TruncatedRV() as op if isinstance(op.base_rv_op, RandomVariable) and (
            truncated or rv.dtype == "int64"
        ):
            *base_inputs, lower, upper = node.inputs
            params = list(op.base_rv_op.dist_params(op.base_rv_op.make_node(*base_inputs)))
            return TruncatedLaw(op.base_rv_op, *_cut(rv, lower, upper)), params
        case TruncatedRV():
            raise Declined(f"the truncated law of {rv.name!r} is not known here", near=-1)
        case RandomVariable() as op:
            return op, list(op.dist_params(node))
        case SymbolicRandomVariable() as op if hasattr(op, "rv_op"):
            return SymbolicLaw(op), list(op.dist_params(node))
    raise Declined(f"the law of {rv.name!r} is not known")


def of_each(write, law, parameters, sizes, *inputs):
    """Return the graphs that `write` makes for one group, vectorised over all groups."""
    scalars = [pt.scalar(dtype="float64") for _ in parameters]
    n, rows = pt.scalar(dtype="float64"), [pt.as_tensor(v) for v in inputs]
    ones = [pt.TensorType(v.dtype, v.type.shape[1:])() for v in rows]
    graphs_of_one = write(parts_of(law, scalars), n, *ones)
    of_all = pt.as_tensor(sizes).astype("float64"), *rows, *parameters
    return vectorize_graph(graphs_of_one, dict(zip((n, *ones, *scalars), of_all, strict=True)))


def _cut(rv: TensorVariable, lower, upper) -> tuple[float, float]:
    known = (known_value(end) for end in (lower, upper))
    ends = [float(np.squeeze(end)) for end in known if end is not None and end.size == 1]
    if len(ends) < 2:
        raise Declined(f"where the law of {rv.name!r} is cut is not known")
    if rv.dtype.startswith("float"):
        return ends[0], ends[1]
    return float(np.ceil(ends[0])), float(np.floor(ends[1]))


def has_points(rv: TensorVariable) -> bool:
    """Whether a continuous variable has points of positive probability: NUTS does not meet them."""
    if not rv.dtype.startswith("float"):
        return False
    match rv.owner.op:
        case CensoredRV() | DiracDeltaRV():
            return True
        case _BaseMixtureRV():
            return any(has_points(component) for component in rv.owner.inputs[2:])
    return False


def refuse_points(rvs: Iterable[TensorVariable]) -> None:
    """Decline NUTS for variables with points of positive probability."""
    for rv in rvs:
        if has_points(rv):
            raise Declined(
                f"{rv.name!r} has points of positive probability, which NUTS does not move to. "
                f"Write a label for each record, pm.Bernoulli('label', ...), and release "
                f"label * value"
            )


@read_op.register(TruncatedNormalRV)
@read_op.register(TruncatedRV)
def _read_truncated(op, node):
    rv = node.default_output()
    law, parameters = law_of_record(rv, truncated=True)
    shape = known_shape(rv)
    return law, [p if None in shape else pt.broadcast_to(p, shape) for p in parameters]
