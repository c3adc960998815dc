"""Exact draws of confidential counts, with their probabilities where those are conjugate."""

from __future__ import annotations

import math
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from itertools import combinations
from typing import Any

import numpy as np
import pytensor.tensor as pt
from pymc.logprob.utils import ParameterValueError
from pytensor.tensor.random.basic import BinomialRV, MultinomialRV
from pytensor.tensor.variable import TensorVariable

from pymc_dp.graphs.compiled import Piece
from pymc_dp.graphs.declined import Declined, once
from pymc_dp.graphs.linear import linear_map
from pymc_dp.graphs.shapes import known_shape
from pymc_dp.graphs.substitution import substitute
from pymc_dp.graphs.values import known_value, nearest_rvs, public_data
from pymc_dp.kernels import joined, key_of
from pymc_dp.kernels.counts.directions import short_directions
from pymc_dp.kernels.counts.table_sweeps import make_exchanges, make_loop_draw
from pymc_dp.laws.counts.density import CompiledNoise, compile_noise
from pymc_dp.mechanisms.release import apart
from pymc_dp.reading.checks import leaves_gaps
from pymc_dp.reading.counts import MOST_LISTED
from pymc_dp.reading.model import Reading, children, release_statistic
from pymc_dp.step_methods.base import (
    LoopDraw,
    PointFunction,
    in_a_row,
    point_function,
    unusable,
    value_writer,
)
from pymc_dp.step_methods.conjugacy.registry import FAMILIES, find_families, require_itself
from pymc_dp.step_methods.conjugate import conditional
from pymc_dp.step_methods.registry import STEPS, accepted, concerned
from pymc_dp.step_methods.table_entries import (
    check_trials,
    overlaps,
    read_table,
    releases_of_counts,
)
from pymc_dp.step_methods.tables import (
    Table,
    TableStep,
    chosen_for,
    hold_parts,
    make_table,
    planned_table,
)

_MAX_CELLS = 200  # of a table of which each pair looks at all releases
_ROUNDS = 2  # of pairs in a sweep: enough for a table of a few cells to mix
_BASES = 4  # sets of directions
_EXACT = 1e6  # the precision that keeps an exact release
_FEW_ENTRIES = 8  # of a release: looking at all of them costs no more than choosing some


