"""A step for variables that nothing depends on: their law is their prior."""

import numpy as np
import pymc as pm

from pymc_dp.reading.model import children
from pymc_dp.step_methods.base import DPStep, point_function
from pymc_dp.step_methods.registry import STEPS


@STEPS.register(order=5)
class PriorGibbs(DPStep):
    """Draw variables without children from their law, given the variables it depends on."""

    name = "acme_prior"

    @classmethod
    def claims(cls, reading, left):
        return [[rv for rv in left if not children(reading, rv)]]

    def _read(self, reading, rv, initial_point):
        if children(reading, rv):
            raise ValueError(f"PriorGibbs cannot update {rv.name!r}: others depend on it")
        op = rv.owner.op
        return op, point_function(reading.model, list(op.dist_params(rv.owner)))

    def _draw(self, name, point, op, parameters_at):
        law = op(*parameters_at(point), size=np.shape(point[name]))
        return pm.draw(law, random_seed=self.rng)
