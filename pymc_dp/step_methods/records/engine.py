"""From a model to compiled sweeps over a block of its confidential records."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from functools import reduce
from itertools import islice

import numpy as np
import pymc as pm
import pytensor
import pytensor.tensor as pt
from pymc.logprob.utils import ParameterValueError
from pytensor.compile.sharedvalue import SharedVariable
from pytensor.graph.traversal import ancestors, graph_inputs
from pytensor.tensor.random.type import RandomType
from pytensor.tensor.variable import TensorVariable

from pymc_dp.graphs.compiled import Piece, from_graph, from_scalars, from_source
from pymc_dp.graphs.draws import without_remarks
from pymc_dp.graphs.values import is_itself, known_value, plain_function
from pymc_dp.kernels import joined, key_of
from pymc_dp.kernels.records import chains
from pymc_dp.kernels.records.sweeps import RecordFunctions, by_sums, in_full
from pymc_dp.reading.factors import parameters
from pymc_dp.reading.groups import Records
from pymc_dp.reading.model import Reading, mechanism_of, release_statistic, releases_of
from pymc_dp.step_methods.base import point_function
from pymc_dp.step_methods.records.graphs import RecordGraphs
from pymc_dp.step_methods.records.law import ChainGraphs

Point = dict[str, np.ndarray]

_REDRAWS = 20
_CHECKS = 20


def _contiguous(value) -> np.ndarray:
    return np.asarray(value, order="C")  # np.ascontiguousarray would make a vector of a scalar


def _as_matrix(graphs: Sequence[TensorVariable], n: int) -> TensorVariable:
    """Return vectors over n records, and matrices of them, as the rows of one matrix."""
    if all(g.type.ndim < 2 for g in graphs):
        return pt.stack([pt.broadcast_to(g, (n,)) for g in graphs])
    rows = [g if g.type.ndim == 2 else pt.broadcast_to(g, (n,))[None] for g in graphs]
    return rows[0] if len(rows) == 1 else pt.concatenate(rows)


def _sums(maps: Sequence[np.ndarray], n: int) -> list[float]:
    """Return the sums over n records of the rows of some maps."""
    return [s for m in maps for s in np.broadcast_to(m, (*m.shape[:-1], n)).sum(axis=-1).ravel()]


def unpacked(
    inner: Piece, before: str, after: str, records: Sequence[int], further: Sequence[int]
) -> Callable:
    """Compile a function that takes records and further inputs as separate arguments.

    Arrays cross from Python much faster than tuples of arrays.

    Parameters
    ----------
    records, further : how many each block has; `inner` takes those of several blocks as pairs.
    """
    names, packed = [], []
    for letter, sizes in (("x", records), ("e", further)):
        groups = [[f"{letter}{k}_{i}, " for i in range(size)] for k, size in enumerate(sizes)]
        names += [name.rstrip(", ") for group in groups for name in group]
        tuples = [f"({''.join(group)})" for group in reversed(groups)]
        packed += [reduce(lambda later, first: f"({first}, {later})", tuples)] if sizes else []
    *x, env = packed
    rng, theta = before.split(", ")
    arguments = ", ".join([before, after, *names])
    body = f"inner({', '.join([rng, *x, theta, env, after])})"
    return from_source("moves", arguments, body, inner=inner).function


def _one_by_one(nested: tuple) -> Iterator[np.ndarray]:
    for part in nested:
        yield from _one_by_one(part) if isinstance(part, tuple) else (part,)


def chained(engines: Sequence[Engine]) -> Callable:
    """Compile a chain of several blocks; see `kernels.records.chains.make_chain`."""
    direct = any(engine.direct for engine in engines)
    functions = reduce(
        lambda later, first: chains.together(first, later), [e.functions for e in reversed(engines)]
    )
    keys = [engine.key for engine in engines]
    key = joined(key_of(chains.make_chain), direct, *keys)
    sizes = zip(*(engine.inputs for engine in engines), strict=True)
    after = "axes, scales, counts, turns, seen, out"
    inner = Piece(chains.make_chain(functions, direct), key)
    compiled = unpacked(inner, "rng, theta", after, *sizes)

    def run(rng, x, theta, env, *further):
        records, *rest = compiled(rng, theta, *further, *_one_by_one(x), *_one_by_one(env))
        flat = iter(_one_by_one(records))
        return tuple(tuple(islice(flat, engine.inputs[0])) for engine in engines), *rest

    return run


class _DisagreementError(RuntimeError):
    """The density that was read as a function of sums is not that of the releases."""


class Layout:
    """How parameters are laid out in one vector, and where further inputs come from."""

    _centers: TensorVariable
    _center_values: np.ndarray
    sources: list

    def __init__(self, model: pm.Model, parameters: Sequence[TensorVariable], start: Point):
        self.slices = []
        position = 0
        for rv in parameters:
            value = model.rvs_to_values[rv]
            shape = np.shape(start[value.name])
            size = int(np.prod(shape))
            self.slices.append((value, slice(position, position + size), shape))
            position += size
        self.size = position

    def theta(self, point: Point) -> np.ndarray:
        """Return the parameters of a point as one vector."""
        parts = [np.ravel(point[value.name]) for value, _, _ in self.slices]
        return np.concatenate([np.zeros(0), *parts]).astype("float64")

    def moved(self, theta: np.ndarray) -> Point:
        """Return the values of parameters by their names."""
        return {
            value.name: theta[s].reshape(shape).astype(value.dtype)
            for value, s, shape in self.slices
        }

    def env(self, point: Point, centers: np.ndarray | None = None) -> tuple[np.ndarray, ...]:
        """Return the further inputs of the compiled functions, data as they stand now."""
        inputs = []
        for source in self.sources:
            if source is self._centers:
                inputs.append(self._center_values if centers is None else centers)
            elif isinstance(source, SharedVariable):
                inputs.append(_contiguous(source.get_value(borrow=True)))
            elif isinstance(source, np.ndarray):
                inputs.append(source)
            else:
                inputs.append(_contiguous(point[source]))
        return tuple(inputs)


class Engine(Layout):
    """Compiled sweeps over one block of records.

    Parameters
    ----------
    chain : tuple, optional
        For a block of a chain: all blocks of the chain, and the variables that this one records.

    Attributes
    ----------
    block : Records
        The records.
    parameters : list of TensorVariable
        Variables that interweaving moves, flattened to one vector in the space of their values;
        none that depend on the records.
    in_full : str
        Why the statistic is computed afresh for every proposal; empty where it need not be.
    fixed : str
        Why the parameters cannot be moved along with the records; empty where they can.
    costly : pair of bool
        In a chain: whether moves with the records, and given the records, take as long as a sweep.
    is_cut : bool
        Whether proposals may be refused for the sole reason that the point cannot hold them.
    functions, key, inputs, direct
        In a chain: what `chained` takes of this block.
    """

    functions: chains.Functions
    key: str | None
    inputs: tuple[int, int]
    direct: bool

    def __init__(
        self,
        model: pm.Model,
        block: Records,
        start: Point,
        chain: tuple[Sequence[Records], Sequence[TensorVariable]] | None = None,
    ):
        self.block = block
        reading, blocks = Reading(model), chain[0] if chain else [block]
        above = {rv for b in blocks for rv in parameters(reading, b)}
        self.parameters = [rv for rv in model.free_RVs if rv in above]
        self._model = model
        # To compile the engine anew. Records of the point would be most of a pickle.
        record_names = {model.rvs_to_values[rv].name for rv in block.records}
        self._start = {name: value for name, value in start.items() if name not in record_names}
        super().__init__(model, self.parameters, start)
        self._name()
        how = model, block, self.parameters, self.slices
        graphs = ChainGraphs(*how, *chain) if chain else RecordGraphs(*how)
        self._centers, self.sources = graphs.centers, graphs.sources
        self._columns = graphs.columns
        self._center_values = np.zeros(len(self._columns))
        self._check_draws(graphs, start)
        if isinstance(graphs, ChainGraphs):
            self._check_law(graphs, start)
        self._compile(graphs)
        self.in_full, self.fixed, self.is_cut = graphs.in_full, graphs.fixed, graphs.is_cut

    def __reduce__(self):
        """Pickle the model, not what was compiled, which other processes cannot load."""
        return Engine, (self._model, self.block, self._start)

    def _name(self) -> None:
        model = self._model
        transforms = [model.rvs_to_transforms.get(rv) for rv in self.block.records]
        self.names = [model.rvs_to_values[rv].name for rv in self.block.records]
        self._is_plain = all(transform is None for transform in transforms)
        if not self._is_plain:
            self._to_records = point_function(model, list(self.block.records))

    def _check_draws(self, compiled: RecordGraphs, start: Point) -> None:
        """Draw records at the start; check there that the sums give what the statistic gives."""
        graphs, reading = compiled.graphs, compiled.reading
        inputs = [compiled.theta, *compiled.env.values()]
        # Not worth compiling: evaluated once a chain, or a few operations.
        self._full = plain_function(compiled.arguments, graphs["full"][0])
        if not self._is_plain:
            self._to_values, self._to_inside = (
                pytensor.function(
                    compiled.arguments, graphs[name], on_unused_input="ignore", trust_input=True
                )
                for name in ("values", "inside")
            )
        self._are_held = plain_function(compiled.arguments, graphs["held"])
        propose = from_graph(inputs, graphs["propose"], rng=True)
        self._propose = propose
        theta, rng = self.theta(start), np.random.default_rng(1)
        try:
            with without_remarks():
                x = self.draw(rng, theta, self.env(start))
        except Exception as error:
            raise ValueError(
                f"the records {self.block.name!r} cannot be drawn from their law: {error}. Give "
                f"them a proper distribution that PyMC can draw from"
            ) from error
        self.center(x)
        self._n_sums = len(compiled.sums)
        if reading is None:
            return
        self._sums_of = plain_function(compiled.arguments, graphs["maps"])
        self._public_of = plain_function(inputs, graphs["public"])
        scalars = [*compiled.sums, *(s for s, _ in reading.public)]
        self._outer = plain_function(scalars, pt.as_tensor(reading.outer))
        checked = 0
        for k in range(_CHECKS):
            # Impossible releases give nothing to compare: move the parameters away.
            here = theta + 0.5 * max(k - 1, 0) * rng.standard_normal(theta.size)
            env = self.env(start)
            try:
                x = self.draw(rng, here, env)
                checked += self._compare(x, here, env)
            except ValueError:  # parameters without a law
                continue
            except _DisagreementError as error:
                why = f"a numerical check of what was read of it failed ({error})"
                compiled.read_in_full(why)
                return
            if checked == 2:
                return

    def _compare(self, x, theta, env) -> bool:
        """Compare the density of the releases from sums with that from records, if it is finite."""
        expected = self.log_density(x, theta, env)
        if not math.isfinite(expected):
            return False
        sums = _sums(self._sums_of(theta, *x, *env), self.block.n)
        from_sums = float(self._outer(*sums[: self._n_sums], *self._public_of(theta, *env)))
        if not np.isclose(from_sums, expected, rtol=1e-6, atol=1e-6):
            raise _DisagreementError(f"{from_sums} instead of {expected}; please report this")
        return True

    def _check_law(self, compiled: ChainGraphs, start: Point) -> None:
        """Check that the sums give the density of the records; else use the records themselves."""
        graphs, inputs = compiled.graphs, [*compiled.records.values(), *compiled.env.values()]
        if not compiled.by_sums:
            graphs["law"] = graphs["law, whole"]
            return
        gather = plain_function(inputs, graphs["gather"][0])
        arguments = [compiled.theta, compiled.law_sums, *inputs]
        both = plain_function(arguments, [*graphs["law"], *graphs["law, whole"]])
        theta, rng, env = self.theta(start), np.random.default_rng(1), self.env(start)
        x = self.draw(rng, theta, env)
        sums = gather(*x, *env)
        for _ in range(_CHECKS):
            from_sums, expected = both(
                theta + 0.1 * rng.standard_normal(theta.size), sums, *x, *env
            )
            if not np.isclose(from_sums, expected, rtol=1e-6, atol=1e-6):
                graphs["law"] = graphs["law, whole"]
                return

    def _compile(self, compiled: RecordGraphs) -> None:
        graphs, reading = compiled.graphs, compiled.reading
        env, x = list(compiled.env.values()), list(compiled.records.values())
        theta, new_theta, n = compiled.theta, compiled.new_theta, self.block.n

        prior = from_graph([theta, *env], [graphs["prior"][0].astype("float64")])
        x_new = [v.type() for v in x]
        coupled = graphs.get("couple", x)  # without one, nothing moves
        couple = from_graph([theta, new_theta, *x, *env], coupled, rng=True)
        if reading is None:
            i = pt.lscalar()
            chosen = [pt.set_subtensor(v[i], new[i]) for v, new in zip(x, x_new, strict=True)]
            choose = from_graph([i, *x_new, *x], chosen)
            density = from_graph([theta, *x, *env], [graphs["full"][0].astype("float64")])
            public = from_source("unused", "*rest", "rest")
            how = in_full
        else:
            mask = pt.vector(dtype="bool", shape=(n,))
            chosen = [
                pt.where(mask.dimshuffle(0, *["x"] * (v.type.ndim - 1)), new, v)
                for v, new in zip(x, x_new, strict=True)
            ]
            choose = from_graph([mask, *x_new, *x], chosen)
            public_values = [p.astype("float64") for p in graphs["public"]]
            public = from_graph(
                [theta, *env], [pt.stack(public_values) if public_values else pt.zeros((0,))]
            )
            scalars = [s for s, _ in reading.public]
            density = from_scalars([compiled.sums, scalars], reading.outer)
            how = by_sums
        rows = [m.astype("float64") for m in graphs["maps"]]
        maps = from_graph([theta, *x, *env], [_as_matrix(rows, n)])
        pieces = RecordFunctions(self._propose, maps, public, density, choose, couple, prior)
        plain = RecordFunctions(*(piece.function for piece in pieces))
        laws: tuple[Piece, ...] = ()
        if "law" in graphs:
            sums, of_law = compiled.law_sums, [*x, *env]
            laws = chains.LawFunctions(
                from_graph(of_law, graphs["gather"]),
                from_graph([theta, sums, *of_law], graphs["law"]),
                from_graph([theta, *of_law], graphs["collect"]),
            )
            law = chains.LawFunctions(*(piece.function for piece in laws))
            self.functions = chains.Functions(plain.couple, plain.prior, how(plain), law)
            self.direct = theta in ancestors(graphs["full"])
            afresh = self.direct or graphs["law"] is graphs["law, whole"]
            at_random = any(isinstance(v.type, RandomType) for v in graph_inputs(coupled))
            self.costly = at_random, afresh
        keys = [piece.key for piece in (*pieces, *laws)]
        self.key = joined(key_of(chains.make_sweeps), key_of(how), *keys)
        self.inputs = len(x), len(env)
        if "law" not in graphs:
            inner = Piece(chains.make_sweeps(plain, how(plain)), self.key)
            after = "axes, scales, count, moves, turn"
            self._run = unpacked(inner, "rng, theta", after, [len(x)], [len(env)])

    # --- Use ------------------------------------------------------------------------------------

    def records(self, point: Point) -> tuple[np.ndarray, ...]:
        """Return the records of a point."""
        if self._is_plain:
            return tuple(np.array(point[name]) for name in self.names)
        x = [_contiguous(v) for v in self._to_records(point)]
        # With a transform that depends on theta, rounding may put a record on an end.
        inside = self._to_inside(self.theta(point), *x, *self.env(point))
        return tuple(_contiguous(v) for v in inside)

    def as_published(self, point: Point) -> Iterator[tuple[np.ndarray, ...]]:
        """Yield records that are typical given a release of each of a variable's by itself.

        Those of other variables are those of the point.
        """
        records = tuple(self.records(point))
        for k, rv in enumerate(self.block.records):
            for release in releases_of(self._model, [rv]):
                value = known_value(self._model.rvs_to_values[release])
                if value is not None and is_itself(release_statistic(release), rv):
                    typical = known_value(mechanism_of(release).typical_statistic(value))
                    typical = _contiguous(np.asarray(typical, rv.dtype))
                    yield (*records[:k], typical, *records[k + 1 :])

    def update(self, point: Point, x: Sequence[np.ndarray], theta: np.ndarray) -> Point:
        """Return a point with other records and parameters."""
        values = x if self._is_plain else self._to_values(theta, *x, *self.env(point))
        return {**point, **self.moved(theta), **dict(zip(self.names, values, strict=True))}

    def log_density(self, x, theta, env) -> float:
        """Log density of the releases given the records, computed from the records themselves.

        NaN where the point cannot hold them, or parameters are outside of the domain of a law.
        """
        try:
            if not self._hold(x, theta, env).all():
                return math.nan
            return float(self._full(theta, *x, *env))
        except ParameterValueError:  # the noise scale, from a pm.Data
            return math.nan

    def check(self, x, theta, env) -> None:
        """Compare the density from sums with that from records, where the releases are possible.

        Raises
        ------
        RuntimeError
            If the sums give another density than the records.
        """
        if not self.in_full:
            self._compare(x, theta, env)

    def draw(self, rng: np.random.Generator, theta, env) -> tuple[np.ndarray, ...]:
        """Draw records from their law; redraw records that the point cannot hold."""
        x = self._propose.function(rng, theta, *env)
        for _ in range(_REDRAWS):
            held = self._hold(x, theta, env)
            if held.all():
                break
            new = self._propose.function(rng, theta, *env)
            x = [
                np.where(held.reshape(-1, *[1] * (v.ndim - 1)), v, w)
                for v, w in zip(x, new, strict=True)
            ]
        return tuple(_contiguous(v) for v in x)

    def _hold(self, x, theta, env) -> np.ndarray:
        """Whether the point can hold each record, with parameters in the domain of its law."""
        conditions = [np.broadcast_to(f, self.block.n) for f in self._are_held(theta, *x, *env)]
        return np.logical_and.reduce([np.ones(self.block.n, dtype=bool), *conditions])

    def center(self, x: Sequence[np.ndarray]) -> None:
        """Keep the sums centred near these records' means."""
        self._center_values = self.centers_of(x)

    def centers_of(self, x: Sequence[np.ndarray]) -> np.ndarray:
        """Return the means of the columns of records."""
        position = {rv: k for k, rv in enumerate(self.block.records)}
        return np.array([np.mean(x[position[rv]], axis=0)[index] for rv, index in self._columns])

    def sweep(self, rng, x, theta, env, axes, scales, sweeps: int, moves: int, turn: int):
        """Run compiled sweeps; see `kernels.records.chains.make_sweeps`."""
        return self._run(rng, theta, axes, scales, sweeps, moves, turn, *x, *env)
