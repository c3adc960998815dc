"""What a model says: its releases, and which variables depend on which."""

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
from pytensor.compile.sharedvalue import SharedVariable
from pytensor.graph.basic import Variable
from pytensor.scalar.basic import Cast
from pytensor.tensor.variable import TensorVariable

from pymc_dp.graphs.declined import Answer, Basis, Declined, notice, noticing, once
from pymc_dp.graphs.values import depends_on, known_value, nearest_rvs
from pymc_dp.mechanisms.base import Mechanism
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


def prior_value(parameter: Any, name: str | None) -> np.ndarray:
    """Return a parameter of a prior; refuse one that is random, by the name of the variable."""
    value = known_value(pt.as_tensor(parameter))
    if value is None:
        raise Declined(f"the prior of {name!r} has random parameters")
    return value


def prior_number(parameter: Any, name: str | None) -> float:
    """Return a parameter of a prior that is one number."""
    return float(np.squeeze(prior_value(parameter, name)))


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


def as_published(value: TensorVariable) -> TensorVariable:
    """Return an observed value as it was given: PyMC cuts data to whole numbers by a cast."""
    while isinstance(value.owner and getattr(value.owner.op, "scalar_op", None), Cast):
        [value] = value.owner.inputs
    return value


def release_statistic(release: TensorVariable) -> TensorVariable:
    """Return the confidential statistic that a release adds noise to."""
    return release.owner.inputs[1]


def release_mechanism(release: TensorVariable) -> Mechanism:
    """Return the noise of a release, with the parameters of its graph."""
    return release.owner.op.split(release.owner.inputs)[1]


def privatized_variables(model: pm.Model) -> list[TensorVariable]:
    """Return the vectors of records that feed some release; see `privatized`."""
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
    return privatized_variables(reading.model)
