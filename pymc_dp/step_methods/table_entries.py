"""Reading a table of counts: which cells are in which entries of its releases.

Tables that `TableGibbs` cannot draw are refused here, with the reason.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import partial
from itertools import pairwise, starmap
from typing import NamedTuple

import numpy as np
import pytensor.tensor as pt
from pymc.distributions.multivariate import DirichletMultinomialRV
from pytensor.tensor.random.basic import MultinomialRV, PoissonRV
from pytensor.tensor.variable import TensorVariable
from scipy.sparse import coo_array, csc_array, csr_array, hstack, vstack

from pymc_dp.graphs.declined import Declined, once
from pymc_dp.graphs.linear import linear_map
from pymc_dp.graphs.shapes import known_shape
from pymc_dp.graphs.substitution import substitute
from pymc_dp.graphs.values import known_value, nearest_rvs
from pymc_dp.kernels.counts import tables as kernels
from pymc_dp.laws.count_sums import COUNT_LAWS
from pymc_dp.mechanisms.release import PrivateReleaseRV
from pymc_dp.reading.checks import leaves_gaps
from pymc_dp.reading.counts import MOST_APART, possible_counts
from pymc_dp.reading.model import (
    Reading,
    children,
    mechanism_of,
    release_statistic,
    releases_of,
)
from pymc_dp.step_methods.registry import accepted

# Counts with a total: no step moves one of them alone.
WITH_TOTAL = MultinomialRV | DirichletMultinomialRV
_ELSE = ". Write RecordMetropolis"  # where a table has no draw
_PINNED = 0.1  # scale of noise that hides no count
_MAX_OVERLAPPING_CELLS = 400  # cells of a table whose entries overlap


class CellEntries(NamedTuple):
    """Which cells of a table are in the entries of its releases.

    Attributes
    ----------
    first, which, weight : see `kernels.counts.tables.Releases`.
    gaps : which counts are possible.
    constants : the statistic of each release for an empty table.
    shared : whether a cell is in several entries of one release, or entries of several releases
        overlap without one being part of the other; False for a tree whose cells are entries, too.
    sums : whether an entry has several cells.
    """

    first: np.ndarray
    which: np.ndarray
    weight: np.ndarray
    gaps: kernels.Gaps
    constants: list[TensorVariable]
    shared: bool
    sums: bool


def _cell_entries(
    rvs: Sequence[TensorVariable], releases: list[TensorVariable], maps: list[csc_array]
) -> CellEntries:
    """Read the linear statistics of releases; refuse gaps between counts that no draw crosses."""
    rv, zeros = rvs[0], empty_counts(rvs)
    size, offset = sum(math.prod(counts_shape(v)) for v in rvs), 0
    parts, broken, constants = [], [], []
    pairs, large = [*zip(releases, maps, strict=True)], size > _MAX_OVERLAPPING_CELLS
    several = [release.name for release, slopes in pairs if (np.diff(slopes.indptr) > 1).any()]
    overlap = bool(several or not large) and (
        _overlap(maps) or (not large and any(starmap(_pins, pairs)))
    )
    tree = not overlap and is_by_cell(maps)
    if several and not tree and large:
        raise Declined(
            f"one of its cells is in several entries of the statistic of {several[0]!r}, which is "
            f"covered for up to {_MAX_OVERLAPPING_CELLS} counts, or where each cell is an entry by "
            f"itself and the others are a tree. Make these several releases, or write "
            f"RecordMetropolis"
        )
    for release, slopes in pairs:
        statistic = release_statistic(release)
        cell = np.repeat(np.arange(size), np.diff(slopes.indptr))
        where, weight = slopes.indices.astype("int64"), slopes.data
        constant = substitute(statistic, zeros)
        if leaves_gaps(release):
            broken += _entries_with_gaps(rv, release, cell, where, weight, constant, offset)
        parts.append((cell, where + offset, weight))
        constants.append(constant)
        offset += math.prod(counts_shape(statistic))
    cell, which, weight = (np.concatenate(part) for part in zip(*parts, strict=True))
    order = np.argsort(cell, kind="stable")
    first = np.searchsorted(cell[order], np.arange(size + 1))
    gaps = _gaps(rv, broken, np.diff(first))
    weight = np.asarray(weight[order])
    shared = not tree and (bool(several) or overlap)
    sums = bool((np.bincount(which) > 1).any())
    return CellEntries(first, which[order], weight, gaps, constants, shared, sums)


def _entries_with_gaps(rv, release, cell, where, weight, constant, offset):
    """Return (entry, cells, step, rest) of entries of which whole noise allows some values only."""
    known = known_value(constant, fixed=True)
    broken = []
    order = np.argsort(where, kind="stable")
    entries, starts = np.unique(where[order], return_index=True)
    for entry, in_entry in zip(entries, np.split(order, starts[1:]), strict=True):
        slope, *more_slopes = np.unique(weight[in_entry])
        start = None if known is None else float(known.ravel()[entry])
        if start is not None and start.is_integer() and not (weight[in_entry] % 1.0).any():
            continue
        possible = None if start is None or more_slopes else possible_counts(float(slope), start)
        if possible is None:
            data = " (pm.Data may change)" if start is None else ""
            raise Declined(
                f"{release.name!r} has whole-number noise, and an entry of its statistic is "
                f"neither whole for every count nor one sum over cells times a ratio of whole "
                f"numbers of at most {MOST_APART}{data}. Write a statistic that is whole, such as "
                f"a sum"
            )
        if possible[0] > 1:
            broken.append((entry + offset, cell[in_entry], *possible))
    return broken


def _gaps(rv, broken, times: np.ndarray) -> kernels.Gaps:
    """Return which counts are possible; `times` says how many entries each cell is in."""
    step, rest = np.ones(times.size), np.zeros(times.size)
    sums = [entry for entry in broken if entry[1].size > 1]
    for _, cells, *possible in broken:
        if cells.size == 1 and step[cells] == 1:
            step[cells], rest[cells] = possible
        elif cells.size == 1:
            raise Declined(
                "whole-number noise leaves gaps between the values of one of its cells in two "
                "entries. Release it once"
            )
        elif cells.size > 1 and isinstance(rv.owner.op, PoissonRV) and (times[cells] == 1).all():
            step[cells] = 0  # drawn with their sum
        else:
            raise Declined(
                "whole-number noise leaves only some values of a sum over its cells possible, and "
                "they are not Poisson, or some are in another release, too. Write a statistic that "
                "is whole for all counts, such as a sum"
            )
    if isinstance(rv.owner.op, WITH_TOTAL) and (step != 1).any():
        raise Declined(
            "whole-number noise leaves only some values of its cells possible. Write CountGibbs, "
            "which lists small tables, or a statistic that is whole for all counts, such as a sum"
        )
    which, cells, *possible = zip(*sums, strict=True) if sums else ((), (), (), ())
    first = np.cumsum([0, *map(len, cells)])
    numbers = [np.array(values, dtype=float) for values in possible]
    joined = np.concatenate(cells) if cells else np.empty(0, dtype=np.int64)
    return kernels.Gaps(step, rest, first, joined, np.array(which, dtype=np.int64), *numbers)


def trials_of(rv: TensorVariable) -> list[TensorVariable]:
    """Return the random variables that the number of trials of some counts depends on."""
    return nearest_rvs([rv.owner.op.dist_params(rv.owner)[0]])


def check_trials(reading: Reading, rv: TensorVariable) -> None:
    """Decline counts whose number of trials is random, or observed: a start may have another."""
    if above := trials_of(rv):
        known = above[0] in reading.model.observed_RVs
        instead = ", which is observed: write its value as n=" if known else ""
        raise Declined(f"its number of trials depends on {above[0].name!r}{instead}")


def counts_shape(variable: TensorVariable) -> tuple[int, ...]:
    """Return the static shape of a variable; refuse one whose shape is open."""
    shape = known_shape(variable)
    if None in shape:
        raise ValueError(f"TableGibbs cannot read {variable.name or variable}: its shape is open")
    return tuple(length or 0 for length in shape)


def empty_counts(rvs: Sequence[TensorVariable]) -> dict[TensorVariable, TensorVariable]:
    """Return zeros for counts, to be put in their place."""
    return {rv: pt.zeros(counts_shape(rv), dtype=rv.dtype) for rv in rvs}


@once
def together(reading: Reading, rv: TensorVariable) -> tuple[TensorVariable, ...]:
    """Return the counts that one sweep draws: of one law, and linked by common releases."""
    group = [rv]
    for member in group:
        if type(rv.owner.op) not in COUNT_LAWS:
            return (rv,)
        for release in releases_of(reading.model, [member]):
            for other in nearest_rvs([release_statistic(release)]):
                same = type(other.owner.op) is type(rv.owner.op)
                if same and other not in group and other in reading.model.free_RVs:
                    group.append(other)
    return tuple(v for v in reading.model.free_RVs if v in group)


def releases_of_table(reading: Reading, rvs: Sequence[TensorVariable]) -> list[TensorVariable]:
    """Return the releases of some counts, each once."""
    return list(dict.fromkeys(r for rv in rvs for r in releases_of_counts(reading, rv)))


def read_table(reading: Reading, rv: TensorVariable) -> CellEntries:
    """Read how a table enters its releases; refuse other variables than counts with noisy sums.

    Counts that are drawn `together` are cells of the same table.
    """
    return read_cell_entries(reading, together(reading, rv))


def overlaps(reading: Reading, rv: TensorVariable) -> bool:
    """Whether entries of the releases of a table overlap, so that cells move together."""
    readable = accepted(partial(read_table, reading), [rv])
    return bool(readable) and read_table(reading, rv).shared


@once
def read_cell_entries(reading: Reading, rvs: tuple[TensorVariable, ...]) -> CellEntries:
    """Read the entries of the releases of one table, whose cells are these counts."""
    rv, op = rvs[0], rvs[0].owner.op
    if not isinstance(op, WITH_TOTAL) and type(op) not in COUNT_LAWS:
        known = ", ".join(f.__name__.removesuffix("RV") for f in COUNT_LAWS)
        raise ValueError(
            f"TableGibbs cannot update {rv.name!r}, which follows {op}: it updates Multinomial, "
            f"DirichletMultinomial, {known} variables"
        )
    if isinstance(op, WITH_TOTAL):
        check_trials(reading, rv)
    _ = [counts_shape(v) for v in rvs]
    releases = releases_of_table(reading, rvs)
    return _cell_entries(rvs, releases, [read_sums(release, rvs, _ELSE) for release in releases])


def read_sums(
    release: TensorVariable, rvs: Sequence[TensorVariable], instead: str = ""
) -> csc_array:
    """Return the coefficients of counts in a release; decline other noise, or no sum of them."""
    mechanism, statistic = release.owner.op.mechanism, release_statistic(release)
    if mechanism.rates is None:
        raise Declined(
            f"its release {release.name!r} is made by {type(mechanism).__name__}; the noise "
            f"must be Laplace, geometric, Gaussian or discrete Gaussian, and not clipped or "
            f"rounded{instead}"
        )
    foreign = [other for other in nearest_rvs([statistic]) if other not in rvs]
    if foreign:
        raise Declined(
            f"the statistic of {release.name!r} is one of {foreign[0].name!r}, too{instead}"
        )
    try:
        return slopes_of(statistic, rvs)
    except Declined:
        raise Declined(f"the statistic of {release.name!r} is not linear in it{instead}") from None


def releases_of_counts(reading: Reading, rv: TensorVariable) -> list[TensorVariable]:
    """Return the releases of counts; refuse counts with other children, or without a release."""
    child_rvs = children(reading, rv)
    wrong = [c for c in child_rvs if not isinstance(getattr(c.owner, "op", None), PrivateReleaseRV)]
    if wrong:
        raise Declined(f"{wrong[0].name!r}, which is no release, depends on it")
    if not child_rvs:
        raise Declined("no release of it")
    return child_rvs


def _overlap(maps: Sequence[csc_array]) -> bool:
    """Whether entries have cells in common, and none is part of another."""
    inside = csr_array(vstack(maps)).astype(bool).astype("float64")
    sizes, both = np.diff(inside.indptr), coo_array(inside @ inside.T)
    return bool((both.data < np.minimum(sizes[both.row], sizes[both.col])).any())


def _pins(release: TensorVariable, slopes: csc_array) -> bool:
    """Whether a sum of several cells with unequal weights has noise far below one count.

    Pairs of cells cannot keep such a sum.
    """
    rows, mechanism = csr_array(slopes), mechanism_of(release)
    scales = [known_value(p) for p in mechanism.parameters]
    return any(np.ptp(rows.data[a:b]) > 0.0 for a, b in pairwise(rows.indptr) if b > a) and all(
        s is not None and (s < _PINNED).all() for s in scales
    )


def is_by_cell(maps: Sequence[csc_array]) -> bool:
    """Whether each cell is an entry by itself."""
    rows = csr_array(vstack(maps))
    alone = np.flatnonzero(np.diff(rows.indptr) == 1)
    return np.unique(rows.indices[rows.indptr[alone]]).size == rows.shape[1]


def tell_apart(maps: Sequence[csc_array]) -> bool:
    """Whether the entries without noise would tell each cell, as those of running totals do."""
    rows = csr_array(vstack(maps))
    if is_by_cell(maps) or rows.shape[1] > _MAX_OVERLAPPING_CELLS:
        return is_by_cell(maps)
    matrix = rows.toarray()
    return bool(np.isfinite(matrix).all()) and np.linalg.matrix_rank(matrix) == rows.shape[1]


def slopes_of(statistic, rvs) -> csc_array:
    """Return the coefficients by cells, without those that are zero; decline products of counts."""
    slopes = hstack([linear_map(statistic, rv) for rv in rvs], format="csc")
    slopes.eliminate_zeros()
    if len(rvs) > 1 and not np.isfinite(slopes.data).all():
        raise Declined
    return slopes


def coefficients(statistic, rvs) -> np.ndarray:
    """Return the coefficients of a statistic by cells, as one array."""
    slopes = slopes_of(statistic, rvs)
    return np.concatenate([slopes.indptr, slopes.indices, slopes.data])
