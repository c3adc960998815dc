"""Releases whose statistic depends on no record: of an empty group, or times zero."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pytensor.tensor as pt
from pytensor.graph.traversal import toposort
from pytensor.scalar import basic as ps
from pytensor.tensor.variable import TensorVariable

from pymc_dp.graphs.shapes import known_shape
from pymc_dp.graphs.substitution import substitute
from pymc_dp.graphs.values import known_value, nearest_rvs
from pymc_dp.laws.integrated import Integrated, in_results, integrated_release
from pymc_dp.laws.sum_law import LAWS, Change, Phase, SumLaw, Takes
from pymc_dp.reading.model import mechanism_of, release_statistic, releases_of


@dataclass(frozen=True)
class Public(Integrated):
    """A value that does not depend on the records; its parameter is the value."""

    names: tuple[str, ...]
    elementwise = True

    def draw(self, rng, *parameters):
        """See `Integrated.draw`."""
        [value] = parameters
        return rng, value

    def mean_variance(self, *parameters):
        """See `Integrated.mean_variance`."""
        [value] = parameters
        return value, pt.zeros_like(value)

    def logp(self, value, mechanism, *parameters):
        """See `Integrated.logp`."""
        [statistic] = parameters
        return mechanism.logp(value, statistic)

    def recovered(self, rv, value, posterior, rng):
        """See `Integrated.recovered`."""
        _, [statistic] = rv.owner.op.split(rv.owner.inputs)
        draws = posterior.sizes["chain"] * posterior.sizes["draw"]
        value = np.asarray(known_value(statistic))
        return in_results(posterior, self.names[0], np.broadcast_to(value, (draws, *value.shape)))


@LAWS.register(Phase.NOTHING, Takes(released=False))
@dataclass(frozen=True, eq=False)
class NoRecords(SumLaw):
    """Records whose releases are all noise around public numbers."""

    values: dict[TensorVariable, TensorVariable]

    @classmethod
    def read(cls, reading, group):
        """See `SumLaw.read`."""
        values = {}
        for release in releases_of(reading.model, group.records):
            values[release] = value_of_nothing(release_statistic(release), release.name)
        return cls(values)

    def describe(self, release):
        """See `SumLaw.describe`."""
        return "of no records"

    def statistics(self):
        """Keep the noise only: there is no statistic of records."""
        return self.marginal()

    def marginal(self):
        """Keep the noise only."""
        change = Change()
        for release, value in self.values.items():
            law = Public((f"{release.name}_confidential",))
            change.replaced[release] = integrated_release(law, mechanism_of(release), value)
        return change


def value_of_nothing(statistic: TensorVariable, release: str) -> TensorVariable:
    """Write a statistic of no records without the records; refuse one that is 0 / 0."""
    sources = nearest_rvs([statistic])
    zeros = {rv: pt.zeros(known_shape(rv), dtype=rv.dtype) for rv in sources}
    without_records = substitute(statistic, zeros)
    # A variance over no records is zero, a sum of no squares, though the mean in it is 0 / 0: all
    # divisors are checked.
    divisors = [
        node.inputs[1]
        for node in toposort([without_records])
        if isinstance(getattr(node.op, "scalar_op", None), ps.TrueDiv)
    ]
    with np.errstate(invalid="ignore", divide="ignore"):
        divisor_values = [known_value(divisor, fixed=True) for divisor in divisors]
        value = known_value(without_records, fixed=True)
    by_zero = any(divisor is not None and not np.all(divisor) for divisor in divisor_values)
    if by_zero or (value is not None and not np.all(np.isfinite(value))):
        raise ValueError(
            f"the release {release!r} has a mean or variance over no records of "
            f"{' and '.join(repr(rv.name) for rv in sources)}, which is 0 / 0: leave it out, or "
            f"write what the curator put in its place"
        )
    return without_records
