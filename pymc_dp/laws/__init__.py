"""Laws of confidential values, and what is known of each.

A law is what PyMC has, the op of a random variable. A module of this package, which is found by
itself, or of another registers what it knows of one; functions are dispatched on the op.

=================================  ============================================================
`register_pair`, `LAWS`             a value of the law is integrated out of its release under a
                                   mechanism or most of them, and drawn given it
`tilting.log_tilted_mass`          the marginal of such a value under Laplace noise
`count_sums.register_counts`       counts, also in mixtures and tables, under log-concave noise
`counts.records.read_cells`        records with finitely many values become their counts
`inversion.quadrature.detail`      sums over records are integrated out: the density is smooth
                                   (others are looked at, see `inversion.readable`)
`moments.columns.scipy_law`        covariates of a regression by the central limit theorem
`transport.transport`              records move along with the parameters
`tails.log_tails`, `.quantile`     so do records far out in an upper tail
`mean_variance.mean_variance`      latent variables behind it are moved in suitable coordinates
`families.closed.sum_of`           sums over records of one law have a law, too
`sums.FAMILIES`                    a law of its own of sums over records of one variable
`sum_law.LAWS`                     a law of its own of whatever was released of records
=================================  ============================================================

A pair (law, mechanism) knows the marginal density of a release with the statistic integrated
out, and an exact draw of the statistic given the release.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import cache
from types import MappingProxyType
from typing import Any

import numpy as np
from numba.np.unsafe.ndarray import to_fixed_tuple
from pymc.distributions.distribution import SymbolicRandomVariable
from pytensor.graph.op import Op
from pytensor.tensor.variable import TensorVariable

from pymc_dp.graphs.compiled import Piece
from pymc_dp.graphs.declined import Declined
from pymc_dp.graphs.draws import Given, as_row, per_draw
from pymc_dp.graphs.registry import Registry, load
from pymc_dp.kernels import key_of, njit
from pymc_dp.mechanisms.base import Mechanism


@dataclass(frozen=True)
class Pair:
    """What is known of a statistic with one law under one mechanism.

    Attributes
    ----------
    log_marginal : callable
        ``(mechanism, value, *law_parameters)`` to the log marginal density of the release, as a
        PyTensor graph. Law parameters are those of the RV op.
    draw : callable
        numba function ``(rng, z, *noise, lo, hi, *parameters)`` to an exact draw of the statistic
        given the release, cut to [lo, hi]; `noise` are the mechanism's parameters.
    examples : tuple of tuple of float
        Law parameters that the conformance tests run on.
    require : callable
        Raises NotImplementedError for law parameters that the pair does not cover.
    parameters : callable
        Maps the law's parameters to those that `draw` takes, as graphs.
    slow : bool
        Whether its density is a quadrature.
    """

    law: type
    mechanism: type[Mechanism]
    log_marginal: Callable[..., TensorVariable]
    draw: Callable[..., float]
    examples: tuple[tuple[float, ...], ...]
    require: Callable[..., None] = lambda *law_parameters: None
    parameters: Callable[..., Sequence] = lambda *law_parameters: law_parameters
    slow: bool = False


PAIRS: Registry[tuple[type[Op], type[Mechanism]], Pair] = Registry()
"""Pairs that have a closed form."""
LAWS: Registry[type, Callable[[Any, Mechanism], Pair]] = Registry()
"""Laws whose pair with most mechanisms is built from the law's op and the mechanism.

What it does not cover is declined. A pair of `PAIRS` goes first.
"""


def register_pair(pair: Pair) -> Pair:
    """Register a tractable pair of a law and a mechanism."""
    return PAIRS.add(pair, (pair.law, pair.mechanism))


def find_pair(law: Op, mechanism: Mechanism) -> Pair:
    """Look a pair up; the error names what is supported."""
    for (law_type, mechanism_type), pair in PAIRS.items():
        if isinstance(law, law_type) and type(mechanism) is mechanism_type:
            return pair
    if type(law) in LAWS:
        return LAWS[type(law)](law, mechanism)
    supported = ", ".join(
        f"{_law_name(law_type)} under {mechanism_type.__name__}"
        for law_type, mechanism_type in PAIRS
        if law_type not in LAWS
    )
    families = law_names(t for t in LAWS if t.__name__.endswith("RV"))
    raise Declined(
        f"a {_law_name(type(law))} statistic under {type(mechanism).__name__} has no marginal "
        f"here; there is one for: {supported}; {families} and mixtures of these under every "
        f"mechanism with log-concave noise"
    )


def require_pair(law: Op, mechanism: Mechanism, parameters) -> Pair:
    """Look a pair up and check that it covers these law parameters."""
    pair = find_pair(law, mechanism)
    pair.require(*parameters)
    return pair


def row_piece(draw: Callable[..., float], width: int) -> Piece:
    """Return the loop of `row_sampler`, with its key."""
    sampler = row_sampler(draw, width)
    return Piece(sampler, key_of(sampler))


@cache
def row_sampler(draw: Callable[..., float], width: int) -> Callable:
    """Compile a loop of draws: ``(rng, rows)``, `width` rows with what `draw` takes after rng."""

    @njit(cache=True, nogil=True)
    def sample_rows(rng, rows):
        out = np.empty(rows.shape[1])
        for i in range(out.size):
            out[i] = draw(rng, *to_fixed_tuple(rows[:, i], width))
        return out

    return sample_rows


def draw_by_pair(
    pair: Pair, columns, shape, posterior, rng, given: Given = MappingProxyType({})
) -> np.ndarray:
    """Draw a statistic of this shape given its release, at each posterior draw.

    `columns` are graphs of what ``pair.draw`` takes after its generator; see `per_draw` of `given`.
    """
    rows = per_draw(posterior, as_row(*columns), given)
    shape = len(rows), *shape
    rows = np.ascontiguousarray(np.moveaxis(rows, 1, 0).reshape(rows.shape[1], -1))
    return row_sampler(pair.draw, len(rows))(rng, rows).reshape(shape)


def is_registered(ability: Any, op: Op) -> bool:
    """Whether a law has an ability, a function dispatched on its op, of its own."""
    return ability.dispatch(type(op)) is not ability.dispatch(object)


def law_names(laws: Iterable[type]) -> str:
    """Name laws, those that are registered with an ability perhaps, as an error does."""
    return ", ".join(_law_name(law) for law in laws if law is not object)


def _law_name(law: type) -> str:
    shown = getattr(law, "_print_name", ("Unknown",))[0]
    if issubclass(law, SymbolicRandomVariable) and shown != "Unknown":
        return str(shown)  # some classes have other names than what users write
    return law.__name__.removesuffix("RV")


load(__name__)
