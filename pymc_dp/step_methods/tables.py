"""Exact draws of tables of counts that were released cell by cell and in sums."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import pytensor
import pytensor.tensor as pt
from pymc.step_methods.compound import BlockedStep
from pytensor.tensor.random.basic import DirichletRV, MultinomialRV, PoissonRV
from pytensor.tensor.variable import TensorVariable

from pymc_dp.graphs.compiled import Piece
from pymc_dp.graphs.draws import as_row
from pymc_dp.graphs.values import known_value, public_data
from pymc_dp.kernels import key_of
from pymc_dp.kernels.counts import directions
from pymc_dp.kernels.counts.table_sweeps import make_table_draw, make_table_sweep
from pymc_dp.laws.count_sums import COUNT_LAWS
from pymc_dp.reading.model import Reading, mechanism_of, release_statistic
from pymc_dp.step_methods.base import (
    DPStep,
    LoopDraw,
    in_a_row,
    point_function,
    unusable,
    updated_by,
)
from pymc_dp.step_methods.registry import STEPS, accepted, concerned
from pymc_dp.step_methods.table_entries import (
    WITH_TOTAL,
    CellEntries,
    coefficients,
    counts_shape,
    read_cell_entries,
    read_table,
    releases_of_table,
    together,
)
from pymc_dp.step_methods.weave import WeavingStep

_SHARPEST = 1e6  # the highest precision of a release that matters for the choice of directions
_PILOT = 100  # pilot draws in each of two rounds, before directions are chosen
_BASES = 4  # sets of directions: one goes around nearly empty cells that block another


class TableStep(WeavingStep):
    """A step that draws tables of counts, each by ``update(rng, point)``: new values by name.

    A subclass defines ``_groups(reading)``, the variables of each table, and
    ``_read(reading, rvs, point)``, which returns a table or raises `Declined`.
    """

    def _prepare(self, reading, initial_point):
        point = initial_point or reading.model.initial_point()
        self._updates = []
        for rvs in self._groups(reading):
            with updated_by(type(self).__name__, rvs[0]):
                self._updates.append(self._read(reading, rvs, point))
        self._find_moves(reading, point)

    def _groups(self, reading: Reading) -> list[tuple[TensorVariable, ...]]:
        raise NotImplementedError

    def step(self, point):
        """Draw every table once, and move the parameters along."""
        for table in self._updates:
            point = {**point, **table.update(self.rng, point)}
        return self._weave(point), [{}]


@STEPS.register(order=60)
class TableGibbs(TableStep):
    r"""Draw tables of confidential counts exactly, given noisy cells and noisy sums of cells.

    A release m of the counts y has the statistic :math:`S_m = \sum_i a_{mi} y_i`, a cell, a sum
    over cells such as a county of its tracts, or a weighted one. Given all other cells, one cell
    has the conditional

    .. math::

        p(y_i \mid \ldots) \propto f(y_i) \prod_m \eta_m(z_m \mid S_m),

    which is drawn from exactly, by a walk outwards from its mode. The cells of a multinomial table
    are drawn two at a time given their sum, so that its total is kept in every draw [1]_; with a
    batch of tables, each keeps its own. Poisson tables are drawn both ways: single cells move the
    sums, pairs move where the sums are known well. The cost of a sweep grows with the number of
    cells, of releases that a cell is in, and with the width of the conditionals.

    Under whole-number noise, counts whose statistic is not whole (half a count, the mean of Poisson
    counts) are impossible: cells are drawn over the possible counts, and Poisson cells that share
    such an entry together with their sum.

    Entries may overlap, as all two-way margins of a table do, in one release or several, or
    :math:`X'y` of a regression whose rows are of few kinds. Cells then move several at a time, too:
    along the directions in which the releases leave them the most room, see
    `kernels.counts.directions`. These are chosen once, by draws where the chain starts.

    Variables of one law that share a release, as in ``[a, b, a + b]``, are one table.

    After each draw the continuous parameters above them move with the counts carried along, as
    `TwoSidedGibbs` moves them.

    Parameters
    ----------
    vars : list of TensorVariable
        Multinomial, DirichletMultinomial, Poisson, Binomial or other registered counts, of any
        shape, with no children but releases. The statistic of each release is linear in the
        counts; each cell is in at most one entry of it, but in tables of up to 400 counts, or where
        each cell is an entry by itself and no others overlap without one being part of the other.
        The noise is Laplace, geometric, Gaussian or discrete Gaussian.
    interweave : bool, default True
        Whether to move the parameters along.
    model : pm.Model, optional
        The model of the context by default.

    Raises
    ------
    ValueError
        Naming the variable that cannot be drawn, and why.

    References
    ----------
    .. [1] P. Diaconis, B. Sturmfels (1998). Algebraic algorithms for sampling from conditional
       distributions. Annals of Statistics 26, 363-397: moves that keep the sums of a table.

    Examples
    --------
    >>> import pymc as pm
    >>> import pymc_dp as dp
    >>> with pm.Model() as model:
    ...     p = pm.Dirichlet("p", [1.0, 1.0, 1.0])
    ...     y = pm.Multinomial("y", 60, p)
    ...     noise = dp.GeometricMechanism(2.0)
    ...     cells = dp.PrivateObservation("cells", y, noise, observed=[31, 18, 14])
    ...     both = dp.PrivateObservation("both", y[:2].sum(), noise, observed=48)
    >>> step = dp.TableGibbs([y], model=model, rng=1)
    >>> point, _ = step.step(model.initial_point())
    >>> point["y"].sum()  # the total is public, and kept
    np.int64(60)
    """

    name = "dp_table"

    @classmethod
    def claims(cls, reading, left):
        """Claim tables of counts, all variables of each or none."""
        counts = accepted(partial(read_table, reading), concerned(reading, left))
        return [[rv for rv in counts if {*together(reading, rv)} <= {*left}]]

    def _groups(self, reading):
        groups, left = [], list(self.model_rvs)
        while left:
            rvs = together(reading, left[0])
            groups.append(rvs if {*rvs} <= {*left} else (left[0],))
            left = [rv for rv in left if rv not in groups[-1]]
        return groups

    def _read(self, reading, rvs, point):
        table = make_table(reading, rvs, point)
        hold_parts(self, rvs, releases_of_table(reading, rvs))
        # Compiled once, before the chains' processes start.
        table.update(np.random.default_rng(0), point)
        return table

    @classmethod
    def loop_draws(cls, reading, group):
        """See `DPStep.loop_draws`."""
        draws = []
        for rvs in dict.fromkeys(together(reading, rv) for rv in group):
            table = planned_table(reading, rvs)
            draw = make_table_draw(table.sweep)
            released, _, theta = table.graphs
            inputs, chosen = [in_a_row(rvs), theta, released], partial(chosen_for, table.names)
            draws.append(LoopDraw(rvs, inputs, Piece(draw, key_of(draw)), chosen))
        return draws


class Table(NamedTuple):
    """A latent table and how its parameters and releases are read from the point.

    Attributes
    ----------
    names : of the variables whose entries, one after the other, are its cells.
    law : type of the op of a cell; Poisson of cells with a total, Dirichlet of cells whose
        probabilities are integrated out.
    block : cells with a fixed total; 0 where there is none.
    entries : which cells are in which entries of the releases.
    graphs : z, lam and tau of all releases in rows, totals, and rows of law parameters; compiled,
        they are `read`, a `PointFunction`.
    directions, widths : along which cells move together, and about how far, in steps.
    """

    names: tuple[str, ...]
    law: type
    block: int
    entries: CellEntries
    graphs: list[TensorVariable]
    read: Any
    directions: np.ndarray
    widths: np.ndarray = np.empty(0)

    @property
    def name(self) -> str:
        """Return the names for an error."""
        return "' and '".join(self.names)

    @property
    def along(self) -> bool:
        """Whether cells move along directions."""
        return self.entries.shared and not (self.entries.gaps.step != 1.0).any()

    @property
    def sweep(self) -> Callable:
        """The draw of all cells; see `make_table_sweep`."""
        law = directions.RISING if self.law is DirichletRV else COUNT_LAWS[self.law].law
        has = self.block > 0, self.entries.sums, self.entries.gaps.which.size > 0
        return make_table_sweep(law, *has, self.along)

    @property
    def structure(self) -> list[np.ndarray]:
        """What the draw takes beside numbers that change."""
        first, which, weight, gaps, *_ = self.entries
        block = np.array([self.block or first.size - 1])
        return [self.directions, self.widths, block, first, which, weight, *gaps]

    def update(self, rng, point) -> dict[str, np.ndarray]:
        """Return a new draw of each variable."""
        released, totals, theta = self.read(point)
        old, counts = [point[name] for name in self.names], _counts(self, point)
        if self.block:
            rates = theta[-1].reshape(-1, self.block)
            restore_totals(counts.reshape(-1, self.block), totals, rates)
        if not self.sweep(rng, counts, theta, released, *self.structure):
            raise unusable(self.name)
        parts = np.split(counts, np.cumsum([x.size for x in old])[:-1])
        return {
            name: part.reshape(x.shape).astype(x.dtype)
            for name, part, x in zip(self.names, parts, old, strict=True)
        }


def chosen_for(names: tuple[str, ...], steps: Sequence[BlockedStep]) -> list[TensorVariable]:
    """Return the structure of a table, with the directions that its step has chosen."""
    updates = [u for step in steps if isinstance(step, TableStep) for u in step._updates]
    tables = [getattr(update, "lattice", update) for update in updates]
    [table] = [table for table in tables if getattr(table, "names", None) == names]
    return [pytensor.shared(x) for x in table.structure]


def restore_totals(counts, totals, rates) -> None:
    """Give tables their public totals, in proportion to the rates, where a start has others."""
    for row in np.flatnonzero(counts.sum(axis=1) != totals):
        share = totals[row] * rates[row] / rates[row].sum()
        counts[row] = np.floor(share)
        rest = int(totals[row] - counts[row].sum())
        counts[row, np.argsort(counts[row] - share)[:rest]] += 1


def make_table(
    reading: Reading, rvs: tuple[TensorVariable, ...], point, weights: TensorVariable | None = None
) -> Table:
    """Read a table, and choose directions in which cells move together where entries overlap.

    With `weights`, the parameters of a Dirichlet prior, its probabilities are integrated out.
    Directions are chosen where the chain starts, and stay the same.
    """
    table = planned_table(reading, rvs, weights)
    table = table._replace(graphs=[], read=point_function(reading.model, table.graphs))
    if not table.along:
        return table
    z, lam, tau = table.read(point)[0]
    size = table.entries.first.size - 1
    known = np.zeros((z.size, size))
    cell = np.repeat(np.arange(size), np.diff(table.entries.first))
    known[table.entries.which, cell] = table.entries.weight
    largest = np.abs(known).max(axis=1, initial=0.0)
    sharp = np.minimum(np.sqrt(0.5 * lam**2 + tau) * largest, np.sqrt(_SHARPEST))
    known *= (sharp / np.maximum(largest, 1e-300))[:, None]
    moves = np.eye(size)
    if table.block:  # moves that keep the total
        moves = (moves - np.roll(moves, 1, axis=1))[np.arange(size) % table.block < table.block - 1]
    rng = np.random.default_rng(0)
    variance = (1.0 + _counts(table, point)) ** 2  # a wide guess, before the pilot draws
    for bases in (1, 1, _BASES):
        metric = np.diag(1.0 / variance) + known.T @ known
        vector_sets = []
        for k in range(bases):
            other = metric + np.diag(np.expm1(min(k, 1) * rng.normal(size=size)) / variance)
            vector_sets.append(directions.short_directions(moves @ other @ moves.T) @ moves)
        vectors = np.concatenate(vector_sets)
        vectors = vectors[np.count_nonzero(vectors, axis=1) > 1]
        ahead = vectors[np.arange(len(vectors)), np.argmax(vectors != 0, axis=1)]
        vectors = np.unique(vectors * np.sign(ahead)[:, None], axis=0)
        lengths = np.sqrt(np.einsum("di,ij,dj->d", vectors, metric, vectors))
        table = table._replace(directions=vectors, widths=np.ceil(2.0 / lengths))
        states = []
        for _ in range(_PILOT if bases == 1 else 0):
            point = {**point, **table.update(rng, point)}
            states.append(_counts(table, point))
        if states:
            variance = np.var(states[_PILOT // 2 :], axis=0) + 1.0
    return table


def _counts(table: Table, point) -> np.ndarray:
    return np.concatenate([np.ravel(point[name]).astype("float64") for name in table.names])


def hold_parts(
    step: DPStep, rvs: Sequence[TensorVariable], released: Sequence[TensorVariable]
) -> None:
    """Remember data in the coefficients of counts in their releases; see `DPStep.hold`."""
    names = "' and '".join(str(rv.name) for rv in rvs)
    for statistic in map(release_statistic, released):
        if data := public_data([statistic]):
            step.hold(names, data, partial(coefficients, statistic, rvs))


def released_sums(reading: Reading, release, constant) -> TensorVariable:
    """Return what was released of the counts, and rate and precision of the noise, in rows.

    A constant part of the statistic is taken off; what cannot be drawn is NaN.
    """
    mechanism = mechanism_of(release)
    [scale] = mechanism.parameters
    rates = mechanism.with_parameters(pt.switch(scale > 0, scale, np.nan)).rates
    assert rates is not None
    z = reading.model.rvs_to_values[release] - constant
    if mechanism.is_discrete and known_value(constant, fixed=True) is None:
        z = pt.switch(pt.eq(constant, pt.round(constant)), z, np.nan)
    return as_row(z, *rates)


def planned_table(
    reading: Reading, rvs: tuple[TensorVariable, ...], weights: TensorVariable | None = None
) -> Table:
    """Return a table as `make_table` does, before anything is compiled or drawn."""
    entries = read_cell_entries(reading, rvs)
    rv, size = rvs[0], sum(math.prod(counts_shape(v)) for v in rvs)
    op, shape = rv.owner.op, counts_shape(rv)
    columns = []
    for release, constant in zip(releases_of_table(reading, rvs), entries.constants, strict=True):
        columns.append(released_sums(reading, release, constant))
    released = pt.concatenate(columns, axis=1)
    parameters = op.dist_params(rv.owner)
    if isinstance(op, WITH_TOTAL):
        block = shape[-1]
        n, p = parameters
        totals = pt.broadcast_to(n, shape[:-1]).astype("float64").ravel()
        theta = [pt.broadcast_to(p, shape).astype("float64").ravel()]
        law = PoissonRV if isinstance(op, MultinomialRV) else DirichletRV
        if weights is not None:
            law, theta = DirichletRV, [weights]
    else:
        block, totals, law = 0, pt.zeros(0), type(op)
        each = [COUNT_LAWS[type(op)].theta(*v.owner.op.dist_params(v.owner)) for v in rvs]
        theta = [
            pt.concatenate(
                [
                    pt.broadcast_to(pt.as_tensor(t), counts_shape(v)).astype("float64").ravel()
                    for t, v in zip(by_variable, rvs, strict=True)
                ]
            )
            for by_variable in zip(*each, strict=True)
        ]
    names = tuple(reading.model.rvs_to_values[v].name for v in rvs)
    graphs = [released, totals, pt.stack([t.astype("float64") for t in theta])]
    return Table(names, law, block, entries, graphs, None, np.empty((0, size)))
