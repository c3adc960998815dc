"""The law of released sums over rows of several columns."""

from __future__ import annotations

import logging
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from functools import singledispatch
from typing import Any
from weakref import WeakKeyDictionary

import numpy as np
import pymc as pm
import pytensor.tensor as pt
import pytensor.tensor.random.basic as ptr
import scipy
from pytensor.compile.sharedvalue import SharedVariable
from pytensor.graph.basic import Variable
from pytensor.graph.traversal import ancestors
from pytensor.tensor.variable import TensorVariable

from pymc_dp.graphs.declined import Declined
from pymc_dp.graphs.values import known_value, nearest_rvs
from pymc_dp.laws import is_registered, law_names
from pymc_dp.laws.moments.latents import Linearised, observed_noise, row_latents
from pymc_dp.laws.moments.normal import normal_release
from pymc_dp.laws.moments.sums import RowLaw, RowSums, normal_law, normal_sums
from pymc_dp.laws.shown import confidential
from pymc_dp.laws.sum_law import APPROXIMATIONS, LAWS, Change, Phase, Takes, in_words
from pymc_dp.plugins.regression.clt import (
    CovariateMoments,
    moment_latents,
    moment_law,
    moment_sums,
    read_moments,
)
from pymc_dp.plugins.regression.rows import JointRows
from pymc_dp.reading.checks import require_possible
from pymc_dp.reading.column_sums import RowRelease
from pymc_dp.reading.columns import Rows, read_rows, same_for_all
from pymc_dp.reading.model import releases_of
from pymc_dp.reading.propriety import check_proper_rows
from pymc_dp.reading.sums.polynomials import degree

_log = logging.getLogger("pymc.dp")

# `CovariateMoments.moved` of a model, once a warning was logged: every route reads the moments.
_warned: WeakKeyDictionary[pm.Model, float] = WeakKeyDictionary()


@LAWS.register(Phase.SPECIFIC, Takes(rows=True, approximate=True))
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

    def latents(self, *, approximate: str | None = None, moments: Any = None) -> Change:
        """Keep the sample mean and covariance matrix of the rows, as functions of latents."""
        if approximate != "clt":
            _require_rows(self.rows)
            return super().latents()
        model, n = self.reading.model, self.rows.n
        clt, used = _clt(model, self.rows, moments)
        linear = []
        for release in used:
            noise = observed_noise(model, release.rv, release.mechanism)
            with suppress(Declined):
                if noise is not None:
                    mean, factor = clt.law.of(release.linear_graphs(), n)
                    linear.append(Linearised(factor, noise[0] - mean, noise[1]))
        latents = row_latents(clt.latents, releases=linear)
        return self.kept(latents, clt.sums(latents[0]), used)

    def integrated(self, *, approximate: str | None = None, moments: Any = None) -> Change:
        """Integrate the sums out, which are Normal by the central limit theorem."""
        model, rows = self.reading.model, self.rows
        if approximate is None:
            rows.law()  # raises, with the reason, if they have none
            raise Declined(
                f"the sums over the rows {rows.name!r} follow a Wishart law, which has no marginal "
                f"in closed form: use to='statistics', or approximate='clt'"
            )
        clt, used = _clt(model, rows, moments)
        if len(used) > 1:
            raise Declined(
                f"the rows {rows.name!r} have several releases "
                f"({', '.join(repr(r.name) for r in used)}), which depend on each other: declare "
                f"one release of pt.concatenate([...]), or use to='statistics'"
            )
        [release] = used
        if release.rv.owner.op.bounds is not None:
            raise Declined(
                f"the release {release.name!r} states bounds=, which cut the law of the sums: use "
                f"to='statistics'"
            )
        try:
            polynomials = release.linear_graphs()
        except Declined as error:
            raise Declined(
                f"the statistic of the release {release.name!r}: {error}, so that it is not "
                f"Normal. Use to='statistics'"
            ) from None
        mean, factor = clt.law.of(polynomials, rows.n)
        change = Change()
        name = confidential(release.rv)
        change.replaced[release.rv] = normal_release(change, release.rv, mean, factor, name)
        change.dropped |= {r.name for r in rows.releases if r is not release}
        return change

    def held(self, moments: Any) -> dict[str, str]:
        """See `SumLaw.held`: the moments of covariates, where they are stated or not Normal."""
        model, rows = self.reading.model, self.rows
        sources: dict[str, list] = {}
        if moments is None and any(link.root is None for link in rows.links):
            for link in rows.links[:-1]:
                sources[link.rv.name] = link.rv.owner.op.dist_params(link.rv.owner)
        elif isinstance(moments, str):
            for release in rows.releases:
                entries = [(m, c) for p in release.linear_graphs() for m, c in p.items()]
                if any(m and max(m) < rows.width - 1 for m, _ in entries):
                    graphs = [c for _, c in entries if isinstance(c, Variable)]
                    sources[release.name] = [model.rvs_to_values[release.rv], *graphs]
        return {
            name: str(data.name)
            for name, graphs in sources.items()
            for data in ancestors(graphs)
            if isinstance(data, SharedVariable)
        }


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


