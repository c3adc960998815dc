r"""Records of which nobody knows how many there are: their number is confidential, too.

With a number :math:`n \sim p(n \mid \lambda)` and iid records
:math:`x_1, \dots, x_n \sim f(\cdot \mid \theta)`, noisy numbers and one noisy sum are released. The
density of these is

.. math::

    p(z \mid \lambda, \theta) = \sum_n p(n \mid \lambda) \prod_j \eta(z_j \mid a_j(n)) \,
        p(z_S \mid n, \theta),

where :math:`p(z_S \mid n, \theta)` is that of a noisy :math:`a(n) + b(n) \sum_i h(x_i)`, in closed
form or by inversion. A mean has b(n) = 1/n. The sum goes over all n that matter: beyond, the noise
of the published numbers, or the prior where none is published, is below :math:`e^{-45}` of its
largest. Several releases are the factors :math:`p(z_k \mid z_1, \dots, z_{k-1})`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytensor
import pytensor.tensor as pt
from pymc.logprob.abstract import _logprob
from pytensor.graph.replace import clone_replace, graph_replace, vectorize_graph
from pytensor.graph.traversal import ancestors
from pytensor.tensor.basic import Join, MakeVector
from pytensor.tensor.elemwise import DimShuffle
from pytensor.tensor.math import Sum
from pytensor.tensor.random.basic import NormalRV, PoissonRV
from pytensor.tensor.random.op import RandomVariable
from pytensor.tensor.shape import Shape_i
from pytensor.tensor.variable import TensorVariable

from pymc_dp.graphs.declined import Declined
from pymc_dp.graphs.linear import linear_map
from pymc_dp.graphs.questions import (
    PLAIN_MODE,
    depends_on,
    is_itself,
    keeps_values,
    known_value,
    lengths,
    nearest_rvs,
    public_data,
    simplified,
)
from pymc_dp.laws import find_pair, is_registered, require_pair
from pymc_dp.laws.group_sums import sum_of
from pymc_dp.laws.integrated import Integrated, integrated_release
from pymc_dp.laws.inversion.breakpoints import Summand, read_summand
from pymc_dp.laws.inversion.quadrature import detail, log_density_of_sums, support
from pymc_dp.laws.inversion.release import noise_parts
from pymc_dp.laws.mixture import split_by
from pymc_dp.laws.one_value import require_multiples
from pymc_dp.laws.sum_law import SUM_LAWS, Change, SumLaw
from pymc_dp.mechanisms.base import Mechanism, has_kink
from pymc_dp.reading.bounds import starting_values
from pymc_dp.reading.cells import stand_in_records
from pymc_dp.reading.columns import column_parameters
from pymc_dp.reading.model import (
    Reading,
    check_transform,
    release_mechanism,
    release_statistic,
    releases_of,
    require_possible,
    size_of,
)

_FALL = 45.0  # of the log of what is left out
_MOST = 100_000  # sizes that are summed over
_MOST_INVERTED = 2_000
_FEWEST = 5  # records whose noisy sum has a smooth density under Laplace noise


@dataclass(frozen=True, eq=False)
class Entries:
    """The entries of a release, ``constant + slope * sum``, as graphs of the number of records.

    Of entries that no sum is part of, `slope` is None. `shape` is that of the release.
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
            of_all = vectorize_graph(graph, {self.size: vector})
            inputs = {"mode": PLAIN_MODE, "on_unused_input": "ignore"}
            with np.errstate(all="ignore"):
                found = pytensor.function([vector], of_all, **inputs)(sizes)
            return np.broadcast_to(found, sizes.shape).astype("float64")

        return [numbers(g) for g in self.constant], [numbers(g) for g in self.slope]

    def of(self, n: TensorVariable, total: TensorVariable) -> list[TensorVariable]:
        """Write the entries for a number of records and their sum."""
        found = []
        for constant, slope in zip(self.constant, self.slope, strict=True):
            entry = constant if slope is None else constant + slope * total
            [entry] = graph_replace([entry], {self.size: n.astype(self.size.dtype)}, strict=False)
            found.append(entry)
        return found


