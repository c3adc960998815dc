"""Numbers of records that are sums over people: of how many rows each has, with few values.

The law of the sum is a convolution power, taken in log space by squaring: nothing cancels or
underflows, however unlikely a number is.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytensor.tensor as pt
from pymc.distributions.distribution import _support_point
from pymc.logprob.abstract import _logprob
from pytensor.gradient import DisconnectedType
from pytensor.graph.basic import Apply
from pytensor.tensor.random.op import RandomVariable
from pytensor.tensor.variable import TensorVariable

from pymc_dp.graphs.declined import Declined, about
from pymc_dp.graphs.values import known_value, nearest_rvs
from pymc_dp.kernels import njit
from pymc_dp.laws.counts.marginal import log_sum
from pymc_dp.laws.kernel_call import KernelCall, doubles
from pymc_dp.laws.parts import of_each
from pymc_dp.plugins.inversion.lattice import Lattice, on_lattice
from pymc_dp.plugins.inversion.readable import readable_law
from pymc_dp.plugins.inversion.summand import read_summand
from pymc_dp.reading.columns import column_parameters
from pymc_dp.reading.record_lengths import record_count

_MAX_NUMBERS = 5_000  # that the sum may have; the time grows with their square
_MAX_VALUES = 60  # of one person


@njit(cache=True, nogil=True, error_model="numpy")
def log_convolved(a, b):
    """Return the log of the convolution of two sequences, given by their logs."""
    out = np.empty(a.size + b.size - 1)
    for i in range(out.size):
        first, last = max(0, i - b.size + 1), min(i, a.size - 1)
        top, total = -math.inf, 0.0
        for j in range(first, last + 1):
            top = max(top, a[j] + b[i - j])
        if top > -math.inf:
            for j in range(first, last + 1):
                total += math.exp(a[j] + b[i - j] - top)
            top += math.log(total)
        out[i] = top
    return out


@njit(cache=True, nogil=True, error_model="numpy")
def log_powers(log_p, times):
    """Return logs of the convolution powers `times` and ``times - 1`` of a sequence."""
    before, square, rest = np.zeros(1), log_p, times - 1
    while rest > 0:
        if rest % 2 == 1:
            before = log_convolved(before, square)
        rest //= 2
        if rest > 0:
            square = log_convolved(square, square)
    return log_convolved(before, log_p), before


class LogPowers(KernelCall):
    """`log_powers`; the first has a gradient, of which the second is a part."""

    __props__ = ("times",)

    def __init__(self, times: int):
        self.times = times

    def make_node(self, log_p):
        """Apply to the log masses of a count."""
        [size] = log_p.type.shape
        lengths = [
            None if size is None else k * (size - 1) + 1 for k in (self.times, self.times - 1)
        ]
        return Apply(
            self, doubles(log_p), [pt.vector(shape=(n,), dtype="float64") for n in lengths]
        )

    def call(self):
        """See `KernelCall.call`."""
        kernel, times = log_powers, self.times

        def powers(log_p):
            return kernel(log_p, times)

        return powers

    def pullback(self, inputs, outputs, cotangents):
        """Return the derivative: each of the `times` counts is equally often k."""
        [log_p], (power, before), (of_power, of_before) = inputs, outputs, cotangents
        if not isinstance(of_before.type, DisconnectedType):
            raise NotImplementedError("no second derivatives")
        slopes = []
        for k in range(log_p.type.shape[0]):
            whole = power[k : k + before.shape[0]]
            possible = pt.gt(whole, -np.inf)
            share = log_p[k] + before - pt.switch(possible, whole, np.inf)
            part = of_power[k : k + before.shape[0]] * pt.exp(share)
            slopes.append(self.times * pt.switch(possible, part, 0.0).sum())
        return [pt.stack(slopes)]


class TotalRV(RandomVariable):
    """The sum over people of independent counts ``first + step * k``, k = 0, 1, ...

    The parameter is the vector of log masses of k, of one person.
    """

    name = "total"
    signature = "(k)->()"
    dtype = "int64"
    _print_name = ("Total", "\\operatorname{Total}")
    __props__ = (*RandomVariable.__props__, "people", "first", "step", "values")

    def __init__(self, people: int, first: int, step: int, values: int):
        self.people, self.first, self.step, self.values = people, first, step, values
        super().__init__()

    @property
    def last(self) -> int:
        """The largest number; `first` is the smallest."""
        return self.first + self.step * self.people * (self.values - 1)

    def rng_fn(self, rng, log_p, size):
        """Draw numbers."""
        p = np.exp(log_p)
        counts = rng.multinomial(self.people, p / p.sum(axis=-1, keepdims=True), size=size)
        return self.first + self.step * (counts @ np.arange(self.values))


@_logprob.register(TotalRV)
def _logprob_of_total(op, values, rng, size, log_p, **kwargs):
    [n] = values
    log_mass, _ = LogPowers(op.people)(pt.specify_shape(log_p.ravel(), (op.values,)))
    k = (n - op.first) // op.step
    inside = (n >= op.first) & (n <= op.last) & pt.eq(op.first + op.step * k, n)
    return pt.switch(inside, log_mass[pt.switch(inside, k, 0).astype("int64")], -np.inf)


@_support_point.register(TotalRV)
def _support_point_of_total(op, rv, rng, size, log_p):
    mean = (pt.special.softmax(log_p, axis=-1) * np.arange(op.values)).sum(axis=-1)
    return op.first + op.step * pt.round(op.people * mean).astype("int64")


def total_of(people: TensorVariable, number: TensorVariable, sums: str) -> TensorVariable:
    """Return a variable with the law of a number, which is a sum over a vector of whole numbers.

    Raises
    ------
    Declined
        Any other number of records of the sums of this name.
    """
    if number.type.ndim or people.dtype.startswith("float") or nearest_rvs([number]) != [people]:
        raise Declined(
            f"the numbers of records of {sums!r} are computed from {people.name!r}: write "
            f"n={people.name} with one number for each sum, and the prior of the numbers itself, "
            f"or one number that is a sum over people, rows.clip(0, 3).sum() say"
        )
    n, name = record_count(people), str(people.name)
    law, inputs = readable_law(people)
    parameters = [p.astype("float64") for p in column_parameters(people, 0, inputs)]
    with about(f"the number of records of {sums!r}"):
        summand, added = read_summand(number, people, n, column=0, positive=True)
        summand = on_lattice(summand, law, parameters, name)
    assert isinstance(summand, Lattice)

    def write(parts, _):
        return [*summand.masses(parts)]

    log_mass, steps = of_each(write, law, parameters, np.zeros(()))
    of_value: Any = known_value(steps)
    if of_value is None:
        raise Declined(f"the values that {name!r} has depend on a parameter: they must be known")
    least = int(of_value.min())
    log_p = pt.stack(
        [
            log_sum(log_mass[np.flatnonzero(of_value == k)]) if k in of_value else -np.inf
            for k in range(least, int(of_value.max()) + 1)
        ]
    )
    values, step = int(np.ptp(of_value)) + 1, summand.step
    first = n * (summand.origin + step * least) + added
    if values > _MAX_VALUES or n * (values - 1) >= _MAX_NUMBERS:
        raise Declined(
            f"the number of records of {sums!r} has {n * (values - 1) + 1:,} values, and each of "
            f"{name!r} {values}: at most {_MAX_NUMBERS:,} and {_MAX_VALUES} are summed over"
        )
    if abs(np.r_[first, step] - np.round([first, step])).max() > 1e-9:
        raise Declined(f"the number of records of {sums!r} is no whole number")
    law_of_total = TotalRV(n, round(first), round(step), values)
    log_p, rng = pt.specify_shape(log_p, (values,)), pt.random.shared_rng(seed=None)
    _, total = law_of_total(log_p, rng=rng, return_next_rng=True)
    total.name = f"{sums}_n"
    return total
