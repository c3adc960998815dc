"""Confidential values that follow a known law, entry by entry, integrated out of their release."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import pytensor.tensor as pt
from pymc.distributions.distribution import support_point
from pytensor.graph.replace import graph_replace
from pytensor.tensor.random.op import RandomVariable

from pymc_dp.graphs.declined import Declined, about
from pymc_dp.graphs.shapes import known_shape, lengths
from pymc_dp.graphs.values import is_random, nearest_rvs
from pymc_dp.laws import draw_by_pair, find_pair, law_names, require_pair
from pymc_dp.laws.counted import read_law
from pymc_dp.laws.integrated import Integrated, confidential, in_results, integrated_release
from pymc_dp.laws.mean_variance import mean_variance
from pymc_dp.laws.mixture import split_by
from pymc_dp.laws.of_function import OfFunction, plain, read_function
from pymc_dp.laws.parts import law_of_record
from pymc_dp.mechanisms.base import has_continuous_rates

if TYPE_CHECKING:
    from pytensor.tensor.variable import TensorVariable

    from pymc_dp.mechanisms.base import Mechanism


@dataclass(frozen=True)
class OneValue:
    """One confidential statistic of a known law, released as ``factor * statistic + constant``.

    `factor`, `constant` and `empty` are numbers, or nested tuples with a number for each entry. An
    entry that is `empty` is a statistic of no records: zero, whatever its law says. `public` is the
    factor and constant that are removed from the release for results, where it differs from
    ``(factor, constant)``. `slow` is that of the pair, see `Pair`.
    """

    name: str
    law: RandomVariable
    n_parameters: int
    factor: Any = 1.0
    constant: Any = 0.0
    empty: Any = False
    public: tuple[Any, Any] | None = None
    slow: bool = False

    def released(self, drawn: np.ndarray) -> np.ndarray:
        """Return the released multiple, without noise, for draws of the statistic."""
        return np.asarray(self.factor) * drawn + np.asarray(self.constant)

    def shown(self, drawn: np.ndarray) -> np.ndarray:
        """Return the values that results show, for draws of the statistic."""
        if self.public is None:
            return drawn
        factor, constant = map(np.asarray, self.public)
        # The difference first: equal constants then cancel exactly.
        return (np.asarray(self.factor) * drawn + (np.asarray(self.constant) - constant)) / factor


@dataclass(frozen=True)
class Independent(Integrated):
    """A statistic with independent entries of a known law; the parameters are those of the law."""

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
        closed_form = f"closed form of {law_names([type(self.statistic.law)])}"
        return {"quadrature" if self.statistic.slow else closed_form: entries}

    def standardised(self, value, mechanism):
        """Return mechanism and value of the release of the statistic itself, and log of a slope."""
        factor = np.asarray(self.statistic.factor)
        scaled = mechanism.with_parameters(*(p / abs(factor) for p in mechanism.parameters))
        noise, z, log_slope = plain(scaled, (value - np.asarray(self.statistic.constant)) / factor)
        return noise, z, log_slope + np.log(abs(factor))

    def support_point(self, rv, *parameters):
        """See `Integrated.support_point`."""
        mechanism, _ = rv.owner.op.split(rv.owner.inputs)
        _, drawn = self.draw(pt.random.shared_rng(seed=None), *parameters)
        points = {v: support_point(v) for v in nearest_rvs([drawn])}
        [statistic] = graph_replace([drawn], points)
        return pt.broadcast_to(mechanism.support_point(statistic), rv.shape)

    def logp(self, value, mechanism, *parameters):
        """See `Integrated.logp`."""
        statistic = self.statistic
        noise, z, log_slope = self.standardised(value, mechanism)
        term = find_pair(statistic.law, noise).log_marginal(noise, z, *parameters)
        if np.any(statistic.empty):
            term = pt.switch(np.asarray(statistic.empty), noise.logp(z, 0.0), term)
        return term - log_slope

    def drawn(self, value, mechanism, parameters, posterior, rng) -> np.ndarray:
        """Draw the statistic given its release, at each posterior draw."""
        noise, z, _ = self.standardised(value, mechanism)
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
        if isinstance(mechanism, OfFunction) and self.statistic.name == confidential(rv):
            drawn = mechanism.of_numbers(drawn)
        return self.in_results(drawn, parameters, posterior)


@dataclass(frozen=True)
class Pieces(Integrated):
    """Independent statistics of several laws, each of some entries of a release.

    `entries` are the indices of each statistic in the raveled release of shape `shape`: a tuple, or
    a number for a scalar statistic. `slow` counts the entries whose pair is, see `Pair`.
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
        """Return each law, the indices of its entries, and its parameters."""
        widths = (law.statistic.n_parameters for law in self.statistics)
        places = map(np.array, self.entries)
        return zip(self.statistics, places, split_by(widths, parameters), strict=True)

    def of_each(self, value, noise, parameters):
        """Yield (law, indices of entries, values, noise, parameters) of each law."""
        noises = [pt.broadcast_to(p, self.shape).ravel() for p in noise.parameters]
        for law, places, theta in self.laws(parameters):
            yield (
                law,
                places,
                value.ravel()[places],
                noise.with_parameters(*(p[places] for p in noises)),
                theta,
            )

    def draw(self, rng, *parameters):
        """See `Integrated.draw`."""
        value = pt.zeros(int(np.prod(self.shape)))
        for law, places, theta in self.laws(parameters):
            rng, drawn = law.draw(rng, *theta)
            value = pt.set_subtensor(value[places], drawn)
        return rng, value.reshape(self.shape)

    def mean_variance(self, *parameters):
        """See `Integrated.mean_variance`."""
        moments = [pt.zeros(int(np.prod(self.shape))) for _ in range(2)]
        for law, places, theta in self.laws(parameters):
            parts = zip(moments, law.mean_variance(*theta), strict=True)
            moments = [pt.set_subtensor(whole[places], part) for whole, part in parts]
        return moments[0].reshape(self.shape), moments[1].reshape(self.shape)

    def logp(self, value, mechanism, *parameters):
        """See `Integrated.logp`."""
        terms = pt.zeros(int(np.prod(self.shape)))
        for law, places, z, noise, theta in self.of_each(value, mechanism, parameters):
            terms = pt.set_subtensor(terms[places], law.logp(z, noise, *theta))
        return terms.reshape(self.shape)

    def recovered(self, rv, value, posterior, rng):
        """See `Integrated.recovered`."""
        mechanism, parameters = rv.owner.op.split(rv.owner.inputs)
        results: dict = {}
        released = np.zeros((posterior.sizes["chain"] * posterior.sizes["draw"], *self.shape))
        for law, places, z, noise, theta in self.of_each(value, mechanism, parameters):
            drawn = law.drawn(z, noise, theta, posterior, rng)
            released.reshape(len(released), -1)[:, places] = law.statistic.released(drawn)
            # A law of all entries has the shape of the release; a scalar stays a scalar.
            if places.ndim and drawn[0].size == released[0].size:
                drawn = drawn.reshape(released.shape)
            results |= law.in_results(drawn, theta, posterior)
        if (name := confidential(rv)) in self.names:
            results |= in_results(posterior, name, released)
        return results


