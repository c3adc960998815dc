"""Short chains: of a step by itself, and of `pm.sample`."""

import numpy as np
import pymc as pm
from pymc.sampling.mcmc import assign_step_methods
from pymc.step_methods.compound import CompoundStep

from pymc_dp.step_methods.weave import WeavingStep

QUIET = {"progressbar": False, "compute_convergence_checks": False}
SHORT = QUIET | {"chains": 1, "cores": 1}


def begun(step, seed=1):
    """Begin a chain of a step; returns the step."""
    step.setup_chain(np.random.default_rng(seed), tune=0, draws=1)
    return step


def step_of(kind, model, *names, **options):
    """Return a step for the named variables of a model, ready to draw these alone."""
    if issubclass(kind, WeavingStep):
        options = {"interweave": False} | options
    return begun(kind([model[name] for name in names], model=model, **options))


def chain(step, point, draws, seed=1):
    """Return what a step, or steps, draw from a point on: an array for each name."""
    step = begun(CompoundStep(step) if isinstance(step, list) else step, seed)
    points = []
    for _ in range(draws):
        point, _ = step.step(point)
        points.append(point)
    return {name: np.array([drawn[name] for drawn in points]) for name in point}


def sampled(model, **options):
    """Return a short run of `pm.sample`."""
    few = {"draws": 30, "tune": 20, "chains": 2, "cores": 1, "random_seed": 4}
    return pm.sample(model=model, **(QUIET | few | options))


def assigned(model, step=None):
    """Return the names of the steps that `pm.sample` would give the variables."""
    with model:
        provided, selected = assign_step_methods(model, step)
    found = {v.name: type(s).__name__ for s in provided for v in s.vars}
    return found | {v.name: cls.__name__ for cls, vs in selected.items() for v in vs}
