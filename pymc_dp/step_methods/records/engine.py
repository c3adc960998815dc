"""From a model to compiled sweeps over a block of its confidential records."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import numpy as np
import pymc as pm
import pytensor
import pytensor.tensor as pt
from pymc.logprob.basic import logp
from pymc.logprob.utils import CheckParameterValue, ParameterValueError
from pytensor.compile.sharedvalue import SharedVariable
from pytensor.graph.basic import Constant, Variable
from pytensor.graph.replace import graph_replace
from pytensor.graph.traversal import ancestors, graph_inputs
from pytensor.tensor.basic import MakeVector, ScalarFromTensor
from pytensor.tensor.math import All
from pytensor.tensor.random.type import RandomType
from pytensor.tensor.variable import TensorVariable

from pymc_dp.graphs.compiled import Piece, from_graph, from_scalars, from_source
from pymc_dp.graphs.declined import Declined
from pymc_dp.graphs.questions import PLAIN_MODE, is_random, nearest_rvs
from pymc_dp.kernels.records import Pieces, make_sweeps, make_sweeps_in_full
from pymc_dp.laws.transport import transport
from pymc_dp.reading.groups import Block, factor_density, parameters, transform_parents
from pymc_dp.reading.model import Reading, parents
from pymc_dp.reading.sums import Additive, additive
from pymc_dp.step_methods.base import point_function
from pymc_dp.step_methods.records.proposals import proposals
from pymc_dp.step_methods.records.representable import brought_inside, representable

Point = dict[str, np.ndarray]

_BIG = 16  # larger constants are arguments of compiled code, not part of it
_REDRAWS = 20
_CHECKS = 20


def _contiguous(value) -> np.ndarray:
    return np.asarray(value, order="C")  # np.ascontiguousarray would make a vector of a scalar


def _replaced(graphs: Sequence[TensorVariable], by: dict) -> list[TensorVariable]:
    return list(graph_replace(list(graphs), by, strict=False)) if graphs and by else list(graphs)


def _substituted(graphs: Sequence[TensorVariable], by: dict) -> list[TensorVariable]:
    """Replace as `_replaced` does; random variables on the way stay those of the model.

    PyTensor may copy them, and the model does not know the copies: they would be drawn.
    """
    return _replaced(graphs, {rv: rv for rv in nearest_rvs(graphs)} | by if by else by)


def plain_function(inputs: Sequence[Variable], outputs) -> Callable:
    """Return a function that is evaluated node by node, without compilation."""
    return pytensor.function(list(inputs), outputs, mode=PLAIN_MODE, on_unused_input="ignore")


def fresh(rv: TensorVariable, replace: dict[TensorVariable, TensorVariable]) -> TensorVariable:
    """Return another draw of a variable, given other values of some of its parents."""
    return rv.owner.clone_with_new_inputs(
        _substituted(rv.owner.inputs, replace), strict=False
    ).outputs[rv.index]


def _unreduced(condition: Variable) -> list[TensorVariable]:
    """Return the comparisons that a condition is the conjunction of."""
    node = condition.owner
    if node is None or not isinstance(node.op, All | MakeVector | ScalarFromTensor):
        return [condition]
    return [c for i in node.inputs for c in _unreduced(i)]


def _refused(maps: list[TensorVariable], held: list[TensorVariable]) -> list[TensorVariable]:
    """Put NaN into the first row for every record that is not `held`; see `kernels.records`."""
    if not held:
        return maps or [pt.zeros(())]
    fine = held[0]
    for more in held[1:]:
        fine = fine & more
    first, *rest = maps or [pt.zeros(())]
    return [pt.where(fine, first, np.nan), *rest]


class _DisagreementError(RuntimeError):
    """The density that was read as a function of sums is not that of the releases."""


class Engine:
    """Compiled sweeps over one block of records.

    Attributes
    ----------
    block : Block
        The records.
    parameters : list of TensorVariable
        Variables that interweaving moves, flattened to one vector in the space of their values;
        none that depend on the records.
    in_full : str
        Why the statistic is computed afresh for every proposal; empty where it need not be.
    fixed : str
        Why the parameters cannot be moved along with the records; empty where they can.
    is_cut : bool
        Whether proposals may be refused for the sole reason that the point cannot hold them.
    """

    def __init__(self, model: pm.Model, block: Block, start: Point):
        self.block = block
        self.parameters = parameters(Reading(model), block)
        self._model = model
        # What compiling it anew takes; the records of the point would be most of a pickle.
        own = {model.rvs_to_values[rv].name for rv in block.records}
        self._start = {name: value for name, value in start.items() if name not in own}
        self._records = {rv: rv.type(f"{rv.name}_records") for rv in block.records}
        self._theta, self._new_theta = pt.dvector("theta"), pt.dvector("new_theta")
        self._centers = pt.dvector("centers")
        self._lay_out(start)
        density = factor_density(model, block)
        self._reading: Additive | None = None
        self.in_full = ""
        try:
            self._reading = additive(density, dict.fromkeys(block.records, block.n))
        except Declined as error:
            self.in_full = str(error)

        graphs = self._graphs(density)
        self._collect(graphs)
        graphs = self._with_env(graphs)
        self._check_draws(graphs, start)
        self._compile(graphs)
        del self._reading

    def __reduce__(self):
        """Pickle the model, not what was compiled, which other processes cannot load."""
        return Engine, (self._model, self.block, self._start)

    # --- Graphs ---------------------------------------------------------------------------------

    def _lay_out(self, start: Point) -> None:
        """Lay the values of the parameters out in one vector."""
        model = self._model
        self._slices = []
        position = 0
        for rv in self.parameters:
            value = model.rvs_to_values[rv]
            shape = np.shape(start[value.name])
            size = int(np.prod(shape))
            self._slices.append((value, slice(position, position + size), shape))
            position += size
        self.size = position
        transforms = [model.rvs_to_transforms.get(rv) for rv in self.block.records]
        self.names = [model.rvs_to_values[rv].name for rv in self.block.records]
        self._is_plain = all(transform is None for transform in transforms)
        if not self._is_plain:
            self._to_records = point_function(model, list(self.block.records))

    def _graphs(self, density: TensorVariable) -> dict[str, list[TensorVariable]]:
        """Everything that will be compiled, in terms of records, theta and further inputs."""
        graphs = {"full": [density], "maps": [], "public": [], "held": []}
        if self._reading is not None:
            centered = {self._reading.centers: self._centers}
            graphs["maps"] = _substituted(self._reading.maps, centered)
            graphs["public"] = _substituted([g for _, g in self._reading.public], centered)
        graphs = {name: _substituted(group, self._records) for name, group in graphs.items()}
        representable, lawful = self._representable(), self._lawful()
        # Of laws without such parameters the model says itself that they have no density.
        self.is_cut = bool(representable) and not lawful
        graphs["held"] = representable + lawful
        graphs["maps"] = _refused(graphs["maps"], graphs["held"])
        graphs["propose"] = self._proposals()
        graphs["prior"] = [self._prior()]
        graphs["values"] = self._transformed()
        graphs["inside"] = self._inside()
        graphs = {name: self._at(group, self._theta) for name, group in graphs.items()}
        self.fixed = ""
        try:
            graphs["couple"] = self._at(self._coupling(), self._theta)
        except NotImplementedError as error:
            self.fixed = str(error)
        return graphs

    def _at(self, graphs: Sequence[TensorVariable], theta: TensorVariable) -> list[TensorVariable]:
        """Replace random variables by values, those of the parameters by entries of `theta`."""
        graphs = self._model.replace_rvs_by_values(list(graphs)) if graphs else []
        values = {v: theta[s].reshape(shape).astype(v.dtype) for v, s, shape in self._slices}
        return _replaced(graphs, values)

    def _proposals(self) -> list[TensorVariable]:
        drawn: dict = {}
        for rv in self.block.records:
            again = fresh(rv, drawn)
            drawn[rv] = proposals(rv.owner.op, again, self.block.n)
        return list(drawn.values())

    def _coupling(self) -> list[TensorVariable]:
        """Return the records under the new parameters."""
        if not self.size:
            return list(self._records.values())
        moved: dict = {}

        def draw(law, *arguments):
            rng = pt.random.shared_rng(seed=None)
            return law(*arguments, rng=rng, return_next_rng=True)[1]

        for rv, x in self._records.items():
            [old] = self._at([fresh(rv, self._records)], self._theta)
            [new] = self._at([fresh(rv, moved)], self._new_theta)
            moved[rv] = transport(rv.owner.op, old, new, x, draw).astype(rv.dtype)
        return list(moved.values())

    def _prior(self) -> TensorVariable:
        """Log density of everything that changes with the parameters but is no record or factor.

        Where the parameters leave the domain of the records' law, which cancels in the moves with
        its density, it is -inf.
        """
        model, skipped = self._model, {*self.block.records, *self.block.factors}
        moving = self._moving()
        terms = [
            rv
            for rv in model.basic_RVs
            if rv not in skipped and (rv in moving or moving & set(parents(rv)))
        ]
        terms += [
            p for p in model.potentials if p not in skipped and moving & set(nearest_rvs([p]))
        ]
        density = model.logp(vars=terms, sum=True) if terms else pt.zeros(())
        valid = [pt.all(c) for c in self._domain() if not self._is_of_records(c)]
        return pt.switch(pt.all(pt.stack(valid)), density, -np.inf) if valid else density

    def _moving(self) -> set[TensorVariable]:
        """Return the parameters, and what they carry along: the point holds transformed values."""
        moving = set(self.parameters)
        while True:
            more = {
                rv
                for rv in self._model.free_RVs
                if rv not in moving
                and rv not in self.block.records
                and moving & set(transform_parents(self._model, rv))
            }
            if not more:
                return moving
            moving |= more

    def _domain(self) -> list[TensorVariable]:
        """Return the conditions on the parameters of the records' laws."""
        conditions = []
        for rv, x in self._records.items():
            density = logp(rv, x, warn_rvs=False)
            for variable in ancestors([density], blockers=list(self._model.basic_RVs)):
                if variable.owner and isinstance(variable.owner.op, CheckParameterValue):
                    conditions += [u for c in variable.owner.inputs[1:] for u in _unreduced(c)]
        return conditions

    def _is_of_records(self, condition: TensorVariable) -> bool:
        return bool(set(nearest_rvs([condition])) & set(self.block.records))

    def _lawful(self) -> list[TensorVariable]:
        """Return the conditions, one for each record, under which its law has such parameters."""
        found = _substituted([c for c in self._domain() if self._is_of_records(c)], self._records)
        return [c.all(axis=tuple(range(1, c.type.ndim))) if c.type.ndim > 1 else c for c in found]

    def _representable(self) -> list[TensorVariable]:
        """Return the conditions, one for each record, under which the point can hold it."""
        transforms = self._model.rvs_to_transforms
        found = [
            representable(fresh(rv, self._records), x, transforms.get(rv))
            for rv, x in self._records.items()
        ]
        return [f for f in found if f is not None]

    def _inside(self) -> list[TensorVariable]:
        """Return the records with those on an end of their support moved off it."""
        transforms = self._model.rvs_to_transforms
        return [
            brought_inside(fresh(rv, self._records), x, transforms.get(rv)).astype(x.dtype)
            for rv, x in self._records.items()
        ]

    def _transformed(self) -> list[TensorVariable]:
        """Return the records in the space of their values, where a transform makes it another."""
        changed = []
        for rv, x in self._records.items():
            transform = self._model.rvs_to_transforms.get(rv)
            changed.append(x if transform is None else transform.forward(x, *rv.owner.inputs))
        return _substituted(changed, self._records)

    # --- Inputs ---------------------------------------------------------------------------------

    def _collect(self, graphs: dict[str, list[TensorVariable]]) -> None:
        """Find what else the graphs are computed from: data, noise scales, other variables."""
        above = ancestors([g for group in graphs.values() for g in group])
        others = {rv.name for rv in self._model.basic_RVs if rv not in self.block.records}
        for copied in (v for v in above if is_random(v) and v.name in others):
            raise RuntimeError(f"{copied.name!r} would be drawn, not read: please report this")
        known = {*self._records.values(), self._theta, self._new_theta}
        self._env: dict[Variable, TensorVariable] = {}
        self._sources: list = []
        for variable in graph_inputs([g for group in graphs.values() for g in group]):
            if variable in known or variable in self._env or isinstance(variable.type, RandomType):
                continue
            if isinstance(variable, Constant) and (
                not hasattr(variable.type, "shape") or np.size(variable.data) <= _BIG
            ):
                continue
            self._env[variable] = variable.type()
            if isinstance(variable, Constant):
                self._sources.append(np.array(variable.data))
            elif variable is self._centers or isinstance(variable, SharedVariable):
                self._sources.append(variable)
            else:
                self._sources.append(variable.name)  # of the point
        self._columns = [] if self._reading is None else self._reading.columns
        self._center_values = np.zeros(len(self._columns))

    def _with_env(self, graphs: dict[str, list[TensorVariable]]) -> dict[str, list[TensorVariable]]:
        flat = iter(_replaced([g for group in graphs.values() for g in group], self._env))
        return {name: [next(flat) for _ in group] for name, group in graphs.items()}

    def _arguments(self) -> list[TensorVariable]:
        return [self._theta, *self._records.values(), *self._env.values()]

    def _check_draws(self, graphs: dict[str, list[TensorVariable]], start: Point) -> None:
        """Draw records at the start; check there that the sums give what the statistic gives."""
        # Not worth compiling: evaluated once a chain, or a few operations.
        self._full = plain_function(self._arguments(), graphs["full"][0])
        if not self._is_plain:
            self._to_values, self._to_inside = (
                pytensor.function(
                    self._arguments(), graphs[name], on_unused_input="ignore", trust_input=True
                )
                for name in ("values", "inside")
            )
        self._are_held = plain_function(self._arguments(), graphs["held"])
        propose = from_graph([self._theta, *self._env.values()], graphs["propose"], rng=True)
        self._propose = propose
        theta, rng = self.theta(start), np.random.default_rng(1)
        try:
            x = self.draw(rng, theta, self.env(start))
        except Exception as error:
            raise ValueError(
                f"the records {self.block.name!r} cannot be drawn from their law: {error}. Give "
                f"them a proper distribution that PyMC can draw from"
            ) from error
        self.center(x)
        self._n_sums = 0 if self._reading is None else len(self._reading.sums)
        if self._reading is None:
            return
        self._sums_of = plain_function(self._arguments(), graphs["maps"])
        self._public_of = plain_function([self._theta, *self._env.values()], graphs["public"])
        scalars = [*self._reading.sums, *(s for s, _ in self._reading.public)]
        self._outer = plain_function(scalars, pt.as_tensor(self._reading.outer))
        checked = 0
        for k in range(_CHECKS):
            # Where the releases are impossible there is nothing to compare: look farther away.
            here = theta + 0.5 * max(k - 1, 0) * rng.standard_normal(theta.size)
            env = self.env(start)
            try:
                x = self.draw(rng, here, env)
                checked += self._compare(x, here, env)
            except ValueError:  # parameters without a law
                continue
            except _DisagreementError as error:
                self._reading = None
                graphs["maps"] = _refused([], graphs["held"])
                self.in_full = f"a numerical check of what was read of it failed ({error})"
                return
            if checked == 2:
                return

    def _compare(self, x, theta, env) -> bool:
        """Compare the density of the releases from sums with that from records, if it is finite."""
        expected = self.log_density(x, theta, env)
        if not math.isfinite(expected):
            return False
        sums = [np.broadcast_to(m, self.block.n).sum() for m in self._sums_of(theta, *x, *env)]
        found = float(self._outer(*sums[: self._n_sums], *self._public_of(theta, *env)))
        if not np.isclose(found, expected, rtol=1e-6, atol=1e-6):
            raise _DisagreementError(f"{found} instead of {expected}; please report this")
        return True

    def _compile(self, graphs: dict[str, list[TensorVariable]]) -> None:
        env, x = list(self._env.values()), list(self._records.values())
        theta, new_theta, n = self._theta, self._new_theta, self.block.n

        prior = from_graph([theta, *env], [graphs["prior"][0].astype("float64")])
        x_new = [v.type() for v in x]
        coupled = graphs.get("couple", x)  # without one, nothing moves
        couple = from_graph([theta, new_theta, *x, *env], coupled, rng=True)
        if self._reading is None:
            i = pt.lscalar()
            chosen = [pt.set_subtensor(v[i], new[i]) for v, new in zip(x, x_new, strict=True)]
            choose = from_graph([i, *x_new, *x], chosen)
            density = from_graph([theta, *x, *env], [graphs["full"][0].astype("float64")])
            public = from_source("unused", "*rest", "rest")
            make = make_sweeps_in_full
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
            scalars = [s for s, _ in self._reading.public]
            density = from_scalars([self._reading.sums, scalars], self._reading.outer)
            make = make_sweeps
        rows = [m.astype("float64") for m in graphs["maps"]]
        maps = from_graph([theta, *x, *env], [pt.stack([pt.broadcast_to(m, (n,)) for m in rows])])
        pieces = Pieces(self._propose, maps, public, density, choose, couple, prior)
        keys = [piece.key for piece in pieces]
        key = None if None in keys else repr((make.__name__, keys))
        sweeps = Piece(make(Pieces(*(piece.function for piece in pieces))), key)
        # Single arrays cross from Python much faster than tuples of them.
        names = [f"x{i}" for i in range(len(x))], [f"e{i}" for i in range(len(env))]
        packed = [f"({''.join(f'{name}, ' for name in group)})" for group in names]
        self._run = from_source(
            "sweeps",
            ", ".join(["rng, theta, axes, scales, count, moves, turn", *names[0], *names[1]]),
            f"inner(rng, {packed[0]}, theta, {packed[1]}, axes, scales, count, moves, turn)",
            inner=sweeps,
        ).function

    # --- Use ------------------------------------------------------------------------------------

    def theta(self, point: Point) -> np.ndarray:
        """Return the parameters of a point as one vector."""
        parts = [np.ravel(point[value.name]) for value, _, _ in self._slices]
        return np.concatenate([np.zeros(0), *parts]).astype("float64")

    def records(self, point: Point) -> tuple[np.ndarray, ...]:
        """Return the records of a point."""
        if self._is_plain:
            return tuple(np.array(point[name]) for name in self.names)
        function, inputs = self._to_records
        x = [_contiguous(v) for v in function(*[point[i] for i in inputs])]
        # Of a transform that depends on theta, the way there and back may end on the end.
        inside = self._to_inside(self.theta(point), *x, *self.env(point))
        return tuple(_contiguous(v) for v in inside)

    def update(self, point: Point, x: Sequence[np.ndarray], theta: np.ndarray) -> Point:
        """Return a point with other records and parameters."""
        new = {
            value.name: theta[s].reshape(shape).astype(value.dtype)
            for value, s, shape in self._slices
        }
        values = x if self._is_plain else self._to_values(theta, *x, *self.env(point))
        new.update(zip(self.names, values, strict=True))
        return {**point, **new}

    def env(self, point: Point) -> tuple[np.ndarray, ...]:
        """Return the further inputs of the compiled functions, data as they stand now."""
        found = []
        for source in self._sources:
            if source is self._centers:
                found.append(self._center_values)
            elif isinstance(source, SharedVariable):
                found.append(_contiguous(source.get_value(borrow=True)))
            elif isinstance(source, np.ndarray):
                found.append(source)
            else:
                found.append(_contiguous(point[source]))
        return tuple(found)

    def log_density(self, x, theta, env) -> float:
        """Log density of the releases given the records, computed from the records themselves.

        NaN where the point cannot hold them, or the law of one has no such parameters.
        """
        try:
            if not self._hold(x, theta, env).all():
                return math.nan
            return float(self._full(theta, *x, *env))
        except ParameterValueError:  # the noise scale, from a pm.Data
            return math.nan

    def check(self, x, theta, env) -> None:
        """Check once more what was read of the releases, at records where they are possible.

        Raises
        ------
        RuntimeError
            If the sums give another density than the records.
        """
        if not self.in_full:
            self._compare(x, theta, env)

    def draw(self, rng: np.random.Generator, theta, env) -> tuple[np.ndarray, ...]:
        """Draw records from their law, again those that cannot be in a chain."""
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
        """Whether the point can hold each record, and its law has such parameters."""
        found = [np.broadcast_to(f, self.block.n) for f in self._are_held(theta, *x, *env)]
        return np.logical_and.reduce([np.ones(self.block.n, dtype=bool), *found])

    def center(self, x: Sequence[np.ndarray]) -> None:
        """Keep the sums centred near these records' means."""
        position = {rv: k for k, rv in enumerate(self.block.records)}
        self._center_values = np.array(
            [np.mean(x[position[rv]], axis=0)[index] for rv, index in self._columns]
        )

    def sweep(self, rng, x, theta, env, axes, scales, sweeps: int, moves: int, turn: int):
        """Run compiled sweeps; see `kernels.records.make_sweeps`."""
        return self._run(rng, theta, axes, scales, sweeps, moves, turn, *x, *env)
