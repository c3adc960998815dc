r"""Releases of records with finitely many values, the records integrated out.

Binary records enter a statistic through the number of ones c alone:

.. math::

    p(z \mid p) = \sum_{c=0}^n \mathrm{Binomial}(c; n, p)\, \eta(z \mid s(c)).

All terms are summed. A scalar release that is linear in c, under log-concave noise, needs a few of
the terms only: it is a release of a binomial count, see `laws.count_sums`.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pytensor.tensor as pt
from pytensor.gradient import disconnected_grad
from pytensor.scalar import basic as ps
from pytensor.tensor.variable import TensorVariable

from pymc_dp.graphs.draws import per_draw
from pymc_dp.graphs.ops import KernelOp
from pymc_dp.kernels.functions.count_masses import log_binomial as binomial_kernel
from pymc_dp.laws.counts.density import compile_noise
from pymc_dp.laws.integrated import Integrated, in_results
from pymc_dp.mechanisms.base import Mechanism
from pymc_dp.reading.counts import CountStatistic

# In the place of zero and of its log, against NaN.
TINY, NEVER = np.float64(1e-290), np.float64(-1e300)


class LogBinomial(KernelOp):
    """Log mass of a binomial count; inputs c, n, p, q = 1 - p.

    The derivatives in p and q are those of c log p + (n - c) log q; c and n are integers.
    """

    nin = fixed = 4
    kernel = staticmethod(binomial_kernel)

    def pullback(self, inputs, outputs, output_gradients):
        """Return the gradients of the inputs."""
        c, n, p, q = inputs
        [gradient] = output_gradients
        return [
            c.zeros_like(dtype="float64"),
            n.zeros_like(dtype="float64"),
            gradient * c / ps.maximum(p, TINY),
            gradient * (n - c) / ps.maximum(q, TINY),
        ]


def log_binomial(count: TensorVariable, n: int, p: TensorVariable) -> TensorVariable:
    """Log mass of a binomial count, accurate for large n."""
    return LogBinomial.apply(count, np.float64(n), p, 1.0 - p)


def log_sum(terms: TensorVariable, axis: int = -1) -> TensorVariable:
    """Log of a sum of exponentials; minus infinity if all the terms are."""
    terms = pt.maximum(terms, NEVER)
    top = disconnected_grad(pt.max(terms, axis=axis, keepdims=True))
    total = pt.log(pt.sum(pt.exp(terms - top), axis=axis)) + top.squeeze(axis)
    return pt.switch(top.squeeze(axis) > 0.5 * NEVER, total, -np.inf)


@dataclass(frozen=True, eq=False)
class OnesAmongRecords(Integrated):
    """The number of ones among n binary records; the parameter is the probability of a one.

    The log density is one number for all entries of the release.
    """

    statistic: CountStatistic
    n: int
    names: tuple[str, ...]

    def cost(self, entries: int) -> dict[str, float]:
        """See `Integrated.cost`."""
        return {"ones among records": self.n}

    def draw(self, rng, p):
        """See `Integrated.draw`."""
        rng, ones = pt.random.binomial(self.n, p, rng=rng, return_next_rng=True)
        return rng, self.statistic.of_binary(ones.astype("float64"), self.n)

    def log_eta(self, counts, value, mechanism: Mechanism) -> TensorVariable:
        """Log density of a release for each of several counts."""
        each = mechanism.logp(value, self.statistic.of_binary(counts.astype("float64"), self.n))
        return each.sum(axis=tuple(range(1, each.type.ndim)))

    def logp(self, value, mechanism, p):
        """See `Integrated.logp`."""
        counts = pt.arange(self.n + 1)
        return log_sum(log_binomial(counts, self.n, p) + self.log_eta(counts, value, mechanism))

    def recovered(self, rv, value, posterior, rng):
        """See `Integrated.recovered`: the number of ones."""
        mechanism, [p] = rv.owner.op.split(rv.owner.inputs)
        counts, rows = pt.dvector("counts"), pt.lvector("rows")
        log_eta = self.log_eta(counts[1:], value, mechanism)[0]
        noise = compile_noise(log_eta, counts, rows, np.empty((0, 2)))
        probabilities = per_draw(posterior, p)
        drawn = np.empty(probabilities.size, dtype="int64")
        data = noise.read({})
        state = np.array([self.n - self.n // 2, self.n // 2], dtype=float)
        for i, chance in enumerate(probabilities):
            weights = np.array([1.0 - chance, chance])
            if not noise.draw(rng, state, weights, False, False, data):
                raise ValueError(
                    f"{self.names[0]!r} cannot be drawn: no count explains the release"
                )
            drawn[i] = state[1]
        return in_results(posterior, self.names[0], drawn)
