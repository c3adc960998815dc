"""The central limit theorem for sums over the rows of a regression: ``approximate="clt"``."""

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
from pymc_dp.ladder.collapse import collapsed
from pymc_dp.laws import is_registered, law_names
from pymc_dp.laws.moments.latents import Linearised, observed_noise, row_latents
from pymc_dp.laws.moments.normal import normal_release
from pymc_dp.laws.moments.sums import RowLaw, RowSums, normal_law, normal_sums
from pymc_dp.laws.shown import confidential
from pymc_dp.laws.sum_law import APPROXIMATIONS, Approximation, Change, is_rows
from pymc_dp.plugins.regression.clt import (
    CovariateMoments,
    moment_latents,
    moment_law,
    moment_sums,
    read_moments,
)
from pymc_dp.plugins.regression.columns import Columns
from pymc_dp.reading.column_sums import RowRelease
from pymc_dp.reading.columns import Rows, same_for_all
from pymc_dp.reading.groups import Records
from pymc_dp.reading.model import Reading, privatized, releases
from pymc_dp.reading.sums.polynomials import degree
from pymc_dp.routes import ROUTES, Plan, Route
from pymc_dp.routes.nuts import nuts_plan

_log = logging.getLogger("pymc.dp")

# `CovariateMoments.moved` of a model, once a warning was logged: every route reads the moments.
_warned: WeakKeyDictionary[pm.Model, float] = WeakKeyDictionary()


class CentralLimit(Approximation):
    """Sums over rows, Normal with the mean and the covariance of the exact law."""

    def check(self, moments):
        """See `Approximation.check`."""
        if isinstance(moments, str):
            if moments != "released":
                raise ValueError(f"moments={moments!r}: write an array, or 'released'")
        elif moments is not None:
            read_moments(moments)

    def change(self, reading, group, to, moments):
        """See `Approximation.change`."""
        columns = _columns(reading, group)
        clt, used = _clt(reading.model, columns.rows, moments)
        return (_statistics if to == "statistics" else _marginal)(columns, clt, used)

    def held(self, reading, group, moments):
        """See `Approximation.held`: moments of covariates, where they are stated or not Normal."""
        rows = _columns(reading, group).rows
        sources: dict[str, list] = {}
        if moments is None and any(link.root is None for link in rows.links):
            for link in rows.links[:-1]:
                sources[link.rv.name] = link.rv.owner.op.dist_params(link.rv.owner)
        elif isinstance(moments, str):
            for release in rows.releases:
                entries = [(m, c) for p in release.linear_graphs() for m, c in p.items()]
                if any(m and max(m) < rows.width - 1 for m, _ in entries):
                    graphs = [c for _, c in entries if isinstance(c, Variable)]
                    sources[release.name] = [reading.model.rvs_to_values[release.rv], *graphs]
        return {
            name: str(data.name)
            for name, graphs in sources.items()
            for data in ancestors(graphs)
            if isinstance(data, SharedVariable)
        }


APPROXIMATIONS.add("clt", CentralLimit())


def _columns(reading: Reading, group: Records) -> Columns:
    if not is_rows(group):
        raise ValueError(
            f"approximate='clt' is for rows of several columns, those of a regression say, and the "
            f"records {group.name!r} are none: leave it out. dp.explain(model) says which exact "
            f"routes are open for the records of this model"
        )
    return Columns.read(reading, group)


def _statistics(columns: Columns, clt: _Clt, used: tuple[RowRelease, ...]) -> Change:
    """Keep the sample mean and covariance matrix of the rows, as functions of latents."""
    linear = []
    for release in used:
        noise = observed_noise(columns.reading.model, release.rv, release.mechanism)
        with suppress(Declined):
            if noise is not None:
                mean, factor = clt.law.of(release.linear_graphs(), columns.rows.n)
                linear.append(Linearised(factor, noise[0] - mean, noise[1]))
    latents = row_latents(clt.latents, releases=linear)
    return columns.kept(latents, clt.sums(latents[0]), used)


def _marginal(columns: Columns, clt: _Clt, used: tuple[RowRelease, ...]) -> Change:
    """Integrate the sums out."""
    rows = columns.rows
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
    change, name = Change(), confidential(release.rv)
    change.replaced[release.rv] = normal_release(change, release.rv, mean, factor, name)
    change.dropped |= {r.name for r in rows.releases if r is not release}
    return change


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
    if wide and not isinstance(moments, str):
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
        x_moments = read_moments(_released_moments(model, rows))
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


def _released_moments(model: pm.Model, rows: Rows) -> np.ndarray:
    """Take the published sums of products of covariates for their moments."""
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


def _statistics_plan(reading: Reading, moments: Any) -> Plan:
    if not privatized(reading):
        raise Declined("the model has no rows of several columns", near=-1)
    statistics = collapsed(reading, "statistics", "clt", moments)
    if any(r.owner.op.bounds is not None for r in releases(reading.model)):
        raise Declined(
            "the walls of bounds= stop NUTS: leave approximate= out, as the exact chain and the "
            "routes on the records keep within them"
        )
    return nuts_plan(reading, statistics, "NUTS on sums by the central limit theorem")


def _marginal_plan(reading: Reading, moments: Any) -> Plan:
    if not privatized(reading):
        raise Declined("the model has no rows of several columns", near=-1)
    marginal = collapsed(reading, "marginal", "clt", moments)
    return nuts_plan(reading, marginal, "NUTS by the central limit theorem")


for _name, _rung, _plan in (
    ("NUTS on the sums, Normal by the central limit theorem", "statistics", _statistics_plan),
    ("NUTS on the marginal, by the central limit theorem", "marginal", _marginal_plan),
):
    ROUTES.add(Route(_name, _rung, _plan, approximate="clt"))
