"""Reading what was released of groups of records whose numbers are variables."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytensor.tensor as pt
from pytensor.graph.basic import equal_computations
from pytensor.graph.replace import clone_replace, graph_replace
from pytensor.graph.traversal import ancestors
from pytensor.tensor.math import Sum
from pytensor.tensor.shape import Shape_i
from pytensor.tensor.subtensor import AdvancedSubtensor, Subtensor
from pytensor.tensor.variable import TensorVariable

from pymc_dp.graphs.declined import Declined
from pymc_dp.graphs.linear import linear_map, uses
from pymc_dp.graphs.questions import (
    depends_on,
    keeps_values,
    known_value,
    leaves,
    lengths,
    nearest_rvs,
    public_data,
    simplified,
)
from pymc_dp.laws import is_registered
from pymc_dp.laws.families.closed import sum_of
from pymc_dp.laws.inversion.parts import law_of_record
from pymc_dp.laws.inversion.quadrature import starts_at_zero
from pymc_dp.laws.inversion.readable import readable_law
from pymc_dp.laws.inversion.summand import summand_of
from pymc_dp.laws.unknown_sizes.classes import ClassReader
from pymc_dp.laws.unknown_sizes.density import Entries, Records
from pymc_dp.laws.unknown_sizes.histogram import Histogram
from pymc_dp.reading.model import release_statistic, written_length

_SOME = 1000  # records that stand for any number of them


@dataclass(frozen=True, eq=False)
class Group:
    """Records of one number.

    Attributes
    ----------
    rv : the records, or the sums over them.
    place : which of the numbers it is.
    """

    rv: TensorVariable
    place: int


def read_groups(number: TensorVariable, records: Sequence[TensorVariable]) -> list[Group]:
    """Return which number each vector of records has."""
    found: dict[int, Group] = {}
    for rv in records:
        _check_records(number, rv)
        place = place_of(number, rv)
        if place in found:
            names = f"{found[place].rv.name!r} and {rv.name!r}"
            raise Declined(f"{names} have the same unknown number: only one vector can have it")
        found[place] = Group(rv, place)
    return [found[place] for place in sorted(found)]


def place_of(number: TensorVariable, rv: TensorVariable) -> int:
    """Return which entry of a number the length of some records is."""
    size = written_length(rv)
    assert size is not None
    while size.owner is not None and keeps_values(size.owner.op, size.owner.inputs[0]):
        if size is number:
            break
        size = size.owner.inputs[0]
    entry = size.owner is not None and isinstance(size.owner.op, Subtensor | AdvancedSubtensor)
    if size is number and not number.type.ndim:
        return 0
    if not (entry and size.owner.inputs[0] is number and number.type.ndim):
        raise Declined(
            f"the number of the records {rv.name!r} is computed from {number.name!r}: write "
            f"shape={number.name}{'[j]' * bool(number.type.ndim)}, and the prior of the number "
            f"itself"
        )
    count = int(np.prod(lengths(number)))
    places = np.arange(count).reshape(lengths(number))
    stand_in = size.owner.op.make_node(pt.constant(places), *size.owner.inputs[1:]).outputs[0]
    place = known_value(stand_in)
    if place is None:
        raise Declined(f"which of {number.name!r} is the number of {rv.name!r} is not known")
    return int(place)


def _check_records(number: TensorVariable, rv: TensorVariable) -> None:
    """Decline records that differ by their number, or from each other."""
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
    """Return the parameters that all records share, of small types too as double precision."""
    for p, core in zip(rv.owner.op.dist_params(rv.owner), rv.owner.op.ndims_params, strict=True):
        yield p.astype("float64").squeeze(axis=tuple(range(p.type.ndim - core)))


class Reader:
    """Reads releases of numbers of records and of one sum over the records of each.

    Attributes
    ----------
    numbers, sums : vectors that stand for all of them, one sum for each vector of records.
    """

    def __init__(self, number: TensorVariable, groups: list[Group]):
        self.number, self.groups = number, groups
        shape = int(np.prod(lengths(number)))
        self.numbers = pt.vector(dtype="int64", shape=(shape,))
        self.x = {group.rv: group.rv.type() for group in groups}
        self.places = [group.place for group in groups]  # of the sums
        self.used: dict[int, int] = {}
        self.summed: TensorVariable | None = None  # of `record`
        self.record = groups[0].rv.type() if groups else None
        whole = all(not g.rv.dtype.startswith("float") for g in groups)
        self.sums = pt.vector(dtype="int64" if whole else "float64", shape=(len(groups),))

    @property
    def names(self) -> str:
        """The names of the records."""
        shown = [repr(group.rv.name) for group in self.groups]
        return " and ".join(shown if len(shown) < 4 else [shown[0], f"{len(shown) - 1} others"])

    def read(self, release: TensorVariable) -> Entries:
        """Read a release; refuse by name what is something else."""
        shape, graph = self._graph(release)
        try:
            return self._entries(release, shape, self._with_sums(graph))
        except Declined as error:
            raise self._refused(release, error) from None

    def stand_ins(self) -> dict[Any, Any]:
        """Return what stands for the variables."""
        number = self.numbers.reshape(lengths(self.number)).astype(self.number.dtype)
        return {**self.x, self.number: number}

    def _refused(self, release, error: Declined) -> Declined:
        rvs = [g.rv for g in self.groups if depends_on(release_statistic(release), g.rv)]
        names = repr(rvs[0].name) if rvs else self.names
        why = f"the release {release.name!r} of the records {names}: {error}"
        return Declined(why, near=error.near)

    def _graph(self, release: TensorVariable) -> tuple[tuple[int, ...], TensorVariable]:
        """Return the shape of a release, and its statistic of what stands for the variables."""
        statistic, name = release_statistic(release), release.name
        mine = self.stand_ins()
        others = [v for v in nearest_rvs([statistic]) if v not in mine]
        if others or public_data([statistic]):
            what = [*others, *public_data([statistic])][0].name
            raise Declined(
                f"the release {name!r} mixes the records {self.names} with {what!r}: of records of "
                f"unknown number, their number and a sum can be released"
            )
        graph = clone_replace(statistic, self.stand_ins(), rebuild_strict=False)
        # A list of one is simplified to something else than a list.
        shape = lengths(statistic)
        [graph] = simplified([graph[0] if shape == (1,) else graph])
        lengths_of = {
            v: self.numbers[self._of(v.owner.inputs[0]).place].astype(v.dtype)
            for v in ancestors([graph])
            if v.owner is not None
            and isinstance(v.owner.op, Shape_i)
            and v.owner.inputs[0] in self.x.values()
        }
        if lengths_of:
            [graph] = graph_replace([graph], lengths_of, strict=False)
        return shape, graph

    def _of(self, x: TensorVariable) -> Group:
        return next(group for group in self.groups if self.x[group.rv] is x)

    def sums_in(self, graph: TensorVariable) -> list[TensorVariable]:
        """Return the sums over records in a graph."""
        return [v for v in ancestors([graph]) if _is_sum(v, self.x.values())]

    def _with_sums(self, graph: TensorVariable) -> TensorVariable:
        """Return a graph of the numbers and of what stands for the sums."""
        given = {}
        for total in self.sums_in(graph):
            k = next(i for i, g in enumerate(self.groups) if self.x[g.rv] in ancestors([total]))
            summed, times, added = self._multiple(total.owner.inputs[0], self.groups[k])
            [of_record] = clone_replace(
                [summed], {self.x[self.groups[k].rv]: self.record}, rebuild_strict=False
            )
            if self.summed is None:
                self.summed = of_record
            elif not equal_computations([of_record], [self.summed]):
                raise Declined(
                    "several sums over them are released, which depend on each other: one sum can "
                    "be released of records of unknown number, beside the number, or how many of "
                    "them are in classes that do not overlap",
                    near=1,
                )
            own = self.sums[k]
            own = (
                own
                if (times, added) == (1.0, 0.0)
                else (times * own + added * self.numbers[self.groups[k].place])
            )
            given[total] = own.astype(total.dtype)
        [graph] = graph_replace([graph], given, strict=False) if given else [graph]
        if not {*self.x.values()}.isdisjoint(ancestors([graph])):
            if given:
                raise Declined("it is of several sums over them, or of more than a sum")
            raise Declined("it is no function of their number and of a sum over them")
        return graph

    def _multiple(self, summed, group: Group) -> tuple[TensorVariable, float, float]:
        """Return what is summed as a multiple of another, and a number: of records with a law."""
        x, op = self.x[group.rv], group.rv.owner.op
        with suppress(Declined, TypeError):  # where it needs whole numbers, to pick by them say
            found = summand_of(summed, x, _SOME, positive=False).multiple
            if found and is_registered(sum_of, op):
                return x, *found
        return summed, 1.0, 0.0

    def _entries(self, release, shape: tuple[int, ...], graph: TensorVariable) -> Entries:
        graph = graph.reshape((-1,)) if graph.type.ndim != 1 else graph
        of_sums = linear_map(graph, self.sums)
        of_numbers = uses(graph, self.numbers)
        group, place = np.zeros(of_sums.shape[0], dtype=int), np.full(of_sums.shape[0], -1)
        times = np.zeros(of_sums.shape[0])
        for e in range(group.size):
            sums, own = of_sums[[e]], of_numbers[[e]].indices
            used = sums.indices[sums.data != 0]
            mine = {*own.tolist(), *(self.places[k] for k in used)}
            if not mine:
                raise Declined("an entry is no function of a number of records or a sum over them")
            if len(mine) > 1:
                raise Declined(
                    "an entry is of several groups of records, whose numbers are independent: "
                    "release what is of each",
                    near=1,
                )
            [group[e]] = mine
            if used.size:
                place[e], times[e] = used[0], sums.data[sums.data != 0][0]
                self.used[place[e]] = self.used.get(place[e], 0) + 1
        if max(self.used.values(), default=0) > 1:
            raise Declined(
                "several sums over them are released, which depend on each other: one sum can be "
                "released of records of unknown number, beside the number, or how many of them "
                "are in classes that do not overlap",
                near=1,
            )
        return Entries(shape, graph, self.numbers, self.sums, group, place, times)

    def classes(
        self, mine: Sequence[TensorVariable]
    ) -> tuple[Histogram, dict[TensorVariable, Entries]]:
        """Read releases as the counts of classes."""
        [group] = self.groups
        x, parameters = self.x[group.rv], list(of_a_record(group.rv))
        reader = ClassReader(group.rv.owner.op, parameters, x, self.numbers)
        try:
            parts = {}
            for release in mine:
                shape, graph = self._graph(release)
                entries = _split(graph)
                parts[release] = shape, [(e, self.sums_in(e)) for e in entries]
            return reader.read(parts)
        except Declined as error:
            raise self._refused(mine[-1], error) from None

    def records(self) -> tuple[Records, list[TensorVariable]]:
        """Return the law of a record and the sum that is released, and parameters by group."""
        first = self.groups[0].rv
        law, stacked = law_of_record(first)[0], []
        for group in self.groups:
            other, own = law_of_record(group.rv)
            if type(other) is not type(law):
                raise Declined(
                    f"the records {first.name!r} and {group.rv.name!r} follow several laws: give "
                    f"each law a number of its own"
                )
            stacked.append([p.squeeze() for p in map(pt.as_tensor, own)])
        parameters = [pt.stack(own) for own in zip(*stacked, strict=True)]
        if self.summed is None or (self.summed is self.record and is_registered(sum_of, law)):
            return Records(law, len(parameters), None), parameters
        if not first.dtype.startswith("float"):
            raise Declined(
                f"the sum over the records {first.name!r}, of unknown number, has no known law"
            )
        return self.inverted(first, parameters)

    def inverted(self, rv, parameters) -> tuple[Records, list[TensorVariable]]:
        """Return the records as those of which the sum of a function is inverted."""
        (op, _), x = readable_law(rv), self.record
        parameters = [p.astype("float64") for p in parameters]
        positive = starts_at_zero(op, [p[0] for p in parameters], str(rv.name))
        summand = summand_of(self.summed, x, _SOME, positive)
        if {self.numbers, *self.x.values()} & {*ancestors([summand.h])}:
            raise Declined(
                f"what is summed over the records {rv.name!r} depends on their number "
                f"{self.number.name!r}, where sums of functions of a single record are supported"
            )
        return Records(op, len(parameters), summand), parameters


class SumsReader(Reader):
    """Reads releases of sums over records that are never built, and of their numbers."""

    def __init__(self, number: TensorVariable | None, rv: TensorVariable):
        self.number, self.rv, self.groups, self.x = number, rv, [], {}
        count, self.used = int(np.prod(lengths(rv))), {}
        self.places = list(range(count))
        self.numbers = pt.vector(dtype="int64", shape=(count,))
        self.sums = pt.vector(dtype=rv.dtype, shape=(count,))
        [self.law] = nearest_rvs([rv.owner.inputs[0]])
        self.record = pt.vector(dtype=self.law.dtype)
        self.summed = rv.owner.op.of(self.record)

    @property
    def names(self):
        """See `Reader.names`."""
        return f"{self.rv.name!r}"

    def _refused(self, release, error):
        return Declined(f"the release {release.name!r} of the sums {self.names}: {error}")

    def stand_ins(self):
        """See `Reader.stand_ins`."""
        found: dict[Any, Any] = {self.rv: self.sums.reshape(lengths(self.rv))}
        if self.number is not None:
            number = self.numbers.reshape(lengths(self.number)).astype(self.number.dtype)
            found[self.number] = number
        return found

    def classes(self, mine):
        """See `Reader.classes`."""
        raise Declined(f"counts of classes of {self.names} are no sums of one function")

    def records(self):
        """See `Reader.records`."""
        shape, (law, given) = lengths(self.rv), law_of_record(self.law)
        own = (  # without the axis of records
            p.squeeze(axis=0) if p.type.ndim > len(shape) else p for p in map(pt.as_tensor, given)
        )
        parameters = [pt.broadcast_to(p, shape).ravel() for p in own]
        if is_registered(sum_of, law):
            found = summand_of(self.summed, self.record, _SOME, positive=False).multiple
            if found == (1.0, 0.0):
                return Records(law, len(parameters), None), parameters
        self.law.name = self.rv.name
        return self.inverted(self.law, parameters)


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
