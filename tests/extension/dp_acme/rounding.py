"""Random rounding to base 3 of national statistics: it is public, and has no parameter."""

from dataclasses import dataclass

import numpy as np
import pytensor.tensor as pt

from pymc_dp.mechanisms import Mechanism, MechanismExample, register_mechanism
from pymc_dp.mechanisms.arguments import as_float


@dataclass(frozen=True, repr=False, eq=False)
class RoundingToThree(Mechanism):
    """A count becomes one of the multiples of 3 around it, the nearer one more often."""

    spacing = 3.0
    log_concave = True

    def noise_sample(self, rng, statistic):
        statistic = as_float(statistic)
        rng, u = pt.random.uniform(size=statistic.shape, rng=rng, return_next_rng=True)
        return rng, 3.0 * pt.floor(statistic / 3.0 + u)

    def logp(self, value, statistic=0.0):
        value = as_float(value)
        mass = pt.maximum(1.0 - abs(value - statistic) / 3.0, 0.0)
        return pt.switch(pt.eq(value % 3.0, 0.0), pt.log(mass), -np.inf)

    def log_interval(self, lower, upper, statistic=0.0):
        below = 3.0 * pt.floor(as_float(statistic) / 3.0)
        mass = 0.0
        for z in (below, below + 3.0):
            mass += pt.switch((lower <= z) & (z <= upper), 1.0 - abs(z - statistic) / 3.0, 0.0)
        return pt.log(mass)


register_mechanism(
    RoundingToThree,
    examples=lambda: [
        MechanismExample(
            RoundingToThree(), statistic=7.0, atoms=[6.0, 9.0], smooth_in_statistic=False
        )
    ],
)
