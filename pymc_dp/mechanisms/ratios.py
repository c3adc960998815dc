"""Releases that are divided by another noisy number: their noise is known up to that number."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pymc as pm
import pytensor.tensor as pt
from pytensor.graph.replace import graph_replace
from pytensor.tensor.random.basic import LaplaceRV, NormalRV

from pymc_dp.graphs.values import nearest_rvs
from pymc_dp.mechanisms.base import has_continuous_rates
from pymc_dp.mechanisms.release import PrivateReleaseRV

if TYPE_CHECKING:
    from pytensor.tensor.variable import TensorVariable

    from pymc_dp.mechanisms.base import Mechanism

NOISY = (LaplaceRV, NormalRV, PrivateReleaseRV)


def divided(
    name: str, statistic: TensorVariable, mechanism: Mechanism, model: pm.Model
) -> tuple[TensorVariable, Mechanism]:
    """Return a statistic, and noise whose scales may have been divided by noisy numbers.

    Numbers that are observed are put in their places. Scales are positive, whatever the sign of
    a noisy number.
    """
    noisy = nearest_rvs(mechanism.parameters)
    if not noisy:
        return statistic, mechanism
    wrong = [rv for rv in noisy if rv not in model.basic_RVs or not isinstance(rv.owner.op, NOISY)]
    if wrong or not has_continuous_rates(mechanism):
        raise TypeError(
            f"{name!r}: the noise depends on {(wrong or noisy)[0].name!r}. It is public and known, "
            f"never estimated. Only a noisy number may divide it, in a published ratio: "
            f"w = pm.Laplace('w', b, 10), then PrivateObservation('ratio', a / w, "
            f"dp.LaplaceMechanism(10 / w)) for a and b in the model"
        )
    values = {rv: model.rvs_to_values[rv] for rv in noisy if rv in model.observed_RVs}
    statistic, *parameters = graph_replace([statistic, *mechanism.parameters], values, strict=False)
    return statistic, mechanism.with_parameters(*map(pt.abs, parameters))
