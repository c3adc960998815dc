"""Mechanisms: the public noise of a differentially private release."""

from typing import Any

from pymc_dp.graphs.registry import load
from pymc_dp.mechanisms.base import Mechanism
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
from pymc_dp.mechanisms.postprocessed import ClippedMechanism
from pymc_dp.mechanisms.registry import (
    MechanismExample,
    mechanism_examples,
    register_mechanism,
    registered_mechanisms,
)
from pymc_dp.mechanisms.suppressed import SuppressedMechanism, ThresholdedMechanism

__all__ = [
    "CeiledMechanism",
    "ClippedMechanism",
    "CustomMechanism",
    "DiscreteGaussianMechanism",
    "FlooredMechanism",
    "GaussianMechanism",
    "GeometricMechanism",
    "LaplaceMechanism",
    "Mechanism",
    "MechanismExample",
    "RoundedMechanism",
    "SuppressedMechanism",
    "ThresholdedMechanism",
    "TruncatedMechanism",
    "mechanism_examples",
    "register_mechanism",
    "registered_mechanisms",
]

load(__name__)


def __getattr__(name: str) -> Any:
    """Return a mechanism of a plugin."""
    for cls in registered_mechanisms():
        if cls.__name__ == name:
            return cls
    raise AttributeError(f"pymc_dp.mechanisms has no {name!r}")
