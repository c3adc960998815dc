"""Parameters moved along with the latents that depend on them, the noise behind these held fixed.

Given a latent, its parameters move by its sampling error only, however little the release tells.
So after the latent is drawn, both move together (interweaving, Yu & Meng 2011), as with records.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress

import numpy as np
import pymc as pm
import pytensor.tensor as pt
from pymc.logprob.basic import logp
from pytensor.tensor.variable import TensorVariable

from pymc_dp.graphs.compiled import Piece, from_graph
from pymc_dp.graphs.declined import Declined
from pymc_dp.graphs.draws import without_remarks
from pymc_dp.graphs.shapes import known_shape
from pymc_dp.graphs.substitution import substitute
from pymc_dp.graphs.values import known_value, nearest_rvs
from pymc_dp.kernels import joined, key_of
from pymc_dp.kernels.records.moves import make_carried, make_carried_each
from pymc_dp.mechanisms.release import FeasibleMoments, variance_cap
from pymc_dp.reading.factors import factor_terms, transform_parents
from pymc_dp.reading.groups import Records
from pymc_dp.reading.model import Reading, children, parents, release_statistic, releases
from pymc_dp.reading.records import by_rows, has_record_axis
from pymc_dp.reading.sums import is_rowwise
from pymc_dp.reading.tags import is_tagged
from pymc_dp.step_methods.records.adaptation import WalkAdaptation, WalkingStep
from pymc_dp.step_methods.records.engine import Layout, Point, unpacked
from pymc_dp.step_methods.records.graphs import CarriedGraphs
from pymc_dp.step_methods.records.representable import brought_inside
from pymc_dp.step_methods.registry import STEPS

_log = logging.getLogger("pymc.dp")

_MOVES_OF_EACH_ENTRY = 4  # moves of all entries of a variable in a draw


class _Graphs(CarriedGraphs):
    """Graphs of latents, which are read from the point."""

    def _further(self, graphs):
        transforms = self._model.rvs_to_transforms
        back = [brought_inside(rv, rv, transforms[rv]).astype(rv.dtype) for rv in self.records]
        return {"back": back, "density": [self._where_held(graphs)]}

    def by_entry(self, members: Sequence[TensorVariable]) -> bool:
        """Whether entry i of the densities is of entries i alone, where the moves need it."""
        return True

    def _where_held(self, graphs):
        held = [pt.all(h) for h in graphs["held"]]
        [density] = graphs["full"]
        return pt.switch(pt.all(pt.stack(held)), density, -np.inf) if held else density


class _EachGraphs(_Graphs):
    """Graphs whose densities have one entry for each entry of the parameters."""

    def _densities(self):
        terms = factor_terms(self._model, self.block)
        if any(t.type.ndim and t.type.shape[0] not in (None, 1, self.block.n) for t in terms):
            raise Declined("their entries depend on each other")  # as of sums of entries
        return {"full": terms}

    def _prior(self):
        density = sum(self._model.logp(vars=list(self._parameters), sum=False))
        for condition in self._domain():
            if not self._is_of_records(condition):
                density = pt.switch(condition, density, -np.inf)
        return density

    def _where_held(self, graphs):
        density = sum(graphs["full"], start=graphs["prior"][0])
        for held in graphs["held"]:
            density = pt.switch(held, density, -np.inf)
        return density

    def by_entry(self, members: Sequence[TensorVariable]) -> bool:
        """Whether entry i of all densities is of entries i of these variables alone."""
        graphs = [*factor_terms(self._model, self.block), *self._domain()]
        return all(
            is_rowwise(graph, rv, self.block.n, 1)
            for graph in graphs
            for rv in members
            if rv in nearest_rvs([graph])
        )


class _WallGraphs(_Graphs):
    """Graphs of a mean that moves along the edge of the feasible region of bounded records.

    A variance keeps its distance from the largest variance at its mean. The moves keep volume in
    means and variances. They do not hold the noise behind the carried variables fixed, so the
    density of these variables counts.
    """

    def _densities(self):
        [full] = super()._densities()["full"]
        record_densities = [logp(rv, rv, warn_rvs=False) for rv in self.records]
        jacobian = [(_power(v) - 1) * pt.log(nearest_rvs([v])[0]) for _, v, _ in self._pairs()]
        return {"full": [full + sum(record_densities) - sum(jacobian)]}

    def _pairs(self):
        """Means and variances of the law and of the sample, and the scale of the latter."""
        op, moments = next(
            (r.owner.op, r.owner.op.split(r.owner.inputs)[2])
            for r in self.block.factors
            if is_bounded(r)
        )
        self._bounds = op.bounds
        pairs = (*moments[:2], 1.0), (*moments[2:], op.n / (op.n - 1))
        return [pair for pair in pairs if {*nearest_rvs([pair[1]])} & {*self.records}]

    def _coupling(self):
        [old], [new] = (self._at(self._parameters, t) for t in (self.theta, self.new_theta))
        moved = dict(self.records)
        for mean, variance, scale in self._pairs():
            here = self.records.get(mean, old)
            there = moved[mean] = here + (new - old)
            cap, new_cap = (variance_cap(m, *self._bounds) for m in (here, there))
            [rv], power = nearest_rvs([variance]), _power(variance)
            x = self.records[rv] ** power + scale * (new_cap - cap)
            moved[rv] = pt.switch(x > 0.0, x, np.nan) ** (1.0 / power)
        return [moved[rv].astype(rv.dtype) for rv in self.records]


def is_bounded(release: TensorVariable) -> bool:
    """Whether a variable is a release of moments of bounded records."""
    op = release.owner.op if release.owner else None
    if op is None or getattr(op, "bounds", None) is None:
        return False
    return isinstance(op.split(release.owner.inputs)[2], FeasibleMoments)


def _power(variance: TensorVariable) -> float:
    """Return k where a variance is the k-th power of its one random variable."""
    [rv] = nearest_rvs([variance])
    known = known_value(substitute(variance, {rv: pt.constant(4.0, dtype=rv.dtype)}), fixed=True)
    if known not in (4.0, 16.0):
        raise Declined("the variance is neither a variable nor the square of one")
    return 1.0 if known == 4.0 else 2.0


class Weave(Layout):
    """Compiled moves of parameters, and of the latents that they carry along.

    Parameters
    ----------
    model : pm.Model
    block : Records
        The latents; `n` is their length where entries are independent given all else, else 0.
    parameters : list of TensorVariable
    start : dict
        A point.
    kind : type, optional
        The class of its graphs, `_WallGraphs` or the default.
    """

    def __init__(self, model: pm.Model, block: Records, parameters, start: Point, kind=None):
        super().__init__(model, parameters, start)
        self._made_of = model, block, parameters, start, kind
        self.parameters, self.latents, self._each = parameters, block.records, block.n > 0
        for rv in block.factors:
            if rv in model.basic_RVs and transform_parents(model, rv):
                raise Declined(f"the transform of {rv.name!r} depends on other variables")
        kind = kind or (_EachGraphs if self._each else _Graphs)
        graphs = kind(model, block, parameters, self.slices)
        if graphs.fixed:
            raise Declined(graphs.fixed)
        if not graphs.by_entry([*block.records, *parameters]):
            raise Declined("their entries depend on each other")
        self._centers, self.sources = graphs.centers, graphs.sources
        self._names = [model.rvs_to_values[rv].name for rv in block.records]
        with without_remarks():
            self._compile(graphs)
            with suppress(ValueError):  # compiled once, before the chains' processes start
                self.move(np.random.default_rng(0), start, self.walk(), moves=0)

    def __reduce__(self):
        """Pickle the model, not what was compiled, which other processes cannot load."""
        return Weave, self._made_of

    def walk(self) -> WalkAdaptation:
        """Return the tuning of its moves, at its start."""
        return WalkAdaptation(self.size, by_entry=self._each)

    def count(self, walk: WalkAdaptation) -> int:
        """Return how many moves there are to a draw."""
        return _MOVES_OF_EACH_ENTRY if self._each else walk.moves

    def _compile(self, compiled: CarriedGraphs) -> None:
        graphs, theta = compiled.graphs, compiled.theta
        x, env = list(compiled.records.values()), list(compiled.env.values())
        density = from_graph([theta, *x, *env], [graphs["density"][0].astype("float64")])
        make: Callable
        if self._each:
            mask, new = pt.vector(dtype="bool"), [v.type() for v in x]
            chosen = [pt.where(mask, a, b) for a, b in zip(new, x, strict=True)]
            further, make = from_graph([mask, *new, *x], chosen), make_carried_each
        else:
            prior = graphs["prior"][0].astype("float64")
            further, make = from_graph([theta, *env], [prior]), make_carried
        pieces = [
            from_graph([theta, *env], graphs["back"]),
            from_graph([theta, *x, *env], graphs["values"]),
            from_graph([theta, compiled.new_theta, *x, *env], graphs["couple"], rng=True),
            density,
            further,
        ]
        keys = [piece.key for piece in pieces]
        key = joined(key_of(make), *keys)
        self.piece = inner = Piece(make(*(piece.function for piece in pieces)), key)
        self._run = unpacked(inner, "rng, theta", "axes, scales, moves, turn", [], [len(env)])

    def move(self, rng, point: Point, walk: WalkAdaptation, *, moves=None, tune=False) -> Point:
        """Return a point with parameters and latents moved."""
        moves = self.count(walk) if moves is None else moves
        theta, env = self.theta(point), self.env(point)
        values, theta, tried, moved = self._run(
            rng, theta, walk.axes, walk.scales, moves, walk.turn, *env
        )
        walk.turn += moves
        if tune:
            walk.update(theta, tried, moved)
        if not moved.any():
            return point
        latents = {
            name: np.asarray(value, dtype=point[name].dtype)
            for name, value in zip(self._names, values, strict=True)
        }
        return {**point, **self.moved(theta), **latents}


def weaves(
    reading: Reading, drawn: Sequence[TensorVariable], start: Point, fixed: dict
) -> Iterator[Weave]:
    """Find the moves of all parameters above some latents, level by level.

    The parameters of a level move; the latents, and the variables between, are carried along. So
    are other latents that depend on the parameters, if possible. `fixed` collects the reasons for
    which parameters could not be moved.
    """
    model = reading.model
    free = [rv for rv in model.free_RVs if rv in drawn or not is_tagged(rv)]
    for mean, carried in _walls(reading, drawn, free):
        yield from _made(reading, carried, [mean], start, {}, kind=_WallGraphs)
    released = nearest_rvs([release_statistic(r) for r in releases(model)])
    carried = {*drawn}
    while True:
        above = {p for rv in carried for p in parents(rv)} - carried
        above = {p for p in above if p in free and p.dtype.startswith("float")}
        if len(carried) == len(drawn):  # the step of a later latent moves its parameters
            last = max(map(free.index, drawn))
            later = [rv for rv in released if rv in free[last + 1 :] and _is_woven(rv)]
            above -= {p for rv in later for p in parents(rv)}
        if not above:
            return
        below = {rv for rv in released if rv not in above and above & {*parents(rv)}}
        moves: list[Weave] = []
        for together in (carried | below, carried):
            latents, moving = ([rv for rv in free if rv in v] for v in (together, above))
            moves = moves or _level(reading, latents, moving, start, fixed)
        yield from moves
        carried |= above


def _walls(reading: Reading, latents, free):
    """Yield means, and the variables that they carry along the edge: of samples, and of laws."""
    bounded = [r for r in releases(reading.model) if is_bounded(r)]
    for moments in {r.owner.op.split(r.owner.inputs)[2]: None for r in bounded}:
        law_mean, law_variance, mean, variance = moments
        if mean in latents and variance in free and all(v.type.ndim == 0 for v in moments):
            yield mean, [variance]
            spread = nearest_rvs([law_variance])
            plain = law_mean in free and reading.model.rvs_to_transforms[law_mean] is None
            if plain and len(spread) == 1 and spread[0] in free:
                yield law_mean, [rv for rv in free if rv in (*spread, mean, variance)]


def _is_woven(rv: TensorVariable) -> bool:
    """Whether a variable is tagged with a step that moves its parameters along."""
    tag = getattr(rv.tag, "dp_step", None)
    return any(s.__name__ == tag and issubclass(s, WeavingStep) for s in STEPS)


def _made(reading, carried, moving, start, fixed, n=0, kind=None) -> list[Weave]:
    """Return the move of some parameters; or none, with the reason in `fixed`."""
    above = moving if kind is _WallGraphs else ()
    factors = dict.fromkeys(
        c for rv in (*carried, *above) for c in children(reading, rv) if c not in carried
    )
    block = Records(tuple(carried), n, tuple(factors))
    try:
        return [Weave(reading.model, block, moving, start, kind)] if moving else []
    except NotImplementedError as error:
        fixed.update(dict.fromkeys(moving, str(error)))
        return []


def _level(reading: Reading, carried, above, start: Point, fixed: dict) -> list[Weave]:
    """Return the moves of some parameters: entry by entry where possible, others together."""
    by_entry = _by_entry(reading, carried, above)
    moves = []
    if by_entry:
        moves = _made(reading, carried, by_entry, start, {}, known_shape(by_entry[0])[0])
    left = [rv for rv in above if not moves or rv not in moves[0].parameters]
    whole = _made(reading, carried, left, start, fixed)
    if whole or len(left) < 2:  # one parameter may be the obstacle
        return moves + whole
    return moves + [w for rv in left for w in _made(reading, carried, [rv], start, fixed)]


def _by_entry(reading: Reading, carried, above) -> list[TensorVariable]:
    """Return the parameters whose entry i affects entries i of carried variables alone."""
    model = reading.model
    parameters = [
        rv
        for rv in above
        if has_entries(model, rv)
        and not transform_parents(model, rv)
        and all(c in carried for c in children(reading, rv))
    ]
    pairs = ((c, rv) for c in carried for rv in parents(c) if rv in carried or rv in parameters)
    apart = all(has_entries(model, rv) for rv in carried)
    return parameters if apart and all(by_rows(*p) for p in pairs) else []


def has_entries(model: pm.Model, rv: TensorVariable) -> bool:
    """Whether a variable is a vector whose entries, and those of its value, are independent."""
    transform = model.rvs_to_transforms[rv]
    apart = transform is None or transform.ndim_supp == 0
    return apart and rv.type.ndim == 1 and has_record_axis(rv)


class WeavingStep(WalkingStep):
    """A step that draws latents, and then moves parameters along with them.

    With ``interweave=False`` it draws the latents alone.
    """

    def __init__(self, vars, *, interweave: bool = True, **kwargs):
        self.interweave = interweave
        super().__init__(vars, **kwargs)

    def _prepare(self, reading, initial_point):
        super()._prepare(reading, initial_point)
        self._find_moves(reading, initial_point)

    def _find_moves(self, reading, initial_point) -> None:
        start = initial_point or reading.model.initial_point()
        fixed: dict = {}
        moves = weaves(reading, self.model_rvs, start, fixed) if self.interweave else ()
        self.weaves = [*moves]
        moved = [rv for weave in self.weaves for rv in weave.parameters]
        for rv, why in fixed.items():
            if rv not in moved:
                _log.warning(
                    f"{rv.name!r} does not move along with what depends on it, because {why}: "
                    f"exact, but slow to mix where the noise is large"
                )
        self._reset()

    def _reset(self) -> None:
        self._walks = [weave.walk() for weave in self.weaves]

    def step(self, point):
        """Draw every variable once, and move their parameters along with them."""
        point, stats = super().step(point)
        return self._weave(point), stats

    def _weave(self, point: Point) -> Point:
        for weave, walk in zip(self.weaves, self._walks, strict=True):
            point = weave.move(self.rng, point, walk, tune=self.tune)
        return point
