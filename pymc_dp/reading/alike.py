"""Records that are alike, and are added up with others: one stands for all of a run of them."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytensor.tensor as pt
from pytensor.graph.basic import Apply, Variable
from pytensor.graph.traversal import toposort
from pytensor.tensor.elemwise import Elemwise
from pytensor.tensor.exceptions import NotScalarConstantError
from pytensor.tensor.math import Sum
from pytensor.tensor.shape import Shape, Shape_i
from pytensor.tensor.subtensor import Subtensor, get_constant_idx
from pytensor.tensor.variable import TensorVariable
from scipy import sparse

from pymc_dp.graphs.declined import Declined, once
from pymc_dp.graphs.linear import linear_map
from pymc_dp.graphs.shapes import lengths, with_shapes
from pymc_dp.graphs.substitution import substitute
from pymc_dp.graphs.values import known_value
from pymc_dp.reading.cells import Index, places
from pymc_dp.reading.model import Reading, release_statistic, releases_of

_FEW = 10_000  # records that are read one by one, which takes no longer

type Run = tuple[TensorVariable, range]  # a variable, and the records of it that a vector is of


class Alike:
    """Writes expressions of vectors of records with one record in place of each run of alike ones.

    Many records with the same parameters are alike where some expressions take all of them, or
    slices between which the runs are cut. Other variables are left as they are.
    """

    def __init__(self, rvs: Sequence[TensorVariable], releases: Sequence[TensorVariable]):
        self.cuts = {rv: {0, *lengths(rv)} for rv in rvs if _are_alike(rv)}
        before = -1
        while before < (before := sum(map(len, self.cuts.values()))):
            self.memo: dict[Variable, tuple[Variable, Run | None]] = {
                rv: (pt.TensorType(rv.dtype, (len(c) - 1,))(rv.name), (rv, range(max(c))))
                for rv, c in self.cuts.items()
            }
            for graph in map(release_statistic, releases):
                self.written(graph)
                if self._of(graph)[1]:
                    raise Declined  # it has an entry for each record

    def written(self, graph: Variable) -> Variable:
        """Return a graph of one record of each run, which sums take as often as it stands for."""
        for node in toposort([graph], blockers=self.memo):
            if not self.memo.keys().isdisjoint(node.inputs):
                outputs, run = self._node(node)
                self.memo |= {v: (o, run) for v, o in zip(node.outputs, outputs, strict=True)}
        return self._of(graph)[0]

    def parts(self, rv: TensorVariable) -> tuple[Index, np.ndarray]:
        """Return the place of the first record of each run, and how many records there are."""
        if rv not in self.cuts:
            return places(rv), np.ones(lengths(rv), dtype=int).ravel()
        cuts = np.array(sorted(self.cuts[rv]))
        return (cuts[:-1],), np.diff(cuts)

    def linear(
        self, graph: TensorVariable, part: TensorVariable, beside: Sequence[TensorVariable] = ()
    ) -> tuple[sparse.csr_array, np.ndarray | None]:
        """Return the weights of a part in a graph, and the rest; None where that is not known.

        There is a column for each run, with the weight of one of its records. What is beside the
        part is left out.
        """
        graph, *parts = map(self.written, (graph, part, *beside))
        weights = linear_map(graph, parts[0])
        weights.eliminate_zeros()
        weights.sort_indices()
        if run := self._of(part)[1]:
            weights.data /= np.diff(self._ends(run))[weights.indices]
        zeros = {v: pt.zeros(lengths(v), dtype=v.dtype) for v in parts}
        return weights, known_value(substitute(graph, zeros))

    def _of(self, graph: Variable) -> tuple[Variable, Run | None]:
        return self.memo.get(graph, (graph, None))

    def _ends(self, run: Run) -> list[int]:
        return sorted(c for c in self.cuts[run[0]] if run[1].start <= c <= run[1].stop)

    def _node(self, node: Apply) -> tuple[Sequence[Variable], Run | None]:
        op, out = node.op, node.outputs[0]
        if isinstance(op, Shape | Shape_i):
            return [with_shapes(out)], None
        inputs, runs = zip(*map(self._of, node.inputs), strict=True)
        first, run, pairs = inputs[0], runs[0], zip(inputs, runs, strict=True)
        vectors = {r for i, r in pairs if r or not all(getattr(i.type, "broadcastable", ()))}
        match op:
            case _ if not any(runs):
                return op.make_node(*inputs).outputs, None
            case Elemwise() if len(vectors) == 1:  # no other records or numbers, one for each
                return op.make_node(*inputs).outputs, vectors.pop()
            case Sum() if out.dtype != "bool":
                times = np.diff(self._ends(run)).astype(out.dtype)
                return [op(first.astype(out.dtype) * times)], None
            case Subtensor() if run:
                [index] = get_constant_idx(op.idx_list, inputs)
                taken = isinstance(index, slice) and run[1][index]
                if taken and taken.step == 1:
                    self.cuts[run[0]] |= {taken.start, taken.stop}
                    start, stop = map(self._ends(run).index, (taken.start, taken.stop))
                    return [first[start:stop]], (run[0], taken)
        raise Declined(f"`{op}` does not treat the records alike")


def _are_alike(rv: TensorVariable) -> bool:
    """Whether a variable is a vector of many records with the same parameters."""
    op = rv.owner.op
    if getattr(op, "ndim_supp", 1) or rv.type.ndim != 1 or lengths(rv)[0] <= _FEW:
        return False
    return all(all(p.type.broadcastable) for p in op.dist_params(rv.owner))


@once
def alike(reading: Reading, rv: TensorVariable, beside: tuple[TensorVariable, ...] = ()) -> Alike:
    """Return the runs of records that all releases treat alike, or no runs."""
    try:
        return Alike((rv, *beside), releases_of(reading.model, [rv]))
    except (Declined, NotScalarConstantError):
        return Alike((), ())
