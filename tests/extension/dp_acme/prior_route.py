"""A route for models whose releases say nothing: draws of the prior."""

import pymc as pm
from xarray import DataTree

from pymc_dp.reading.model import releases
from pymc_dp.routes import Route, register_route


def rate(model):
    """Return the effective draws a second to be expected, or say why the route is shut."""
    if any(release in model.observed_RVs for release in releases(model)):
        raise NotImplementedError("it is for models none of whose releases is observed")
    return 1e6


def sample(model, *, draws=1000, random_seed=None, **kwargs):
    """Draw from the prior: with nothing observed it is the posterior."""
    tree = pm.sample_prior_predictive(draws, model=model, random_seed=random_seed)
    return DataTree.from_dict({"posterior": tree["prior"].to_dataset()})


ROUTE = Route("draws of the prior", "records", rate, sample)
register_route(ROUTE)
