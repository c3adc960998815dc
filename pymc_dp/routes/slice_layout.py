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
from pymc_dp.graphs.questions import lengths, nearest_rvs, value_lengths
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

_MOST = 10  # parameters, each of which takes some densities a sweep
_FEWEST = 5  # entries of a release from which on its noise is mixed: the density is then cheaper
_WIDER = 1.05  # variance of a surrogate: the tails of what it stands for are to be reached
_LEAST = 1e-3  # variance of a surrogate, in those of the noise


@dataclass(frozen=True, eq=False)
class Surrogate(Integrated):
    """Normal sums, of the mean and nearly the variance of others.

    Parameters are those of the others, and the least variance: where all records are clipped they
    have none.
    """

    names: tuple[str, ...]
    of: Integrated
    elementwise = True

    def draw(self, rng, *parameters):
        """See `Integrated.draw`."""
        return self.of.draw(rng, *parameters[:-1])

    def mean_variance(self, *parameters):
        """See `Integrated.mean_variance`."""
        mean, variance = self.of.mean_variance(*parameters[:-1])
        return mean, _WIDER * variance + parameters[-1]

    def logp(self, value, mechanism, *parameters):
        """See `Integrated.logp`."""
        mean, variance = self.mean_variance(*parameters)
        normal = Independent(OneValue("", pt.random.normal, 2))
        return normal.logp(value, mechanism, mean, pt.sqrt(variance))


