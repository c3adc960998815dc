"""The graphs that are compiled for a block of confidential records."""

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
from pytensor.scalar.basic import ScalarVariable
from pytensor.tensor.basic import MakeVector, ScalarFromTensor
from pytensor.tensor.math import All
from pytensor.tensor.random.type import RandomType
from pytensor.tensor.type import DenseTensorType
from pytensor.tensor.variable import TensorVariable

from pymc_dp.graphs.declined import Declined
from pymc_dp.graphs.values import is_random, nearest_rvs
from pymc_dp.laws.transport import transport
from pymc_dp.reading.factors import factor_density, transform_parents
from pymc_dp.reading.groups import Records
from pymc_dp.reading.model import parents
from pymc_dp.reading.sums import Additive, additive
from pymc_dp.step_methods.records.proposals import proposals
from pymc_dp.step_methods.records.representable import brought_inside, representable

_BIG = 16  # larger constants are arguments of compiled code, not part of it


def _replaced(graphs: Sequence[TensorVariable], by: dict) -> list[TensorVariable]:
    return list(graph_replace(list(graphs), by, strict=False)) if graphs and by else list(graphs)


def substituted(graphs: Sequence[TensorVariable], by: dict) -> list[TensorVariable]:
    """Replace variables in graphs, and keep the random variables of the model.

    PyTensor may copy random variables. The model does not know the copies: they would be drawn.
    """
    return _replaced(graphs, {rv: rv for rv in nearest_rvs(graphs)} | by if by else by)


def fresh(rv: TensorVariable, replace: dict[TensorVariable, TensorVariable]) -> TensorVariable:
    """Return another draw of a variable, given other values of some of its parents."""
    return rv.owner.clone_with_new_inputs(
        substituted(rv.owner.inputs, replace), strict=False
    ).outputs[rv.index]


def _unreduced(condition: Variable) -> list[TensorVariable]:
    """Return the comparisons that a condition is the conjunction of."""
    node = condition.owner
    if node is None or not isinstance(node.op, All | MakeVector | ScalarFromTensor):
        return [condition]
    return [c for i in node.inputs for c in _unreduced(i)]


def refused(maps: list[TensorVariable], held: list[TensorVariable]) -> list[TensorVariable]:
    """Put NaN into the first rows for every record that is not `held`; see `records.sweeps`."""
    if not held:
        return maps or [pt.zeros(())]
    fine = held[0]
    for more in held[1:]:
        fine = fine & more
    first, *rest = maps or [pt.zeros(())]
    return [pt.where(fine, first, np.nan), *rest]


