"""Records that are released one by one, as any function of each."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial

import numpy as np
import pymc as pm
import pytensor.tensor as pt
from pytensor.graph.replace import graph_replace
from pytensor.graph.traversal import ancestors
from pytensor.scalar.basic import Mul, Switch
from pytensor.tensor.random.basic import BernoulliRV
from pytensor.tensor.variable import TensorVariable

from pymc_dp.graphs.declined import Declined, about
from pymc_dp.graphs.shapes import known_shape, lengths, require_entry_each
from pymc_dp.graphs.values import is_random, known_value, nearest_rvs
from pymc_dp.laws import find_pair, require_pair
from pymc_dp.laws.count_sums import Atom
from pymc_dp.laws.integrated import confidential
from pymc_dp.laws.mixture import MixtureLaw
from pymc_dp.laws.of_function import OfFunction, plain, read_function
from pymc_dp.laws.one_value import OneValue, independent_release
from pymc_dp.laws.parts import law_of_record
from pymc_dp.laws.sum_law import LAWS, Change, Phase, SumLaw, Takes
from pymc_dp.mechanisms.release import apart
from pymc_dp.plugins.single_values.pair import GeneralPair, log_marginal, marginal_at
from pymc_dp.reading.bounds import starting_values
from pymc_dp.reading.checks import check_transform
from pymc_dp.reading.model import Reading, mechanism_of, release_statistic, releases_of

_TRIED = 101  # released values at which interpolation is compared with integrals
_MOST_APART = 0.05  # error of the log density of all values


@LAWS.register(Phase.SINGLE, Takes(single=True, number_known=True))
@dataclass(frozen=True, eq=False)
class OneByOne(SumLaw):
    """Values of one variable, of which one release has an entry each."""

    reading: Reading
    rv: TensorVariable
    release: TensorVariable

    @classmethod
    def read(cls, reading, group):
        """See `SumLaw.read`."""
        [rv] = group.records
        check_transform(reading.model, rv)
        [release, *more] = releases_of(reading.model, [rv])
        if more or release.owner.op.bounds is not None or rv.owner.op.ndim_supp:
            raise Declined
        return cls(reading, rv, release)

    def marginal(self):
        """Integrate each value out."""
        with about(f"the release {self.release.name!r}"):
            law, parameters = law_of_record(self.rv, truncated=True)
        statistic = apart(release_statistic(self.release))
        name = str(self.rv.name)
        return _integrated(self.reading, self.release, statistic, self.rv, law, parameters, name)


@LAWS.register(Phase.SINGLE, Takes(single=False, number_known=True))
@dataclass(frozen=True, eq=False)
class Switched(SumLaw):
    """Values of two variables, or of one and a number, of which a Bernoulli one chooses."""

    reading: Reading
    release: TensorVariable
    statistic: TensorVariable
    chosen: TensorVariable
    label: TensorVariable
    values: tuple[TensorVariable, TensorVariable]  # where the label is one, and zero

    @classmethod
    def read(cls, reading, group):
        """See `SumLaw.read`."""
        releases = releases_of(reading.model, group.records)
        if len(releases) != 1 or releases[0].owner.op.bounds is not None:
            raise Declined
        statistic = apart(release_statistic(releases[0]))
        chosen, label, values = _find_switch(statistic, group.records)
        if known_shape(chosen) != known_shape(statistic):
            raise Declined
        for rv in group.records:
            check_transform(reading.model, rv)
            if rv not in (label, *values) or {*nearest_rvs(rv.owner.inputs)} & {*group.records}:
                raise Declined
        return cls(reading, releases[0], statistic, chosen, label, values)

    def marginal(self):
        """Integrate label and values out, as a mixture."""
        release, p = self.release, self.label.owner.op.dist_params(self.label.owner)[0]
        with about(f"the release {release.name!r}"):
            laws = [
                law_of_record(v, truncated=True) if is_random(v) else (Atom(), [v])
                for v in self.values
            ]
        law = MixtureLaw(tuple(law for law, _ in laws), tuple(len(theta) for _, theta in laws))
        parameters = [p, 1.0 - p, *(v for _, theta in laws for v in theta)]
        whole = not self.chosen.dtype.startswith("float")
        of_dtype = partial(pm.Poisson.dist, 1) if whole else pm.Normal.dist
        like = of_dtype(shape=known_shape(release))
        [statistic] = graph_replace([self.statistic], {self.chosen: like})
        name = confidential(release)
        return _integrated(self.reading, release, statistic, like, law, parameters, name)


def _find_switch(statistic: TensorVariable, records) -> tuple:
    """Return a switch, or a multiple, by a Bernoulli variable; the variable, and its two values."""
    zero = pt.zeros(())
    for v in ancestors([statistic], blockers=records):
        op = getattr(v.owner and v.owner.op, "scalar_op", None)
        inputs = v.owner.inputs if isinstance(op, Switch | Mul) else []
        for label in (i for i in inputs if i.owner and isinstance(i.owner.op, BernoulliRV)):
            rest = [i for i in inputs if i is not label]
            values = tuple(rest) if isinstance(op, Switch) else (*rest, zero)
            if len(values) == 2 and all(is_random(x) or not nearest_rvs([x]) for x in values):
                require_entry_each(v, [label, *filter(is_random, values)])
                return v, label, values
    with _for_another_law():
        require_entry_each(statistic, records)
    raise Declined


@contextmanager
def _for_another_law():
    """Say nothing of a statistic that is no function of each value."""
    try:
        yield
    except Declined as why:
        raise why if why.near > 0 else Declined from None


def _integrated(
    reading: Reading, release: TensorVariable, statistic, rv, law, parameters, name: str
) -> Change:
    """Integrate each value out of a statistic of an entry of `rv` each."""
    mechanism = mechanism_of(release)
    with _for_another_law():
        function, further = read_function(statistic, rv)
    with about(f"the release {release.name!r}"):
        of_value = OfFunction(mechanism, function, tuple(further))
        value = known_value(reading.model.rvs_to_values[release], fixed=True)
        is_published = release in reading.model.observed_RVs and value is not None
        new = release_of_each(name, law, parameters, of_value, release)
        trials: list[Callable[[], None]] = []
        noise, z, _ = plain(of_value, pt.constant(value if is_published else 0.0))
        if is_published and isinstance(find_pair(law, noise), GeneralPair):
            trial = partial(_try, law, noise, z, parameters)
            trials.append(about(f"the release {release.name!r}")(trial))
        return Change(replaced={release: new}, trials=trials)


def release_of_each(
    name: str, law, parameters, mechanism: OfFunction, like: TensorVariable
) -> TensorVariable:
    """Build the release of a function of each value of a law, of the shape of `like`."""
    parameters = [pt.broadcast_to(p, lengths(like)) for p in parameters]
    require_pair(law, plain(mechanism, 0.0)[0], parameters)
    return independent_release(OneValue(name, law, len(parameters)), parameters, mechanism)


def _try(law, mechanism, released: TensorVariable, parameters) -> None:
    """Decline a density that has no value at the start, or is not smooth between releases."""
    [value] = starting_values([released])
    density = log_marginal(law, mechanism, pt.constant(value), *parameters)
    [at_start] = starting_values([density])
    if np.isnan(at_start).any():
        raise Declined(
            "the integral of a value has no value where the model starts: see that the release is "
            "possible there, and that no rounding has thousands of steps within the law",
            near=1,
        )
    some = np.unique(np.linspace(0, value.size - 1, _TRIED).astype(int))
    some = np.argsort(value, axis=None, kind="stable")[some]
    given, further = (
        [pt.broadcast_to(p, value.shape).ravel()[some] for p in each]
        for each in (parameters, mechanism.parameters)
    )
    noise = mechanism.with_parameters(*further)
    [exact] = starting_values([marginal_at(law, noise, pt.constant(value.ravel()[some]), given)])
    with np.errstate(invalid="ignore"):
        apart = np.abs(np.nansum(at_start.ravel()[some] - exact)) * value.size / some.size
    if apart > _MOST_APART:
        raise Declined(
            f"its density changes too fast between released values to be interpolated: the log "
            f"density of all would be wrong by {apart:.1g}",
            near=1,
        )
