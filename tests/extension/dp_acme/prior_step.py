"""A step for variables that nothing depends on: their law is their prior."""

import numpy as np
import pymc as pm

from pymc_dp.reading.model import children
from pymc_dp.step_methods.base import DPStep, point_function, value_writer
from pymc_dp.step_methods.registry import STEPS


@STEPS.register(order=5)
class PriorGibbs(DPStep):
    """Draw variables without children from their law, given the variables it depends on."""

    name = "acme_prior"

    @classmethod
    def claims(cls, reading, left):
        return [[rv for rv in left if not children(reading, rv)]]

    def _prepare(self, reading, initial_point):
        self._draws, model = [], reading.model
        for rv in self.model_rvs:
            if children(reading, rv):
                raise ValueError(f"PriorGibbs cannot update {rv.name!r}: others depend on it")
            parameters, inputs = point_function(model, list(rv.owner.op.dist_params(rv.owner)))
            name = model.rvs_to_values[rv].name
            self._draws.append((name, rv.owner.op, parameters, inputs, value_writer(model, rv)))

    def step(self, point):
        for name, op, parameters, inputs, write in self._draws:
            given = parameters(*[point[i] for i in inputs])
            law = op(*given, size=np.shape(point[name]))
            value = pm.draw(law, random_seed=self.rng)
            point = {**point, name: write(value)}
        return point, [{}]
