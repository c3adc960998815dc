"""Reading releases of groups of records whose numbers are variables."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from contextlib import suppress
from typing import Any

import numpy as np
import pytensor.tensor as pt
from pytensor.graph.basic import equal_computations
from pytensor.graph.replace import clone_replace, graph_replace
from pytensor.graph.traversal import ancestors
from pytensor.tensor.math import Sum
from pytensor.tensor.shape import Shape_i
from pytensor.tensor.variable import TensorVariable

from pymc_dp.graphs.declined import Declined
from pymc_dp.graphs.linear import linear_map, uses
from pymc_dp.graphs.shapes import entry_of, leaves, lengths
from pymc_dp.graphs.substitution import simplified
from pymc_dp.graphs.values import depends_on, is_itself, nearest_rvs, public_data, uncast
from pymc_dp.laws import is_registered
from pymc_dp.laws.families.closed import sum_of
from pymc_dp.laws.parts import law_of_record
from pymc_dp.plugins.inversion.lattice import on_lattice
from pymc_dp.plugins.inversion.quadrature import starts_at_zero
from pymc_dp.plugins.inversion.readable import readable_law
from pymc_dp.plugins.inversion.summand import summand_of
from pymc_dp.plugins.unknown_sizes.classes import ClassReader
from pymc_dp.plugins.unknown_sizes.entries import Entries
from pymc_dp.plugins.unknown_sizes.histogram import Histogram
from pymc_dp.plugins.unknown_sizes.sums import SumsOfRecords
from pymc_dp.reading.model import release_statistic
from pymc_dp.reading.record_lengths import written_length

_STAND_IN_RECORDS = 1000  # records that stand for any number of them


_SEVERAL = (
    "several sums over them are released, which depend on each other: one sum can be released of "
    "records of unknown number, beside the number, or how many of them are in classes that do not "
    "overlap"
)


def vectors_of(
    number: TensorVariable, records: Sequence[TensorVariable]
) -> dict[int, TensorVariable]:
    """Return the vectors of records by the index of their number."""
    vectors: dict[int, TensorVariable] = {}
    for rv in records:
        _check_records(number, rv)
        place = place_of(number, rv)
        if place in vectors:
            names = f"{vectors[place].name!r} and {rv.name!r}"
            raise Declined(f"{names} have the same unknown number: only one vector can have it")
        vectors[place] = rv
    return vectors


def place_of(number: TensorVariable, rv: TensorVariable) -> int:
    """Return the index of the number that is the length of some records."""
    size = written_length(rv)
    assert size is not None
    entry = entry_of(uncast(size))
    if entry is None or entry[0] is not number:
        raise Declined(
            f"the number of the records {rv.name!r} is computed from {number.name!r}: write "
            f"shape={number.name}{'[j]' * bool(number.type.ndim)}, and the prior of the number "
            f"itself"
        )
    return int(np.ravel_multi_index(entry[1], lengths(number))) if number.type.ndim else 0


def _check_records(number: TensorVariable, rv: TensorVariable) -> None:
    """Decline records whose law depends on their number, or differs between them."""
    law, parameters = law_of_record(rv)
    cores = getattr(law, "ndims_params", [0] * len(parameters))
    if any(
        not all(p.type.broadcastable[: p.type.ndim - core]) or depends_on(p, number)
        for p, core in zip(parameters, cores, strict=True)
    ):
        raise Declined(
            f"records of unknown number, {rv.name!r}, have to be identically distributed, by "
            f"parameters that do not depend on their number {number.name!r}"
        )


def of_a_record(rv: TensorVariable) -> Iterator[TensorVariable]:
    """Yield the parameters that all records share, in double precision."""
    for p, core in zip(rv.owner.op.dist_params(rv.owner), rv.owner.op.ndims_params, strict=True):
        yield p.astype("float64").squeeze(axis=tuple(range(p.type.ndim - core)))


class Reader:
    """Reads releases of numbers of records and of one sum over the records of each.

    Attributes
    ----------
    number : the numbers; None where they are known.
    numbers, sums : vectors that stand for them, and for the sums over the records of each.
    vectors : the records by the index of their number.
    record, summed : a stand-in for records, and the summand as a function of it.
    used : the indices of numbers with a released sum over their records.
    """

    number: TensorVariable | None
    record: TensorVariable

    def __init__(self, number: TensorVariable, vectors: dict[int, TensorVariable]):
        self.number, self.vectors = number, vectors
        self.x = {rv: rv.type() for rv in vectors.values()}
        self.record = next(iter(vectors.values())).type()
        self.summed: TensorVariable | None = None
        whole = all(not rv.dtype.startswith("float") for rv in self.x)
        self._stand_for(number, "int64" if whole else "float64")

    def _stand_for(self, like: TensorVariable, dtype: str) -> None:
        """Make vectors that stand for as many numbers and sums as there are."""
        shape = (math.prod(lengths(like)),)
        self.numbers = pt.vector(dtype="int64", shape=shape)
        self.sums = pt.vector(dtype=dtype, shape=shape)
        self.used: set[int] = set()

    @property
    def names(self) -> str:
        """The names of the records."""
        shown = [repr(rv.name) for rv in self.x]
        return " and ".join(shown if len(shown) < 4 else [shown[0], f"{len(shown) - 1} others"])

    def read(self, release: TensorVariable) -> Entries:
        """Read a release; a refusal names it."""
        shape, graph = self._graph(release)
        try:
            return self._entries(shape, self._with_sums(graph))
        except Declined as error:
            raise self._refused(release, error) from None

    def stand_ins(self) -> dict[Any, Any]:
        """Return the stand-ins for the variables of the model."""
        replacements: dict[Any, Any] = dict(self.x)
        if (number := self.number) is not None:
            replacements[number] = self.numbers.reshape(lengths(number)).astype(number.dtype)
        return replacements

    def _refused(self, release, error: Declined) -> Declined:
        rvs = [rv for rv in self.x if depends_on(self.statistic(release), rv)]
        names = repr(rvs[0].name) if rvs else self.names
        why = f"the release {release.name!r} of the records {names}: {error}"
        return Declined(why, near=error.near)

    def statistic(self, release: TensorVariable) -> TensorVariable:
        """Return the statistic of a release."""
        return release_statistic(release)

    def _graph(self, release: TensorVariable) -> tuple[tuple[int, ...], TensorVariable]:
        """Return the shape of a release, and its statistic as a function of stand-ins."""
        statistic, name = self.statistic(release), release.name
        stand_ins = self.stand_ins()
        foreign = [v for v in nearest_rvs([statistic]) if v not in stand_ins]
        if foreign or public_data([statistic]):
            name_of_other = [*foreign, *public_data([statistic])][0].name
            raise Declined(
                f"the release {name!r} mixes the records {self.names} with {name_of_other!r}: of "
                f"records of unknown number, their number and a sum can be released"
            )
        graph = clone_replace(statistic, stand_ins, rebuild_strict=False)
        # Simplification would not keep a list of one entry a list.
        shape = lengths(statistic)
        [graph] = simplified([graph[0] if shape == (1,) else graph])
        places = {self.x[rv]: place for place, rv in self.vectors.items()}
        lengths_of = {
            v: self.numbers[places[v.owner.inputs[0]]].astype(v.dtype)
            for v in ancestors([graph])
            if v.owner is not None
            and isinstance(v.owner.op, Shape_i)
            and v.owner.inputs[0] in places
        }
        if lengths_of:
            [graph] = graph_replace([graph], lengths_of, strict=False)
        return shape, graph

    def sums_in(self, graph: TensorVariable) -> list[TensorVariable]:
        """Return the sums over records in a graph."""
        return [v for v in ancestors([graph]) if _is_sum(v, self.x.values())]

    def _with_sums(self, graph: TensorVariable) -> TensorVariable:
        """Return a graph with stand-ins in the place of sums over records."""
        replacements = {}
        for total in self.sums_in(graph):
            above = {*ancestors([total])}
            place, rv = next(pair for pair in self.vectors.items() if self.x[pair[1]] in above)
            summed, times, added = self._multiple(total.owner.inputs[0], rv)
            [summed] = clone_replace([summed], {self.x[rv]: self.record}, rebuild_strict=False)
            if self.summed is None:
                self.summed = summed
            elif not equal_computations([summed], [self.summed]):
                raise Declined(_SEVERAL, near=1)
            stand_in = self.sums[place]
            if (times, added) != (1.0, 0.0):
                stand_in = times * stand_in + added * self.numbers[place]
            replacements[total] = stand_in.astype(total.dtype)
        [graph] = graph_replace([graph], replacements, strict=False) if replacements else [graph]
        if not {*self.x.values()}.isdisjoint(ancestors([graph])):
            if replacements:
                raise Declined("it is of several sums over them, or of more than a sum")
            raise Declined("it is no function of their number and of a sum over them")
        return graph

    def _multiple(self, summed, rv: TensorVariable) -> tuple[TensorVariable, float, float]:
        """Return summand, factor and constant; the record for summand if its sums have a law."""
        x = self.x[rv]
        with suppress(Declined, TypeError):  # where it needs whole numbers, as indices say
            multiple = summand_of(summed, x, _STAND_IN_RECORDS, positive=False).multiple
            if multiple and is_registered(sum_of, rv.owner.op):
                return x, *multiple
        return summed, 1.0, 0.0

    def _entries(self, shape: tuple[int, ...], graph: TensorVariable) -> Entries:
        graph = graph.reshape((-1,)) if graph.type.ndim != 1 else graph
        of_sums = linear_map(graph, self.sums)
        of_numbers = uses(graph, self.numbers)
        count = of_sums.shape[0]
        group, summed, times = np.zeros(count, int), np.zeros(count, bool), np.zeros(count)
        for e in range(count):
            sums = of_sums[[e]]
            used = sums.indices[sums.data != 0]
            groups = {*of_numbers[[e]].indices.tolist(), *used.tolist()}
            if not groups:
                raise Declined("an entry is no function of a number of records or a sum over them")
            if len(groups) > 1:
                raise Declined(
                    "an entry is of several groups of records, whose numbers are independent: "
                    "release what is of each",
                    near=1,
                )
            [group[e]] = groups
            if used.size:
                if not self.used.isdisjoint(groups):
                    raise Declined(_SEVERAL, near=1)
                self.used |= groups
                summed[e], times[e] = True, sums.data[sums.data != 0][0]
        place = np.where(summed, group, -1)
        return Entries(shape, graph, self.numbers, self.sums, group, place, times)

    def classes(
        self, releases: Sequence[TensorVariable]
    ) -> tuple[Histogram, dict[TensorVariable, Entries]]:
        """Read releases as the counts of classes."""
        [(rv, x)] = self.x.items()
        reader = ClassReader(rv.owner.op, list(of_a_record(rv)), x, self.numbers)
        try:
            parts = {}
            for release in releases:
                shape, graph = self._graph(release)
                entries = _split(graph)
                parts[release] = shape, [(e, self.sums_in(e)) for e in entries]
            return reader.read(parts)
        except Declined as error:
            raise self._refused(releases[-1], error) from None

    def records(self) -> tuple[SumsOfRecords, list[TensorVariable]]:
        """Return the law of a record and the sum that is released, and parameters by group."""
        [first, *more_vectors] = self.x
        law, _ = law_of_record(first)
        for rv in more_vectors:
            if law_of_record(rv)[0] != law:
                raise Declined(
                    f"the records {first.name!r} and {rv.name!r} follow several laws: give each "
                    f"law a number of its own"
                )
        # The parameters of a number without records do not matter.
        each = (self.vectors.get(j, first) for j in range(self.numbers.type.shape[0]))
        by_number = [[p.squeeze() for p in map(pt.as_tensor, law_of_record(rv)[1])] for rv in each]
        parameters = [pt.stack(p) for p in zip(*by_number, strict=True)]
        if self.summed is None or (self.summed is self.record and is_registered(sum_of, law)):
            return SumsOfRecords(law, len(parameters), None), parameters
        return self.inverted(first, str(first.name), parameters)

    def inverted(self, rv, name: str, parameters) -> tuple[SumsOfRecords, list[TensorVariable]]:
        """Return the law of records, whose sums are inverted, and their parameters."""
        law, _ = readable_law(rv, name)
        parameters = [p.astype("float64") for p in parameters]
        positive = starts_at_zero(law, [p[0] for p in parameters], name)
        assert self.summed is not None
        try:
            summand = summand_of(self.summed, self.record, _STAND_IN_RECORDS, positive)
            summand = on_lattice(summand, law, parameters, name)
        except Declined as why:
            raise Declined(f"what is summed over {name!r}: {why}", near=why.near) from None
        if {self.numbers, *self.x.values()} & {*ancestors([summand.h])}:
            assert self.number is not None
            raise Declined(
                f"what is summed over the records {name!r} depends on their number "
                f"{self.number.name!r}, where sums of functions of a single record are supported"
            )
        return SumsOfRecords(law, len(parameters), summand), parameters


class SumsReader(Reader):
    """Reads releases of sums over records that are never built, and of their numbers.

    `written` is the graph of the numbers in the model.
    """

    def __init__(
        self, number: TensorVariable | None, rv: TensorVariable, written: TensorVariable | None
    ):
        self.number, self.rv, self.vectors, self.x = number, rv, {}, {}
        self.written = written
        [self.law] = nearest_rvs([rv.owner.inputs[0]])
        self.record, self.summed = rv.owner.op.summed
        self._stand_for(rv, rv.dtype)

    @property
    def names(self):
        """See `Reader.names`."""
        return repr(self.rv.name)

    def statistic(self, release):
        """See `Reader.statistic`."""
        statistic, written = super().statistic(release), self.written
        if self.number is None or written is None or is_itself(written, self.number):
            return statistic
        total = self.rv.type()  # whose own graph has the number, too
        [statistic] = graph_replace([statistic], {self.rv: total}, strict=False)
        same = [v for v in ancestors([statistic]) if equal_computations([v], [written])]
        number = {v: self.number.astype(v.dtype) for v in same}
        return graph_replace([statistic], {**number, total: self.rv}, strict=False)[0]

    def _refused(self, release, error):
        return Declined(f"the release {release.name!r} of the sums {self.names}: {error}")

    def stand_ins(self):
        """See `Reader.stand_ins`."""
        return super().stand_ins() | {self.rv: self.sums.reshape(lengths(self.rv))}

    def records(self):
        """See `Reader.records`."""
        shape, (law, inputs) = lengths(self.rv), law_of_record(self.law)
        squeezed = (  # without the axis of records
            p.squeeze(axis=0) if p.type.ndim > len(shape) else p for p in map(pt.as_tensor, inputs)
        )
        parameters = [pt.broadcast_to(p, shape).ravel() for p in squeezed]
        if is_registered(sum_of, law):
            summand = summand_of(self.summed, self.record, _STAND_IN_RECORDS, positive=False)
            if summand.multiple == (1.0, 0.0):
                return SumsOfRecords(law, len(parameters), None), parameters
        return self.inverted(self.law, str(self.rv.name), parameters)


def _is_sum(variable, records) -> bool:
    node = variable.owner
    if node is None or not isinstance(node.op, Sum) or node.inputs[0].type.ndim != 1:
        return False
    return not {*records}.isdisjoint(ancestors([variable]))


def _split(graph: TensorVariable) -> list[TensorVariable]:
    """Return the entries of a scalar or of a list."""
    parts = [part for part, _ in leaves(graph, np.zeros(lengths(graph)))]
    if graph.type.ndim > 1 or any(part.type.ndim for part in parts):
        raise Declined("write what is released as a scalar or as a list, pt.stack([...])")
    return parts
