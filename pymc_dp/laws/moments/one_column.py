"""Collapse rules for identically distributed Normal records under released means and variances."""

from __future__ import annotations

import numpy as np
import pymc as pm
import pytensor.tensor as pt
from pymc.distributions.distribution import SymbolicRandomVariable, _support_point
from pymc.logprob.abstract import _logprob
from pymc.logprob.transforms import IntervalTransform, LogTransform
from pytensor.graph.traversal import ancestors
from pytensor.tensor.random.basic import NormalRV
from pytensor.tensor.random.op import RandomVariable
from pytensor.tensor.variable import TensorVariable

from pymc_dp.graphs.declined import Declined
from pymc_dp.graphs.questions import power_law
from pymc_dp.laws import require_pair
from pymc_dp.laws.integrated import integrated_release
from pymc_dp.laws.moments.feasible import BoundedMoments
from pymc_dp.laws.one_value import Statistic, stacked_release_rv
from pymc_dp.laws.rungs import Change, register_rungs
from pymc_dp.mechanisms.base import has_continuous_rates
from pymc_dp.mechanisms.release import FeasibleMoments, mean_range, release_rv, variance_cap
from pymc_dp.reading.model import LinearRelease, PrivatizedRecords, read_records
from pymc_dp.reading.propriety import check_proper
from pymc_dp.reading.statistic import LinearStatistic


def sample_mean(group: PrivatizedRecords) -> TensorVariable:
    """Law of the sample mean."""
    return pm.Normal.dist(group.mean, pt.sqrt(group.variance / group.n))


def sample_variance(group: PrivatizedRecords) -> TensorVariable:
    """Law of the sample variance (ddof=1)."""
    if group.n < 2:
        raise ValueError(
            f"a variance needs n >= 2 records; {group.name!r} has {group.n}. Release the mean only"
        )
    return pm.Gamma.dist((group.n - 1) / 2, (group.n - 1) / (2 * group.variance))


def names(group: PrivatizedRecords) -> tuple[str, str]:
    """Names of the sample mean and variance in results."""
    return f"{group.name}_mean", f"{group.name}_var"


def _mechanism(release: LinearRelease):
    return release.op.mechanism.with_parameters(*release.parameters)


def read(model: pm.Model, records: TensorVariable) -> PrivatizedRecords:
    """Read Normal records and their releases."""
    group = read_records(model, records)
    check_proper(model, group)
    return group


def describe(model: pm.Model, records: TensorVariable, release: TensorVariable) -> str:
    """Say what the entries of a release are."""
    group = read_records(model, records)
    [found] = [r for r in group.releases if r.rv is release]
    return ", ".join(_describe(c, group.name) for c in found.components)


def _describe(c: LinearStatistic, name: str) -> str:
    terms = [
        f"{what} of {name}" if abs(factor - 1) < 1e-12 else f"{factor:g} × {what} of {name}"
        for factor, what in ((c.mean, "mean"), (c.variance, "variance"))
        if factor
    ]
    if c.constant or not terms:
        terms.append(f"{c.constant:g}")
    return " + ".join(terms)


def statistics_rung(model: pm.Model, group: PrivatizedRecords) -> Change:
    """Keep the sample mean and variance as latent variables."""
    change = Change()
    mean_name, variance_name = names(group)
    bounds = group.bounds
    mean = variance = None
    if group.uses_mean or bounds is not None:
        mean = sample_mean(group)
        change.added[mean_name] = (mean, None)
    if group.uses_variance or bounds is not None:
        variance = sample_variance(group)
        change.added[variance_name] = (variance, LogTransform())
    if bounds is not None:
        lower, upper = bounds
        change.start[mean_name] = np.array((lower + upper) / 2)
        change.start[variance_name] = np.array((upper - lower) ** 2 / 16)
    for release in group.releases:
        parts = [c.expression(mean, variance) for c in release.components]
        statistic = pt.stack(parts) if release.rv.type.ndim else parts[0]
        if release.rv.type.ndim > 1:
            statistic = statistic.reshape(release.rv.type.shape)
        moments = None
        if bounds is not None:
            moments = FeasibleMoments(group.mean, group.variance, mean, variance)
        change.replaced[release.rv] = release_rv(
            statistic, _mechanism(release), moments=moments, bounds=bounds, n=group.n
        )
    return change


