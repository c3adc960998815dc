"""The law of what was released of identically distributed Normal records."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

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

from pymc_dp.graphs.declined import Declined, about
from pymc_dp.graphs.shapes import known_shape
from pymc_dp.laws import require_pair
from pymc_dp.laws.integrated import integrated_release
from pymc_dp.laws.moments.feasible import BoundedMoments, draw_moments, moment_noises, of_both
from pymc_dp.laws.one_value import Law, Piece, pieces_release
from pymc_dp.laws.sum_law import LAWS, Change, Phase, SumLaw, Takes, in_words
from pymc_dp.mechanisms.base import has_continuous_rates
from pymc_dp.mechanisms.release import FeasibleMoments, mean_range, release_rv, variance_cap
from pymc_dp.reading.checks import require_possible
from pymc_dp.reading.column_sums import LinearStatistic, RowRelease
from pymc_dp.reading.model import Reading, releases_of
from pymc_dp.reading.normal_column import NormalColumn, read_normal_column
from pymc_dp.reading.propriety import check_proper


@LAWS.register(Phase.SPECIFIC, Takes((NormalRV,), single=True))
@dataclass(frozen=True)
class OneColumn(SumLaw):
    """Functions of the sample mean and variance of identically distributed Normal records."""

    reading: Reading
    column: NormalColumn

    of = "Normal"

    @classmethod
    def read(cls, reading, group):
        """See `SumLaw.read`."""
        column = read_normal_column(reading, group)
        require_possible(releases_of(reading.model, group.records))
        for release in column.releases:
            if release.degree > 2:
                raise Declined(f"the release {release.name!r} is of sums of higher powers")
        check_proper(reading, column)
        return cls(reading, column)

    @property
    def names(self) -> tuple[str, str]:
        """Names of the sample mean and variance in results."""
        return f"{self.column.name}_mean", f"{self.column.name}_var"

    def describe(self, release):
        """See `SumLaw.describe`."""
        [row_release] = [r for r in self.column.releases if r.rv is release]
        try:
            return ", ".join(
                _describe(c, self.column.name) for c in row_release.mean_and_variance()
            )
        except Declined:
            return f"a function of the mean and variance of {self.column.name}"

    def law_of(self, moment: str) -> TensorVariable:
        """Law of the sample "mean", or of the sample "variance" (ddof=1)."""
        column = self.column
        if moment == "variance" and column.n < 2:
            raise ValueError(
                f"a variance needs n >= 2 records; {column.name!r} has {column.n}. Release the "
                f"mean only, or sample with rung='records'"
            )
        return law_of_moment(moment, column.mean, column.variance, column.n)

    def statistics(self):
        """Keep the sample mean and variance as latent variables."""
        column, change = self.column, Change()
        mean_name, variance_name = self.names
        bounds = column.bounds
        mean = variance = None
        if column.uses("mean") or bounds is not None:
            mean = self.law_of("mean")
            change.added[mean_name] = (mean, None)
        if column.uses("variance") or bounds is not None:
            variance = self.law_of("variance")
            change.added[variance_name] = (variance, LogTransform())
        moments = None
        if bounds is not None:
            lower, upper = bounds
            change.start[mean_name] = np.array((lower + upper) / 2)
            change.start[variance_name] = np.array((upper - lower) ** 2 / 16)
            moments = FeasibleMoments(column.mean, column.variance, mean, variance)
        for release in column.releases:
            change.replaced[release.rv] = release_rv(
                _statistic(release, mean, variance),
                release.mechanism,
                moments=moments,
                bounds=bounds,
                n=column.n,
            )
        return change

    def recovered(self, posterior, rng):
        """See `SumLaw.recovered`: mean and variance of bounded records depend on each other."""
        noises: dict[str, tuple] = {}
        column = self.column
        if column.bounds is None:
            return None
        if set(self.names) & set(posterior):
            return {}
        for release in column.releases:
            value = self.reading.model.rvs_to_values[release.rv]
            entries, stacked = release.mean_and_variance(), release.rv.type.ndim == 1
            released = moment_noises(entries, release.mechanism, value, stacked)
            if set(released) & set(noises):
                raise Declined(
                    f"a moment of {column.name!r} is released twice: sample with "
                    f"rung='statistics', which keeps the statistics"
                )
            noises |= released
        moments = column.mean, column.variance, *of_both(noises)
        return draw_moments(self.names, moments, column.n, column.bounds, posterior, rng)

    def marginal(self):
        """Integrate the sample mean and variance out."""
        column = self.column
        for release in column.releases:
            if release.rv.type.ndim > 1:
                raise Declined(
                    f"the release {release.name!r} has {release.rv.type.ndim} dimensions: no "
                    f"closed form. Write its statistic as one list, or use to='statistics'"
                )
            for component in _linear(release):
                if bool(component.mean) == bool(component.variance):
                    used = "both the mean and the variance" if component.mean else "neither"
                    raise Declined(
                        f"an entry of the release {release.name!r} depends on {used} of the "
                        f"records {column.name!r}: no closed form. Use to='statistics'"
                    )
        for moment in ("mean", "variance"):
            users = [r for r in column.releases for c in _linear(r) if getattr(c, moment)]
            if len(users) > 1:
                raise Declined(
                    f"the {moment} of the records {column.name!r} is released more than once (in "
                    f"{', '.join(repr(r.name) for r in users)}): the releases are dependent and "
                    f"have no closed form. Use to='statistics'"
                )
        return self._unbounded() if column.bounds is None else self._bounded()

    def _unbounded(self) -> Change:
        change = Change()
        mean_name, variance_name = self.names
        for release in self.column.releases:
            pieces = []
            for j, c in enumerate(_linear(release)):
                node = self.law_of("mean" if c.mean else "variance").owner
                name, factor = (mean_name, c.mean) if c.mean else (variance_name, c.variance)
                law = Law(node.op, tuple(node.op.dist_params(node)))
                with about(f"the release {release.name!r}", "Use to='statistics'"):
                    require_pair(law.op, release.mechanism, law.parameters)
                pieces.append(Piece(name, law, j, factor, c.constant))
            change.replaced[release.rv] = pieces_release(pieces, release.rv, release.mechanism)
        return change

    def _bounded(self) -> Change:
        column = self.column
        assert column.bounds is not None
        if len(column.releases) > 1:
            raise Declined(
                f"the bounded records {column.name!r} have several releases "
                f"({', '.join(repr(r.name) for r in column.releases)}), which bounds= ties "
                f"together: declare one release of [mean, variance], or use to='statistics'"
            )
        [release] = column.releases
        if not has_continuous_rates(release.mechanism):
            raise Declined(
                f"the release {release.name!r} of bounded records has no marginal under "
                f"{type(release.mechanism).__name__}: LaplaceMechanism and GaussianMechanism are "
                f"supported. Use to='statistics'"
            )
        change = Change(transforms=_cut_priors(self.reading.model, column))
        law = BoundedMoments(
            tuple(_linear(release)),
            column.n,
            column.bounds,
            self.names,
            stacked=release.rv.type.ndim > 0,
        )
        moments = column.mean, column.variance
        change.replaced[release.rv] = integrated_release(law, release.mechanism, *moments)
        return change


def law_of_moment(moment: str, mean, variance, n, **shape: Any) -> TensorVariable:
    """Law of the sample "mean" or "variance" of n Normal records with these parameters."""
    if moment == "mean":
        return pm.Normal.dist(mean, pt.sqrt(variance / n), **shape)
    return pm.Gamma.dist((n - 1) / 2, (n - 1) / (2 * variance), **shape)


def _linear(release: RowRelease) -> list[LinearStatistic]:
    try:
        return release.mean_and_variance()
    except Declined as error:
        raise Declined(
            f"the statistic of the release {release.name!r}: {error}, and has no marginal. Use "
            f"to='statistics'"
        ) from None


def _statistic(release: RowRelease, mean, variance) -> TensorVariable:
    """Write a released statistic in terms of the sample mean and variance."""
    try:
        parts = [c.expression(mean, variance) for c in release.mean_and_variance()]
    except Declined:  # not linear in mean and variance
        scatter = ((release.n - 1) * variance).reshape((1, 1))
        return release.expression(mean.reshape((1,)), None, scatter)
    statistic = pt.stack(parts) if release.rv.type.ndim else parts[0]
    return statistic.reshape(known_shape(release.rv)) if release.rv.type.ndim > 1 else statistic


def _describe(c: LinearStatistic, name: str) -> str:
    terms = [
        in_words(factor, f"{moment} of {name}")
        for factor, moment in ((c.mean, "mean"), (c.variance, "variance"))
        if factor
    ]
    if c.constant or not terms:
        terms.append(f"{c.constant:g}")
    return " + ".join(terms)


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


def _cut_priors(model: pm.Model, group: NormalColumn):
    """Cut the priors of the law's mean m and variance v to the feasible region.

    The first variable is cut to its range, the second to its range given the first. Each has an
    interval transform, so that the density has no edge for NUTS to cross.
    """
    assert group.bounds is not None
    lower, upper = group.bounds
    half = (upper - lower) / 2
    mean = group.mean
    spread, c, k = group.spread or (None, 0.0, 0.0)
    if not {mean, spread} <= {*model.free_RVs} or spread is mean or not 0 < k < np.inf:
        raise Declined(
            f"the records {group.name!r} are bounded, and their mean and variance are not each a "
            f"simple function of one free variable: write {group.name!r} as Normal(mu, sigma) or "
            f"Normal(mu, pt.sqrt(sigma2)) with free mu and sigma or sigma2, or use to='statistics'"
        )
    assert spread is not None

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
    """Intersect a range with the support of a prior, which its transform tells."""
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
