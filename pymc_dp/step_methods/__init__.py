"""Steps for `pm.sample`, and `steps`, which chooses them for a model."""

from __future__ import annotations

import math
from collections.abc import Sequence
from contextlib import suppress
from functools import partial
from typing import Any

import numpy as np
import pymc as pm
from pymc.step_methods import STEP_METHODS
from pymc.step_methods.compound import BlockedStep
from pytensor.tensor.random.basic import PoissonRV
from pytensor.tensor.variable import TensorVariable

from pymc_dp.graphs.declined import Declined, once
from pymc_dp.graphs.registry import load
from pymc_dp.graphs.shapes import lengths
from pymc_dp.graphs.stages import stage
from pymc_dp.graphs.values import is_itself, nearest_rvs
from pymc_dp.reading.checks import leaves_gaps
from pymc_dp.reading.frozen import as_model
from pymc_dp.reading.model import Reading, behind_ratios, release_statistic, releases, releases_of
from pymc_dp.reading.tags import tag_records
from pymc_dp.step_methods.cells import CellGibbs
from pymc_dp.step_methods.conjugate import ConjugateGibbs
from pymc_dp.step_methods.counts import CountGibbs, check_count
from pymc_dp.step_methods.feasible_slice import FeasibleSlice
from pymc_dp.step_methods.records import RecordMetropolis
from pymc_dp.step_methods.registry import STEPS, accepted, exact_draw, no_exact_draw
from pymc_dp.step_methods.scale_mixture import LaplaceScaleMixtureGibbs
from pymc_dp.step_methods.skellam_bessel import SkellamBesselGibbs
from pymc_dp.step_methods.table_entries import (
    WITH_TOTAL,
    read_table,
    slopes_of,
    tell_apart,
    together,
)
from pymc_dp.step_methods.tables import TableGibbs
from pymc_dp.step_methods.two_sided import TruncatedGammaMixtureGibbs, TwoSidedGibbs, is_exact_count

__all__ = [
    "STEPS",
    "CellGibbs",
    "ConjugateGibbs",
    "CountGibbs",
    "FeasibleSlice",
    "LaplaceScaleMixtureGibbs",
    "RecordMetropolis",
    "SkellamBesselGibbs",
    "TableGibbs",
    "TruncatedGammaMixtureGibbs",
    "TwoSidedGibbs",
    "choose_again",
    "choose_steps",
    "exact_step",
    "refuse_stuck",
    "register_steps",
    "steps",
    "with_present_tags",
]


load(__name__)


_LOOKED_AT = 100_000  # counts of a variable whose releases are read to see if some are cells


def register_steps() -> None:
    """Put the steps in front of PyMC's, once; ties of competence go to the first."""
    for step in reversed(tuple(STEPS)):
        if step not in STEP_METHODS:
            STEP_METHODS.insert(0, step)


def claimed_steps(reading: Reading) -> list[tuple[Any, list[TensorVariable]]]:
    """Return steps with the variables of each instance, in the order in which they are drawn."""
    left = [rv for rv in reading.model.free_RVs if rv not in behind_ratios(reading)]
    claimed: list[tuple[Any, list[TensorVariable]]] = []
    for step in STEPS:
        groups = step.claims(reading, left)
        torn = {rv for group in groups for rv in group if not _mates(reading, rv) <= {*group}}
        if torn:
            groups = step.claims(reading, [rv for rv in left if rv not in torn])
        for group in groups:
            claimed.append((step, [rv for rv in reading.model.free_RVs if rv in group]))
            left = [rv for rv in left if rv not in group]
    # NUTS moves a latent statistic without an exact draw best, together with its parameters.
    latents = [
        rv
        for rv in nearest_rvs([release_statistic(r) for r in releases(reading.model)])
        if rv in reading.model.free_RVs
    ]
    unbounded = all(r.owner.op.bounds is None for r in releases(reading.model))
    if unbounded and any(rv in left for rv in latents):
        claimed = [(step, [rv for rv in group if rv in latents]) for step, group in claimed]
    return [(step, group) for step, group in claimed if group]


def _mates(reading: Reading, rv: TensorVariable) -> set[TensorVariable]:
    """Return the variables that one step has to take together: those of one table of counts."""
    if drawn := exact_draw(reading, rv):
        return {*drawn[1]}
    table = exact_step(reading, rv) == TableGibbs.__name__
    return {*together(reading, rv)} if table else {rv}


@once
def choose_steps(reading: Reading) -> dict[TensorVariable, type[BlockedStep]]:
    """Return the step that suits each free variable; those left out are for NUTS."""
    return {rv: step for step, group in claimed_steps(reading) for rv in group}


@once
def exact_step(reading: Reading, rv: TensorVariable) -> str | None:
    """Return the name of the step that draws a latent count exactly given its releases.

    `PrivateObservation` tags the count with it for `pm.sample`. The step checks again, since the
    model may grow. Counts that are released in sums only are records, unless the sums tell each of
    them, as running totals do, or they are Poisson counts of whose sums whole-number noise allows
    some only, which cannot move one by one.
    Counts that are drawn `together` have the same step.
    """
    if rv.dtype.startswith("float"):
        return None
    if drawn := exact_draw(reading, rv):
        return drawn[0].__name__
    group = together(reading, rv)
    if all(is_exact_count(reading, v) for v in group):
        return TwoSidedGibbs.__name__
    vector = isinstance(rv.owner.op, WITH_TOTAL) and rv.type.ndim == 1
    by_cell = vector or any(_is_by_cell(reading, v) for v in group)
    if by_cell and accepted(partial(read_table, reading), [rv]):
        return TableGibbs.__name__
    if is_exact_count(reading, rv):
        return TwoSidedGibbs.__name__
    if vector and accepted(partial(check_count, reading), [rv]):
        return CountGibbs.__name__
    return None


