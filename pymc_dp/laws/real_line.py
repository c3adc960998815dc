"""Continuous laws on the real line: the support, mapped by the law's default transform."""

from __future__ import annotations

import numpy as np
import pytensor.tensor as pt
from pymc.distributions.transforms import _default_transform
from pymc.logprob.abstract import _logprob
from pymc.logprob.transforms import (
    CircularTransform,
    IntervalTransform,
    LogOddsTransform,
    LogTransform,
)
from pytensor.tensor.variable import TensorVariable

from pymc_dp.graphs.declined import Declined
from pymc_dp.graphs.values import nearest_rvs

_EPS, _TINY = 2.0**-52, 1e-300


def support(law: TensorVariable, name: str | None = None):
    """Return the ends of the support of a law, None for an infinite one.

    With a name they must be free of the model's variables: the nodes stay where they are when a
    parameter moves.
    """
    transform = _default_transform(law.owner.op, law)
    ends: tuple
    match transform:
        case None:
            ends = None, None
        case LogTransform():
            ends = 0.0, None
        case CircularTransform() if name is None:
            ends = -np.pi, np.pi
        case LogOddsTransform():
            ends = 0.0, 1.0
        case IntervalTransform():
            ends = transform.args_fn(*law.owner.inputs)
        case _:
            of = "its law lives" if name is None else f"the records {name!r} live"
            raise Declined(f"{of} on a {transform.name} support")
    lower, upper = (None if e is None else pt.as_tensor(e).astype("float64") for e in ends)
    moving = nearest_rvs([e for e in (lower, upper) if e is not None])
    if name is not None and moving:
        raise Declined(
            f"the support of the records {name!r} depends on "
            f"{', '.join(repr(rv.name) for rv in moving)}: it must be known"
        )
    return lower, upper


def forward(law, x):
    """Map points to the real line; points outside of the support go to its ends."""
    lower, upper = support(law)
    left = 0.0 if lower is None else pt.log(pt.maximum(x - lower, 0.0))
    right = 0.0 if upper is None else pt.log(pt.maximum(upper - x, 0.0))
    y = x if lower is None and upper is None else left - right
    return pt.switch(pt.isnan(y), np.inf, y)


def backward(law, y):
    """Map points of the real line to the support."""
    lower, upper = support(law)
    if lower is None and upper is None:
        return y
    if upper is None:
        return lower + pt.exp(y)
    if lower is None:
        return upper - pt.exp(-y)
    return lower + (upper - lower) * pt.sigmoid(y)


def log_density(law, y):
    """Log density of a record on the real line."""
    lower, upper = support(law)
    x = backward(law, y)
    # Rounding must not put x on an end of the support, where a density may have a pole.
    if lower is not None:
        x = pt.maximum(x, lower + pt.maximum(pt.abs(lower) * _EPS, _TINY))
    if upper is not None:
        x = pt.minimum(x, upper - pt.maximum(pt.abs(upper) * _EPS, _TINY))
    if lower is None and upper is None:
        jacobian = pt.zeros_like(y)
    elif upper is None:
        jacobian = y
    elif lower is None:
        jacobian = -y
    else:
        jacobian = pt.log(upper - lower) - pt.softplus(y) - pt.softplus(-y)
    return _logprob(law.owner.op, (x,), *law.owner.inputs) + jacobian
