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


def exact_draw(
    reading: Reading, rv: TensorVariable
) -> tuple[Any, tuple[TensorVariable, ...]] | None:
    """Return the step that says that it draws a count exactly, and all that it draws with it.

    A step says so by ``draws_exactly(reading, rv)``, a class method: counts that it draws together,
    none where they are not for it. It raises `Declined` where they are, and it cannot.
    """
    if rv.dtype.startswith("float"):
        return None
    for step, group in _exact_draws(reading, rv).items():
        if not isinstance(group, Declined) and group:
            return step, group
    return None


def no_exact_draw(reading: Reading, rv: TensorVariable) -> str:
    """Return why a step that a count is for cannot draw it, as the end of a sentence."""
    found = _exact_draws(reading, rv).items()
    return "".join(f". {s.__name__} cannot: {why}" for s, why in found if isinstance(why, Declined))


@once
def _exact_draws(reading: Reading, rv: TensorVariable) -> dict[Any, Any]:
    answers: dict[Any, Any] = {}
    for step in STEPS:
        if hasattr(step, "draws_exactly"):
            try:
                answers[step] = step.draws_exactly(reading, rv)
            except Declined as why:
                answers[step] = why
    return answers


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
