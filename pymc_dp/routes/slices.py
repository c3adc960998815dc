"""Slices of the parameters and proposals for groups, on the marginal: one compiled loop.

What is moved are the coordinates of `routes.coordinates`, in which latent Normal variables are
nearly independent of the parameters, and of each other; see `kernels.slices` for the moves.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Sequence
from copy import copy
from dataclasses import dataclass
from functools import partial
from threading import Lock
from typing import Any

import numpy as np
import pymc as pm
import pytensor.tensor as pt
from pymc.initial_point import make_initial_point_fn
from pytensor.graph.replace import graph_replace
from pytensor.graph.traversal import ancestors
from pytensor.tensor.random.basic import NormalRV
from pytensor.tensor.variable import TensorVariable
from xarray import DataTree

from pymc_dp.graphs.compiled import Filling
from pymc_dp.graphs.declined import Declined, once
from pymc_dp.graphs.draws import without_remarks
from pymc_dp.graphs.interrupts import Pieces
from pymc_dp.graphs.shapes import lengths, value_lengths
from pymc_dp.graphs.stages import stage
from pymc_dp.graphs.values import nearest_rvs
from pymc_dp.kernels.pointers import call
from pymc_dp.kernels.slices import Mixed, Tuned, advance, fill_rows
from pymc_dp.ladder.collapse import collapsed, rebuilt, try_densities
from pymc_dp.laws.integrated import Integrated, IntegratedReleaseRV, integrated_release
from pymc_dp.laws.mean_variance import noise_variance
from pymc_dp.laws.moments.normal import NormalStatistics
from pymc_dp.laws.one_value import Independent, OneValue
from pymc_dp.laws.sum_law import Change
from pymc_dp.mechanisms.base import has_continuous_rates, has_kink
from pymc_dp.mechanisms.gaussian import GaussianMechanism
from pymc_dp.reading.cells import aligned, entries_of, one_of, places
from pymc_dp.reading.model import Reading
from pymc_dp.routes import ROUTES, Plan, Route
from pymc_dp.routes.chain import ARGUMENTS, by_name, run
from pymc_dp.routes.coordinates import standardised
from pymc_dp.routes.latent_normal import LatentNormalRV
from pymc_dp.routes.nuts import density_cost
from pymc_dp.routes.starts import NotFinite
from pymc_dp.step_methods.base import in_a_row

_log = logging.getLogger("pymc.dp")

_MOST = 10  # parameters, each of which takes some densities a sweep
_FEWEST = 5  # entries of a release from which on its noise is mixed: the density is then cheaper
_WIDER = 1.05  # variance of a surrogate: the tails of what it stands for are to be reached
_LEAST = 1e-3  # variance of a surrogate, in those of the noise
_INNER, _MOST_INNER = 2, 4  # sweeps to a proposal for what a surrogate stands for
# Sweeps to a draw, where the density is that of a rate of NUTS and of so many entries.
_SWEEPS, _SHORT = 4, 1_000
_STARTS = 100  # points that are tried
_CHECKED, _SHOWN = 20, 4  # points around the draws of the warm-up, and entries of one
_WINDOWS = 0.1, 0.2, 0.4, 0.7, 1.0  # of the warm-up, at whose ends the moves are tuned to it
_SHORTEST = 5  # sweeps in a window for each parameter
_CLEAR = 0.3  # of a variance that is explained by a bend
_ROUNDING = 1e-6  # of a log density
_NARROWEST = 1e-6  # spread of what was drawn


@dataclass(frozen=True, eq=False)
class Surrogate(Integrated):
    """Normal sums, of the mean and nearly the variance of others.

    Parameters are those of the others, and the least variance: where all records are clipped they
    have none.
    """

    names: tuple[str, ...]
    of: Integrated
    elementwise = True

    def draw(self, rng, *parameters):
        """See `Integrated.draw`."""
        return self.of.draw(rng, *parameters[:-1])

    def mean_variance(self, *parameters):
        """See `Integrated.mean_variance`."""
        mean, variance = self.of.mean_variance(*parameters[:-1])
        return mean, _WIDER * variance + parameters[-1]

    def logp(self, value, mechanism, *parameters):
        """See `Integrated.logp`."""
        mean, variance = self.mean_variance(*parameters)
        normal = Independent(OneValue("", pt.random.normal, 2))
        return normal.logp(value, mechanism, mean, pt.sqrt(variance))


@dataclass(frozen=True, eq=False)
class Places:
    """Places of a model's values in one vector: of parameters, levels, those anew, others.

    Attributes
    ----------
    model : in the coordinates that are moved.
    moved : names of the variables whose coordinates are not PyMC's.
    values : value variables, in order.
    ends : of the parameters and of each level, in the vector.
    anew : how many entries after these are standard Normal, given all before and the others.
    terms : of the log density.
    entries : for each level, and each of these terms, which entry those of the term belong to.
    mixed : releases whose noise is Normal given its variances, and these, which are the others.
    corrections : what to add to the log density, where it is that of a surrogate.
    """

    model: pm.Model
    moved: list[str]
    values: list[TensorVariable]
    ends: np.ndarray
    anew: int
    terms: list[TensorVariable]
    entries: list[list[np.ndarray]]
    mixed: dict[TensorVariable, Any]
    corrections: list[TensorVariable]

    @property
    def size(self) -> int:
        """The length of the vector."""
        return sum(map(math.prod, self.shapes))

    @property
    def shapes(self) -> list[tuple[int, ...]]:
        """Those of the values."""
        rvs = self.model.values_to_rvs
        return [value_lengths(self.model, rvs[value]) for value in self.values]

    def at(self, q: TensorVariable, graphs: Sequence[TensorVariable]) -> list[TensorVariable]:
        """Return graphs of the values as graphs of the vector."""
        given: dict[Any, Any] = {}
        first = 0
        for value, shape in zip(self.values, self.shapes, strict=True):
            end = first + math.prod(shape)
            given[value] = q[first:end].reshape(shape).astype(value.dtype)
            first = end
        return graph_replace(list(graphs), given, strict=False)

    def density(self, q: TensorVariable) -> list[TensorVariable]:
        """Return the log density, and for each entry of a level the terms that it is part of."""
        terms = self.at(q, self.terms)
        total = sum((term.sum() for term in terms), start=pt.zeros(()))
        sums = pt.zeros(self.size)
        for first, end, entries in zip(self.ends, self.ends[1:], self.entries, strict=False):
            own = pt.zeros(int(end - first))
            for term, entry in zip(terms, entries, strict=True):
                [known] = np.nonzero(entry >= 0)
                if np.array_equal(entry, np.arange(end - first)):
                    own = own + term.ravel()
                elif known.size:
                    own = pt.inc_subtensor(own[entry[known]], term.ravel()[known])
            sums = pt.set_subtensor(sums[int(first) : int(end)], own)
        return [total.astype("float64"), sums]

    def noise(self, q: TensorVariable, release: TensorVariable) -> list[TensorVariable]:
        """Return what `kernels.slices.draw_noise` is given of a release."""
        op = release.owner.op
        _, parameters = op.split(release.owner.inputs)
        given = parameters[:2] if _is_joint(op.law) else op.law.mean_variance(*parameters)
        scale = pt.sqrt(0.5 * self.mixed[release].owner.inputs[-1])
        graphs = [self.model.rvs_to_values[release].astype("float64"), scale, *given]
        graphs = self.at(q, self.model.replace_rvs_by_values(graphs))
        # Of a joint law, the mean is a vector and what stands for its covariance a matrix.
        by_entry = 2 if _is_joint(op.law) else 4
        own = [pt.broadcast_to(g, lengths(release)).ravel() for g in graphs[:by_entry]]
        return [*own, *graphs[by_entry:]]


@once
def layout(reading: Reading) -> Places:
    """Lay the variables of the marginal out; say what cannot be moved by slices."""
    on, corrected = _surrogates(collapsed(reading, "marginal"))
    model, mixed = _mixed(on.model)
    # Beside a surrogate nothing is drawn anew, and any density is a term like others.
    for rv in model.observed_RVs if not corrected else ():
        if not _is_normal(rv):
            if _has_normal(getattr(rv.owner.op, "law", None)):
                raise Declined(
                    f"{rv.name!r} has fewer than {_FEWEST} entries, whose noise is integrated out"
                )
            raise Declined(f"it covers what is Normal given the parameters, and {rv.name!r} is not")
    joint = any(_is_joint(getattr(rv.owner.op, "law", None)) for rv in model.observed_RVs)
    anew: list[TensorVariable] = []
    if not corrected and not joint:
        new, moved = standardised(reading, Reading(model, reading) if model is not on.model else on)
        transforms = new.rvs_to_transforms
        anew = [rv for rv in new.free_RVs if getattr(transforms[rv], "is_exact", False)]
    if anew:
        model = new
    else:  # coordinates may not depend on the variances of the noise
        model, moved = standardised(reading, on)
        model, mixed = _mixed(model)
    for rv in model.free_RVs:
        if not rv.dtype.startswith("float"):
            raise Declined(f"it does not cover {rv.name!r}, which is discrete")
    sizes = {rv: math.prod(value_lengths(model, rv)) for rv in model.free_RVs}
    others = [model[name] for name in mixed.values()]
    # What has a part in the density; the laws of the others are fixed.
    sources = [*(rv for rv in model.basic_RVs if rv not in others), *model.potentials]
    logps = model.logp(sources, sum=False)
    terms = {rv: pt.as_tensor(logp) for rv, logp in zip(sources, logps, strict=True)}
    levels = {}
    for rv, size in sizes.items():
        if size > 1 and rv not in (*anew, *others):
            own = _level(model, rv, terms)
            if own is not None:
                levels[rv] = own
    parameters = [rv for rv in model.free_RVs if rv not in (*levels, *anew, *others)]
    count = sum(sizes[rv] for rv in parameters)
    if count > _MOST:
        longest = max(parameters, key=sizes.__getitem__)
        raise Declined(
            f"it moves up to {_MOST} parameters one by one, and there are {count}, of "
            f"{longest.name!r} alone {sizes[longest]}"
        )
    if not levels and not anew and not others and not joint:
        raise Declined(
            "it is for groups, designs and Laplace noise, and the model has none of them"
        )
    values = [model.rvs_to_values[rv] for rv in (*parameters, *levels, *anew, *others)]
    ends = np.cumsum([count, *(sizes[rv] for rv in levels)])
    pairs = {model[release]: model[noise] for release, noise in mixed.items()}
    added = [model[name] for name in corrected]
    entries, drawn = list(levels.values()), sum(sizes[rv] for rv in anew)
    return Places(model, moved, values, ends, drawn, list(terms.values()), entries, pairs, added)


def _surrogates(on: Reading) -> tuple[Reading, list[str]]:
    """Put Normal sums of the same mean and variance in the place of those known by inversion.

    What their log density lacks becomes a Deterministic, whose names are returned.
    """
    model, change = on.model, Change()
    for rv in model.observed_RVs:
        op = rv.owner.op
        if isinstance(op, IntegratedReleaseRV) and op.law.by_inversion:
            value, (mechanism, parameters) = model.rvs_to_values[rv], op.split(rv.owner.inputs)
            lacking = op.law.logp(value, mechanism, *parameters)
            law, least = Surrogate(op.law.names, op.law), _LEAST * noise_variance(mechanism)
            parameters = [*parameters, pt.broadcast_to(least, lengths(rv))]
            change.replaced[rv] = integrated_release(law, mechanism, *parameters)
            lacking -= law.logp(value, mechanism, *parameters)
            change.deterministics[f"{rv.name}_correction"] = lacking.sum()
    on = Reading(rebuilt(on, [], change), on) if change.replaced else on
    return on, list(change.deterministics)


def _mixed(model: pm.Model) -> tuple[pm.Model, dict[str, str]]:
    r"""Make Laplace noise of Normal statistics Normal noise of variances that are variables.

    Of scale b it is that of a variance :math:`w \sim \mathrm{Exp}(1/(2b^2))`, and all is Normal
    given w. Statistics are drawn, and then w, with all that is in q held fixed: coordinates must
    not depend on w, but those that are drawn anew before they are used again. Returns the names of
    the variances by those of the releases.
    """
    change, mixed = Change(), {}
    for rv in model.observed_RVs:
        if not isinstance(op := rv.owner.op, IntegratedReleaseRV):
            continue
        mechanism, parameters = op.split(rv.owner.inputs)
        if _is_joint(op.law) and len(parameters) == 3:
            mixed[rv.name] = parameters[2].name
        if _has_normal(op.law) and has_continuous_rates(mechanism) and has_kink(mechanism):
            if math.prod(lengths(rv)) < _FEWEST and not isinstance(op.law, Surrogate):
                continue
            name = f"{rv.name}_noise_variance"
            while name in model.named_vars:
                name += "_"
            scale = noise_variance(mechanism)
            variance = pm.Exponential.dist(scale=scale, shape=lengths(rv))
            change.added[name] = variance, pm.distributions.transforms.log
            noise = GaussianMechanism(1.0).with_parameters(pt.sqrt(variance))
            change.replaced[rv] = integrated_release(op.law, noise, *parameters)
            mixed[rv.name] = name
    return (rebuilt(Reading(model), [], change) if change.added else model), mixed


def _is_joint(law: Integrated | None) -> bool:
    return isinstance(law, NormalStatistics)


def _has_normal(law: Integrated | None) -> bool:
    normal = isinstance(law, Independent) and isinstance(law.statistic.law, NormalRV)
    return normal or isinstance(law, Surrogate)


def _is_normal(rv: TensorVariable) -> bool:
    """Whether a variable is Normal given its parameters."""
    op = rv.owner.op
    if not isinstance(op, IntegratedReleaseRV):
        return isinstance(op, NormalRV)
    noise = op.mechanism
    without_kink = has_continuous_rates(noise) and not has_kink(noise)
    return _is_joint(op.law) or (_has_normal(op.law) and without_kink)


def _level(
    model: pm.Model, rv: TensorVariable, terms: dict[TensorVariable, TensorVariable]
) -> list[np.ndarray] | None:
    """Return which entry of a variable each entry of the terms belongs to; None if it is no level.

    The entries of a level are independent of each other given all else.
    """
    if not isinstance(rv.owner.op, LatentNormalRV) and nearest_rvs(rv.owner.inputs):
        return None  # as it is written it may follow its parameters slowly
    value = model.rvs_to_values[rv]
    try:
        return [_belongs(model, source, term, value) for source, term in terms.items()]
    except Declined:
        return None


def _belongs(
    model: pm.Model, source: TensorVariable, term: TensorVariable, value: TensorVariable
) -> np.ndarray:
    """Return which entry of a value each entry of a variable's density, a term, belongs to."""
    op = None if source in model.potentials else source.owner.op
    # A transform that ties entries leaves one term for all of them.
    if op is None or op.ndim_supp or lengths(term) != lengths(source):
        own = entries_of(term, value, places(term))
        return np.broadcast_to(own, math.prod(lengths(term)))
    index, graphs = places(source), [source] * (source in model.free_RVs)
    for parameter, ndim in zip(op.dist_params(source.owner), op.ndims_params, strict=True):
        if not ndim:
            graphs.append(parameter)
        elif value in ancestors(model.replace_rvs_by_values([parameter])):
            raise Declined
    graphs = model.replace_rvs_by_values(graphs)
    own = one_of([entries_of(graph, value, aligned(graph, index)) for graph in graphs])
    return np.broadcast_to(own, math.prod(lengths(source)))


