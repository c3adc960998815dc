"""The marginal of continuous records whose law has no rule of its own: by inversion."""

from __future__ import annotations

from pytensor.tensor.variable import TensorVariable

from pymc_dp.graphs.declined import Declined, about
from pymc_dp.laws.inversion.groups import part_of, released_by_group
from pymc_dp.laws.inversion.release import characteristic_marginal, found_in_bulk
from pymc_dp.laws.sum_law import LAST_RESORTS, Change
from pymc_dp.reading.cells import is_shared
from pymc_dp.reading.columns import only_column
from pymc_dp.reading.groups import Block
from pymc_dp.reading.model import Reading, check_transform, record_length, releases_of
from pymc_dp.reading.statistic import read_statistic


def _read(reading: Reading, group: Block) -> tuple[TensorVariable, list[TensorVariable]]:
    """Return continuous records of one variable, and their releases; decline others."""
    [records, *others] = group.records
    if others or not records.dtype.startswith("float"):
        raise Declined
    check_transform(reading.model, records)
    mine = releases_of(reading.model, [records])
    if any(r.owner.op.bounds is not None for r in mine):
        raise Declined
    return records, list(mine)


@LAST_RESORTS.register("all records", order=1)
def of_all_records(reading: Reading, group: Block) -> Change:
    """Integrate records of one law out of the release of a sum over all of them."""
    records, mine = _read(reading, group)
    column, name = only_column(records, mine)
    try:
        found = characteristic_marginal(records, record_length(records), column, mine)
        for release in found.values():
            found_in_bulk(release, name)
    except (Declined, ValueError) as error:
        raise Declined(f"by inversion: {error}", near=getattr(error, "near", 1)) from None
    return Change(replaced=found)


@LAST_RESORTS.register("groups", order=2)
def of_groups(reading: Reading, group: Block) -> Change:
    """Integrate records out of sums over groups, of one function of a record."""
    records, mine = _read(reading, group)
    part = part_of(reading, mine, records)
    sums = [read_statistic(reading, release, records, (), part) for release in mine]
    if is_shared(*sums):
        raise Declined(
            f"by inversion by group: records of {records.name!r} are used more than once, and "
            f"sums that share records are dependent",
            near=1,
        )
    several = len(sums) > 1
    with about("by inversion by group"):
        return Change(replaced={s.rv: released_by_group(records, part, s, several) for s in sums})
