"""Mean and variance of a variable given its parameters, as graphs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytensor.tensor as pt
import pytensor.tensor.random.basic as ptr
from pytensor.graph.op import Op
from pytensor.tensor.variable import TensorVariable

from pymc_dp.graphs.declined import Declined
from pymc_dp.graphs.registry import ability
from pymc_dp.laws.integrated import IntegratedReleaseRV
from pymc_dp.mechanisms.arguments import as_float
from pymc_dp.mechanisms.base import Mechanism, has_kink
from pymc_dp.mechanisms.grids import OntoGrid
from pymc_dp.mechanisms.postprocessed import ClippedMechanism, layers
from pymc_dp.mechanisms.release import PrivateReleaseRV
from pymc_dp.mechanisms.suppressed import SuppressedMechanism
from pymc_dp.reading.model import mechanism_of, release_statistic


@ability
def mean_variance(op: Op, *parameters) -> tuple[TensorVariable, TensorVariable]:
    """Return the mean and the variance of a law with these parameters of its op.

    Dispatched on the op. The results guide samplers and do not enter the posterior: orders of
    magnitude are enough.
    """
    raise Declined


def _register(law: type[Op], moments: Callable[..., tuple[TensorVariable, TensorVariable]]) -> None:
    # An integer parameter may be an int8, which its square would overflow.
    mean_variance.register(law, lambda op, *parameters: moments(*map(as_float, parameters)))


_register(ptr.NormalRV, lambda mu, sigma: (mu, sigma**2))
_register(ptr.StudentTRV, lambda nu, mu, sigma: (mu, sigma**2 * (nu + 3) / (nu + 1)))
_register(ptr.PoissonRV, lambda rate: (rate, rate))
_register(ptr.BernoulliRV, lambda p: (p, p * (1 - p)))
_register(ptr.BinomialRV, lambda n, p: (n * p, n * p * (1 - p)))
_register(ptr.NegBinomialRV, lambda n, p: (n * (1 - p) / p, n * (1 - p) / p**2))
_register(ptr.ExponentialRV, lambda scale: (scale, scale**2))
_register(ptr.GammaRV, lambda shape, scale: (shape * scale, shape * scale**2))


def noise_variance(mechanism: Mechanism) -> Any:
    """Return the variance of additive noise; decline other noise."""
    if mechanism.rates is None:
        raise Declined
    rate, precision = mechanism.rates
    return 2.0 / rate**2 if has_kink(mechanism) else 1.0 / precision


def of_variable(
    rv: TensorVariable, value: TensorVariable
) -> tuple[TensorVariable, TensorVariable, TensorVariable]:
    """Return the value of a variable of a model, its mean and its variance.

    The variance of a release includes the noise, without rounding and clipping. A value that was
    withheld has an infinite variance.
    """
    op, value = rv.owner.op, as_float(value)
    match op:
        case PrivateReleaseRV():
            mechanism = mechanism_of(rv)
            mean, variance = release_statistic(rv), _added(mechanism)
        case IntegratedReleaseRV():
            mechanism, parameters = op.split(rv.owner.inputs)
            mean, variance = op.law.mean_variance(*parameters)
            variance = variance + _added(mechanism)
        case _:
            return value, *mean_variance(op, *op.dist_params(rv.owner))
    if not mechanism.withholds:
        return value, mean, variance
    withheld = mechanism.is_withheld(value)
    return pt.switch(withheld, 0.0, value), mean, pt.switch(withheld, np.inf, variance)


def _added(mechanism: Mechanism) -> Any:
    *changes, noise = layers(mechanism)
    if not all(isinstance(c, ClippedMechanism | OntoGrid | SuppressedMechanism) for c in changes):
        raise Declined
    return noise_variance(noise)