@dataclass(frozen=True, eq=False)
class Places:
    """Places of a model's values in one vector: of parameters, levels, those anew, others.

    Attributes
    ----------
    model : in the coordinates that are moved.
    moved : names of the variables whose coordinates are not PyMC's.
    values : value variables, in order.
    ends : of the parameters and of each level, in the vector.
    anew : how many entries after these are standard Normal, given all before and the others.
    terms : of the log density.
    entries : for each level, and each of these terms, which entry those of the term belong to.
    mixed : releases whose noise is Normal given its variances, and these, which are the others.
    corrections : what to add to the log density, where it is that of a surrogate.
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

    @property
    def size(self) -> int:
        """The length of the vector."""
        return sum(map(math.prod, self.shapes))

    @property
    def shapes(self) -> list[tuple[int, ...]]:
        """Those of the values."""
        rvs = self.model.values_to_rvs
        return [value_lengths(self.model, rvs[value]) for value in self.values]

    def at(self, q: TensorVariable, graphs: Sequence[TensorVariable]) -> list[TensorVariable]:
        """Return graphs of the values as graphs of the vector."""
        given: dict[Any, Any] = {}
        first = 0
        for value, shape in zip(self.values, self.shapes, strict=True):
            end = first + math.prod(shape)
            given[value] = q[first:end].reshape(shape).astype(value.dtype)
            first = end
        return graph_replace(list(graphs), given, strict=False)

    def density(self, q: TensorVariable) -> list[TensorVariable]:
        """Return the log density, and for each entry of a level the terms that it is part of."""
        terms = self.at(q, self.terms)
        total = sum((term.sum() for term in terms), start=pt.zeros(()))
        sums = pt.zeros(self.size)
        for first, end, entries in zip(self.ends, self.ends[1:], self.entries, strict=False):
            own = pt.zeros(int(end - first))
            for term, entry in zip(terms, entries, strict=True):
                [known] = np.nonzero(entry >= 0)
                if np.array_equal(entry, np.arange(end - first)):
                    own = own + term.ravel()
                elif known.size:
                    own = pt.inc_subtensor(own[entry[known]], term.ravel()[known])
            sums = pt.set_subtensor(sums[int(first) : int(end)], own)
        return [total.astype("float64"), sums]

    def noise(self, q: TensorVariable, release: TensorVariable) -> list[TensorVariable]:
        """Return what `kernels.slices.draw_noise` is given of a release."""
        op = release.owner.op
        _, parameters = op.split(release.owner.inputs)
        given = parameters[:2] if _is_joint(op.law) else op.law.mean_variance(*parameters)
        scale = pt.sqrt(0.5 * self.mixed[release].owner.inputs[-1])
        graphs = [self.model.rvs_to_values[release].astype("float64"), scale, *given]
        graphs = self.at(q, self.model.replace_rvs_by_values(graphs))
        # Of a joint law, the mean is a vector and what stands for its covariance a matrix.
        by_entry = 2 if _is_joint(op.law) else 4
        own = [pt.broadcast_to(g, lengths(release)).ravel() for g in graphs[:by_entry]]
        return [*own, *graphs[by_entry:]]


@once
def layout(reading: Reading) -> Places:
    """Lay the variables of the marginal out; say what cannot be moved by slices."""
    on, corrected = _surrogates(collapsed(reading, "marginal"))
    model, mixed = _mixed(on.model)
    # Beside a surrogate nothing is drawn anew, and any density is a term like others.
    for rv in model.observed_RVs if not corrected else ():
        if not _is_normal(rv):
            if _has_normal(getattr(rv.owner.op, "law", None)):
                raise Declined(
                    f"{rv.name!r} has fewer than {_FEWEST} entries, whose noise is integrated out"
                )
            raise Declined(f"it covers what is Normal given the parameters, and {rv.name!r} is not")
    joint = any(_is_joint(getattr(rv.owner.op, "law", None)) for rv in model.observed_RVs)
    anew: list[TensorVariable] = []
    if not corrected and not joint:
        new, moved = standardised(reading, Reading(model, reading) if model is not on.model else on)
        transforms = new.rvs_to_transforms
        anew = [rv for rv in new.free_RVs if getattr(transforms[rv], "is_exact", False)]
    if anew:
        model = new
    else:  # coordinates may not depend on the variances of the noise
        model, moved = standardised(reading, on)
        model, mixed = _mixed(model)
    for rv in model.free_RVs:
        if not rv.dtype.startswith("float"):
            raise Declined(f"it does not cover {rv.name!r}, which is discrete")
    sizes = {rv: math.prod(value_lengths(model, rv)) for rv in model.free_RVs}
    others = [model[name] for name in mixed.values()]
    # What has a part in the density; the laws of the others are fixed.
    sources = [*(rv for rv in model.basic_RVs if rv not in others), *model.potentials]
    logps = model.logp(sources, sum=False)
    terms = {rv: pt.as_tensor(logp) for rv, logp in zip(sources, logps, strict=True)}
    levels = {}
    for rv, size in sizes.items():
        if size > 1 and rv not in (*anew, *others):
            own = _level(model, rv, terms)
            if own is not None:
                levels[rv] = own
    parameters = [rv for rv in model.free_RVs if rv not in (*levels, *anew, *others)]
    count = sum(sizes[rv] for rv in parameters)
    if count > _MOST:
        longest = max(parameters, key=sizes.__getitem__)
        raise Declined(
            f"it moves up to {_MOST} parameters one by one, and there are {count}, of "
            f"{longest.name!r} alone {sizes[longest]}"
        )
    if not levels and not anew and not others and not joint:
        raise Declined(
            "it is for groups, designs and Laplace noise, and the model has none of them"
        )
    values = [model.rvs_to_values[rv] for rv in (*parameters, *levels, *anew, *others)]
    ends = np.cumsum([count, *(sizes[rv] for rv in levels)])
    pairs = {model[release]: model[noise] for release, noise in mixed.items()}
    added = [model[name] for name in corrected]
    entries, drawn = list(levels.values()), sum(sizes[rv] for rv in anew)
    return Places(model, moved, values, ends, drawn, list(terms.values()), entries, pairs, added)


def _surrogates(on: Reading) -> tuple[Reading, list[str]]:
    """Put Normal sums of the same mean and variance in the place of those known by inversion.

    What their log density lacks becomes a Deterministic, whose names are returned.
    """
    model, change = on.model, Change()
    for rv in model.observed_RVs:
        op = rv.owner.op
        if isinstance(op, IntegratedReleaseRV) and op.law.by_inversion:
            value, (mechanism, parameters) = model.rvs_to_values[rv], op.split(rv.owner.inputs)
            lacking = op.law.logp(value, mechanism, *parameters)
            law, least = Surrogate(op.law.names, op.law), _LEAST * noise_variance(mechanism)
            parameters = [*parameters, pt.broadcast_to(least, lengths(rv))]
            change.replaced[rv] = integrated_release(law, mechanism, *parameters)
            lacking -= law.logp(value, mechanism, *parameters)
            change.deterministics[f"{rv.name}_correction"] = lacking.sum()
    on = Reading(rebuilt(on, [], change), on) if change.replaced else on
    return on, list(change.deterministics)


def _mixed(model: pm.Model) -> tuple[pm.Model, dict[str, str]]:
    r"""Make Laplace noise of Normal statistics Normal noise of variances that are variables.

    Of scale b it is that of a variance :math:`w \sim \mathrm{Exp}(1/(2b^2))`, and all is Normal
    given w. Statistics are drawn, and then w, with all that is in q held fixed: coordinates must
    not depend on w, but those that are drawn anew before they are used again. Returns the names of
    the variances by those of the releases.
    """
    change, mixed = Change(), {}
    for rv in model.observed_RVs:
        if not isinstance(op := rv.owner.op, IntegratedReleaseRV):
            continue
        mechanism, parameters = op.split(rv.owner.inputs)
        if _is_joint(op.law) and len(parameters) == 3:
            mixed[rv.name] = parameters[2].name
        if _has_normal(op.law) and has_continuous_rates(mechanism) and has_kink(mechanism):
            if math.prod(lengths(rv)) < _FEWEST and not isinstance(op.law, Surrogate):
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
    """Return which entry of a variable each entry of the terms belongs to; None if it is no level.

    The entries of a level are independent of each other given all else.
    """
    if not isinstance(rv.owner.op, LatentNormalRV) and nearest_rvs(rv.owner.inputs):
        return None  # as it is written it may follow its parameters slowly
    value = model.rvs_to_values[rv]
    try:
        return [_belongs(model, source, term, value) for source, term in terms.items()]
    except Declined:
        return None


def _belongs(
    model: pm.Model, source: TensorVariable, term: TensorVariable, value: TensorVariable
) -> np.ndarray:
    """Return which entry of a value each entry of a variable's density, a term, belongs to."""
    op = None if source in model.potentials else source.owner.op
    # A transform that ties entries leaves one term for all of them.
    if op is None or op.ndim_supp or lengths(term) != lengths(source):
        own = entries_of(term, value, places(term))
        return np.broadcast_to(own, math.prod(lengths(term)))
    index, graphs = places(source), [source] * (source in model.free_RVs)
    for parameter, ndim in zip(op.dist_params(source.owner), op.ndims_params, strict=True):
        if not ndim:
            graphs.append(parameter)
        elif value in ancestors(model.replace_rvs_by_values([parameter])):
            raise Declined
    graphs = model.replace_rvs_by_values(graphs)
    own = one_of([entries_of(graph, value, aligned(graph, index)) for graph in graphs])
    return np.broadcast_to(own, math.prod(lengths(source)))
