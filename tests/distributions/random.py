"""What the tests of distributions share."""

from pymc.testing import BaseTestDistributionRandom


def random_checks(distribution, **parameters):
    """Return PyMC's tests of a distribution's random variable; a module names it `Test...`."""
    attributes = {
        "pymc_dist": distribution,
        "pymc_dist_params": parameters,
        "expected_rv_op_params": parameters,
        "checks_to_run": ["check_pymc_params_match_rv_op", "check_rv_size"],
    }
    return type(f"Test{distribution.__name__}", (BaseTestDistributionRandom,), attributes)
