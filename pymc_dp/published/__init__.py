"""What a curator published: the record of a release, its file, and readers of producers."""

from pymc_dp.published.record import Privacy, Release

__all__ = ["Privacy", "Release"]