@dataclass(frozen=True, eq=False)
class Records:
    """The law of a record, and the sum over records that is released.

    Without a `summand` it is that of the records themselves, whose law is known.
    """

    law: RandomVariable
    count: int  # of its parameters
    summand: Summand | None
    record: TensorVariable

    def of_sum(self, n, parameters):
        """Return the law of the sum of n records."""
        if isinstance(self.law, NormalRV):
            mu, sigma = parameters
            return self.law, (n * mu, pt.sqrt(n) * sigma)
        if isinstance(self.law, PoissonRV):
            return self.law, (n * parameters[0],)
        return sum_of(self.law, n, *parameters)

    def draw(self, rng, n, parameters):
        """Draw the sum of n records; NaN-free for none."""
        if self.summand is None:
            law, own = self.of_sum(pt.maximum(n, 1), parameters)
            rng, total = law(*own, rng=rng, return_next_rng=True)
            return rng, pt.switch(n > 0, total, 0)
        rng, x = self.law(*parameters, size=(n,), rng=rng, return_next_rng=True)
        flat = clone_replace(self.summand.h, {self.record: x}, rebuild_strict=False)
        return rng, pt.broadcast_to(flat, (n,)).sum()

    def logp(self, sizes, value, constant, slope, mechanism, parameters):
        """Log density of a released entry for each of some numbers of records."""
        some = np.maximum(sizes, 1)
        usable = np.isfinite(slope) & (slope != 0) & (sizes > 0)
        slope, offset = np.where(usable, slope, 1.0), np.where(usable, constant, 0.0)
        z = (value.astype("float64") - offset) / slope
        if self.summand is None:
            noise = mechanism.with_parameters(*(p / abs(slope) for p in mechanism.parameters))
            law, own = self.of_sum(pt.constant(some), parameters)
            found = find_pair(law, noise).log_marginal(noise, z, *own)
        else:
            found = self._inverted(some, z, abs(slope), mechanism, parameters)
        alone = mechanism.logp(value, pt.constant(np.where(np.isfinite(constant), constant, 0.0)))
        none = np.where(np.isfinite(constant) & (sizes == 0), 0.0, -np.inf)
        return pt.switch(usable, found - np.log(abs(slope)), alone + none)

    def _inverted(self, sizes, z, scale, mechanism, parameters):
        n, own_z, laplace, gaussian = (pt.scalar(dtype="float64") for _ in range(4))
        own = [p.astype("float64") for p in parameters]
        _, law = self.law(*own, rng=pt.random.shared_rng(seed=None), return_next_rng=True)
        noise = (x[None] for x in (own_z, laplace, gaussian))
        least = max(int(sizes.min()), 1)
        one = log_density_of_sums(law, n, least, (self.summand,), self.record, *noise)
        b, sd = noise_parts(mechanism)
        columns = {
            n: pt.constant(sizes.astype("float64")),
            own_z: z,
            laplace: b / scale,
            gaussian: sd / scale,
        }
        return vectorize_graph(one, columns)


