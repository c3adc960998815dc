"""Neural estimation from releases of data that only a simulator can describe."""

from pymc_dp.neural.fit import sple, sppe
from pymc_dp.neural.settings import Training

__all__ = ["Training", "sple", "sppe"]
