"""The layout of a marginal model for `routes.slices`: the place of each variable in one vector.

The vector has the parameters first, then the levels (groups whose entries are independent of each
other), then the variables that have exact draws, then the variances of the noise.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pymc as pm
import pytensor.tensor as pt
from pytensor.graph.replace import graph_replace
from pytensor.graph.traversal import ancestors
from pytensor.tensor.random.basic import NormalRV
from pytensor.tensor.variable import TensorVariable

from pymc_dp.graphs.declined import Declined, once
from pymc_dp.graphs.shapes import lengths, value_lengths
from pymc_dp.graphs.values import nearest_rvs
from pymc_dp.ladder.collapse import collapsed, rebuilt
from pymc_dp.laws.integrated import Integrated, IntegratedReleaseRV, integrated_release
from pymc_dp.laws.mean_variance import noise_variance
from pymc_dp.laws.moments.normal import NormalStatistics
from pymc_dp.laws.one_value import Independent, OneValue
from pymc_dp.laws.sum_law import Change
from pymc_dp.mechanisms.base import has_continuous_rates, has_kink
from pymc_dp.mechanisms.gaussian import GaussianMechanism
from pymc_dp.reading.cells import aligned, entries_of, one_of, places
from pymc_dp.reading.model import Reading
from pymc_dp.routes.coordinates import standardised
from pymc_dp.routes.latent_normal import LatentNormalRV

_MOST_PARAMETERS = 10  # each takes several evaluations of the density in a sweep
# Laplace noise of a release with so many entries or more becomes a scale mixture of Normals: the
# density is then cheaper than with the noise integrated out.
_FEWEST_ENTRIES = 5
_VARIANCE_FACTOR = 1.05  # surrogates are wider than the exact law, so that they reach its tails
_LEAST_VARIANCE = 1e-3  # of a surrogate, in units of the noise variance


@dataclass(frozen=True, eq=False)
class Surrogate(Integrated):
    """A Normal law with the mean of the original law and a slightly larger variance.

    Its parameters are those of the original and a least variance, as the original's is 0 where all
    records are clipped.
    """

    names: tuple[str, ...]
    original: Integrated

    @property
    def elementwise(self) -> bool:  # type: ignore[override]
        """See `Integrated`: parameters may be those of groups, where the original is no entry's."""
        return self.original.elementwise

    def draw(self, rng, *parameters):
        """See `Integrated.draw`."""
        return self.original.draw(rng, *parameters[:-1])

    def mean_variance(self, *parameters):
        """See `Integrated.mean_variance`."""
        mean, variance = self.original.mean_variance(*parameters[:-1])
        return mean, _VARIANCE_FACTOR * variance + parameters[-1]

    def logp(self, value, mechanism, *parameters):
        """See `Integrated.logp`."""
        mean, variance = self.mean_variance(*parameters)
        normal = Independent(OneValue("", pt.random.normal, 2))
        density = normal.logp(value, mechanism, mean, pt.sqrt(variance))
        return density if self.elementwise else density.sum()