@dataclass(frozen=True, eq=False)
class OfUnknownSize(Integrated):
    """A release of records of unknown number, given earlier ones.

    Parameters are those of the prior of the number, those of the records' law, and of each earlier
    release its value and the parameters of its noise.
    """

    prior: RandomVariable
    count: int  # of its parameters
    records: Records
    sizes: np.ndarray
    entries: tuple[Entries, ...]  # of each release, the earlier ones first
    earlier: tuple[Mechanism, ...]
    published: tuple[TensorVariable | None, ...]
    names: tuple[str, ...]

    @property
    def rate(self) -> float:  # type: ignore[override]
        """Effective draws a second."""
        if self.records.summand is None:
            return 5_000.0 / (1.0 + self.sizes.size / 100)
        return 250.0 / self.sizes.size

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

    def _terms(self, entries: Entries, value, mechanism, record):
        """Log density of a release for each number of records."""
        total: Any = 0.0
        constants, slopes = entries.at(self.sizes)
        noise = [pt.broadcast_to(p, value.shape).ravel() for p in mechanism.parameters]
        for j, (constant, slope) in enumerate(zip(constants, slopes, strict=True)):
            z, own = value.ravel()[j], mechanism.with_parameters(*(p[j] for p in noise))
            if slope is None:
                finite = np.isfinite(constant)
                term = own.logp(z, pt.constant(np.where(finite, constant, 0.0)))
                total = total + pt.switch(finite, term, -np.inf)
            else:
                total = total + self.records.logp(self.sizes, z, constant, slope, own, record)
        return total

    def log_weights(self, number, record, releases):
        """Log of the prior times the densities of some releases, for each number of records."""
        total = _log_prior(self.prior, number, pt.constant(self.sizes))
        for entries, (value, mechanism) in zip(self.entries, releases, strict=False):
            total = total + self._terms(entries, value, mechanism, record)
        return total

    def logp(self, value, mechanism, *parameters):
        """See `Integrated.logp`."""
        number, record, earlier = self._split(parameters)
        before = self.log_weights(number, record, earlier)
        after = before + self._terms(self.entries[-1], value, mechanism, record)
        given = pt.logsumexp(before) if earlier else 0.0
        return pt.logsumexp(after) - given

    def log_weights_given(self, value, mechanism, *parameters):
        """Log density of all releases as they are published, for each number of records."""
        number, record, earlier = self._split(parameters)
        if any(v is None for v in self.published):
            raise Declined(f"{self.names[0]!r} cannot be drawn: a release of it is not observed")
        seen = [(v, m) for v, (_, m) in zip(self.published, earlier, strict=True)]
        return self.log_weights(number, record, [*seen, (value, mechanism)])

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


