"""Sums over whole-number records, of a function with finitely many values."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import reduce
from typing import Any, ClassVar

import numpy as np
import pymc as pm
import pytensor.tensor as pt
import pytensor.tensor.random.basic as ptr
from pymc.logprob.abstract import _logprob

from pymc_dp.graphs.declined import Declined
from pymc_dp.graphs.registry import ability
from pymc_dp.graphs.values import known_value, public_data
from pymc_dp.laws import is_registered, law_names
from pymc_dp.laws.count_sums import Atom, log_constant
from pymc_dp.laws.mixture import MixtureLaw
from pymc_dp.laws.parts import CensoredLaw, Part, TruncatedLaw, of_each
from pymc_dp.mechanisms.base import Mechanism, has_kink
from pymc_dp.plugins.inversion.kernels.lattice import draw_lattice, lattice_release
from pymc_dp.plugins.inversion.ops import ReleaseDensity
from pymc_dp.plugins.inversion.quadrature import noise_parts
from pymc_dp.plugins.inversion.summand import Summand, breakpoints_of

_MAX_VALUES = 5_000  # values of a record, and steps between their smallest and largest contribution
_TINY = (
    1e-290  # tail probabilities below it are computed from the first mass and the ratio of masses
)
_TEST = np.array([1, 2, 3, 5, 10, 1000])


@dataclass(frozen=True, eq=False, kw_only=True)
class Lattice(Summand):
    """What each record of whole numbers contributes to a sum.

    Attributes
    ----------
    first : the smallest value of a record.
    most : the largest one of laws that have an end.
    values : the values of a record, from `first` on, contribute ``origin + step * values``; all
        values beyond contribute as the last one.
    """

    first: int
    most: int
    values: np.ndarray
    step: float
    origin: float
    priced_as: ClassVar[str | None] = "sum of whole numbers"
    inverted: ClassVar[bool] = False

    def masses(self, parts: list[Part]) -> tuple[Any, Any]:
        """Return log masses, and the contributions in steps that have them."""
        mass, k, last = [], [], self.values.size - 1
        for part in parts:
            share = 0.0 if part.share is None else pt.log(part.share.astype("float64"))
            if part.is_atom:
                at = pt.clip(part.law - self.first, 0, last).astype("int64")
                mass.append(pt.atleast_1d(pt.as_tensor(share)))
                k.append(pt.constant(self.values)[at][None])
                continue
            lower, upper = part.cut or (self.first, math.inf)
            endless = upper == math.inf and is_registered(log_tail, part.law.owner.op)
            end = max(self.first + last, lower) if endless else min(self.most, upper)
            x = np.arange(max(self.first, lower), end + 1)
            log_masses = _log_mass(part.law, pt.constant(x))
            if endless:
                log_masses = pt.set_subtensor(log_masses[-1], _log_tail(part.law, x[-1]))
            if part.cut is not None:
                log_masses = log_masses - pt.logsumexp(log_masses)
            mass.append(share + log_masses)
            k.append(pt.constant(self.values[np.minimum(x - self.first, last).astype("int64")]))
        return pt.concatenate(mass), pt.concatenate(k)

    def noise_parts(self, mechanism):
        """See `Summand.noise_parts`: discrete noise, too, see `excess`."""
        return noise_parts(mechanism, whole=True)

    def require(self, records, mechanism, factor, constant):
        """See `Summand.require`: discrete noise does not fill the gaps between whole numbers."""
        multiples = np.r_[self.step, self.origin][:, None] * np.ravel(factor)
        between = np.r_[multiples.ravel(), np.ravel(constant)]
        if mechanism.is_discrete and (abs(between - np.round(between)) > 1e-9).any():
            raise Declined(
                f"what is summed of the records {records.name!r} is no whole number, and "
                f"{type(mechanism).__name__} adds whole numbers: release a sum of whole numbers"
            )

    def draw(self, rng, law, parameters, sizes):
        """See `Summand.draw`."""
        chance, h = self._chances(law, parameters)
        chance = chance / chance.sum(axis=-1, keepdims=True)
        rng, counts = pt.random.multinomial(sizes, chance, rng=rng, return_next_rng=True)
        return rng, (counts * h).sum(axis=-1)

    def mean_variance(self, law, parameters):
        """See `Summand.mean_variance`."""
        chance, h = self._chances(law, parameters)
        mean = (chance * h).sum(axis=-1)
        return mean, (chance * h**2).sum(axis=-1) - mean**2

    def support_point(self, law, parameters):
        """See `Summand.support_point`."""
        mean, _ = self.mean_variance(law, parameters)
        return self.origin + self.step * pt.round((mean - self.origin) / self.step)

    def _chances(self, law, parameters):
        """Return the probabilities of the contributions of a record, and the contributions."""

        def write(parts, n):
            log_mass, k = self.masses(parts)
            return [pt.exp(log_mass), self.origin + self.step * k]

        return of_each(write, law, parameters, np.zeros(()))

    def nodes(self, parts, n, *noisy):
        """See `Summand.nodes`."""
        log_mass, k = self.masses(parts)
        return [log_mass, k + 0.0 * n]  # of each group

    def draw_given(self, rng, law, n, *noisy):
        """See `Summand.draw_given`."""
        z, laplace, gaussian = noisy
        step, origin = self.step, n * self.origin
        noise = (z - origin) / step, laplace / step, gaussian / step
        return origin + step * draw_lattice(rng, *law, n, *noise)

    def log_density(self, parts, n, least, added, log_number, z, laplace, gaussian):
        """See `Summand.log_density`."""
        log_mass, k = self.masses(parts)
        no_cut = pt.zeros_like(k)
        logp, *_ = LatticeDensity()(
            log_mass, k + added, no_cut, n, log_number, z, laplace, gaussian
        )
        return logp - math.log(self.step)

    def in_steps(self, sizes, added, log_number, z, laplace, gaussian):
        """See `Summand.in_steps`: fractions of a step are moved from the sum to the release."""
        added = (self.origin + added) / self.step
        whole = np.round(added)
        between = np.where(abs(added - whole) < 1e-9, 0.0, added - whole)
        numbers = np.asarray(sizes)[:, None] + np.arange(log_number.type.shape[1])
        off = between[:, None] * numbers
        off = off if between.any() else off[:, :1]
        noisy = (
            pt.broadcast_arrays(v / self.step, pt.constant(off))[0] for v in (laplace, gaussian)
        )
        return whole, z / self.step - off, *noisy


class LatticeDensity(ReleaseDensity):
    """As `ReleaseDensity` for masses on whole numbers; see `inversion.kernels.lattice`."""

    __props__ = ()  # type: ignore[assignment]

    def __init__(self):
        super().__init__(0, plain=True, each=False)

    def call(self):
        """See `KernelCall.call`."""
        kernel = lattice_release

        def density(log_weight, h, cut, n, log_number, z, laplace, gaussian):
            logp, by_z, by_node, by_number = kernel(
                log_weight, h, n.item(), log_number, z, laplace, gaussian
            )
            return np.asarray(logp), by_z, by_node, by_number

        return density


def excess(mechanism: Mechanism, value):
    """Return the log ratio of discrete noise to continuous noise with the same rates."""
    if not mechanism.is_discrete:
        return 0.0
    assert mechanism.rates is not None
    lam, tau = mechanism.rates
    scale = (
        math.log(2.0) - pt.log(lam) if has_kink(mechanism) else 0.5 * pt.log(2.0 * math.pi / tau)
    )
    return log_constant(mechanism, value) + scale


def _log_mass(law, x):
    return _logprob(law.owner.op, (x,), *law.owner.inputs)


def _log_tail(law, x):
    """Log of the probability of a value of x or more."""
    op = law.owner.op
    tail, ratio = log_tail(op, x, *op.dist_params(law.owner))
    far = _log_mass(law, pt.constant(x)) - pt.log1p(-pt.minimum(ratio, 0.9))
    return pt.switch(tail > _TINY, pt.log(pt.maximum(tail, _TINY)), far)


@ability
def log_tail(op, x, *parameters):
    """Return the probability of x or more, and the ratio of the mass after x to the mass at x.

    Dispatched on the op of a law of counts without a largest value.
    """
    raise Declined


@log_tail.register
def _tail_of_poisson(op: ptr.PoissonRV, x, mu):
    return (pt.gammainc(float(x), mu) if x > 0 else pt.ones_like(mu)), mu / (x + 1.0)


@log_tail.register
def _tail_of_negative_binomial(op: ptr.NegBinomialRV, x, n, p):
    tail = pt.betainc(float(x), n, 1.0 - p) if x > 0 else pt.ones_like(p)
    return tail, (x + n) / (x + 1.0) * (1.0 - p)


@log_tail.register
def _tail_of_geometric(op: ptr.GeometricRV, x, p):
    return pt.exp(max(x - 1.0, 0.0) * pt.log1p(-p)), 1.0 - p


def _ends(law, parameters, name: str) -> list[tuple[float, float]]:
    """Return the smallest and the largest value of records of this name, of each part of a law."""

    def known(at: int, least: bool = False) -> float:
        value = known_value(pt.as_tensor(parameters[at]))
        if value is None:
            raise Declined(
                f"the largest value of the records {name!r} depends on a parameter: it must be "
                f"known",
                near=1,
            )
        return float(np.min(value) if least else np.max(value))

    match law:
        case MixtureLaw():
            _, by_component = law.split(parameters)
            each = zip(law.components, by_component, strict=True)
            return [ends for component, p in each for ends in _ends(component, p, name)]
        case TruncatedLaw():
            [(first, last)] = _ends(law.law, parameters, name)
            return [(max(first, law.lower), min(last, law.upper))]
        case Atom():
            return [(known(0, least=True), known(0))]
        case ptr.BernoulliRV():
            return [(0.0, 1.0)]
        case ptr.BinomialRV() | ptr.BetaBinomialRV():
            return [(0.0, known(0))]
        case ptr.HyperGeometricRV():
            return [(0.0, known(2))]
        case _ if isinstance(law, type(pm.DiscreteUniform.rv_op)):
            return [(known(0, least=True), known(1))]
        case _ if is_registered(log_tail, law):
            return [(float(isinstance(law, ptr.GeometricRV)), math.inf)]
    follow = law_names([CensoredLaw if isinstance(law, CensoredLaw) else type(law)])
    raise Declined(
        f"the records {name!r} follow {follow}: of whole numbers, there are sums of Bernoulli, "
        f"Binomial, BetaBinomial, Categorical, DiscreteUniform, Geometric, HyperGeometric, "
        f"NegativeBinomial and Poisson records, and of mixtures, zero-inflated, hurdle and "
        f"truncated ones of these",
        near=1,
    )


def on_lattice(summand: Summand, law, parameters, name: str) -> Summand:
    """Return the summand of records of this name, as a `Lattice` if they are whole numbers."""
    if summand.record.dtype.startswith("float"):
        return summand
    if data := public_data([summand.h]):
        raise Declined(
            f"what is summed of the records {name!r} is computed from {data[0].name!r}, which "
            f"pm.set_data may change: write numbers in its place",
            near=2,
        )
    ends = np.array(_ends(law, parameters, name))
    first, last = ends[:, 0].min(), ends[:, 1]
    most = max(last[last < math.inf], default=first)
    end = most if last.max() < math.inf else max(most, _end(summand, first, name))
    if end - first >= _MAX_VALUES:
        raise Declined(f"the records {name!r} have more than {_MAX_VALUES:,} values", near=1)
    values = _at(summand, first + np.arange(end - first + 1.0), name)
    # Equal contributions at the end become one.
    values = values[: max(np.flatnonzero(values != values[-1]), default=-1) + 2]
    step = reduce(_common, abs(np.diff(values)), 0.0) or 1.0
    origin = values[np.argmin(abs(values))]
    whole = np.round((values - origin) / step)
    if not np.ptp(whole) < _MAX_VALUES or abs(origin + step * whole - values).max() > 1e-9 * step:
        raise Declined(
            f"what is summed of the records {name!r} is not whole multiples of a number that is "
            f"not far smaller: round the values",
            near=1,
        )
    return Lattice(
        summand.record, summand.h, first=int(first), most=int(most), values=whole,
        step=float(step), origin=float(origin),
    )  # fmt: skip


def _common(a: float, b: float) -> float:
    """Return the largest number that both are multiples of."""
    top = max(a, b)
    while b > 1e-7 * top:
        a, b = b, a - b * round(a / b)
        b = abs(b)
    return a


def _at(summand: Summand, x: np.ndarray, name: str) -> np.ndarray:
    """Return the contributions of some values of records."""
    try:
        summed = known_value(summand.at(pt.constant(x.astype("int64"))))
    except IndexError:
        raise Declined(f"a table has no entry for a value of the records {name!r}") from None
    if summed is None or not np.isfinite(summed).all():
        why = "has to be known for each value" if summed is None else "is not finite for some value"
        raise Declined(f"what is summed of the records {name!r} {why}", near=1)
    return np.asarray(summed, dtype="float64")


def _end(summand: Summand, first: float, name: str) -> float:
    """Return a value from which on all values contribute the same."""
    endless = Declined(
        f"the sum over the records {name!r}, whose values have no end, has no known law: clip what "
        f"is summed, x.clip(0, 20) say",
        near=1,
    )
    points = [known_value(p) for p in breakpoints_of(summand.h, summand.record, positive=False)]
    finite = [float(np.squeeze(p)) for p in points if p is not None and np.isfinite(p).all()]
    if None in points or not finite:
        raise endless
    end = max(math.floor(max(finite)) + 1.0, first + 1.0)
    if end - first < _MAX_VALUES and np.ptp(_at(summand, end - 1 + _TEST, name)) > 0:
        raise endless
    return end
