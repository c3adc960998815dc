"""A plugin from outside: mechanisms, laws, a step, a route and a reader, added by importing it.

Reads   any statistic under Cauchy noise or random rounding; records of Rice and Wald laws.
Law     the densities of the noise; moments and sums of the two laws.
Costs   one evaluation a value.
Source  docs/extending.md, whose code this is.
"""

from dp_acme import rice, wald
from dp_acme.cauchy import AcmeCauchy
from dp_acme.prior_route import ROUTE
from dp_acme.prior_step import PriorGibbs
from dp_acme.reader import read
from dp_acme.rounding import RoundingToThree
from dp_acme.uniform import UNIFORM_LAPLACE

__all__ = [
    "ROUTE",
    "UNIFORM_LAPLACE",
    "AcmeCauchy",
    "PriorGibbs",
    "RoundingToThree",
    "read",
    "rice",
    "wald",
]
