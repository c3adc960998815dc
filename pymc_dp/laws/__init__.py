"""Laws of confidential values, and the abilities of each.

A law is the op of a PyMC random variable. A module registers the abilities of a law: functions are
dispatched on the op. Modules of this package are imported by `load`; those of others may register,
too.

=================================  ============================================================
`register_pair`, `VALUE_LAWS`      a value of the law is integrated out of its release, under one
                                   mechanism or under most, and drawn given the release
`tilting.log_tilted_mass`          the marginal of such a value under Laplace noise
`count_sums.register_counts`       counts, also in mixtures and tables, under log-concave noise
`counts.records.read_cells`        records with finitely many values become their counts
`transport.transport`              records move along with the parameters
`tails.log_tails`                  records far out in an upper tail move, too, with
`tails.quantile`                   the quantiles of that tail
`mean_variance.mean_variance`      latent variables behind a release get suitable coordinates
`families.closed.sum_of`           the law of a sum over records of one law; it needs a pair
`sums.FAMILIES`                    any other law of sums over the records of one variable
`sum_law.LAWS`                     any other law of what was released of records
=================================  ============================================================

Plugins have abilities of their own, `plugins.inversion.quadrature.detail` say: the number of panels
that a smooth density needs.

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
from pymc_dp.graphs.declined import Declined, nearest
from pymc_dp.graphs.draws import Given, as_row, per_draw
from pymc_dp.graphs.registry import Registry, load
from pymc_dp.kernels import key_of, njit
from pymc_dp.mechanisms.base import Mechanism


@dataclass(frozen=True)
class Pair:
    """The marginal and the exact draw of a statistic with one law under one mechanism.

    Attributes
    ----------
    log_marginal : callable
        ``(mechanism, value, *law_parameters)`` to the log marginal density of the release, as a
        PyTensor graph. Law parameters are those of the RV op.
    draw : callable
        numba function ``(rng, z, *noise, lo, hi, *parameters)`` to an exact draw of the statistic
        given the release z, cut to [lo, hi]; `noise` are the parameters of the mechanism.
    examples : tuple of tuple of float
        Law parameters that the conformance tests run on.
    require : callable
        Raises NotImplementedError for law parameters that the pair does not cover.
    parameters : callable
        Maps the law's parameters to those that `draw` takes, as graphs.
    slow : bool
        Whether the marginal density is a quadrature: that of the general rule is asked first.
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
"""Pairs of one law and one mechanism; these are asked before `VALUE_LAWS`."""
VALUE_LAWS: Registry[type, Callable[[Any, Mechanism], Pair]] = Registry()
"""By law, the function that builds the pair from the op and a mechanism, or declines it."""
GENERAL_PAIRS: Registry[str, Callable[[Any, Mechanism], Pair]] = Registry()
"""Functions that build the pair of any law and mechanism, or decline it; these are asked last."""


def register_pair(pair: Pair) -> Pair:
    """Register a tractable pair of a law and a mechanism."""
    return PAIRS.add(pair, (pair.law, pair.mechanism))


def find_pair(law: Op, mechanism: Mechanism, *, closed: bool = False) -> Pair:
    """Return the pair of a law and a mechanism; the error names the pairs that there are.

    With `closed` it is one that is made for them, none of `GENERAL_PAIRS`.
    """
    for (law_type, mechanism_type), pair in PAIRS.items():
        if isinstance(law, law_type) and type(mechanism) is mechanism_type:
            if pair.slow and not closed:
                break  # the general rule takes all parameters
            return pair
    builders = [VALUE_LAWS[type(law)]] if type(law) in VALUE_LAWS else []
    reasons: list[Exception] = []
    for build in (*builders, *([] if closed else GENERAL_PAIRS.values())):
        try:
            return build(law, mechanism)
        except Declined as reason:
            reasons.append(reason)
    if builders:
        raise nearest(reasons)
    supported = ", ".join(
        f"{_law_name(law_type)} under {mechanism_type.__name__}"
        for law_type, mechanism_type in PAIRS
        if law_type not in VALUE_LAWS
    )
    families = law_names(t for t in VALUE_LAWS if t.__name__.endswith("RV"))
    raise Declined(
        f"a {_law_name(type(law))} statistic under {type(mechanism).__name__} has no marginal "
        f"here; there is one for: {supported}; {families} and mixtures of these under every "
        f"mechanism with log-concave noise"
    )


def require_pair(law: Op, mechanism: Mechanism, parameters, *, closed: bool = False) -> Pair:
    """Return the pair of a law and a mechanism, and check that it covers the law parameters."""
    pair = find_pair(law, mechanism, closed=closed)
    pair.require(*parameters)
    return pair


def row_piece(draw: Callable[..., float], width: int) -> Piece:
    """Return the loop of `row_sampler`, with its key."""
    sampler = row_sampler(draw, width)
    return Piece(sampler, key_of(sampler))


@cache
def row_sampler(draw: Callable[..., float], width: int) -> Callable:
    """Compile a loop of draws ``(rng, rows)``: each of `width` rows has one argument of `draw`."""

    @njit(cache=True, nogil=True)
    def sample_rows(rng, rows):
        out = np.empty(rows.shape[1])
        for i in range(out.size):
            out[i] = draw(rng, *to_fixed_tuple(rows[:, i], width))
        return out

    return sample_rows


def draw_by_pair(
    pair: Pair, columns, shape, posterior, rng, fixed: Given = MappingProxyType({})
) -> np.ndarray:
    """Draw a statistic of this shape given its release, at each posterior draw.

    `columns` are graphs of the arguments of ``pair.draw`` after its generator. `fixed` is passed on
    to `per_draw`.
    """
    rows = per_draw(posterior, as_row(*columns), fixed)
    shape = len(rows), *shape
    rows = np.ascontiguousarray(np.moveaxis(rows, 1, 0).reshape(rows.shape[1], -1))
    return row_sampler(pair.draw, len(rows))(rng, rows).reshape(shape)


def is_registered(ability: Any, op: Op) -> bool:
    """Whether an ability, a function dispatched on the op, is registered for a law."""
    return ability.dispatch(type(op)) is not ability.dispatch(object)


def law_names(laws: Iterable[type]) -> str:
    """Return the names of laws, or of the registry of an ability, for an error."""
    return ", ".join(_law_name(law) for law in laws if law is not object)


def _law_name(law: type) -> str:
    shown = getattr(law, "_print_name", ("Unknown",))[0]
    if issubclass(law, SymbolicRandomVariable) and shown != "Unknown":
        return str(shown)  # users write pm.Name, which may differ from the name of the class
    return law.__name__.removesuffix("RV")


load(__name__)
