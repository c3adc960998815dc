"""Bayesian inference from differentially private releases, as an extension of PyMC."""

from importlib.metadata import version

from pymc_dp import neural, studies
from pymc_dp.distributions import (
    Bessel,
    DiscreteGaussian,
    DiscreteLaplace,
    Skellam,
    TruncatedGammaMixture,
)
from pymc_dp.factorization import poisson_factorization
from pymc_dp.ladder.collapse import collapse
from pymc_dp.ladder.explain import explain
from pymc_dp.ladder.recover import predict_records, recover
from pymc_dp.mechanisms import (
    BinomialMechanism,
    DiscreteGaussianMechanism,
    GaussianMechanism,
    GeometricMechanism,
    LaplaceMechanism,
    RandomizedResponse,
)
from pymc_dp.observation import PrivateObservation
from pymc_dp.published import Privacy, Release
from pymc_dp.sampling import sample
from pymc_dp.sensitivity import regression_sensitivity
from pymc_dp.steps import (
    ConjugateGibbs,
    CountGibbs,
    FactorizationGibbs,
    LaplaceScaleMixtureGibbs,
    RecordMetropolis,
    SkellamBesselGibbs,
    TableGibbs,
    TruncatedGammaMixtureGibbs,
    TwoSidedGibbs,
    register_steps,
    steps,
)

__version__ = version("pymc_dp")

__all__ = [
    "Bessel",
    "BinomialMechanism",
    "ConjugateGibbs",
    "CountGibbs",
    "DiscreteGaussian",
    "DiscreteGaussianMechanism",
    "DiscreteLaplace",
    "FactorizationGibbs",
    "GaussianMechanism",
    "GeometricMechanism",
    "LaplaceMechanism",
    "LaplaceScaleMixtureGibbs",
    "Privacy",
    "PrivateObservation",
    "RandomizedResponse",
    "RecordMetropolis",
    "Release",
    "Skellam",
    "SkellamBesselGibbs",
    "TableGibbs",
    "TruncatedGammaMixture",
    "TruncatedGammaMixtureGibbs",
    "TwoSidedGibbs",
    "collapse",
    "explain",
    "neural",
    "poisson_factorization",
    "predict_records",
    "recover",
    "regression_sensitivity",
    "sample",
    "steps",
    "studies",
]

register_steps()