def choose_again(reading: Reading, counts: Sequence[TensorVariable]) -> None:
    """Tag variables, after those behind some counts may have lost or gained an exact draw."""
    free = reading.model.free_RVs
    exact = {v: v.tag.dp_step for v in free if hasattr(v.tag, "dp_step")}
    for rv in counts:
        drawn = exact_draw(reading, rv)
        exact |= {v: exact_step(reading, v) for v in (drawn[1] if drawn else together(reading, rv))}
    tag_records(reading, {v: step for v, step in exact.items() if step})


def with_present_tags(model: pm.Model) -> pm.Model:
    """Choose again for counts that have lost their exact draw since their release was declared."""
    names = {step.__name__ for step in STEPS if hasattr(step, "draws_exactly")}
    if tagged := [rv for rv in model.free_RVs if getattr(rv.tag, "dp_step", None) in names]:
        reading = Reading(model)
        if stale := [rv for rv in tagged if exact_draw(reading, rv) is None]:
            choose_again(reading, stale)
    return model


def _is_by_cell(reading: Reading, rv: TensorVariable) -> bool:
    """Whether each count is released by itself, or counts cannot move one by one as records do."""
    its_releases = releases_of(reading.model, [rv])
    if not rv.type.ndim or any(is_itself(release_statistic(r), rv) for r in its_releases):
        return True
    with suppress(Declined, ValueError):  # some counts, as where others were not published
        few = math.prod(lengths(rv)) <= _LOOKED_AT
        if few and any(_picks(release_statistic(r), rv) for r in its_releases if r.type.ndim):
            return True
    if isinstance(rv.owner.op, PoissonRV) and any(map(leaves_gaps, its_releases)):
        return True
    group = together(reading, rv)
    statistics = [release_statistic(r) for r in releases_of(reading.model, group)]
    with suppress(Declined, ValueError):
        if sum(math.prod(lengths(s)) for s in statistics) < sum(
            math.prod(lengths(v)) for v in group
        ):
            return False  # with fewer entries than counts, some count is in sums only
        return tell_apart([slopes_of(statistic, group) for statistic in statistics])
    return False


def refuse_stuck(reading: Reading, left: Sequence[TensorVariable]) -> None:
    """Refuse counts with a total that PyMC's own steps would draw, with the reason."""
    for rv in left:
        if isinstance(rv.owner.op, WITH_TOTAL):
            why = no_exact_draw(reading, rv)
            if not why:
                try:
                    read_table(reading, rv)
                except (Declined, ValueError) as error:
                    why = f". TableGibbs cannot: {error}"
            raise ValueError(
                f"{rv.name!r} is left to Metropolis, which hardly ever keeps the total of its "
                f"counts{why}"
            )


def _picks(statistic: TensorVariable, rv: TensorVariable) -> bool:
    """Whether each entry of a statistic is of one count, and of nothing else."""
    return nearest_rvs([statistic]) == [rv] and bool(
        (np.diff(slopes_of(statistic, [rv]).tocsr().indptr) == 1).all()
    )


def steps(model: pm.Model | None = None) -> list[BlockedStep]:
    """Return the steps that suit a model, for ``pm.sample(step=dp.steps(model))``.

    Records get `RecordMetropolis`, the factors of a Poisson factorization `FactorizationGibbs`,
    latent statistics an exact draw, parameters a conjugate draw where there is one and, where
    bounds make walls that NUTS does not cross well, a slice step.
    Variables without a step are left to NUTS.

    Parameters
    ----------
    model : pm.Model, optional
        The model of the context by default.

    Returns
    -------
    list of BlockedStep
        One for each group of variables, in the order in which they are called.

    Raises
    ------
    ValueError
        A model without a release of its own variables, a collapsed one say.

    Examples
    --------
    >>> import pymc as pm, pymc_dp as dp
    >>> with pm.Model() as model:
    ...     mu = pm.Normal("mu", 30, 20)
    ...     lead = pm.Normal("lead", mu, 17, shape=43)
    ...     z = dp.PrivateObservation("z", lead.mean(), dp.LaplaceMechanism(9.3), observed=34.3)
    >>> [(type(step).__name__, [v.name for v in step.vars]) for step in dp.steps(model)]
    [('RecordMetropolis', ['lead']), ('ConjugateGibbs', ['mu'])]
    """
    return _made(Reading(with_present_tags(as_model(model, "dp.steps(model)"))))


def kept_steps(reading: Reading) -> list[BlockedStep]:
    """Return the steps that suit a model: made once, and reset by each call."""
    kept = []
    for step, state in _made_once(reading):
        step.sampling_state = state
        kept.append(step)
    return kept


@once
def _made_once(reading: Reading) -> list[tuple[BlockedStep, Any]]:
    stage("Compiling")
    return [(step, step.sampling_state) for step in _made(reading)]


def _made(reading: Reading) -> list[BlockedStep]:
    model, claimed = reading.model, claimed_steps(reading)
    if not releases(model) and not claimed:
        raise ValueError(
            "no step applies: the model has no release of its own variables "
            "(dp.PrivateObservation); a model collapsed to its marginal is for NUTS"
        )
    stepped = {rv for _, group in claimed for rv in group}
    refuse_stuck(reading, [rv for rv in model.free_RVs if rv not in stepped])
    return [
        step(
            [model.rvs_to_values[rv] for rv in group],
            model=model,
            **getattr(step, "chosen_options", {}),
        )
        for step, group in claimed
    ]
