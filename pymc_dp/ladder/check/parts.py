"""Parts of releases that have no record in common."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
from pymc.distributions.mixture import MixtureRV
from pytensor.graph.traversal import ancestors
from pytensor.tensor.random.op import RandomVariable
from pytensor.tensor.variable import TensorVariable

from pymc_dp.graphs.values import is_random, nearest_rvs

if TYPE_CHECKING:
    from pymc_dp.ladder.check.releases import Releases

_UNITS, _ROWS = 2_000, 10  # entries that are changed one by one; in how many draws, at least


def find_parts(releases: Releases, point, value, rng, count: int) -> list[np.ndarray]:
    """Return sets of entries that no record is common to, by changing one after the other."""
    inputs, drawn = releases.draw(rng, point, count)
    widths = [logs.shape[1] for logs in releases.by_release(*(x[:1] for x in inputs), *value)]
    whole = [np.arange(sum(widths))]
    if sum(widths) == 1 or not all(_independent(v, releases.given) for v in releases.drawn):
        return whole
    units = sum(x[0].size for x in drawn)
    if units > _UNITS:
        return whole
    rows = min(count, max(_ROWS, _UNITS // units))
    given = [np.broadcast_to(v, (rows, *np.shape(v))) for v in point]
    first, places = [x[:rows] for x in drawn], np.linspace(0, count - 1, rows).astype(int)
    before = releases.inputs_of(given, first)
    part = np.arange(sum(widths))
    for i, x in enumerate(drawn):
        others = np.sort(x, axis=0)[places]  # each entry for itself: they are independent
        if (others[0] == others[-1]).any():  # what depends on it is not known
            return whole
        for unit in np.ndindex(x.shape[1:]):
            changed = first[i].copy()
            changed[:, *unit] = others[:, *unit]
            after = releases.inputs_of(given, [*first[:i], changed, *first[i + 1 :]])
            joined = part[_used(releases, widths, before, after)]
            part[np.isin(part, joined)] = joined.min(initial=len(part))
    return [np.flatnonzero(part == k) for k in np.unique(part)]


def _used(releases: Releases, widths: Sequence[int], before, after) -> np.ndarray:
    """Return which entries of the log densities differ for what their laws take."""
    pairs = zip(releases.inputs, before, after, strict=True)
    differs = {v: ((x != y) & (y == y)).any(axis=0).ravel() for v, x, y in pairs}  # but for NaN
    used = []
    for (statistic, *noise), width in zip(releases.parameters, widths, strict=True):
        own = differs[statistic] if differs[statistic].size == width else differs[statistic].any()
        used.append(np.broadcast_to(own | any(differs[v].any() for v in noise), width))
    return np.concatenate(used)


def _independent(rv: TensorVariable, given: Sequence[TensorVariable]) -> bool:
    """Whether the entries of a variable are independent, given these."""
    op = rv.owner.op
    if isinstance(op, MixtureRV):
        return all(_independent(v, given) for v in nearest_rvs(rv.owner.inputs) if v not in given)
    above = {v for v in ancestors(rv.owner.inputs, blockers=given) if is_random(v)}
    return isinstance(op, RandomVariable) and not op.ndim_supp and above <= {*given}
