"""Laws of a confidential statistic, paired with the mechanisms under which they are tractable.

A pair (law, mechanism) knows the marginal density of a release with the statistic integrated
out, and an exact draw of the statistic given the release. To add one, write a module that calls
`register_pair`; nothing else changes.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache

import numpy as np
from numba import njit
from pytensor.graph.op import Op
from pytensor.tensor.variable import TensorVariable

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
        numba function ``(rng, z, noise, lo, hi, *law_parameters)`` to an exact draw of the
        statistic given the release, cut to [lo, hi].
    examples : tuple of tuple of float
        Law parameters that the conformance tests run on.
    require : callable
        Raises NotImplementedError for law parameters that the pair does not cover.
    """

    law: type[Op]
    mechanism: type[Mechanism]
    log_marginal: Callable[..., TensorVariable]
    draw: Callable[..., float]
    examples: tuple[tuple[float, ...], ...]
    require: Callable[..., None] = lambda *law_parameters: None


_PAIRS: dict[tuple[type[Op], type[Mechanism]], Pair] = {}


def register_pair(pair: Pair) -> Pair:
    """Register a tractable pair of a law and a mechanism."""
    _PAIRS[pair.law, pair.mechanism] = pair
    return pair


def registered_pairs() -> list[Pair]:
    """Return every registered pair."""
    return list(_PAIRS.values())


def find_pair(law: Op, mechanism: Mechanism) -> Pair:
    """Look a pair up; the error names what is supported."""
    for (law_type, mechanism_type), pair in _PAIRS.items():
        if isinstance(law, law_type) and type(mechanism) is mechanism_type:
            return pair
    supported = ", ".join(
        f"{_law_name(law_type)} under {mechanism_type.__name__}"
        for law_type, mechanism_type in _PAIRS
    )
    raise NotImplementedError(
        f"a {_law_name(type(law))} statistic under {type(mechanism).__name__} has no marginal "
        f"in closed form here; there is one for: {supported}"
    )


def require_pair(law: Op, mechanism: Mechanism, parameters) -> Pair:
    """Look a pair up and check that it covers these law parameters."""
    pair = find_pair(law, mechanism)
    pair.require(*parameters)
    return pair


@cache
def row_sampler(draw: Callable[..., float], n_parameters: int) -> Callable:
    """Compile a loop of draws: ``(rng, rows)``, rows z, noise, lo, hi and the law's parameters."""

    @njit(nogil=True)
    def one_parameter(rng, rows):
        out = np.empty(rows.shape[1])
        for i in range(out.size):
            out[i] = draw(rng, rows[0, i], rows[1, i], rows[2, i], rows[3, i], rows[4, i])
        return out

    @njit(nogil=True)
    def two_parameters(rng, rows):
        out = np.empty(rows.shape[1])
        for i in range(out.size):
            out[i] = draw(
                rng, rows[0, i], rows[1, i], rows[2, i], rows[3, i], rows[4, i], rows[5, i]
            )
        return out

    return one_parameter if n_parameters == 1 else two_parameters


def _law_name(law: type[Op]) -> str:
    return law.__name__.removesuffix("RV")


from pymc_dp.laws import gamma, normal, poisson  # noqa: E402, F401 (register themselves)