@STEPS.register(order=30)
class CountGibbs(TableStep):
    r"""Draw confidential counts exactly from their full conditional given the releases.

    A binomial count c of n has :math:`p(c \mid p, z) \propto \mathrm{Binomial}(c; n, p)\,
    \eta(z \mid c)`; the cells of a multinomial table are drawn two at a time given their sum. Where
    the noise is log-concave and the statistic linear in the counts, a draw costs the same
    for any n; else all values of a count are listed, up to 100,000.

    Under whole-number noise, counts whose statistic is not whole, a mean say, are impossible: then
    all states of a table are listed, up to 100,000.

    Entries of the releases may overlap, as all two-way margins do: cells then move as in
    `TableGibbs`.

    Given the counts, their probabilities would move by :math:`n^{-1/2}` only, however little the
    releases tell. So where they have a Beta, Uniform(0, 1) or Dirichlet prior and no other child,
    and are among `vars`, the counts are drawn with them integrated out [1]_ (beta-binomial,
    Dirichlet-multinomial), and the probabilities are drawn after the counts: together one draw
    from the joint conditional.

    Parameters
    ----------
    vars : list of TensorVariable
        Binomial counts and Multinomial tables with no children but releases, and the probabilities
        of these that are to be drawn along with them.
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
    .. [1] J. Liu (1994). The collapsed Gibbs sampler in Bayesian computations with applications
       to a gene regulation problem. Journal of the American Statistical Association 89, 958-966.

    Examples
    --------
    >>> import pymc as pm
    >>> import pymc_dp as dp
    >>> with pm.Model() as model:
    ...     p = pm.Beta("p", 1, 1)
    ...     sick = pm.Binomial("sick", 100, p)
    ...     z = dp.PrivateObservation("z", sick, dp.GeometricMechanism(2.0), observed=34)
    >>> step = dp.CountGibbs([sick, p], model=model, rng=1)
    >>> point, _ = step.step(model.initial_point())
    >>> bool(0 <= point["sick"] <= 100)
    True
    """

    name = "dp_count"

    @classmethod
    def claims(cls, reading, left):
        """Claim binomial counts and small tables, with their conjugate probabilities."""
        counts = [rv for rv in concerned(reading, left) if is_count(rv)]
        counts = accepted(partial(check_count, reading), counts)
        large = [rv for rv in counts if rv.type.ndim and known_cells(rv) > _MAX_CELLS]
        large = [rv for rv in large if not _is_lattice(reading, rv)]
        for_tables = accepted(partial(read_table, reading), large)  # left to `TableGibbs`
        drawn = [rv for rv in counts if rv not in for_tables]
        drawn += [p for rv in drawn if (p := count_parameter(reading, rv)) is not None]
        return [drawn]

    def _groups(self, reading):
        counted = [rv for rv in self.model_rvs if is_count(rv)]
        owners = [count_parameter(reading, rv) for rv in counted]
        for rv in self.model_rvs:
            if rv not in counted and rv not in owners:
                raise ValueError(
                    f"CountGibbs cannot update {rv.name!r}: it is neither a Binomial or "
                    f"Multinomial count nor the conjugate probability of one among vars="
                )
        return [(rv,) for rv in counted]

    def _read(self, reading, rvs, point):
        [rv] = rvs
        check_count(reading, rv)
        table = _table(reading, rv, _drawn_along(reading, rv, self.model_rvs), point)
        if table.lattice:
            hold_parts(self, rvs, children(reading, rv))
        else:
            with suppress(ValueError):  # compiled once, before the chains' processes start
                table.update(np.random.default_rng(0), point)
        self._hold_whole(children(reading, rv))
        return table

    @classmethod
    def loop_draws(cls, reading, group):
        """See `DPStep.loop_draws`."""
        point, draws = reading.model.initial_point(), []
        for rv in filter(is_count, group):
            parameter = _drawn_along(reading, rv, group)
            n, weights = _weights(reading, rv, parameter)
            inputs, chosen = [in_a_row((n, weights)), in_a_row([rv])], {}
            binary, concave = isinstance(rv.owner.op, BinomialRV), True
            if _is_lattice(reading, rv):
                lattice = planned_table(reading, (rv,), None if parameter is None else weights)
                sweep = make_exchanges(lattice.sweep)
                key = key_of(sweep)
                inputs.append(lattice.graphs[0])
                chosen = {"chosen": partial(chosen_for, lattice.names)}
            else:
                table = _table(reading, rv, parameter, point)
                noise, concave = table.noise, table.concave
                if noise is None or noise.listed:
                    raise Declined(f"{rv.name!r}: a table that is listed is not covered")
                sweep, key, values = noise.sweep, noise.key, reading.model.values_to_rvs
                inputs += [pt.constant(noise.slopes), *(values.get(v, v) for v in noise.data)]
            family = None if parameter is None else FAMILIES[conditional(reading, parameter)[0]]
            draw = make_loop_draw(sweep, family, binary, parameter is not None, concave, _ROUNDS)
            key = joined(key, key_of(family), binary, concave, _ROUNDS, key_of(make_loop_draw))
            rvs = (rv,) if parameter is None else (rv, parameter)
            draws.append(LoopDraw(rvs, inputs, Piece(draw, key), **chosen))
        return draws


