r"""Records of which nobody knows how many there are: their number is confidential, too.

With a number :math:`n \sim p(n \mid \lambda)` and iid records
:math:`x_1, \dots, x_n \sim f(\cdot \mid \theta)`, noisy numbers and one noisy sum are released. The
density of these is

.. math::

    p(z \mid \lambda, \theta) = \sum_n p(n \mid \lambda) \prod_j \eta(z_j \mid a_j(n)) \,
        p(z_S \mid n, \theta),

where :math:`p(z_S \mid n, \theta)` is that of a noisy :math:`a(n) + b(n) \sum_i h(x_i)`, in closed
form or by inversion, or that of noisy counts of classes. A mean has b(n) = 1/n. The sum goes over
all n that the noise of the published numbers, or the prior where none is published, does not put
below :math:`e^{-45}` of its largest; see `OfUnknownSize.left_out`. Several releases are the factors
:math:`p(z_k \mid z_1, \dots, z_{k-1})`.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
import pytensor.tensor as pt
from pymc.logprob.abstract import _logprob
from pytensor.graph.replace import graph_replace, vectorize_graph
from pytensor.tensor.random.op import RandomVariable
from pytensor.tensor.variable import TensorVariable

from pymc_dp.graphs.declined import Declined
from pymc_dp.graphs.linear import linear_map
from pymc_dp.graphs.questions import known_value, noticed_function
from pymc_dp.laws import find_pair
from pymc_dp.laws.families.closed import sum_of
from pymc_dp.laws.integrated import Integrated
from pymc_dp.laws.inversion.law import log_densities, noise_parts
from pymc_dp.laws.inversion.summand import Summand
from pymc_dp.laws.mixture import split_by
from pymc_dp.laws.unknown_sizes.histogram import Histogram
from pymc_dp.mechanisms.base import Mechanism

_FAR = 20.0  # in log density: of what may be left out


@dataclass(frozen=True, eq=False)
class Entries:
    """The entries of a release, ``constant + slope * sum``, as graphs of the number of records.

    Of entries that no sum is part of, `slope` is None; where these are counts of classes, it is a
    vector. `shape` is that of the release.
    """

    shape: tuple[int, ...]
    size: TensorVariable
    constant: tuple[TensorVariable, ...]
    slope: tuple[TensorVariable | None, ...]

    def at(self, sizes: np.ndarray) -> tuple[list[np.ndarray], list[np.ndarray | None]]:
        """Return the numbers for some sizes."""
        vector = pt.vector(dtype=self.size.dtype)

        def numbers(graph):
            if graph is None:
                return None
            if graph.type.ndim:  # of the counts of classes, whatever their number
                return known_value(graph)
            of_all = vectorize_graph(graph, {self.size: vector})
            with np.errstate(all="ignore"):
                found = noticed_function([vector], of_all)(sizes)
            return np.broadcast_to(found, sizes.shape).astype("float64")

        return [numbers(g) for g in self.constant], [numbers(g) for g in self.slope]

    def is_linear(self, j: int) -> bool:
        """Whether an entry that no sum is part of is linear in the number of records."""
        try:
            return bool(np.isfinite(linear_map(self.constant[j], self.size).data).all())
        except Declined:
            return False

    def of(self, n: TensorVariable, total: TensorVariable) -> list[TensorVariable]:
        """Write the entries for a number of records and their sum."""
        found = []
        for constant, slope in zip(self.constant, self.slope, strict=True):
            times = pt.dot if slope is not None and slope.type.ndim else pt.mul
            entry = constant if slope is None else constant + times(slope, total)
            [entry] = graph_replace([entry], {self.size: n.astype(self.size.dtype)}, strict=False)
            found.append(entry)
        return found

    def values_at(self, k: np.ndarray, total: np.ndarray, numbers) -> np.ndarray:
        """Return the entries for draws of the place of a number of records and of their sum."""
        of_each = [
            constant[k] if slope is None else constant[k] + slope[k] * total
            for constant, slope in zip(*numbers, strict=True)
        ]
        return np.stack(of_each, axis=-1).reshape(k.size, *self.shape)


@dataclass(frozen=True, eq=False)
class Records:
    """The law of a record, and the sum over records that is released.

    Without a `summand` it is that of the records themselves, whose law is known.
    """

    law: RandomVariable
    count: int  # of its parameters
    summand: Summand | None

    @cached_property
    def multiple(self) -> tuple[float, float] | None:
        """The a and b where a x + b is what is summed of each record x; None of other functions."""
        return (1.0, 0.0) if self.summand is None else self.summand.multiple

    def draw(self, rng, n, parameters):
        """Draw the sum of n records."""
        if self.summand is None:
            law, own = sum_of(self.law, pt.maximum(n, 1), *parameters)
            rng, total = law(*own, rng=rng, return_next_rng=True)
            return rng, pt.switch(n > 0, total, 0)
        rng, x = self.law(*parameters, size=(n,), rng=rng, return_next_rng=True)
        return rng, self.summand.at(x).sum()

    def terms(self, sizes, released, parameters):
        """Log density of released entries for each of some numbers of records."""
        terms = [
            self._term(sizes, value, constant, slope, mechanism, parameters)
            for value, mechanism, constant, slope in released
        ]
        return sum(terms)

    def _term(self, sizes, value, constant, slope, mechanism, parameters):
        """Log density of one of them."""
        some = np.maximum(sizes, 1)
        usable = np.isfinite(slope) & (slope != 0) & (sizes > 0)
        # Of no records, or not of their sum for this number of them: noise alone.
        none = np.where(np.isfinite(constant) & ((sizes == 0) | (slope == 0)), 0.0, -np.inf)
        slope, offset = np.where(usable, slope, 1.0), np.where(usable, constant, 0.0)
        z = (value.astype("float64") - offset) / slope
        if self.summand is None:
            noise = mechanism.with_parameters(*(p / abs(slope) for p in mechanism.parameters))
            law, own = sum_of(self.law, pt.constant(some), *parameters)
            found = find_pair(law, noise).log_marginal(noise, z, *own)
        else:
            doubles = [p.astype("float64") for p in parameters]
            b, sd = (part / abs(slope) for part in noise_parts(mechanism))
            found = log_densities(self.law, doubles, some, self.summand, z, b, sd)
        alone = mechanism.logp(value, pt.constant(np.where(np.isfinite(constant), constant, 0.0)))
        return pt.switch(usable, found - np.log(abs(slope)), alone + none)


@dataclass(frozen=True, eq=False)
class OfUnknownSize(Integrated):
    """A release of records of unknown number, given earlier ones.

    Parameters are those of the prior of the number, those of the records' law, and of each earlier
    release its value and the parameters of its noise.
    """

    prior: RandomVariable
    count: int  # of its parameters
    records: Records | Histogram
    sizes: np.ndarray
    entries: tuple[Entries, ...]  # of each release, the earlier ones first
    earlier: tuple[Mechanism, ...]
    published: tuple[TensorVariable | None, ...]
    names: tuple[str, ...]
    by_entry = True

    def cost(self, entries: int) -> dict[str, float]:
        """See `Integrated.cost`."""
        if isinstance(self.records, Histogram):
            return {"histogram of unknown size": self.records.work(self.sizes)}
        if self.records.summand is None:
            return {"unknown size": self.sizes.size}
        return {"inverted sum of unknown size": self.sizes.size}

    def _split(self, parameters):
        """Return the parameters of the number and of a record, and the earlier releases."""
        widths = [self.count, self.records.count]
        widths += [1 + len(m.parameters) for m in self.earlier]
        number, record, *given = split_by(widths, parameters)
        earlier = [
            (value, mechanism.with_parameters(*own))
            for mechanism, (value, *own) in zip(self.earlier, given, strict=True)
        ]
        return number, record, earlier

    @cached_property
    def numbers(self) -> list[tuple[list[np.ndarray], list[np.ndarray | None]]]:
        """The constants and slopes of the entries of each release, for each number of records."""
        return [entries.at(self.sizes) for entries in self.entries]

    def _terms(self, k: int, value, mechanism, record):
        """Log density of the k-th release for each number of records."""
        total: Any = 0.0
        released = []
        constants, slopes = self.numbers[k]
        noise = [pt.broadcast_to(p, value.shape).ravel() for p in mechanism.parameters]
        for j, (constant, slope) in enumerate(zip(constants, slopes, strict=True)):
            z, own = value.ravel()[j], mechanism.with_parameters(*(p[j] for p in noise))
            if slope is None:
                finite = np.isfinite(constant)
                term = own.logp(z, pt.constant(np.where(finite, constant, 0.0)))
                total = total + pt.switch(finite, term, -np.inf)
            else:
                released.append((z, own, constant, slope))
        return total + self.records.terms(self.sizes, released, record) if released else total

    def log_weights(self, number, record, releases):
        """Log of the prior times the densities of some releases, for each number of records."""
        total = log_prior(self.prior, number, pt.constant(self.sizes))
        for k, (value, mechanism) in enumerate(releases):
            total = total + self._terms(k, value, mechanism, record)
        return total

    def logp(self, value, mechanism, *parameters):
        """See `Integrated.logp`."""
        number, record, earlier = self._split(parameters)
        before = self.log_weights(number, record, earlier)
        after = before + self._terms(len(earlier), value, mechanism, record)
        given = pt.logsumexp(before) if earlier else 0.0
        return pt.logsumexp(after) - given

    def log_weights_given(self, value, mechanism, *parameters):
        """Log density of all releases as they are published, for each number of records."""
        number, record, earlier = self._split(parameters)
        if any(v is None for v in self.published):
            raise Declined(f"{self.names[0]!r} cannot be drawn: a release of it is not observed")
        seen = [(v, m) for v, (_, m) in zip(self.published, earlier, strict=True)]
        return self.log_weights(number, record, [*seen, (value, mechanism)])

    def left_out(self, value, mechanism, *parameters):
        """See `Integrated.left_out`: the next numbers are not far below the largest."""
        if not self.names:  # the last of the releases tells of all
            return None
        first, last = self.sizes[0], self.sizes[-1]
        with_next = np.r_[max(first - 1, 0), self.sizes, last + 1]
        number, record, earlier = self._split(parameters)
        wider = replace(self, sizes=with_next)
        weights = wider.log_weights(number, record, [*earlier, (value, mechanism)])
        beyond = weights[-1] if first == 0 else pt.maximum(weights[0], weights[-1])
        what = (
            f"the density sums over {first} to {last} records, {self.names[0]!r}: what was "
            f"released of them is very far from what their prior, or the noise of their number, "
            f"allows"
        )
        return beyond > pt.max(weights[1:-1]) - _FAR, what

    @property
    def summed_in(self) -> int:
        """The place of the release that a sum over records is part of."""
        return next(k for k, e in enumerate(self.entries) if any(s is not None for s in e.slope))

    def summed(self, value, rv):
        """Return the number of records as a variable, the parameters of a record, and the sum.

        The noisy sum, and its noise, as if it were released as it is.
        """
        mechanism, parameters = rv.owner.op.split(rv.owner.inputs)
        number, record, earlier = self._split(parameters)
        _, n = self.prior(*number, rng=pt.random.shared_rng(seed=None), return_next_rng=True)
        n.name, k = self.names[0], self.summed_in
        if k < len(earlier):
            value, mechanism = self.published[k], earlier[k][1]
        entries = self.entries[k]
        [j] = (j for j, slope in enumerate(entries.slope) if slope is not None)
        size = {entries.size: n.astype(entries.size.dtype)}
        both = [entries.constant[j], entries.slope[j]]
        constant, slope = graph_replace(both, size, strict=False)
        slope = pt.switch(pt.neq(slope, 0), slope, 1)  # or the sum is left out, whatever it is
        noise = (pt.broadcast_to(p, entries.shape).ravel()[j] for p in mechanism.parameters)
        alone = mechanism.with_parameters(*(p / pt.abs(slope) for p in noise))
        return n, record, (value.ravel()[j] - constant) / slope, alone

    def draw(self, rng, *parameters):
        """See `Integrated.draw`."""
        number, record, earlier = self._split(parameters)
        if earlier:
            weights = pt.special.softmax(self.log_weights(number, record, earlier))
            rng, k = pt.random.categorical(weights, rng=rng, return_next_rng=True)
            n = pt.constant(self.sizes)[k]
        else:
            rng, n = self.prior(*number, rng=rng, return_next_rng=True)
        rng, total = self.records.draw(rng, n, record)
        entries = self.entries[-1]
        return rng, pt.stack(entries.of(n, total)).reshape(entries.shape)


def log_prior(op: RandomVariable, parameters, sizes: TensorVariable) -> TensorVariable:
    """Log mass of a law of counts at some numbers."""
    _, drawn = op(*parameters, rng=pt.random.shared_rng(seed=None), return_next_rng=True)
    return _logprob(op, (sizes,), *drawn.owner.inputs)
