"""What stands in results of a release of sums over records: the rule of `dp.recover`, for all laws.

Sums, means and counts are those of the records themselves, whatever multiple of them was released
and whatever was added. What is no such multiple is the value that the noise was added to.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import pytensor.tensor.random.basic as ptr

from pymc_dp.laws.integrated import confidential
from pymc_dp.laws.one_value import frozen

if TYPE_CHECKING:
    from pytensor.tensor.variable import TensorVariable

    from pymc_dp.reading.statistic import Statistic


class Shown(NamedTuple):
    """What stands in results of a release, raveled: it is ``factor * shown + constant``."""

    name: str
    factor: np.ndarray
    constant: np.ndarray

    @property
    def public(self) -> tuple[Any, Any]:
        """The factors and the constants, as what can be hashed."""
        return frozen(self.factor), frozen(self.constant)


def as_released(release: TensorVariable, entries: int) -> Shown:
    """Return what stands in results of a release that is no multiple of sums: all of it."""
    return Shown(confidential(release), np.ones(entries), np.zeros(entries))


def kind_of_sum(op, sizes=None, factor=None) -> str:
    """Say what a multiple of sums over groups of these sizes, of records of this law, is shown as.

    Means of Normal records as means, where no entry is a multiple of one.
    """
    if isinstance(op, ptr.NormalRV) and factor is not None:
        multiples = (abs(factor) * times for times in (1, np.maximum(sizes, 1)))
        is_sum, is_mean = (np.allclose(m, 1.0, rtol=1e-12, atol=0.0) for m in multiples)
        if is_mean and not is_sum:
            return "mean"
    return "count" if isinstance(op, ptr.BernoulliRV) else "sum"


def of_multiples(of: str, op, sizes: np.ndarray, factor: np.ndarray, constant) -> Shown:
    """Return what is shown of ``factor * sum + constant``; `of` begins the name."""
    kind = kind_of_sum(op, sizes, factor)
    return Shown(f"{of}_{kind}", np.sign(factor) if kind == "mean" else factor, constant)


def of_weights(of: str, op, sums: Statistic) -> Shown:
    """Return what is shown of sums of records of this law."""
    sizes, factor = sums.sizes, sums.first_weights
    if not np.allclose(sums.weights.data, np.repeat(factor, sizes), rtol=1e-12, atol=0.0):
        return as_released(sums.rv, sizes.size)
    return of_multiples(of, op, sizes, factor, sums.offset)