@dataclass(frozen=True, eq=False)
class Places:
    """The place of each value variable in one vector: parameters, levels, exact draws, noise.

    Attributes
    ----------
    model : the marginal model, in the coordinates that are moved.
    moved : names of the variables whose coordinates are not PyMC's.
    values : value variables, in the order of the vector.
    ends : the ends of the parameters and of each level in the vector.
    anew : the number of entries after the levels, which have exact draws: they are standard Normal
        given the entries before them and the noise variances.
    terms : terms of the log density, an array each.
    entries : for each level a list, with an array for each term: the entry of the level that each
        entry of the term depends on, -1 if none.
    mixed : releases whose noise is Normal given its variances, to the variables of the variances.
    corrections : terms to add to the log density of a surrogate.
    inverted : the number of entries that a surrogate stands for.
    """

    model: pm.Model
    moved: list[str]
    values: list[TensorVariable]
    ends: np.ndarray
    anew: int
    terms: list[TensorVariable]
    entries: list[list[np.ndarray]]
    mixed: dict[TensorVariable, Any]
    corrections: list[TensorVariable]
    inverted: int

    @property
    def size(self) -> int:
        """The length of the vector."""
        return sum(map(math.prod, self.shapes))

    @property
    def shapes(self) -> list[tuple[int, ...]]:
        """The shapes of the values."""
        rvs = self.model.values_to_rvs
        return [value_lengths(self.model, rvs[value]) for value in self.values]

    def replaced(self, q: TensorVariable, graphs: Sequence[TensorVariable]) -> list[TensorVariable]:
        """Return graphs with the values replaced by their places in the vector."""
        replacements: dict[Any, Any] = {}
        first = 0
        for value, shape in zip(self.values, self.shapes, strict=True):
            end = first + math.prod(shape)
            replacements[value] = q[first:end].reshape(shape).astype(value.dtype)
            first = end
        return graph_replace(list(graphs), replacements, strict=False)

    def density(self, q: TensorVariable) -> list[TensorVariable]:
        """Return the log density; and for each entry of a level, the sum of its terms."""
        terms = self.replaced(q, self.terms)
        total = sum((term.sum() for term in terms), start=pt.zeros(()))
        sums = pt.zeros(self.size)
        for first, end, entries in zip(self.ends, self.ends[1:], self.entries, strict=False):
            level_sums = pt.zeros(int(end - first))
            for term, entry in zip(terms, entries, strict=True):
                [known] = np.nonzero(entry >= 0)
                if np.array_equal(entry, np.arange(end - first)):
                    level_sums = level_sums + term.ravel()
                elif known.size:
                    level_sums = pt.inc_subtensor(level_sums[entry[known]], term.ravel()[known])
            sums = pt.set_subtensor(sums[int(first) : int(end)], level_sums)
        return [total.astype("float64"), sums]

    def noise(self, q: TensorVariable, release: TensorVariable) -> list[TensorVariable]:
        """Return the inputs of `kernels.slices.draw_noise` for a release."""
        op = release.owner.op
        _, parameters = op.split(release.owner.inputs)
        moments = parameters[:2] if _is_joint(op.law) else op.law.mean_variance(*parameters)
        scale = pt.sqrt(0.5 * self.mixed[release].owner.inputs[-1])
        graphs = [self.model.rvs_to_values[release].astype("float64"), scale, *moments]
        graphs = self.replaced(q, self.model.replace_rvs_by_values(graphs))
        # A joint law has a vector as mean, and a matrix in place of variances.
        by_entry = 2 if _is_joint(op.law) else 4
        flat = [pt.broadcast_to(g, lengths(release)).ravel() for g in graphs[:by_entry]]
        return [*flat, *graphs[by_entry:]]


