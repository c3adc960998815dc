"""A model for nutpie, compiled to functions that are kept on disk.

nutpie itself compiles a wrapper and the functions below it anew in each process, for two to four
seconds. Here one wrapper serves all models: it gets the addresses of the functions of a model.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np
import pymc as pm
import pytensor.tensor as pt
from pytensor.graph.replace import graph_replace
from pytensor.graph.rewriting.utils import rewrite_graph

from pymc_dp.graphs.compiled import Filling
from pymc_dp.kernels.pointers import call, make_nutpie_functions
from pymc_dp.step_methods.base import in_a_row

if TYPE_CHECKING:
    from nutpie.compile_pymc import CompiledPyMCModel


def compile_model(model: pm.Model, var_names: Sequence[str] | None = None) -> CompiledPyMCModel:
    """Compile as `nutpie.compile_pymc_model` does; the caller puts the initial points in.

    Parameters
    ----------
    model : a model whose free variables are all continuous.
    var_names : variables to return beside the free ones; all by default.

    Raises
    ------
    NotImplementedError, NullTypeGradError
        A density has no gradient.
    """
    # Not public, as nutpie expects to compile the functions itself; the import takes a second.
    from nutpie.compile_pymc import (
        CompiledPyMCModel,
        _compute_shapes,
        _prepare_dims_and_coords,
    )

    shapes = _compute_shapes(model)
    free = [model.rvs_to_values[rv] for rv in model.free_RVs]
    names = [value.name for value in free]
    rest = [v for v in model.unobserved_value_vars if v.name not in names]
    if var_names is not None:
        rest = [v for v in rest if v.name in var_names]
    named = [*names, *(v.name for v in rest)]
    ends = np.cumsum([0, *(math.prod(shapes[name]) for name in named)])
    places = [slice(int(a), int(b)) for a, b in pairwise(ends)]
    size = int(ends[len(names)])

    rewrites = ["canonicalize", "stabilize"]
    if not model.check_bounds:
        rewrites.append("local_remove_check_parameter")
    logp = rewrite_graph(model.logp(), include=rewrites)
    gradient = in_a_row(pt.grad(logp, free))
    q = pt.vector("q", shape=(size,), dtype="float64")
    replacements = {
        value: q[place].reshape(shapes[value.name]).astype(value.dtype)
        for value, place in zip(free, places, strict=False)
    }
    density = Filling(q, *graph_replace([logp, gradient], replacements, strict=False))
    expanded = in_a_row([q, *graph_replace(rest, replacements, strict=False)])
    expand = Filling(q, pt.zeros(()), expanded)

    shape_info = named, places, [shapes[name] for name in named]
    moved = [model.rvs_to_values[rv].name for rv, t in model.rvs_to_transforms.items() if t]
    dims, coords = _prepare_dims_and_coords(model, shape_info, moved)
    density_function, expand_function = make_nutpie_functions()
    return CompiledPyMCModel(
        _n_dim=size,
        dims=dims,
        _coords=coords,
        _shapes={name: tuple(shapes[name]) for name in named},
        compiled_logp_func=density_function,
        compiled_expand_func=expand_function,
        initial_point_func=lambda seed: np.zeros(size),
        shared_data={},
        shared_var_keys={},
        user_data=np.zeros(0),
        n_expanded=int(ends[-1]),
        shape_info=shape_info,
        logp_func=density,
        expand_func=expand,
        reparameterized_names=moved,
    )


def with_data(compiled: CompiledPyMCModel) -> CompiledPyMCModel:
    """Return a compiled model for the data as they are now."""
    functions = compiled.logp_func.function, compiled.expand_func.function
    places = [(address, data.ctypes.data, data.size) for address, data in functions]
    return dataclasses.replace(
        compiled,
        user_data=np.array(places, dtype=np.int64),
        shared_data={str(i): data for i, (_, data) in enumerate(functions)},  # kept alive
    )


def density_of(compiled: CompiledPyMCModel) -> Callable[[np.ndarray], tuple[float, np.ndarray]]:
    """Return the log density with its gradient, as a function; NaN where they have no value."""
    function: Any = compiled.logp_func.function

    def density(q: np.ndarray) -> tuple[float, np.ndarray]:
        gradient = np.empty(q.size)
        return call(function, np.ascontiguousarray(q, dtype="float64"), gradient), gradient

    return density