def marginal_rung(model: pm.Model, group: PrivatizedRecords) -> Change:
    """Integrate the sample mean and variance out, too."""
    for release in group.releases:
        if release.rv.type.ndim > 1:
            raise Declined(
                f"the release {release.name!r} has {release.rv.type.ndim} dimensions: no closed "
                f"form. Write its statistic as one list, or use to='statistics'"
            )
        for component in release.components:
            if bool(component.mean) == bool(component.variance):
                what = "both the mean and the variance" if component.mean else "neither"
                raise Declined(
                    f"an entry of the release {release.name!r} depends on {what} of the records "
                    f"{group.name!r}: no closed form. Use to='statistics'"
                )
    for which in ("mean", "variance"):
        users = [r for r in group.releases for c in r.components if getattr(c, which)]
        if len(users) > 1:
            raise Declined(
                f"the {which} of the records {group.name!r} is released more than once (in "
                f"{', '.join(repr(r.name) for r in users)}): the releases are dependent and have "
                f"no closed form. Use to='statistics'"
            )
    return _unbounded(group) if group.bounds is None else _bounded(model, group)


def _unbounded(group: PrivatizedRecords) -> Change:
    change = Change()
    mean_name, variance_name = names(group)
    for release in group.releases:
        statistics, laws = [], []
        for c in release.components:
            law = sample_mean(group) if c.mean else sample_variance(group)
            name, factor = (mean_name, c.mean) if c.mean else (variance_name, c.variance)
            node = law.owner
            parameters = node.op.dist_params(node)
            _require_pair(release, node.op, parameters)
            statistics.append(Statistic(name, node.op, len(parameters), factor, c.constant))
            laws.append(parameters)
        change.replaced[release.rv] = stacked_release_rv(
            statistics, laws, _mechanism(release), ndim=release.rv.type.ndim
        )
    return change


def _require_pair(release, law, parameters) -> None:
    try:
        require_pair(law, release.op.mechanism, parameters)
    except NotImplementedError as error:
        raise Declined(f"the release {release.name!r}: {error}. Use to='statistics'") from None


def _bounded(model: pm.Model, group: PrivatizedRecords) -> Change:
    assert group.bounds is not None
    if len(group.releases) > 1:
        raise Declined(
            f"the bounded records {group.name!r} have several releases "
            f"({', '.join(repr(r.name) for r in group.releases)}), which bounds= ties together: "
            f"declare one release of [mean, variance], or use to='statistics'"
        )
    [release] = group.releases
    mechanism = release.op.mechanism
    if not has_continuous_rates(mechanism):
        raise Declined(
            f"the release {release.name!r} of bounded records has no marginal under "
            f"{type(mechanism).__name__}: LaplaceMechanism and GaussianMechanism are supported. "
            f"Use to='statistics'"
        )
    change = Change()
    change.transforms = _cut_priors(model, group)
    law = BoundedMoments(
        tuple(release.components),
        group.n,
        group.bounds,
        names(group),
        stacked=release.rv.type.ndim > 0,
    )
    moments = group.mean, group.variance
    change.replaced[release.rv] = integrated_release(law, _mechanism(release), *moments)
    return change


class FeasibleCutRV(SymbolicRandomVariable):
    """A prior cut to an interval, not renormalised; draws outside of it are NaN.

    Inputs are those of the prior's op and the interval's ends.
    """

    _print_name = ("FeasibleCut", "\\operatorname{FeasibleCut}")
    prior: RandomVariable


