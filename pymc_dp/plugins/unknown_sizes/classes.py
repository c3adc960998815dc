"""Reading releases of how many records of unknown number fall into classes."""

from __future__ import annotations

import numpy as np
import pytensor.tensor as pt
from pytensor.graph.basic import Variable
from pytensor.graph.replace import clone_replace, graph_replace
from pytensor.graph.traversal import ancestors, toposort
from pytensor.tensor.elemwise import DimShuffle, Elemwise
from pytensor.tensor.random.op import RandomVariable
from pytensor.tensor.subtensor import AdvancedSubtensor
from pytensor.tensor.variable import TensorVariable

from pymc_dp.graphs.declined import Declined
from pymc_dp.graphs.linear import linear_map
from pymc_dp.graphs.values import known_value
from pymc_dp.plugins.inversion.summand import summand_of
from pymc_dp.plugins.unknown_sizes.entries import Entries
from pymc_dp.plugins.unknown_sizes.histogram import Histogram, number_of_values


class ClassReader:
    """Reads entries that are linear in their number and in sums of steps, as counts of classes."""

    def __init__(self, law, parameters, x: TensorVariable, numbers: TensorVariable):
        self.law, self.parameters, self.x, self.numbers = law, parameters, x, numbers
        self.maps: list[TensorVariable] = []  # functions of a record that are summed

    def read(self, releases: dict) -> tuple[Histogram, dict[TensorVariable, Entries]]:
        """Return the classes, and the releases as functions of their counts."""
        affine = {
            release: (shape, [self._affine(entry, sums) for entry, sums in entries])
            for release, (shape, entries) in releases.items()
        }
        edges, values = self._values()
        rows = {
            release: [
                np.full(values.shape[1], n) + sum((a * values[m] for m, a in terms), 0.0)
                for _, n, terms in entries
            ]
            for release, (_, entries) in affine.items()
        }
        every = np.array([row for of_release in rows.values() for row in of_release])
        _, first, classes = np.unique(every, axis=1, return_index=True, return_inverse=True)
        if len(first) < 2:
            raise Declined("it is no function of their number and of a sum over them")
        by_release, used = {}, []
        counts = pt.vector(dtype="int64", shape=(len(first),))
        for release, (shape, entries) in affine.items():
            slopes = np.array([row[first] for row in rows[release]]).reshape(-1, len(first))
            constants = np.array([float(constant) for constant, *_ in entries])
            alone = np.ptp(slopes, axis=1) == 0.0  # of the number alone
            if (np.count_nonzero(slopes[~alone], axis=1) > 1).any():
                raise Declined(
                    "an entry adds records of several classes: release the number of each class "
                    "alone",
                    near=1,
                )
            used += [release] * bool((~alone).any())
            place = np.where(alone, -1, np.argmax(slopes != 0.0, axis=1))
            of_number = np.where(alone, slopes[:, 0], 0.0)
            times = np.where(alone, 0.0, slopes[np.arange(place.size), place])
            graph = constants + of_number * self.numbers[0] + times * counts[place]
            group = np.zeros(place.size, dtype=int)
            by_release[release] = Entries(shape, graph, self.numbers, counts, group, place, times)
        if len(set(used)) > 1:
            raise Declined(
                "the counts of classes are in several releases: write them as one release of a "
                "list",
                near=2,
            )
        return Histogram(self.law, len(self.parameters), edges, np.ravel(classes)), by_release

    def _affine(self, entry: TensorVariable, sums: list[TensorVariable]):
        """Return a constant, the coefficient of the number, and those of sums, by their place."""
        whole = all(s.dtype.startswith(("int", "uint")) for s in sums)
        totals = pt.vector(dtype="int64" if whole else "float64", shape=(len(sums),))
        replacements = {s: totals[i].astype(s.dtype) for i, s in enumerate(sums)}
        reduced = graph_replace([entry], replacements, strict=False)[0] if sums else entry
        if self.x in ancestors([reduced]):
            raise Declined("it is of more than their number and sums over them")
        terms = []
        if sums:
            weights = linear_map(reduced.astype("float64").reshape((1,)), totals).toarray()[0]
            for s, a in zip(sums, weights, strict=True):
                self.maps.append(s.owner.inputs[0])
                terms.append((len(self.maps) - 1, float(a)))
            zero = {totals: pt.zeros(len(sums), dtype=totals.dtype)}
            [reduced] = graph_replace([reduced], zero, strict=False)
        [slope] = linear_map(reduced.astype("float64"), self.numbers).toarray().ravel()
        zero = {self.numbers: pt.zeros(1, dtype=self.numbers.dtype)}
        constant = known_value(clone_replace(reduced, zero))
        if constant is None or not np.isfinite([slope, constant]).all():
            raise Declined("it is not linear in their number")
        return float(constant), float(slope), terms

    def _values(self) -> tuple[np.ndarray | None, np.ndarray]:
        """Return the edges between classes, and the value of each map in each class."""
        cells = number_of_values(self.law, self.parameters)
        if cells is not None:
            for graph in self.maps:
                self._require_one_by_one(graph)
            codes = pt.constant(np.arange(cells).astype(self.x.dtype))
            return None, np.array([self._at(m, {self.x: codes}, cells) for m in self.maps])
        if not self.x.dtype.startswith("float"):
            raise Declined(
                "of records that are counts, or have many values, one sum can be released"
            )
        if not isinstance(self.law, RandomVariable):
            raise Declined(
                "of records whose law is a mixture, a hurdle or censored, no number in classes can "
                "be released: sum what is clipped, x.clip(0, 30), or give n a known value",
                near=2,
            )
        read = [summand_of(m, self.x, 1000, positive=False) for m in self.maps]
        points = [known_value(p, fixed=True) for summand in read for p in summand.breakpoints]
        known = [float(np.squeeze(p)) for p in points if p is not None]
        if not known or len(known) < len(points):
            raise Declined("it counts no records between public numbers")
        edges = np.unique([p for p in known if np.isfinite(p)])
        # Three points of each interval: what is constant on them is taken for a step.
        ends = np.concatenate([[edges[0] - 1.0], edges, [edges[-1] + 1.0]])
        inner = np.concatenate([ends[:-1] + s * np.diff(ends) for s in (0.2, 0.5, 0.9)])
        at = pt.constant(inner)
        values = np.array([self._at(s.h, {s.record: at}, inner.size) for s in read])
        values = values.reshape(len(read), 3, -1)
        if not (values == values[:, :1]).all():
            raise Declined("it is no number of records in classes")
        return edges, values[:, 0]

    def _require_one_by_one(self, graph: TensorVariable) -> None:
        """Decline a graph that is no function of each record by itself: a sum over some, say."""
        of_records: set[Variable] = {self.x}
        for node in toposort([graph], blockers=[self.x]):
            if of_records.isdisjoint(node.inputs):
                continue
            match node.op:
                case Elemwise():
                    alike = all(i in of_records or all(i.type.broadcastable) for i in node.inputs)
                case AdvancedSubtensor():
                    alike = node.inputs[0] not in of_records
                case op:
                    alike = isinstance(op, DimShuffle)
            if not alike:
                why = f"`{node.op}` is not computed record by record: count among all records"
                raise Declined(why, near=1)
            of_records.update(node.outputs)

    def _at(self, graph: TensorVariable, replacements: dict, length: int) -> np.ndarray:
        value = known_value(clone_replace(graph, replacements, rebuild_strict=False), fixed=True)
        if value is None or value.shape not in ((length,), (1,), ()):
            raise Declined("it is no number of records in classes")
        return np.broadcast_to(value, (length,)).astype("float64")
