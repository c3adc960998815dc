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
from pymc_dp.mechanisms.discrete_gaussian import DiscreteGaussianMechanism
from pymc_dp.mechanisms.gaussian import GaussianMechanism
from pymc_dp.mechanisms.geometric import GeometricMechanism
from pymc_dp.mechanisms.laplace import LaplaceMechanism
from pymc_dp.mechanisms.noisy_max import NoisyMax
from pymc_dp.mechanisms.postprocessed import ClippedMechanism, RoundedMechanism
from pymc_dp.mechanisms.randomized_response import (
    RandomizedResponse,
    RandomizedResponseCount,
    ReportMatrix,
)
from pymc_dp.mechanisms.selection import ExponentialMechanism

__all__ = [
    "BinomialMechanism",
    "ClippedMechanism",
    "DiscreteGaussianMechanism",
    "ExponentialMechanism",
    "GaussianMechanism",
    "GeometricMechanism",
    "LaplaceMechanism",
    "Mechanism",
    "MechanismExample",
    "NoisyMax",
    "RandomizedResponse",
    "RandomizedResponseCount",
    "ReportMatrix",
    "RoundedMechanism",
    "mechanism_examples",
    "register_mechanism",
    "registered_mechanisms",
]

load(__name__)
