"""The marginal of continuous records whose law has no rule of its own: by inversion."""

from __future__ import annotations

import pymc as pm
from pytensor.tensor.variable import TensorVariable

from pymc_dp.graphs.declined import Declined
from pymc_dp.graphs.questions import depends_on
from pymc_dp.laws.inversion.release import characteristic_marginal
from pymc_dp.laws.rungs import Change, register_last_resort
from pymc_dp.reading.model import record_count, release_statistic, releases


@register_last_resort
def by_inversion(model: pm.Model, records: TensorVariable) -> Change:
    """Integrate continuous records out by their characteristic function."""
    mine = [r for r in releases(model) if depends_on(release_statistic(r), records)]
    if any(r.owner.op.bounds is not None for r in mine):
        raise NotImplementedError
    try:
        found = characteristic_marginal(records, record_count(records), mine)
    except (NotImplementedError, ValueError) as error:
        raise Declined(f"by inversion: {error}") from None
    return Change(replaced=found)
