"""Cauchy noise, as smooth sensitivity asks for."""

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import pymc as pm
import pytensor.tensor as pt
from pytensor.tensor.variable import TensorVariable

from pymc_dp.mechanisms import Mechanism, MechanismExample, register_mechanism
from pymc_dp.mechanisms.arguments import positive_parameter


@dataclass(frozen=True, repr=False, eq=False)
class AcmeCauchy(Mechanism):
    """Cauchy noise of a scale."""

    scale: TensorVariable
    parameter_names: ClassVar[tuple[str, ...]] = ("scale",)

    def __post_init__(self):
        texts = {"mechanism": "AcmeCauchy", "name": "scale", "instead": "Write a scale > 0."}
        object.__setattr__(self, "scale", positive_parameter(self.scale, **texts))

    def noise_sample(self, rng, statistic):
        return pt.random.cauchy(statistic, self.scale, rng=rng, return_next_rng=True)

    def logp(self, value, statistic=0.0):
        return pm.logp(pm.Cauchy.dist(statistic, self.scale), value)

    def log_interval(self, lower, upper, statistic=0.0):
        a, b = lower - pt.as_tensor(statistic), upper - pt.as_tensor(statistic)
        a, b = pt.switch(a > 0, -b, a), pt.switch(a > 0, -a, b)  # the lower tail keeps its digits
        # The probability of x or less is an angle; the difference of two, in one, keeps its digits.
        infinite = pt.isinf(a) | pt.isinf(b)
        u, v = pt.switch(infinite, 0.0, a), pt.switch(infinite, 1.0, b)
        between = pt.arctan2(self.scale * (v - u), self.scale**2 + u * v)
        beyond = pt.arctan2(self.scale, -b) - pt.arctan2(self.scale, -a)
        return pt.switch(a < b, pt.log(pt.switch(infinite, beyond, between) / np.pi), -np.inf)


def _examples():
    ends = 10.0 ** np.arange(13)  # what is beyond has less than 1e-12 of the mass
    pieces = [*-ends[::-1], *ends]
    return [MechanismExample(AcmeCauchy(0.7), statistic=1.0, pieces=pieces)]


register_mechanism(AcmeCauchy, examples=_examples)
