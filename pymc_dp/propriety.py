"""Refuse priors that are known to make the posterior improper (Kazan & Reiter, theorems 4, 5)."""

from __future__ import annotations

import math

import numpy as np
import pymc as pm
import pytensor.tensor as pt
from pymc.distributions.continuous import FlatRV, HalfFlatRV
from pytensor.graph.replace import clone_replace
from pytensor.scalar import basic as ps
from pytensor.tensor.elemwise import DimShuffle, Elemwise
from pytensor.tensor.variable import TensorVariable

from pymc_dp.mechanisms.base import known_value
from pymc_dp.mechanisms.postprocessed import ClippedMechanism
from pymc_dp.records import (
    PLAIN_MODE,
    PrivatizedRecords,
    children,
    depends_on,
    nearest_rvs,
)


def power_law(expression: TensorVariable, variable: TensorVariable) -> tuple[float, float] | None:
    """Return (c, k) with ``expression == c * variable**k``, c > 0; None if it is not such a power.

    k = inf stands for an exponential, ``log(expression)`` linear.
    """
    if nearest_rvs([expression]) != [variable]:
        return None
    k = power(expression, variable)
    if k is None:
        return None
    one = clone_replace(expression, {variable: pt.ones((), dtype=variable.dtype)})
    c = np.squeeze(one.eval(mode=PLAIN_MODE))
    return (float(c), k) if c.ndim == 0 and np.isfinite(c) and c > 0 else None


def power(expression: TensorVariable, variable: TensorVariable) -> float | None:
    """Return k where an expression is proportional to ``variable**k``, decided by its ops.

    Other variables may be part of the factor. None if it is no power, inf for an exponential.
    """
    if expression is variable:
        return 1.0
    if not depends_on(expression, variable):
        return 0.0
    node = expression.owner
    if isinstance(node.op, DimShuffle):
        return power(node.inputs[0], variable)
    if not isinstance(node.op, Elemwise):
        return None
    found = [power(i, variable) for i in node.inputs]
    exponents = [k for k in found if k is not None]
    if len(exponents) < len(found):
        return None
    match node.op.scalar_op:
        case ps.Cast() | ps.Identity():
            return exponents[0]
        case ps.Mul():
            return sum(exponents)
        case ps.TrueDiv():
            return None if math.inf in exponents else exponents[0] - exponents[1]
        case ps.Sqr():
            return 2 * exponents[0]
        case ps.Sqrt():
            return exponents[0] / 2
        case ps.Reciprocal():
            return -exponents[0]
        case ps.Pow() if exponents[1] == 0:
            exponent = known_value(node.inputs[1])
            return None if exponent is None else exponents[0] * float(np.squeeze(exponent))
        case ps.Exp() if exponents[0] == 1:
            return math.inf
    return None


def check_possible(model: pm.Model, read: PrivatizedRecords) -> None:
    """Refuse, when a release is declared, what no further release could make proper."""
    _check(model, read, complete=False)


def check_proper(model: pm.Model, read: PrivatizedRecords) -> None:
    """Refuse improper posteriors, all releases of the records being known."""
    _check(model, read, complete=True)


def _is_clipped(mechanism) -> bool:
    """Whether a mechanism clips, at any level of post-processing."""
    while mechanism is not None:
        if isinstance(mechanism, ClippedMechanism):
            return True
        mechanism = getattr(mechanism, "inner", None)
    return False


def _check(model: pm.Model, read: PrivatizedRecords, *, complete: bool) -> None:
    """Compare the tails of prior and likelihood in the variance v of the records' law.

    For v -> 0 the likelihood tends to a positive constant. For v -> inf it falls like
    v^(-d/2), d = n - 1 for a released variance, one more for a released mean if the mean has a
    proper prior; clipped releases do not fall at all and do not count. A flat prior on w,
    v = c w^k, has density v^(1/k - 1) in v.

    Other data on a parameter may make its posterior proper: it counts as a proper prior then.
    """
    known = {read.rv, read.mean, *(release.rv for release in read.releases)}

    unclipped = [
        c
        for release in read.releases
        if not _is_clipped(release.op.mechanism)
        for c in release.components
    ]
    uses_mean = any(c.mean for c in unclipped)
    uses_variance = any(c.variance for c in unclipped)

    def has_other_data(parameter):
        return any(child not in known for child in children(model, parameter))

    mean_is_flat = (
        read.mean.owner is not None
        and isinstance(read.mean.owner.op, FlatRV)
        and not has_other_data(read.mean)
    )
    if complete and mean_is_flat and not uses_mean and read.bounds is None:
        raise ValueError(
            f"the posterior is improper: {read.mean.name!r} has a flat prior and no release "
            f"of {read.name!r} depends on their mean. Give {read.mean.name!r} a proper prior such "
            f"as pm.Normal"
        )
    sources = nearest_rvs([read.variance])
    if len(sources) != 1 or not isinstance(sources[0].owner.op, FlatRV | HalfFlatRV):
        return
    [spread] = sources
    law = power_law(read.variance, spread)
    if law is None or has_other_data(spread):
        return
    _, k = law
    if k <= 0 or math.isinf(k):
        raise ValueError(
            f"the posterior is improper: a flat prior on {spread.name!r} puts the density 1/v (or "
            f"more) on the variance v of {read.name!r} near zero, where a noisy release does not "
            f"rule anything out. Use a uniform prior on the variance (pm.HalfFlat, n >= 4) "
            f"or a proper one such as pm.InverseGamma"
        )
    if read.bounds is not None:
        return  # the feasible region is bounded
    informed_by_mean = not mean_is_flat and (uses_mean or not complete)
    d = (read.n - 1 if uses_variance or not complete else 0) + informed_by_mean
    if d <= 2 / k:
        needed = math.floor(2 / k) + 2 - informed_by_mean
        remedy = (
            f"n >= {needed} records with a released variance"
            if not (uses_variance and complete)
            else f"n >= {needed} records"
        )
        raise ValueError(
            f"the posterior is improper: the flat prior on {spread.name!r} needs {remedy}; "
            f"{read.name!r} has n = {read.n}. Give {spread.name!r} a proper prior such as "
            f"pm.InverseGamma, or state bounds=; if other data inform it, declare them before the "
            f"release"
        )
