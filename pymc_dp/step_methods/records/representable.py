"""Records that the point can hold: inside the support, at a finite place in the transformed space.

The point of a chain holds transformed values. A record that rounding puts on an end of its support
has no transformed value, and a record so close to the end that the inverse transform cannot resolve
it would come back on the end. Sweeps and moves refuse both: the law of the chain is the posterior
cut to representable records. Moving records to the nearest representable place would not do: other
updates of the parameters would see the density there, not the mass beyond it.
"""

from __future__ import annotations

from warnings import catch_warnings, simplefilter

import numpy as np
import pytensor.tensor as pt
from pymc.distributions.mixture import MixtureTransformWarning
from pymc.distributions.transforms import _default_transform
from pymc.logprob.transforms import (
    IntervalTransform,
    LogOddsTransform,
    LogTransform,
    Transform,
)
from pytensor.tensor.variable import TensorVariable

_EPS = np.finfo(float).eps
_TINY, _HUGE = np.finfo(float).tiny, np.finfo(float).max / 4.0  # doubles, which PyTensor keeps


def representable(
    rv: TensorVariable, x: TensorVariable, transform: Transform | None
) -> TensorVariable | None:
    """Return, for each record along the first axis, whether the point can hold it.

    None if it can hold all of them.
    """
    if not x.dtype.startswith("float"):
        return None
    ends = _ends(rv, transform)
    if ends is not None:
        fine = (x >= ends[0]) & (x <= ends[1])
    elif transform is None:
        fine = pt.abs(x) <= _HUGE
    else:
        fine = pt.abs(transform.forward(x, *rv.owner.inputs)) <= _HUGE
    return fine.all(axis=tuple(range(1, fine.type.ndim))) if fine.type.ndim > 1 else fine


def brought_inside(
    rv: TensorVariable, x: TensorVariable, transform: Transform | None
) -> TensorVariable:
    """Return records with those that came back from the point on an end moved off it."""
    ends = _ends(rv, transform) if x.dtype.startswith("float") else None
    return x if ends is None else pt.clip(x, *ends)


def _ends(rv, transform) -> tuple[TensorVariable, TensorVariable] | None:
    """Return the lowest and the highest record that can be held, where that is an interval."""
    if transform is None:
        with catch_warnings():
            simplefilter("ignore", MixtureTransformWarning)  # PyMC warned when the model was made
            try:
                transform = _default_transform(rv.owner.op, rv)
            except NotImplementedError:
                return None
    if isinstance(transform, LogTransform):
        return pt.constant(_TINY), pt.constant(_HUGE)
    if isinstance(transform, LogOddsTransform):
        # The inverse, 1 / (1 + exp(-v)), has no value between the upper end here and 1.
        return pt.constant(_TINY), pt.constant(1.0 - _EPS)
    if not isinstance(transform, IntervalTransform):
        return None
    lower, upper = (
        None if end is None else pt.as_tensor(end).astype("float64")
        for end in transform.args_fn(*rv.owner.inputs)
    )
    low, high = pt.constant(-_HUGE), pt.constant(_HUGE)
    if lower is not None:
        low = pt.maximum(lower + _margin(lower), low)
    if upper is not None:
        margin = _margin(upper)
        if lower is not None:  # the inverse multiplies the width by a number near one
            width = upper - lower
            margin += pt.where(pt.isinf(width), 0.0, 4.0 * _EPS * width)
        high = pt.minimum(upper - margin, high)
    return low, high


def _margin(end: TensorVariable) -> TensorVariable:
    return pt.where(pt.isinf(end), 0.0, 4.0 * _EPS * pt.abs(end) + _TINY)
