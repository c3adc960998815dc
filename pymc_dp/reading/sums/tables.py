"""Rows, the values of one entry of a tensor for all records, and tables of them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import product
from typing import NamedTuple

import numpy as np
import pytensor.tensor as pt
from pytensor import scalar as ps
from pytensor.graph.basic import Constant, Variable, equal_computations
from pytensor.graph.traversal import ancestors
from pytensor.scalar.basic import ScalarVariable
from pytensor.tensor.elemwise import Elemwise
from pytensor.tensor.variable import TensorVariable

from pymc_dp.graphs.declined import Declined, Unrelated
from pymc_dp.graphs.values import keeps_values
from pymc_dp.reading.sums.forms import Form, Scalars, added, node, refusal

_MOST_ROW_TERMS = 64
_MOST_EXPONENT = 8
_MOST_PLACED = 20_000_000  # records, whose places have to fit into the memory

Key = tuple[int, ...]  # a product of base maps, by their numbers
Terms = dict[Key, Form]


@dataclass
class Row:
    """One value for each record.

    `terms` maps products of base maps to coefficients; `pure` is the vector itself, if no aggregate
    is part of it. At least one of them is not None.
    """

    terms: Terms | None
    pure: TensorVariable | None


Entry = Form | Row


def is_pure(entry: Entry) -> bool:
    """Whether an entry is a vector of which no aggregate is part."""
    return isinstance(entry, Row) and entry.pure is not None


@dataclass(frozen=True)
class Layout:
    """Which records stand along an axis, if not all of them in order.

    Attributes
    ----------
    records : the record at each position.
    blocks : for each position, the number of the table's entry that is its row.
    mask : truth values of the records, true at positions that are kept; None for all.
    """

    records: np.ndarray
    blocks: np.ndarray
    mask: TensorVariable | None = None

    def taken(self, chosen) -> Layout:
        """Return the layout of some positions."""
        return Layout(self.records[chosen], self.blocks[chosen], self.mask)

    def equals(self, other: Layout | None) -> bool:
        """Whether the positions of two layouts are the same."""
        if other is None or (self.mask is None) != (other.mask is None):
            return False
        return (
            np.array_equal(self.records, other.records)
            and np.array_equal(self.blocks, other.blocks)
            and (self.mask is None or equal_computations([self.mask], [other.mask]))
        )


class Weighted(NamedTuple):
    """A map that is a product of base maps, by its key, with a public weight for each record."""

    key: Key
    vector: TensorVariable
    weights: np.ndarray


def times(vector: TensorVariable, weights: np.ndarray) -> TensorVariable:
    """Return a vector of the records times weights; a matrix of weights gives a row for each."""
    return pt.where(weights != 0, vector * weights, 0.0)


def whole(n: int) -> Layout:
    """Return the layout of all records in order."""
    if n > _MOST_PLACED:
        raise Declined(f"it takes some of {n:,} records by their places, too many to be read so")
    return Layout(np.arange(n), np.zeros(n, dtype=int))


@dataclass
class Table:
    """The entries of a tensor.

    Along `axis`, if there is one, are the records: it has one entry, a row, or a row for each block
    of the layout (None: all records in order).
    """

    entries: np.ndarray
    axis: int | None = None
    layout: Layout | None = None


@dataclass
class Ledger:
    """Rows and their sums, each made once and shared by all results."""

    n: int
    touching: dict[Variable, bool]  # starts with the records
    bases: list[TensorVariable] = field(default_factory=list)
    sums: dict[tuple, ScalarVariable] = field(default_factory=dict)
    maps: dict[ScalarVariable, TensorVariable] = field(default_factory=dict)
    weighted: dict[ScalarVariable, Weighted] = field(default_factory=dict)
    public: dict[tuple, ScalarVariable] = field(default_factory=dict)
    graphs: dict[ScalarVariable, TensorVariable] = field(default_factory=dict)
    scalars: Scalars = field(default_factory=Scalars)
    made: dict[tuple, TensorVariable] = field(default_factory=dict)
    apart: set[Variable] = field(default_factory=set)  # to keep out of the maps

    def touches(self, variable: Variable) -> bool:
        """Whether a variable is computed from the records."""
        if variable not in self.touching:
            inputs = [] if variable.owner is None else variable.owner.inputs
            self.touching[variable] = any([self.touches(i) for i in inputs])
        return self.touching[variable]

    # --- Public values and base maps ------------------------------------------------------------

    def public_form(self, graph: TensorVariable, index: tuple[int, ...] = ()) -> Form:
        """Return the form of an entry of a public tensor."""
        if isinstance(graph, Constant):
            return Form(float(graph.data[index]))
        key = (graph, index)
        if key not in self.public:
            symbol = self.public[key] = ps.float64(f"p{len(self.public)}")
            self.graphs[symbol] = graph[index] if index else graph
        return Form(0.0, {self.public[key]: 1.0})

    def column(self, column: TensorVariable, center: TensorVariable) -> Row:
        """Return the row of a column of the records, centred."""
        if not column.dtype.startswith("float"):
            center = pt.round(center)  # so that counts stay whole numbers
        return Row({(self.base(column - center),): Form(1.0), (): self.public_form(center)}, column)

    def base(self, vector: TensorVariable) -> int:
        """Return the number of a base map; casts of truth values are left out, for `_merged`."""
        while _is_cast_of_bool(vector):
            [vector] = vector.owner.inputs
        if vector not in self.bases:
            self.bases.append(vector)
        return self.bases.index(vector)

    def terms(self, entry: Entry) -> Terms:
        """Return the terms of an entry; a vector without terms is a base map of its own."""
        if isinstance(entry, Form):
            return {(): entry}
        return self.as_base(entry.pure) if entry.terms is None else entry.terms

    def as_base(self, vector: TensorVariable) -> Terms:
        """Return the terms of a vector that is a base map of its own."""
        return {(self.base(vector),): Form(1.0)}

    def vector(self, entry: Entry, dtype: str) -> TensorVariable | None:
        """Return an operand as a graph over the records; None if an aggregate is part of it."""
        if isinstance(entry, Row):
            return entry.pure
        if not entry.weights:
            kind = "int64" if np.dtype(dtype).kind in "iu" else dtype
            return pt.constant(np.asarray(entry.constant).astype(kind))
        if any(symbol not in self.graphs for symbol in entry.weights):
            return None
        if self.apart and self.apart.intersection(ancestors(map(self.graphs.get, entry.weights))):
            return None
        total = pt.add(entry.constant, *(w * self.graphs[s] for s, w in entry.weights.items()))
        return total.astype(dtype)

    # --- Arithmetic -----------------------------------------------------------------------------

    def apply(self, op: ps.ScalarOp, entries: Sequence[Entry], dtypes: Sequence[str]) -> Entry:
        """Apply a scalar op to entries; `dtypes` are those of the operands."""
        if op.nout > 1:  # a form is one number
            raise refusal(op)
        forms = [e for e in entries if isinstance(e, Form)]
        if len(forms) == len(entries):
            return self.scalars.apply(op, forms, dtypes)
        vectors = [self.vector(e, dtype) for e, dtype in zip(entries, dtypes, strict=True)]
        pure = None
        if not any(v is None for v in vectors):
            pure = node(self.made, Elemwise(op), vectors)
        polynomial = any(isinstance(e, Row) and e.terms is not None for e in entries)
        # If no operand has terms, the result is a base map of its own, with fewer terms.
        terms = self._polynomial(op, entries, dtypes) if polynomial or pure is None else None
        if pure is None and terms is None:
            raise refusal(op)
        return Row(terms, pure)

    def _polynomial(
        self, op: ps.ScalarOp, entries: Sequence[Entry], dtypes: Sequence[str]
    ) -> Terms | None:
        """Return the terms of a result that is a polynomial of base maps; None for others."""
        first, *rest = entries
        match op:
            case ps.Identity():
                return self.terms(first)
            case ps.Cast() if keeps_values(op, dtypes[0]):
                return self.terms(first)
            case ps.Second():
                return self.terms(rest[0])
            case ps.Neg():
                return self._scaled(first, Form(-1.0))
            case ps.Add() if set(dtypes) == {"bool"}:
                return self._either(entries)
            case ps.Add():
                return self._added([self.terms(e) for e in entries])
            case ps.Sub():
                return self._added([self.terms(first), self._scaled(rest[0], Form(-1.0))])
            case ps.Mul():
                return self._product(entries)
            case ps.Sqr():
                return self._product([first, first])
            case ps.Pow() if isinstance(rest[0], Form) and not rest[0].weights:
                power = rest[0].constant
                if power in range(1, _MOST_EXPONENT + 1):
                    return self._product([first] * int(power))
            case ps.TrueDiv() if isinstance(rest[0], Form):
                inverse_divisor = self.scalars.apply(
                    ps.true_div, [Form(1.0), rest[0]], ["float64"] * 2
                )
                return self._scaled(first, inverse_divisor)
            case ps.TrueDiv() if isinstance(rest[0], Row) and rest[0].pure is not None:
                divisor = rest[0].pure.astype("float64")
                inverse = node(self.made, Elemwise(ps.reciprocal), [divisor])
                return self._product([first, Row(None, inverse)])
            case ps.Switch() if self.apart and isinstance(first, Row) and dtypes[0] == "bool":
                if (mask := first.pure) is None:
                    return None
                masks = [mask, node(self.made, Elemwise(ps.invert), [mask])]
                parts = [p for p in map(self._chosen, masks, rest) if p is not None]
                return self._added(parts) if len(parts) == 2 else None
        return None

    def _chosen(self, mask: TensorVariable, entry: Entry) -> Terms | None:
        """Return the terms of an entry, zero outside of a mask, where a product could be NaN."""
        chosen: Terms = {}
        for key, coefficient in self.terms(entry).items():
            if not math.isfinite(coefficient.constant):
                return None
            vector = mask
            if key:
                whole = node(self.made, pt.mul, [self.bases[k] for k in key])
                vector = node(
                    self.made, Elemwise(ps.switch), [mask, whole, pt.constant(np.zeros(1))]
                )
            chosen[(self.base(vector),)] = coefficient
        return chosen

    def _either(self, entries: Sequence[Entry]) -> Terms | None:
        """Return the terms of a sum of truth values, which means `or`: a + b - a b."""
        total = self.terms(entries[0])
        for entry in entries[1:]:
            both = self._product([Row(total, None), entry])
            if both is None:
                return None
            less = self._scaled(Row(both, None), Form(-1.0))
            either = self._added([total, self.terms(entry), less])
            if either is None:
                return None
            total = either
        return total

    def _scaled(self, entry: Entry, factor: Form) -> Terms:
        return {k: self.scalars.product(c, factor) for k, c in self.terms(entry).items()}

    def _added(self, parts: Sequence[Terms]) -> Terms | None:
        collected: dict[Key, list[Form]] = {}
        for part in parts:
            for key, form in part.items():
                collected.setdefault(key, []).append(form)
        if len(collected) > _MOST_ROW_TERMS:
            return None
        total = {key: added(forms) for key, forms in collected.items()}
        return {k: c for k, c in total.items() if c.weights or c.constant != 0.0}

    def _product(self, entries: Sequence[Entry]) -> Terms | None:
        total: Terms | None = self.terms(entries[0])
        for entry in entries[1:]:
            factor = self.terms(entry)
            if total is None or len(total) * len(factor) > 4 * _MOST_ROW_TERMS:
                return None
            pairs = product(total.items(), factor.items())
            total = self._added(
                [{self._merged(i, j): self.scalars.product(c, d)} for (i, c), (j, d) in pairs]
            )
        return total

    def _merged(self, i: Key, j: Key) -> Key:
        """Return the product of two keys; the square of a truth value is that value."""
        return tuple(sorted([*i, *(k for k in j if k not in i or self.bases[k].dtype != "bool")]))

    # --- Sums -----------------------------------------------------------------------------------

    def total(
        self, entries: Sequence[Entry], layout: Layout | None, weights: np.ndarray | None = None
    ) -> Form:
        """Sum entries over the records and the blocks of a layout; weights are by position."""
        if layout is None:
            return self._sum(entries[0], None, None)
        forms = []
        for block, entry in enumerate(entries):
            here = layout.blocks == block
            position_weights = None if weights is None else weights[here]
            of_records = np.bincount(layout.records[here], position_weights, self.n).astype(
                "float64"
            )
            if weights is None or of_records.any():
                same = np.all(of_records == 1)
                forms.append(self._sum(entry, None if same else of_records, layout.mask))
        return added(forms)

    def _sum(self, entry: Entry, weights, mask) -> Form:
        suffix = None if weights is None else weights.tobytes(), mask
        terms = self.terms(entry)
        if isinstance(entry, Row) and entry.pure is not None:
            known = {k for k in terms if (k, *suffix) in self.sums}
            new = [
                k for k in terms if k not in known and any(self.touches(self.bases[j]) for j in k)
            ]
            if len(new) > 1:
                terms = self.as_base(entry.pure)  # one sum is enough
        sums = [(c, self._sum_of(key, weights, mask)) for key, c in terms.items()]
        total = added([self.scalars.product(c, value) for c, value in sums])
        if mask is None or all(s in self.graphs for c, _ in sums for s in c.weights):
            return total
        # If nothing is selected, the sum is zero, though its coefficients (a mean) may be NaN.
        some = self.scalars.apply(ps.gt, [self._sum_of((), weights, mask), Form()], ["float64"] * 2)
        return self.scalars.apply(ps.switch, [some, total, Form()], ["bool", "float64", "float64"])

    def _sum_of(self, product_of: Key, weights, mask) -> Form:
        """Return the form of the sum of a product of base maps."""
        if not product_of and mask is None:
            return Form(float(self.n if weights is None else weights.sum()))
        if not product_of:
            return self._sum_of((self.base(mask),), weights, None)
        key = (product_of, None if weights is None else weights.tobytes(), mask)
        if key not in self.sums:
            whole = vector = pt.mul(*(self.bases[k] for k in product_of)).astype("float64")
            # Records outside of the selection may have any value, NaN too.
            if weights is not None:
                vector = times(vector, weights)
            if mask is not None:
                vector = pt.where(mask, vector, 0.0)
            if self.touches(vector):
                symbol = self.sums[key] = ps.float64(f"s{len(self.maps)}")
                self.maps[symbol] = vector
                if weights is not None and mask is None:
                    self.weighted[symbol] = Weighted(product_of, whole, weights)
            else:
                [self.sums[key]] = self.public_form(vector.sum()).weights
        return Form(0.0, {self.sums[key]: 1.0})


def common_layout(tables: Sequence[Table]) -> tuple[int | None, Layout | None]:
    """Return the axis of the records and its layout, which the tables have to share."""
    with_records = [t for t in tables if t.axis is not None]
    if not with_records:
        return None, None
    if len({t.axis for t in with_records}) > 1:
        raise Unrelated("it combines two unrelated axes of records")
    first, *rest = with_records
    for t in rest:
        same = t.layout is None if first.layout is None else first.layout.equals(t.layout)
        if not same:
            raise Declined("it combines different selections of the records")
    return first.axis, first.layout


def _is_cast_of_bool(vector: TensorVariable) -> bool:
    node = vector.owner
    is_cast = node and isinstance(node.op, Elemwise) and isinstance(node.op.scalar_op, ps.Cast)
    return bool(is_cast) and node.inputs[0].dtype == "bool"


def mapped(function, arrays: Sequence[np.ndarray]) -> np.ndarray:
    """Apply a function to the entries of arrays, which broadcast."""
    arrays = np.broadcast_arrays(*arrays)
    result = np.empty(arrays[0].shape, dtype=object)
    result.flat = [function(*each) for each in zip(*(a.flat for a in arrays), strict=True)]
    return result
