"""Studies over simulated data and releases, on one machine or a cluster."""

from pymc_dp.graphs.registry import load
from pymc_dp.studies.analyses import calibration, coverage, privacy_utility
from pymc_dp.studies.plots import (
    plot_calibration,
    plot_coverage,
    plot_privacy,
    plot_privacy_utility,
)

__all__ = [
    "calibration",
    "coverage",
    "plot_calibration",
    "plot_coverage",
    "plot_privacy",
    "plot_privacy_utility",
    "privacy_utility",
]

load(__name__)
