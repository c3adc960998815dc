"""The law of counts that were released one by one: they are summed out of their release."""

from __future__ import annotations

from dataclasses import dataclass

import pytensor.tensor as pt
from pytensor.tensor.random.basic import BernoulliRV
from pytensor.tensor.random.op import RandomVariable
from pytensor.tensor.variable import TensorVariable

from pymc_dp.graphs.declined import Declined
from pymc_dp.graphs.questions import is_itself, known_shape
from pymc_dp.laws import find_pair, law_names
from pymc_dp.laws.count_sums import FAMILIES
from pymc_dp.laws.one_value import Statistic, independent_release
from pymc_dp.laws.sum_law import SUM_LAWS, Change, SumLaw
from pymc_dp.mechanisms.base import Mechanism
from pymc_dp.reading.model import children, release_mechanism, release_statistic


def _count_laws() -> list[type]:
    """Return the laws of counts; Bernoulli ones are records, see `counts`."""
    return [law for law in FAMILIES if issubclass(law, RandomVariable) and law is not BernoulliRV]


@SUM_LAWS.register(order=40)
@dataclass(frozen=True)
class ReleasedCounts(SumLaw):
    """Counts and the release that holds each of them, with noise of its own."""

    rv: TensorVariable
    release: TensorVariable
    mechanism: Mechanism

    @classmethod
    def named(cls):
        """See `SumLaw.named`."""
        return law_names(_count_laws())

    @classmethod
    def read(cls, reading, group):
        """See `SumLaw.read`; refuse what is no release of each by itself."""
        [rv, *more] = group.records
        if more or type(rv.owner.op) not in _count_laws():
            raise Declined
        release, *others = children(reading, rv)
        if others:
            raise Declined(
                f"the counts {rv.name!r} are in several releases, {release.name!r} and "
                f"{others[0].name!r}: sums over them all have no closed form"
            )
        if not is_itself(release_statistic(release), rv):
            raise Declined(
                f"the release {release.name!r} is not of {rv.name!r} one by one: there are "
                f"collapse rules for counts that are released as they are"
            )
        mechanism = release_mechanism(release)
        find_pair(rv.owner.op, mechanism)
        return cls(rv, release, mechanism)

    def describe(self, release):
        """See `SumLaw.describe`."""
        return f"every count of {self.rv.name!r}"

    def latents(self):
        """Refuse: the counts are the statistics."""
        raise Declined(
            f"the counts {self.rv.name!r} are released one by one: there is no shorter statistic"
        )

    def integrated(self):
        """Sum the counts out of their release."""
        op = self.rv.owner.op
        shape = known_shape(self.rv)
        parameters = [pt.broadcast_to(p, shape) for p in op.dist_params(self.rv.owner)]
        statistic = Statistic(self.rv.name, op, len(parameters))
        integrated = independent_release([(statistic, parameters)], self.mechanism)
        return Change(replaced={self.release: integrated})
