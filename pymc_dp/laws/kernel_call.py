"""Kernels of arrays as PyTensor ops: Python and numba call the same function."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable

import pytensor.tensor as pt
from pytensor.link.numba.dispatch.basic import (
    default_hash_key_from_props,
    numba_njit,
    register_funcify_and_cache_key,
)

from pymc_dp.graphs.ops import HostOp
from pymc_dp.kernels import key_of


class KernelCall(HostOp):
    """An op that calls a kernel; the call depends on the inputs and on `__props__` only."""

    @abstractmethod
    def call(self) -> Callable:
        """Return the function of the inputs, which numba can compile."""

    def perform(self, node, inputs, output_storage):
        """Call the kernel."""
        outputs = self.call()(*inputs)
        outputs = outputs if len(output_storage) > 1 else (outputs,)
        for storage, value in zip(output_storage, outputs, strict=True):
            storage[0] = value


@register_funcify_and_cache_key(KernelCall)
def _numba_kernel_call(op, node, **kwargs):
    # Compiled graphs are cached on disk, by the code of the kernel.
    call = op.call()
    key = key_of(call)
    return numba_njit(call), key and default_hash_key_from_props(op, cache_version=key)


def doubles(*inputs) -> list[pt.TensorVariable]:
    """Return the inputs as tensors of double precision."""
    return [pt.as_tensor(i).astype("float64") for i in inputs]
