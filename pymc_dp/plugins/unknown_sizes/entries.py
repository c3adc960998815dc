"""The entries of a release, as functions of numbers of records and of sums over these records."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pytensor.tensor as pt
from pytensor.graph.replace import graph_replace, vectorize_graph
from pytensor.tensor.variable import TensorVariable

from pymc_dp.graphs.declined import Declined
from pymc_dp.graphs.linear import linear_map
from pymc_dp.graphs.values import noticed_function


@dataclass(frozen=True, eq=False)
class Entries:
    """The entries of a release, as a graph of the numbers of records and of sums over these.

    Attributes
    ----------
    shape, graph : the shape of the release, and the graph of its entries in a row.
    numbers, sums : vectors that stand for them in the graph, which is linear in the sums.
    group : which of the numbers an entry depends on.
    place : which of the sums is part of an entry; -1 where none is.
    times : the coefficient of that sum; NaN where it depends on the number.
    """

    shape: tuple[int, ...]
    graph: TensorVariable
    numbers: TensorVariable
    sums: TensorVariable
    group: np.ndarray
    place: np.ndarray
    times: np.ndarray

    @property
    def summed(self) -> np.ndarray:
        """Whether a sum is part of each entry."""
        return self.place >= 0

    def at(self, sizes: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return constants and slopes of the entries for some sizes of each group."""
        numbers, sums = (pt.matrix(dtype=v.dtype) for v in (self.numbers, self.sums))
        of_all = vectorize_graph(self.graph, {self.numbers: numbers, self.sums: sums})
        at = noticed_function([numbers, sums], of_all)
        shape = sizes.shape[1], self.sums.type.shape[0]
        wide = self.group.size, sizes.shape[1]
        with np.errstate(all="ignore"):
            zero, one = (
                np.broadcast_to(at(sizes.T, np.full(shape, k, sums.dtype)).T, wide) for k in (0, 1)
            )
            slopes = np.where(np.isnan(self.times[:, None]), one - zero, self.times[:, None])
        return zero.astype("float64"), np.where(self.summed[:, None], slopes, 0.0)

    def without_sums(self, sizes: TensorVariable) -> TensorVariable:
        """Return the entries for some sizes of each group, where the sums are zero."""
        zeros = pt.zeros((sizes.shape[1], self.sums.type.shape[0]), dtype=self.sums.dtype)
        return vectorize_graph(self.graph, {self.numbers: sizes.T, self.sums: zeros}).T

    def is_linear(self) -> bool:
        """Whether entries that no sum is part of are linear in the number of records."""
        alone = self.graph[np.flatnonzero(~self.summed)]
        try:
            return bool(np.isfinite(linear_map(alone, self.numbers).data).all())
        except Declined:
            return False

    def release(self, n: TensorVariable, total: TensorVariable) -> TensorVariable:
        """Write the release for numbers of records and their sums."""
        replacements = {
            stand_in: pt.specify_shape(v.astype(stand_in.dtype), stand_in.type.shape)
            for stand_in, v in ((self.numbers, n), (self.sums, total))
        }
        return graph_replace([self.graph], replacements, strict=False)[0].reshape(self.shape)
