"""A mechanism, a law, a step, a route and a reader, added to pymc_dp by importing this package."""

from dp_acme import rice, wald
from dp_acme.cauchy import CauchyMechanism
from dp_acme.prior_route import ROUTE
from dp_acme.prior_step import PriorGibbs
from dp_acme.reader import read
from dp_acme.rounding import RoundingToThree
from dp_acme.uniform import UNIFORM_LAPLACE

__all__ = [
    "ROUTE",
    "UNIFORM_LAPLACE",
    "CauchyMechanism",
    "PriorGibbs",
    "RoundingToThree",
    "read",
    "rice",
    "wald",
]
