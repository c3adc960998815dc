"""Records that are one Normal column, with all of their releases."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from pytensor.tensor.random.basic import NormalRV
from pytensor.tensor.variable import TensorVariable

from pymc_dp.graphs.declined import Declined, once
from pymc_dp.graphs.powers import power_law
from pymc_dp.graphs.signs import nonnegative
from pymc_dp.graphs.values import nearest_rvs
from pymc_dp.reading.checks import check_transform
from pymc_dp.reading.column_sums import LinearStatistic, RowRelease, read_release
from pymc_dp.reading.columns import column_parameters, columns_of
from pymc_dp.reading.groups import Records
from pymc_dp.reading.model import Reading, releases_of
from pymc_dp.reading.record_lengths import record_length


@dataclass(frozen=True)
class NormalColumn:
    """A column of identically distributed Normal records.

    Attributes
    ----------
    rv : the variable that the column is of.
    name : the variable's name, with the column's number if it has several.
    n : the number of records.
    mean, variance : of one record.
    releases : all releases of the column.
    """

    rv: TensorVariable
    name: str
    n: int
    mean: TensorVariable
    variance: TensorVariable
    releases: tuple[RowRelease, ...]

    @property
    def bounds(self) -> tuple[float, float] | None:
        """Publicly known bounds of the records."""
        return next((r.op.bounds for r in self.releases if r.op.bounds is not None), None)

    @property
    def components(self) -> list[LinearStatistic]:
        """All released entries, as linear functions of the sample mean and variance."""
        return [c for release in self.releases for c in release.mean_and_variance()]

    @property
    def spread(self) -> tuple[TensorVariable, float, float] | None:
        """The (w, c, k) of a variance ``c * w**k`` of one variable w; None for other variances."""
        sources = nearest_rvs([self.variance])
        power = power_law(self.variance, sources[0]) if len(sources) == 1 else None
        return None if power is None else (sources[0], *power)

    def uses(self, which: str) -> bool:
        """Whether some release depends on the sample "mean" or "variance"."""
        try:
            return any(getattr(c, which) for c in self.components)
        except Declined:  # an entry that is not linear in them depends on both
            return True


@once
def read_normal_column(
    reading: Reading, group: Records, pending: tuple[TensorVariable, ...] = ()
) -> NormalColumn:
    """Read Normal records of which one column is released, with all of its releases.

    `pending` are further releases that are not registered with the model yet.
    """
    [rv, *further] = group.records
    if further or not isinstance(rv.owner.op, NormalRV):
        raise Declined  # for another law to read
    check_transform(reading.model, rv)
    columns = columns_of([rv])
    if len(columns) == 1:
        normal_moments(rv)  # declines before the releases are read, which may take long
    declared = releases_of(reading.model, [rv], pending)
    n = group.n or record_length(rv)  # a sum of one record may be taken for a value by itself
    row_releases = [read_release(r, columns, n) for r in declared]
    used = {j for release in row_releases for j in release.used} or {0}
    if len(used) > 1:
        raise Declined
    [j] = used
    mean, variance = normal_moments(rv, j)
    name = str(rv.name) if len(columns) == 1 else f"{rv.name}_{j}"
    column_releases = tuple(release.of_column(j) for release in row_releases)
    return NormalColumn(rv, name, n, mean, variance, column_releases)


def normal_moments(rv: TensorVariable, j: int = 0) -> tuple[TensorVariable, TensorVariable]:
    """Return the mean and the variance of a record, in one column of Normal records."""
    if not isinstance(rv.owner.op, NormalRV):
        raise Declined(
            f"the records {rv.name!r} follow {rv.owner.op}, whose mean and variance are not known: "
            f"Normal(mu, sigma) records are supported"
        )
    mu, sigma = column_parameters(rv, j)
    return mu, nonnegative(sigma) ** 2


def normal_columns(reading: Reading, groups: Sequence[Records]) -> list[NormalColumn]:
    """Return the groups that are Normal columns."""
    columns = []
    for group in groups:
        try:
            columns.append(read_normal_column(reading, group))
        except (Declined, ValueError):
            continue
    return columns
