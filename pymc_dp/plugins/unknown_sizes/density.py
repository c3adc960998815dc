r"""Records of which nobody knows how many there are: their number is confidential, too.

Group j has a number :math:`n_j \sim p(n \mid \lambda_j)` of iid records
:math:`x_{ij} \sim f(\cdot \mid \theta_j)`. Noisy numbers and one noisy sum over each group are
released. The density of what is released of a group is

.. math::

    p(z \mid \lambda, \theta) = \sum_n p(n \mid \lambda) \prod_k \eta(z_k \mid a_k(n)) \,
        p(z_S \mid n, \theta),

where :math:`p(z_S \mid n, \theta)` is that of a noisy :math:`a(n) + b(n) \sum_i h(x_i)`, in closed
form or by inversion, or that of noisy counts of classes. A mean has b(n) = 1/n. Where b is constant
and a linear, one inversion does for all n. The sum goes over all n that the noise of the published
numbers, or the prior where none is published, does not put below :math:`e^{-45}` of its largest;
see `OfUnknownSize.left_out`. Several releases are the factors :math:`p(z_k \mid z_1, \dots,
z_{k-1})`. Numbers that are known are windows of one.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
import pytensor.tensor as pt
from pymc.logprob.abstract import _logprob
from pytensor.graph.replace import graph_replace
from pytensor.tensor.random.op import RandomVariable
from pytensor.tensor.variable import TensorVariable

from pymc_dp.graphs.declined import Declined
from pymc_dp.graphs.draws import per_draw
from pymc_dp.laws import draw_by_pair, find_pair
from pymc_dp.laws.families.closed import sum_of
from pymc_dp.laws.integrated import Integrated, in_results
from pymc_dp.laws.mixture import split_by
from pymc_dp.mechanisms.base import Mechanism
from pymc_dp.plugins.inversion.density import draw_sums
from pymc_dp.plugins.unknown_sizes.entries import Entries
from pymc_dp.plugins.unknown_sizes.histogram import Histogram
from pymc_dp.plugins.unknown_sizes.sums import SumsOfRecords

_LOG_NEGLIGIBLE = 20.0  # in log density: numbers this far below the likeliest may be left out
# Numbers on each side of the likeliest that proposals consider, and how they crowd around it.
_COARSE, _CROWDED = 16, 2.2


class Windows(NamedTuple):
    """The numbers of records of each group that matter.

    Attributes
    ----------
    first, last : the first and the last.
    likely : about the likeliest; None where it is not known.
    chosen, times : for each group some of the numbers, and for how many each of them stands; None
        where all numbers are considered.
    """

    first: np.ndarray
    last: np.ndarray
    likely: np.ndarray | None = None
    chosen: np.ndarray | None = None
    times: np.ndarray | None = None

    @property
    def sizes(self) -> np.ndarray:
        """The numbers, as many for each group."""
        if self.chosen is not None:
            return self.chosen
        return self.first[:, None] + np.arange((self.last - self.first).max() + 1)

    @property
    def within(self) -> np.ndarray:
        """Which of `sizes` are in the window."""
        return self.sizes <= self.last[:, None] if self.times is None else self.times > 0

    @property
    def wider(self) -> Windows:
        """With the next numbers on both sides."""
        return Windows(np.maximum(self.first - 1, 0), self.last + 1)

    @property
    def coarse(self) -> Windows:
        """Some of the numbers, most of them near the likeliest ones; all if they are few."""
        if (self.last - self.first).max() <= 2 * _COARSE:
            return self
        first, last = self.first[:, None], self.last[:, None]
        center = (first + last) / 2 if self.likely is None else self.likely[:, None]
        center = np.clip(center, first, last)
        apart = np.linspace(-1.0, 1.0, 2 * _COARSE + 1)
        side = np.where(apart < 0, center - first, last - center)
        sizes = np.round(center + side * np.sign(apart) * abs(apart) ** _CROWDED).astype(int)
        # By the trapezoid rule and half of both ends, the sum of a linear function is exact.
        half = np.diff(sizes, axis=1) / 2
        before, after = [(0, 0), (1, 0)], [(0, 0), (0, 1)]
        times = np.pad(half, before, constant_values=0.5) + np.pad(half, after, constant_values=0.5)
        used = times.any(axis=0)
        return self._replace(chosen=sizes[:, used], times=times[:, used])


class Part(NamedTuple):
    """How some sums are shown in results: ``(sum - number * added) / factor``."""

    place: np.ndarray
    factor: float = 1.0
    added: float = 0.0


@dataclass(frozen=True, eq=False)
class OfUnknownSize(Integrated):
    """A release of records of unknown number, given earlier ones.

    Parameters are those of the prior of the numbers, those of the records' law where sums of them
    are released, and of each earlier release its value and the parameters of its noise. The first
    two are of each group.

    Attributes
    ----------
    prior : the law of the numbers; None where they are known.
    shown : by its name in results, some of the sums, or the index of a release whose statistic is
        shown.
    """

    prior: RandomVariable | None
    count: int  # of its parameters
    shape: tuple[int, ...]  # of the numbers
    records: SumsOfRecords | Histogram
    windows: Windows
    entries: tuple[Entries, ...]  # of each release, the earlier ones first
    earlier: tuple[Mechanism, ...]
    published: tuple[TensorVariable | None, ...]
    number: str | None
    shown: dict[str, Part | int]
    by_entry = True

    @property
    def by_inversion(self) -> bool:  # type: ignore[override]
        """See `Integrated`."""
        return self.records.summand is not None and self._are_first_sums

    @property
    def coarse(self) -> OfUnknownSize:
        """See `Integrated`: inversion takes all numbers, so that it is left as it is."""
        windows, by_class = self.windows.coarse, isinstance(self.records, Histogram)
        if windows is self.windows or by_class:
            return self
        inverted = self.records.summand is not None and self.is_summed
        return self if inverted and not self.by_inversion else replace(self, windows=windows)

    @property
    def names(self) -> tuple[str, ...]:  # type: ignore[override]
        """See `Integrated`."""
        return (self.number, *self.shown) if self.number else tuple(self.shown)

    def cost(self, entries: int) -> dict[str, float]:
        """See `Integrated.cost`."""
        if isinstance(self.records, Histogram):
            return {"histogram of unknown size": self.records.work(self.windows.sizes[0])}
        if self.records.summand is None:
            return {"unknown size": self.windows.sizes.size}
        name = self.records.summand.priced_as or "inverted sum of unknown size"
        return {name: len(self.windows.first)}

    def split(self, parameters):
        """Return the parameters of the number and of a record, and the earlier releases."""
        widths = [self.count, self.records.count * self.is_summed]
        widths += [1 + len(m.parameters) for m in self.earlier]
        number, record, *releases = split_by(widths, parameters)
        earlier = [
            (value, mechanism.with_parameters(*noise))
            for mechanism, (value, *noise) in zip(self.earlier, releases, strict=True)
        ]
        return number, record, earlier

    @property
    def is_summed(self) -> bool:
        """Whether a sum is part of this release or of an earlier one."""
        return any(entries.summed.any() for entries in self.entries)

    @property
    def elementwise(self) -> bool:  # type: ignore[override]
        """See `Integrated`: whether each release has one entry of each group."""
        every = np.arange(len(self.windows.first))
        return not isinstance(self.records, Histogram) and all(
            entries.shape == every.shape and np.array_equal(entries.group, every)
            for entries in self.entries
        )

    @property
    def _are_first_sums(self) -> bool:
        """Whether each entry has a sum of a group of its own, of which no other sum is released."""
        *earlier, last = self.entries
        groups = np.concatenate([last.group, *(e.group[e.summed] for e in earlier)])
        first, counts = np.unique(groups, return_counts=True)
        return bool(last.summed.all() and (counts[np.isin(first, last.group)] == 1).all())

    @cached_property
    def numbers(self) -> list[tuple[np.ndarray, np.ndarray]]:
        """The constants and slopes of the entries of each release, for each number of records."""
        return [entries.at(self.windows.sizes) for entries in self.entries]

    def log_weights(self, rows: np.ndarray, number, releases):
        """Log of the prior times the densities of released numbers, for some groups.

        It has a column for each number of records. The entries that sums are part of are returned
        beside it.
        """
        sizes, within = self.windows.sizes[rows], self.windows.within[rows]
        total = pt.constant(np.zeros(sizes.shape))
        if self.prior is not None:
            parameters = [p[rows][:, None] for p in number]
            last = np.minimum(sizes, self.windows.last[rows][:, None])
            total = pt.switch(within, log_prior(self.prior, parameters, pt.constant(last)), -np.inf)
        if self.windows.times is not None:
            total = total + np.log(np.maximum(self.windows.times[rows], 1e-300))
        summed = []
        for k, (value, mechanism) in enumerate(releases):
            entries, (constants, slopes) = self.entries[k], self.numbers[k]
            noise = [pt.broadcast_to(p, value.shape).ravel() for p in mechanism.parameters]
            for sums in (False, True):
                chosen = np.flatnonzero(np.isin(entries.group, rows) & (entries.summed == sums))
                if not chosen.size:
                    continue
                at, z = np.searchsorted(rows, entries.group[chosen]), value.ravel()[chosen]
                entry_noise = mechanism.with_parameters(*(p[chosen] for p in noise))
                if sums:
                    maps = constants[chosen], slopes[chosen], entries.place[chosen]
                    summed.append((at, z, entry_noise, *maps))
                    continue
                finite = np.isfinite(constants[chosen])
                columns = (p[:, None] for p in entry_noise.parameters)
                term = entry_noise.with_parameters(*columns).logp(
                    z[:, None], pt.constant(np.where(finite, constants[chosen], 0.0))
                )
                term = pt.switch(finite, term, -np.inf)
                each = np.array_equal(at, np.arange(rows.size))
                total = total + term if each else pt.inc_subtensor(total[at], term)
        return total, summed

    def log_total(self, rows: np.ndarray, weights, summed, record) -> TensorVariable:
        """Log of the sum over numbers of weight times density of the sums, for some groups."""
        sizes, records = self.windows.sizes[rows], self.records
        if isinstance(records, Histogram):
            released = [
                (z[i], noise.with_parameters(*(p[i] for p in noise.parameters)), *numbers)
                for _, z, noise, *of_all in summed
                for i, numbers in enumerate(zip(*of_all, strict=True))
            ]
            terms = records.terms(sizes[0], released, record) if released else 0.0
            return pt.logsumexp(weights + terms, axis=-1)
        total = None
        for at, z, noise, constant, slope, _ in summed:
            parameters = [p[rows[at]] for p in record]
            log_density = records.log_sum(
                weights[at], sizes[at], z, noise, constant, slope, parameters
            )  # fmt: skip
            if np.array_equal(at, np.arange(rows.size)):
                return log_density
            total = pt.logsumexp(weights, axis=-1) if total is None else total
            total = pt.set_subtensor(total[at], log_density)
        return pt.logsumexp(weights, axis=-1) if total is None else total

    def _rows(self, k: int) -> np.ndarray:
        return np.unique(self.entries[k].group)

    def logp(self, value, mechanism, *parameters):
        """See `Integrated.logp`."""
        number, record, earlier = self.split(parameters)
        rows = self._rows(len(earlier))
        after = self.log_weights(rows, number, [*earlier, (value, mechanism)])
        density = self.log_total(rows, *after, record)
        if any(np.isin(entries.group, rows).any() for entries in self.entries[:-1]):
            density = density - self.log_total(
                rows, *self.log_weights(rows, number, earlier), record
            )
        return density if self.elementwise else density.sum()

    def mean_variance(self, *parameters):
        """See `Integrated.mean_variance`: of sums, given the releases of their numbers."""
        if isinstance(self.records, Histogram) or not self._are_first_sums:
            raise Declined
        number, record, earlier = self.split(parameters)
        rows, every = self.entries[-1].group, np.arange(len(self.windows.first))
        weights, _ = self.log_weights(every, number, earlier)
        mean, variance = self.records.mean_variance(record)
        mean, variance = (m[rows][:, None] for m in (mean, variance))
        constants, slopes = (np.nan_to_num(x, posinf=0, neginf=0) for x in self.numbers[-1])
        chance, n = pt.special.softmax(weights[rows], axis=-1), self.windows.sizes[rows]
        means = constants + slopes * n * mean
        total = (chance * means).sum(axis=-1)
        spread = slopes**2 * n * variance + (means - total[:, None]) ** 2
        shape = self.entries[-1].shape
        return total.reshape(shape), (chance * spread).sum(axis=-1).reshape(shape)

    def chances(self, value, mechanism, *parameters) -> tuple[Any, TensorVariable]:
        """Return the probability of each number of records given all releases as published.

        It is the derivative of the log density by the log weight. The entries with sums are
        returned beside it, as by `log_weights`.
        """
        number, record, earlier = self.split(parameters)
        if any(v is None for v in self.published):
            raise Declined(f"{self.names[0]!r} cannot be drawn: a release of it is not observed")
        seen = [(v, m) for v, (_, m) in zip(self.published, earlier, strict=True)]
        return self._chances(number, record, [*seen, (value, mechanism)])

    def _chances(self, number, record, releases):
        every = np.arange(len(self.windows.first))
        weights, summed = self.log_weights(every, number, releases)
        free = weights.type()
        chance = pt.grad(self.log_total(every, free, summed, record).sum(), free)
        return summed, graph_replace([chance], {free: weights}, strict=False)[0]

    def left_out(self, value, mechanism, *parameters):
        """See `Integrated.left_out`: the next numbers are not far below the likeliest."""
        if not self.names or self.prior is None:  # the last of the releases checks for all
            return None
        number, record, earlier = self.split(parameters)
        wider = replace(self, windows=self.windows.wider)
        _, chance = wider._chances(number, record, [*earlier, (value, mechanism)])
        windows, every = wider.windows, np.arange(len(self.windows.first))
        beyond = chance[every, windows.last - windows.first]
        before = pt.switch(self.windows.first > 0, chance[:, 0], 0.0)
        out = pt.maximum(beyond, before) > np.exp(-_LOG_NEGLIGIBLE) * pt.max(chance, axis=-1)
        first, last = self.windows.first.min(), self.windows.last.max()
        message = (
            f"the density sums over {first} to {last} records, {self.names[0]!r}: what was "
            f"released of them is very far from what their prior, or the noise of their number, "
            f"allows"
        )
        return pt.any(out), message

    def draw(self, rng, *parameters):
        """See `Integrated.draw`."""
        number, record, earlier = self.split(parameters)
        first, every = self.windows.first, np.arange(len(self.windows.first))
        if self.prior is None:
            n = pt.constant(first)
        elif earlier:
            _, chance = self._chances(number, record, earlier)
            rng, k = pt.random.categorical(pt.maximum(chance, 0.0), rng=rng, return_next_rng=True)
            n = first + k
        else:
            rng, n = self.prior(*number, size=every.shape, rng=rng, return_next_rng=True)
        total = pt.zeros(self.entries[-1].sums.type.shape)
        if self.is_summed:
            rng, total = self.records.draw(rng, n, record)
        return rng, self.entries[-1].release(n, total)

    def recovered(self, rv, value, posterior, rng):
        """See `Integrated.recovered`."""
        if not self.names:
            return {}  # the last of the releases recovers for all
        mechanism, parameters = rv.owner.op.split(rv.owner.inputs)
        summed, chance = self.chances(value, mechanism, *parameters)
        with np.errstate(divide="ignore"):
            weights = np.log(np.maximum(per_draw(posterior, chance), 0.0))
        # By Gumbel noise the largest is a draw.
        k = np.argmax(weights + rng.gumbel(size=weights.shape), axis=-1)
        n = self.windows.first + k
        results: dict = {}
        if self.number is not None:
            results |= in_results(posterior, self.number, n.reshape(-1, *self.shape))
        if not self.shown:
            return results
        _, record, _ = self.split(parameters)
        sums = np.zeros((len(n), self.entries[0].sums.type.shape[0]))
        for at, z, noise, constant, slope, place in summed:
            numbers = constant[np.arange(at.size), k[:, at]], slope[np.arange(at.size), k[:, at]]
            sums[:, place] = self._totals(
                posterior, rng, n[:, at], *numbers, z, noise, [p[at] for p in record]
            )  # fmt: skip
        for name, shown in self.shown.items():
            if isinstance(shown, Part):
                drawn = (sums[:, shown.place] - n[:, shown.place] * shown.added) / shown.factor
            else:
                entries = self.entries[shown]
                constant, slope = (
                    numbers[np.arange(entries.group.size), k[:, entries.group]]
                    for numbers in self.numbers[shown]
                )
                drawn = (constant + slope * sums[:, entries.place]).reshape(-1, *entries.shape)
            whole = self.records.summand is None and not self.records.law.dtype.startswith("float")
            results |= in_results(posterior, name, drawn, whole=whole)
        return results

    def _totals(self, posterior, rng, n, constant, slope, z, mechanism, record):
        """Draw the sums over records whose numbers were drawn, given their release.

        `n` and what follows have a row for each draw and a column for each group.
        """
        records = self.records
        alone = (n == 0) | (slope == 0) | ~np.isfinite(slope)
        slope, constant = np.where(alone, 1.0, slope), np.where(alone, 0.0, constant)
        times = [pt.vector(dtype="float64", shape=n.shape[1:]) for _ in range(2)]
        fixed = {times[0]: constant, times[1]: slope}
        if records.summand is None:
            numbers = pt.vector(dtype="int64", shape=n.shape[1:])
            noise = mechanism.with_parameters(*(p / pt.abs(times[1]) for p in mechanism.parameters))
            sums, law_parameters = sum_of(records.law, numbers, *record)
            pair = find_pair(sums, noise)
            row = (
                (z - times[0]) / times[1],
                *noise.parameters,
                -np.inf,
                np.inf,
                *pair.parameters(*law_parameters),
            )
            fixed = {numbers: np.maximum(n, 1), **fixed}
            drawn = draw_by_pair(pair, row, n.shape[1:], posterior, rng, fixed)
            return np.where(alone, 0.0, drawn)
        noise = records.summand.noise_parts(mechanism)
        noisy = [(z - times[0]) / times[1], *(part / abs(times[1]) for part in noise)]
        doubles = [p.astype("float64") for p in record]
        return draw_sums(
            self.names[-1], rng, posterior, records.law, doubles, records.summand,
            np.where(alone, 0, n), noisy, fixed,
        )  # fmt: skip


def log_prior(op: RandomVariable, parameters: Sequence, sizes: TensorVariable) -> TensorVariable:
    """Log mass of a law of counts at some numbers."""
    _, drawn = op(*parameters, rng=pt.random.shared_rng(seed=None), return_next_rng=True)
    return _logprob(op, (sizes,), *drawn.owner.inputs)