@SUM_LAWS.register(order=5)
@dataclass(frozen=True, eq=False)
class UnknownSizes(SumLaw):
    """Records of unknown number: noisy numbers of them, and one noisy sum."""

    reading: Reading
    number: TensorVariable
    rv: TensorVariable
    records: Records
    releases: dict[TensorVariable, Entries]

    of = "(of unknown number)"

    @classmethod
    def named(cls):
        """See `SumLaw.named`."""
        return ""

    @classmethod
    def read(cls, reading, group):
        """See `SumLaw.read`."""
        number, *others = group.records
        if not others or size_of(others[0]) is not number:
            raise Declined  # another law's
        if len(others) > 1:
            names = " and ".join(repr(rv.name) for rv in others)
            raise Declined(f"{names} have the same unknown number: only one vector can have it")
        [rv] = others
        check_transform(reading.model, rv)
        _check_number(number, rv)
        mine = releases_of(reading.model, [number, rv])
        require_possible(mine)
        reader = _Reader(number, rv)
        found = {release: reader.read(release) for release in mine}
        if reader.times > 1:
            raise Declined(
                f"sums over {rv.name!r} are released {reader.times} times, which depend on each "
                f"other: one sum can be released of records of unknown number, beside the number"
            )
        return cls(reading, number, rv, reader.records(), found)

    def describe(self, release):
        """See `SumLaw.describe`."""
        entries = self.releases[release]
        count = sum(slope is None for slope in entries.slope)
        what = [f"the number of {self.rv.name}"] * bool(count)
        what += [f"a sum of {self.rv.name}"] * (count < len(entries.slope))
        return f"{' and '.join(what)}, of unknown number {self.number.name}"

    def latents(self):
        """See `SumLaw.latents`."""
        raise Declined(
            f"the number {self.number.name!r} of the records {self.rv.name!r} is summed over: use "
            f"to='marginal', and dp.recover to draw it"
        )

    def integrated(self):
        """Sum over all numbers of records that matter."""
        number, law = (v.owner.op.dist_params(v.owner) for v in (self.number, self.rv))
        # Small types of numbers would give the densities few digits.
        number = [p.astype("float64" if p.dtype.startswith("float") else "int64") for p in number]
        record = column_parameters(self.rv, 0) if law else []
        change, given = Change(), list[TensorVariable]()
        earlier, published = list[Mechanism](), list[TensorVariable | None]()
        sizes = self._sizes()
        model, last = self.reading.model, list(self.releases)[-1]
        for k, release in enumerate(self.releases):
            mechanism = release_mechanism(release)
            self._require(release, mechanism, record)
            has_sum = any(slope is not None for slope in self.releases[release].slope)
            summed = has_sum and self.records.summand is not None
            if summed and has_kink(mechanism) and sizes[0] < _FEWEST:
                raise Declined(
                    f"there may be fewer than {_FEWEST} records {self.rv.name!r}, of which a sum "
                    f"under the Laplace noise of {release.name!r} has no smooth density: give "
                    f"{self.number.name!r} a prior without such numbers, or use GaussianMechanism"
                )
            of_release = OfUnknownSize(
                self.number.owner.op,
                len(number),
                self.records,
                sizes,
                tuple(self.releases.values())[: k + 1],
                tuple(earlier),
                tuple(published),
                (str(self.number.name),) if release is last else (),
            )
            change.replaced[release] = integrated_release(
                of_release, mechanism, *number, *record, *given
            )
            given += [release, *mechanism.parameters]
            earlier.append(mechanism)
            observed = release in model.observed_RVs
            published.append(model.rvs_to_values[release] if observed else None)
        return change

    def _require(self, release: TensorVariable, mechanism: Mechanism, record) -> None:
        """Decline noise under which a sum has no density here."""
        entries = self.releases[release]
        for constant, slope in zip(entries.constant, entries.slope, strict=True):
            if slope is None:
                continue
            # What depends on the number is neither 0 nor 1 for all.
            known = (known_value(graph, fixed=True) for graph in (slope, constant))
            numbers = [np.nan if value is None else value for value in known]
            require_multiples(release, mechanism, *numbers)
            if self.records.summand is not None:
                noise_parts(mechanism)
            else:
                law, own = self.records.of_sum(pt.constant(10), record)
                require_pair(law, mechanism, own)

    def _sizes(self) -> np.ndarray:
        """Return the numbers of records that matter, given what is published of them."""
        model, number, vector = self.reading.model, self.number, pt.vector(dtype="int64")
        noise: Any = pt.zeros_like(vector, dtype="float64")
        start: list[float] = []
        for release, entries in self.releases.items():
            if release not in model.observed_RVs:
                continue
            [value] = starting_values([model.rvs_to_values[release].ravel()])
            mechanism = release_mechanism(release)
            parameters = [pt.broadcast_to(p, entries.shape).ravel() for p in mechanism.parameters]
            numbers, _ = entries.at(np.arange(2))
            for j in (j for j, slope in enumerate(entries.slope) if slope is None):
                own = mechanism.with_parameters(*(p[j] for p in parameters))
                of_all = vectorize_graph(entries.constant[j], {entries.size: vector})
                noise = noise + own.logp(pt.constant(value[j]), of_all)
                zero, one = numbers[j]
                start.append(float((value[j] - zero) / (one - zero)))
        parameters = number.owner.op.dist_params(number.owner)
        fixed = all(known_value(p) is not None for p in parameters)
        if not start and not fixed:
            raise Declined(
                f"the number {number.name!r} of the records {self.rv.name!r} is not released, and "
                f"its prior has random parameters: release it, or write numbers in its prior"
            )
        # What is published may be far from the prior: what matters lies between them. Where that is
        # too much, a prior of random parameters follows what is published.
        [*known, mean] = starting_values([*parameters, number])
        prior = _log_prior(number.owner.op, [pt.constant(p) for p in known], vector)
        most = _MOST if self.records.summand is None else _MOST_INVERTED
        begin = [*start, float(mean)][0]
        found = [_that_matter(vector, noise + prior, begin, most)]
        if not fixed:
            found = [_that_matter(vector, noise, begin, most), *found]
        if found[0] is None:
            raise Declined(
                f"more than {most:,} numbers {number.name!r} of the records {self.rv.name!r} are "
                f"possible, which are too many to sum over"
            )
        ends = [end for sizes in found if sizes is not None for end in (sizes[0], sizes[-1])]
        if max(ends) - min(ends) > most:
            return found[0]
        return np.arange(min(ends), max(ends) + 1)


