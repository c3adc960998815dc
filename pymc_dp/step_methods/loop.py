"""Steps in one compiled loop: the same draws and moves, without Python in between.

All values of a point are one vector q, whole numbers too. A round is: every exact draw of the steps
(`DPStep.loop_draws`), every move of parameters with what depends on them (`weave.Weave`), and moves
of the continuous parameters that no step draws, by random walks given all else.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from textwrap import indent

import numpy as np
import pymc as pm
import pytensor.tensor as pt
from pymc.step_methods.compound import BlockedStep
from pytensor.compile.sharedvalue import SharedVariable
from pytensor.graph.replace import graph_replace
from pytensor.graph.traversal import graph_inputs
from pytensor.tensor.random.type import RandomType
from pytensor.tensor.variable import TensorVariable

from pymc_dp.graphs.compiled import Piece, from_code, from_graph
from pymc_dp.graphs.declined import Declined
from pymc_dp.graphs.shapes import lengths, value_lengths
from pymc_dp.kernels import key_of, part
from pymc_dp.reading.factors import transform_parents
from pymc_dp.reading.groups import Records
from pymc_dp.reading.model import Reading, children
from pymc_dp.reading.records import by_rows
from pymc_dp.step_methods.base import DPStep, LoopDraw, in_a_row
from pymc_dp.step_methods.records.engine import Layout, Point
from pymc_dp.step_methods.weave import Weave, has_entries

_MAX_WALKED_ENTRIES = 20  # entries of parameters that no step draws


@part
def has_nan(x):
    """Whether a vector has a NaN."""
    return bool(np.isnan(x).any())


def loop_draws(reading: Reading, claimed) -> list[LoopDraw]:
    """Return the draws of steps for their variables; decline steps without draws in a loop."""
    draws = [draw for step, group in claimed for draw in _of_step(reading, step, group)]
    if not draws:
        raise Declined("no variable has a step of its own")
    left = undrawn(reading.model, draws)
    for rv in left:
        if not rv.dtype.startswith("float"):
            raise Declined(f"it does not cover {rv.name!r}, which is discrete and has no step")
    _check_few(reading.model, [rv for rv in left if not _alone(reading, rv)])
    return draws


def _alone(reading: Reading, rv: TensorVariable) -> int:
    """Return the number of entries that depend on each other through parameters only, else 0."""
    if not has_entries(reading.model, rv) or transform_parents(reading.model, rv):
        return 0
    n = value_lengths(reading.model, rv)[0]
    return n if n > 1 and all(by_rows(child, rv) for child in children(reading, rv)) else 0


def _check_few(model: pm.Model, left: Sequence[TensorVariable]) -> None:
    size = sum(math.prod(value_lengths(model, rv)) for rv in left)
    if size > _MAX_WALKED_ENTRIES:
        raise Declined(
            f"it moves up to {_MAX_WALKED_ENTRIES} parameters one by one, and {size} have no step: "
            f"{', '.join(repr(rv.name) for rv in left)}"
        )


def _of_step(reading: Reading, step: type[BlockedStep], group) -> list[LoopDraw]:
    if not issubclass(step, DPStep):
        raise Declined(f"{step.__name__}, for {group[0].name!r}, is no part of a compiled loop")
    return step.loop_draws(reading, group)


def undrawn(model: pm.Model, draws: Sequence[LoopDraw]) -> list[TensorVariable]:
    """Return the free variables that no step draws."""
    drawn = {rv for draw in draws for rv in draw.rvs}
    return [rv for rv in model.free_RVs if rv not in drawn]


def walks(reading: Reading, moving: Sequence[TensorVariable], start: Point) -> list[Weave]:
    """Return moves of parameters that carry nothing along: entry by entry, or all together.

    Raises
    ------
    Declined
        If too many parameters depend on each other.
    """
    model, weaves, left = reading.model, [], []
    for rv in moving:
        try:
            if not (n := _alone(reading, rv)):
                raise Declined("its entries depend on each other")
            block = Records((), n, tuple(children(reading, rv)))
            weaves.append(Weave(model, block, [rv], start))
        except Declined:
            left.append(rv)
    _check_few(model, left)
    below = dict.fromkeys(c for rv in left for c in children(reading, rv) if c not in left)
    return weaves + ([Weave(model, Records((), 0, tuple(below)), left, start)] if left else [])


class Loop(Layout):
    """A compiled loop over the values of a model.

    Parameters
    ----------
    reading : a model.
    draws : the draws of its steps.
    moving : moves of parameters, with what depends on them or alone.
    start : a point.
    recorded : graphs whose values are recorded of a draw, after q.

    Attributes
    ----------
    size : the length of q.
    """

    def __init__(
        self,
        reading: Reading,
        draws: Sequence[LoopDraw],
        moving: Sequence[Weave],
        start: Point,
        recorded: Sequence[TensorVariable],
    ):
        self._model = model = reading.model
        super().__init__(model, model.free_RVs, start)
        self._names = [", ".join(str(rv.name) for rv in draw.rvs) for draw in draws]
        self._q = pt.dvector("q")
        self._places = {value: (s, shape) for value, s, shape in self.slices}
        self.moving = moving
        graphs = [g for draw in draws for g in draw.inputs] + [*recorded]
        shared = [s for weave in moving for s in weave.sources if isinstance(s, SharedVariable)]
        self._data = list(dict.fromkeys([*_data(model.replace_rvs_by_values(graphs)), *shared]))
        self._inputs = [v.type() for v in self._data]
        self._pieces: dict[str, Piece] = {"has_nan": Piece(has_nan, key_of(has_nan))}
        lines = []
        for k, draw in enumerate(draws):
            lines += self._draw(k, draw)
        for k, weave in enumerate(moving):
            lines += self._weave(k, weave)
        self._pieces["collect"] = self._from_graph([], [in_a_row([self._q, *self._at(recorded)])])
        self._run = self._compiled(lines)

    def thetas(self, layout: Layout, rows: np.ndarray) -> np.ndarray:
        """Return the parameters of a move in rows of draws."""
        places = [self._places[value][0] for value, _, _ in layout.slices]
        return np.concatenate([rows[:, place] for place in places], axis=1)

    def read_data(self) -> list[np.ndarray]:
        """Return the data of the model as they are now."""
        return [np.asarray(v.get_value(borrow=True), order="C") for v in self._data]

    def run(self, rng, q, rounds: int, counts, turns, learnt, out: np.ndarray, data) -> None:
        """Make a draw for each row of `out`, in place; `learnt` has the arrays of each walk."""
        bad = self._run(
            rng,
            q,
            rounds,
            counts,
            turns,
            out,
            *(x for walk in learnt for x in walk),
            *data,
        )
        if bad >= 0:
            raise ValueError(
                f"{self._names[bad]!r} cannot be drawn any more: what depends on it has become "
                f"impossible. Sample with pm.sample(), whose steps look for a way out"
            )

    # --- Graphs ---------------------------------------------------------------------------------

    def _at(self, graphs: Sequence[TensorVariable]) -> list[TensorVariable]:
        """Replace variables of the model by entries of q, and data by inputs."""
        graphs = self._model.replace_rvs_by_values(list(graphs))
        replacements = {v: self._entry(v) for v in self._places}
        replacements |= dict(zip(self._data, self._inputs, strict=True))
        return graph_replace(graphs, replacements, strict=False) if graphs else []

    def _entry(self, value: TensorVariable) -> TensorVariable:
        place, shape = self._places[value]
        return self._q[place].reshape(shape).astype(value.dtype)

    def _from_graph(self, inputs, outputs) -> Piece:
        return from_graph([*inputs, self._q, *self._inputs], outputs)

    def _draw(self, k: int, draw: LoopDraw) -> list[str]:
        x, natural, first = pt.dvector("x"), {}, 0
        for rv in draw.rvs:
            shape = lengths(rv)
            size = math.prod(shape)
            natural[rv] = x[first : first + size].reshape(shape).astype(rv.dtype)
            first += size
        transforms = self._model.rvs_to_transforms
        values = [
            natural[rv]
            if (transform := transforms[rv]) is None
            else transform.forward(natural[rv], *rv.owner.inputs)
            for rv in draw.rvs
        ]
        self._pieces[f"given{k}"] = self._from_graph([], self._at(draw.inputs))
        self._pieces[f"draw{k}"] = draw.draw
        self._pieces[f"write{k}"] = self._from_graph([x], self._at([in_a_row(values)]))
        lines = [f"x = draw{k}(rng, *given{k}(q, *data))", f"if has_nan(x): return {k}"]
        lines.append(f"(v,) = write{k}(x, q, *data)")
        first = 0
        for rv in draw.rvs:
            place, shape = self._places[self._model.rvs_to_values[rv]]
            size = place.stop - place.start
            lines.append(f"q[{place.start}:{place.stop}] = v[{first}:{first + size}]")
            first += size
        return lines

    def _put(self, k: int, layout: Layout, values: Sequence[TensorVariable]) -> None:
        """Compile the function that puts new parameters and carried values into q."""
        theta, entries = pt.dvector("theta"), {}
        for value, place, shape in layout.slices:
            entries[value] = theta[place].reshape(shape)
        inputs = {v: v.type() for v in values}
        entries |= inputs
        parts = [entries.get(v, self._q[place]) for v, (place, _) in self._places.items()]
        self._pieces[f"put{k}"] = self._from_graph([theta, *inputs.values()], [in_a_row(parts)])

    def _weave(self, k: int, weave: Weave) -> list[str]:
        carried = [self._model.rvs_to_values[rv] for rv in weave.latents]
        self._pieces[f"env{k}"] = self._from_graph([], [self._source(s) for s in weave.sources])
        self._pieces[f"weave{k}"] = weave.piece
        entries = [self._entry(value) for value, _, _ in weave.slices]
        self._pieces[f"theta{k}"] = self._from_graph([], [in_a_row(entries)])
        self._put(k, weave, carried)
        vals = "".join(f"vals[{j}], " for j in range(len(carried)))
        return [
            f"(theta,) = theta{k}(q, *data)",
            f"vals, theta, t, m = weave{k}("
            f"rng, theta, env{k}(q, *data), a{k}, s{k}, counts[{k}], turns[{k}])",
            f"turns[{k}] += counts[{k}]",
            f"t{k} += t",
            f"m{k} += m",
            f"(v,) = put{k}(theta, {vals}q, *data)",
            "q[:] = v",
        ]

    def _source(self, source) -> TensorVariable:
        if isinstance(source, str):
            return self._entry(next(v for v in self._places if v.name == source))
        if isinstance(source, SharedVariable):
            return self._inputs[self._data.index(source)]
        return pt.constant(source)

    def _compiled(self, lines: Sequence[str]):
        data = [f"d{i}" for i in range(len(self._data))]
        learnt = [f"{name}{k}" for k in range(len(self.moving)) for name in "astm"]
        code = [
            f"data = ({''.join(f'{d}, ' for d in data)})",
            "for i in range(out.shape[0]):",
            "    for _ in range(rounds):",
            indent("\n".join(lines), " " * 8),
            "    (row,) = collect(q, *data)",
            "    out[i] = row",
            "return -1",
        ]
        arguments = ", ".join(["rng, q, rounds, counts, turns, out", *learnt, *data])
        return from_code("loop", arguments, "\n".join(code), **self._pieces).function


def _data(graphs: Sequence[TensorVariable]) -> list[SharedVariable]:
    return [
        v
        for v in graph_inputs(graphs)
        if isinstance(v, SharedVariable) and not isinstance(v.type, RandomType)
    ]