# --- The central limit theorem ------------------------------------------------------------------


@dataclass(frozen=True)
class _Clt:
    """The central limit theorem for some rows.

    Attributes
    ----------
    latents : number of standard Normal latents.
    sums : the sums over the rows as a function of the latents.
    law : the law of the sums.
    """

    latents: int
    sums: Callable[[TensorVariable], RowSums]
    law: RowLaw


def _clt(model: pm.Model, rows: Rows, moments: Any) -> tuple[_Clt, tuple[RowRelease, ...]]:
    """Return the Normal law of the sums, and the releases of sums."""
    used = releases_of_sums(rows, moments)
    if moments is None and all(link.root is not None for link in rows.links):
        mean, root = rows.law()
        width = rows.width
        count = width + width * (width + 1) // 2
        law = normal_law(mean, root, width)
        return _Clt(count, lambda z: normal_sums(mean, root, rows.n, width, z), law), used
    response = rows.links[-1]
    if response.sigma is None or response.coefficients is None:
        raise Declined(
            f"the rows {rows.name!r} have no Normal response: moments of covariates are for a "
            f"regression, y = pm.Normal('y', a + x @ b, sigma, shape=n)"
        )
    x_moments = covariate_moments(model, rows, moments)
    intercept, *slopes = (pt.as_tensor(c) for c in response.coefficients)
    parts = x_moments, intercept, pt.stack(slopes), response.sigma
    clt = _Clt(
        moment_latents(x_moments), lambda z: moment_sums(*parts, rows.n, z), moment_law(*parts)
    )
    return clt, used


def releases_of_sums(rows: Rows, moments: Any) -> tuple[RowRelease, ...]:
    """Return the releases of sums with a known law; the others may be taken for moments."""
    wide = [r for r in rows.releases if r.degree > 2]
    if wide and not (isinstance(moments, str) and moments == "released"):
        raise Declined(
            f"the release {wide[0].name!r} is of products of {wide[0].degree} columns, whose law "
            f"is not known: write moments='released' to take the published values for the moments "
            f"of the covariates"
        )
    return tuple(r for r in rows.releases if r.degree <= 2)


def covariate_moments(model: pm.Model, rows: Rows, moments: Any) -> CovariateMoments:
    """Return the moments of the covariates: stated ones, released ones, or those of their law."""
    covariates = rows.links[:-1]
    unknown = nearest_rvs([p for c in covariates for p in c.rv.owner.op.dist_params(c.rv.owner)])
    unknown = [rv for rv in unknown if rv not in rows.records]
    if moments is not None and unknown:
        raise Declined(
            f"moments= take the place of the law of the covariates, and nothing is left to learn "
            f"about {unknown[0].name!r}: write numbers in its place"
        )
    if moments is None:
        x_moments = _law_moments(covariates)
    elif isinstance(moments, str):
        x_moments = read_moments(_released_moments(model, rows, moments))
    else:
        x_moments = read_moments(moments)
    if x_moments.moved > 0.9:
        raise ValueError(
            f"the moments of the covariates of {rows.name!r} are those of no distribution, and far "
            f"from any: are they E x, E x^2, E x^3, E x^4, in this order? If they were released, "
            f"they hold nothing but noise: state a law of the covariates"
        )
    if x_moments.moved and _warned.get(model) != x_moments.moved:
        _warned[model] = x_moments.moved
        _log.warning(
            "The moments of the covariates of %r are those of no distribution: they were replaced "
            "by the nearest that are (by %.2g of the largest eigenvalue)",
            rows.name,
            x_moments.moved,
        )
    if x_moments.width != rows.width - 1:
        raise ValueError(
            f"moments= are of {x_moments.width} covariates; the rows {rows.name!r} have "
            f"{rows.width - 1}: {', '.join(rows.labels[:-1])}"
        )
    return x_moments


