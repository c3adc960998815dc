"""A slice step for parameters that bounds of the records confine to a feasible region."""

import pymc as pm
from pymc.step_methods.compound import Competence


class FeasibleSlice(pm.Slice):
    """PyMC's slice sampler, assigned to parameters behind the walls of a feasible region.

    NUTS diverges at such walls; a slice step only meets a density of zero.
    """

    name = "dp_slice"

    @staticmethod
    def competence(var, has_grad=None):
        """IDEAL for variables tagged with this step's name, which `dp.collapse` does."""
        tagged = getattr(var.tag, "dp_step", None) == "FeasibleSlice"
        return Competence.IDEAL if tagged else Competence.INCOMPATIBLE
