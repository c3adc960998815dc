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
    """A model, and the answers to all questions about it so far.

    A question is a function of a reading, decorated with `once`: it is answered once, and what
    cannot be read is declined with the same reason each time. Answers hold for the current data;
    `renew` forgets those that do not, see `kept`. A reading made `of` another, of a rung say,
    shares the data that answers depend on, and is renewed together with it.

    Attributes
    ----------
    model : pm.Model
    answers : dict
        Answers by question, see `once`.
    values : dict
        Values of the data that answers depend on, when they were read.
    trials : list of callables
        Functions that decline the model, before it is sampled, if a density has no value.
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
        """Return numbers that follow data, such as the point around which a density is expanded.

        In a kept reading they are shared variables, which are set anew when data have changed. Only
        their values change: no graph, and no choice of a route, may depend on them.

        Parameters
        ----------
        compute : returns the numbers.
        data : the data that `compute` depends on, beside those that it notices.
        first : what `compute` returns now, if that is known; it depends on `data` alone.
        """
        if not self._keeps:
            return [pt.constant(value) for value in (compute() if first is None else first)]

        def now(known: list[np.ndarray] | None = None) -> tuple[list[np.ndarray], Basis]:
            with noticing(basis := Basis({}), alone=True):
                notice(*data)
                return compute() if known is None else known, basis

        first, basis = now(first)
        # nutpie needs distinct names.
        numbers = [
            pytensor.shared(np.asarray(value), f"following_{next(_COUNT)}", shape=np.shape(value))
            for value in first
        ]

        def follow() -> bool:
            nonlocal basis
            if not changed(basis.values):
                return True
            try:
                values, new_basis = now()
            except (Declined, ValueError, np.linalg.LinAlgError):
                return False
            if [number.type.shape for number in numbers] != list(map(np.shape, values)):
                return False
            for number, value in zip(numbers, values, strict=True):
                number.set_value(value)
            basis = new_basis
            return True

        notice(following=[follow])
        return numbers

    def renew(self) -> None:
        """Forget the answers that depend on data that have changed."""
        other = changed(self.values)
        for variable in other:
            del self.values[variable]
        follows = cache(lambda follow: follow())
        for reading in list(self._family):
            for key, answer in list(reading.answers.items()):
                basis = answer.basis
                if not other.isdisjoint(basis.data) or not all(map(follows, basis.following)):
                    del reading.answers[key]


_COUNT = count()


def changed(values: dict[SharedVariable, np.ndarray]) -> set[SharedVariable]:
    """Return the data whose current values are not those in a dictionary."""

    def equal(value, current) -> bool:
        return np.array_equal(value, current, equal_nan=np.asarray(value).dtype.kind in "fc")

    return {
        variable
        for variable, value in values.items()
        if not equal(variable.get_value(borrow=True), value)
    }


def prior_value(parameter: Any, name: str | None) -> np.ndarray:
    """Return the value of a parameter of a prior; decline a random one."""
    value = known_value(pt.as_tensor(parameter))
    if value is None:
        raise Declined(f"the prior of {name!r} has random parameters")
    return value


def prior_number(parameter: Any, name: str | None) -> float:
    """Return the value of a parameter of a prior, which is one number."""
    return float(np.squeeze(prior_value(parameter, name)))


def is_component(variable: Variable) -> bool:
    """Whether a random variable is a component of another's law: it has no name in a model."""
    return variable.name is None


def parents(rv: TensorVariable) -> list[TensorVariable]:
    """Return the random variables that the law of `rv` is computed from.

    They include the components of a mixture or of a censored variable, and their parents.
    """
    rvs: dict[TensorVariable, None] = {}
    for variable in nearest_rvs(rv.owner.inputs):
        rvs[variable] = None
        if is_component(variable):
            rvs |= dict.fromkeys(parents(variable))
    return list(rvs)


@once
def children(reading: Reading, rv: TensorVariable) -> list[TensorVariable]:
    """Return the random variables and potentials of the model computed directly from `rv`."""
    model, dependents = reading.model, []
    for other in model.basic_RVs:
        if other is not rv and rv in parents(other):
            dependents.append(other)
    dependents += [p for p in model.potentials if depends_on(p, rv)]
    return dependents


def releases(model: pm.Model) -> list[TensorVariable]:
    """Return the releases of a model, in the order in which they were declared."""
    return [rv for rv in model.basic_RVs if isinstance(rv.owner.op, PrivateReleaseRV)]


def releases_of(
    model: pm.Model, records: Collection[TensorVariable], pending: Sequence[TensorVariable] = ()
) -> list[TensorVariable]:
    """Return the releases of some records; `pending` ones are not registered with the model yet."""
    declared = [*releases(model), *pending]
    return [r for r in declared if any(rv in records for rv in nearest_rvs([release_statistic(r)]))]


def as_published(value: TensorVariable) -> TensorVariable:
    """Return an observed value as the user gave it: PyMC casts it, which may cut fractions."""
    while isinstance(value.owner and getattr(value.owner.op, "scalar_op", None), Cast):
        [value] = value.owner.inputs
    return value


def release_statistic(release: TensorVariable) -> TensorVariable:
    """Return the confidential statistic that a release adds noise to."""
    return release.owner.inputs[1]


def mechanism_of(release: TensorVariable) -> Mechanism:
    """Return the noise of a release, with the parameters of its graph.

    Those of the op's mechanism are without values: the op is shared by copies of a model.
    """
    return release.owner.op.split(release.owner.inputs)[0]


def divisors_of(release: TensorVariable) -> list[TensorVariable]:
    """Return the noisy numbers that divide a release and its noise, see `mechanisms.ratios`."""
    return nearest_rvs(mechanism_of(release).parameters)


@once
def behind_ratios(reading: Reading) -> set[TensorVariable]:
    """Return the variables of releases that noisy numbers divide, and these."""
    ratios = [r for r in releases(reading.model) if divisors_of(r)]
    return {*nearest_rvs([v for r in ratios for v in r.owner.inputs])}


def privatized_variables(model: pm.Model) -> list[TensorVariable]:
    """Return the vectors of records that feed some release; see `privatized`."""
    feeding = nearest_rvs([release_statistic(r) for r in releases(model)])
    # A vector that is a single draw, the counts of a table say, is no vector of records.
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
