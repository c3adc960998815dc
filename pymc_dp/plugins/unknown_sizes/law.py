"""The rule of records of unknown number: their number is released, and a sum or class counts."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytensor.tensor as pt
from pytensor.tensor.basic import Alloc
from pytensor.tensor.random.op import RandomVariable
from pytensor.tensor.variable import TensorVariable

from pymc_dp.graphs.declined import Declined, about
from pymc_dp.graphs.shapes import lengths
from pymc_dp.graphs.substitution import simplified
from pymc_dp.graphs.values import is_itself, known_value, noticed_function
from pymc_dp.laws import require_pair
from pymc_dp.laws.families.closed import sum_of
from pymc_dp.laws.integrated import integrated_release
from pymc_dp.laws.one_value import require_multiples
from pymc_dp.laws.parts import parts_of
from pymc_dp.laws.shown import confidential, kind_of_sum
from pymc_dp.laws.sum_law import LAWS, Change, Phase, SumLaw, Takes
from pymc_dp.mechanisms.base import Mechanism
from pymc_dp.plugins.inversion.trial import require_found, trial_of
from pymc_dp.plugins.unknown_sizes.density import OfUnknownSize, Part, Windows
from pymc_dp.plugins.unknown_sizes.entries import Entries
from pymc_dp.plugins.unknown_sizes.histogram import Histogram
from pymc_dp.plugins.unknown_sizes.reader import Reader, SumsReader, of_a_record, vectors_of
from pymc_dp.plugins.unknown_sizes.sizes import MAX_NUMBERS, around, by_group, sizes_that_matter
from pymc_dp.plugins.unknown_sizes.sums import SumsOfRecords
from pymc_dp.plugins.unknown_sizes.totals import total_of
from pymc_dp.reading.bounds import at_start, starting_values
from pymc_dp.reading.checks import check_transform, require_possible
from pymc_dp.reading.model import Reading, mechanism_of, releases_of
from pymc_dp.reading.record_lengths import size_of
from pymc_dp.reading.record_sums import RecordSumsRV

_MAX_INVERTED_NUMBERS = 20_000  # numbers of records whose sums are inverted
_MAX_TERMS = 20_000_000  # that the convolutions of class counts add up


@LAWS.register(Phase.UNKNOWN_NUMBER, Takes(number_known=False))
@dataclass(frozen=True, eq=False)
class UnknownSizes(SumLaw):
    """Records of unknown number: noisy numbers of them, and one noisy sum or counts of classes.

    Attributes
    ----------
    number : of the records; None where that of sums over records is known.
    rvs : the records, or sums over them.
    parameters : of the law of a record, by group.
    """

    reading: Reading
    number: TensorVariable | None
    rvs: tuple[TensorVariable, ...]
    reader: Reader
    records: SumsOfRecords | Histogram
    parameters: list[TensorVariable]
    releases: dict[TensorVariable, Entries]

    @classmethod
    def read(cls, reading, group):
        """See `SumLaw.read`."""
        sums = [rv for rv in group.records if isinstance(rv.owner.op, RecordSumsRV)]
        number: TensorVariable | None = size_of((sums or group.records[1:] or group.records)[0])
        vectors = [rv for rv in group.records if rv is not number]
        if not sums and (number is None or number not in group.records):
            raise Declined  # another variable of the group has the unknown number
        for rv in vectors:
            check_transform(reading.model, rv)
        written = _written_number(sums[0]) if sums else None
        if number is not None and written is not None and not is_itself(written, number):
            number = total_of(number, written, str(sums[0].name))
        if number is not None:
            _check_number(number, vectors[0])
        releases = releases_of(reading.model, group.records)
        require_possible(releases)
        reader: Reader
        records: SumsOfRecords | Histogram
        if sums:
            if len(vectors) > 1:
                names = " and ".join(repr(rv.name) for rv in vectors)
                raise Declined(f"{names} have the same unknown number: only one vector can have it")
            reader = SumsReader(number, sums[0], written)
        else:
            reader = Reader(number, vectors_of(number, vectors))
        try:
            entries = {release: reader.read(release) for release in releases}
            records, parameters = reader.records()
        except Declined as reason:
            if len(vectors) > 1 or sums:
                raise
            try:
                records, entries = reader.classes(releases)
                parameters = list(of_a_record(vectors[0]))
            except Declined as why:
                raise (why if why.near else reason) from None  # what was read as classes
        return cls(reading, number, tuple(vectors), reader, records, parameters, entries)

    @property
    def names(self) -> str:
        """The names of the records."""
        return " and ".join(repr(rv.name) for rv in self.rvs[:3]) + ", ..." * (len(self.rvs) > 3)

    @property
    def name(self) -> str:
        """The name of the number, or of sums over known ones, for errors."""
        return repr((self.rvs[0] if self.number is None else self.number).name)

    def describe(self, release):
        """See `SumLaw.describe`."""
        entries = self.releases[release]
        records = f"{self.rvs[0].name}" + ", ..." * (len(self.rvs) > 1)
        parts = [f"the number of {records}"] * bool((~entries.summed).any())
        counts = isinstance(self.records, Histogram)
        of_records = f"counts of classes of {records}" if counts else f"a sum of {records}"
        parts += [of_records] * bool(entries.summed.any())
        number = "" if self.number is None else f", of unknown number {self.number.name}"
        return f"{' and '.join(parts)}{number}"

    def statistics(self):
        """See `SumLaw.statistics`."""
        raise Declined(
            f"the number {self.name} of the records {self.names} is summed over: use "
            f"to='marginal', and dp.recover to draw it"
        )

    def marginal(self):
        """Sum over all numbers of records that matter."""
        number, prior = [], None
        if self.number is not None:
            prior = self.number.owner.op
            # Small types of numbers would give the densities few digits.
            number = by_group(self.number)
        records, model = self._within(self.records), self.reading.model
        # Releases of numbers alone come first: they tell most about the numbers.
        order = sorted(self.releases, key=lambda release: self.releases[release].summed.any())
        windows = self._windows(records)
        if isinstance(records, Histogram) and records.work(windows.sizes[0]) > _MAX_TERMS:
            raise Declined(
                f"the counts of classes of {self.names} that are possible are too many to add up: "
                f"release fewer, or with a Poisson prior of {self.name} write independent Poisson "
                f"cells, pm.Poisson('cells', rate * p)"
            )
        change, earlier_inputs = Change(), list[TensorVariable]()
        earlier, published = list[Mechanism](), list[TensorVariable | None]()
        for k, release in enumerate(order):
            mechanism = mechanism_of(release)
            change.trials += self._require(release, mechanism, windows)
            last = release is order[-1]
            of_release = OfUnknownSize(
                prior, len(number), () if self.number is None else lengths(self.number),
                records, windows, tuple(self.releases[r] for r in order[: k + 1]),
                tuple(earlier), tuple(published),
                str(self.number.name) if last and self.number is not None else None,
                self._shown(order) if last else {},
            )  # fmt: skip
            record_parameters = self.parameters if of_release.is_summed else []
            change.replaced[release] = integrated_release(
                of_release, mechanism, *number, *record_parameters, *earlier_inputs
            )
            earlier_inputs += [release, *mechanism.parameters]
            earlier.append(mechanism)
            observed = release in model.observed_RVs
            published.append(model.rvs_to_values[release] if observed else None)
        return change

    def _shown(self, order) -> dict[str, Part | int]:
        """Return what is shown in results, by name; see `OfUnknownSize.shown`."""
        if isinstance(self.records, Histogram):
            return {}
        if isinstance(self.reader, SumsReader):
            every = np.arange(self.reader.sums.type.shape[0]).reshape(lengths(self.rvs[0]))
            return {str(self.rvs[0].name): Part(every)}
        multiple = self.records.multiple
        if multiple is None:
            summed = (k for k, release in enumerate(order) if self.releases[release].summed.any())
            return {confidential(order[k]): k for k in summed}
        return {
            f"{rv.name}_{kind_of_sum(rv.owner.op)}": Part(np.array(place), *multiple)
            for place, rv in self.reader.vectors.items()
            if place in self.reader.used
        }

    def _require(
        self, release: TensorVariable, mechanism: Mechanism, windows: Windows
    ) -> list[Callable[[], None]]:
        """Decline noise under which a sum has no density; return trials of the density."""
        entries = self.releases[release]
        if not entries.summed.any() or isinstance(self.records, Histogram):
            return []
        # A slope or constant that depends on the number is NaN.
        zero, one = entries.at(np.arange(2) + np.zeros_like(windows.first)[:, None])
        fixed = [np.where((v == v[:, :1]).all(axis=1), v[:, 0], np.nan) for v in (one, zero)]
        for slope, constant in zip(*(v[entries.summed] for v in fixed), strict=True):
            require_multiples(release, mechanism, slope, constant)
        place = f"the release {release.name!r}"
        with about(place):
            if (summand := self.records.summand) is not None:
                summand.noise_parts(mechanism)
                summand.require(self.rvs[0], mechanism, 1.0, 0.0)
                if summand.inverted:
                    return [
                        about(place)(trial) for trial in self._trials(release, mechanism, windows)
                    ]
            else:
                law, law_parameters = sum_of(self.records.law, 10, *self.parameters)
                require_pair(law, mechanism, law_parameters)
        return []

    def _trials(
        self, release: TensorVariable, mechanism: Mechanism, windows: Windows
    ) -> list[Callable[[], None]]:
        """Return trials of the density of a sum over a likely number of records."""
        entries, records = self.releases[release], self.records
        summand = records.summand
        assert isinstance(records, SumsOfRecords) and summand is not None  # noqa: PT018
        likely = (windows.first + windows.last) // 2
        j = int(np.argmin(np.where(likely[entries.group] > 0, likely[entries.group], np.inf)))
        n = int(likely[entries.group[j]])
        _, slope = entries.at(np.maximum(likely, 1)[:, None])
        if not n or not entries.summed[j]:
            return []
        scaled = (pt.broadcast_to(p, entries.shape).ravel()[j] for p in mechanism.parameters)
        noise = [
            part / abs(slope[j, 0])
            for part in summand.noise_parts(mechanism.with_parameters(*scaled))
        ]

        def found_at(times, **how):
            record_parameters = at_start([p[entries.group[j]] for p in self.parameters], times)
            at = summand.rewritten(lambda graphs: at_start(graphs, times))
            parts = parts_of(records.law, record_parameters)
            laplace, gaussian = at_start(noise)
            require_found(str(self.rvs[0].name), parts, n, at, laplace, gaussian, 0, **how)

        return [trial_of(found_at)]

    def _within(self, records: SumsOfRecords | Histogram) -> SumsOfRecords | Histogram:
        """Return a histogram with the window of counts that releases leave to each class."""
        if not isinstance(records, Histogram):
            return records
        windows: list[tuple[int, int] | None] = [None] * records.size
        for k, (matrix, noise, start) in self._of_classes().items():
            window = around(noticed_function([matrix], noise), np.array([start]), MAX_NUMBERS)
            if window is None:
                raise Declined(
                    f"more than {MAX_NUMBERS:,} counts of a class of {self.names} matter"
                )
            windows[k] = int(window.first[0]), int(window.last[0])
        return replace(records, windows=tuple(windows))

    def _published(self):
        """Yield entries, values and noise of each observed release."""
        model = self.reading.model
        for release, entries in self.releases.items():
            if release not in model.observed_RVs:
                continue
            [value] = starting_values([model.rvs_to_values[release].ravel()])
            mechanism = mechanism_of(release)
            noise = (pt.broadcast_to(p, entries.shape).ravel() for p in mechanism.parameters)
            yield entries, value, mechanism.with_parameters(*noise)

    def _of_classes(self) -> dict[int, Any]:
        """Return the log density of the releases of each class, and where it is largest."""
        densities = dict[int, Any]()
        for entries, value, noise in self._published():
            constants, slopes = entries.at(np.zeros((1, 1), dtype=int))
            for j in np.flatnonzero(entries.summed):
                k, (a, b) = int(entries.place[j]), (float(constants[j, 0]), float(slopes[j, 0]))
                matrix, total, start = densities.get(k, (pt.matrix(dtype="int64"), 0.0, 0.0))
                entry_noise = noise.with_parameters(*(p[j] for p in noise.parameters))
                total += entry_noise.logp(pt.constant(value[j]), a + b * matrix)
                densities[k] = matrix, total, max(start, float((value[j] - a) / b))
        return densities

    def _largest(self, records: SumsOfRecords | Histogram) -> tuple[np.ndarray, int] | None:
        """Return the largest log density of the class counts for each number, and the first number.

        None without classes, or where nothing is published of a class.
        """
        if not isinstance(records, Histogram) or None in records.windows:
            return None
        best, begin = np.zeros(1), 0
        for k, (matrix, noise, _) in self._of_classes().items():
            first, last = records.windows[k] or (0, 0)
            [log_noise] = noticed_function([matrix], noise)(np.arange(first, last + 1)[None])
            begin += first
            place = np.arange(best.size + log_noise.size - 1)[:, None] - np.arange(log_noise.size)
            inside = (place >= 0) & (place < best.size)
            best = np.max(np.where(inside, best[place * inside], -np.inf) + log_noise, axis=1)
        return best, begin

    def _windows(self, records: SumsOfRecords | Histogram) -> Windows:
        """Return the numbers of records that matter, given the releases."""
        if self.number is None:
            [rv] = self.rvs
            known = known_value(*simplified([rv.owner.inputs[1]]))
            if known is None:
                raise Declined(f"the numbers of records of {rv.name!r} are not known: write them")
            sizes = np.broadcast_to(known, lengths(rv)).ravel().astype("int64")
            return Windows(sizes, sizes)
        matrix, linear = pt.matrix(dtype="int64"), True
        noise: Any = pt.zeros_like(matrix, dtype="float64")
        start = np.full(self.reader.numbers.type.shape, np.nan)
        for entries, value, mechanism in self._published():
            alone = np.flatnonzero(~entries.summed)
            if not alone.size:
                continue
            group = entries.group[alone]
            entry_noise = mechanism.with_parameters(
                *(p[alone][:, None] for p in mechanism.parameters)
            )
            of_all = entries.without_sums(matrix)[alone]
            noise = pt.inc_subtensor(
                noise[group], entry_noise.logp(pt.constant(value[alone][:, None]), of_all)
            )
            numbers, _ = entries.at(np.arange(2) + np.zeros((start.size, 1), dtype=int))
            zero, one = numbers[alone].T
            informative = np.flatnonzero((one != zero) & np.isnan(start[group]))
            at = (value[alone] - zero)[informative] / (one - zero)[informative]
            start[group[informative][::-1]] = at[::-1]
            linear = linear and entries.is_linear()
        if (largest := self._largest(records)) is not None:
            table, first = largest
            place = matrix - first
            inside = (place >= 0) & (place < table.size)
            of_all = pt.constant(table)[pt.switch(inside, place, 0)]
            noise = noise + pt.switch(inside, of_all, -np.inf)
            start = np.where(np.isnan(start), first + np.argmax(table), start)
        most = MAX_NUMBERS if records.summand is None else _MAX_INVERTED_NUMBERS
        return sizes_that_matter(self.number, self.names, matrix, noise, start, most, linear=linear)


def _written_number(rv: TensorVariable) -> TensorVariable:
    """Return the graph of the numbers of records of sums."""
    size = rv.owner.inputs[1]
    if isinstance(size.owner and size.owner.op, Alloc) and lengths(size) == lengths(
        size.owner.inputs[0]
    ):
        size = size.owner.inputs[0]  # one number, broadcast to the shape of the sums
    return size


def _check_number(number: TensorVariable, rv: TensorVariable) -> None:
    """Decline a number that has no prior on counts."""
    op = number.owner.op
    if not isinstance(op, RandomVariable) or number.dtype.startswith("float") or op.ndim_supp:
        raise Declined(
            f"the number {number.name!r} of the records {rv.name!r} has to be a whole number with "
            f"a prior on counts, pm.Poisson or pm.DiscreteUniform say"
        )
