"""The random variable of a release."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import pytensor
import pytensor.tensor as pt
from pymc.distributions.distribution import SymbolicRandomVariable, _support_point
from pymc.logprob.abstract import _icdf, _logcdf, _logprob
from pytensor.graph.basic import Apply
from pytensor.graph.op import Op
from pytensor.graph.rewriting.basic import node_rewriter
from pytensor.tensor.rewriting.basic import register_specialize

from pymc_dp.graphs.values import depends_on, nearest_rvs

if TYPE_CHECKING:
    from pytensor.tensor.variable import TensorVariable

    from pymc_dp.mechanisms.law import ReleaseLaw


def variance_cap(mean, lower: float, upper: float) -> TensorVariable:
    """Return the largest variance of values in [lower, upper] that have this mean."""
    return (mean - lower) * (upper - mean)


def mean_range(variance, lower: float, upper: float) -> tuple[TensorVariable, TensorVariable]:
    """Return the range of the mean of values in [lower, upper] that have this variance."""
    half, middle = (upper - lower) / 2, (upper + lower) / 2
    width = pt.sqrt(pt.maximum(half**2 - variance, 0.0))
    return middle - width, middle + width


def law_is_feasible(m, v, lower: float, upper: float) -> TensorVariable:
    """Whether a law on [lower, upper] can have mean m and variance v."""
    return (m > lower) & (m < upper) & (v > 0) & (v <= variance_cap(m, lower, upper))


class FeasibleMoments(NamedTuple):
    """Moments tied to bounds (lower, upper) of the records; see `feasible`."""

    law_mean: TensorVariable
    law_variance: TensorVariable
    sample_mean: TensorVariable
    sample_variance: TensorVariable

    def feasible(self, n: int, lower: float, upper: float) -> TensorVariable:
        """Whether the law's and the sample's moments are possible for values in [lower, upper].

        A law on [a, b] has variance at most (m - a)(b - m); a sample of n values has
        (n - 1)/n S² at most (ȳ - a)(b - ȳ) (Kazan & Reiter, theorems 2 and 3).
        """
        m, v, ybar, s2 = self
        law = law_is_feasible(m, v, lower, upper)
        cap = variance_cap(ybar, lower, upper)
        # The sample's own rounding must not make a feasible sample infeasible.
        slack = 1e-12 * (upper - lower) ** 2
        sample = (ybar >= lower) & (ybar <= upper) & (s2 >= 0) & ((n - 1) / n * s2 <= cap + slack)
        return law & sample


class FeasibleRegression(NamedTuple):
    """A simple regression and its sums over rows, tied to bounds of (x, y); see `feasible`."""

    intercept: TensorVariable
    slope: TensorVariable
    variance: TensorVariable
    sx: TensorVariable
    sxx: TensorVariable
    sy: TensorVariable
    sxy: TensorVariable
    syy: TensorVariable

    def feasible(self, n: int, lower, upper) -> TensorVariable:
        """Whether the sums and the parameters are possible for rows in a box.

        `lower` and `upper` are pairs, for x and y; see `kernels.moments.bounds`.
        """
        (ax, ay), (bx, by) = lower, upper
        wx, wy = bx - ax, by - ay
        left, right = (self.intercept + self.slope * x for x in (ax, bx))
        meets = (pt.maximum(left, right) >= ay) & (pt.minimum(left, right) <= by)
        law = meets & (self.variance <= 0.25 * wy**2)
        sx, sy = (self.sx - n * ax) / wx, (self.sy - n * ay) / wy
        sxx = (self.sxx - 2 * ax * self.sx + n * ax**2) / wx**2
        syy = (self.syy - 2 * ay * self.sy + n * ay**2) / wy**2
        sxy = (self.sxy - ax * self.sy - ay * self.sx + n * ax * ay) / (wx * wy)
        slack = 1e-12 * n  # the sums' own rounding must not make feasible rows infeasible
        inside = (sxx >= -slack) & (sxx <= sx + slack) & (sx <= n + slack)
        inside &= (syy >= -slack) & (syy <= sy + slack) & (sy <= n + slack)
        inside &= sxy >= pt.maximum(0.0, sx + sy - n) - slack
        inside &= sxy <= pt.minimum(sx, sy) + slack
        cxx, cyy, cxy = sxx - sx**2 / n, syy - sy**2 / n, sxy - sx * sy / n
        return law & inside & (cxx >= -slack) & (cxx * cyy - cxy**2 >= -slack * n)


class Together(Op):
    """Identity that marks a statistic whose entries make one release together.

    Readers that take a statistic apart entry by entry do not know this op, and decline. The
    density is computed from the statistic itself.
    """

    __props__ = ()

    def make_node(self, x):
        """Return the node of a statistic."""
        return Apply(self, [x], [x.type()])

    def perform(self, node, inputs, output_storage):
        """Return the statistic."""
        output_storage[0][0] = inputs[0].copy()

    def infer_shape(self, node, shapes):
        """Return the shape of the statistic."""
        return shapes

    def pullback(self, inputs, outputs, cotangents):
        """Return the gradient of the statistic."""
        return cotangents


@register_specialize
@node_rewriter([Together])
def _evaluated(fgraph, node):
    return node.inputs


def apart(statistic: TensorVariable) -> TensorVariable:
    """Return the statistic of a release without the mark `Together`."""
    node = statistic.owner
    return node.inputs[0] if node is not None and isinstance(node.op, Together) else statistic


class PrivateReleaseRV(SymbolicRandomVariable):
    """A release: the mechanism's noise around a statistic of the confidential records.

    Inputs are the rng, the statistic, the mechanism's parameters and, where the records are
    publicly bounded, the entries of `FeasibleMoments` or `FeasibleRegression`. The log density is
    the mechanism's, plus log 1[moments feasible]; a draw outside the feasible region is NaN, or
    infinite where NaN marks a withheld entry.
    """

    _print_name = ("PrivateRelease", "\\operatorname{PrivateRelease}")
    mechanism: Any  # a Mechanism, whose parameters are without values: see `split`
    bounds: tuple | None
    region: type[FeasibleMoments] | type[FeasibleRegression] | None
    n: int | None

    def split(self, inputs):
        """Return the mechanism with these inputs as parameters, the statistic, the moments."""
        _, statistic, *rest = inputs
        count = len(self.mechanism.parameters)
        moments = self.region(*rest[count:]) if self.region is not None else None
        return self.mechanism.with_parameters(*rest[:count]), apart(statistic), moments

    def dist_params(self, node):
        """Return what a printed model shows: the statistic and the parameters of the noise."""
        statistic, *rest = node.inputs[1:]
        return apart(statistic), *rest[: len(self.mechanism.parameters)]


def release_rv(
    statistic,
    mechanism: ReleaseLaw,
    *,
    moments: FeasibleMoments | FeasibleRegression | None = None,
    bounds: tuple | None = None,
    n: int | None = None,
) -> TensorVariable:
    """Build the random variable of a release (not registered with any model)."""
    statistic = apart(pt.as_tensor(statistic)).astype(pytensor.config.floatX)
    if mechanism.statistic_ndim or nearest_rvs(mechanism.parameters):
        statistic = Together()(statistic)
    inputs: Sequence = [
        pt.random.shared_rng(seed=None),
        statistic,
        *mechanism.parameters,
        *(moments or ()),
    ]
    dummies = [variable.type() for variable in inputs]
    rng, stat, *rest = dummies
    count = len(mechanism.parameters)
    noise = mechanism.with_parameters(*rest[:count])
    next_rng, draw = noise.noise_sample(rng, stat)
    if moments is not None:
        assert bounds is not None
        assert n is not None
        outside = np.inf if mechanism.withholds else np.nan  # NaN marks a withheld entry
        draw = pt.switch(type(moments)(*rest[count:]).feasible(n, *bounds), draw, outside)
    core = "(k)" if mechanism.statistic_ndim else "()"
    scalars = ["()"] * (len(inputs) - 2)
    released = "(pair)" if mechanism.release_ndim else "()"
    op = PrivateReleaseRV(
        dummies,
        [next_rng, draw],
        extended_signature=f"[rng],{','.join([core, *scalars])}->[rng],{released}",
    )
    op.mechanism, op.bounds, op.n = noise, bounds, n
    op.name = mechanism.label
    op._print_name = op.name, rf"\operatorname{{{op.name}}}"
    op.region = None if moments is None else type(moments)
    return op(*inputs)


def record_bounds(
    release: TensorVariable, records: Sequence[TensorVariable]
) -> dict[TensorVariable, tuple[float, float]]:
    """Return the bounds that a release states for the records of its statistic.

    `records` are in model order, as the stated bounds are.
    """
    _, statistic, *_ = release.owner.inputs
    stated = release.owner.op.bounds
    bounded = [] if stated is None else [rv for rv in records if depends_on(statistic, rv)]
    if not bounded:
        return {}
    ends = (np.broadcast_to(end, len(bounded)).tolist() for end in stated)
    return dict(zip(bounded, zip(*ends, strict=True), strict=True))


@_logprob.register(PrivateReleaseRV)
def _release_logprob(op, values, *inputs, **kwargs):
    [value] = values
    mechanism, statistic, moments = op.split(inputs)
    logp = mechanism.logp(value, statistic)
    if moments is not None:
        logp = pt.switch(moments.feasible(op.n, *op.bounds), logp, -np.inf)
    return logp


def _without_bounds(op, inputs):
    """Return the statistic and the mechanism of a release; with bounds it is not normalised."""
    mechanism, statistic, moments = op.split(inputs)
    if moments is not None:
        raise NotImplementedError("a release with bounds= has no normalised distribution function")
    return statistic, mechanism


@_logcdf.register(PrivateReleaseRV)
def _release_logcdf(op, value, *inputs, **kwargs):
    statistic, mechanism = _without_bounds(op, inputs)
    return mechanism.logcdf(value, statistic)


@_icdf.register(PrivateReleaseRV)
def _release_icdf(op, value, *inputs, **kwargs):
    statistic, mechanism = _without_bounds(op, inputs)
    return mechanism.icdf(value, statistic)


@_support_point.register(PrivateReleaseRV)
def _release_support_point(op, rv, *inputs):
    mechanism, statistic, _ = op.split(inputs)
    return pt.broadcast_to(mechanism.support_point(statistic), rv.shape)
