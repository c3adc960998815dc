"""The graphs that are compiled for a chain: the law of records as a function of sums over them."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytensor.tensor as pt
from pymc.distributions.custom import CustomDistRV
from pymc.distributions.distribution import DiracDeltaRV
from pytensor.graph.basic import Constant, Variable
from pytensor.graph.traversal import ancestors
from pytensor.scalar import basic as ps
from pytensor.tensor.elemwise import DimShuffle, Elemwise
from pytensor.tensor.random.op import RandomVariable
from pytensor.tensor.variable import TensorVariable

from pymc_dp.graphs.declined import Declined
from pymc_dp.graphs.shapes import lengths
from pymc_dp.graphs.values import nearest_rvs
from pymc_dp.laws.continuity import has_atoms, is_continuous
from pymc_dp.reading.groups import Records
from pymc_dp.reading.sums import Additive, additive
from pymc_dp.step_methods.base import in_a_row
from pymc_dp.step_methods.records.graphs import RecordGraphs, substituted


class ChainGraphs(RecordGraphs):
    """The graphs for one block of records in a compiled chain.

    `RecordGraphs`, and: ``law``, the density of the records and the parameters; ``gather``, the
    sums over records that ``law`` takes, which are the sufficient statistics of an exponential
    family, and none where the density is no function of sums; ``collect``, the recorded values of a
    draw. The first of several blocks has the prior and the parameters of all.

    Parameters
    ----------
    blocks : of the chain.
    recorded : variables of the model.
    """

    def __init__(self, model, block, moving, slices, blocks: Sequence[Records], recorded):
        self._recorded, self._is_first = recorded, block is blocks[0]
        self._blocks = blocks
        super().__init__(model, block, moving, slices)

    def _apart(self):
        if not self._is_first:
            return {*self._model.basic_RVs, *self._model.potentials}
        return {rv for block in self._blocks for rv in (*block.records, *block.factors)}

    @property
    def by_sums(self) -> bool:
        """Whether the density is a function of sums."""
        return self._law is not None

    def _densities(self):
        self._law = self._read_law()
        return super()._densities()

    def _read_law(self) -> Additive | None:
        """Read the density of the records as a function of sums whose terms no parameter enters."""
        moving = self._moving()
        laws = [self._law_of(rv, rv) for rv in self.records]
        # In a mixture, values outside of the support of one component may be of another.
        laws = [
            _in_support(law, self.block.records, moving) if _is_one_law(rv) else law
            for rv, law in zip(self.records, laws, strict=True)
        ]
        density = sum(law.sum() for law in laws)
        try:
            law = additive(density, dict.fromkeys(self.records, self.block.n), apart=moving)
        except Declined:
            return None
        if moving & set(nearest_rvs(law.maps)):
            return None
        self.columns = law.columns
        return law

    def _further(self, graphs):
        laws = [self._law_of(rv, x) for rv, x in self.records.items()]
        [whole] = substituted([sum(law.sum() for law in laws)], self.records)
        density = whole
        sums: list[TensorVariable] = []
        if self._law is not None:
            centered = {self._law.centers: self.centers_of(self._law)}
            maps, symbols = self._law.rows()
            maps = substituted(substituted(maps, centered), self.records)
            sums = [pt.atleast_1d(m.sum(axis=-1)) for m in maps]
            public = substituted([g for _, g in self._law.public], centered)
            values = {s: self.law_sums[k] for k, s in enumerate(symbols)}
            values |= dict(zip([s for s, _ in self._law.public], public, strict=True))
            [density] = self._law.at(values)
        [prior], theta = graphs["prior"], self.theta[: None if self._is_first else 0]
        return super()._further(graphs) | {
            "law": [prior + density.astype("float64")],
            "law, whole": [prior + whole.astype("float64")],
            "gather": [pt.concatenate(sums) if sums else pt.zeros(0)],
            "collect": [in_a_row([theta, *substituted(self._recorded, self.records)])],
        }


def _in_support(
    density: TensorVariable, records: Sequence[TensorVariable], moving: set[TensorVariable]
) -> TensorVariable:
    """Return a log density without the conditions that records in their support fulfil.

    Records of a chain are in their support: they are drawn from it, and its ends do not move.
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
            [density] = substituted([density], {variable: branch})
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
    """Whether a condition asks a continuous value to equal a number: it never does."""
    node = condition.owner
    match node and isinstance(node.op, Elemwise) and node.op.scalar_op:
        case ps.AND() | ps.Mul() if condition.dtype == "bool":
            return any(map(_is_point, node.inputs))
        case ps.EQ():
            value, number = node.inputs
            above = nearest_rvs([value])
            continuous = above and all(is_continuous(rv) and _is_one_law(rv) for rv in above)
            smooth = not has_atoms([value], blockers=above)
            return bool(continuous) and smooth and isinstance(_unexpanded(number), Constant)
    return False


def _is_one_law(rv: TensorVariable) -> bool:
    """Whether a variable is neither a mixture nor censored, nor has a density of the user's."""
    op = rv.owner.op
    return not isinstance(op, CustomDistRV | DiracDeltaRV) and (
        isinstance(op, RandomVariable) or is_continuous(rv)
    )
