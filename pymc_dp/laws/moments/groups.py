r"""Means and variances of groups of Normal records.

In group j of :math:`n_j` records with mean :math:`m_j` and variance :math:`v_j`,
:math:`\bar y_j \sim N(m_j, v_j / n_j)` and
:math:`s_j^2 \sim \mathrm{Gamma}((n_j - 1) / 2, (n_j - 1) / (2 v_j))`, all independent.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import pymc as pm
import pytensor.tensor as pt
from pymc.logprob.transforms import LogTransform
from pytensor.tensor.variable import TensorVariable

from pymc_dp.graphs.declined import Declined
from pymc_dp.graphs.questions import known_shape, nonnegative
from pymc_dp.laws.one_value import Law, Piece, pieces_release
from pymc_dp.laws.sum_law import SUM_LAWS, Change, SumLaw, groups_in_words
from pymc_dp.mechanisms.release import release_rv
from pymc_dp.reading.cells import at_records, have_one_law
from pymc_dp.reading.model import release_mechanism
from pymc_dp.reading.quadratic import quadratic_releases


class Entries(NamedTuple):
    """The entries of a release, raveled: of which group each is, and which multiples of what."""

    group: np.ndarray
    constant: np.ndarray
    mean: np.ndarray
    variance: np.ndarray


@SUM_LAWS.register(order=42)
@dataclass(frozen=True, eq=False)
class GroupMoments(SumLaw):
    """Normal records: functions of the mean and variance of public groups."""

    rv: TensorVariable
    sizes: np.ndarray
    mean: TensorVariable  # of each group, or one for all
    variance: TensorVariable
    releases: dict[TensorVariable, Entries]

    @classmethod
    def named(cls):
        """See `SumLaw.named`."""
        return ""

    @classmethod
    def read(cls, reading, group):
        """See `SumLaw.read`."""
        rv, found = quadratic_releases(reading, group)
        groups: dict[bytes, tuple[int, np.ndarray]] = {}
        releases = {}
        for release, read in found.items():
            number = []
            for entry in read:
                key = entry.records.tobytes()
                number.append(groups.setdefault(key, (len(groups), entry.records))[0])
            multiples = np.array([entry.moments() for entry in read]).reshape(-1, 3)
            releases[release] = Entries(np.array(number, dtype=int), *multiples.T)
        members = np.concatenate([records for _, records in groups.values()])
        if np.unique(members).size < members.size:
            why = f"the groups of the records {rv.name!r} that are released overlap"
            raise Declined(why, near=1)
        sizes = np.array([records.size for _, records in groups.values()])
        parameters = rv.owner.op.dist_params(rv.owner)
        if not have_one_law(rv, parameters, members, sizes):
            why = f"the records {rv.name!r} of one group have different parameters"
            raise Declined(why, near=1)
        first = members[np.cumsum([0, *sizes[:-1]])]
        mu, sigma = (at_records(rv, p, first).astype("float64") for p in parameters)
        variance = nonnegative(sigma) ** 2
        return cls(rv, sizes, mu, variance, releases)

    def uses(self, which: str) -> np.ndarray:
        """Return the groups whose mean or variance entries are of, one for each of these."""
        return np.concatenate([e.group[getattr(e, which) != 0] for e in self.releases.values()])

    def describe(self, release):
        """See `SumLaw.describe`."""
        group, _, mean, variance = self.releases[release]
        what = " and ".join(
            name for name, by in (("mean", mean), ("variance", variance)) if by.any()
        )
        sizes = self.sizes[np.unique(group)]
        return groups_in_words(what, sizes, self.rv.name)

    def name_of(self, which: str, release: TensorVariable | None = None) -> str:
        """Return the name in results of the means or of the variances, all or of one release."""
        several = sum(getattr(e, which).any() for e in self.releases.values()) > 1
        of = f"{self.rv.name}_{release.name}" if release is not None and several else self.rv.name
        return f"{of}_{'var' if which == 'variance' else which}"

    def law_of(self, which: str, groups: np.ndarray) -> TensorVariable:
        """Return the law of the means or of the variances of some groups."""
        n = self.sizes[groups]
        m, v = (p[groups] if p.type.ndim else p for p in (self.mean, self.variance))
        if which == "mean":
            return pm.Normal.dist(m, pt.sqrt(v / n), shape=n.shape)
        return pm.Gamma.dist((n - 1) / 2, (n - 1) / (2 * v), shape=n.shape)

    def latents(self):
        """Keep the means and variances as latent variables."""
        change, kept = Change(), {}
        for which, transform in (("mean", None), ("variance", LogTransform())):
            groups = np.unique(self.uses(which))
            if groups.size:
                latent = self.law_of(which, groups)
                change.added[self.name_of(which)] = latent, transform
                kept[which] = latent, np.searchsorted(groups, np.arange(self.sizes.size))
        for release in self.releases:
            group, constant, *multiples = self.releases[release]
            statistic = pt.constant(constant)
            for which, factor in zip(("mean", "variance"), multiples, strict=True):
                if factor.any():
                    latent, place = kept[which]
                    own = np.where(factor != 0, place[group], 0)
                    statistic = statistic + factor * latent[own]
            statistic = statistic.reshape(known_shape(release))
            change.replaced[release] = release_rv(statistic, release_mechanism(release))
        return change

    def integrated(self):
        """Integrate the means and variances out, too."""
        change = Change()
        if any(((e.mean != 0) & (e.variance != 0)).any() for e in self.releases.values()):
            raise Declined(
                f"an entry is of both the mean and the variance of a group of {self.rv.name!r}: no "
                f"closed form. Use to='statistics'"
            )
        for which in ("mean", "variance"):
            used = self.uses(which)
            if np.unique(used).size < used.size:
                raise Declined(
                    f"the {which} of a group of {self.rv.name!r} is released more than once: the "
                    f"entries are dependent. Use to='statistics'"
                )
        for release in self.releases:
            group, constant, mean, variance = self.releases[release]
            mechanism, pieces = release_mechanism(release), []
            for which, factor in (("mean", mean), ("variance", variance)):
                [own] = np.nonzero(factor)
                if own.size:
                    node = self.law_of(which, group[own]).owner
                    law = Law(node.op, tuple(node.op.dist_params(node)))
                    numbers = factor[own], constant[own]
                    pieces.append(Piece(self.name_of(which, release), law, own, *numbers))
            change.replaced[release] = pieces_release(pieces, release, mechanism)
        return change
