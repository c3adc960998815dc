"""The law of what was released of sums over public groups of rows."""

from __future__ import annotations

import numpy as np
from pytensor.graph.basic import Variable

from pymc_dp.graphs.declined import Declined
from pymc_dp.laws.moments.rows import JointRows
from pymc_dp.laws.moments.sums import ExactLatents, column_products
from pymc_dp.laws.sum_law import SUM_LAWS, groups_in_words, is_rows
from pymc_dp.reading.column_sums import RowRelease
from pymc_dp.reading.model import require_possible
from pymc_dp.reading.row_groups import read_row_groups


@SUM_LAWS.register(order=46)
class GroupedColumns(JointRows):
    """Rows of several columns by public groups: a regression in each, say."""

    @classmethod
    def read(cls, reading, group):
        """See `SumLaw.read`."""
        if not is_rows(group):
            raise Declined
        rows = read_row_groups(reading, group)
        require_possible([release.rv for release in rows.releases])
        for release in rows.releases:
            if release.op.bounds is not None:
                raise Declined(
                    f"the release {release.name!r} states bounds=: on the sums of groups of rows "
                    f"none are kept. Leave it out, or sample with rung='records'",
                    near=2,
                )
        latents, sizes = ExactLatents(rows.width, rows.sizes).size, rows.sizes
        if latents * sizes.size >= rows.width * sizes.sum():
            raise Declined(
                f"the rows {rows.name!r} are in {sizes.size} groups of {sizes.min()} to "
                f"{sizes.max()} that are alike: there is no shorter statistic than these rows",
                near=0 if rows.sizes.max() > 1 else -1,
            )
        for release in rows.releases:
            _require_known(release)
        return cls(reading, rows)

    def describe(self, release):
        """See `SumLaw.describe`."""
        rows, products = self.rows, column_products(self.rows.width)
        [found] = [r for r in rows.releases if r.rv is release]
        try:
            used = np.unique(self.matrix(found.linear())[0].indices)
        except Declined:
            used = np.unique(self.matrix(found.of_sums())[0].indices)
            what = f"a function of {len(found.maps)} sums"
        else:
            terms = [products[p] for p in np.unique(used % len(products))]
            what = ", ".join(f"Σ {'·'.join(rows.labels[j] for j in term)}" for term in terms)
        sizes = rows.sizes[np.unique(used // len(products))]
        return groups_in_words(what, sizes, f"the rows {', '.join(rows.labels)}")

    def integrated(self):
        """See `SumLaw.integrated`."""
        raise Declined(
            f"the sums over groups of the rows {self.rows.name!r} follow Wishart laws, which have "
            f"no marginal in closed form: use to='statistics'"
        )


def _require_known(release: RowRelease) -> None:
    """Decline what is no function of sums, with numbers that do not change."""
    if release.degree > 2:
        raise Declined(
            f"the release {release.name!r} is of products of {release.degree} columns: sums of "
            f"single columns and of products of two have a known law",
            near=1,
        )
    if any(isinstance(c, Variable) for c in release.public().values()):
        raise Declined(
            f"the statistic of the release {release.name!r} has coefficients that are no "
            f"fixed numbers, pm.Data say: write numbers in their place",
            near=2,
        )
