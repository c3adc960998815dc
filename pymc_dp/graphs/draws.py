"""Results: draws as ArviZ holds them, and expressions of a model evaluated at draws."""

from __future__ import annotations

import logging
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from types import MappingProxyType
from typing import Any

import arviz_base
import numpy as np
import pymc as pm
import pytensor.tensor as pt
import xarray as xr
from numba.core.errors import NumbaPerformanceWarning
from pymc.backends.arviz import find_constants
from pymc.pytensorf import compile as pm_compile
from pytensor.compile.sharedvalue import SharedVariable
from pytensor.graph.basic import Constant, Variable
from pytensor.graph.replace import vectorize_graph
from pytensor.graph.traversal import ancestors
from pytensor.tensor.random.type import RandomType
from pytensor.tensor.variable import TensorVariable
from xarray import DataTree

from pymc_dp.graphs.declined import Declined, first_line
from pymc_dp.graphs.values import PLAIN_MODE, nearest_rvs
from pymc_dp.kernels.deferred import deferring

_log = logging.getLogger("pymc.dp")


@contextmanager
def draws_stay(missing: str) -> Iterator[None]:
    """Say what is missing, and why, where what is computed after sampling fails."""
    try:
        yield
    except Exception as why:  # whatever it is, the draws are worth more
        _log.warning(
            "Missing in the result: %s. %s. All draws are returned", missing, first_line(why)
        )


class _Untraced(list):
    """A stack trace that stays empty."""

    def __add__(self, other):
        """Return itself."""
        return self


def _compiled(inputs: Sequence[Variable], outputs: Any, **options: Any) -> Any:
    """Compile graphs whose constants then keep no stack traces.

    All compiled copies of a graph share their constants. Where PyTensor simplifies
    ``switch(condition, 0, 0)`` it adds three traces to the constant's own: after twenty
    compilations memory is full.
    """
    for variable in ancestors([outputs] if isinstance(outputs, Variable) else outputs):
        if isinstance(variable, Constant):
            variable.tag.trace = _Untraced()
    return deferring(pm_compile(inputs, outputs, on_unused_input="ignore", **options))


Given = Mapping[TensorVariable, np.ndarray]
"""Values of further variables, one for each draw along their first axis."""


def per_draw(
    posterior: xr.Dataset,
    graph: TensorVariable,
    inputs: Given = MappingProxyType({}),
    **options: Any,
) -> np.ndarray:
    """Evaluate a graph of a model's free variables at every posterior draw, in one call.

    Returns an array with one leading dimension for chains and draws together.
    """
    values = {**needed_draws(posterior, [graph]), **inputs}
    batched = {rv: rv.type.clone(shape=(None, *rv.type.shape))(name=rv.name) for rv in values}
    [output] = vectorize_graph([graph], batched)
    function = _compiled(list(batched.values()), output, **options)
    evaluated = function(*values.values())
    draws = posterior.sizes["chain"] * posterior.sizes["draw"]
    shape = evaluated.shape[evaluated.ndim - graph.type.ndim :]
    return np.ascontiguousarray(np.broadcast_to(evaluated, (draws, *shape)))


def as_row(*columns: TensorVariable) -> TensorVariable:
    """Broadcast expressions and stack them: a row for each one, a column for each entry."""
    broadcast = pt.broadcast_arrays(*(pt.as_tensor(c).astype("float64") for c in columns))
    return pt.stack([c.ravel() for c in broadcast])


def each_draw(
    posterior: xr.Dataset, graphs: Sequence[TensorVariable], inputs: Given = MappingProxyType({})
) -> Iterator[list[np.ndarray]]:
    """Evaluate graphs at one posterior draw after the other; memory holds those of one draw."""
    values = {**needed_draws(posterior, graphs), **inputs}
    function = _compiled(list(values), list(graphs))
    for i in range(posterior.sizes["chain"] * posterior.sizes["draw"]):
        yield function(*(v[i] for v in values.values()))


def needed_draws(
    posterior: xr.Dataset, graphs: Sequence[TensorVariable]
) -> dict[TensorVariable, np.ndarray]:
    """Return the draws of the variables that graphs are computed from, chains joined."""
    needed = nearest_rvs(graphs)
    missing = [str(rv.name) for rv in needed if rv.name not in posterior]
    if missing:
        raise ValueError(
            f"the posterior has no {', '.join(missing)}: every free variable of the model is "
            f"needed (was var_names= given to the sampler?)"
        )
    values = {rv: posterior[rv.name].to_numpy() for rv in needed}
    return {rv: v.reshape(-1, *v.shape[2:]).astype(rv.dtype) for rv, v in values.items()}