@dataclass
class State:
    """Where a chain is."""

    q: np.ndarray
    tuned: Tuned
    inner: int


class SliceChain:
    """The chain for one model; see `routes.chain.Chain`.

    Parameters
    ----------
    found : its layout.
    names : of the variables to return.
    sweeps : to a draw.
    """

    def __init__(self, found: Places, names: Sequence[str], sweeps: int = 1):
        self.layout, self.sweeps = found, sweeps
        self._lost: list[int] = []
        self._shapes = {name: lengths(found.model[name]) for name in names}
        q = pt.vector("q", shape=(found.size,), dtype="float64")
        graphs = found.model.replace_rvs_by_values([found.model[name] for name in names])
        self._lock = Lock()  # of what draws, with generators of its own
        self._initial = make_initial_point_fn(model=found.model, return_transformed=True)
        density = Filling(q, *found.density(q))
        values = Filling(q, pt.zeros(()), in_a_row(found.at(q, graphs)))
        noise = correction = density  # where there is none
        parts, kinds = [], []
        first = int(found.ends[-1]) + found.anew
        for release in found.mixed:
            given = found.noise(q, release)
            size = math.prod(lengths(release))
            kinds.append((first, size, given[-1].type.shape[-1] if given[-1].type.ndim > 1 else 0))
            parts += given
            first += size
        if parts:
            noise = Filling(q, pt.zeros(()), in_a_row(parts))
        if found.corrections:
            graphs = found.model.replace_rvs_by_values(found.corrections)
            correction = Filling(q, sum(found.at(q, graphs)), pt.zeros(found.size))
        self._fillings = density, noise, correction, values
        self._mixed = Mixed(*np.array(kinds, dtype=np.int64).reshape(-1, 3).T.copy())

        self._read_data()

    def _read_data(self) -> None:
        *self._functions, self._values = (own.function for own in self._fillings)
        self._density, _, self._correction = self._functions

    def renewed(self) -> SliceChain:
        """Return the chain for the data as they are now."""
        chain = copy(self)
        chain._lost = []
        chain._read_data()
        return chain

    def begin(self, rng: np.random.Generator, tune: int, *, pieces: Pieces) -> State:
        """Return a state, after the sweeps that tune it."""
        count, size = int(self.layout.ends[0]), self.layout.size
        straight = np.zeros((count, 3, count))
        tuned = Tuned(np.eye(count), straight, np.ones(count), np.zeros(size), np.ones(size))
        inner = _INNER if self.layout.corrections else 0
        state, first, tune = State(self._start(rng), tuned, inner), 0, tune * self.sweeps
        for share in _WINDOWS:
            window = np.empty((int(share * tune) - first, size))
            adapt, accepted = 0.5 if first else 1.0, 0
            for piece in pieces.of(len(window)):
                accepted += self._run(rng, state, adapt, 1, window[piece])[0]
            if share < 1.0 and len(window) >= _SHORTEST * (count + 1):
                state.tuned = _tuned(window, count)
            if inner and 0.4 * len(window) > accepted:
                state.inner = max(state.inner // 2, 1)
            elif inner and 0.7 * len(window) < accepted:
                state.inner = min(state.inner * 2, _MOST_INNER)
            first += len(window)
        self._check_finite(state)
        return state

    def _check_finite(self, state: State) -> None:
        """Raise `NotFinite` where the density has no value near the draws of the warm-up."""
        moved = np.arange(state.q.size) < self.layout.ends[-1]
        rng, tuned = np.random.default_rng(0), state.tuned
        for _ in range(_CHECKED):
            around = tuned.means + tuned.spreads * rng.standard_normal(state.q.size)
            q = np.where(moved & (tuned.means != 0.0), around, state.q)  # 0 where nothing was tuned
            if any(np.isnan(call(f, q, np.empty_like(q))) for f in self._densities()):
                raise NotFinite(f"its log density has no value at {q[moved][:_SHOWN]}, ...")

    def _densities(self) -> list[tuple[int, np.ndarray]]:
        """Return the log density, and what is added to it if anything is."""
        return [self._density, *([self._correction] if self.layout.corrections else [])]

    def advance(self, rng: np.random.Generator, state: State, draws: int):
        """Return the next state, and a row for each draw."""
        rows = np.empty((draws, self.layout.size))
        _, lost = self._run(rng, state, 0.0, self.sweeps, rows)
        self._lost.append(lost)
        out = np.empty((draws, sum(math.prod(shape) for shape in self._shapes.values())))
        fill_rows(self._values, rows, out)
        if np.isnan(out).any():
            raise ValueError(f"not all of {', '.join(self._shapes)} could be computed at a draw")
        return state, out

    def _run(self, rng, state: State, adapt: float, thin: int, rows: np.ndarray) -> tuple[int, int]:
        moves = self.layout.ends, self.layout.anew, self._mixed, state.tuned
        return advance(rng, *self._functions, state.q, *moves, adapt, thin, state.inner, rows)

    def _start(self, rng: np.random.Generator) -> np.ndarray:
        with self._lock:
            point = self._initial(int(rng.integers(2**30)))
        center = np.concatenate([np.ravel(point[v.name]) for v in self.layout.values])
        moved = np.arange(center.size) < self.layout.ends[-1]
        for _ in range(_STARTS):
            q = center + moved * rng.uniform(-1.0, 1.0, size=center.size)
            if all(np.isfinite(call(f, q, np.empty_like(q))) for f in self._densities()):
                if self.layout.anew:
                    self._check_what_is_drawn_anew(q)
                return q
        raise NotFinite("no starting point with a finite log density was found near PyMC's own")

    def _check_what_is_drawn_anew(self, q: np.ndarray) -> None:
        """Compare the log density at two points: a wrong coordinate would be a wrong posterior."""
        first = int(self.layout.ends[-1])
        u = np.sin(np.arange(1.0, self.layout.anew + 1.0))
        ends = q.copy(), q.copy()
        for end, own in zip(ends, (0.0 * u, u), strict=True):
            end[first : first + u.size] = own
        before, after = (call(self._density, end, np.empty_like(end)) for end in ends)
        allowed = _ROUNDING * (1.0 + abs(before) + u @ u)
        if not abs(after - before + 0.5 * u @ u) <= allowed:  # NaN, too
            raise RuntimeError(
                "coordinates are not standard Normal that should be, which is a fault of pymc_dp: "
                "please report the model, and sample with nuts_sampler='pymc'"
            )

    def posterior(self, rows: np.ndarray, rng: np.random.Generator) -> dict[str, np.ndarray]:
        """Return draws by name; say where the density was not known."""
        if lost := sum(self._lost):
            names = ", ".join(repr(graph.name) for graph in self.layout.corrections)
            _log.warning(
                "The density by inversion (%s) was not known to its tolerance at %d of the points "
                "that were proposed, which were refused: the posterior may be cut off there. "
                "Sample with rung='records'",
                names,
                lost,
            )
        return by_name(rows, self._shapes)


def _tuned(window: np.ndarray, count: int) -> Tuned:
    """Return moves that suit the draws of a window."""
    window = window[len(window) // 3 :]
    means, spreads = window.mean(axis=0), np.maximum(window.std(axis=0), _NARROWEST)
    directions = np.diag(spreads[:count])  # a row for each
    bends = np.zeros((count, 3, count))
    if count > 1:  # along what is uncorrelated, and along each alone
        values, vectors = np.linalg.eigh(np.cov(window[:, :count], rowvar=False))
        along = vectors * np.sqrt(np.maximum(values, _NARROWEST**2))
        z = np.linalg.solve(along, (window[:, :count] - means[:count]).T).T
        bends = np.concatenate([[bend @ along.T for bend in _bends(z)], bends])
        directions = np.concatenate([along.T, directions])
    return Tuned(directions, bends, np.full(len(directions), 2.0), means, spreads)


def _bends(z: np.ndarray) -> np.ndarray:
    """Return how each column bends with each, up to its cube, where it clearly does."""
    bends = np.zeros((z.shape[1], 3, z.shape[1]))
    for bend, c in zip(bends, z.T, strict=True):
        powers = np.stack([np.ones(len(z)), c, c**2, c**3], axis=1)
        linear = z - powers[:, :2] @ np.linalg.lstsq(powers[:, :2], z)[0]
        bent = np.linalg.lstsq(powers, linear)[0]
        left = ((linear - powers @ bent) ** 2).mean(axis=0)
        clear = (c != z.T).any(axis=1) & (left < (1.0 - _CLEAR) * (linear**2).mean(axis=0))
        bend[:, clear] = bent[1:, clear]
    return bends


def _plan(reading: Reading) -> Plan:
    found = layout(reading)
    sweeps = _SWEEPS if not found.corrections and found.size <= _SHORT else 1
    density = density_cost(collapsed(reading, "marginal").model)
    cost = {"slices": float(found.ends[0])} | {f"slices, {k}": x for k, x in density.items()}
    return Plan.costing(cost, partial(_sample, reading, sweeps), lambda: found.moved)


@once
def _chain(reading: Reading, sweeps: int) -> SliceChain:
    stage("Compiling")
    on = collapsed(reading, "marginal")
    try_densities(on)
    names = [rv.name for rv in on.model.free_RVs]
    with without_remarks():
        return SliceChain(layout(reading), names, sweeps)


def _sample(reading: Reading, sweeps: int, **kwargs: Any) -> DataTree:
    chain = _chain(reading, sweeps).renewed()
    rng = np.random.default_rng(0)
    chain.advance(rng, chain.begin(rng, 0, pieces=Pieces()), 1)  # compiled, once, after this
    chain._lost.clear()
    return run(reading, "slices on the marginal", chain, "sweeps", **kwargs)


ROUTES.add(Route("slices on the marginal", "marginal", _plan, ARGUMENTS))
