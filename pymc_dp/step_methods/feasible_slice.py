"""A slice step for parameters that bounds of the records confine to a feasible region."""

import pymc as pm

from pymc_dp.graphs.values import nearest_rvs
from pymc_dp.reading.model import releases
from pymc_dp.step_methods.base import tagged_competence
from pymc_dp.step_methods.registry import STEPS, concerned


@STEPS.register(order=80)
class FeasibleSlice(pm.Slice):
    """PyMC's slice sampler, assigned to parameters behind the walls of a feasible region.

    NUTS diverges at such walls; a slice step only meets a density of zero.
    """

    name = "dp_slice"

    @classmethod
    def claims(cls, reading, left):
        """Claim parameters that shape a feasible region, one by one."""
        moments = [r.owner.op.split(r.owner.inputs)[2] for r in releases(reading.model)]
        shaping = nearest_rvs([m for feasible in moments if feasible is not None for m in feasible])
        return [[rv] for rv in concerned(reading, left) if rv in shaping]

    @staticmethod
    def competence(var, has_grad=None):
        """IDEAL for variables tagged with this step's name, which `dp.collapse` does."""
        return tagged_competence("FeasibleSlice", var)