@once
def layout(reading: Reading) -> Places:
    """Lay out the variables of the marginal; decline with the variable that slices cannot move."""
    marginal, corrected = _surrogates(collapsed(reading, "marginal"))
    model, mixed = _mixed(marginal.model)
    # With a surrogate there are no exact draws, so any density may be a term.
    for rv in model.observed_RVs if not corrected else ():
        if not _is_normal(rv):
            if _has_normal(getattr(rv.owner.op, "law", None)):
                raise Declined(
                    f"{rv.name!r} has fewer than {_FEWEST_ENTRIES} entries, whose noise is "
                    f"integrated out"
                )
            raise Declined(f"it covers what is Normal given the parameters, and {rv.name!r} is not")
    joint = any(_is_joint(getattr(rv.owner.op, "law", None)) for rv in model.observed_RVs)
    anew: list[TensorVariable] = []
    if not corrected and not joint:
        new, moved = standardised(
            reading, Reading(model, reading) if model is not marginal.model else marginal
        )
        transforms = new.rvs_to_transforms
        anew = [rv for rv in new.free_RVs if getattr(transforms[rv], "is_exact", False)]
    if anew:
        model = new
    else:  # the coordinates must not depend on the noise variances, which are drawn given them
        model, moved = standardised(reading, marginal)
        model, mixed = _mixed(model)
    for rv in model.free_RVs:
        if not rv.dtype.startswith("float"):
            raise Declined(f"it does not cover {rv.name!r}, which is discrete")
    sizes = {rv: math.prod(value_lengths(model, rv)) for rv in model.free_RVs}
    noise_variances = [model[name] for name in mixed.values()]
    # Variables with a term in the density; the law of a noise variance is fixed.
    sources = [*(rv for rv in model.basic_RVs if rv not in noise_variances), *model.potentials]
    logps = model.logp(sources, sum=False)
    terms = {rv: pt.as_tensor(logp) for rv, logp in zip(sources, logps, strict=True)}
    levels = {}
    for rv, size in sizes.items():
        if size > 1 and rv not in (*anew, *noise_variances):
            memberships = _level(model, rv, terms)
            if memberships is not None:
                levels[rv] = memberships
    parameters = [rv for rv in model.free_RVs if rv not in (*levels, *anew, *noise_variances)]
    count = sum(sizes[rv] for rv in parameters)
    if count > _MOST_PARAMETERS:
        longest = max(parameters, key=sizes.__getitem__)
        raise Declined(
            f"it moves up to {_MOST_PARAMETERS} parameters one by one, and there are {count}, of "
            f"{longest.name!r} alone {sizes[longest]}"
        )
    if not (levels or anew or noise_variances or joint or corrected):
        raise Declined(
            "it is for groups, designs and Laplace noise, and the model has none of them"
        )
    values = [model.rvs_to_values[rv] for rv in (*parameters, *levels, *anew, *noise_variances)]
    ends = np.cumsum([count, *(sizes[rv] for rv in levels)])
    pairs = {model[release]: model[noise] for release, noise in mixed.items()}
    added = [model[name] for name in corrected]
    entries, drawn = list(levels.values()), sum(sizes[rv] for rv in anew)
    inverted = sum(math.prod(lengths(rv)) for rv in model.observed_RVs if _is_surrogate(rv))
    return Places(
        model, moved, values, ends, drawn, list(terms.values()), entries, pairs, added, inverted
    )


def _surrogates(marginal: Reading) -> tuple[Reading, list[str]]:
    """Replace laws that are known by inversion with Normal surrogates of equal mean and variance.

    Other laws become coarse beside them. The difference of the log densities becomes a
    Deterministic; return the names of these, too.
    """
    model, change = marginal.model, Change()
    integrated = [rv for rv in model.observed_RVs if isinstance(rv.owner.op, IntegratedReleaseRV)]
    if not any(rv.owner.op.law.by_inversion for rv in integrated):
        return marginal, []
    for rv in integrated:
        original = rv.owner.op.law
        value, (mechanism, parameters) = model.rvs_to_values[rv], rv.owner.op.split(rv.owner.inputs)
        law, inputs = original.coarse, parameters
        if original.by_inversion:
            least = _LEAST_VARIANCE * noise_variance(mechanism)
            law = Surrogate(original.names, law)
            inputs = [*parameters, pt.broadcast_to(least, lengths(rv))]
        if law is original:
            continue
        change.replaced[rv] = integrated_release(law, mechanism, *inputs)
        lacking = original.logp(value, mechanism, *parameters).sum()
        change.deterministics[f"{rv.name}_correction"] = (
            lacking - law.logp(value, mechanism, *inputs).sum()
        )
    return Reading(rebuilt(marginal, [], change), marginal), list(change.deterministics)


