"""Counts of a few cells that entries of a release share, summed out over all their values."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
import pytensor.tensor as pt
from pytensor.tensor.variable import TensorVariable

from pymc_dp.graphs.draws import per_draw
from pymc_dp.laws.counts.marginal import log_binomial, log_sum
from pymc_dp.laws.integrated import Integrated, in_results
from pymc_dp.mechanisms.base import Mechanism


@dataclass(frozen=True, eq=False)
class ListedCounts(Integrated):
    """A release that is linear in the counts of a few cells: a sum over all values of the counts.

    The log density is one number for all entries; the parameter is the probabilities of the cells.

    Attributes
    ----------
    names : the name in results of the counts.
    trials : the trials of each cell.
    weights, constant : the raveled release is ``weights @ counts + constant``, and noise.
    shape : the shape of the release.
    """

    names: tuple[str]
    trials: np.ndarray
    weights: np.ndarray
    constant: np.ndarray
    shape: tuple[int, ...]

    @cached_property
    def states(self) -> np.ndarray:
        """All values of the vector of counts, one in each row."""
        return np.indices(tuple(self.trials.astype(int) + 1)).reshape(self.trials.size, -1).T

    def draw(self, rng, chance):
        """See `Integrated.draw`."""
        trials = self.trials.astype("int64")
        rng, counts = pt.random.binomial(trials, chance, rng=rng, return_next_rng=True)
        return rng, (pt.dot(self.weights, counts) + self.constant).reshape(self.shape)

    def log_joint(self, value, mechanism: Mechanism, chance) -> TensorVariable:
        """Log density of the release and each state."""
        total = pt.zeros(len(self.states))
        for k, n in enumerate(self.trials):
            mass = log_binomial(pt.arange(int(n) + 1), n, chance[k])
            total += mass[self.states[:, k]]
        statistics = self.states @ self.weights.T + self.constant
        each = mechanism.logp(value, statistics.reshape(-1, *self.shape))
        return total + each.sum(axis=tuple(range(1, each.type.ndim)))

    def logp(self, value, mechanism, chance):
        """See `Integrated.logp`."""
        return log_sum(self.log_joint(value, mechanism, chance))

    def recovered(self, rv, value, posterior, rng):
        """See `Integrated.recovered`."""
        mechanism, [chance] = rv.owner.op.split(rv.owner.inputs)
        joint = per_draw(posterior, self.log_joint(value, mechanism, chance))
        # Gumbel trick: the largest of log probabilities plus Gumbel noise is an exact draw.
        k = np.argmax(joint + rng.gumbel(size=joint.shape), axis=1)
        return in_results(posterior, *self.names, self.states[k])