class CarriedGraphs:
    """The graphs for variables that move along with their parameters: records or latents.

    Attributes
    ----------
    graphs : dict of lists
        By name. full: the density of all that is computed from the variables. held: whether the
        point can hold each. prior: the density of the parameters. values: the transformed
        variables. inside: those off the ends of their support. couple: those under new parameters.
    records, theta, new_theta, centers, law_sums
        The inputs of the graphs: records, parameters, new parameters, centers of the sums, and sums
        of the records' law.
    columns : sequence
        The columns of records that the centers are of.
    env, sources : dict, list
        Further inputs, and where they come from: names of the point, data, numbers.
    fixed, is_cut
        As of `engine.Engine`.
    """

    def __init__(self, model: pm.Model, block: Records, moving: Sequence[TensorVariable], slices):
        self.block, self._model, self._parameters, self._slices = block, model, moving, slices
        self.records = {rv: rv.type(f"{rv.name}_records") for rv in block.records}
        self.theta, self.new_theta = pt.dvector("theta"), pt.dvector("new_theta")
        self.centers, self.law_sums = pt.dvector("centers"), pt.dvector("law_sums")
        self.columns: Sequence = ()
        graphs = self._all(self._densities())
        self._collect(graphs)
        flat = iter(_replaced([g for group in graphs.values() for g in group], self.env))
        self.graphs = {name: [next(flat) for _ in group] for name, group in graphs.items()}

    @property
    def arguments(self) -> list[TensorVariable]:
        """Return parameters, records and further inputs."""
        return [self.theta, *self.records.values(), *self.env.values()]

    def _densities(self) -> dict[str, list[TensorVariable]]:
        """Return what is computed from the records."""
        return {"full": [factor_density(self._model, self.block)]}

    def _further(self, graphs: dict[str, list[TensorVariable]]) -> dict[str, list[TensorVariable]]:
        """Return what else is to be compiled."""
        return {}

    def _all(self, graphs: dict[str, list[TensorVariable]]) -> dict[str, list[TensorVariable]]:
        graphs = {name: substituted(group, self.records) for name, group in graphs.items()}
        laws = [
            (fresh(rv, self.records), x, self._model.rvs_to_transforms.get(rv))
            for rv, x in self.records.items()
        ]
        held = [condition for law in laws if (condition := representable(*law)) is not None]
        lawful = self._lawful()
        # Records with parameters outside of the domain have no density in the model, either.
        self.is_cut = bool(held) and not lawful
        graphs["held"] = held + lawful
        graphs["prior"] = [self._prior()]
        graphs |= self._further(graphs)
        # The transformed records, for the point; and records, those on an end moved inside.
        values = [x if t is None else t.forward(x, *rv.owner.inputs) for rv, x, t in laws]
        graphs["values"] = substituted(values, self.records)
        graphs["inside"] = [brought_inside(rv, x, t).astype(x.dtype) for rv, x, t in laws]
        graphs = {name: self._at(group, self.theta) for name, group in graphs.items()}
        self.fixed = ""
        try:
            graphs["couple"] = self._at(self._coupling(), self.theta)
        except NotImplementedError as error:
            self.fixed = str(error)
        return graphs

    def _at(self, graphs: Sequence[TensorVariable], theta: TensorVariable) -> list[TensorVariable]:
        """Replace random variables by values, those of the parameters by entries of `theta`."""
        graphs = self._model.replace_rvs_by_values(list(graphs)) if graphs else []
        values = {v: theta[s].reshape(shape).astype(v.dtype) for v, s, shape in self._slices}
        return _replaced(graphs, values)

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

        It is -inf where parameters leave the domain of the records' law: the density of the law,
        which would say so, cancels in the moves.
        """
        model, skipped, moving = self._model, self._apart(), self._moving()
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

    def _apart(self) -> set[TensorVariable]:
        """Return the variables that are not part of the prior."""
        return {*self.block.records, *self.block.factors}

    def _moving(self) -> set[TensorVariable]:
        """Return the parameters, and variables whose transforms depend on them."""
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

    def _law_of(self, rv: TensorVariable, value: TensorVariable) -> TensorVariable:
        """Log density of a record at a value, in terms of the variables of the model.

        PyMC may copy random variables on the way, of which the model does not know.
        """
        known = self._model.basic_RVs
        above = {v: v.type() for v in ancestors(rv.owner.inputs, blockers=known) if v in known}
        [copied] = _replaced([rv], above)
        density = logp(copied, value, warn_rvs=False)
        [density] = substituted([density], {stand_in: v for v, stand_in in above.items()})
        return density

    def _domain(self) -> list[TensorVariable]:
        """Return the conditions on the parameters of the records' laws."""
        conditions = []
        for rv, x in self.records.items():
            density = self._law_of(rv, x)
            for variable in ancestors([density], blockers=list(self._model.basic_RVs)):
                if variable.owner and isinstance(variable.owner.op, CheckParameterValue):
                    conditions += [u for c in variable.owner.inputs[1:] for u in _unreduced(c)]
        return conditions

    def _is_of_records(self, condition: TensorVariable) -> bool:
        return bool(set(nearest_rvs([condition])) & set(self.block.records))

    def _lawful(self) -> list[TensorVariable]:
        """Return the conditions on the parameters of records' laws, an entry for each record."""
        held = substituted([c for c in self._domain() if self._is_of_records(c)], self.records)
        return [c.all(axis=tuple(range(1, c.type.ndim))) if c.type.ndim > 1 else c for c in held]

    def _collect(self, graphs: dict[str, list[TensorVariable]]) -> None:
        """Find what else the graphs are computed from: data, noise scales, other variables."""
        above = ancestors([g for group in graphs.values() for g in group])
        model_names = {rv.name for rv in self._model.basic_RVs if rv not in self.block.records}
        for copied in (v for v in above if is_random(v) and v.name in model_names):
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


class RecordGraphs(CarriedGraphs):
    """The graphs for a block of records.

    `CarriedGraphs`, and: maps, which are summed, and public, the public values, of the density as a
    function of sums; propose, new records.

    Attributes
    ----------
    reading : Additive, optional
        The density of the releases as a function of sums.
    sums : list
        Its sums, in the order of their maps.
    in_full
        As of `engine.Engine`.
    """

    reading: Additive | None
    in_full: str

    def read_in_full(self, why: str) -> None:
        """Give up the sums: compute the density from the records."""
        self.reading, self.in_full = None, why
        self.graphs["maps"] = refused([], self.graphs["held"])

    def _densities(self):
        graphs = super()._densities()
        self.reading, self.in_full = None, ""
        self.sums: list[ScalarVariable] = []
        graphs |= {"maps": [], "public": []}
        try:
            self.reading = additive(*graphs["full"], dict.fromkeys(self.records, self.block.n))
        except Declined as error:
            self.in_full = str(error)
            return graphs
        self.columns = self.columns or self.reading.columns
        centered = {self.reading.centers: self.centers_of(self.reading)}
        maps, self.sums = self.reading.rows()
        graphs["maps"] = substituted(maps, centered)
        graphs["public"] = substituted([g for _, g in self.reading.public], centered)
        return graphs

    def centers_of(self, reading: Additive) -> TensorVariable:
        """Return the centers of the columns of a reading."""
        places = [self.columns.index(column) for column in reading.columns]
        return self.centers[np.array(places, dtype=int)]

    def _further(self, graphs):
        maps = refused(graphs["maps"], graphs["held"])
        return {"maps": maps, "propose": self._proposals()}

    def _proposals(self) -> list[TensorVariable]:
        drawn: dict = {}
        for rv in self.block.records:
            again = fresh(rv, drawn)
            drawn[rv] = proposals(rv.owner.op, again, self.block.n)
        return list(drawn.values())