@contextmanager
def without_remarks() -> Iterator[None]:
    """Compile without Numba's performance warnings, which are about PyTensor's code."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", NumbaPerformanceWarning)
        yield


@contextmanager
def python_is_meant() -> Iterator[None]:
    """Compile without PyTensor's warning that a random function of the user runs as Python."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Numba will use object mode")
        yield


def compile_draws(
    inputs: Sequence[Variable], outputs: Variable | Sequence[Variable], **options: Any
) -> tuple[Callable[..., Any], list[SharedVariable]]:
    """Compile a function that draws random variables; return it with its generators."""
    with python_is_meant():
        function = _compiled(inputs, outputs, random_seed=0, **options)
    generators = [
        v for v in function.get_shared() if isinstance(v, SharedVariable)
        and isinstance(v.type, RandomType)
    ]  # fmt: skip
    return function, generators


def entry_labels(shapes: Mapping[str, tuple[int, ...]]) -> list[str]:
    """Return the names of the entries of variables, ``beta[0]``."""
    return [
        f"{name}[{', '.join(map(str, index))}]" if index else name
        for name, shape in shapes.items()
        for index in np.ndindex(*shape)
    ]


def dims_of(
    model: pm.Model, names: Iterable[str]
) -> tuple[dict[str, list[str]], dict[str, list[Any]]]:
    """Return the dimensions that a model names for some variables, and their coordinates."""
    dims = {name: list(axes) for name in names if (axes := model.named_vars_to_dims.get(name))}
    used = {dim for axes in dims.values() for dim in axes}
    return dims, {d: list(v) for d, v in model.coords.items() if d in used and v is not None}


def result(
    model: pm.Model,
    posterior: dict[str, np.ndarray],
    stats: dict[str, np.ndarray],
    observed: dict[str, np.ndarray],
    attributes: dict[str, Any],
    deterministics: Iterable[TensorVariable] = (),
) -> DataTree:
    """Join draws as PyMC does.

    Parameters
    ----------
    model : pm.Model
        Names dimensions and coordinates.
    posterior, stats : dict
        Draws of variables, and statistics of the sampler, of shapes (chains, draws, ...).
    observed : dict
        Observed values by name.
    attributes : dict
        Attributes of the posterior.
    deterministics : iterable of TensorVariable
        Expressions of the variables, evaluated at every draw.
    """
    deterministics, constants = list(deterministics), find_constants(model)
    dims, coords = dims_of(model, [*observed, *constants, *posterior])
    groups = {"posterior": posterior, "sample_stats": stats, "observed_data": observed}
    tree = arviz_base.from_dict(
        groups | ({"constant_data": constants} if constants else {}),
        dims=dims,
        coords=coords,
        attrs={"posterior": {"inference_library": "pymc_dp"} | attributes},
    )
    dataset = tree["posterior"].to_dataset()
    tree["posterior"] = DataTree(with_deterministics(dataset, model, deterministics))
    return tree


def with_deterministics(
    posterior: xr.Dataset, model: pm.Model, deterministics: Sequence[TensorVariable]
) -> xr.Dataset:
    """Add expressions of the variables, evaluated at every draw, with their dims and coords.

    One that cannot be evaluated is left out, with a warning: see `try_deterministics`.
    """
    shape = posterior.sizes["chain"], posterior.sizes["draw"]
    dims, coords = dims_of(model, [str(d.name) for d in deterministics])
    for deterministic in deterministics:
        name = str(deterministic.name)
        with draws_stay(repr(name)):
            values = per_draw(posterior, deterministic)
            named = dims.get(name) or [f"{name}_dim_{i}" for i in range(values.ndim - 1)]
            shaped = values.reshape(*shape, *values.shape[1:])
            posterior[name] = (("chain", "draw", *named), shaped)
            posterior = posterior.assign_coords({d: coords[d] for d in named if d in coords})
    return posterior


def try_deterministics(
    draw: Mapping[str, np.ndarray], deterministics: Sequence[TensorVariable]
) -> None:
    """Evaluate expressions at one draw, of shape (1, 1, ...); decline the first that fails."""
    posterior = arviz_base.dict_to_dataset(draw)
    for deterministic in deterministics:
        try:
            per_draw(posterior, deterministic, mode=PLAIN_MODE)
        except Exception as why:
            raise Declined(
                f"{deterministic.name!r} cannot be computed from its draws: {why}"
            ) from why
