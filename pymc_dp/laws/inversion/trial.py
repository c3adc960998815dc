"""Whether the density of noisy sums is found where they lie: tried before it is called open."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import pytensor.tensor as pt
from pytensor.tensor.variable import TensorVariable
from scipy import stats

from pymc_dp.graphs.declined import Declined
from pymc_dp.graphs.questions import noticed_function
from pymc_dp.kernels.inversion.release import release_plane, sparing_line
from pymc_dp.laws.inversion.breakpoints import Summand
from pymc_dp.laws.inversion.quadrature import (
    FEWEST,
    backward,
    law_of_sums,
    panel_counts,
    statistics,
)

_FAR = np.array([-1e100, 1e100])  # on the real line, to which supports are mapped
_FEW, _SAME = 12, 1e9
_BEYOND = 1.5  # times the values where a model starts
_BULK = 0.8  # of the mass, in which a density is to be found
# Levels of sums (first) and of their noise: a lattice, so that the same is declined every time.
_TRIED = {1: (16, (1, 7)), 2: (12, (1, 5, 7, 11))}


def require_somewhere(found_at: Callable[[float], None]) -> None:
    """Decline what is found neither where the model starts nor beyond: a start may be odd."""
    try:
        found_at(1.0)
    except Declined as reason:
        try:
            found_at(_BEYOND)
        except Declined:
            raise reason from None


def require_found(
    name: str,
    law: TensorVariable,
    n: int,
    summands: Sequence[Summand],
    record: TensorVariable,
    laplace: TensorVariable,
    gaussian: TensorVariable,
) -> None:
    """Decline sums of n records whose noisy density is not found in its bulk.

    Parameters
    ----------
    name : of the records.
    law, summands : of one record, and what it contributes; where the model starts.
    record : the record that stands in the summands.
    laplace, gaussian : vectors, see `inversion.release.noise_parts`.
    """
    dim = len(summands)
    noisy = [pt.tensor(shape=(dim,), dtype="float64") for _ in range(3)]
    counts = panel_counts(dim, n)
    nodes = law_of_sums(law, float(n), counts, summands, record, *noisy)
    ends = statistics(summands, record, backward(law, pt.constant(_FAR)))
    with np.errstate(all="ignore"):
        own = noticed_function([], [laplace, gaussian])()
        find = noticed_function(noisy, [*nodes, ends])

        def density(z) -> float:
            *found, _ = find(z, *own)
            if dim == 2:
                return release_plane(*found, float(n), z, *own)[0][0]
            few = found[0].size * counts[0] // sum(counts)
            return sparing_line(*found, few, float(n), z, *own)[0][0]

        log_mass, values, _, far = find(np.zeros(dim), *own)
        few = log_mass.size - log_mass.size * counts[-1] // sum(counts)
        log_mass, values = log_mass[few:], values[few:]
        mass = np.exp(log_mass - log_mass.max())
        mass, values = mass[mass > 0] / mass.sum(), values[mass > 0]
        if len(np.unique(values, axis=0)) <= 2:
            return  # a count: the sum over it is written out
        unbounded = ~(np.abs(far).max(axis=0) <= 2.0 * np.abs(values).max(axis=0))
        centred = values - mass @ values
        deviation = np.sqrt(n * mass @ centred**2)
        same = dim == 2 and np.linalg.cond(centred / deviation) > _SAME

        def declined() -> Declined:
            why = _why(n, dim, bool(unbounded.any()), same)
            which = "the sum" if dim == 1 else "the two sums"
            return Declined(
                f"{which} over a group of {n} records {name!r} under noise of scale "
                f"{np.hypot(*own).max():.3g}: quadrature does not find the density of {why}",
                instead="Sample with rung='records'",
                near=1,
            )

        if own[0].any() and (same or n < FEWEST):
            raise declined()
        size, steps = _TRIED[dim]
        level = (np.outer(np.arange(size), steps) % size + 0.5) / size
        level = 0.5 + _BULK * (level - 0.5)  # the tails of skewed sums are elsewhere
        # Normal, of the sums' own moments, and where sums can be.
        spread, axes = np.linalg.eigh(n * (centred.T * mass) @ centred)
        root = axes * np.sqrt(np.maximum(spread, 0.0))
        sums = n * mass @ values + stats.norm.ppf(level[:, :dim]) @ root.T
        sums = np.clip(sums, n * values.min(axis=0), n * values.max(axis=0))
        noise = [kind.ppf(level[:, dim:]) for kind in (stats.laplace, stats.norm)]
        for z in sums + own[0] * noise[0] + own[1] * noise[1]:
            if not np.isfinite(density(z)):
                raise declined()


def _why(n: int, dim: int, unbounded: bool, same: bool) -> str:
    """Say of what a density is hard to find."""
    if same:
        return "two entries that tell the same sum"
    if dim == 2:
        return "few records, heavy tails or narrow noise"
    if unbounded:
        return f"{'few records' if n < _FEW else 'heavy tails'} without bounds"
    return "few records under narrow noise"
