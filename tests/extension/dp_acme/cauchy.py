"""Cauchy noise, as smooth sensitivity asks for."""

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import pymc as pm
import pytensor.tensor as pt
from pytensor.tensor.variable import TensorVariable

from pymc_dp.mechanisms import Mechanism, MechanismExample, register_mechanism


@dataclass(frozen=True, repr=False, eq=False)
class CauchyMechanism(Mechanism):
    """Cauchy noise of a scale."""

    scale: TensorVariable
    parameter_names: ClassVar[tuple[str, ...]] = ("scale",)

    def __post_init__(self):
        object.__setattr__(self, "scale", pt.as_tensor(self.scale, dtype="float64"))

    def noise_sample(self, rng, statistic):
        return pt.random.cauchy(statistic, self.scale, rng=rng, return_next_rng=True)

    def logp(self, value, statistic=0.0):
        return pm.logp(pm.Cauchy.dist(statistic, self.scale), value)

    def log_interval(self, lower, upper, statistic=0.0):
        a, b = lower - pt.as_tensor(statistic), upper - pt.as_tensor(statistic)
        # Of an angle's tangent: the difference of two angles keeps its digits in the tails.
        mass = pt.arctan2(self.scale * (b - a), self.scale**2 + a * b) / np.pi
        return pt.switch(a < b, pt.log(mass), -np.inf)


def _examples():
    pieces = (-1e4, -50.0, -5.0, 0.0, 5.0, 50.0, 1e4)
    return [MechanismExample(CauchyMechanism(0.7), statistic=1.0, pieces=pieces, atoms=())]


register_mechanism(CauchyMechanism, examples=_examples)
