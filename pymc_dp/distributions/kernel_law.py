"""Random variables that a kernel draws, and log masses on the whole numbers."""

from __future__ import annotations

from collections.abc import Callable
from typing import ClassVar

import numpy as np
import pytensor.tensor as pt
from pytensor.link.numba.dispatch import basic as numba_basic
from pytensor.link.numba.dispatch.random import numba_core_rv_funcify
from pytensor.tensor.random.op import RandomVariable

from pymc_dp.graphs.ops import KernelOp
from pymc_dp.kernels import version_of
from pymc_dp.laws import row_sampler


class KernelRV(RandomVariable):
    """Scalar random variable with scalar parameters; `draw(rng, *parameters)` is a kernel."""

    draw: ClassVar[Callable]

    @classmethod
    def rng_fn(cls, rng, *arguments, size=None):
        """Draw an array of a size, which may be the last argument."""
        count = len(cls().ndims_params)
        parameters, [size, *_] = arguments[:count], [*arguments[count:], size]
        shape = np.broadcast_shapes(*map(np.shape, parameters)) if size is None else tuple(size)
        rows = np.array([np.broadcast_to(p, shape).ravel() for p in parameters], dtype="float64")
        return row_sampler(cls.draw, len(rows))(rng, rows).reshape(shape)


@numba_core_rv_funcify.register(KernelRV)
def _numba_kernel_rv(op, node):
    draw = op.draw

    @numba_basic.numba_njit
    def random(rng, *parameters):
        return draw(rng, *parameters)

    return random, version_of(random)


def at_whole_numbers(log_mass: type[KernelOp], value, *parameters):
    """Return the log mass of a law on the whole numbers, -inf elsewhere."""
    whole = pt.eq(value, pt.floor(value)) & ~pt.isinf(value)
    return pt.switch(whole, log_mass.apply(pt.switch(whole, value, 0), *parameters), -np.inf)
