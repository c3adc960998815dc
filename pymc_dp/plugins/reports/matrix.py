"""Randomised response by any channel: a matrix of the probabilities of reports."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import numpy as np
import pytensor.tensor as pt
from pytensor.raise_op import Assert

from pymc_dp.mechanisms.arguments import as_float, just_met, nan_outside_unit, probability_rows
from pymc_dp.mechanisms.base import Mechanism

if TYPE_CHECKING:
    from pytensor.graph.basic import Variable
    from pytensor.tensor import TensorLike
    from pytensor.tensor.variable import TensorVariable

NAME = "RandomizedResponse"


@dataclass(frozen=True, eq=False, repr=False)
class ReportMatrix(Mechanism):
    """`RandomizedResponse(matrix=...)`: the mechanism of any channel between categories."""

    is_channel: ClassVar[bool] = True

    matrix: np.ndarray

    def __post_init__(self) -> None:
        """Validate the matrix and keep it."""
        of = "the probabilities of all reports where the truth is {}"
        matrix = probability_rows(f"{NAME}: matrix", self.matrix, of, least=2)
        object.__setattr__(self, "matrix", matrix)

    @property
    def spacing(self) -> float:
        """Distance between neighbouring codes."""
        return 1.0

    @property
    def categories(self) -> int:
        """Number of categories."""
        return len(self.matrix)

    @property
    def outcomes(self) -> np.ndarray:
        """See `Mechanism.outcomes`."""
        return np.arange(self.matrix.shape[1])

    def epsilon(self) -> np.ndarray:
        """Privacy loss of each report: the largest log ratio in a column, inf where one is zero."""
        some = self.matrix[:, self.matrix.any(axis=0)]
        with np.errstate(divide="ignore"):
            return np.log(some.max(axis=0) / some.min(axis=0)).max()

    def typical_statistic(self, value: TensorLike) -> TensorVariable:
        """See `Mechanism.typical_statistic`."""
        z, count = as_float(value), self.matrix.shape[1]
        known = pt.switch(is_category(z, count), z, 0).astype("int64")
        return as_float(pt.constant(self.matrix.argmax(axis=0))[known])

    def noise_sample(self, rng: Variable, statistic: TensorLike) -> tuple[Variable, TensorVariable]:
        """Draw one report; see `Mechanism.noise_sample`. A statistic must be a category."""
        s, count = as_float(statistic), self.categories
        message = f"{NAME}: the statistic must be one of 0, ..., {count - 1}"
        s = Assert(message)(s, pt.all(is_category(s, count))).astype("int64")
        return pt.random.categorical(pt.constant(self.matrix)[s], rng=rng, return_next_rng=True)

    def log_interval(
        self, lower: TensorLike, upper: TensorLike, statistic: TensorLike = 0.0
    ) -> TensorVariable:
        """Log probability of the reports in an interval; see `Mechanism.log_interval`."""
        s, (rows, count) = as_float(statistic), self.matrix.shape
        below = np.pad(np.cumsum(self.matrix, axis=1), ((0, 0), (1, 0)))
        first = pt.clip(pt.ceil(as_float(lower)), 0, count).astype("int64")
        last = pt.clip(pt.floor(as_float(upper)) + 1, 0, count).astype("int64")
        row = pt.switch(is_category(s, rows), s, 0).astype("int64")
        mass = pt.constant(below)[row, pt.maximum(first, last)] - pt.constant(below)[row, first]
        # One report is not the difference of two sums.
        one = pt.constant(self.matrix)[row, pt.minimum(first, count - 1)]
        mass = pt.switch(pt.eq(last, first + 1), one, mass)
        return pt.switch(is_category(s, rows), pt.log(mass), -np.inf)

    def logp(self, value: TensorLike, statistic: TensorLike = 0.0) -> TensorVariable:
        """Log mass of a report; see `Mechanism.logp`."""
        z, s = as_float(value), as_float(statistic)
        possible = is_category(z, self.matrix.shape[1]) & is_category(s, self.categories)
        row, column = (pt.switch(possible, i, 0).astype("int64") for i in (s, z))
        with np.errstate(divide="ignore"):
            logs = pt.constant(np.log(self.matrix))
        return pt.switch(possible, logs[row, column], -np.inf)

    def icdf(self, p: TensorLike, statistic: TensorLike = 0.0) -> TensorVariable:
        """Quantile function; see `Mechanism.icdf`."""
        p, s = as_float(p), as_float(statistic)
        below = self.logcdf(np.arange(self.matrix.shape[1] - 1.0), pt.shape_padright(s))
        quantile = pt.sum(below < pt.shape_padright(just_met(p)), axis=-1).astype(p.dtype)
        quantile = pt.switch(is_category(s, self.categories), quantile, np.nan)
        return nan_outside_unit(quantile, p)

    def __repr__(self) -> str:
        """Return the expression that builds it."""
        return f"{NAME}(matrix={np.array2string(self.matrix, separator=', ')})"


def is_category(code: TensorVariable, categories: int) -> TensorVariable:
    """Whether a number is one of the codes 0, ..., categories - 1."""
    return pt.eq(code, pt.floor(code)) & (code >= 0) & (code < categories)
