"""How `dp.recover` shows a release of sums over records, for all laws.

A release of a multiple of a sum plus a constant is shown as the sum, mean or count of the records
itself. Otherwise `<release>_confidential` is shown: the value that the noise was added to.
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
    """What results show of a raveled release, which is ``factor * shown + constant``, and noise."""

    name: str
    factor: np.ndarray
    constant: np.ndarray

    @property
    def public(self) -> tuple[Any, Any]:
        """The factors and the constants, as tuples, which can be hashed."""
        return frozen(self.factor), frozen(self.constant)


def as_released(release: TensorVariable, entries: int) -> Shown:
    """Show the value that the noise was added to."""
    return Shown(confidential(release), np.ones(entries), np.zeros(entries))


def kind_of_sum(op, sizes=None, factor=None) -> str:
    """Return the kind of statistic that a multiple of sums over groups is shown as.

    "mean" for means of groups of Normal records, up to sign, "count" for Bernoulli records, else
    "sum".
    """
    if isinstance(op, ptr.NormalRV) and factor is not None:
        multiples = (abs(factor) * times for times in (1, np.maximum(sizes, 1)))
        is_sum, is_mean = (np.allclose(m, 1.0, rtol=1e-12, atol=0.0) for m in multiples)
        if is_mean and not is_sum:
            return "mean"
    return "count" if isinstance(op, ptr.BernoulliRV) else "sum"


def of_multiples(prefix: str, op, sizes: np.ndarray, factor: np.ndarray, constant) -> Shown:
    """Show ``factor * sum + constant`` as a sum, mean or count; `prefix` begins its name."""
    kind = kind_of_sum(op, sizes, factor)
    return Shown(f"{prefix}_{kind}", np.sign(factor) if kind == "mean" else factor, constant)


def of_weights(prefix: str, op, sums: Statistic) -> Shown:
    """Show sums of records of a law; weighted sums are shown as released."""
    sizes, factor = sums.sizes, sums.first_weights
    if not np.allclose(sums.weights.data, np.repeat(factor, sums.columns), rtol=1e-12, atol=0.0):
        return as_released(sums.rv, sizes.size)
    return of_multiples(prefix, op, sizes, factor, sums.offset)
