"""Bayesian inference from differentially private releases, as an extension of PyMC."""

from importlib import import_module
from importlib.metadata import version
from typing import TYPE_CHECKING, Any

import pymc_dp.graphs.to_jax  # noqa: F401 (registers the package's ops with JAX)
from pymc_dp.distributions import (
    Bessel,
    DiscreteGaussian,
    DiscreteLaplace,
    RecordSums,
    Skellam,
    TruncatedGammaMixture,
)
from pymc_dp.ladder.check import check
from pymc_dp.ladder.collapse import collapse
from pymc_dp.ladder.recover import predict_records, recover
from pymc_dp.ladder.rubin import rubin
from pymc_dp.mechanisms import (
    CustomMechanism,
    DiscreteGaussianMechanism,
    GaussianMechanism,
    GeometricMechanism,
    LaplaceMechanism,
)
from pymc_dp.observation import PrivateObservation
from pymc_dp.published import Privacy, Release, decorrelate, from_table, thresholds
from pymc_dp.routes.explain import explain
from pymc_dp.sampling import sample
from pymc_dp.step_methods import (
    CellGibbs,
    ConjugateGibbs,
    CountGibbs,
    LaplaceScaleMixtureGibbs,
    RecordMetropolis,
    SkellamBesselGibbs,
    TableGibbs,
    TruncatedGammaMixtureGibbs,
    TwoSidedGibbs,
    register_steps,
    steps,
)

if TYPE_CHECKING:
    from pymc_dp import neural, studies
    from pymc_dp.plugins.factorization import FactorizationGibbs, poisson_factorization
    from pymc_dp.plugins.log_linear import CliqueGibbs, LogLinear
    from pymc_dp.plugins.multinomial_trees import TreeGibbs
    from pymc_dp.plugins.rare_noise import (
        BinomialMechanism,
        BoundedLaplaceMechanism,
        CauchyMechanism,
        CellKey,
        FoldedLaplaceMechanism,
        NoiseFactor,
        RandomRounding,
        SnappingMechanism,
        SphericalLaplace,
        StaircaseMechanism,
        StudentTMechanism,
        TulapMechanism,
        UniformMechanism,
    )
    from pymc_dp.plugins.regression import regression_sensitivity
    from pymc_dp.plugins.reports import RandomizedResponse
    from pymc_dp.plugins.selections import ExponentialMechanism, NoisyMax, PrivateQuantile
    from pymc_dp.studies.plots import plot_privacy
    from pymc_dp.studies.release_plot import plot_release

__version__ = version("pymc_dp")

__all__ = [
    "Bessel",
    "BinomialMechanism",
    "BoundedLaplaceMechanism",
    "CauchyMechanism",
    "CellGibbs",
    "CellKey",
    "CliqueGibbs",
    "ConjugateGibbs",
    "CountGibbs",
    "CustomMechanism",
    "DiscreteGaussian",
    "DiscreteGaussianMechanism",
    "DiscreteLaplace",
    "ExponentialMechanism",
    "FactorizationGibbs",
    "FoldedLaplaceMechanism",
    "GaussianMechanism",
    "GeometricMechanism",
    "LaplaceMechanism",
    "LaplaceScaleMixtureGibbs",
    "LogLinear",
    "NoiseFactor",
    "NoisyMax",
    "Privacy",
    "PrivateObservation",
    "PrivateQuantile",
    "RandomRounding",
    "RandomizedResponse",
    "RecordMetropolis",
    "RecordSums",
    "Release",
    "Skellam",
    "SkellamBesselGibbs",
    "SnappingMechanism",
    "SphericalLaplace",
    "StaircaseMechanism",
    "StudentTMechanism",
    "TableGibbs",
    "TreeGibbs",
    "TruncatedGammaMixture",
    "TruncatedGammaMixtureGibbs",
    "TulapMechanism",
    "TwoSidedGibbs",
    "UniformMechanism",
    "check",
    "collapse",
    "decorrelate",
    "explain",
    "from_table",
    "neural",
    "plot_privacy",
    "plot_release",
    "poisson_factorization",
    "predict_records",
    "recover",
    "regression_sensitivity",
    "rubin",
    "sample",
    "steps",
    "studies",
    "thresholds",
]

# Modules that are imported when a name is first used: they import matplotlib, nutpie and joblib.
_LAZY = {
    "neural": "neural",
    "plot_privacy": "studies.plots",
    "plot_release": "studies.release_plot",
    "studies": "studies",
}


def __getattr__(name: str) -> Any:
    if name in _LAZY:
        module = import_module(f"{__name__}.{_LAZY[name]}")
        return getattr(module, name, module)
    raise AttributeError(f"pymc_dp has no {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})


globals().update(import_module(f"{__name__}.plugins").PUBLIC)
register_steps()
