"""Reading a model: which records were privatized, and what a release says about them."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from functools import cache
from itertools import count
from typing import Any
from weakref import WeakSet

import numpy as np
import pymc as pm
import pytensor
import pytensor.tensor as pt
from pymc.distributions.censored import CensoredRV
from pymc.distributions.distribution import SymbolicRandomVariable
from pymc.distributions.mixture import _BaseMixtureRV
from pymc.distributions.transforms import _default_transform
from pymc.model.core import BaseModel
from pymc.model.transform.optimization import freeze_dims_and_data
from pytensor.compile.sharedvalue import SharedVariable
from pytensor.graph.basic import Variable, equal_computations
from pytensor.graph.traversal import ancestors, toposort
from pytensor.scalar.basic import Cast
from pytensor.tensor.basic import MakeVector
from pytensor.tensor.random.op import RandomVariable
from pytensor.tensor.variable import TensorVariable

from pymc_dp.graphs.declined import Answer, Basis, Declined, notice, noticing, once
from pymc_dp.graphs.questions import (
    depends_on,
    entry_of,
    is_whole,
    known_shape,
    known_value,
    nearest_rvs,
    simplified,
)
from pymc_dp.mechanisms.base import Mechanism
from pymc_dp.mechanisms.checks import check_attainable, is_published
from pymc_dp.mechanisms.postprocessed import layers
from pymc_dp.mechanisms.release import PrivateReleaseRV
from pymc_dp.reading.record_sums import RecordSumsRV


class Reading:
    """A model, and all that was read of it.

    What reads a model is a function of this, decorated with `once`: nothing is read twice, and what
    could not be read is declined with the same reason each time. A reading is of the model as it
    stands; see `kept` for how long that is. One that is made `of` another, of a rung say, is as
    current as that one: they share what they depend on.

    Attributes
    ----------
    model : pm.Model
    answers : dict
        To what it was asked, see `once`.
    values : dict
        Of data that answers were found from, as they were.
    trials : list of callables
        What declines the model where a density of it is not found, before it is sampled.
    """

    def __init__(self, model: pm.Model, of: Reading | None = None, *, keeps: bool = False):
        self.model = model
        self.answers: dict[Any, Answer] = {}
        self.values: dict[SharedVariable, np.ndarray] = {} if of is None else of.values
        self.trials: list[Callable[[], None]] = []
        self._keeps: bool = keeps if of is None else of._keeps
        self._family: WeakSet[Reading] = WeakSet() if of is None else of._family
        self._family.add(self)

    def following(
        self,
        compute: Callable[[], list[np.ndarray]],
        data: Sequence[SharedVariable] = (),
        first: list[np.ndarray] | None = None,
    ) -> list[TensorVariable]:
        """Return numbers that follow from data, such as where a density is expanded.

        Where the reading is kept they are shared variables, which take the numbers for the data as
        they are at each call. Only such values may change: no graph, and no choice of a route, may
        depend on them.

        Parameters
        ----------
        compute : returns the numbers.
        data : those that it depends on, beside those that it notices.
        first : what it returns now, where that is known; it depends on `data` alone.
        """
        if not self._keeps:
            return [pt.constant(value) for value in (compute() if first is None else first)]

        def now(known: list[np.ndarray] | None = None) -> tuple[list[np.ndarray], Basis]:
            with noticing(basis := Basis({}), alone=True):
                notice(*data)
                return compute() if known is None else known, basis

        first, basis = now(first)
        # nutpie asks for names of their own.
        numbers = [
            pytensor.shared(np.asarray(value), f"following_{next(_COUNT)}", shape=np.shape(value))
            for value in first
        ]

        def follow() -> bool:
            nonlocal basis
            if not changed(basis.values):
                return True
            try:
                values, found = now()
            except (Declined, ValueError, np.linalg.LinAlgError):
                return False  # it is for the next answer to say why
            if [number.type.shape for number in numbers] != list(map(np.shape, values)):
                return False
            for number, value in zip(numbers, values, strict=True):
                number.set_value(value)
            basis = found
            return True

        notice(following=[follow])
        return numbers

    def renew(self) -> None:
        """Forget the answers that were found from data that are not what they were."""
        other = changed(self.values)
        for own in other:
            del self.values[own]
        follows = cache(lambda follow: follow())
        for reading in list(self._family):
            for key, answer in list(reading.answers.items()):
                basis = answer.basis
                if not other.isdisjoint(basis.data) or not all(map(follows, basis.following)):
                    del reading.answers[key]


_COUNT = count()


def changed(values: dict[SharedVariable, np.ndarray]) -> set[SharedVariable]:
    """Return the data that do not have these values any more."""

    def equal(one, other) -> bool:
        return np.array_equal(one, other, equal_nan=np.asarray(one).dtype.kind in "fc")

    return {own for own, value in values.items() if not equal(own.get_value(borrow=True), value)}


def read(model: pm.Model | None, call: str) -> Reading:
    """Read the model of an argument or of the context; its lengths are numbers, see below."""
    return Reading(with_known_lengths(as_model(model, call)))


def as_model(model: pm.Model | None, call: str) -> pm.Model:
    """Return the model of the argument or of the context; `call` shows how to pass it."""
    if model is None:
        try:
            return pm.modelcontext(None)
        except TypeError:
            raise TypeError(f"no model: write {call}, or call it within `with model:`") from None
    if not isinstance(model, BaseModel):
        raise TypeError(f"a pm.Model is needed, not a {type(model).__name__}: write {call}")
    return model


def with_known_lengths(model: pm.Model) -> pm.Model:
    """Return the model with numbers for the lengths of its records and of what is released.

    `dims` and `pm.Data` make them variables, which a reading cannot go by; nor can it by indices
    that change. PyMC freezes the dims and data that decide a length, and those behind the public
    whole numbers and truth values of a statistic, in a copy, which `pm.set_data` then refuses to
    change. It also freezes the data in priors of unknown numbers of records. The copy's variables
    have the names of the model's.
    """
    dims, data = deciding(model)
    return copied(model, dims, data) if dims or data else model


def deciding(model: pm.Model) -> tuple[list[str], list[str]]:
    """Return the names of dims and data that a reading goes by, see above."""
    shaped = [v for v in (*_privatized(model), *releases(model)) if None in v.type.shape]
    deciding = set(ancestors(simplified([v.shape for v in shaped]))) if shaped else set()
    deciding |= set(ancestors(_on_unknown_numbers(model), blockers=model.basic_RVs))
    statistics = [release_statistic(release) for release in releases(model)]
    used, random = set(ancestors(statistics, blockers=model.basic_RVs)), set(model.basic_RVs)
    whole = [v for v in used - random if _counts(v) and v.owner is None]
    for node in toposort(statistics, blockers=model.basic_RVs):
        if random.isdisjoint(node.inputs):
            whole += filter(_counts, node.outputs)
        else:
            random.update(node.outputs)
    deciding |= set(ancestors(whole))
    dims = [name for name, length in model.dim_lengths.items() if length in deciding | used]
    return dims, [v.name for v in model.data_vars if v in deciding]


def copied(model: pm.Model, dims: Sequence[str], data: Sequence[str]) -> pm.Model:
    """Return a copy of a model in which some dims and data are constants."""
    copy = freeze_dims_and_data(without_starts(model), dims=dims, data=data)
    set_starts(copy, model)
    in_order_of(copy, model)
    for rv in model.basic_RVs:  # a variable of another type is made anew, without its notes
        copy[rv.name].tag.__update__(rv.tag)
    return copy


def in_order_of(copy: pm.Model, model: pm.Model) -> None:
    """Put the variables of a copy in the order of a model; its own come last."""
    for kind in ("free_RVs", "observed_RVs", "potentials", "deterministics"):
        order = {v.name: i for i, v in enumerate(getattr(model, kind))}
        getattr(copy, kind).sort(key=lambda v, order=order: order.get(v.name, len(order)))
    copy.check_bounds = model.check_bounds


def without_starts(model: pm.Model) -> pm.Model:
    """Return a model without its `initval=`, which PyMC makes no graph of with them.

    It is the same model otherwise, down to its variables, to be read only. The model itself stays
    as it is all the time: another thread may read it.
    """
    bare = object.__new__(type(model))
    starts = dict.fromkeys(model.rvs_to_initial_values)
    bare.__dict__.update(model.__dict__, rvs_to_initial_values=starts)
    return bare


def set_starts(copy: pm.Model, model: pm.Model) -> None:
    """Put the `initval=` of a model on those variables of a copy of it that still are in it."""
    starts = {rv.name: start for rv, start in model.rvs_to_initial_values.items()}
    for rv in copy.free_RVs:
        copy.set_initval(rv, starts.get(rv.name))


def _counts(variable: Variable) -> bool:
    """Whether a variable holds whole numbers or truth values."""
    return np.dtype(getattr(variable.type, "dtype", "float64")).kind in "biu"


def _on_unknown_numbers(model: pm.Model) -> list[Variable]:
    """Return priors of unknown numbers of records, and what was published of these, with noise."""
    sizes = {rv: size for rv in model.free_RVs if (size := size_of(rv)) is not None}
    found = [graph for size in sizes.values() for graph in size.owner.inputs]
    for release in releases_of(model, {*sizes, *sizes.values()}):
        found += [model.rvs_to_values[release], *release_mechanism(release).parameters]
    return found


def prior_value(parameter: Any, name: str | None) -> np.ndarray:
    """Return a parameter of a prior; refuse one that is random, by the name of the variable."""
    value = known_value(pt.as_tensor(parameter))
    if value is None:
        raise Declined(f"the prior of {name!r} has random parameters")
    return value


def prior_number(parameter: Any, name: str | None) -> float:
    """Return a parameter of a prior that is one number."""
    return float(np.squeeze(prior_value(parameter, name)))


def is_tagged(rv: Variable) -> bool:
    """Whether `PrivateObservation` tagged a variable as records that have a step of ours."""
    return isinstance(getattr(rv.tag, "dp_release", None), str)


def is_component(variable: Variable) -> bool:
    """Whether a random variable is part of another's law: it has no name, no model knows it."""
    return variable.name is None


