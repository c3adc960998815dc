"""Confidential values of one law each, integrated out of their release."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import pytensor.tensor as pt
from pytensor.tensor.random.op import RandomVariable

from pymc_dp.graphs.declined import Declined
from pymc_dp.graphs.questions import known_shape
from pymc_dp.laws import find_pair, require_pair
from pymc_dp.laws.counted import read_law
from pymc_dp.laws.integrated import Integrated, integrated_release
from pymc_dp.laws.mixture import split_by
from pymc_dp.mechanisms.base import has_continuous_rates

if TYPE_CHECKING:
    from pytensor.tensor.variable import TensorVariable

    from pymc_dp.mechanisms.base import Mechanism


@dataclass(frozen=True)
class Statistic:
    """One confidential statistic of a known law, released as ``factor * statistic + constant``.

    Where it has entries, these and `empty` may be nested tuples of numbers, one for each. What is
    `empty` is a statistic of no records: zero, whatever its law says.
    """

    name: str
    law: RandomVariable
    n_parameters: int
    factor: Any = 1.0
    constant: Any = 0.0
    empty: Any = False


@dataclass(frozen=True)
class Independent(Integrated):
    """Independent statistics of known laws, whose parameters are those of the release's law.

    With `stacked` they are the entries of a vector release, otherwise there is one, of any shape.
    """

    statistics: tuple[Statistic, ...]
    stacked: bool
    elementwise = True

    @property
    def names(self) -> tuple[str, ...]:  # type: ignore[override]
        """See `Integrated`."""
        return tuple(statistic.name for statistic in self.statistics)

    def laws(self, parameters):
        """Return the parameters of each statistic's law."""
        return split_by((s.n_parameters for s in self.statistics), parameters)

    def draw(self, rng, *parameters):
        """See `Integrated.draw`."""
        draws = []
        for statistic, own in zip(self.statistics, self.laws(parameters), strict=True):
            rng, draw = statistic.law(*own, rng=rng, return_next_rng=True)
            draws.append(np.asarray(statistic.factor) * draw + np.asarray(statistic.constant))
            if np.any(statistic.empty):
                draws[-1] = pt.switch(statistic.empty, statistic.constant, draws[-1])
        return rng, pt.stack(draws) if self.stacked else draws[0]

    def standardised(self, value, mechanism, *parameters):
        """For each statistic: its law's parameters, mechanism and value as if factor were 1."""
        count = len(self.statistics)
        for j, (statistic, own) in enumerate(
            zip(self.statistics, self.laws(parameters), strict=True)
        ):
            z = value[..., j] if self.stacked else value
            noise = [entry(p, j, count) if self.stacked else p for p in mechanism.parameters]
            factor = np.asarray(statistic.factor)
            scaled = mechanism.with_parameters(*(p / abs(factor) for p in noise))
            yield statistic, own, scaled, (z - np.asarray(statistic.constant)) / factor

    def logp(self, value, mechanism, *parameters):
        """See `Integrated.logp`."""
        terms = []
        for statistic, own, noise, z in self.standardised(value, mechanism, *parameters):
            term = find_pair(statistic.law, noise).log_marginal(noise, z, *own)
            if np.any(statistic.empty):
                term = pt.switch(statistic.empty, noise.logp(z, 0.0), term)
            terms.append(term - np.log(abs(np.asarray(statistic.factor))))
        return pt.stack(terms, axis=-1) if self.stacked else terms[0]


