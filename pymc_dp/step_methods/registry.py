"""The registered steps: which are asked, in which order, what they claim of a model."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from pytensor.tensor.variable import TensorVariable

from pymc_dp.graphs.declined import Declined, once
from pymc_dp.graphs.registry import Registry
from pymc_dp.graphs.values import nearest_rvs
from pymc_dp.reading.model import Reading, releases

STEPS: Registry[Any, Any] = Registry()
"""The steps, in the order in which they are asked.

A step has ``claims(reading, left)``, a class method: groups of the variables that are `left`, each
for one instance of the step, or empty. What is claimed first is drawn first in a sweep: latents,
then the parameters that depend on them. `chosen_options` are arguments of an instance that is
chosen and not written by the user.
"""


def accepted(
    check: Callable[[TensorVariable], Any], variables: Sequence[TensorVariable]
) -> list[TensorVariable]:
    """Return the variables that a check does not refuse."""
    accepted_rvs = []
    for rv in variables:
        try:
            check(rv)
        except (Declined, ValueError):
            continue
        accepted_rvs.append(rv)
    return accepted_rvs


def concerned(reading: Reading, variables: Sequence[TensorVariable]) -> list[TensorVariable]:
    """Return the variables that a release depends on, and the parameters of these."""
    near_releases = _near_releases(reading)
    return [rv for rv in variables if rv in near_releases]


@once
def _near_releases(reading: Reading) -> set[TensorVariable]:
    inputs = [v for release in releases(reading.model) for v in release.owner.inputs]
    touched = nearest_rvs(inputs)
    return {*touched, *nearest_rvs([v for rv in touched for v in rv.owner.inputs])}
