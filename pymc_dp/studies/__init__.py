"""Studies over simulated data and releases, on one machine or a cluster."""

from pymc_dp.studies.analyses import calibration, coverage, privacy_utility

__all__ = ["calibration", "coverage", "privacy_utility"]
