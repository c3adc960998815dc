r"""Noisy counts of the classes that records of unknown number fall into.

Given n they are multinomial, so that with :math:`E_k(c)` the density of what is released of class k

.. math::

    p(z \mid n) = n! \sum_{c_1 + \dots + c_K = n} \prod_k \frac{p_k^{c_k}}{c_k!} E_k(c_k)

is a convolution, of sequences that are as long as the noise is wide. It is taken in log space, one
class after the other: nothing cancels, and whatever the law of n is, the sum over n follows.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pytensor.tensor as pt
from pytensor.tensor.random.basic import BernoulliRV, CategoricalRV
from pytensor.tensor.random.op import RandomVariable
from pytensor.tensor.variable import TensorVariable

from pymc_dp.laws.counts.marginal import log_sum
from pymc_dp.laws.tails import log_between

_NEVER = np.float64(-1e300)  # log of what is impossible, kept out of NaN
_LEAST = np.log(1e-290)  # log of the smallest probability of a class


@dataclass(frozen=True, eq=False)
class Histogram:
    """The law of a record, and the classes whose counts are released.

    Attributes
    ----------
    law, count : of the records, and how many parameters it has.
    edges : between the values of continuous records; None of records with values 0, 1, ...
    classes : the class of each value, or of each interval between edges.
    windows : the first and the last count of each class that its release leaves possible; None
        without a release.
    """

    law: RandomVariable
    count: int
    edges: np.ndarray | None
    classes: np.ndarray
    windows: tuple[tuple[int, int] | None, ...] = ()
    summand = multiple = None

    @property
    def size(self) -> int:
        """The number of classes."""
        return int(self.classes.max()) + 1

    def log_chances(self, parameters) -> TensorVariable:
        """Log probability of each class."""
        if self.edges is None:
            each = pt.log(parameters[0])
            if isinstance(self.law, BernoulliRV):
                each = pt.stack([pt.log1p(-parameters[0]), each])
        else:
            each = log_between(self.law, parameters, self.edges)
        each = pt.maximum(each, _LEAST)
        return pt.stack(
            [log_sum(each[np.flatnonzero(self.classes == k)]) for k in range(self.size)]
        )

    def draw(self, rng, n, parameters):
        """Draw the counts of n records, of one group."""
        chances = pt.special.softmax(self.log_chances(parameters))
        return pt.random.multinomial(n[0], chances, rng=rng, return_next_rng=True)

    def spans(self, most: int) -> list[tuple[int, int]]:
        """Return the first and the last count of each class, among at most so many records."""
        return [(0, most) if w is None else (w[0], min(w[1], most)) for w in self.windows]

    def work(self, sizes: np.ndarray) -> int:
        """Return how many terms are added up."""
        total, length = 0, 1
        for first, last in self.spans(int(sizes[-1])):
            length = min(length + last - first, int(sizes[-1]) + 1)
            total += length * (last - first + 1)
        return total

    def terms(self, sizes: np.ndarray, released: Sequence, parameters) -> TensorVariable:
        """Log density of the released counts for each number of records.

        `released` are values, their mechanisms, constants and slopes for each number, which are
        all the same, and the class.
        """
        most, log_p = int(sizes[-1]), self.log_chances(parameters)
        begin, total = 0, pt.zeros(1)
        for k, (first, last) in enumerate(self.spans(most)):
            counts = np.arange(first, last + 1)
            terms = counts * log_p[k] - pt.gammaln(counts + 1.0)
            for value, mechanism, constant, slope, of_class in released:
                if of_class == k:
                    terms = terms + mechanism.logp(
                        value, pt.constant(constant[0] + slope[0] * counts)
                    )
            # Entry n of a convolution adds up entry n - c of earlier classes and c of this class.
            length = total.type.shape[0]
            ends = np.arange(min(length + last - first, most + 1 - begin - first))
            place = ends[:, None] - np.arange(counts.size)
            place = np.where((place >= 0) & (place < length), place, length)
            padded = pt.concatenate([total, np.array([_NEVER])])
            total = log_sum(padded[place] + pt.maximum(terms, _NEVER))
            total = pt.specify_shape(pt.maximum(total, _NEVER), (ends.size,))
            begin += first
        place = sizes - begin
        inside = (place >= 0) & (place < total.type.shape[0])
        log_density = total[np.where(inside, place, 0)] + pt.gammaln(sizes + 1.0)
        return pt.switch(inside & pt.gt(log_density, 0.5 * _NEVER), log_density, -np.inf)


def number_of_values(law: RandomVariable, parameters: Sequence[TensorVariable]) -> int | None:
    """Return how many values records have; None if not finitely many codes."""
    if isinstance(law, BernoulliRV):
        return 2
    return parameters[0].type.shape[-1] if isinstance(law, CategoricalRV) else None
