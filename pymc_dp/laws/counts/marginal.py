r"""Releases of records with finitely many values, the records integrated out.

Binary records enter a statistic through the number of ones c alone:

.. math::

    p(z \mid p) = \sum_{c=0}^n \mathrm{Binomial}(c; n, p)\, \eta(z \mid s(c)).

All of the sum is taken for n up to `WHOLE`, and where nothing is known of its terms. Where the
statistic is linear in c and the noise log-concave, the terms are log-concave in c: the sum is then
taken around their mode until they have dropped by `_DROP` in log on both sides. From there on
they fall faster than geometrically, at a rate of at least _DROP / d a step at the distance d, so
that what is left out is less than exp(-_DROP) (1 + d / _DROP) of the sum on each side. Since
:math:`-\partial_c^2 \log \mathrm{Binomial} \ge 4/n`, d is at most about
:math:`1.25 \sqrt{n\, \mathtt{DROP} / 2}`: the relative error is below 1e-11 for n = 1e9, wherever
z is.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import pytensor.tensor as pt
from pytensor.gradient import disconnected_grad
from pytensor.graph.basic import Apply
from pytensor.scalar import basic as ps
from pytensor.tensor.variable import TensorVariable

from pymc_dp.graphs.ops import KernelOp, Placement
from pymc_dp.graphs.questions import known_value
from pymc_dp.kernels.functions.count_masses import log_binomial as binomial_kernel
from pymc_dp.laws.integrated import Integrated
from pymc_dp.laws.kernel_call import KernelCall
from pymc_dp.mechanisms.base import Mechanism
from pymc_dp.reading.counts import CountStatistic

WHOLE = 2_000
_DROP = 36.0
_TINY, _NEVER = np.float64(1e-290), np.float64(-1e300)  # zero and its log, kept out of NaN


class LogBinomial(KernelOp):
    """Log mass of a binomial count; inputs c, n, p, q = 1 - p.

    The derivatives in p and q are those of c log p + (n - c) log q; c and n are integers.
    """

    nin = fixed = 4
    kernel = staticmethod(binomial_kernel)

    def pullback(self, inputs, outputs, output_gradients):
        """Return the gradients of the inputs."""
        c, n, p, q = inputs
        [gradient] = output_gradients
        return [
            c.zeros_like(dtype="float64"),
            n.zeros_like(dtype="float64"),
            gradient * c / ps.maximum(p, _TINY),
            gradient * (n - c) / ps.maximum(q, _TINY),
        ]


def log_binomial(count: TensorVariable, n: int, p: TensorVariable) -> TensorVariable:
    """Log mass of a binomial count, accurate for large n."""
    return LogBinomial.apply(count, np.float64(n), p, 1.0 - p)


def log_sum(terms: TensorVariable, axis: int = -1) -> TensorVariable:
    """Log of a sum of exponentials; minus infinity if all the terms are."""
    terms = pt.maximum(terms, _NEVER)
    top = disconnected_grad(pt.max(terms, axis=axis, keepdims=True))
    total = pt.log(pt.sum(pt.exp(terms - top), axis=axis)) + top.squeeze(axis)
    return pt.switch(top.squeeze(axis) > 0.5 * _NEVER, total, -np.inf)


class CountRange(KernelCall, Placement):
    """The counts from a first to a last one, and the logarithms of their weights, which are 0.

    JAX has no lengths that depend on values: there `longest` counts come, those too many with the
    weight 0.
    """

    __props__ = ("longest",)

    def __init__(self, longest: int):
        self.longest = longest

    def make_node(self, first, last):
        """Apply to two whole numbers."""
        ends = [pt.as_tensor(i).astype("int64") for i in (first, last)]
        return Apply(self, ends, [pt.dvector(), pt.dvector()])

    def call(self):
        """See `KernelCall.call`."""

        def count_range(first, last):
            counts = np.arange(first.item(), last.item() + 1).astype(np.float64)
            return counts, np.zeros(counts.size)

        return count_range

    def in_jax(self, first, last):
        """Count in JAX."""
        import jax.numpy as jnp

        counts = first + jnp.arange(self.longest)
        return jnp.minimum(counts, last) + 0.0, jnp.where(counts <= last, 0.0, -jnp.inf)


def window(log_mass: Callable[[TensorVariable], TensorVariable], n: int) -> list[TensorVariable]:
    """Return `CountRange` around the mode of a log-concave mass on 0, ..., n; see the module."""
    parts, width = 256, n
    low, high = pt.constant(0), pt.constant(n)
    while True:
        points = low + (pt.arange(parts + 1) * (high - low)) // parts
        best = pt.argmax(pt.maximum(log_mass(points), _NEVER))
        if width <= parts:
            break
        low, high = points[pt.maximum(best - 1, 0)], points[pt.minimum(best + 1, parts)]
        width = 2 * (width // parts + 1)
    mode = points[best]
    steps = np.unique(np.minimum(np.ceil(1.25 ** np.arange(np.log(n) / np.log(1.25) + 1)), n))
    steps = steps.astype("int64")
    ends = []
    for side in (-1, 1):
        reached = pt.clip(mode + side * steps, 0, n)
        far = log_mass(mode) - pt.maximum(log_mass(reached), _NEVER) > _DROP
        far = pt.set_subtensor(far[-1], np.array(True))
        ends.append(reached[pt.argmax(far)])
    longest = min(n, 2 * math.ceil(1.25 * math.sqrt(0.5 * n * _DROP)) + 4) + 1
    return CountRange(longest)(*ends, return_list=True)


@dataclass(frozen=True, eq=False)
class OnesAmongRecords(Integrated):
    """The number of ones among n binary records; its parameter is their probability.

    The log density is one number for all entries of the release.

    Attributes
    ----------
    whole : whether to sum over all counts; if not, the terms must be log-concave in the count.
    """

    statistic: CountStatistic
    n: int
    names: tuple[str, ...]
    whole: bool

    def cost(self, entries: int) -> dict[str, float]:
        """See `Integrated.cost`; the number of terms grows like the square root of n."""
        return {"ones among records": math.sqrt(self.n)}

    def draw(self, rng, p):
        """See `Integrated.draw`."""
        rng, ones = pt.random.binomial(self.n, p, rng=rng, return_next_rng=True)
        return rng, self.statistic.of_binary(ones.astype("float64"), self.n)

    def log_eta(self, counts, value, mechanism: Mechanism) -> TensorVariable:
        """Log density of a release for each of several counts."""
        each = mechanism.logp(value, self.statistic.of_binary(counts.astype("float64"), self.n))
        return each.sum(axis=tuple(range(1, each.type.ndim)))

    def logp(self, value, mechanism, p):
        """See `Integrated.logp`."""
        if self.whole:
            counts, log_weights = pt.arange(self.n + 1), 0.0
        else:
            held = disconnected_grad(p)
            counts, log_weights = window(
                lambda c: (
                    log_binomial(c, self.n, held)
                    + self.log_eta(pt.atleast_1d(c), value, mechanism).reshape(c.shape)
                ),
                self.n,
            )
        terms = log_binomial(counts, self.n, p) + self.log_eta(counts, value, mechanism)
        return log_sum(terms + log_weights)


@dataclass(frozen=True, eq=False)
class ReportedRecords(Integrated):
    """Records that are reported one by one; the parameter is the probabilities of their values.

    The log density is one number for all of the reports: equal reports are counted once, so that it
    costs as much as there are different ones. `values` holds the statistic of each value.
    """

    values: np.ndarray
    n: int
    names: tuple[str, ...]

    def draw(self, rng, probabilities):
        """See `Integrated.draw`."""
        size = (self.n,)
        rng, codes = pt.random.categorical(probabilities, size=size, rng=rng, return_next_rng=True)
        return rng, pt.constant(self.values)[codes]

    def log_joint(self, value, mechanism: Mechanism, probabilities) -> TensorVariable:
        """Log probability of (report, record's value), with one row for each report."""
        log_p = pt.log(pt.maximum(probabilities, _TINY))
        each = (p.dimshuffle(0, "x") if p.type.ndim else p for p in mechanism.parameters)
        mechanism = mechanism.with_parameters(*each)
        return log_p + mechanism.logp(value.dimshuffle(0, "x"), self.values)

    def logp(self, value, mechanism, probabilities):
        """See `Integrated.logp`."""
        reports, times = tally(mechanism, value)
        total = (times * log_sum(self.log_joint(reports, mechanism, probabilities))).sum()
        # What is no outcome is not counted.
        return pt.switch(pt.eq(times.sum(), value.size), total, -np.inf)


def tally(mechanism: Mechanism, value: TensorVariable) -> tuple[TensorVariable, TensorVariable]:
    """Return the different reports and how often each occurs, counted once if they are constant.

    Where they differ in the noise's parameters, or can change (pm.Data) and may be anything, each
    is its own.
    """
    known = known_value(value, fixed=True)
    shared = not any(p.type.ndim for p in mechanism.parameters)
    if shared and known is None and mechanism.outcomes is not None:
        outcomes = pt.constant(mechanism.outcomes)
        return outcomes, pt.eq(value.dimshuffle(0, "x"), outcomes).sum(axis=0).astype("float64")
    if known is None or not shared:
        return value, pt.ones_like(value, dtype="float64")
    different, times = np.unique(known, return_counts=True)
    return pt.constant(different), pt.constant(times.astype("float64"))
