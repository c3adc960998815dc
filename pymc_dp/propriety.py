"""Refuse priors that are known to make the posterior improper (Kazan & Reiter, theorems 4, 5)."""

from __future__ import annotations

import math

import numpy as np
import pymc as pm
import pytensor.tensor as pt
from pymc.distributions.continuous import FlatRV, HalfFlatRV
from pytensor.graph.replace import clone_replace
from pytensor.tensor.variable import TensorVariable

from pymc_dp.records import PLAIN_MODE, PrivatizedRecords, children, nearest_rvs


def power_law(expression: TensorVariable, variable: TensorVariable) -> tuple[float, float] | None:
    """Return (c, k) with ``expression == c * variable**k``, None if it is not such a power.

    Decided by evaluation: k = inf stands for an exponential, ``log(expression)`` linear.
    """
    if expression is variable:
        return 1.0, 1.0
    if nearest_rvs([expression]) != [variable]:
        return None
    points = np.array([1.0, 2.0, 4.0, 8.0])
    with np.errstate(all="ignore"):
        y = np.array(
            [
                clone_replace(expression, {variable: pt.constant(p, dtype=variable.dtype)}).eval(
                    mode=PLAIN_MODE
                )
                for p in points
            ],
            dtype="float64",
        )
        if y.shape != (4,) or not np.all(np.isfinite(y)) or np.any(y <= 0):
            return None
        steps = np.diff(np.log(y))
    if np.allclose(steps, steps[0], rtol=1e-9, atol=1e-12):
        return float(y[0]), float(steps[0] / math.log(2.0))
    slopes = steps / np.diff(points)
    if np.allclose(slopes, slopes[0], rtol=1e-9):
        return float(y[0]), math.inf
    return None


def check_possible(model: pm.Model, read: PrivatizedRecords) -> None:
    """Refuse, when a release is declared, what no further release could make proper."""
    _check(model, read, complete=False)


def check_proper(model: pm.Model, read: PrivatizedRecords) -> None:
    """Refuse improper posteriors, all releases of the records being known."""
    _check(model, read, complete=True)


def _check(model: pm.Model, read: PrivatizedRecords, *, complete: bool) -> None:
    """Compare the tails of prior and likelihood in the variance v of the records' law.

    For v -> 0 the likelihood tends to a positive constant. For v -> inf it falls like
    v^(-d/2), d = n - 1 for a released variance, one more for a released mean if the mean has a
    proper prior. A flat prior on w, v = c w^k, has density v^(1/k - 1) in v.

    Other data on a parameter may make its posterior proper: it counts as a proper prior then.
    """
    known = {read.rv, read.mean, *(release.rv for release in read.releases)}

    def has_other_data(parameter):
        return any(child not in known for child in children(model, parameter))

    mean_is_flat = (
        read.mean.owner is not None
        and isinstance(read.mean.owner.op, FlatRV)
        and not has_other_data(read.mean)
    )
    if complete and mean_is_flat and not read.uses_mean and read.bounds is None:
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
    informed_by_mean = not mean_is_flat and (read.uses_mean or not complete)
    d = (read.n - 1 if read.uses_variance or not complete else 0) + informed_by_mean
    # The power k comes out of an evaluation, so it is right to rounding only.
    if d <= 2 / k + 1e-6:
        needed = math.floor(2 / k + 1e-6) + 2 - informed_by_mean
        remedy = (
            f"n >= {needed} records with a released variance"
            if not (read.uses_variance and complete)
            else f"n >= {needed} records"
        )
        raise ValueError(
            f"the posterior is improper: the flat prior on {spread.name!r} needs {remedy}; "
            f"{read.name!r} has n = {read.n}. Give {spread.name!r} a proper prior such as "
            f"pm.InverseGamma, or state bounds="
        )