def parents(rv: TensorVariable) -> list[TensorVariable]:
    """Return the random variables that the law of `rv` is computed from.

    Those of the components of a mixture, or of what is censored, are among them.
    """
    found: dict[TensorVariable, None] = {}
    for variable in nearest_rvs(rv.owner.inputs):
        found[variable] = None
        if is_component(variable):
            found |= dict.fromkeys(parents(variable))
    return list(found)


@once
def children(reading: Reading, rv: TensorVariable) -> list[TensorVariable]:
    """Model variables (random ones and potentials) computed directly from `rv`."""
    model, found = reading.model, []
    for other in model.basic_RVs:
        if other is not rv and rv in parents(other):
            found.append(other)
    found += [p for p in model.potentials if depends_on(p, rv)]
    return found


def releases(model: pm.Model) -> list[TensorVariable]:
    """Return the releases of a model, in the order in which they were declared."""
    return [rv for rv in model.basic_RVs if isinstance(rv.owner.op, PrivateReleaseRV)]


def releases_of(
    model: pm.Model, records: Collection[TensorVariable], pending: Sequence[TensorVariable] = ()
) -> list[TensorVariable]:
    """Return the releases of some records; `pending` ones are not registered with the model yet."""
    found = [*releases(model), *pending]
    return [r for r in found if any(rv in records for rv in nearest_rvs([release_statistic(r)]))]


