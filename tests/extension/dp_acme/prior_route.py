"""A route for models whose releases say nothing: draws of the prior."""

import pymc as pm
from xarray import DataTree

from pymc_dp.graphs.declined import Declined
from pymc_dp.reading.model import releases
from pymc_dp.routes import ROUTES, Plan, Route


def plan(reading):
    """Say what is to be expected and how to sample, or why the route is shut."""
    model = reading.model
    if any(release in model.observed_RVs for release in releases(model)):
        raise Declined("it is for models none of whose releases is observed")

    def sample(*, draws=1000, random_seed=None, **kwargs):
        """Draw from the prior: with nothing observed it is the posterior."""
        tree = pm.sample_prior_predictive(draws, model=model, random_seed=random_seed)
        return DataTree.from_dict({"posterior": tree["prior"].to_dataset()})

    return Plan(1e6, sample)


ROUTE = Route("draws of the prior", "records", plan)
ROUTES.add(ROUTE)
