"""One sweep over a table of counts: all moves that suit its law and its releases, in turn."""

import math
from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np

from pymc_dp.kernels import jit, part
from pymc_dp.kernels.counts import tables as kernels
from pymc_dp.kernels.counts.directions import make_direction_sweep
from pymc_dp.kernels.counts.laws import POISSON, CountLaw

_CELLS_A_ROUND = 24  # cells for which a draw goes along all directions once more


@part
def _nothing(*arguments):
    return True


@cache
def make_table_sweep(
    law: CountLaw, has_total: bool, has_sums: bool, has_gaps: bool, along: bool
) -> Callable:
    """Make ``(rng, counts, theta, released, *structure)``, which draws a table in place.

    It returns whether the counts could be drawn.

    Parameters
    ----------
    law : of a cell; that of a cell given the total, up to a constant, where there is one.
    has_total : whether blocks of cells keep their totals.
    has_sums : whether some released entry has several cells.
    has_gaps : whether some cells are drawn with their sum, see `Gaps`.
    along : whether cells move along directions.

    Notes
    -----
    Column i of `theta` holds the law's parameters for cell i, the rows of `released` are z, lam and
    tau of `Releases`. The structure has the directions and widths of `make_direction_sweep`, the
    length of a block as an array, the other fields of `Releases`, and those of `Gaps`.
    """
    move_cells = _nothing if has_total else kernels.make_cell_sweep(law)
    move_along = make_direction_sweep(law) if along else _nothing
    move_sums = kernels.sum_sweep if has_gaps else _nothing
    # Single cells do not mix where they hardly move their sums, or not at all their total.
    always = law is POISSON or not along
    pairs = law is POISSON or (has_total and not along) or (has_sums and not has_total)
    move_pairs = kernels.make_pair_sweep(law) if pairs else _nothing

    @jit
    def table_sweep(
        rng, counts, theta, released, directions, widths, block, first, which, weight,
        step, rest, first_of_sum, cells, sums, sum_step, sum_rest,
    ):  # fmt: skip
        z, lam, tau = released[0], released[1], released[2]
        if np.isnan(z).any() or not (lam + tau > 0.0).all():
            return False
        if has_total and not (np.isfinite(theta).all() and (theta[-1] >= 0.0).all()):
            return False
        releases = kernels.Releases(z, lam, tau, first, which, weight)
        gaps = kernels.Gaps(step, rest, first_of_sum, cells, sums, sum_step, sum_rest)
        rounds = 1 + counts.size // _CELLS_A_ROUND
        if not (
            move_cells(rng, counts, theta, releases, gaps)
            and move_along(rng, counts, theta, directions, widths, releases, rounds)
            and move_sums(rng, counts, theta[-1], releases, gaps)
        ):
            return False
        if always or widths.size == 0:
            return move_pairs(rng, counts, theta, block[0], releases, gaps)
        return True

    return table_sweep


@cache
def make_table_draw(table_sweep: Callable) -> Callable:
    """Make ``(rng, old, theta, released, *structure)``, which returns new counts, NaN if none."""

    @part
    def draw(rng, old, theta, released, *structure):
        counts = old.copy()
        if table_sweep(rng, counts, theta, released, *structure):
            return counts
        return np.full(old.size, np.nan)

    return draw


@cache
def make_exchanges(table_sweep: Callable) -> Callable:
    """Make a sweep for `make_loop_draw`, with `released` in the place of slopes."""

    @part
    def sweep(rng, counts, released, weights, integrated, concave, rounds, *structure):
        return table_sweep(rng, counts, weights.reshape((1, -1)), released, *structure)

    return sweep


def make_loop_draw(
    sweep: Callable, family: Any, binary: bool, integrated: bool, concave: bool, rounds: int
) -> Callable:
    """Return the draw of a table and its probabilities in a compiled loop."""

    @part
    def draw(rng, row, old, slopes, *data):
        weights = row[1:].copy()
        counts = np.array([row[0] - old[0], old[0]]) if binary else old.copy()
        if not sweep(rng, counts, slopes, weights, integrated, concave, rounds, *data):
            return np.full(old.size, np.nan)
        drawn = counts[1:] if binary else counts
        if not integrated:
            return drawn
        natural = np.zeros(counts.size + (2 if binary else 3))
        for k in range(counts.size):
            natural[k] = weights[k] + counts[k]
        if binary:
            natural[0], natural[1] = natural[1], natural[0]
        natural[-2], natural[-1] = -math.inf, math.inf
        return np.concatenate((drawn, family(rng, natural)))

    return draw