def _released_moments(model: pm.Model, rows: Rows, moments: str) -> np.ndarray:
    """Take the published sums of products of covariates for their moments."""
    if moments != "released":
        raise ValueError(f"moments={moments!r}: write an array, or 'released'")
    for release in rows.releases:
        degrees = {degree({m: 1.0 for m in p if m}) for p in release.linear()}
        if max(degrees) > 2 >= min(degrees):
            raise Declined(
                f"moments='released' takes all of {release.name!r} for moments, but it has sums of "
                f"at most two columns, too, whose law is known: declare two releases"
            )
    published: dict[tuple[int, ...], float] = {(): 1.0}
    for release in sorted(rows.releases, key=lambda r: -r.degree):
        value = known_value(model.rvs_to_values[release.rv])
        if value is None or release.rv not in model.observed_RVs:
            raise ValueError(f"moments='released': {release.name!r} has no published value")
        for z, polynomial in zip(value.flat, release.linear(), strict=True):
            powers = [m for m in polynomial if m]
            if len(powers) == 1:
                [power] = powers
                moment = (z - polynomial.get((), 0.0)) / polynomial[power] / rows.n
                published.setdefault(power, float(moment))
    d = rows.width  # covariates and the intercept
    fourth = np.empty((d, d, d, d))
    for index in np.ndindex(*fourth.shape):
        power = tuple(sorted(k - 1 for k in index if k))
        if power not in published:
            product = "·".join(rows.labels[k] for k in power)
            raise ValueError(
                f"moments='released': the sum of {product} was not released; the sums of all "
                f"products of up to four covariates are needed"
            )
        fourth[index] = published[power]
    return fourth


@singledispatch
def scipy_law(op, *parameters: float) -> Any:
    """Return the scipy distribution of a covariate, for its moments; dispatched on the op."""
    raise Declined


scipy_law.register(ptr.BernoulliRV, lambda op, p: scipy.stats.bernoulli(p))
scipy_law.register(ptr.BetaRV, lambda op, a, b: scipy.stats.beta(a, b))
scipy_law.register(ptr.BinomialRV, lambda op, n, p: scipy.stats.binom(n, p))
scipy_law.register(ptr.ExponentialRV, lambda op, scale: scipy.stats.expon(scale=scale))
scipy_law.register(ptr.NormalRV, lambda op, mean, sd: scipy.stats.norm(mean, sd))
scipy_law.register(ptr.GammaRV, lambda op, shape, scale: scipy.stats.gamma(shape, scale=scale))
scipy_law.register(ptr.PoissonRV, lambda op, mu: scipy.stats.poisson(mu))
scipy_law.register(ptr.UniformRV, lambda op, low, high: scipy.stats.uniform(low, high - low))


def _law_moments(covariates) -> CovariateMoments:
    """Return the moments up to order four of independent covariates with known laws."""
    means, central = [0.0], [np.ones(5)]  # for each feature, the central moments 0 to 4
    for link in covariates:
        node = link.rv.owner
        graphs = [same_for_all(link.rv, p) for p in node.op.dist_params(node)]
        known = [None if nearest_rvs([p]) else known_value(p) for p in graphs]
        parameters = [np.asarray(p, "float64") for p in known if p is not None]
        if not is_registered(scipy_law, node.op) or len(parameters) < len(known):
            raise Declined(
                f"the moments of the covariate {link.rv.name!r} are not known: give it one of "
                f"{law_names(scipy_law.registry)} with numbers for parameters, all covariates a "
                f"Normal law, or write moments="
            )
        for j in range(link.width):
            at_j = [np.ravel(p)[j if np.size(p) > 1 else 0] for p in parameters]
            mean, variance, skew, kurtosis = map(float, scipy_law(node.op, *at_j).stats("mvsk"))
            if not 0.0 < variance < np.inf:
                raise ValueError(
                    f"the covariate {link.rv.name!r} has the variance {variance}: write parameters "
                    f"of a law that varies"
                )
            means.append(mean)
            powers = np.array([0.0, 1.0, skew * np.sqrt(variance), (kurtosis + 3.0) * variance])
            central.append(np.append(1.0, powers * [1.0, variance, variance, variance]))
    table = np.vstack(central)
    d = len(table)
    index = np.indices((d, d, d, d)).reshape(4, -1)
    fourth = np.ones(index.shape[1])
    for j in range(1, d):
        fourth *= table[j, (index == j).sum(axis=0)]
    return read_moments(fourth.reshape(d, d, d, d)).shifted(np.array(means[1:]))


APPROXIMATIONS.add(read_moments, "clt")