@dataclass
class _Table:
    name: str
    noise: CompiledNoise | None  # None where there is a lattice
    lattice: Table | None  # moves the counts of a large table, or where entries overlap
    concave: bool
    weights: PointFunction  # of the cells, after the total
    binary: bool
    parameter: str | None
    draw: Callable | None  # of the parameter's value
    listed: int | None  # the total of the tables that are listed, if they are
    toward: tuple[np.ndarray, PointFunction] | None  # slopes and aims of a linear statistic

    def update(self, rng, point):
        total, *weights = self.weights(point)
        if self.listed is not None and total != self.listed:
            raise unusable(self.name)  # a pm.Data has changed
        weights = np.array(weights)
        old = point[self.name]
        counts = np.array([total - old, old], dtype=float) if self.binary else old.astype(float)
        if self.lattice:
            counts = self.lattice.update(rng, point)[self.name]
        else:
            self._draw_counts(rng, counts, weights, point)
        drawn = counts[1] if self.binary else counts
        values: dict[Any, Any] = {self.name: np.asarray(drawn, dtype=old.dtype)}
        if self.draw is not None:
            posterior = weights + counts
            natural = posterior[::-1] if self.binary else [*posterior, 0.0]
            values[self.parameter] = self.draw(rng, natural)
        return values

    def _draw_counts(self, rng, counts, weights, point):
        integrated, noise = self.parameter is not None, self.noise
        assert noise is not None
        try:
            data = noise.read(point)
            how = weights, integrated, self.concave, data, _ROUNDS
            drew = noise.draw(rng, counts, *how)
            if not drew and self.toward is not None:  # where counts start, noise may have no mass
                slopes, aims = self.toward
                _approach(counts, slopes, np.concatenate([np.ravel(aim) for aim in aims(point)]))
                drew = noise.draw(rng, counts, *how)
        except ParameterValueError:  # of the mechanism: a pm.Data has changed
            drew = False
        if not drew:
            raise unusable(self.name)


def _table(reading: Reading, rv, parameter, point) -> _Table:
    binary = isinstance(rv.owner.op, BinomialRV)
    n, weights = _weights(reading, rv, parameter)
    value = draw = None
    if parameter is not None:
        family, _ = conditional(reading, parameter)
        value = reading.model.rvs_to_values[parameter].name
        write = value_writer(reading.model, parameter)
        draw = partial(_draw_parameter, FAMILIES[family], write, binary)
    row = point_function(reading.model, in_a_row((n, weights)))
    cells = 2 if binary else known_cells(rv)
    total = int(row(point)[0])
    name = reading.model.rvs_to_values[rv].name
    if _is_lattice(reading, rv):
        lattice = make_table(reading, (rv,), point, None if parameter is None else weights)
        return _Table(name, None, lattice, True, row, binary, value, draw, None, None)
    releases = children(reading, rv)
    gaps = [release for release in releases if leaves_gaps(release)]
    states = _states(total, cells, gaps[0]) if gaps and not binary else None
    mechanisms = [release.owner.op.mechanism for release in releases]
    maps = [_slopes(apart(release_statistic(r)), rv) for r in releases]
    along = None
    if cells > 3 and not gaps and not all(m.log_concave for m in mechanisms):
        along = _along(reading, releases, maps, point)
    noise = _noise(reading, rv, binary, cells, states, along)
    concave = all(slopes is not None for slopes in maps)
    toward = _aims(reading, rv, releases, maps) if concave and states is None else None
    concave = concave and not gaps and all(m.log_concave for m in mechanisms)
    if concave and any(m.is_discrete for m in mechanisms):
        concave = noise.is_concave(cells, total, noise.read(point))
    if not concave and total > MOST_LISTED and states is None:
        raise Declined(
            f"the density of its releases {', '.join(repr(c.name) for c in releases)} is not known "
            f"to be log-concave in it, or their statistics are not linear, and its {total} + 1 "
            f"values are too many to list. Release a sum or mean under log-concave noise (a "
            f"mechanism's property `log_concave`)"
        )
    listed = None if states is None else total
    return _Table(name, noise, None, concave, row, binary, value, draw, listed, toward)


def _along(reading: Reading, releases, maps, point) -> np.ndarray | None:
    """Return directions that keep what was released exactly, where more than two cells move."""
    linear = [
        (release, slopes)
        for release, slopes in zip(releases, maps, strict=True)
        if slopes is not None and not release.owner.op.mechanism.statistic_ndim
    ]
    graphs = []
    for release, _ in linear:
        mechanism, _, _ = release.owner.op.split(release.owner.inputs)
        value = reading.model.rvs_to_values[release]
        likely = mechanism.typical_statistic(value)
        near = [pt.isinf(mechanism.logp(value, likely + step)) for step in (-1, 1)]
        graphs.append(pt.and_(*near).ravel())
    if not graphs:
        return None
    exact = np.concatenate(point_function(reading.model, graphs)(point)).astype(bool)
    fixed = np.vstack([m for _, m in linear])[exact]
    if not np.isfinite(fixed).all() or not (np.count_nonzero(fixed, axis=1) > 1).any():
        return None
    size, rng, found = fixed.shape[1], np.random.default_rng(0), []
    moves = (np.eye(size) - np.roll(np.eye(size), 1, axis=1))[:-1]  # they keep the total
    for k in range(_BASES):
        spread = np.diag(np.exp(min(k, 1) * rng.normal(size=size)))
        metric = moves @ (spread + _EXACT * fixed.T @ fixed) @ moves.T
        found.append(short_directions(metric) @ moves)
    vectors = np.concatenate(found)
    several = np.count_nonzero(vectors, axis=1) > 2
    vectors = vectors[several & (np.abs(vectors @ fixed.T) < 1e-9).all(axis=1)]
    ahead = vectors[np.arange(len(vectors)), np.argmax(vectors != 0, axis=1)]
    return np.unique(vectors * np.sign(ahead)[:, None], axis=0)


