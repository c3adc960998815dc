r"""Records with finitely many values that are reported row by row: summed out, row by row.

A row i is in one of some states k, the values of all of its variables. Given the state, its reports
are independent, so that the law of reports r is

.. math::

    \sum_k P(k) \prod_e \eta_e(r_e \mid s_e(k)).

Rows that are alike are a cell; equal reports in a cell are counted once. Matrices whose entries
are independent given the state, the answers of a latent class say, are summed out entry by entry.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from pytensor.tensor.random.basic import BernoulliRV, CategoricalRV
from pytensor.tensor.variable import TensorVariable

from pymc_dp.graphs.declined import Declined
from pymc_dp.graphs.shapes import lengths
from pymc_dp.laws.integrated import integrated_release
from pymc_dp.laws.sum_law import LAWS, Change, Phase, SumLaw, Takes
from pymc_dp.plugins.reports.density import ReportedRecords, Reports
from pymc_dp.plugins.reports.rows import Rows
from pymc_dp.reading.cells import keys_at, partition
from pymc_dp.reading.groups import is_channel
from pymc_dp.reading.model import mechanism_of, release_statistic, releases_of
from pymc_dp.reading.record_lengths import record_length
from pymc_dp.reading.sums import is_rowwise


@LAWS.register(Phase.ANSWERS, Takes(answers=True), Takes((BernoulliRV, CategoricalRV), single=True))
@dataclass(frozen=True, eq=False)
class Reported(SumLaw):
    """Records whose every report is of one row, by randomized response."""

    name: str
    releases: tuple[TensorVariable, ...]
    law: ReportedRecords
    parameters: list[TensorVariable]

    @classmethod
    def read(cls, reading, group):
        """See `SumLaw.read`."""
        releases = releases_of(reading.model, group.records)
        channel = all(is_channel(release) for release in releases)
        if not channel and any(map(is_channel, releases)):
            raise Declined(
                f"the records {group.name!r} are released more than once (in "
                f"{', '.join(repr(r.name) for r in releases)}), by randomized response and by "
                f"other noise, which have no joint law: sample on the records",
                near=1,
            )
        # Continuous variables of rows stay parameters.
        counted = [rv for rv in group.records if not rv.dtype.startswith("float")]
        records = counted or group.records
        if not channel and not _is_each(records, releases):
            raise Declined
        rows = Rows.of(records)
        arranged = [rows.arranged(release) for release in releases]
        keys = rows.keys()
        for release, layout in zip(releases, arranged, strict=True):
            keys += _differing(release, *layout)
        cells = partition(keys, rows.n)
        if not channel and cells.sizes.size > 1:
            raise Declined
        if 2 * cells.sizes.size > rows.n + 1:  # too few rows are alike: each is a cell of its own
            cells = partition([np.arange(rows.n)], rows.n)
        states, values = rows.chances(cells)
        columns = sum(rows.width(rv) for rv in rows.matrices)
        reports = []
        for release, (places, there, table, column) in zip(releases, arranged, strict=True):
            at = [
                array if array.shape[axis] == 1 else array.take(cells.first, axis)
                for array, axis in ((there, 0), (table, 2))
            ]
            reports.append(Reports(mechanism_of(release), lengths(release), places, *at, column))
        [first, *more_records] = records
        alone = not more_records and not columns
        suffix = "count" if isinstance(first.owner.op, BernoulliRV) else "counts"
        names = (f"{first.name}_{suffix}",) if alone and 2 * cells.sizes.size <= rows.n + 1 else ()
        law = ReportedRecords(names, cells.of, cells.sizes.size, columns, tuple(reports))
        further = []
        for release in releases[1:]:
            if release not in reading.model.observed_RVs:
                raise Declined(
                    f"the release {release.name!r} of {group.name!r} is not observed, and there "
                    f"are others of them: give it observed=, or leave it out"
                )
            further += [
                reading.model.rvs_to_values[release],
                *mechanism_of(release).parameters,
            ]
        parameters = [states, *([] if values is None else [values]), *further]
        return cls(", ".join(rv.name for rv in records), tuple(releases), law, parameters)

    def describe(self, release):
        """See `SumLaw.describe`."""
        return f"every one of {self.name}"

    def statistics(self):
        """Refuse: there is nothing shorter than the reports."""
        raise Declined(
            f"the release {self.releases[0].name!r} reports every one of the records "
            f"{self.name!r}: it is no function of their counts. Use to='marginal'"
        )

    def marginal(self):
        """Sum the records out."""
        [first, *later] = self.releases
        new = integrated_release(self.law, mechanism_of(first), *self.parameters)
        return Change(replaced={first: new}, dropped={release.name for release in later})


def _is_each(records, releases) -> bool:
    """Whether a vector of records is released entry by entry, and only once."""
    [rv, *more_records] = records
    alike = isinstance(rv.owner.op, BernoulliRV | CategoricalRV) and rv.type.ndim == 1
    [statistic, *more] = map(release_statistic, releases)
    same = not more_records and not more and statistic.type.shape == rv.type.shape
    return alike and same and is_rowwise(statistic, rv, record_length(rv), 1)


def _differing(release, places, there, table, _) -> list[np.ndarray]:
    """Return columns that tell rows apart by what is released of them, and by its noise."""
    index = np.unravel_index(places.ravel(), lengths(release))
    keys = [key for p in mechanism_of(release).parameters for key in keys_at(p, index)]
    by_row = [*(key.reshape(places.shape) for key in keys), there, np.moveaxis(table, 2, 0)]
    flat = [array.reshape(len(array), -1) for array in by_row if len(array) > 1]
    return [column for array in flat for column in array.T if (column != column[0]).any()]
