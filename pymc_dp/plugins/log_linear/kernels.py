r"""Draws of the tables of a decomposable model, given noisy margins.

The tables of the cliques C agree on the separators S and have the total n. Their law given n is

.. math::

    p(n_C) \propto \prod_C \prod_c w_C(n_C(c)) \Big/ \prod_S \prod_s w_S(n_S(s)),

with :math:`w(m) = \theta^m / m!` for given cell probabilities, and with :math:`w(m) = \Gamma(m + a)
/ m!` where they are integrated out of a hyper-Dirichlet law (Dawid and Lauritzen 1993).
A constant of n is left out, w(n) for each empty separator and for that above the first clique:
where n varies these are tables with one cell, and its density is that of one more released cell.

Rows of the full table, of which each is in one cell of every table, give the moves. They come from
a law that is fixed before the run, in which every row is possible.

- A *contrast* of two rows x and x' over a set of columns changes the number of people by k, with
  the sign of the set's parity, in all rows that have the levels of x' in some columns of the set,
  and otherwise those of x. Over one column, k people move from x. Over two, people are exchanged on
  a 2 x 2 minor: tables without both columns stay as they are. k is drawn from its conditional on
  the whole line of possible values, or from a slice of it (Neal 2003). On long lines every other k
  is proposed by its distance from an end of the line, where a cell is empty, on the scale of logs:
  the law of a small cell has a peak there and a long tail. Contrasts of one column connect all
  tables, and a set of columns is chosen by how many cells its cliques have. Over no column, k
  people leave the row x, or come where k < 0: n changes.
- People *resettle*: k of them move from one cell of a clique to one that differs in a column; every
  other time the number that stays is drawn on the scale of logs. What follows in the other
  cliques is drawn from the prior, given what was: people leave a separator's value at random, and
  those who come choose cells in turn by the conditional law. So the chance to accept is the ratio
  of the clique's own cells and of the noise. A value with few people in many cells, which single
  lines cannot move far, changes by this.

Both leave the law given any noise as it is.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import cache
from typing import Any, NamedTuple

import numpy as np
from numba.np.unsafe.ndarray import to_fixed_tuple

from pymc_dp.kernels import jit, part
from pymc_dp.kernels.counts.exchanges import log_rising
from pymc_dp.kernels.draws.lines import make_line_draw
from pymc_dp.kernels.draws.listed import draw_listed

_LISTED = 16  # a line of so few values is listed
_EVERY = 6  # move is one that resettles people
_COMING = 0.3  # of the others let people come or go, where n varies
_RESETTLED = 2.0  # how many at most, in widths of the noise
_MOST_RESETTLED = 1000.0  # one after the other; lines move more
_NEAR_END = 0.5  # of moves draw a count on the scale of logs, that empties or fills a cell, too
_LONGEST = 2**40  # line of which that is drawn


class Release(NamedTuple):
    """Released cells: values, parameters of the noise (a row each), and about how wide it is."""

    z: np.ndarray
    noise: np.ndarray
    spread: np.ndarray


# --- The law --------------------------------------------------------------------------------------


@jit
def extend(tables, layout):
    """Return the counts of all tables: cliques, separators and released margins."""
    counts = np.zeros(layout.first[-1], dtype=np.int64)
    counts[: tables.size] = tables
    for i in range(tables.size):
        for t in range(layout.targets_first[i], layout.targets_first[i + 1]):
            counts[layout.targets[t]] += tables[i]
    return counts


@jit
def log_weight(count, weight, integrated):
    """Log of w, the weight of a cell; see the module."""
    if integrated:
        return log_rising(float(count), weight)
    if count == 0:
        return 0.0
    return count * math.log(weight) - math.lgamma(count + 1.0) if weight > 0.0 else -math.inf


@jit
def log_law(tables, layout, weights, integrated):
    """Log of the law of the tables, up to a constant."""
    counts, total = extend(tables, layout), 0.0
    for i in range(counts.size):
        if layout.sign[i] != 0:
            total += layout.sign[i] * log_weight(counts[i], weights[i], integrated)
    return total


# --- Moves ----------------------------------------------------------------------------------------


@jit
def draw_small(rng, most):
    """Draw one of 0, ..., most, with m + 1 uniform on the scale of logs."""
    return min(int((most + 2.0) ** rng.random()) - 1, most)


@jit
def log_small(m):
    """Log of the chance that `draw_small` draws m, up to a constant."""
    return math.log(math.log1p(1.0 / (m + 1.0)))


@jit
def draw_row(rng, row, layout, law):
    """Draw a row, along the tree."""
    for q in range(layout.separator.shape[0]):
        group = layout.group_first[q]
        for c in range(row.size):
            group += layout.separator[q, c] * row[c]
        low, high = layout.cells_first[group], layout.cells_first[group + 1] - 1
        u = rng.random()
        while low < high:
            middle = (low + high) // 2
            if law[middle] > u:
                high = middle
            else:
                low = middle + 1
        cell = layout.cells[low]
        for c in range(row.size):
            if layout.stride[q, c] > 0:
                row[c] = cell // layout.stride[q, c] % layout.levels[c]


@jit
def contrast(row, other, columns, layout, cells, steps):
    """Write the direction that two rows give over a set of columns; return its length."""
    size, held = 0, columns[0] if columns.size else row.size
    for h in range(layout.holders_first[held], layout.holders_first[held + 1]):
        table, begin = layout.holders[h], size
        cells[size], steps[size] = layout.first[table], -1
        for c in range(row.size):
            cells[size] += layout.stride[table, c] * row[c]
        size += 1
        for c in columns:
            step = layout.stride[table, c] * (other[c] - row[c])
            if step == 0:  # the table lacks the column, or the rows are equal in it
                size = begin
                break
            for i in range(begin, size):
                cells[size + i - begin], steps[size + i - begin] = cells[i] + step, -steps[i]
            size += size - begin
    return size


@jit
def _settle(rng, k, cells, shift, counts, change, weights, integrated):
    """Take -k people out of a group's cells, or add k, one by one, each by its conditional law."""
    total = 0.0
    for cell in cells:
        total += counts[shift + cell] if k < 0 else weights[shift + cell]
        total += counts[shift + cell] if k > 0 and integrated else 0
    for _ in range(abs(k)):
        u, last = rng.random() * total, -1
        for cell in cells:
            i = shift + cell
            mass = float(counts[i] + change[i]) if k < 0 or integrated else 0.0
            mass += weights[i] if k > 0 else 0.0
            if mass > 0.0:
                last = i
                if u < mass:
                    break
            u -= mass
        side = 1 if k > 0 else -1
        change[last] += side
        if k < 0 or integrated:
            total += side


