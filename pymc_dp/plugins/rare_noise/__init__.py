"""Noise that few producers use: Snapping, staircase, Tulap, Student's t, uniform, bounded Laplace.

Reads   any statistic: a mechanism says what its noise is, and the core does the rest.
Law     the density of a release given its statistic, and the probability of an interval.
Costs   one evaluation a value; no latent variable of its own.
Source  the module of each mechanism names its paper.
"""

from pymc_dp.graphs.registry import offer

offer(
    __name__,
    BoundedLaplaceMechanism="bounded_laplace",
    CauchyMechanism="student_t",
    FoldedLaplaceMechanism="bounded_laplace",
    SnappingMechanism="snapping",
    StaircaseMechanism="staircase",
    StudentTMechanism="student_t",
    TulapMechanism="staircase",
    UniformMechanism="uniform",
)
