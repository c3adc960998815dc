"""Steps for `pm.sample`, and `steps`, which chooses them for a model."""

from __future__ import annotations

from collections.abc import Callable

import pymc as pm
from pymc.step_methods import STEP_METHODS
from pymc.step_methods.compound import BlockedStep
from pytensor.tensor.random.basic import MultinomialRV, PoissonRV
from pytensor.tensor.variable import TensorVariable

from pymc_dp.graphs.questions import depends_on, is_itself, nearest_rvs
from pymc_dp.reading.model import as_model, is_tagged, leaves_gaps, release_statistic, releases
from pymc_dp.step_methods.conjugate import ConjugateGibbs, NotConjugateError, conditional
from pymc_dp.step_methods.counts import CountGibbs, check_count, count_parameter, known_cells
from pymc_dp.step_methods.factorization import FactorizationGibbs, find_factorizations
from pymc_dp.step_methods.feasible_slice import FeasibleSlice
from pymc_dp.step_methods.records import RecordMetropolis
from pymc_dp.step_methods.scale_mixture import LaplaceScaleMixtureGibbs
from pymc_dp.step_methods.skellam_bessel import SkellamBesselGibbs
from pymc_dp.step_methods.tables import TableGibbs, check_table
from pymc_dp.step_methods.two_sided import (
    TruncatedGammaMixtureGibbs,
    TwoSidedGibbs,
    is_exact_count,
    latent_conditional,
)

__all__ = [
    "ConjugateGibbs",
    "CountGibbs",
    "FactorizationGibbs",
    "FeasibleSlice",
    "LaplaceScaleMixtureGibbs",
    "RecordMetropolis",
    "SkellamBesselGibbs",
    "TableGibbs",
    "TruncatedGammaMixtureGibbs",
    "TwoSidedGibbs",
    "choose_steps",
    "exact_step",
    "register_steps",
    "steps",
]

_CELLS = 200  # of a table whose pairs all see every release

# In this order: latents before the parameters that depend on them.
_ALL = (
    RecordMetropolis,
    FactorizationGibbs,
    CountGibbs,
    TableGibbs,
    TwoSidedGibbs,
    TruncatedGammaMixtureGibbs,
    ConjugateGibbs,
    FeasibleSlice,
    LaplaceScaleMixtureGibbs,
)

# Steps for several variables that belong together: functions of a model to one list of variables
# for each step.
_GROUPS: dict[type[BlockedStep], Callable[[pm.Model], list[list[TensorVariable]]]] = {
    FactorizationGibbs: find_factorizations,
}


def registered_steps() -> tuple[type[BlockedStep], ...]:
    """Return all steps, in the order in which they are chosen, for the tests of conformance."""
    return _ALL


def register_steps() -> None:
    """Put the steps in front of PyMC's, once; ties of competence go to the first."""
    for step in reversed(_ALL):
        if step not in STEP_METHODS:
            STEP_METHODS.insert(0, step)


def choose_steps(model: pm.Model) -> dict[TensorVariable, type[BlockedStep]]:
    """Return the step that suits each free variable; those left out are for NUTS."""
    chosen: dict[TensorVariable, type[BlockedStep]] = {}
    for step, groups in _GROUPS.items():
        chosen |= {rv: step for group in groups(model) for rv in group}
    touched = [rv for r in releases(model) for rv in nearest_rvs(r.owner.inputs)]
    for rv in model.free_RVs:
        if rv in chosen:
            continue
        if is_tagged(rv):
            chosen[rv] = RecordMetropolis
            continue
        if rv not in touched and not _feeds(model, rv, touched):
            continue
        table = _accepts(lambda rv=rv: check_table(model, rv))
        if _accepts(lambda rv=rv: check_count(model, rv)):
            cells = known_cells(rv) if rv.type.ndim else 2
            if not table or cells <= _CELLS:
                together = [rv, count_parameter(model, rv)]  # the probabilities are drawn along
                chosen |= {member: CountGibbs for member in together if member is not None}
                continue
        for step in (TruncatedGammaMixtureGibbs, TwoSidedGibbs):
            if _accepts(lambda step=step, rv=rv: latent_conditional(step, model, rv)):
                chosen[rv] = step
                break
        else:
            if table:
                chosen[rv] = TableGibbs
            elif _accepts(lambda rv=rv: conditional(model, rv)):
                chosen[rv] = ConjugateGibbs
            elif _shapes_feasible_region(model, rv):
                chosen[rv] = FeasibleSlice
    # A latent statistic without an exact draw is best moved together with its parameters: NUTS.
    latents = [
        rv
        for rv in nearest_rvs([release_statistic(r) for r in releases(model)])
        if rv in model.free_RVs
    ]
    unbounded = all(r.owner.op.bounds is None for r in releases(model))
    if unbounded and any(rv not in chosen for rv in latents):
        return {rv: step for rv, step in chosen.items() if rv in latents}
    return chosen


def exact_step(model: pm.Model, rv: TensorVariable) -> str | None:
    """Return the name of the step that draws a latent count exactly given its releases.

    `PrivateObservation` asks, and tags the count for `pm.sample`. Whatever the model says later,
    the step checks again. Counts that are released in sums only are records, but for
    Poisson counts of whose sums whole-number noise leaves some only: one by one they do not move.
    """
    if rv.dtype.startswith("float"):
        return None
    if is_exact_count(model, rv):
        return TwoSidedGibbs.__name__
    mine = [r for r in releases(model) if depends_on(release_statistic(r), rv)]
    by_cell = any(is_itself(release_statistic(r), rv) for r in mine)
    by_cell |= isinstance(rv.owner.op, PoissonRV) and any(map(leaves_gaps, mine))
    vector = isinstance(rv.owner.op, MultinomialRV) and rv.type.ndim == 1
    if (by_cell or vector) and _accepts(lambda: check_table(model, rv)):
        return TableGibbs.__name__
    if vector and _accepts(lambda: check_count(model, rv)):
        return CountGibbs.__name__
    return None


def _accepts(build: Callable) -> bool:
    try:
        build()
    except (NotConjugateError, ValueError):
        return False
    return True


def _feeds(model: pm.Model, rv: TensorVariable, touched: list[TensorVariable]) -> bool:
    return any(rv in nearest_rvs(t.owner.inputs) for t in touched if t.owner is not None)


def _shapes_feasible_region(model: pm.Model, rv: TensorVariable) -> bool:
    for release in releases(model):
        _, _, moments = release.owner.op.split(release.owner.inputs)
        if moments is not None and rv in nearest_rvs(list(moments)):
            return True
    return False


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
    """
    model = as_model(model, "dp.steps(model)")
    chosen = choose_steps(model)
    if not releases(model) and not chosen:
        raise ValueError(
            "no step applies: the model has no release of its own variables "
            "(dp.PrivateObservation); a model collapsed to its marginal is for NUTS"
        )
    built: list[BlockedStep] = []
    for cls in _ALL:
        mine = [rv for rv in model.free_RVs if chosen.get(rv) is cls]
        if cls is RecordMetropolis and mine:  # the first of the list: nothing has run before it
            built.append(cls([model.rvs_to_values[rv] for rv in mine], model=model, restart=False))
        elif cls in _GROUPS:
            for group in _GROUPS[cls](model):
                built.append(cls([model.rvs_to_values[rv] for rv in group], model=model))
        elif cls is FeasibleSlice:
            built += [cls([model.rvs_to_values[rv]], model=model) for rv in mine]
        elif mine:
            built.append(cls([model.rvs_to_values[rv] for rv in mine], model=model))
    return built
