"""The law of released sums over rows of several columns."""

from __future__ import annotations

import pytensor.tensor.random.basic as ptr

from pymc_dp.graphs.declined import Declined
from pymc_dp.laws.sum_law import LAWS, Phase, Takes, in_words
from pymc_dp.plugins.regression.rows import JointRows
from pymc_dp.reading.checks import require_possible
from pymc_dp.reading.columns import Rows, read_rows
from pymc_dp.reading.model import releases_of
from pymc_dp.reading.propriety import check_proper_rows


@LAWS.register(Phase.SPECIFIC, Takes(rows=True))
class Columns(JointRows):
    """Rows of several columns: a regression, or a multivariate Normal."""

    of = "rows of Normal"

    @classmethod
    def read(cls, reading, group):
        """See `SumLaw.read`."""
        rows = read_rows(reading, group)
        _require_products(rows)
        require_possible(releases_of(reading.model, group.records))
        check_proper_rows(reading, rows)
        return cls(reading, rows)

    def describe(self, release):
        """See `SumLaw.describe`."""
        rows = self.rows
        [row_release] = [r for r in rows.releases if r.rv is release]
        try:
            entries = [_terms(p, rows) for p in row_release.linear()]
        except Declined:
            return (
                f"a function of {len(row_release.maps)} sums over the rows {', '.join(rows.labels)}"
            )
        return ", ".join(entries)

    def statistics(self):
        """Keep the sample mean and covariance matrix of the rows, as functions of latents."""
        _require_rows(self.rows)
        return super().statistics()

    def marginal(self):
        """See `SumLaw.marginal`."""
        self.rows.law()  # raises, with the reason, if they have none
        raise Declined(
            f"the sums over the rows {self.rows.name!r} follow a Wishart law, which has no "
            f"marginal in closed form: use to='statistics', or approximate='clt'"
        )


def _terms(polynomial, rows: Rows) -> str:
    """Write a linear function of sums in words."""
    terms = []
    for monomial, factor in polynomial.items():
        product = "·".join(rows.labels[j] for j in monomial)
        if not monomial:
            terms.append(f"{factor:g}" if len(polynomial) > 1 else f"{factor:g} (public)")
        else:
            terms.append(in_words(factor, f"Σ {product}"))
    return " + ".join(terms) or "0"


def _require_rows(rows: Rows) -> None:
    if rows.n <= rows.width:
        raise Declined(
            f"there are {rows.n} rows of {rows.width} columns ({', '.join(rows.labels)}): their "
            f"covariance matrix has a density from {rows.width + 1} rows on. Sample with "
            f"rung='records'"
        )


def _require_products(rows: Rows) -> None:
    """Decline independent columns if only sums of single columns were released."""
    [first, *rest] = rows.links
    independent = not rest and isinstance(first.rv.owner.op, ptr.NormalRV) and rows.width > 1
    if independent and all(release.degree <= 1 for release in rows.releases):
        raise Declined(
            f"the columns of the records {rows.name!r} are independent, and so are their sums, "
            f"which have a law of their own"
        )