def check_values(model: pm.Model) -> None:
    """Check published values and noise again: `pm.set_data` may have changed them."""
    for release in releases(model):
        if release not in model.observed_RVs:
            continue
        published = as_published(model.rvs_to_values[release])
        value = known_value(published)
        shape = release.type.shape
        if value is not None and (
            value.ndim != len(shape)
            or any(e not in (None, s) for e, s in zip(shape, value.shape, strict=False))
            or not np.all(is_published(release_mechanism(release), value))
        ):
            raise ValueError(
                f"{release.name!r}: the observed value {value} is not a finite array of shape "
                f"{shape}; was it changed by pm.set_data?"
            )
        wrong = release_mechanism(release).wrong_parameter()
        if wrong is not None:
            raise ValueError(
                f"{release.name!r}: the noise parameter {wrong}; was it changed by pm.set_data?"
            )
        check_attainable(
            release.name, release_mechanism(release), published, release_statistic(release)
        )


def as_published(value: TensorVariable) -> TensorVariable:
    """Return an observed value as it was given: PyMC cuts data to whole numbers by a cast."""
    while isinstance(value.owner and getattr(value.owner.op, "scalar_op", None), Cast):
        [value] = value.owner.inputs
    return value


def size_of(rv: TensorVariable) -> TensorVariable | None:
    """Return the random variable that is the length of some records; None of known lengths."""
    length = written_length(rv)
    found = [] if length is None else nearest_rvs([length])
    return next((v for v in found if not is_component(v)), None)


def written_length(rv: TensorVariable) -> TensorVariable | None:
    """Return the length of a vector of records as it is written; None where it is not.

    Of sums over records, the numbers of these.
    """
    op = rv.owner.op
    if isinstance(op, RecordSumsRV):
        return rv.owner.inputs[1]
    if rv.type.ndim == 1 and isinstance(op, _BaseMixtureRV | CensoredRV):
        if known_shape(rv)[0] is not None:
            return None  # that of a component may be of another variable, whatever this is
        parts = [v for v in nearest_rvs(rv.owner.inputs) if is_component(v)]
        return next((v for v in map(_first_length, parts) if v is not None), None)
    symbolic = isinstance(op, SymbolicRandomVariable) and op.extended_signature
    if rv.type.ndim != 1 or not (symbolic or isinstance(op, RandomVariable)):
        return None
    return _first_length(rv)


