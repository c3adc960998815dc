"""Values that are released one by one, each divided by a noisy number of its own.

Given the noisy numbers, which stay in the model as free variables, both values are independent:
each is integrated out by itself.
"""

from __future__ import annotations

from dataclasses import dataclass

from pytensor.tensor.random.basic import LaplaceRV
from pytensor.tensor.variable import TensorVariable

from pymc_dp.graphs.declined import Declined, about
from pymc_dp.graphs.values import known_value, nearest_rvs
from pymc_dp.laws.of_function import OfFunction, read_function
from pymc_dp.laws.parts import law_of_record
from pymc_dp.laws.sum_law import LAWS, Change, Phase, SumLaw, Takes
from pymc_dp.mechanisms.base import Mechanism
from pymc_dp.mechanisms.gaussian import GaussianMechanism
from pymc_dp.mechanisms.laplace import LaplaceMechanism
from pymc_dp.mechanisms.release import PrivateReleaseRV, apart
from pymc_dp.plugins.single_values.law import release_of_each
from pymc_dp.reading.checks import check_transform
from pymc_dp.reading.model import (
    Reading,
    divisors_of,
    mechanism_of,
    release_statistic,
    releases_of,
)


@LAWS.register(Phase.SPECIFIC, Takes(divided=True, single=False, number_known=True))
@dataclass(frozen=True, eq=False)
class Ratios(SumLaw):
    """Values behind ratios, and those behind the noisy numbers that divide them."""

    reading: Reading
    noisy: dict[TensorVariable, TensorVariable]  # a value, and what was made noisy of it
    divisors: list[TensorVariable]

    @classmethod
    def read(cls, reading, group):
        """See `SumLaw.read`."""
        ratios = releases_of(reading.model, group.records)
        divisors = list(dict.fromkeys(d for ratio in ratios for d in divisors_of(ratio)))
        noisy = {}
        for made in [*divisors, *(r for r in ratios if r not in divisors)]:
            of = [rv for rv in nearest_rvs([statistic_of(made)]) if rv not in divisors]
            if len(of) != 1 or of[0] in noisy or of[0].owner.op.ndim_supp:
                raise Declined(
                    f"{made.name!r} is no noisy function of one value each, which nothing else is "
                    f"made of"
                )
            noisy[of[0]] = made
        if {*noisy} | {*divisors} != {*group.records}:
            raise Declined("a value enters neither a ratio nor a noisy number that divides one")
        for rv in noisy:
            check_transform(reading.model, rv)
            if {*nearest_rvs(rv.owner.inputs)} & {*group.records}:
                raise Declined(f"the law of {rv.name!r} depends on another value of the ratio")
        return cls(reading, noisy, divisors)

    def marginal(self):
        """Integrate each value out, given the noisy numbers that divide."""
        replaced = {}
        for rv, made in self.noisy.items():
            with about(f"the release {made.name!r}"):
                function, further = read_function(statistic_of(made), rv, self.divisors)
                law, parameters = law_of_record(rv, truncated=True)
                noise = OfFunction(mechanism_of_noisy(made), function, tuple(further))
                replaced[made] = release_of_each(str(rv.name), law, parameters, noise, made)
        return Change(replaced=replaced)


def statistic_of(noisy: TensorVariable) -> TensorVariable:
    """Return what was made noisy."""
    if isinstance(noisy.owner.op, PrivateReleaseRV):
        return apart(release_statistic(noisy))
    return noisy.owner.op.dist_params(noisy.owner)[0]


def mechanism_of_noisy(noisy: TensorVariable) -> Mechanism:
    """Return the noise of a release, or of a variable of PyMC."""
    op = noisy.owner.op
    if isinstance(op, PrivateReleaseRV):
        return mechanism_of(noisy)
    scale = op.dist_params(noisy.owner)[1]
    if known_value(scale) is None:
        raise Declined(f"the scale of {noisy.name!r} is no known number")
    return LaplaceMechanism(scale) if isinstance(op, LaplaceRV) else GaussianMechanism(scale)
