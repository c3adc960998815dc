"""Weighted sums over the records: expressions linear in their values, with public weights."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import pytensor.tensor as pt
from pytensor.graph.op import Op
from pytensor.graph.replace import graph_replace
from pytensor.sparse.math import Dot as SparseDot
from pytensor.sparse.math import StructuredDot
from pytensor.tensor.blockwise import Blockwise
from pytensor.tensor.math import Dot, Sum
from pytensor.tensor.subtensor import AdvancedIncSubtensor, IncSubtensor
from pytensor.tensor.variable import TensorVariable

from pymc_dp.graphs.declined import Declined
from pymc_dp.graphs.linear import linear_map
from pymc_dp.graphs.shapes import lengths
from pymc_dp.graphs.values import known_value, public_data
from pymc_dp.reading.sums.forms import Form, added
from pymc_dp.reading.sums.operands import Operands, Public
from pymc_dp.reading.sums.tables import Table, whole

_MOST_WEIGHTS = 20_000_000  # one for each record, in all sums together


def require_few(sums: int, n: int) -> None:
    """Decline sums that would need too many weights, one for each record."""
    if sums * n > _MOST_WEIGHTS:
        raise Declined(f"it is of {sums:,} sums over {n:,} records, too many to be read one by one")


def adds_up(op: Op) -> bool:
    """Whether an op adds entries up, so that few may be left of one for each record."""
    op = op.core_op if isinstance(op, Blockwise) else op
    return isinstance(
        op, Sum | Dot | AdvancedIncSubtensor | IncSubtensor | SparseDot | StructuredDot
    )


type Read = Callable[[TensorVariable], Public | Table]


def weighted_sums(operands: Operands, variable: TensorVariable, read: Read) -> Table:
    """Read a variable as sums of the values in which it is linear, with weights of records.

    Raises
    ------
    Declined
        If it is not linear in values that can be read, or has as many entries as records.
    """
    sources, shape = _sources(operands, variable, read), lengths(variable)
    size = math.prod(shape)
    if size >= operands.ledger.n and any(table.axis is not None for table in sources.values()):
        raise Declined("it has an entry for each record")
    require_few(size, operands.ledger.n)
    # A source may be computed from another one: placeholders are independent.
    places = {v: pt.TensorType(v.dtype, lengths(v))() for v in sources}
    graph = graph_replace(variable, places, strict=False)
    if public_data([graph]):
        raise Declined("its weights are computed from `pm.Data`, which may change")
    zeros = {place: pt.zeros(lengths(place), dtype=place.dtype) for place in places.values()}
    offset = graph_replace(graph, zeros, strict=False)
    number = known_value(offset, fixed=True)
    constants = operands.table(Public(offset if number is None else pt.constant(number)))
    forms = [[form] for form in constants.entries.flat]
    for source, table in sources.items():
        matrix = linear_map(graph, places[source])
        if not np.all(np.isfinite(matrix.data)):
            raise Declined("its weights are not known")
        for entry, parts in enumerate(forms):
            weights = matrix[[entry]].toarray().reshape(lengths(source))
            parts += _weighted(operands, table, weights)
    entries = np.empty(size, dtype=object)
    entries[:] = [added(parts) for parts in forms]
    return Table(entries.reshape(shape))


def _sources(
    operands: Operands, variable: TensorVariable, read: Read
) -> dict[TensorVariable, Table]:
    """Return the nearest values that can be read, of those that a variable is computed from."""
    sources: dict[TensorVariable, Table] = {}
    for above in filter(operands.ledger.touches, variable.owner.inputs):
        try:
            if not isinstance(above.type, pt.TensorType):  # a scalar, which has no table
                raise Declined
            sources[above] = operands.table(read(above))
        except Declined:
            sources |= _sources(operands, above, read)
    return sources


def _weighted(operands: Operands, table: Table, weights: np.ndarray) -> list[Form]:
    """Return the terms of a weighted sum of the values of a table."""
    if table.axis is None:
        used = zip(table.entries.flat, weights.flat, strict=True)
        return [form.scaled(float(weight)) for form, weight in used if weight]
    ledger, axis = operands.ledger, table.axis
    entries = np.moveaxis(table.entries, axis, -1)
    weights = np.moveaxis(weights, axis, -1)
    layout = table.layout or whole(ledger.n)
    return [
        ledger.total(list(entries[index]), layout, weights[index])
        for index in np.ndindex(*weights.shape[:-1])
        if weights[index].any()
    ]