class Law(NamedTuple):
    """The law of a statistic: an op and its parameters."""

    op: Any
    parameters: tuple[TensorVariable, ...]


class Piece(NamedTuple):
    """The law of some entries of a release, or of one, with a factor and a constant for each."""

    name: str
    law: Law
    entries: np.ndarray | int
    factor: np.ndarray | float
    constant: np.ndarray | float
    empty: np.ndarray | bool = False  # whether an entry is of no records
    public: tuple[np.ndarray, np.ndarray] | None = None  # see `OneValue`


def pieces_release(
    pieces: Sequence[Piece], release: TensorVariable, mechanism: Mechanism
) -> TensorVariable:
    """Build the release whose entries follow several laws; decline a law without a marginal."""
    laws, parameters, slow = [], [], 0
    for piece in pieces:
        op, theta = piece.law
        with about(f"the release {release.name!r}"):
            pair = require_pair(op, mechanism, theta)
        slow += np.size(piece.entries) * pair.slow
        require_multiples(release, mechanism, piece.factor, piece.constant)
        numbers = map(frozen, (piece.factor, piece.constant, piece.empty))
        public = piece.public and (frozen(piece.public[0]), frozen(piece.public[1]))
        laws.append(Independent(OneValue(piece.name, op, len(theta), *numbers, public)))
        parameters += [pt.broadcast_to(p, np.shape(piece.entries)) for p in theta]
    shape = tuple(int(n or 0) for n in known_shape(release))
    if sum(np.size(piece.entries) for piece in pieces) < np.prod(shape):
        raise Declined(f"an entry of the release {release.name!r} is of no records: leave it out")
    entries = tuple(frozen(piece.entries) for piece in pieces)
    law = Pieces(tuple(laws), entries, shape, slow)
    return integrated_release(law, mechanism, *parameters)


