"""How many records a variable has: a number, or a variable of the model."""

from __future__ import annotations

from pymc.distributions.censored import CensoredRV
from pymc.distributions.distribution import SymbolicRandomVariable
from pymc.distributions.mixture import _BaseMixtureRV
from pytensor.tensor.basic import MakeVector
from pytensor.tensor.random.op import RandomVariable
from pytensor.tensor.variable import TensorVariable

from pymc_dp.graphs.shapes import entry_of, known_shape
from pymc_dp.graphs.substitution import simplified
from pymc_dp.graphs.values import nearest_rvs
from pymc_dp.reading.model import is_component
from pymc_dp.reading.record_sums import RecordSumsRV


def size_of(rv: TensorVariable) -> TensorVariable | None:
    """Return the random variable that is the number of some records; None if it is known."""
    length = written_length(rv)
    sizes = [] if length is None else nearest_rvs([length])
    return next((v for v in sizes if not is_component(v)), None)


def written_length(rv: TensorVariable) -> TensorVariable | None:
    """Return the graph of the length of a vector of records; None if it has none.

    For sums over records it is the graph of the numbers of records.
    """
    op = rv.owner.op
    if isinstance(op, RecordSumsRV):
        return rv.owner.inputs[1]
    if rv.type.ndim == 1 and isinstance(op, _BaseMixtureRV | CensoredRV):
        if known_shape(rv)[0] is not None:
            return None  # a component may have another length than the mixture
        parts = [v for v in nearest_rvs(rv.owner.inputs) if is_component(v)]
        return next((v for v in map(_first_length, parts) if v is not None), None)
    return _first_length(rv) if rv.type.ndim == 1 else None


def _first_length(rv: TensorVariable) -> TensorVariable | None:
    """Return the graph of the first entry of a variable's size; None if it has none."""
    op = rv.owner.op
    symbolic = isinstance(op, SymbolicRandomVariable) and op.extended_signature
    if not (symbolic or isinstance(op, RandomVariable)):
        return None
    size = op.size_param(rv.owner)
    if size is None or size.owner is None:
        return None
    if not isinstance(size.owner.op, MakeVector):
        return size
    length = size.owner.inputs[0]
    # The size of a component is made of entries of the size of its mixture.
    while (entry := entry_of(length)) is not None:
        vector, place = entry
        if vector.owner is None or not isinstance(vector.owner.op, MakeVector):
            break
        length = vector.owner.inputs[place[0]]
    return length


def record_count(rv: TensorVariable) -> int:
    """Return the number of records, without drawing any."""
    if rv.type.ndim != 1:
        raise ValueError(
            f"the records {rv.name!r} have {rv.type.ndim} dimensions; a vector is needed: write "
            f"shape=n (one record per entry)"
        )
    return record_length(rv)


def record_length(rv: TensorVariable) -> int:
    """Return the length of the records' first axis, without drawing any."""
    if isinstance(rv.owner.op, RecordSumsRV):
        raise ValueError(f"{rv.name!r} are sums over records that are never built")
    [length, *_] = known_shape(rv)
    size = None if length is not None else size_of(rv)
    if size is not None:
        raise ValueError(
            f"the number of records {rv.name!r} is {size.name!r}, a variable of the model: records "
            f"of which nobody knows how many there are cannot be sampled themselves"
        )
    if length is None and (sizes := nearest_rvs(simplified([rv.shape[0]]))):
        if rv.type.ndim > 1:
            raise ValueError(
                f"the number of rows {rv.name!r} is {sizes[0].name!r}, a variable of the model: "
                f"write a vector for each column, x = pm.Normal('x', ..., shape=n) and "
                f"y = pm.Normal('y', a + b * x, ..., shape=n)"
            )
        raise ValueError(
            f"the number of records {rv.name!r} is {sizes[0].name!r}, a variable of the model, and "
            f"their law is made of others, as a mixture or hurdle is: records of unknown number "
            f"follow one law"
        )
    if length is None:
        raise ValueError(
            f"the number of records {rv.name!r} is not known: give {rv.name!r} a shape= or dims="
        )
    return length