def _weights(reading: Reading, rv, parameter) -> tuple[TensorVariable, TensorVariable]:
    """Return the total of a table, and the weights of its cells."""
    binary = isinstance(rv.owner.op, BinomialRV)
    n, p = rv.owner.op.dist_params(rv.owner)
    if parameter is None:
        return n, pt.stack([1.0 - p, p]) if binary else p
    family, _ = conditional(reading, parameter)
    prior = find_families(parameter.owner.op)[family](parameter)
    return n, pt.stack([prior.second, prior.first]) if binary else prior.first


def _aims(reading: Reading, rv, releases, maps) -> tuple[np.ndarray, PointFunction]:
    """Return the slopes of linear statistics of counts, and the values that releases suggest."""
    slopes = np.vstack(maps)
    if slopes.shape[1] == 1:  # of a Binomial: zeros and ones
        slopes = np.hstack([np.zeros_like(slopes), slopes])
    zeros, aims = pt.zeros(known_shape(rv), dtype=rv.dtype), []
    for release in releases:
        mechanism, statistic, _ = release.owner.op.split(release.owner.inputs)
        value = reading.model.rvs_to_values[release]
        aims.append(mechanism.typical_statistic(value) - substitute(statistic, {rv: zeros}))
    return slopes, point_function(reading.model, aims)


def _approach(counts: np.ndarray, slopes: np.ndarray, aims: np.ndarray) -> None:
    """Move counts from cell to cell while that brings their statistics nearer to the aims."""
    gap = aims - slopes @ counts
    apart = ((slopes[:, :, None] - slopes[:, None]) ** 2).sum(axis=0)
    for _ in range(100 * counts.size):
        pull = slopes.T @ gap
        along = pull - pull[:, None]  # of a move from the row's cell to the column's
        with np.errstate(all="ignore"):
            size = np.clip(np.round(np.nan_to_num(along / apart)), 0, counts[:, None])
        gain = size * (2 * along - size * apart)
        j, k = np.unravel_index(np.argmax(gain), gain.shape)
        if not gain[j, k] > 0:
            return
        counts[j] -= size[j, k]
        counts[k] += size[j, k]
        gap = aims - slopes @ counts


def _draw_parameter(draw, write, binary, rng, natural):
    drawn = draw(rng, np.array([*natural, -np.inf, np.inf]))
    return write(drawn[0] if binary else drawn)


def _states(total: int, cells: int, release) -> np.ndarray:
    """List all tables with a total: moves of two cells might not reach some of them."""
    size = math.comb(total + cells - 1, cells - 1)
    if size * cells > MOST_LISTED * 10:
        raise Declined(
            f"{release.name!r} has whole-number noise, so that tables for which its statistic is "
            f"no whole number are impossible, and its {size} tables are too many to list. Write a "
            f"statistic that is whole for all of them, such as a sum"
        )
    # Stars and bars: a table is a choice of places for the bars among the stars.
    bars = np.array(list(combinations(range(total + cells - 1), cells - 1)), dtype=np.int64)
    ends = np.full((len(bars), 1), total + cells - 1)
    edges = np.hstack([np.full((len(bars), 1), -1), bars.reshape(len(bars), -1), ends])
    return (np.diff(edges, axis=1) - 1).astype("float64")