def _log_prior(op: RandomVariable, parameters, sizes: TensorVariable) -> TensorVariable:
    """Log mass of a law of counts at some numbers."""
    _, drawn = op(*parameters, rng=pt.random.shared_rng(seed=None), return_next_rng=True)
    return _logprob(op, (sizes,), *drawn.owner.inputs)


def _that_matter(vector, log_density, start: float, most: int) -> np.ndarray | None:
    """Return whole numbers outside of which a log density is far below its largest."""
    function = pytensor.function([vector], log_density, mode=PLAIN_MODE)
    low, high = max(0, math.floor(start) - 8), max(0, math.ceil(start)) + 8
    while high - low <= most:
        sizes = np.arange(low, high + 1)
        density = np.nan_to_num(function(sizes), nan=-np.inf)
        [matter] = np.nonzero(density > max(density.max() - _FALL, -np.finfo("float64").max))
        left = matter.size > 0 and matter[0] > 0
        right = matter.size > 0 and matter[-1] < sizes.size - 1
        if right and (left or low == 0):
            return sizes[matter[0] : matter[-1] + 1]
        width = high - low
        low = low if left else max(0, low - width)
        high = high if right else high + width
    return None


def _check_number(number: TensorVariable, rv: TensorVariable) -> None:
    """Decline a number that is no scalar count of one law, and records that differ by it."""
    op = number.owner.op
    [size] = rv.owner.op.size_param(rv.owner).owner.inputs
    if not is_itself(size, number):
        raise Declined(
            f"the number of the records {rv.name!r} is computed from {number.name!r}: write "
            f"shape={number.name}, and the prior of the number itself"
        )
    if number.type.ndim or not isinstance(op, RandomVariable) or number.dtype.startswith("float"):
        raise Declined(
            f"the number {number.name!r} of the records {rv.name!r} has to be a whole number with "
            f"a prior on counts, pm.Poisson or pm.DiscreteUniform say"
        )
    parameters = rv.owner.op.dist_params(rv.owner)
    if any(not all(p.type.broadcastable) or depends_on(p, number) for p in parameters):
        raise Declined(
            f"records of unknown number, {rv.name!r}, have to be identically distributed, by "
            f"parameters that do not depend on their number {number.name!r}"
        )