@dataclass(frozen=True)
class Pieces(Integrated):
    """Independent statistics of several laws, each of some entries of a release.

    `entries` are those of each, in the raveled release, of the given shape.
    """

    statistics: tuple[Independent, ...]
    entries: tuple[tuple[int, ...], ...]
    shape: tuple[int, ...]

    @property
    def names(self) -> tuple[str, ...]:  # type: ignore[override]
        """See `Integrated`."""
        return tuple(name for law in self.statistics for name in law.names)

    def laws(self, parameters):
        """Return the parameters of each law."""
        widths = (law.statistics[0].n_parameters for law in self.statistics)
        return split_by(widths, parameters)

    def draw(self, rng, *parameters):
        """See `Integrated.draw`."""
        value = pt.zeros(int(np.prod(self.shape)))
        for law, entries, own in zip(
            self.statistics, self.entries, self.laws(parameters), strict=True
        ):
            rng, drawn = law.draw(rng, *own)
            value = pt.set_subtensor(value[list(entries)], drawn)
        return rng, value.reshape(self.shape)

    def of_each(self, value, mechanism, *parameters):
        """For each law: its entries of a release, their noise, and the parameters."""
        for law, entries, own in zip(
            self.statistics, self.entries, self.laws(parameters), strict=True
        ):
            noise = (
                pt.broadcast_to(p, self.shape).ravel()[list(entries)] for p in mechanism.parameters
            )
            yield law, value.ravel()[list(entries)], mechanism.with_parameters(*noise), own

    def logp(self, value, mechanism, *parameters):
        """See `Integrated.logp`."""
        found = self.of_each(value, mechanism, *parameters)
        return sum(law.logp(z, noise, *own).sum() for law, z, noise, own in found)


class Law(NamedTuple):
    """The law of a statistic: an op and its parameters."""

    op: Any
    parameters: tuple[TensorVariable, ...]


class Piece(NamedTuple):
    """One law of some entries of a release: factors and constants are vectors."""

    name: str
    law: Law
    entries: np.ndarray
    factor: np.ndarray
    constant: np.ndarray


def pieces_release(
    pieces: Sequence[Piece], release: TensorVariable, mechanism: Mechanism
) -> TensorVariable:
    """Build the release whose entries follow several laws; declined where they have no marginal."""
    laws, parameters = [], []
    for piece in pieces:
        op, own = piece.law
        require_pair(op, mechanism, own)
        require_multiples(release, mechanism, piece.factor, piece.constant)
        numbers = (tuple(x.tolist()) for x in (piece.factor, piece.constant))
        statistic = Statistic(piece.name, op, len(own), *numbers)
        laws.append(Independent((statistic,), stacked=False))
        parameters += [pt.broadcast_to(p, piece.entries.shape) for p in own]
    shape = tuple(int(n or 0) for n in known_shape(release))
    law = Pieces(tuple(laws), tuple(tuple(p.entries.tolist()) for p in pieces), shape)
    return integrated_release(law, mechanism, *parameters)


def require_multiples(release: TensorVariable, mechanism: Mechanism, factor, constant) -> None:
    """Decline noise that is not added, or not scaled, around linear functions of a sum."""
    scaled = np.any(factor != 1.0) and not has_continuous_rates(mechanism)
    if scaled or (np.any(constant != 0.0) and mechanism.rates is None):
        raise Declined(
            f"the release {release.name!r} adds {type(mechanism).__name__} noise to a linear "
            f"function of a sum: release the sum itself"
        )


def entry(parameter, j: int, length: int) -> TensorVariable:
    """Return a parameter of an entry of a vector."""
    return pt.broadcast_to(parameter, (length,))[j]


def independent_release(
    found: Sequence[tuple[Statistic, Sequence[TensorVariable]]],
    mechanism: Mechanism,
    *,
    stacked: bool = False,
) -> TensorVariable:
    """Build the release of independent statistics, each with the parameters of its law.

    With `stacked` it is a vector of them.
    """
    for statistic, _ in found:
        find_pair(statistic.law, mechanism)
    law = Independent(tuple(statistic for statistic, _ in found), stacked)
    return integrated_release(law, mechanism, *(p for _, own in found for p in own))


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
    found = Statistic(f"{name}_confidential", law, len(parameters))
    return independent_release([(found, parameters)], mechanism)
