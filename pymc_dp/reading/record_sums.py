"""Sums over records that are never built: the variable of `pymc_dp.RecordSums`."""

from __future__ import annotations

from collections.abc import Callable

import pytensor.tensor as pt
from pymc.distributions.distribution import SymbolicRandomVariable, _support_point
from pymc.distributions.shape_utils import change_dist_size
from pymc.logprob.abstract import _logprob
from pytensor.tensor.random.utils import normalize_size_param
from pytensor.tensor.type_other import NoneTypeT
from pytensor.tensor.variable import TensorVariable

from pymc_dp.graphs.values import nearest_rvs


class RecordSumsRV(SymbolicRandomVariable):
    """Sums over the independent records of each group.

    Inputs are the records, whose last axis is as long as the largest group, and the groups' numbers
    of records.

    Attributes
    ----------
    summed : a vector of records, and the function of it that is summed.
    """

    extended_signature = "(r),()->()"
    _print_name = ("RecordSums", "\\operatorname{RecordSums}")
    summed: tuple[TensorVariable, TensorVariable]

    @classmethod
    def rv_op(cls, law, n, *, of=None, size=None):
        """Build the sums; without a `size` they have the common shape of `law` and `n`."""
        size, n = normalize_size_param(size), pt.as_tensor(n)
        if isinstance(size.type, NoneTypeT):
            size = pt.broadcast_shape(law, n)
        else:
            size = tuple(size[i] for i in range(size.type.shape[0]))
        if n.type.ndim < len(size) or 1 in n.type.shape:
            n = pt.broadcast_to(n, size)
        most = pt.max(pt.concatenate([[0], n.ravel()]))
        records = pt.moveaxis(change_dist_size(law, (most, *size)), 0, -1)
        inputs = records.type(), n.type()
        of = of or _itself
        op = cls([*inputs], [sum_of_first(of, *inputs)])
        # Called now, as in the sum: values that the user's function reads may change.
        record = pt.vector(dtype=records.dtype)
        op.summed = record, of(record)
        return op(records, n)


def _itself(x):
    return x


def sum_of_first(function: Callable, records: TensorVariable, n) -> TensorVariable:
    """Sum a function of the first n records along the last axis."""
    is_summed = pt.arange(records.shape[-1]) < n[..., None]
    return pt.switch(is_summed, function(records), 0).sum(axis=-1)


@_support_point.register(RecordSumsRV)
def _support_point_of_sums(op, rv, records, n):
    [law] = nearest_rvs([records])
    point = _support_point(law.owner.op, law, *law.owner.inputs)
    inputs = pt.moveaxis(point, 0, -1).astype(records.dtype), n  # counts start at int8 or doubles
    pairs = zip(op.fgraph.inputs, inputs, strict=True)
    [start] = op.fgraph.bind({v: v.type.filter_variable(value) for v, value in pairs})
    return start


@_logprob.register(RecordSumsRV)
def _no_density_of_sums(op, values, *inputs, **kwargs):
    raise NotImplementedError(
        f"the sums {values[0].name!r} have a density with what is released of them only: release "
        f"them with dp.PrivateObservation, or leave them out of the model"
    )
