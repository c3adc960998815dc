"""The privacy loss that is stated for the releases of some records."""

from __future__ import annotations

import math
from dataclasses import dataclass

import pymc as pm
from pytensor.scalar import basic as ps
from pytensor.tensor.elemwise import Elemwise
from pytensor.tensor.random.basic import BernoulliRV, BetaRV, CategoricalRV, UniformRV
from pytensor.tensor.variable import TensorVariable

from pymc_dp.graphs.values import depends_on
from pymc_dp.mechanisms.release import PrivateReleaseRV
from pymc_dp.reading.groups import Records
from pymc_dp.reading.model import release_statistic


@dataclass(frozen=True)
class Loss:
    """Total epsilon stated for all that is released of some records.

    Attributes
    ----------
    records, releases : names.
    epsilon : the sum over all releases and their entries.
    confined : whether every record that the model can draw is known to be in the domain of the
        mechanism: its values are clipped, or their law is bounded.
    walled : whether a release states bounds of the records, outside of which they cannot be.
    """

    records: str
    releases: str
    epsilon: float
    confined: bool
    walled: bool = False

    def contradicted(self, log_probability: float) -> bool:
        """Whether replacing one record must not be accepted with a probability this low."""
        if self.walled and log_probability == -math.inf:
            return False
        return log_probability < -self.epsilon - 1e-9

    def contradiction(self, log_probability: float) -> str:
        """Say what it means that replacing one record was accepted with this probability."""
        bound = math.exp(-self.epsilon)
        seen = (
            f"replacing one of the records {self.records!r} changes the density of {self.releases} "
            f"by a factor of {math.exp(log_probability):.3g}, less than exp(-epsilon) = "
            f"{bound:.3g} for the stated total epsilon = {self.epsilon:.3g}"
        )
        if self.confined:
            return (
                f"The stated epsilon or sensitivity must be wrong: {seen}. (If epsilon is stated "
                f"for adding or removing a record, the limit is exp(-2 epsilon) = {bound**2:.3g}.)"
            )
        return (
            f"The stated epsilon or sensitivity may be wrong: {seen}. Or the model puts records "
            f"outside of the range for which the sensitivity holds: clip them in the statistic, as "
            f"the curator did, or choose a law with that range."
        )


def stated_loss(model: pm.Model, block: Records) -> Loss | None:
    """Return the total privacy loss of a block's releases, where each of them states one."""
    total = 0.0
    for factor in block.factors:
        if factor in model.potentials or not isinstance(factor.owner.op, PrivateReleaseRV):
            return None
        spent = factor.owner.op.mechanism.stated_epsilon(factor.type.shape)
        if spent is None:
            return None
        total += spent
    statistics = [release_statistic(f) for f in block.factors]
    confined = all(_bounded(rv) or all(_clipped(s, rv) for s in statistics) for rv in block.records)
    names = ", ".join(repr(f.name) for f in block.factors)
    walled = any(f.owner.op.bounds is not None for f in block.factors)
    return Loss(block.name, names, total, confined, walled) if block.factors else None


def _bounded(rv: TensorVariable) -> bool:
    return isinstance(rv.owner.op, BernoulliRV | CategoricalRV | BetaRV | UniformRV)


def _clipped(expression: TensorVariable, rv: TensorVariable) -> bool:
    """Whether an expression uses the records through clipped values and comparisons only."""
    if expression is rv:
        return False
    if not depends_on(expression, rv):
        return True
    op = expression.owner.op
    if isinstance(op, Elemwise) and isinstance(
        op.scalar_op, ps.Clip | ps.LT | ps.GT | ps.LE | ps.GE | ps.EQ | ps.NEQ
    ):
        return True
    return all(_clipped(i, rv) for i in expression.owner.inputs)
