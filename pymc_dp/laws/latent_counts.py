"""Collapse rules for counts that were released one by one: they are summed out of their release."""

from __future__ import annotations

from dataclasses import dataclass

import pymc as pm
import pytensor.tensor as pt
from pytensor.tensor.random.basic import BernoulliRV
from pytensor.tensor.random.op import RandomVariable
from pytensor.tensor.variable import TensorVariable

from pymc_dp.graphs.declined import Declined
from pymc_dp.graphs.questions import is_itself, known_shape
from pymc_dp.laws import find_pair
from pymc_dp.laws.count_sums import FAMILIES
from pymc_dp.laws.one_value import Statistic, stacked_release_rv
from pymc_dp.laws.rungs import Change, register_rungs
from pymc_dp.mechanisms.base import Mechanism
from pymc_dp.reading.model import children, record_count, release_statistic


@dataclass(frozen=True)
class ReleasedCounts:
    """Counts and the release that holds each of them, with noise of its own."""

    rv: TensorVariable
    release: TensorVariable
    mechanism: Mechanism

    @property
    def name(self) -> str:
        """Name of the counts."""
        return self.rv.name

    @property
    def n(self) -> int:
        """Number of counts along the first axis."""
        return record_count(self.rv)


def read(model: pm.Model, rv: TensorVariable) -> ReleasedCounts:
    """Read counts and their release; refuse what is no release of each by itself."""
    release, *others = children(model, rv)
    if others:
        raise Declined(
            f"the counts {rv.name!r} are in several releases, {release.name!r} and "
            f"{others[0].name!r}: sums over them all have no closed form"
        )
    if not is_itself(release_statistic(release), rv):
        raise Declined(
            f"the release {release.name!r} is not of {rv.name!r} one by one: there are collapse "
            f"rules for counts that are released as they are"
        )
    _, mechanism, _ = release.owner.op.split(release.owner.inputs)
    find_pair(rv.owner.op, mechanism)
    return ReleasedCounts(rv, release, mechanism)


def describe(model: pm.Model, counts: TensorVariable, release: TensorVariable) -> str:
    """Describe the statistic."""
    if not is_itself(release_statistic(release), counts):
        return f"a statistic of the counts {counts.name!r}"
    return f"every count of {counts.name!r}"


def statistics_rung(model: pm.Model, counts: ReleasedCounts) -> Change:
    """Refuse: the counts are the statistics."""
    raise Declined(
        f"the counts {counts.name!r} are released one by one: there is no shorter statistic"
    )


def marginal_rung(model: pm.Model, counts: ReleasedCounts) -> Change:
    """Sum the counts out of their release."""
    op = counts.rv.owner.op
    shape = known_shape(counts.rv)
    parameters = [pt.broadcast_to(p, shape) for p in op.dist_params(counts.rv.owner)]
    integrated = stacked_release_rv(
        [Statistic(counts.name, op, len(parameters))], [parameters], counts.mechanism, ndim=0
    )
    return Change(replaced={counts.release: integrated})


for _law in FAMILIES:
    if issubclass(_law, RandomVariable) and _law is not BernoulliRV:  # records, these: see `counts`
        register_rungs(
            _law, read=read, describe=describe, statistics=statistics_rung, marginal=marginal_rung
        )
