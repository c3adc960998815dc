"""Confidential values of one law each, integrated out of their release."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import pytensor.tensor as pt
from pytensor.tensor.random.op import RandomVariable

from pymc_dp.graphs.declined import Declined, about
from pymc_dp.graphs.shapes import known_shape
from pymc_dp.laws import draw_by_pair, find_pair, law_names, require_pair
from pymc_dp.laws.counted import read_law
from pymc_dp.laws.integrated import Integrated, confidential, in_results, integrated_release
from pymc_dp.laws.mean_variance import mean_variance
from pymc_dp.laws.mixture import split_by
from pymc_dp.mechanisms.base import has_continuous_rates

if TYPE_CHECKING:
    from pytensor.tensor.variable import TensorVariable

    from pymc_dp.mechanisms.base import Mechanism


@dataclass(frozen=True)
class OneValue:
    """One confidential statistic of a known law, released as ``factor * statistic + constant``.

    Where it has entries, these and `empty` may be nested tuples of numbers, one for each. What is
    `empty` is a statistic of no records: zero, whatever its law says. In results there is what is
    released without the factor and the constant in `public`, if these are others.
    """

    name: str
    law: RandomVariable
    n_parameters: int
    factor: Any = 1.0
    constant: Any = 0.0
    empty: Any = False
    public: tuple[Any, Any] | None = None

    def released(self, drawn: np.ndarray) -> np.ndarray:
        """Return what was released, for draws of the statistic."""
        return np.asarray(self.factor) * drawn + np.asarray(self.constant)

    def shown(self, drawn: np.ndarray) -> np.ndarray:
        """Return what is in results, for draws of the statistic."""
        if self.public is None:
            return drawn
        factor, constant = map(np.asarray, self.public)
        # Equal constants cancel in full.
        return (np.asarray(self.factor) * drawn + (np.asarray(self.constant) - constant)) / factor


@dataclass(frozen=True)
class Independent(Integrated):
    """A statistic of a known law, entry by entry, whose parameters are those of the law."""

    statistic: OneValue
    elementwise = True
    by_entry = True

    @property
    def names(self) -> tuple[str, ...]:  # type: ignore[override]
        """See `Integrated`."""
        return (self.statistic.name,)

    def draw(self, rng, *parameters):
        """See `Integrated.draw`."""
        statistic = self.statistic
        rng, draw = statistic.law(*parameters, rng=rng, return_next_rng=True)
        draw = np.asarray(statistic.factor) * draw + np.asarray(statistic.constant)
        if np.any(statistic.empty):
            draw = pt.switch(np.asarray(statistic.empty), np.asarray(statistic.constant), draw)
        return rng, draw

    def mean_variance(self, *parameters):
        """See `Integrated.mean_variance`."""
        mean, variance = mean_variance(self.statistic.law, *parameters)
        factor, filled = np.asarray(self.statistic.factor), 1.0 - np.asarray(self.statistic.empty)
        constant = np.asarray(self.statistic.constant)
        return filled * factor * mean + constant, filled * factor**2 * variance

    def cost(self, entries: int) -> dict[str, float]:
        """See `Integrated.cost`."""
        return {f"closed form of {law_names([type(self.statistic.law)])}": entries}

    def standardised(self, value, mechanism):
        """Return the mechanism and the value as if factor were 1."""
        factor = np.asarray(self.statistic.factor)
        scaled = mechanism.with_parameters(*(p / abs(factor) for p in mechanism.parameters))
        return scaled, (value - np.asarray(self.statistic.constant)) / factor

    def logp(self, value, mechanism, *parameters):
        """See `Integrated.logp`."""
        statistic = self.statistic
        noise, z = self.standardised(value, mechanism)
        term = find_pair(statistic.law, noise).log_marginal(noise, z, *parameters)
        if np.any(statistic.empty):
            term = pt.switch(np.asarray(statistic.empty), noise.logp(z, 0.0), term)
        return term - np.log(abs(np.asarray(statistic.factor)))

    def drawn(self, value, mechanism, parameters, posterior, rng) -> np.ndarray:
        """Draw the statistic given its release, at each posterior draw."""
        noise, z = self.standardised(value, mechanism)
        pair = find_pair(self.statistic.law, noise)
        columns = z, *noise.parameters, -np.inf, np.inf, *pair.parameters(*parameters)
        drawn = draw_by_pair(pair, columns, known_shape(value), posterior, rng)
        return np.where(self.statistic.empty, 0.0, drawn)

    def in_results(self, drawn, parameters, posterior) -> dict[str, Any]:
        """Return draws of the statistic by name."""
        _, like = self.statistic.law(
            *parameters, rng=pt.random.shared_rng(seed=None), return_next_rng=True
        )
        whole = not like.dtype.startswith("float")
        return in_results(posterior, self.statistic.name, self.statistic.shown(drawn), whole=whole)

    def recovered(self, rv, value, posterior, rng):
        """See `Integrated.recovered`."""
        mechanism, parameters = rv.owner.op.split(rv.owner.inputs)
        drawn = self.drawn(value, mechanism, parameters, posterior, rng)
        return self.in_results(drawn, parameters, posterior)


@dataclass(frozen=True)
class Pieces(Integrated):
    """Independent statistics of several laws, each of some entries of a release.

    `entries` are those of each in the raveled release, of the given shape: numbers, or one number
    of a statistic that is a scalar. `slow` counts those whose density is, see `Pair`.
    """

    statistics: tuple[Independent, ...]
    entries: tuple[tuple[int, ...] | int, ...]
    shape: tuple[int, ...]
    slow: int = 0
    by_entry = True

    @property
    def names(self) -> tuple[str, ...]:  # type: ignore[override]
        """See `Integrated`."""
        return tuple(name for law in self.statistics for name in law.names)

    def cost(self, entries: int) -> dict[str, float]:
        """See `Integrated.cost`."""
        cost = Counter({"quadrature": self.slow} if self.slow else {})
        for law, places in zip(self.statistics, self.entries, strict=True):
            cost.update(law.cost(np.size(places)))
        return dict(cost)

    def laws(self, parameters):
        """Return each law, the places of its entries, and its parameters."""
        widths = (law.statistic.n_parameters for law in self.statistics)
        places = map(np.array, self.entries)
        return zip(self.statistics, places, split_by(widths, parameters), strict=True)

    def of_each(self, value, noise, parameters):
        """Yield (law, places, values, noise, parameters) of each law."""
        noises = [pt.broadcast_to(p, self.shape).ravel() for p in noise.parameters]
        for law, at, own in self.laws(parameters):
            yield law, at, value.ravel()[at], noise.with_parameters(*(p[at] for p in noises)), own

    def draw(self, rng, *parameters):
        """See `Integrated.draw`."""
        value = pt.zeros(int(np.prod(self.shape)))
        for law, at, own in self.laws(parameters):
            rng, drawn = law.draw(rng, *own)
            value = pt.set_subtensor(value[at], drawn)
        return rng, value.reshape(self.shape)

    def mean_variance(self, *parameters):
        """See `Integrated.mean_variance`."""
        found = [pt.zeros(int(np.prod(self.shape))) for _ in range(2)]
        for law, at, own in self.laws(parameters):
            parts = zip(found, law.mean_variance(*own), strict=True)
            found = [pt.set_subtensor(whole[at], part) for whole, part in parts]
        return found[0].reshape(self.shape), found[1].reshape(self.shape)

    def logp(self, value, mechanism, *parameters):
        """See `Integrated.logp`."""
        terms = pt.zeros(int(np.prod(self.shape)))
        for law, at, z, noise, own in self.of_each(value, mechanism, parameters):
            terms = pt.set_subtensor(terms[at], law.logp(z, noise, *own))
        return terms.reshape(self.shape)

    def recovered(self, rv, value, posterior, rng):
        """See `Integrated.recovered`."""
        mechanism, parameters = rv.owner.op.split(rv.owner.inputs)
        found: dict = {}
        released = np.zeros((posterior.sizes["chain"] * posterior.sizes["draw"], *self.shape))
        for law, at, z, noise, own in self.of_each(value, mechanism, parameters):
            drawn = law.drawn(z, noise, own, posterior, rng)
            released.reshape(len(released), -1)[:, at] = law.statistic.released(drawn)
            if at.ndim and drawn[0].size == released[0].size:  # one value stays one
                drawn = drawn.reshape(released.shape)
            found |= law.in_results(drawn, own, posterior)
        if (name := confidential(rv)) in self.names:
            found |= in_results(posterior, name, released)
        return found


class Law(NamedTuple):
    """The law of a statistic: an op and its parameters."""

    op: Any
    parameters: tuple[TensorVariable, ...]


class Piece(NamedTuple):
    """One law of some entries of a release, or of one, with a factor and a constant for each."""

    name: str
    law: Law
    entries: np.ndarray | int
    factor: np.ndarray | float
    constant: np.ndarray | float
    empty: np.ndarray | bool = False  # of no records
    public: tuple[np.ndarray, np.ndarray] | None = None  # see `OneValue`


def pieces_release(
    pieces: Sequence[Piece], release: TensorVariable, mechanism: Mechanism
) -> TensorVariable:
    """Build the release whose entries follow several laws; declined where they have no marginal."""
    laws, parameters, slow = [], [], 0
    for piece in pieces:
        op, own = piece.law
        with about(f"the release {release.name!r}"):
            pair = require_pair(op, mechanism, own)
        slow += np.size(piece.entries) * pair.slow
        require_multiples(release, mechanism, piece.factor, piece.constant)
        numbers = map(frozen, (piece.factor, piece.constant, piece.empty))
        public = piece.public and (frozen(piece.public[0]), frozen(piece.public[1]))
        laws.append(Independent(OneValue(piece.name, op, len(own), *numbers, public)))
        parameters += [pt.broadcast_to(p, np.shape(piece.entries)) for p in own]
    shape = tuple(int(n or 0) for n in known_shape(release))
    if sum(np.size(piece.entries) for piece in pieces) < np.prod(shape):
        raise Declined(f"an entry of the release {release.name!r} is of no records: leave it out")
    entries = tuple(frozen(piece.entries) for piece in pieces)
    found = Pieces(tuple(laws), entries, shape, slow)
    return integrated_release(found, mechanism, *parameters)


def require_multiples(release: TensorVariable, mechanism: Mechanism, factor, constant) -> None:
    """Decline noise that is not added, or not scaled, around linear functions of a sum."""
    changed = np.any(factor != 1.0) or np.any(constant != 0.0)
    scaled = np.any(np.abs(factor) != 1.0)  # noise that is added is symmetric
    if (changed and mechanism.rates is None) or (scaled and not has_continuous_rates(mechanism)):
        raise Declined(
            f"the release {release.name!r} adds {type(mechanism).__name__} noise to a linear "
            f"function of a sum: release the sum itself"
        )


def entry(parameter, j: int, length: int) -> TensorVariable:
    """Return a parameter of an entry of a vector."""
    return pt.broadcast_to(parameter, (length,))[j]


def frozen(numbers) -> Any:
    """Return numbers as what can be hashed: nested tuples, or a number."""

    def of(entries):
        return tuple(map(of, entries)) if isinstance(entries, list) else entries

    return of(np.asarray(numbers).tolist())


def independent_release(
    statistic: OneValue, parameters: Sequence[TensorVariable], mechanism: Mechanism
) -> TensorVariable:
    """Build the release of a statistic, with the parameters of its law."""
    find_pair(statistic.law, mechanism)
    return integrated_release(Independent(statistic), mechanism, *parameters)


def marginal_release_rv(statistic: TensorVariable, mechanism: Mechanism, *, name: str):
    """Build the release of an unregistered ``.dist(...)``, which is integrated out."""
    try:
        law, parameters = read_law(statistic)
        require_pair(law, mechanism, parameters)
    except NotImplementedError as error:
        raise Declined(
            f"{name!r}: {error}. Register the confidential value with the model instead "
            f"(x = pm...('x', ...)) and release x"
        ) from None
    found = OneValue(f"{name}_confidential", law, len(parameters))
    return independent_release(found, parameters, mechanism)