def _noise(
    reading: Reading, rv, binary, cells, states: np.ndarray | None, along: np.ndarray | None
) -> CompiledNoise:
    """Compile the log density of all releases of a count."""
    counts, rows = pt.vector("counts", dtype="float64", shape=(cells,)), pt.lvector("rows")
    latent = (counts[1] if binary else counts).astype(rv.dtype)
    releases = children(reading, rv)
    slopes = np.empty((0, cells)) if states is None else states
    total = pt.constant(0.0)
    for release in releases:
        mechanism, statistic, _ = release.owner.op.split(release.owner.inputs)
        value = reading.model.rvs_to_values[release]
        statistic_at = substitute(statistic, {rv: latent})
        if len(releases) == 1 and not binary and states is None:
            lines = _lines(release_statistic(release), rv)
            if lines is not None and len(lines[0]) > _FEW_ENTRIES:
                slopes, constants = lines
                shape = [statistic.shape[i] for i in range(statistic.type.ndim)]
                mechanism = mechanism.with_parameters(
                    *(pt.broadcast_to(p, shape).ravel()[rows] for p in mechanism.parameters)
                )
                value = value.ravel()[rows]
                statistic_at = (
                    pt.dot(pt.constant(slopes)[rows], counts) + pt.constant(constants)[rows]
                )
        total = total + mechanism.logp(value, statistic_at).sum()
    [graph] = reading.model.replace_rvs_by_values([total])
    return compile_noise(
        graph, counts, rows, np.ascontiguousarray(slopes), states is not None, along
    )


def _slopes(statistic: TensorVariable, rv: TensorVariable) -> np.ndarray | None:
    """Return the coefficients of the cells in a statistic's entries; None if it is not linear."""
    try:
        return linear_map(statistic, rv).toarray()
    except Declined:
        return None


def _lines(statistic: TensorVariable, rv: TensorVariable) -> tuple[np.ndarray, np.ndarray] | None:
    """Slopes and constants of a linear statistic's entries; None if they are not fixed numbers."""
    slopes, zeros = _slopes(statistic, rv), pt.zeros(known_shape(rv), dtype=rv.dtype)
    constants = known_value(substitute(statistic, {rv: zeros}), fixed=True)
    if slopes is None or constants is None or public_data([statistic]):
        return None
    return (slopes, constants.ravel()) if np.isfinite(slopes).all() else None


def is_count(rv: TensorVariable) -> bool:
    """Whether a variable is a binomial count or a multinomial table."""
    op = rv.owner.op
    return isinstance(op, BinomialRV | MultinomialRV) and rv.type.ndim == op.ndim_supp


def known_cells(rv: TensorVariable) -> int:
    """Return the number of cells of a table."""
    if rv.type.shape[0] is None:
        raise Declined("the number of cells is not known")
    return rv.type.shape[0]


@once
def check_count(reading: Reading, rv: TensorVariable) -> None:
    """Refuse a count that has other children than releases."""
    if not is_count(rv):
        raise Declined("it is no Binomial or Multinomial")
    check_trials(reading, rv)
    releases_of_counts(reading, rv)
    if isinstance(rv.owner.op, MultinomialRV):
        known_cells(rv)


def _is_lattice(reading: Reading, rv) -> bool:
    """Whether cells move as in `TableGibbs`: where entries overlap, and in large tables."""
    if isinstance(rv.owner.op, BinomialRV):
        return False
    large = known_cells(rv) > _MAX_CELLS and count_parameter(reading, rv) is not None
    return overlaps(reading, rv) or bool(large and accepted(partial(read_table, reading), [rv]))


def _drawn_along(reading: Reading, rv, rvs) -> TensorVariable | None:
    """Return the probabilities of a count if they are among `rvs`, drawn along with it."""
    parameter = count_parameter(reading, rv)
    return parameter if parameter in rvs else None


def count_parameter(reading: Reading, rv: TensorVariable) -> TensorVariable | None:
    """Return the probabilities of a count if they can be integrated out, else None."""
    _, p = rv.owner.op.dist_params(rv.owner)
    sources = nearest_rvs([p])
    if len(sources) != 1 or sources[0] not in reading.model.free_RVs:
        return None
    [parameter] = sources
    try:
        require_itself(p, parameter, rv, "probability")
        family, _ = conditional(reading, parameter)
    except Declined:
        return None
    is_conjugate = children(reading, parameter) == [rv] and family in ("beta", "dirichlet")
    return parameter if is_conjugate else None
