"""Records that are released one by one, as any function of each."""

from __future__ import annotations

from dataclasses import dataclass

import pytensor.tensor as pt
from pytensor.tensor.variable import TensorVariable

from pymc_dp.graphs.declined import Declined, about
from pymc_dp.graphs.shapes import lengths
from pymc_dp.laws.of_function import OfFunction, read_function
from pymc_dp.laws.one_value import OneValue, independent_release
from pymc_dp.laws.parts import law_of_record
from pymc_dp.laws.sum_law import LAWS, Change, Phase, SumLaw, Takes
from pymc_dp.mechanisms.release import apart
from pymc_dp.reading.checks import check_transform
from pymc_dp.reading.model import mechanism_of, release_statistic, releases_of


@LAWS.register(Phase.FALLBACK, Takes(single=True, number_known=True))
@dataclass(frozen=True, eq=False)
class OneByOne(SumLaw):
    """Values of one variable, of which one release has an entry each."""

    rv: TensorVariable
    release: TensorVariable

    @classmethod
    def read(cls, reading, group):
        """See `SumLaw.read`."""
        [rv] = group.records
        check_transform(reading.model, rv)
        [release, *more] = releases_of(reading.model, [rv])
        if more or release.owner.op.bounds is not None:
            raise Declined
        return cls(rv, release)

    def marginal(self):
        """Integrate each value out."""
        rv, release = self.rv, self.release
        statistic, mechanism = apart(release_statistic(release)), mechanism_of(release)
        with about(f"the release {release.name!r}"):
            function, further = read_function(statistic, rv)
            law, parameters = law_of_record(rv)
            parameters = [pt.broadcast_to(p, lengths(release)) for p in parameters]
            of_value = OfFunction(mechanism, function, tuple(further))
            one = OneValue(str(rv.name), law, len(parameters))
            return Change(replaced={release: independent_release(one, parameters, of_value)})