@jit
def pass_on(rng, counts, change, visited, layout, weights, integrated):
    """Draw changes of the other cliques, given changes of visited[0]; return how many change."""
    came, size, q = np.full(visited.size, -1), 1, 0
    while q < size:
        here = visited[q]
        for gate in range(layout.gates_first[here], layout.gates_first[here + 1]):
            side, other = layout.gates[gate, 0], layout.gates[gate, 1]
            there = layout.gates[gate, 2]
            if there == came[q]:
                continue
            first = layout.group_first[other]
            net = np.zeros(layout.group_first[other + 1] - first, dtype=np.int64)
            for i in range(layout.first[here + 1] - layout.first[here]):
                net[layout.value[layout.value_first[side] + i]] += change[layout.first[here] + i]
            if not net.any():
                continue
            for g in range(net.size):
                if net[g] != 0:
                    begin, end = layout.cells_first[first + g], layout.cells_first[first + g + 1]
                    cells, start = layout.cells[begin:end], layout.first[there]
                    _settle(rng, net[g], cells, start, counts, change, weights, integrated)
            visited[size], came[size] = there, here
            size += 1
        q += 1
    return size


@cache
def make_sweep(log_noise: Callable, width: int) -> Callable:
    """Return the function that draws the tables of a model, in place.

    Parameters
    ----------
    log_noise : compiled callable ``(z, count, *parameters)``
        Log density of a released cell.
    width : int
        How many parameters it takes.
    """

    @part
    def log_density(k, counts, cells, steps, layout, weights, integrated, release):
        """Log density k steps along a direction; k is a float."""
        total, first = 0.0, counts.size - release.z.size
        for i in range(cells.size):
            cell = cells[i]
            count = counts[cell] + k * steps[i]
            if layout.sign[cell] != 0:
                total += layout.sign[cell] * log_weight(count, weights[cell], integrated)
            else:
                m = cell - first
                total += log_noise(release.z[m], count, *to_fixed_tuple(release.noise[m], width))
        return total

    draw_line = make_line_draw(log_density)

    @part
    def draw_steps(rng, low, high, guess, values, *line):
        """Draw k on low, ..., high, among which is 0; `guess` is about the width of its law."""
        if high - low < values.size:
            for i in range(high - low + 1):
                values[i] = log_density(float(low + i), *line)
            drawn = draw_listed(rng, values[: high - low + 1])
            return 0 if drawn < 0 else low + drawn
        k = draw_line(rng, float(low), float(high), float(guess), *line)
        return 0 if math.isnan(k) else int(k)

    @part
    def move(rng, counts, cells, steps, values, layout, weights, integrated, release):
        """Draw the counts along a direction."""
        low, high = -(2**62), 2**62
        precision, first = 0.0, counts.size - release.z.size
        for i in range(cells.size):
            cell = cells[i]
            if steps[i] < 0:
                high = min(high, counts[cell])
            else:
                low = max(low, -counts[cell])
            if layout.sign[cell] == 0:
                precision += 1.0 / release.spread[cell - first] ** 2
        if low == high:
            return
        guess = high - low + 1
        if precision > 0.0:
            guess = min(guess, int(3.0 / math.sqrt(precision)) + 1)
        line = (counts, cells, steps, layout, weights, integrated, release)
        if high - low >= values.size and rng.random() < _NEAR_END:
            from_low, most = rng.random() < 0.5, min(high - low, _LONGEST)
            now, drawn = -low if from_low else high, draw_small(rng, most)
            if now > most or now == drawn:
                return
            k = low + drawn if from_low else high - drawn
            ratio = log_density(float(k), *line) - log_density(0.0, *line)
            ratio += log_small(now) - log_small(drawn)
            if not math.log(1.0 - rng.random()) <= ratio:
                return
        else:
            k = draw_steps(rng, low, high, guess, values, *line)
        for i in range(cells.size):
            counts[cells[i]] += k * steps[i]

    @part
    def resettle(rng, counts, change, q, x, y, k, ratio, layout, weights, integrated, release):
        """Propose to take k people from cell x of clique q to y, and to resettle what follows."""
        if counts[x] < k or counts[y] < -k:
            return
        change[x], change[y] = -k, k
        visited = np.zeros(layout.separator.shape[0], dtype=np.int64)
        visited[0] = q
        size = pass_on(rng, counts, change, visited, layout, weights, integrated)
        touched = set([0])  # numba takes no empty one
        touched.clear()
        for q in visited[:size]:
            for i in range(layout.first[q], layout.first[q + 1]):
                if change[i] != 0:
                    touched.add(i)
                    for t in range(layout.targets_first[i], layout.targets_first[i + 1]):
                        change[layout.targets[t]] += change[i]
                        touched.add(layout.targets[t])
        first = counts.size - release.z.size
        for cell, step in ((x, -k), (y, k)):
            ratio += log_weight(counts[cell] + step, weights[cell], integrated)
            ratio -= log_weight(counts[cell], weights[cell], integrated)
        for cell in touched:
            if cell >= first and change[cell] != 0:
                m = cell - first
                noise: Any = to_fixed_tuple(release.noise[m], width)
                ratio += log_noise(release.z[m], float(counts[cell] + change[cell]), *noise)
                ratio -= log_noise(release.z[m], float(counts[cell]), *noise)
        accepted = math.log(1.0 - rng.random()) <= ratio
        for cell in touched:
            if accepted:
                counts[cell] += change[cell]
            change[cell] = 0

    @jit
    def sweep(rng, tables, layout, law, weights, integrated, release, lines):
        """Draw the tables along random lines.

        Parameters
        ----------
        rng : numpy Generator
        tables : int array, updated in place
            The cliques' tables, one after the other; they agree on the separators.
        layout : Layout
        law : float array, see `row_law`.
        weights : float array
            Of all cells of cliques and separators: parameters of the Dirichlet laws, or
            probabilities.
        integrated : whether `weights` are the former.
        release : Release
        lines : int
        """
        counts = extend(tables, layout)
        columns = layout.levels.size
        varies = layout.holders_first.size > columns + 1
        row, other = np.zeros(columns, dtype=np.int64), np.zeros(columns, dtype=np.int64)
        most = 2 ** layout.sets.shape[1] * layout.stride.shape[0]
        cells, steps = np.empty(most, dtype=np.int64), np.empty(most, dtype=np.int64)
        values, model = np.empty(_LISTED), (layout, weights, integrated, release)
        change = np.zeros(counts.size, dtype=np.int64)
        largest = max(1.0, min(_RESETTLED * release.spread.max(), _MOST_RESETTLED))
        for line in range(lines):
            if line % _EVERY == 0:
                x, c = int(rng.random() * tables.size), int(rng.random() * columns)
                q = np.searchsorted(layout.first, x, "right") - 1
                while layout.stride[q, c] == 0:
                    c = int(rng.random() * columns)
                level = (x - layout.first[q]) // layout.stride[q, c] % layout.levels[c]
                y = x + layout.stride[q, c] * (int(rng.random() * layout.levels[c]) - level)
                if y == x:
                    continue
                ratio, k = 0.0, int(largest ** rng.random())
                if rng.random() < _NEAR_END:
                    left = draw_small(rng, counts[x] + counts[y])
                    k = counts[x] - left
                    ratio = log_small(counts[x]) - log_small(left)
                if k == 0 or abs(k) > _MOST_RESETTLED:
                    continue
                resettle(rng, counts, change, q, x, y, k, ratio, *model)
                continue
            draw_row(rng, row, layout, law)
            draw_row(rng, other, layout, law)
            chosen = layout.sets[0, :0]
            if not varies or rng.random() >= _COMING:
                i = np.searchsorted(layout.set_law, rng.random(), "right")
                chosen = layout.sets[i, : layout.set_size[i]]
                if chosen.size == 1 and rng.random() < 0.5:
                    other[chosen[0]] = int(rng.random() * layout.levels[chosen[0]])
            size = contrast(row, other, chosen, layout, cells, steps)
            if size > 0:
                move(rng, counts, cells[:size], steps[:size], values, *model)
        tables[:] = counts[: tables.size]

    return sweep
