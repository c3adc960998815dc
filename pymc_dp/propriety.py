"""Refuse priors that are known to make the posterior improper (Kazan & Reiter, theorems 4, 5)."""

from __future__ import annotations

import math

import pymc as pm
from pymc.distributions.continuous import FlatRV, HalfFlatRV

from pymc_dp.graphs import nearest_rvs, power_law
from pymc_dp.mechanisms.postprocessed import ClippedMechanism
from pymc_dp.records import PrivatizedRecords, children


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
