r"""Reading an expression of records as a function of sums over them.

The expression, usually the log density of the releases, is interpreted node by node. A value is

- *public*: computed without the records; kept as its graph,
- *aggregate*: an array of scalar expressions of sums over the records (`forms`),
- *per record*: an array of rows, each :math:`\sum_k c_k \prod_{j \in k} b_j(x_i)`, with aggregate
  coefficients :math:`c_k` and per-record maps :math:`b_j` (`rows`).

A sum over the records turns a row into :math:`\sum_k c_k S_k` with
:math:`S_k = \sum_i \prod_{j \in k} b_j(x_i)`. That covers sums, means, counts, histograms,
clipping, cross products, variances, covariances and central moments, and whatever is computed from
them. Other linear ops, such as a product with a sparse matrix, are read by their public weights
(`weighted`). The records themselves enter as :math:`x - c` with a constant c near their mean, so
that powers do not cancel.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import pytensor.tensor as pt
from pytensor.compile.builders import OpFromGraph
from pytensor.compile.rewriting import inline_ofg_node
from pytensor.graph.basic import Constant, Variable
from pytensor.graph.replace import clone_replace, graph_replace
from pytensor.graph.traversal import ancestors
from pytensor.scalar.basic import ScalarVariable
from pytensor.tensor.elemwise import DimShuffle, Elemwise
from pytensor.tensor.random.basic import BernoulliRV, CategoricalRV
from pytensor.tensor.subtensor import Subtensor
from pytensor.tensor.variable import TensorVariable

from pymc_dp.graphs.declined import Declined
from pymc_dp.graphs.shapes import known_shape
from pymc_dp.graphs.substitution import simplified
from pymc_dp.graphs.values import nearest_rvs
from pymc_dp.reading.sums.polynomials import (
    Coefficient,
    Polynomial,
    constant,
    degree,
    read_polynomial,
)
from pymc_dp.reading.sums.reader import Reader
from pymc_dp.reading.sums.tables import Key, Table, Weighted, is_pure, times

_MOST_SUMS = 32  # of as many statistics as there are records

Affine = tuple[Coefficient, dict[ScalarVariable, Coefficient]]


@dataclass(frozen=True)
class Additive:
    """An expression ``entries(sums, public)`` with ``sums[k] = maps[k].sum()``.

    Attributes
    ----------
    maps : vectors over the records, in terms of the records, `centers` and public variables.
    sums : the scalars in `entries` that stand for their sums.
    entries : array of the expression's entries: scalar graphs or numbers.
    public : scalars in `entries` and the graphs that they stand for, free of the records.
    centers : vector of constants near the means, one for each column of the records.
    columns : (record variable, index of its column) for each of the centers.
    weighted : the maps of sums with a public weight for each record, without the weights.
    """

    maps: tuple[TensorVariable, ...]
    sums: tuple[ScalarVariable, ...]
    entries: np.ndarray
    public: tuple[tuple[ScalarVariable, TensorVariable], ...]
    centers: TensorVariable
    columns: tuple[tuple[TensorVariable, tuple[int, ...]], ...]
    weighted: Mapping[ScalarVariable, Weighted] = field(default_factory=dict)

    def rows(self) -> tuple[list[TensorVariable], list[ScalarVariable]]:
        """Return the maps, as vectors or as rows of matrices, and the sums in the same order.

        Maps that differ by public weights alone, those of many groups say, are one matrix.
        """
        parts = dict(zip(self.sums, self.maps, strict=True))
        alike: dict[Key, list[ScalarVariable]] = {}
        for s in filter(self.weighted.__contains__, self.sums):
            alike.setdefault(self.weighted[s].key, []).append(s)
        together = {s: group for group in alike.values() if len(group) > 1 for s in group}
        graphs, order = [], list[ScalarVariable]()
        for s in self.sums:
            if s not in together:
                graphs.append(parts[s])
                order.append(s)
            elif s is together[s][0]:
                weights = np.array([self.weighted[other].weights for other in together[s]])
                graphs.append(times(self.weighted[s].vector, weights))
                order += together[s]
        return graphs, order

    @property
    def outer(self) -> float | ScalarVariable:
        """The only entry of a scalar expression."""
        return self.entries[()]

    def at(self, values: Mapping[ScalarVariable, TensorVariable]) -> list[TensorVariable]:
        """Write the entries with tensors in place of their scalars, sums and public ones."""
        memo: dict[Variable, TensorVariable] = dict(values)

        def write(scalar: Variable) -> TensorVariable:
            if isinstance(scalar, Constant):
                return pt.constant(scalar.data)
            if scalar not in memo:
                node = scalar.owner
                outputs = Elemwise(node.op)(*map(write, node.inputs), return_list=True)
                memo[scalar] = outputs[node.outputs.index(scalar)]
            return memo[scalar]

        return [
            write(entry) if isinstance(entry, Variable) else pt.constant(float(entry))
            for entry in self.entries.flat
        ]

    def polynomials(self, leaves: Mapping[ScalarVariable, Polynomial]) -> list[Polynomial]:
        """Read the entries as polynomials, given the polynomials of their scalars."""

        def leaf(variable: Variable) -> Polynomial | None:
            if isinstance(variable, Constant):
                return constant(float(variable.data))
            return leaves.get(variable)

        return [
            read_polynomial(entry, leaf) if isinstance(entry, Variable) else constant(float(entry))
            for entry in self.entries.flat
        ]

    def affine(self, public: Mapping[ScalarVariable, Coefficient]) -> list[Affine]:
        """Read the entries as linear functions of the sums.

        Parameters
        ----------
        public : mapping
            Numbers or graphs in place of the public scalars.

        Returns
        -------
        list of (offset, dict of coefficients by sum)

        Raises
        ------
        Declined
            If an entry is not linear.
        """
        leaves: dict[ScalarVariable, Polynomial] = {s: {(k,): 1.0} for k, s in enumerate(self.sums)}
        leaves |= {s: constant(value) for s, value in public.items()}
        polynomials = self.polynomials(leaves)
        if any(degree(p) > 1 for p in polynomials):
            raise Declined("it multiplies sums with each other")
        return [
            (p.get((), 0.0), {self.sums[m[0]]: c for m, c in p.items() if m}) for p in polynomials
        ]


def additive(
    expression: TensorVariable,
    records: dict[TensorVariable, int],
    apart: Collection[TensorVariable] = (),
) -> Additive:
    """Read an expression as a function of sums over records.

    Parameters
    ----------
    expression : TensorVariable
        Function of the records, random variables with the records on their first axis.
    records : dict
        Variables of the same record, each with the number of records.
    apart : collection of TensorVariable, optional
        Variables to keep out of the maps, if possible: parameters, say, of a law whose sufficient
        statistics are the sums.

    Raises
    ------
    Declined
        Naming the op that makes it something else.
    """
    refusal: Declined | None = None
    for by_records in (True, False):
        reader, graph, back = _reader(expression, records, by_records=by_records)
        reader.ledger.apart = {v for v, rv in back.items() if rv in apart}
        try:
            entries = reader.entries(graph)
            break
        except RecursionError:
            raise Declined("its graph is too deep to be read") from None
        except Declined as reason:
            if not reader.operands.assumed:  # else there may be n statistics of n records
                raise
            refusal = reason
    used = set(ancestors([e for e in entries.flat if isinstance(e, Variable)]))
    sums = [(s, m) for s, m in reader.ledger.maps.items() if s in used]
    if refusal is not None and len(sums) > _MOST_SUMS:
        raise refusal  # as scalars, n of n would be too many to compile
    public = [(s, g) for s, g in reader.ledger.graphs.items() if s in used]
    weighted = {s: w for s, _ in sums if (w := reader.ledger.weighted.get(s)) is not None}
    vectors = _replaced([w.vector for w in weighted.values()], back)
    return Additive(
        maps=_replaced([m for _, m in sums], back),
        sums=tuple(s for s, _ in sums),
        entries=entries,
        public=tuple(
            zip([s for s, _ in public], _replaced([g for _, g in public], back), strict=True)
        ),
        centers=reader.centers,
        columns=tuple((back[v], index) for v, index in reader.columns),
        weighted={
            s: w._replace(vector=vector)
            for (s, w), vector in zip(weighted.items(), vectors, strict=True)
        },
    )


def column_vectors(
    graphs: Sequence[TensorVariable], records: TensorVariable
) -> dict[TensorVariable, int]:
    """Return the variables of graphs that are a column of some records, with its number.

    Raises
    ------
    Declined
        If another function of the records is in the graphs.
    """
    if records.type.ndim == 1:
        return {records: 0}
    numbers = {}
    for variable in ancestors(graphs, blockers=[records]):
        node = variable.owner
        if node is None or records not in node.inputs:
            continue
        _, *index = node.inputs
        match node.op:
            case DimShuffle(new_order=(0,)):  # the only one
                numbers[variable] = 0
            case Subtensor(idx_list=(rows, column)) if rows == slice(None) and isinstance(
                column, int
            ):
                numbers[variable] = int(index[column].data)
            case _:
                raise Declined(f"it computes with the rows of {records.name!r} as a whole")
    return numbers


def is_rowwise(expression: TensorVariable, rv: TensorVariable, n: int, ndim: int) -> bool:
    """Whether entry i of `expression`, broadcast to `ndim` axes, uses entry i of `rv` alone."""
    if expression.type.ndim != ndim or (ndim and expression.type.shape[0] not in (None, n)):
        return False  # the shape tells; to read statistics of many groups takes long
    try:
        _rows(expression, {rv: n})
    except (Declined, RecursionError):
        return False
    return True


def row_vectors(expression: TensorVariable, records: dict[TensorVariable, int]) -> np.ndarray:
    """Read an expression with the records on its first axis as vectors, elementwise in them.

    Parameters
    ----------
    expression : TensorVariable
        Of shape (n, ...); entry i depends on record i alone, or on none.
    records : dict
        The variables of a record, each with the number of records.

    Returns
    -------
    ndarray of TensorVariable
        A vector for each trailing entry of the expression; contractions over axes other than the
        records' are written out.

    Raises
    ------
    Declined
        If an aggregate of the records is part of it.
    """
    rows, back = _rows(expression, records)
    vectors = np.empty(rows.shape, dtype=object)
    vectors.flat = _replaced([row.pure for row in rows.flat], back)
    return vectors


def _rows(expression: TensorVariable, records: dict[TensorVariable, int]):
    """Read an expression with the records on its first axis as rows; see `row_vectors`."""
    reader, graph, back = _reader(expression, records, keep_axis=True)
    value = reader.read(graph)
    if not isinstance(value, Table) or value.axis != 0 or value.layout is not None:
        raise Declined("its first axis is not that of the records")
    if not all(map(is_pure, value.entries.flat)):
        raise Declined("an aggregate of the records is part of it")
    return value.entries.reshape(value.entries.shape[1:]), back


def _reader(expression: TensorVariable, records: dict[TensorVariable, int], **options: bool):
    """Return a reader, the graph to read, and the random variable that each input stands for."""
    stand_ins = {}
    for rv in nearest_rvs([expression]):
        shape = (records[rv], *known_shape(rv)[1:]) if rv in records else known_shape(rv)
        stand_ins[rv] = pt.TensorType(rv.dtype, shape)(rv.name)
    try:
        graph = _inlined(clone_replace(expression, stand_ins, rebuild_strict=False))
    except ValueError:  # from PyTensor: the records' shape does not fit
        raise Declined("it does not treat all records alike") from None
    [graph] = simplified([graph])
    used = [rv for rv in records if rv in stand_ins]
    known = {stand_ins[rv]: _categories(rv) for rv in used}
    categories = {v: k for v, k in known.items() if k is not None}
    reader = Reader([stand_ins[rv] for rv in used], max(records.values()), categories, **options)
    return reader, graph, {v: rv for rv, v in stand_ins.items()}


def _inlined(graph: TensorVariable) -> TensorVariable:
    """Inline ops that are graphs of their own, softmax say."""
    while True:
        packed = [v for v in ancestors([graph]) if v.owner and isinstance(v.owner.op, OpFromGraph)]
        if not packed:
            return graph
        node = packed[0].owner
        outputs = dict(zip(node.outputs, inline_ofg_node(node), strict=True))
        [graph] = graph_replace([graph], outputs, strict=False)


def _categories(rv: TensorVariable) -> int | None:
    """Return the number of values of Bernoulli and Categorical records."""
    match rv.owner.op if rv.owner else None:
        case BernoulliRV():
            return 2
        case CategoricalRV() as op:
            [p] = op.dist_params(rv.owner)
            return p.type.shape[-1]
    return None


def _replaced(graphs: list[TensorVariable], by: dict) -> tuple[TensorVariable, ...]:
    return tuple(graph_replace(graphs, by, strict=False)) if graphs else ()