def _mixed(model: pm.Model) -> tuple[pm.Model, dict[str, str]]:
    r"""Write Laplace noise of Normal statistics as a scale mixture of Normal noise.

    Laplace noise of scale b is Normal with a variance :math:`w \sim \mathrm{Exp}(1/(2b^2))`. A
    sweep draws the statistics, then w, with the vector q held fixed. So coordinates in q must not
    depend on w, except for entries with exact draws, which are drawn before they are used again.
    Also return the names of the variances, by name of the release.
    """
    change, mixed = Change(), {}
    for rv in model.observed_RVs:
        if not isinstance(op := rv.owner.op, IntegratedReleaseRV):
            continue
        mechanism, parameters = op.split(rv.owner.inputs)
        if _is_joint(op.law) and len(parameters) == 3:
            mixed[rv.name] = parameters[2].name
        if _has_normal(op.law) and has_continuous_rates(mechanism) and has_kink(mechanism):
            if math.prod(lengths(rv)) < _FEWEST_ENTRIES and not isinstance(op.law, Surrogate):
                continue
            name = f"{rv.name}_noise_variance"
            while name in model.named_vars:
                name += "_"
            scale = noise_variance(mechanism)
            variance = pm.Exponential.dist(scale=scale, shape=lengths(rv))
            change.added[name] = variance, pm.distributions.transforms.log
            noise = GaussianMechanism(1.0).with_parameters(pt.sqrt(variance))
            change.replaced[rv] = integrated_release(op.law, noise, *parameters)
            mixed[rv.name] = name
    return (rebuilt(Reading(model), [], change) if change.added else model), mixed


def _is_joint(law: Integrated | None) -> bool:
    return isinstance(law, NormalStatistics)


def _is_surrogate(rv: TensorVariable) -> bool:
    return isinstance(getattr(rv.owner.op, "law", None), Surrogate)


def _has_normal(law: Integrated | None) -> bool:
    normal = isinstance(law, Independent) and isinstance(law.statistic.law, NormalRV)
    return normal or isinstance(law, Surrogate)


def _is_normal(rv: TensorVariable) -> bool:
    """Whether a variable is Normal given its parameters."""
    op = rv.owner.op
    if not isinstance(op, IntegratedReleaseRV):
        return isinstance(op, NormalRV)
    noise = op.mechanism
    without_kink = has_continuous_rates(noise) and not has_kink(noise)
    return _is_joint(op.law) or (_has_normal(op.law) and without_kink)


def _level(
    model: pm.Model, rv: TensorVariable, terms: dict[TensorVariable, TensorVariable]
) -> list[np.ndarray] | None:
    """Return for each term which entry of a variable its entries depend on; None if it is no level.

    The entries of a level are independent of each other given all else.
    """
    if not isinstance(rv.owner.op, LatentNormalRV) and nearest_rvs(rv.owner.inputs):
        return None  # in the coordinates as written it may mix slowly given its parameters
    value = model.rvs_to_values[rv]
    try:
        return [_belongs(model, source, term, value) for source, term in terms.items()]
    except Declined:
        return None


def _belongs(
    model: pm.Model, source: TensorVariable, term: TensorVariable, value: TensorVariable
) -> np.ndarray:
    """Return which entry of a value each entry of the log density of `source` depends on."""
    op = None if source in model.potentials else source.owner.op
    # A transform of several entries at once leaves one term for all of them.
    if op is None or op.ndim_supp or lengths(term) != lengths(source):
        entries = entries_of(term, value, places(term))
        return np.broadcast_to(entries, math.prod(lengths(term)))
    index, graphs = places(source), [source] * (source in model.free_RVs)
    for parameter, ndim in zip(op.dist_params(source.owner), op.ndims_params, strict=True):
        if not ndim:
            graphs.append(parameter)
        elif value in ancestors(model.replace_rvs_by_values([parameter])):
            raise Declined
    graphs = model.replace_rvs_by_values(graphs)
    entries = one_of([entries_of(graph, value, aligned(graph, index)) for graph in graphs])
    return np.broadcast_to(entries, math.prod(lengths(source)))
