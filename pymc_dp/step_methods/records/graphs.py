"""What is compiled for a block of confidential records, as graphs."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pymc as pm
import pytensor.tensor as pt
from pymc.logprob.basic import logp
from pymc.logprob.utils import CheckParameterValue
from pytensor.compile.sharedvalue import SharedVariable
from pytensor.graph.basic import Constant, Variable
from pytensor.graph.replace import graph_replace
from pytensor.graph.traversal import ancestors, graph_inputs
from pytensor.scalar import basic as ps
from pytensor.scalar.basic import ScalarVariable
from pytensor.tensor.basic import MakeVector, ScalarFromTensor
from pytensor.tensor.elemwise import DimShuffle, Elemwise
from pytensor.tensor.math import All
from pytensor.tensor.random.type import RandomType
from pytensor.tensor.type import DenseTensorType
from pytensor.tensor.variable import TensorVariable

from pymc_dp.graphs.declined import Declined
from pymc_dp.graphs.questions import is_random, lengths, nearest_rvs
from pymc_dp.laws.transport import transport
from pymc_dp.reading.groups import Block, factor_density, transform_parents
from pymc_dp.reading.model import parents
from pymc_dp.reading.sums import Additive, additive
from pymc_dp.step_methods.records.proposals import proposals
from pymc_dp.step_methods.records.representable import brought_inside, representable

_BIG = 16  # larger constants are arguments of compiled code, not part of it


def _replaced(graphs: Sequence[TensorVariable], by: dict) -> list[TensorVariable]:
    return list(graph_replace(list(graphs), by, strict=False)) if graphs and by else list(graphs)


def _substituted(graphs: Sequence[TensorVariable], by: dict) -> list[TensorVariable]:
    """Replace as `_replaced` does; random variables on the way stay those of the model.

    PyTensor may copy them, and the model does not know the copies: they would be drawn.
    """
    return _replaced(graphs, {rv: rv for rv in nearest_rvs(graphs)} | by if by else by)


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


def _in_support(
    density: TensorVariable, records: Sequence[TensorVariable], moving: set[TensorVariable]
) -> TensorVariable:
    """Return a log density without the conditions that records in their support fulfil.

    Records of a chain are in it: they are drawn from their law, and no parameter cuts it.
    """
    while True:
        for variable in ancestors([density]):
            node = variable.owner
            if node is None or not isinstance(node.op, Elemwise) or node.op.scalar_op != ps.switch:
                continue
            condition, yes, no = node.inputs
            above = set(nearest_rvs([condition]))
            if _is_point(condition):
                branch = no
            elif not above & {*records} or above & moving:
                continue
            elif _is_impossible(no):
                branch = yes
            elif _is_impossible(yes):
                branch = no
            else:
                continue
            branch = pt.alloc(branch.astype(variable.dtype), *lengths(variable))
            [density] = graph_replace([density], {variable: branch})
            break
        else:
            return density


def _unexpanded(variable: Variable) -> Variable:
    while variable.owner and isinstance(variable.owner.op, DimShuffle):
        [variable] = variable.owner.inputs
    return variable


def _is_impossible(variable: Variable) -> bool:
    variable = _unexpanded(variable)
    return isinstance(variable, Constant) and bool(np.all(variable.data == -np.inf))


def _is_point(condition: Variable) -> bool:
    """Whether a condition takes continuous values that are a certain number."""
    node = condition.owner
    match node and isinstance(node.op, Elemwise) and node.op.scalar_op:
        case ps.AND():
            return any(map(_is_point, node.inputs))
        case ps.EQ():
            value, number = node.inputs
            continuous = all(rv.dtype.startswith("float") for rv in nearest_rvs([value]))
            return continuous and isinstance(_unexpanded(number), Constant)
    return False


def refused(maps: list[TensorVariable], held: list[TensorVariable]) -> list[TensorVariable]:
    """Put NaN into the first rows for every record that is not `held`; see `kernels.records`."""
    if not held:
        return maps or [pt.zeros(())]
    fine = held[0]
    for more in held[1:]:
        fine = fine & more
    first, *rest = maps or [pt.zeros(())]
    return [pt.where(fine, first, np.nan), *rest]


class RecordGraphs:
    """What is compiled for a block of records.

    Attributes
    ----------
    graphs : dict of lists
        By name: the density of the releases in full, the maps that are summed and the public
        values of its reading, what holds of each record, proposals, the prior of what moves,
        records as values, off the ends of their support, and under new parameters. Of a chain,
        the density of the records and what moves, the sums that it takes, what is recorded.
    records, theta, new_theta, centers, law_sums
        What stands in them for the records, the parameters, new ones, centers of the sums, and
        the sums of the law of the records.
    columns : tuple
        Those of the centers.
    direct : bool
        Whether the density of the releases depends on the parameters, given the records.
    env, sources : dict, list
        Further inputs, and where they come from: names of the point, data, numbers.
    reading : Additive, optional
        The density of the releases as a function of sums.
    sums : list
        Its sums, in the order of their maps.
    in_full, fixed, is_cut
        As of `engine.Engine`.
    """

    def __init__(
        self,
        model: pm.Model,
        block: Block,
        moving: Sequence[TensorVariable],
        slices,
        recorded: Sequence[TensorVariable] | None = None,
    ):
        self.block, self._model, self._parameters, self._slices = block, model, moving, slices
        self.records = {rv: rv.type(f"{rv.name}_records") for rv in block.records}
        self.theta, self.new_theta = pt.dvector("theta"), pt.dvector("new_theta")
        self.centers, self.law_sums = pt.dvector("centers"), pt.dvector("law_sums")
        density = factor_density(model, block)
        sizes = dict.fromkeys(block.records, block.n)
        self.reading: Additive | None = None
        self.in_full = ""
        try:
            self.reading = additive(density, sizes)
        except Declined as error:
            self.in_full = str(error)
        self.columns = () if self.reading is None else self.reading.columns
        self._law: Additive | None = None
        if recorded is not None:
            self._law = self._read_law(sizes)
        graphs = self._all(density)
        if recorded is not None:
            graphs |= self._of_chain(graphs["prior"][0], recorded)
        self._collect(graphs)
        flat = iter(_replaced([g for group in graphs.values() for g in group], self.env))
        self.graphs = {name: [next(flat) for _ in group] for name, group in graphs.items()}

    @property
    def arguments(self) -> list[TensorVariable]:
        """Return parameters, records and further inputs."""
        return [self.theta, *self.records.values(), *self.env.values()]

    def read_in_full(self, why: str) -> None:
        """Give the reading up."""
        self.reading, self.in_full = None, why
        self.graphs["maps"] = refused([], self.graphs["held"])

    def _all(self, density: TensorVariable) -> dict[str, list[TensorVariable]]:
        graphs = {"full": [density], "maps": [], "public": [], "held": []}
        self.sums: list[ScalarVariable] = []
        if self.reading is not None:
            centered = {self.reading.centers: self._centers_of(self.reading)}
            maps, self.sums = self.reading.rows()
            graphs["maps"] = _substituted(maps, centered)
            graphs["public"] = _substituted([g for _, g in self.reading.public], centered)
        graphs = {name: _substituted(group, self.records) for name, group in graphs.items()}
        laws = [
            (fresh(rv, self.records), x, self._model.rvs_to_transforms.get(rv))
            for rv, x in self.records.items()
        ]
        held = [found for law in laws if (found := representable(*law)) is not None]
        lawful = self._lawful()
        # Of laws without such parameters the model says itself that they have no density.
        self.is_cut = bool(held) and not lawful
        graphs["held"] = held + lawful
        graphs["maps"] = refused(graphs["maps"], graphs["held"])
        graphs["propose"] = self._proposals()
        graphs["prior"] = [self._prior()]
        # What the point holds of records; and records, those off it that came back on an end.
        values = [x if t is None else t.forward(x, *rv.owner.inputs) for rv, x, t in laws]
        graphs["values"] = _substituted(values, self.records)
        graphs["inside"] = [brought_inside(rv, x, t).astype(x.dtype) for rv, x, t in laws]
        graphs = {name: self._at(group, self.theta) for name, group in graphs.items()}
        self.fixed = ""
        try:
            graphs["couple"] = self._at(self._coupling(), self.theta)
        except NotImplementedError as error:
            self.fixed = str(error)
        return graphs

    # --- Of a chain -----------------------------------------------------------------------------

    def _read_law(self, sizes: dict[TensorVariable, int]) -> Additive | None:
        """Read the density of the records as a function of sums, free of what moves."""
        moving = self._moving()
        density = sum(logp(rv, rv, warn_rvs=False).sum() for rv in self.block.records)
        density = _in_support(density, self.block.records, moving)
        try:
            law = additive(density, sizes, apart=moving)
        except Declined:
            return None
        if moving & set(nearest_rvs(law.maps)):
            return None
        self.columns = law.columns
        return law

    def _centers_of(self, reading: Additive) -> TensorVariable:
        places = [self.columns.index(column) for column in reading.columns]
        return self.centers[np.array(places, dtype=int)]

    def _of_chain(
        self, prior: TensorVariable, recorded: Sequence[TensorVariable]
    ) -> dict[str, list[TensorVariable]]:
        laws = [logp(fresh(rv, self.records), x, warn_rvs=False) for rv, x in self.records.items()]
        whole = density = sum(law.sum() for law in laws)
        sums: list[TensorVariable] = []
        if self._law is not None:
            centered = {self._law.centers: self._centers_of(self._law)}
            maps, symbols = self._law.rows()
            maps = _substituted(_substituted(maps, centered), self.records)
            sums = [pt.atleast_1d(m.sum(axis=-1)) for m in maps]
            public = _substituted([g for _, g in self._law.public], centered)
            values = {s: self.law_sums[k] for k, s in enumerate(symbols)}
            values |= dict(zip([s for s, _ in self._law.public], public, strict=True))
            [density] = self._law.at(values)
        graphs = {
            "law": [density],
            "law, whole": [whole],
            "gather": [pt.concatenate(sums) if sums else pt.zeros(0)],
            "collect": _substituted(recorded, self.records),
        }
        graphs = {name: self._at(group, self.theta) for name, group in graphs.items()}
        for name in ("law", "law, whole"):
            graphs[name] = [prior + graphs[name][0].astype("float64")]
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
        if not self._slices:
            return list(self.records.values())
        moved: dict = {}

        def draw(law, *arguments):
            rng = pt.random.shared_rng(seed=None)
            return law(*arguments, rng=rng, return_next_rng=True)[1]

        for rv, x in self.records.items():
            [old] = self._at([fresh(rv, self.records)], self.theta)
            [new] = self._at([fresh(rv, moved)], self.new_theta)
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
        moving = set(self._parameters)
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
        for rv, x in self.records.items():
            density = logp(rv, x, warn_rvs=False)
            for variable in ancestors([density], blockers=list(self._model.basic_RVs)):
                if variable.owner and isinstance(variable.owner.op, CheckParameterValue):
                    conditions += [u for c in variable.owner.inputs[1:] for u in _unreduced(c)]
        return conditions

    def _is_of_records(self, condition: TensorVariable) -> bool:
        return bool(set(nearest_rvs([condition])) & set(self.block.records))

    def _lawful(self) -> list[TensorVariable]:
        """Return the conditions, one for each record, under which its law has such parameters."""
        found = _substituted([c for c in self._domain() if self._is_of_records(c)], self.records)
        return [c.all(axis=tuple(range(1, c.type.ndim))) if c.type.ndim > 1 else c for c in found]

    def _collect(self, graphs: dict[str, list[TensorVariable]]) -> None:
        """Find what else the graphs are computed from: data, noise scales, other variables."""
        above = ancestors([g for group in graphs.values() for g in group])
        others = {rv.name for rv in self._model.basic_RVs if rv not in self.block.records}
        for copied in (v for v in above if is_random(v) and v.name in others):
            raise RuntimeError(f"{copied.name!r} would be drawn, not read: please report this")
        known = {*self.records.values(), self.theta, self.new_theta, self.law_sums}
        self.env: dict[Variable, TensorVariable] = {}
        self.sources: list = []
        for variable in graph_inputs([g for group in graphs.values() for g in group]):
            if variable in known or variable in self.env or isinstance(variable.type, RandomType):
                continue
            if isinstance(variable, Constant) and (
                not isinstance(variable.type, DenseTensorType) or np.size(variable.data) <= _BIG
            ):
                continue
            self.env[variable] = variable.type()
            if isinstance(variable, Constant):
                self.sources.append(np.array(variable.data))
            elif variable is self.centers or isinstance(variable, SharedVariable):
                self.sources.append(variable)
            else:
                self.sources.append(variable.name)  # of the point
