"""Mechanisms: the public noise of a differentially private release."""

from pymc_dp.graphs.registry import load
from pymc_dp.mechanisms.base import (
    Mechanism,
    MechanismExample,
    mechanism_examples,
    register_mechanism,
    registered_mechanisms,
)
from pymc_dp.mechanisms.binomial import BinomialMechanism
from pymc_dp.mechanisms.bounded_laplace import BoundedLaplaceMechanism, FoldedLaplaceMechanism
from pymc_dp.mechanisms.custom import CustomMechanism
from pymc_dp.mechanisms.discrete_gaussian import DiscreteGaussianMechanism
from pymc_dp.mechanisms.gaussian import GaussianMechanism
from pymc_dp.mechanisms.geometric import GeometricMechanism
from pymc_dp.mechanisms.grids import (
    CeiledMechanism,
    FlooredMechanism,
    RoundedMechanism,
    TruncatedMechanism,
)
from pymc_dp.mechanisms.laplace import LaplaceMechanism
from pymc_dp.mechanisms.noisy_max import NoisyMax
from pymc_dp.mechanisms.postprocessed import ClippedMechanism
from pymc_dp.mechanisms.private_quantile import PrivateQuantile
from pymc_dp.mechanisms.random_rounding import RandomRounding
from pymc_dp.mechanisms.randomized_response import (
    RandomizedResponse,
    RandomizedResponseCount,
    ReportMatrix,
)
from pymc_dp.mechanisms.selection import ExponentialMechanism
from pymc_dp.mechanisms.snapping import SnappingMechanism
from pymc_dp.mechanisms.staircase import StaircaseMechanism, TulapMechanism
from pymc_dp.mechanisms.student_t import CauchyMechanism, StudentTMechanism
from pymc_dp.mechanisms.suppressed import SuppressedMechanism, ThresholdedMechanism
from pymc_dp.mechanisms.uniform import UniformMechanism

__all__ = [
    "BinomialMechanism",
    "BoundedLaplaceMechanism",
    "CauchyMechanism",
    "CeiledMechanism",
    "ClippedMechanism",
    "CustomMechanism",
    "DiscreteGaussianMechanism",
    "ExponentialMechanism",
    "FlooredMechanism",
    "FoldedLaplaceMechanism",
    "GaussianMechanism",
    "GeometricMechanism",
    "LaplaceMechanism",
    "Mechanism",
    "MechanismExample",
    "NoisyMax",
    "PrivateQuantile",
    "RandomRounding",
    "RandomizedResponse",
    "RandomizedResponseCount",
    "ReportMatrix",
    "RoundedMechanism",
    "SnappingMechanism",
    "StaircaseMechanism",
    "StudentTMechanism",
    "SuppressedMechanism",
    "ThresholdedMechanism",
    "TruncatedMechanism",
    "TulapMechanism",
    "UniformMechanism",
    "mechanism_examples",
    "register_mechanism",
    "registered_mechanisms",
]

load(__name__)
