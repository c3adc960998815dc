"""Tags of confidential variables, by which `pm.sample` assigns steps."""

from __future__ import annotations

from collections.abc import Mapping

from pytensor.graph.basic import Variable
from pytensor.tensor.variable import TensorVariable

from pymc_dp.reading.groups import blocks
from pymc_dp.reading.model import Reading, privatized, releases, releases_of
from pymc_dp.reading.record_lengths import size_of
from pymc_dp.reading.record_sums import RecordSumsRV
from pymc_dp.reading.records import record_variables, released_singly


def is_tagged(rv: Variable) -> bool:
    """Whether `PrivateObservation` tagged a variable as records, which one of our steps draws."""
    return isinstance(getattr(rv.tag, "dp_release", None), str)


def tag_records(reading: Reading, exact: Mapping[TensorVariable, str]) -> None:
    """Tag confidential variables, so that `pm.sample` assigns their steps.

    Tags are strings, which survive in copies of the model: ``dp_release`` names the releases of
    records, ``dp_step`` the step of counts that have an exact draw given their release. Continuous
    values that are released one by one, and in no aggregate, are left to NUTS.

    Parameters
    ----------
    reading : Reading
    exact : mapping of TensorVariable to str
        Counts, each with the name of its step.
    """
    model = reading.model
    for rv in model.free_RVs:
        _tag(rv, "dp_step", exact.get(rv))
    aggregated = tuple(
        rv for rv in record_variables(reading) if rv not in exact and not released_singly(model, rv)
    )
    members = {
        rv: ",".join(f.name for f in block.factors if f in releases(model))
        for block in blocks(reading, aggregated)
        for rv in block.records
    }
    # `RecordMetropolis` raises an error with advice; another step would never move the number.
    for rv in privatized(reading):
        if size_of(rv) is not None or isinstance(rv.owner.op, RecordSumsRV):
            members[rv] = ",".join(release.name for release in releases_of(model, [rv]))
    for rv in model.free_RVs:
        _tag(rv, "dp_release", members.get(rv))


def _tag(rv: TensorVariable, name: str, tag: str | None) -> None:
    if tag:
        setattr(rv.tag, name, tag)
    elif hasattr(rv.tag, name):
        delattr(rv.tag, name)
