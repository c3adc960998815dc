"""Records that are alike, and are added up with others: one stands for all of a run of them."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from itertools import chain
from typing import Any, NamedTuple

import numpy as np
import pytensor.tensor as pt
from pymc.distributions.distribution import SymbolicRandomVariable
from pymc.distributions.mixture import MixtureRV
from pytensor.graph.basic import Apply, Variable
from pytensor.graph.traversal import toposort
from pytensor.tensor.elemwise import DimShuffle, Elemwise
from pytensor.tensor.math import Sum
from pytensor.tensor.random.op import RandomVariable
from pytensor.tensor.shape import Shape, Shape_i
from pytensor.tensor.subtensor import Subtensor, indices_from_subtensor
from pytensor.tensor.variable import TensorVariable
from scipy import sparse

from pymc_dp.graphs.declined import Declined, once
from pymc_dp.graphs.linear import linear_map
from pymc_dp.graphs.shapes import known_shape, lengths
from pymc_dp.graphs.substitution import substitute
from pymc_dp.graphs.values import is_random, keeps_values, known_value
from pymc_dp.reading.cells import Index, places
from pymc_dp.reading.model import Reading, release_statistic, releases_of


class Run(NamedTuple):
    """Records of which an axis of a graph has one for each part, between two places of an axis."""

    rv: TensorVariable
    axis: int
    start: int
    stop: int


type Written = tuple[Variable, tuple[Run | None, ...]]  # a graph, and what each of its axes is


class Alike:
    """Writes statistics of some variables with one record in place of each part of alike records.

    Along an axis with the same parameters, parts are what slices of it leave together.

    Attributes
    ----------
    cuts : for each variable, and each of its axes, where a part begins, and the last one ends.
    long : for each variable, whether the records along an axis have the same parameters.
    """

    def __init__(self, rvs: Iterable[TensorVariable]):
        same = {rv: zip(lengths(rv), _same_parameters(rv), strict=True) for rv in rvs}
        every = {rv: [n > 1 and along for n, along in axes] for rv, axes in same.items()}
        self.stand_ins: dict[Any, TensorVariable] = {}
        self.long = {rv: long for rv, long in every.items() if any(long)}
        self.cuts = {
            rv: [{0, n} if j else {*range(n + 1)} for n, j in zip(lengths(rv), long, strict=True)]
            for rv, long in self.long.items()
        }

    def written(self, graphs: Sequence[Variable], *, counted: bool) -> list[Variable]:
        """Return graphs for one record of each part, which sums take as often as it stands for.

        Without `counted` they take it once.
        """
        self.counted, self.written_as = counted, dict[Variable, Written]()
        for rv, cuts in self.cuts.items():
            shape = tuple(len(c) - 1 for c in cuts)
            axes = enumerate(zip(lengths(rv), self.long[rv], strict=True))
            runs = tuple(Run(rv, j, 0, n) if long else None for j, (n, long) in axes)
            one_each = pt.TensorType(rv.dtype, shape)(rv.name)
            self.written_as[rv] = self.stand_ins.setdefault((rv, shape), one_each), runs
        for node in toposort(graphs, blockers=self.cuts):
            if not self.written_as.keys().isdisjoint(node.inputs):
                self.written_as[node.outputs[0]] = self._node(node)
        return [self._of(graph)[0] for graph in graphs]

    def cut(self, graphs: Sequence[Variable]) -> None:
        """Cut the records where slices of them in some graphs begin and end."""
        before = -1
        while before < (before := sum(map(len, chain(*self.cuts.values())))):
            self.written(graphs, counted=True)
        if any(chain(*(self._of(graph)[1] for graph in graphs))):
            raise Declined("it has an entry for each record")

    def parts(self, rv: TensorVariable) -> tuple[Index, np.ndarray]:
        """Return the place of the first record of each part, raveled, and how many there are."""
        if rv not in self.cuts:
            return places(rv), np.ones(math.prod(lengths(rv)), dtype="int64")
        cuts = [np.array(sorted(c)) for c in self.cuts[rv]]
        first = np.meshgrid(*(c[:-1] for c in cuts), indexing="ij")
        times = np.meshgrid(*map(np.diff, cuts), indexing="ij")
        return tuple(map(np.ravel, first)), np.prod(times, axis=0).ravel()

    def linear(
        self, graph: TensorVariable, part: TensorVariable, beside: Sequence[TensorVariable] = ()
    ) -> tuple[sparse.csr_array, np.ndarray | None]:
        """Return the weights of a part in a graph, and the rest; None where that is not known.

        Each column is that of one record. What is beside the part is left out.
        """
        weights = linear_map(*self.written([graph, part], counted=False))
        weights.eliminate_zeros()
        weights.sort_indices()
        counted, *parts = self.written([graph, part, *beside], counted=True)
        zeros = {v: pt.zeros(known_shape(v), dtype=v.dtype) for v in parts}
        return weights, known_value(substitute(counted, zeros))

    def _of(self, graph: Variable) -> Written:
        return self.written_as.get(graph, (graph, (None,) * getattr(graph.type, "ndim", 0)))

    def _node(self, node: Apply) -> Written:
        out, op = node.outputs[0], node.op
        inputs, runs = zip(*map(self._of, node.inputs), strict=True)
        if isinstance(op, Shape | Shape_i):
            shape = lengths(node.inputs[0])
            number = shape[op.i] if isinstance(op, Shape_i) else shape
            return pt.constant(np.array(number, dtype="int64")), (None,) * out.type.ndim
        if len(node.outputs) == 1 and not any(chain(*runs)):
            return op.make_node(*inputs).outputs[0], (None,) * out.type.ndim
        first, of_first = inputs[0], runs[0]
        match op:
            case Elemwise():
                kept = [
                    {
                        r
                        for i, r in zip(node.inputs, axis, strict=True)
                        if not i.type.broadcastable[k]
                    }
                    for k, axis in enumerate(zip(*runs, strict=True))
                ]
                if all(len(found) < 2 for found in kept):
                    return op(*inputs), tuple(r for found in kept for r in found or {None})
            case DimShuffle():
                order = op.new_order
                return op(first), tuple(None if k == "x" else of_first[k] for k in order)
            case Sum() if out.dtype != "bool":
                axes = range(len(of_first)) if op.axis is None else op.axis
                first = first.astype(out.dtype)
                for k in axes:
                    if self.counted and (run := of_first[k]):
                        times = np.diff(self._between(run))
                        along = [-1 if j == k else 1 for j in range(len(of_first))]
                        first *= pt.constant(times.reshape(along).astype(out.dtype))
                return op(first), tuple(r for k, r in enumerate(of_first) if k not in axes)
            case Subtensor():
                index = indices_from_subtensor(inputs[1:], op.idx_list)
                pairs = [
                    (i, run) if run is None else self._taken(i, run)
                    for i, run in zip(index, of_first, strict=False)
                ]
                left = [r for i, r in pairs if isinstance(i, slice)]
                return first[tuple(i for i, _ in pairs)], (*left, *of_first[len(pairs) :])
            case _ if keeps_values(op, node.inputs[0]):
                return first, of_first
        raise Declined(f"`{op}` does not treat the records alike")

    def _between(self, run: Run) -> np.ndarray:
        return np.array(
            [c for c in sorted(self.cuts[run.rv][run.axis]) if run.start <= c <= run.stop]
        )

    def _taken(self, index: Variable | slice, run: Run) -> tuple[Any, Run | None]:
        """Return an index of the parts of a run, and the run that it leaves."""
        is_slice = isinstance(index, slice)
        ends = (index.start, index.stop, index.step) if is_slice else (index,)
        values = [None if i is None else known_value(pt.as_tensor(i)) for i in ends]
        if any(v is None and i is not None for v, i in zip(values, ends, strict=True)):
            raise Declined("an index in it is not known")
        numbers = [None if v is None else int(v) for v in values]
        records = range(run.start, run.stop)
        if not is_slice and (first := numbers[0]) is not None:
            numbers = [first, first + 1 or None]
        taken = records[slice(*numbers)]
        if taken.step != 1 or not (taken or is_slice):
            raise Declined("it takes records with gaps between them, or none")
        new = run._replace(start=taken.start, stop=max(taken.start, taken.stop))
        self.cuts[run.rv][run.axis] |= {new.start, new.stop}
        before = len(self._between(run._replace(stop=new.start))) - 1
        parts = len(self._between(new)) - 1
        return (slice(before, before + parts), new) if is_slice else (before, None)


def _same_parameters(rv: TensorVariable) -> list[bool]:
    """Return for each axis of a variable whether records along it have the same parameters."""
    op, flags = rv.owner.op, []
    if not isinstance(op, RandomVariable | SymbolicRandomVariable) or op.ndim_supp:
        raise Declined
    for p, core in zip(op.dist_params(rv.owner), op.ndims_params, strict=True):
        same = p.type.broadcastable
        if isinstance(op, MixtureRV) and is_random(p):  # a component, drawn for each record
            same = [a or b for a, b in zip(same, _same_parameters(p), strict=True)]
        flags.append(same[: len(same) - core])
    return [all(same[-j] for same in flags if len(same) >= j) for j in range(rv.type.ndim, 0, -1)]


@once
def alike(reading: Reading, rv: TensorVariable, beside: tuple[TensorVariable, ...] = ()) -> Alike:
    """Return the parts of records that all releases treat alike, each of one record at worst."""
    try:
        found = Alike((rv, *beside))
        found.cut([release_statistic(r) for r in releases_of(reading.model, [rv])])
    except Declined:
        return Alike(())
    return found
