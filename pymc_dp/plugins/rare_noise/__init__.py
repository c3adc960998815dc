"""Noise that few producers use: Snapping, staircase, Student's t, bounded Laplace, cell keys, ...

Reads   any statistic: a mechanism says what its noise is, and the core does the rest.
Law     the density of a release given its statistic, and the probability of an interval.
Costs   one evaluation a value; no latent variable of its own.
Source  the module of each mechanism names its paper.
"""

from pymc_dp.graphs.registry import load
from pymc_dp.plugins.rare_noise.binomial import BinomialMechanism
from pymc_dp.plugins.rare_noise.bounded_laplace import (
    BoundedLaplaceMechanism,
    FoldedLaplaceMechanism,
)
from pymc_dp.plugins.rare_noise.cell_key import CellKey
from pymc_dp.plugins.rare_noise.noise_factor import NoiseFactor
from pymc_dp.plugins.rare_noise.random_rounding import RandomRounding
from pymc_dp.plugins.rare_noise.snapping import SnappingMechanism
from pymc_dp.plugins.rare_noise.spherical_laplace import SphericalLaplace
from pymc_dp.plugins.rare_noise.staircase import StaircaseMechanism, TulapMechanism
from pymc_dp.plugins.rare_noise.student_t import CauchyMechanism, StudentTMechanism
from pymc_dp.plugins.rare_noise.uniform import UniformMechanism

__all__ = [
    "BinomialMechanism",
    "BoundedLaplaceMechanism",
    "CauchyMechanism",
    "CellKey",
    "FoldedLaplaceMechanism",
    "NoiseFactor",
    "RandomRounding",
    "SnappingMechanism",
    "SphericalLaplace",
    "StaircaseMechanism",
    "StudentTMechanism",
    "TulapMechanism",
    "UniformMechanism",
]

load(__name__)
