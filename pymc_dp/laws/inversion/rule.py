"""The marginal of continuous records whose law has no rule of its own: by inversion."""

from __future__ import annotations

from dataclasses import dataclass

from pytensor.tensor.variable import TensorVariable

from pymc_dp.graphs.declined import Declined
from pymc_dp.laws.inversion.release import characteristic_marginal, found_in_bulk
from pymc_dp.laws.sum_law import SUM_LAWS, Change, SumLaw
from pymc_dp.reading.columns import only_column
from pymc_dp.reading.model import (
    check_transform,
    record_length,
    releases_of,
)


@SUM_LAWS.register(order=90)
@dataclass(frozen=True)
class InvertedRecords(SumLaw):
    """One sum over continuous records of any smooth law, by its characteristic function."""

    records: TensorVariable
    column: int
    name: str
    releases: tuple[TensorVariable, ...]

    of = "smooth"
    last_resort = True

    @classmethod
    def read(cls, reading, group):
        """See `SumLaw.read`."""
        [records, *others] = group.records
        if others or not records.dtype.startswith("float"):
            raise Declined
        check_transform(reading.model, records)
        mine = releases_of(reading.model, [records])
        if any(r.owner.op.bounds is not None for r in mine):
            raise Declined
        return cls(records, *only_column(records, mine), tuple(mine))

    def describe(self, release):
        """See `SumLaw.describe`."""
        return f"sums over {self.name}"

    def integrated(self):
        """Integrate the records out."""
        try:
            found = characteristic_marginal(
                self.records, record_length(self.records), self.column, list(self.releases)
            )
            for release in found.values():
                found_in_bulk(release, self.name)
        except (Declined, ValueError) as error:
            raise Declined(f"by inversion: {error}", near=getattr(error, "near", 1)) from None
        return Change(replaced=found)
