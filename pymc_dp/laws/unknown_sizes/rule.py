"""Reading releases of records of unknown number: of it, and of one sum or of counts of classes."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytensor.tensor as pt
from pytensor.graph.replace import clone_replace, graph_replace, vectorize_graph
from pytensor.graph.traversal import ancestors
from pytensor.tensor.math import Sum
from pytensor.tensor.random.op import RandomVariable
from pytensor.tensor.shape import Shape_i
from pytensor.tensor.variable import TensorVariable

from pymc_dp.graphs.declined import Declined, about
from pymc_dp.graphs.linear import linear_map
from pymc_dp.graphs.questions import (
    depends_on,
    is_itself,
    known_value,
    leaves,
    lengths,
    nearest_rvs,
    noticed_function,
    public_data,
    simplified,
)
from pymc_dp.laws import is_registered, require_pair
from pymc_dp.laws.families.closed import sum_of
from pymc_dp.laws.integrated import integrated_release
from pymc_dp.laws.inversion.law import noise_parts
from pymc_dp.laws.inversion.quadrature import FEWEST, starts_at_zero
from pymc_dp.laws.inversion.readable import readable_law
from pymc_dp.laws.inversion.summand import require_smooth, summand_of
from pymc_dp.laws.one_value import require_multiples
from pymc_dp.laws.shown import confidential, kind_of_sum
from pymc_dp.laws.sum_law import SUM_LAWS, Change, SumLaw
from pymc_dp.laws.unknown_sizes.classes import ClassReader
from pymc_dp.laws.unknown_sizes.density import Entries, OfUnknownSize, Records
from pymc_dp.laws.unknown_sizes.histogram import Histogram
from pymc_dp.laws.unknown_sizes.sizes import MOST, around, sizes_that_matter
from pymc_dp.mechanisms.base import Mechanism, has_kink
from pymc_dp.reading.bounds import starting_values
from pymc_dp.reading.columns import column_parameters
from pymc_dp.reading.model import (
    Reading,
    check_transform,
    release_mechanism,
    release_statistic,
    releases_of,
    require_possible,
    size_of,
)

_MOST_INVERTED = 2_000  # numbers of records
_MOST_TERMS = 20_000_000  # of the convolutions of counts of classes


@SUM_LAWS.register(order=5)
@dataclass(frozen=True, eq=False)
class UnknownSizes(SumLaw):
    """Records of unknown number: noisy numbers of them, and one noisy sum or counts of classes."""

    reading: Reading
    number: TensorVariable
    rv: TensorVariable
    records: Records | Histogram
    releases: dict[TensorVariable, Entries]

    @classmethod
    def read(cls, reading, group):
        """See `SumLaw.read`."""
        number, *others = group.records
        if not others or size_of(others[0]) is not number:
            raise Declined  # another law's
        if len(others) > 1:
            names = " and ".join(repr(rv.name) for rv in others)
            if group.records[0].type.ndim:
                raise Declined(_several(number, names))
            raise Declined(f"{names} have the same unknown number: only one vector can have it")
        [rv] = others
        check_transform(reading.model, rv)
        _check_number(number, rv)
        mine = releases_of(reading.model, [number, rv])
        require_possible(mine)
        reader = _Reader(number, rv)
        try:
            found = {release: reader.read(release) for release in mine}
            return cls(reading, number, rv, reader.records(), found)
        except Declined as reason:
            try:
                return cls(reading, number, rv, *reader.classes(mine))
            except Declined as why:
                raise (why if why.near else reason) from None  # what was read as classes

    def describe(self, release):
        """See `SumLaw.describe`."""
        entries = self.releases[release]
        count = sum(slope is None for slope in entries.slope)
        what = [f"the number of {self.rv.name}"] * bool(count)
        counts = isinstance(self.records, Histogram)
        of_records = (
            f"counts of classes of {self.rv.name}" if counts else f"a sum of {self.rv.name}"
        )
        what += [of_records] * (count < len(entries.slope))
        return f"{' and '.join(what)}, of unknown number {self.number.name}"

    def latents(self):
        """See `SumLaw.latents`."""
        raise Declined(
            f"the number {self.number.name!r} of the records {self.rv.name!r} is summed over: use "
            f"to='marginal', and dp.recover to draw it"
        )

    def integrated(self):
        """Sum over all numbers of records that matter."""
        number, law = (v.owner.op.dist_params(v.owner) for v in (self.number, self.rv))
        # Small types of numbers would give the densities few digits.
        number = [p.astype("float64" if p.dtype.startswith("float") else "int64") for p in number]
        records = self._within(self.records)
        record = column_parameters(self.rv, 0) if law else []
        if isinstance(records, Histogram):
            record = list(_of_a_record(self.rv))
        change, given = Change(), list[TensorVariable]()
        earlier, published = list[Mechanism](), list[TensorVariable | None]()
        sizes = self._sizes(records)
        model, last = self.reading.model, list(self.releases)[-1]
        names = (str(self.number.name), *map(self._shown, filter(self._sums, self.releases)))
        if isinstance(records, Histogram):
            names = names[:1]
            if records.work(sizes) > _MOST_TERMS:
                raise Declined(
                    f"the counts of classes of {self.rv.name!r} that are possible are too many to "
                    f"add up: release fewer, or with a Poisson prior of {self.number.name!r} write "
                    f"independent Poisson cells, pm.Poisson('cells', rate * p)"
                )
        for k, release in enumerate(self.releases):
            mechanism = release_mechanism(release)
            self._require(release, mechanism, record)
            summed = self._sums(release) and self.records.summand is not None
            if summed and has_kink(mechanism) and sizes[0] < FEWEST:
                raise Declined(
                    f"there may be fewer than {FEWEST} records {self.rv.name!r}, of which a sum "
                    f"under the Laplace noise of {release.name!r} has no smooth density: give "
                    f"{self.number.name!r} a prior without such numbers, or use GaussianMechanism"
                )
            of_release = OfUnknownSize(
                self.number.owner.op,
                len(number),
                records,
                sizes,
                tuple(self.releases.values())[: k + 1],
                tuple(earlier),
                tuple(published),
                names if release is last else (),
            )
            change.replaced[release] = integrated_release(
                of_release, mechanism, *number, *record, *given
            )
            given += [release, *mechanism.parameters]
            earlier.append(mechanism)
            observed = release in model.observed_RVs
            published.append(model.rvs_to_values[release] if observed else None)
        return change

    def _shown(self, release: TensorVariable) -> str:
        """Return the name in results of what is summed in a release."""
        if self.records.multiple is not None:
            return f"{self.rv.name}_{kind_of_sum(self.rv.owner.op)}"
        return confidential(release)

    def _sums(self, release: TensorVariable) -> bool:
        """Whether a sum over the records is part of a release."""
        return any(slope is not None for slope in self.releases[release].slope)

    def _require(self, release: TensorVariable, mechanism: Mechanism, record) -> None:
        """Decline noise under which a sum has no density here."""
        entries = self.releases[release]
        for constant, slope in zip(entries.constant, entries.slope, strict=True):
            if slope is None or isinstance(self.records, Histogram):
                continue
            # What depends on the number is neither 0 nor 1 for all.
            known = (known_value(graph, fixed=True) for graph in (slope, constant))
            numbers = [np.nan if value is None else value for value in known]
            require_multiples(release, mechanism, *numbers)
            with about(f"the release {release.name!r}"):
                if self.records.summand is not None:
                    noise_parts(mechanism)
                    require_smooth(self.rv, mechanism, self.records.summand)
                else:
                    law, own = sum_of(self.records.law, 10, *record)
                    require_pair(law, mechanism, own)

    def _within(self, records: Records | Histogram) -> Records | Histogram:
        """Return counts of classes with what is published of each."""
        if not isinstance(records, Histogram):
            return records
        windows: list[tuple[int, int] | None] = [None] * records.size
        for k, (log_noise, start) in self._of_classes(records).items():
            vector, noise = log_noise
            function = noticed_function([vector], noise)
            found = around(function, start, MOST)
            if found is None:
                raise Declined(f"more than {MOST:,} counts of a class of {self.rv.name!r} matter")
            windows[k] = int(found[0]), int(found[-1])
        return replace(records, windows=tuple(windows))

    def _of_classes(self, records: Histogram) -> dict[int, Any]:
        """Return the log density of what was published of each class, and where it is largest."""
        model, found = self.reading.model, dict[int, Any]()
        for release, entries in self.releases.items():
            if release not in model.observed_RVs or not self._sums(release):
                continue
            [value] = starting_values([model.rvs_to_values[release].ravel()])
            mechanism = release_mechanism(release)
            parameters = [pt.broadcast_to(p, entries.shape).ravel() for p in mechanism.parameters]
            constants, slopes = entries.at(np.arange(1))
            for j, (constant, slope) in enumerate(zip(constants, slopes, strict=True)):
                if slope is None:
                    continue
                k = int(np.flatnonzero(slope)[0])
                (vector, noise), start = found.get(k, ((pt.vector(dtype="int64"), 0.0), 0.0))
                own = mechanism.with_parameters(*(p[j] for p in parameters))
                noise += own.logp(pt.constant(value[j]), constant[0] + slope[k] * vector)
                found[k] = (vector, noise), max(start, float((value[j] - constant[0]) / slope[k]))
        return found

    def _largest(self, records: Records | Histogram) -> tuple[np.ndarray, int] | None:
        """Return how likely what is published is at most for each number, and the first of these.

        None where nothing is published of a class, or of a sum.
        """
        if not isinstance(records, Histogram) or None in records.windows:
            return None
        best, begin = np.zeros(1), 0
        for k, ((vector, noise), _) in self._of_classes(records).items():
            first, last = records.windows[k] or (0, 0)
            function = noticed_function([vector], noise)
            own, begin = function(np.arange(first, last + 1)), begin + first
            place = np.arange(best.size + own.size - 1)[:, None] - np.arange(own.size)
            inside = (place >= 0) & (place < best.size)
            best = np.max(np.where(inside, best[place * inside], -np.inf) + own, axis=1)
        return best, begin

    def _sizes(self, records: Records | Histogram) -> np.ndarray:
        """Return the numbers of records that matter, given what is published of them."""
        model, number, vector = self.reading.model, self.number, pt.vector(dtype="int64")
        noise: Any = pt.zeros_like(vector, dtype="float64")
        start, linear = list[float](), True
        for release, entries in self.releases.items():
            if release not in model.observed_RVs:
                continue
            [value] = starting_values([model.rvs_to_values[release].ravel()])
            mechanism = release_mechanism(release)
            parameters = [pt.broadcast_to(p, entries.shape).ravel() for p in mechanism.parameters]
            numbers, _ = entries.at(np.arange(2))
            for j in (j for j, slope in enumerate(entries.slope) if slope is None):
                own = mechanism.with_parameters(*(p[j] for p in parameters))
                of_all = vectorize_graph(entries.constant[j], {entries.size: vector})
                noise = noise + own.logp(pt.constant(value[j]), of_all)
                zero, one = numbers[j]
                if one != zero:
                    start.append(float((value[j] - zero) / (one - zero)))
                linear = linear and entries.is_linear(j)
        if (largest := self._largest(records)) is not None:
            table, first = largest
            place = vector - first
            inside = (place >= 0) & (place < table.size)
            of_all = pt.constant(table)[pt.switch(inside, place, 0)]
            noise = noise + pt.switch(inside, of_all, -np.inf)
            start.append(float(first + np.argmax(table)))
        most = MOST if self.records.summand is None else _MOST_INVERTED
        name = str(self.rv.name)
        return sizes_that_matter(number, name, vector, noise, start, most, linear=linear)


def _several(number: TensorVariable, names: str) -> str:
    return (
        f"{number.name!r} is several numbers, and each vector of records of unknown number has one "
        f"of its own: for {names} write {number.name}_0 = pm.Poisson({number.name + '_0'!r}, ...), "
        f"shape={number.name}_0, and so on"
    )


def _check_number(number: TensorVariable, rv: TensorVariable) -> None:
    """Decline a number that is no scalar count of one law, and records that differ by it."""
    op = number.owner.op
    [size] = rv.owner.op.size_param(rv.owner).owner.inputs
    if number.type.ndim:
        raise Declined(_several(number, repr(rv.name)))
    if not is_itself(size, number):
        raise Declined(
            f"the number of the records {rv.name!r} is computed from {number.name!r}: write "
            f"shape={number.name}, and the prior of the number itself"
        )
    if not isinstance(op, RandomVariable) or number.dtype.startswith("float"):
        raise Declined(
            f"the number {number.name!r} of the records {rv.name!r} has to be a whole number with "
            f"a prior on counts, pm.Poisson or pm.DiscreteUniform say"
        )
    parameters = zip(rv.owner.op.dist_params(rv.owner), rv.owner.op.ndims_params, strict=True)
    if any(
        not all(p.type.broadcastable[: p.type.ndim - core]) or depends_on(p, number)
        for p, core in parameters
    ):
        raise Declined(
            f"records of unknown number, {rv.name!r}, have to be identically distributed, by "
            f"parameters that do not depend on their number {number.name!r}"
        )


def _of_a_record(rv: TensorVariable) -> Iterator[TensorVariable]:
    """Return the parameters that all records share, of small types too as double precision."""
    for p, core in zip(rv.owner.op.dist_params(rv.owner), rv.owner.op.ndims_params, strict=True):
        yield p.astype("float64").squeeze(axis=tuple(range(p.type.ndim - core)))


class _Reader:
    """Reads releases of a number of records and of one sum over them."""

    def __init__(self, number: TensorVariable, rv: TensorVariable):
        self.number, self.rv = number, rv
        self.size = number.type()
        self.x = rv.type()
        self.times = 0
        self.summed: TensorVariable | None = None

    def read(self, release: TensorVariable) -> Entries:
        """Read a release; refuse by name what is something else."""
        shape, entries = self._entries(release)
        try:
            constants, slopes = zip(*(self._entry(*entry) for entry in entries), strict=True)
        except Declined as error:
            raise self._refused(release, error) from None
        return Entries(shape, self.size, constants, slopes)

    def classes(
        self, mine: Sequence[TensorVariable]
    ) -> tuple[Histogram, dict[TensorVariable, Entries]]:
        """Read releases as the counts of classes."""
        parameters = list(_of_a_record(self.rv))
        reader = ClassReader(self.rv.owner.op, parameters, self.x, self.size)
        try:
            return reader.read({release: self._entries(release) for release in mine})
        except Declined as error:
            raise self._refused(mine[-1], error) from None

    def _refused(self, release, error: Declined) -> Declined:
        why = f"the release {release.name!r} of the records {self.rv.name!r}: {error}"
        return Declined(why, near=error.near)

    def _entries(self, release: TensorVariable) -> tuple[tuple[int, ...], list[tuple]]:
        """Return the shape of a release, and its entries, each with the sums in it."""
        statistic, name = release_statistic(release), release.name
        others = [v for v in nearest_rvs([statistic]) if v not in (self.number, self.rv)]
        if others or public_data([statistic]):
            what = [*others, *public_data([statistic])][0].name
            raise Declined(
                f"the release {name!r} mixes the records {self.rv.name!r} with {what!r}: of "
                f"records of unknown number, their number and a sum can be released"
            )
        given = {self.rv: self.x, self.number: self.size}
        graph = clone_replace(statistic, given, rebuild_strict=False)
        # A list of one is simplified to something else than a list.
        [graph] = simplified([graph[0] if lengths(statistic) == (1,) else graph])
        try:
            return lengths(statistic), [self._with_sums(entry) for entry in _split(graph)]
        except Declined as error:
            raise self._refused(release, error) from None

    def _with_sums(self, graph: TensorVariable) -> tuple[TensorVariable, list[TensorVariable]]:
        given: dict[Any, Any] = {
            v: self.size.astype(v.dtype)
            for v in ancestors([graph])
            if v.owner is not None
            and isinstance(v.owner.op, Shape_i)
            and v.owner.inputs[0] is self.x
        }
        [graph] = graph_replace([graph], given, strict=False) if given else [graph]
        return graph, [v for v in ancestors([graph]) if self._is_sum(v)]

    def _entry(self, graph, sums) -> tuple[TensorVariable, TensorVariable | None]:
        if not sums:
            if self.x in ancestors([graph]):
                raise Declined("it is no function of their number and of a sum over them")
            return graph, None
        total = sums[0].type()
        [reduced] = graph_replace([graph], {sums[0]: total}, strict=False)
        if self.x in ancestors([reduced]):
            raise Declined("it is of several sums over them, or of more than a sum")
        linear_map(reduced.reshape((1,)), total)
        zero, one = (
            graph_replace([reduced], {total: pt.constant(k, dtype=total.dtype)}, strict=False)[0]
            for k in (0, 1)
        )
        self.times += 1
        if self.times > 1:
            raise Declined(
                "several sums over them are released, which depend on each other: one sum can be "
                "released of records of unknown number, beside the number, or how many of them are "
                "in classes that do not overlap",
                near=1,
            )
        self.summed, times, added = self._multiple(sums[0].owner.inputs[0])
        slope = one - zero
        return zero + added * self.size * slope if added else zero, times * slope

    def _multiple(self, summed: TensorVariable) -> tuple[TensorVariable, float, float]:
        """Return what is summed as a multiple of another, and a number: of records with a law."""
        with suppress(Declined, TypeError):  # where it needs whole numbers, to pick by them say
            found = summand_of(summed, self.x, 1000, positive=False).multiple
            if found and is_registered(sum_of, self.rv.owner.op):
                return self.x, *found
        return summed, 1.0, 0.0

    def _is_sum(self, variable) -> bool:
        node = variable.owner
        if node is None or not isinstance(node.op, Sum) or node.inputs[0].type.ndim != 1:
            return False
        return self.x in ancestors([variable])

    def records(self) -> Records:
        """Return the law of the records and the sum over them that is released."""
        op, rv = self.rv.owner.op, self.rv
        count = len(op.dist_params(rv.owner))
        if self.summed is None or (self.summed is self.x and is_registered(sum_of, op)):
            return Records(op, count, None)
        if not rv.dtype.startswith("float"):
            raise Declined(
                f"the sum over the records {rv.name!r}, of unknown number, has no known law"
            )
        op = readable_law(rv)
        parameters = [p.astype("float64").squeeze() for p in rv.owner.op.dist_params(rv.owner)]
        positive = starts_at_zero(op, parameters, str(rv.name))
        summand = summand_of(self.summed, self.x, 1000, positive)
        if self.size in ancestors([summand.h]):
            raise Declined(
                f"what is summed over the records {rv.name!r} depends on their number "
                f"{self.number.name!r}, where sums of functions of a single record are supported"
            )
        return Records(op, count, summand)


def _split(graph: TensorVariable) -> list[TensorVariable]:
    """Return the entries of a scalar or of a list."""
    parts = [part for part, _ in leaves(graph, np.zeros(lengths(graph)))]
    if graph.type.ndim > 1 or any(part.type.ndim for part in parts):
        raise Declined("write what is released as a scalar or as a list, pt.stack([...])")
    return parts
