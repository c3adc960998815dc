"""Neural estimation from releases of data that only a simulator can describe."""

from pymc_dp.neural.amortised import AmortisedPosterior, amortise
from pymc_dp.neural.diagnostics import calibration, compare, negative_log_density, predict
from pymc_dp.neural.fit import sple, sppe
from pymc_dp.neural.settings import Training

__all__ = [
    "AmortisedPosterior",
    "Training",
    "amortise",
    "calibration",
    "compare",
    "negative_log_density",
    "predict",
    "sple",
    "sppe",
]