class _Reader:
    """Reads releases of a number of records and of one sum over them."""

    def __init__(self, number: TensorVariable, rv: TensorVariable):
        self.number, self.rv = number, rv
        self.size = number.type()
        self.x = rv.type()
        self.times = 0
        self.summed: TensorVariable | None = None

    def read(self, release: TensorVariable) -> Entries:
        """Read a release; refuse by name what is something else."""
        statistic, name = release_statistic(release), release.name
        others = [v for v in nearest_rvs([statistic]) if v not in (self.number, self.rv)]
        if others or public_data([statistic]):
            what = [*others, *public_data([statistic])][0].name
            raise Declined(
                f"the release {name!r} mixes the records {self.rv.name!r} with {what!r}: of "
                f"records of unknown number, their number and a sum can be released"
            )
        given = {self.rv: self.x, self.number: self.size}
        [graph] = simplified([clone_replace(statistic, given, rebuild_strict=False)])
        shape = lengths(statistic)
        try:
            constants, slopes = zip(*map(self._entry, _split(graph)), strict=True)
        except Declined as error:
            raise Declined(
                f"the release {name!r} of the records {self.rv.name!r}: {error}"
            ) from None
        return Entries(shape, self.size, constants, slopes)

    def _entry(self, graph: TensorVariable) -> tuple[TensorVariable, TensorVariable | None]:
        above = list(ancestors([graph]))
        given: dict[Any, Any] = {
            v: self.size.astype(v.dtype)
            for v in above
            if v.owner is not None
            and isinstance(v.owner.op, Shape_i)
            and v.owner.inputs[0] is self.x
        }
        [graph] = graph_replace([graph], given, strict=False) if given else [graph]
        sums = [v for v in ancestors([graph]) if self._is_sum(v)]
        if not sums:
            if self.x in ancestors([graph]):
                raise Declined("it is no function of their number and of a sum over them")
            return graph, None
        total = sums[0].type()
        [reduced] = graph_replace([graph], {sums[0]: total}, strict=False)
        if self.x in ancestors([reduced]):
            raise Declined("it is of several sums over them, or of more than a sum")
        linear_map(reduced.reshape((1,)), total)
        zero, one = (
            graph_replace([reduced], {total: pt.constant(k, dtype=total.dtype)}, strict=False)[0]
            for k in (0, 1)
        )
        self.times += 1
        self.summed = sums[0].owner.inputs[0]
        return zero, one - zero

    def _is_sum(self, variable) -> bool:
        node = variable.owner
        if node is None or not isinstance(node.op, Sum) or node.inputs[0].type.ndim != 1:
            return False
        return self.x in ancestors([variable])

    def records(self) -> Records:
        """Return the law of the records and the sum over them that is released."""
        op, rv = self.rv.owner.op, self.rv
        record = pt.vector("record", dtype="float64")
        count = len(op.dist_params(rv.owner))
        summed = self.summed
        while summed is not None and summed.owner is not None:
            if not keeps_values(summed.owner.op, summed.owner.inputs[0]):
                break
            summed = summed.owner.inputs[0]
        closed = isinstance(op, NormalRV | PoissonRV) or is_registered(sum_of, op)
        if summed is None or (summed is self.x and closed):
            return Records(op, count, None, record)
        if not rv.dtype.startswith("float") or not is_registered(detail, op):
            raise Declined(
                f"the sum over the records {rv.name!r}, of unknown number, has no known law"
            )
        n = 1000
        alike = stand_in_records(n)
        stand_in = alike.type()  # a clone would copy what is drawn
        [flat] = clone_replace([self.summed], {self.x: stand_in}, rebuild_strict=False)
        [entry] = graph_replace([flat.sum()], {stand_in: alike}, strict=False)
        parameters = [p.astype("float64").squeeze() for p in op.dist_params(rv.owner)]
        _, law = op(*parameters, rng=pt.random.shared_rng(seed=None), return_next_rng=True)
        lower, _ = support(law, rv.name)
        positive = lower is not None and known_value(lower) == 0
        summand = read_summand(entry, alike, n, record, column=0, positive=positive)
        return Records(op, count, summand, record)


def _split(graph: TensorVariable) -> Sequence[TensorVariable]:
    """Return the entries of a scalar or of a list."""
    node = graph.owner
    if graph.type.ndim == 0:
        return [graph]
    match node.op if node is not None else None:
        case MakeVector():
            return node.inputs
        case Join():
            return [entry for part in node.inputs[1:] for entry in _split(part)]
        case DimShuffle(is_expand_dims=True) if graph.type.ndim == 1:
            return [node.inputs[0]]
        case op if node is not None and keeps_values(op, node.inputs[0]):
            return [entry.astype(graph.dtype) for entry in _split(node.inputs[0])]
    raise Declined("write what is released as a scalar or as a list, pt.stack([...])")