def _first_length(rv: TensorVariable) -> TensorVariable | None:
    """Return the first entry of a size as it is written."""
    size = rv.owner.op.size_param(rv.owner)
    if size is None or size.owner is None:
        return None
    if not isinstance(size.owner.op, MakeVector):
        return size
    length = size.owner.inputs[0]
    # That of a component is an entry of the size of what it is part of.
    while (entry := entry_of(length)) is not None:
        vector, place = entry
        if vector.owner is None or not isinstance(vector.owner.op, MakeVector):
            break
        length = vector.owner.inputs[place[0]]
    return length


def record_count(rv: TensorVariable) -> int:
    """Return the number of records, without drawing any."""
    if rv.type.ndim != 1:
        raise ValueError(
            f"the records {rv.name!r} have {rv.type.ndim} dimensions; a vector is needed: write "
            f"shape=n (one record per entry)"
        )
    return record_length(rv)


def record_length(rv: TensorVariable) -> int:
    """Return the length of the records' first axis, without drawing any."""
    if isinstance(rv.owner.op, RecordSumsRV):
        raise ValueError(f"{rv.name!r} are sums over records that are never built")
    [length, *_] = known_shape(rv)
    size = None if length is not None else size_of(rv)
    if size is not None:
        raise ValueError(
            f"the number of records {rv.name!r} is {size.name!r}, a variable of the model: records "
            f"of which nobody knows how many there are cannot be sampled themselves"
        )
    if length is None and (sizes := nearest_rvs(simplified([rv.shape[0]]))):
        if rv.type.ndim > 1:
            raise ValueError(
                f"the number of rows {rv.name!r} is {sizes[0].name!r}, a variable of the model: "
                f"write a vector for each column, x = pm.Normal('x', ..., shape=n) and "
                f"y = pm.Normal('y', a + b * x, ..., shape=n)"
            )
        raise ValueError(
            f"the number of records {rv.name!r} is {sizes[0].name!r}, a variable of the model, and "
            f"their law is made of others, as a mixture or hurdle is: records of unknown number "
            f"follow one law"
        )
    if length is None:
        raise ValueError(
            f"the number of records {rv.name!r} is not known: give {rv.name!r} a shape= or dims="
        )
    return length


def release_statistic(release: TensorVariable) -> TensorVariable:
    """Return the confidential statistic that a release adds noise to."""
    return release.owner.inputs[1]


def release_mechanism(release: TensorVariable) -> Mechanism:
    """Return the noise of a release, with the parameters of its graph."""
    return release.owner.op.split(release.owner.inputs)[1]


def takes_whole(release: TensorVariable) -> bool:
    """Whether the noise of a release is of whole numbers, before any rounding or clipping."""
    return layers(release.owner.op.mechanism)[-1].takes_whole


def leaves_gaps(release: TensorVariable) -> bool:
    """Whether whole-number noise makes the records impossible for which a statistic is not whole.

    Between those that are possible, moves by one record or by one count then find no way.
    """
    return takes_whole(release) and not is_whole(release_statistic(release))


def require_possible(found: Sequence[TensorVariable]) -> None:
    """Decline whole-number noise on a statistic that is not known to be a whole number."""
    for release in found:
        if leaves_gaps(release):
            raise Declined(
                f"{release.name!r} adds whole-number noise to a statistic that is not known to be "
                f"whole, and impossible where it is not. Release a sum of whole numbers; or, if it "
                f"always is whole, write pt.round(...)",
                near=1,
            )


def check_transform(model: pm.Model, rv: TensorVariable) -> None:
    """Refuse a transform that the user put on a variable: it may cut the variable's support."""
    actual = model.rvs_to_transforms.get(rv)
    default = _default_transform(rv.owner.op, rv)
    if actual is not None and not _same_transform(actual, default, rv):
        raise Declined(
            f"{rv.name!r} has the transform {type(actual).__name__}, which is not its default one "
            f"and may cut its support: leave transform= out, and state the support by the "
            f"distribution (pm.Uniform, pm.Truncated)",
            near=2,
        )


def _same_transform(actual, default, rv: TensorVariable) -> bool:
    """Whether two transforms are the same function."""
    if type(actual) is not type(default):
        return False
    value = rv.type("value")
    forward = [[t.forward(value, *rv.owner.inputs)] for t in (actual, default)]
    return equal_computations(*forward)


def _privatized(model: pm.Model) -> list[TensorVariable]:
    feeding = nearest_rvs([release_statistic(r) for r in releases(model)])
    # A vector that is one draw, of the counts of a table say, is none.
    return [
        rv
        for rv in model.free_RVs
        if rv in feeding
        and (rv.type.ndim > (rv.owner.op.ndim_supp or 0) or isinstance(rv.owner.op, RecordSumsRV))
    ]


@once
def privatized(reading: Reading) -> list[TensorVariable]:
    """Return the vectors of records that feed some release, in model order."""
    return _privatized(reading.model)
