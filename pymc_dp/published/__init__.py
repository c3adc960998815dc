"""What a curator published: the record of a release, its file, and readers of producers."""

from pymc_dp.published import thresholds
from pymc_dp.published.decorrelated import decorrelate
from pymc_dp.published.noisy_table import from_table
from pymc_dp.published.privacy import Privacy
from pymc_dp.published.record import Release

__all__ = ["Privacy", "Release", "decorrelate", "from_table", "thresholds"]
