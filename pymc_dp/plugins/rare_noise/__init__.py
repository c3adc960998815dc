"""Noise that few producers use: Snapping, staircase, Student's t, bounded Laplace, binomial.

Reads   any statistic: a mechanism says what its noise is, and the core does the rest.
Law     the density of a release given its statistic, and the probability of an interval.
Costs   one evaluation a value; no latent variable of its own.
Source  the module of each mechanism names its paper.
"""

from pymc_dp.graphs.registry import load, offer

offer(
    __name__,
    BinomialMechanism="binomial",
    BoundedLaplaceMechanism="bounded_laplace",
    CauchyMechanism="student_t",
    FoldedLaplaceMechanism="bounded_laplace",
    RandomRounding="random_rounding",
    SnappingMechanism="snapping",
    StaircaseMechanism="staircase",
    StudentTMechanism="student_t",
    TulapMechanism="staircase",
    UniformMechanism="uniform",
)
load(__name__)