def require_multiples(release: TensorVariable, mechanism: Mechanism, factor, constant) -> None:
    """Decline a linear function of a sum under noise that is not additive, or cannot be scaled."""
    if not is_scaled(mechanism, factor, constant):
        raise Declined(
            f"the release {release.name!r} adds {type(mechanism).__name__} noise to a linear "
            f"function of a sum: release the sum itself"
        )


def is_scaled(mechanism: Mechanism, factor, constant) -> bool:
    """Whether noise of a linear function of a sum is noise of the sum, in other units."""
    changed = np.any(factor != 1.0) or np.any(constant != 0.0)
    scaled = np.any(np.abs(factor) != 1.0)  # additive noise is symmetric: a sign does not matter
    return not (changed and mechanism.rates is None) and not (
        scaled and not has_continuous_rates(mechanism)
    )


def entry(parameter, j: int, length: int) -> TensorVariable:
    """Return entry j of a parameter, broadcast to a vector of this length."""
    return pt.broadcast_to(parameter, (length,))[j]


def frozen(numbers) -> Any:
    """Return numbers as nested tuples, which can be hashed, or as a number."""

    def as_tuple(entries):
        return tuple(map(as_tuple, entries)) if isinstance(entries, list) else entries

    return as_tuple(np.asarray(numbers).tolist())


def independent_release(
    statistic: OneValue, parameters: Sequence[TensorVariable], mechanism: Mechanism
) -> TensorVariable:
    """Build the release of a statistic, with the parameters of its law."""
    statistic = replace(statistic, slow=find_pair(statistic.law, plain(mechanism, 0.0)[0]).slow)
    return integrated_release(Independent(statistic), mechanism, *parameters)


def marginal_release_rv(statistic: TensorVariable, mechanism: Mechanism, *, name: str):
    """Build the release of a ``.dist(...)`` that is in no model: it is integrated out.

    The statistic may be a function of each of its values.
    """
    try:
        if not is_random(statistic):
            [rv] = nearest_rvs([statistic])
            function, further = read_function(statistic, rv)
            statistic, mechanism = rv, OfFunction(mechanism, function, tuple(further))
            mechanism.typical_statistic(0.0)  # declines what is not solved for its argument
        try:
            law, parameters = read_law(statistic)
        except Declined:
            law, parameters = law_of_record(statistic, truncated=True)
            parameters = [pt.broadcast_to(p, lengths(statistic)) for p in parameters]
        require_pair(law, plain(mechanism, 0.0)[0], parameters)
    except NotImplementedError as error:
        raise Declined(
            f"{name!r}: {error}. Register the confidential value with the model instead "
            f"(x = pm...('x', ...)) and release x"
        ) from None
    confidential_value = OneValue(f"{name}_confidential", law, len(parameters))
    return independent_release(confidential_value, parameters, mechanism)
