r"""Means and variances of groups of Normal records.

In group j of :math:`n_j` records with mean :math:`m_j` and variance :math:`v_j`,
:math:`\bar y_j \sim N(m_j, v_j / n_j)` and
:math:`s_j^2 \sim \mathrm{Gamma}((n_j - 1) / 2, (n_j - 1) / (2 v_j))`, all independent.
"""

from __future__ import annotations

from itertools import pairwise
from typing import NamedTuple

import numpy as np
import pytensor.tensor as pt
from pymc.logprob.transforms import LogTransform
from pytensor.tensor.random.basic import NormalRV
from pytensor.tensor.variable import TensorVariable

from pymc_dp.graphs.declined import Declined
from pymc_dp.graphs.signs import nonnegative
from pymc_dp.laws.moments.one_column import law_of_moment
from pymc_dp.laws.one_value import Law, Piece, pieces_release
from pymc_dp.laws.sum_law import groups_in_words
from pymc_dp.laws.sums import FAMILIES, Family, Placed
from pymc_dp.reading.cells import at_records, have_one_law
from pymc_dp.reading.model import mechanism_of


class Multiples(NamedTuple):
    """A raveled release: constant + mean * (mean of group) + variance * (variance of group)."""

    group: np.ndarray
    constant: np.ndarray
    mean: np.ndarray
    variance: np.ndarray


@FAMILIES.register(order=30)
class Moments(Family):
    """Functions of the means and variances of public groups of Normal records.

    Attributes
    ----------
    sizes : the sizes of the groups.
    mean, variance : the parameters of each group, or scalars.
    multiples : for each release, its entries in terms of groups.
    """

    takes = (NormalRV,)
    joint = True
    alone = True  # beside other variables, `Normal` covers sums, and squares are declined

    def __init__(self, sums):
        super().__init__(sums)
        rv, index, times = self.rv, sums.statistics[0].index, sums.statistics[0].times
        groups: dict[bytes, tuple[int, np.ndarray]] = {}
        self.multiples: dict[TensorVariable, Multiples] = {}
        for statistic in sums.statistics:
            support, number = statistic.support, []
            for start, end in pairwise(support.indptr):
                records = support.indices[start:end]
                of_none = (0, records)  # all multiples are zero
                key, new = records.tobytes(), (len(groups), records)
                number.append((groups.setdefault(key, new) if records.size else of_none)[0])
            self.multiples[statistic.rv] = Multiples(
                np.array(number, dtype=int), *statistic.moments().T
            )
        members = np.concatenate([records for _, records in groups.values()])
        if np.unique(members).size < members.size:
            why = f"the groups of the records {rv.name!r} that are released overlap"
            raise Declined(why, near=1)
        columns = np.array([records.size for _, records in groups.values()])
        self.sizes = np.array([times[records].sum() for _, records in groups.values()])
        parameters = rv.owner.op.dist_params(rv.owner)
        if not have_one_law(index, parameters, members, columns):
            why = f"the records {rv.name!r} of one group have different parameters"
            raise Declined(why, near=1)
        first = members[np.cumsum([0, *columns[:-1]])]
        self.mean, sigma = (at_records(index, p, first).astype("float64") for p in parameters)
        self.variance = nonnegative(sigma) ** 2

    def uses(self, moment: str) -> np.ndarray:
        """Return the groups of the entries that use the mean or the variance, one for each."""
        used = [m.group[getattr(m, moment) != 0] for m in self.multiples.values()]
        return np.concatenate(used)

    def describe(self, statistic):
        """See `Family.describe`."""
        group, _, mean, variance = self.multiples[statistic.rv]
        moments = " and ".join(
            name for name, factor in (("mean", mean), ("variance", variance)) if factor.any()
        )
        return groups_in_words(moments, self.sizes[np.unique(group)], self.rv.name)

    def name_of(self, moment: str, release: TensorVariable | None = None) -> str:
        """Return the name in results of the means or the variances, in all releases or in one."""
        several = sum(getattr(m, moment).any() for m in self.multiples.values()) > 1
        prefix = self.rv.name
        if release is not None and several:
            prefix = f"{prefix}_{release.name}"
        return f"{prefix}_{'var' if moment == 'variance' else moment}"

    def of_groups(self, moment: str, groups: np.ndarray) -> TensorVariable:
        """Return the law of the means or of the variances of some groups."""
        n = self.sizes[groups]
        m, v = (p[groups] if p.type.ndim else p for p in (self.mean, self.variance))
        return law_of_moment(moment, m, v, n, shape=n.shape)

    def statistics(self, change):
        """Keep the means and variances as latent variables."""
        kept, placed = {}, {}
        for moment, transform in (("mean", None), ("variance", LogTransform())):
            groups = np.unique(self.uses(moment))
            if groups.size:
                latent = self.of_groups(moment, groups)
                change.added[self.name_of(moment)] = latent, transform
                kept[moment] = latent, np.searchsorted(groups, np.arange(self.sizes.size))
        for release, (group, constant, *factors) in self.multiples.items():
            value = pt.constant(constant)
            for moment, factor in zip(("mean", "variance"), factors, strict=True):
                if factor.any():
                    latent, place = kept[moment]
                    index = np.where(factor != 0, place[group], 0)
                    value = value + factor * latent[index]
            placed[release] = Placed(np.arange(constant.size), value)
        return placed

    def marginal(self, statistic, change):
        """Integrate the means and variances out."""
        if any(((m.mean != 0) & (m.variance != 0)).any() for m in self.multiples.values()):
            raise Declined(
                f"an entry is of both the mean and the variance of a group of {self.rv.name!r}: no "
                f"closed form. Use to='statistics'"
            )
        for moment in ("mean", "variance"):
            used = self.uses(moment)
            if np.unique(used).size < used.size:
                raise Declined(
                    f"the {moment} of a group of {self.rv.name!r} is released more than once: the "
                    f"entries are dependent. Use to='statistics'"
                )
        group, constant, mean, variance = self.multiples[statistic.rv]
        pieces = []
        for moment, factor in (("mean", mean), ("variance", variance)):
            [entries] = np.nonzero(factor)
            if entries.size:
                node = self.of_groups(moment, group[entries]).owner
                law = Law(node.op, tuple(node.op.dist_params(node)))
                name, numbers = (
                    self.name_of(moment, statistic.rv),
                    (factor[entries], constant[entries]),
                )
                pieces.append(Piece(name, law, entries, *numbers))
        return pieces_release(pieces, statistic.rv, mechanism_of(statistic.rv))