def cut_rv(prior: TensorVariable, lower, upper) -> TensorVariable:
    """Cut the density of a prior to (lower, upper)."""
    inputs = [*prior.owner.inputs, pt.as_tensor(lower), pt.as_tensor(upper)]
    dummies = [v.type() if isinstance(v, pt.TensorVariable) or i == 0 else v
               for i, v in enumerate(inputs)]  # fmt: skip
    next_rng, draw = prior.owner.op(
        *dummies[2:-2], size=dummies[1], rng=dummies[0], return_next_rng=True
    )
    low, high = dummies[-2:]
    op = FeasibleCutRV(
        dummies,
        [next_rng, pt.switch((draw > low) & (draw < high), draw, np.nan)],
        extended_signature=f"[rng],[size],{','.join(['()'] * (len(inputs) - 2))}->[rng],()",
    )
    op.prior = prior.owner.op
    return op(*inputs)


@_logprob.register(FeasibleCutRV)
def _cut_logprob(op, values, *inputs, **kwargs):
    [value] = values
    *prior_inputs, lower, upper = inputs
    logp = _logprob(op.prior, values, *prior_inputs)
    return pt.switch((value > lower) & (value < upper), logp, -np.inf)


@_support_point.register(FeasibleCutRV)
def _cut_support_point(op, rv, *inputs):
    *_, lower, upper = inputs
    return (lower + upper) / 2


def _last_two_inputs(*inputs):
    return inputs[-2:]


def _cut_priors(model: pm.Model, group: PrivatizedRecords):
    """Cut the priors of the law's mean m and variance v to the feasible region.

    The first of them gets its range, the second its range given the first: an interval
    transform for each, so that NUTS meets no wall.
    """
    assert group.bounds is not None
    lower, upper = group.bounds
    half = (upper - lower) / 2
    mean = group.mean
    spreads = [
        rv
        for rv in model.free_RVs
        if rv is not mean and rv in set(ancestors([group.variance], blockers=model.free_RVs))
    ]
    power = power_law(group.variance, spreads[0]) if len(spreads) == 1 else None
    if mean not in model.free_RVs or power is None or not 0 < power[1] < np.inf:
        raise Declined(
            f"the records {group.name!r} are bounded, and their mean and variance are not each a "
            f"simple function of one free variable: write {group.name!r} as Normal(mu, sigma) or "
            f"Normal(mu, pt.sqrt(sigma2)) with free mu and sigma or sigma2, or use to='statistics'"
        )
    [spread] = spreads
    c, k = power

    def spread_range(cap):
        """Range of the spread variable for 0 < v < cap, v = c * spread**k."""
        return 0.0, (cap / c) ** (1 / k)

    if mean in ancestors([spread], blockers=[mean]) and mean is not spread:
        order = [
            (mean, (lower, upper)),
            (spread, spread_range(variance_cap(mean, lower, upper))),
        ]
    else:
        order = [
            (spread, spread_range(half**2)),
            (mean, mean_range(group.variance, lower, upper)),
        ]
    cut = {}
    for rv, (low, high) in order:
        low, high = _intersect(model, rv, low, high)
        cut[rv.name] = (cut_rv(rv, low, high), IntervalTransform(_last_two_inputs))
    return cut


def _intersect(model: pm.Model, rv: TensorVariable, low, high):
    """Intersect a range with the support of a prior, as its transform states it."""
    if not isinstance(rv.owner.op, RandomVariable) or rv.type.ndim:
        raise Declined(
            f"the prior of {rv.name!r} cannot be cut to the feasible region: it must be a scalar "
            f"distribution of its own (got {rv.owner.op}); use to='statistics'"
        )
    transform = model.rvs_to_transforms[rv]
    if transform is None:
        return low, high
    if isinstance(transform, LogTransform):
        return pt.maximum(low, 0.0), high
    if isinstance(transform, IntervalTransform):
        a, b = transform.args_fn(*rv.owner.inputs)
        return (
            low if a is None else pt.maximum(low, a),
            high if b is None else pt.minimum(high, b),
        )
    raise Declined(
        f"{rv.name!r} has the transform {transform}, which cannot be cut to the feasible region; "
        f"use to='statistics'"
    )


register_rungs(
    NormalRV, read=read, describe=describe, statistics=statistics_rung, marginal=marginal_rung
)
