"""Parameters moved along with the latents that depend on them, the noise behind these held fixed.

Given a latent, its parameters move by its sampling error only, however little the release tells.
So after its draw they move together (interweaving, Yu & Meng 2011), as those of records do.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Sequence

import numpy as np
import pymc as pm
import pytensor.tensor as pt
from numba.core.errors import NumbaPerformanceWarning
from pytensor.tensor.variable import TensorVariable

from pymc_dp.graphs.compiled import Piece, from_graph
from pymc_dp.graphs.declined import Declined
from pymc_dp.graphs.questions import known_shape, nearest_rvs
from pymc_dp.kernels.records import make_carried, make_carried_each
from pymc_dp.reading.groups import (
    Block,
    by_rows,
    factor_terms,
    has_record_axis,
    transform_parents,
)
from pymc_dp.reading.model import (
    Reading,
    children,
    is_tagged,
    parents,
    release_statistic,
    releases,
)
from pymc_dp.reading.sums import is_rowwise
from pymc_dp.step_methods.records.adaptation import WalkAdaptation, WalkingStep
from pymc_dp.step_methods.records.engine import Layout, Point, unpacked
from pymc_dp.step_methods.records.graphs import CarriedGraphs
from pymc_dp.step_methods.records.representable import brought_inside
from pymc_dp.step_methods.registry import STEPS

_EACH = 4  # moves of all entries of a variable in a draw


class _Graphs(CarriedGraphs):
    """Graphs of latents, which are read from the point."""

    def _further(self, graphs):
        transforms = self._model.rvs_to_transforms
        back = [brought_inside(rv, rv, transforms[rv]).astype(rv.dtype) for rv in self.records]
        return {"back": back, "density": [self._where_held(graphs)]}

    def by_entry(self, members: Sequence[TensorVariable]) -> bool:
        """Whether the densities have the entries that they are to have."""
        return True

    def _where_held(self, graphs):
        held = [pt.all(h) for h in graphs["held"]]
        [density] = graphs["full"]
        return pt.switch(pt.all(pt.stack(held)), density, -np.inf) if held else density


class _EachGraphs(_Graphs):
    """Graphs whose densities have one entry for each entry of the parameters."""

    def _densities(self):
        return {"full": factor_terms(self._model, self.block)}

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


class Weave(Layout):
    """Compiled moves of parameters, and of the latents that they carry along.

    Parameters
    ----------
    model : pm.Model
    block : Block
        The latents; of `n` entries each where these are independent, given all else; else 0.
    parameters : list of TensorVariable
    start : dict
        A point.
    """

    def __init__(self, model: pm.Model, block: Block, parameters, start: Point):
        super().__init__(model, parameters, start)
        self._made_of = model, block, parameters, start
        self.parameters, self.latents, self._each = parameters, block.records, block.n > 0
        kind = _EachGraphs if self._each else _Graphs
        graphs = kind(model, block, parameters, self.slices)
        if graphs.fixed:
            raise Declined(graphs.fixed)
        if not graphs.by_entry([*block.records, *parameters]):
            raise Declined("their entries depend on each other")
        self._centers, self.sources = graphs.centers, graphs.sources
        self._names = [model.rvs_to_values[rv].name for rv in block.records]
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", NumbaPerformanceWarning)
            self._compile(graphs)
            # Compiled once, before the chains' processes start.
            self.move(np.random.default_rng(0), start, self.walk(), moves=0)

    def __reduce__(self):
        """Pickle the model, not what was compiled, which other processes cannot load."""
        return Weave, self._made_of

    def walk(self) -> WalkAdaptation:
        """Return what its moves are to learn."""
        return WalkAdaptation(self.size, by_entry=self._each)

    def count(self, walk: WalkAdaptation) -> int:
        """Return how many moves there are to a draw."""
        return _EACH if self._each else walk.moves

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
        key = None if None in keys else repr((make.__name__, keys))
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


def weaves(reading: Reading, mine: Sequence[TensorVariable], start: Point) -> Iterator[Weave]:
    """Find the moves of all that is above some latents, level by level.

    The parameters of a level move, and the latents are carried along, with what is between. So are
    other latents that the parameters are of, if they can be.
    """
    model = reading.model
    free = [rv for rv in model.free_RVs if not is_tagged(rv)]
    released = nearest_rvs([release_statistic(r) for r in releases(model)])
    carried = {*mine}
    while True:
        above = {p for rv in carried for p in parents(rv)} - carried
        above = {p for p in above if p in free and p.dtype.startswith("float")}
        if len(carried) == len(mine):  # what the step of a later latent moves, too
            last = max(map(free.index, mine))
            later = [rv for rv in released if rv in free[last + 1 :] and _is_woven(rv)]
            above -= {p for rv in later for p in parents(rv)}
        if not above:
            return
        below = {rv for rv in released if rv not in above and above & {*parents(rv)}}
        found: list[Weave] = []
        for together in (carried | below, carried):
            latents, moving = ([rv for rv in free if rv in v] for v in (together, above))
            found = found or _level(reading, latents, moving, start)
        yield from found
        carried |= above


def _is_woven(rv: TensorVariable) -> bool:
    """Whether a variable is tagged with a step that moves its parameters along."""
    tag = getattr(rv.tag, "dp_step", None)
    return any(s.__name__ == tag and issubclass(s, WeavingStep) for s in STEPS)


def _level(reading: Reading, carried, above, start: Point) -> list[Weave]:
    """Return the moves of some parameters: of single entries, and of others."""
    below = dict.fromkeys(c for rv in carried for c in children(reading, rv) if c not in carried)

    def made(moving, n=0) -> list[Weave]:
        try:
            block = Block(tuple(carried), n, tuple(below))
            return [Weave(reading.model, block, moving, start)] if moving else []
        except (NotImplementedError, ValueError):
            return []

    by_entry = _by_entry(reading, carried, above)
    found = made(by_entry, known_shape(by_entry[0])[0]) if by_entry else []
    left = [rv for rv in above if not found or rv not in found[0].parameters]
    # One of them may be in the way.
    return found + (made(left) or [weave for rv in left[1:] and left for weave in made([rv])])


def _by_entry(reading: Reading, carried, above) -> list[TensorVariable]:
    """Return the parameters entry i of which is of entries i of what is carried alone."""
    transforms = reading.model.rvs_to_transforms

    def has_entries(rv) -> bool:
        transform = transforms[rv]
        apart = transform is None or transform.ndim_supp == 0
        return apart and rv.type.ndim == 1 and has_record_axis(rv)

    found = [
        rv
        for rv in above
        if has_entries(rv)
        and not transform_parents(reading.model, rv)
        and all(c in carried for c in children(reading, rv))
    ]
    pairs = ((c, rv) for c in carried for rv in parents(c) if rv in carried or rv in found)
    return found if all(map(has_entries, carried)) and all(by_rows(*p) for p in pairs) else []


class WeavingStep(WalkingStep):
    """A step that moves the parameters of its latents along with them, after it drew these.

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
        self.weaves = [*weaves(reading, self.model_rvs, start)] if self.interweave else []
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
