r"""Prior of the parameters, over one flat vector of unconstrained values.

Parameters are handled as a vector :math:`\theta` of unconstrained values, through the
transforms of their variables: a density of :math:`\theta` cannot leave the prior's support.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pymc as pm
import pytensor.tensor as pt
from pymc.logprob.utils import local_check_parameter_to_ninf_switch
from pymc.pytensorf import compile as pm_compile
from pytensor.graph.fg import FunctionGraph
from pytensor.graph.replace import graph_replace, vectorize_graph
from pytensor.graph.rewriting.basic import dfs_rewriter
from pytensor.tensor.variable import TensorVariable

from pymc_dp.graphs.draws import python_is_meant
from pymc_dp.graphs.values import nearest_rvs


class Prior:
    """Prior of a model's parameters, over the flat vector of their unconstrained values.

    Parameters
    ----------
    model : pm.Model
        A model of the parameters only.

    Attributes
    ----------
    names : list of str
        The parameters.
    width : int
        Length of the vector.
    theta, of_theta : TensorVariable, list of TensorVariable
        The vector as a symbol, and the parameters as expressions of it.
    """

    def __init__(self, model: pm.Model):
        self.model = model
        self.names = [rv.name for rv in model.free_RVs]
        if not self.names:
            raise ValueError("there are no parameters to infer: the prior has no free variables")
        for rv in model.free_RVs:
            if rv.dtype.startswith(("int", "uint", "bool")):
                raise ValueError(
                    f"the parameter {rv.name!r} is discrete, and the networks have densities: "
                    f"name the continuous parameters in var_names=, and it is simulated with the "
                    f"data"
                )
        values = [model.rvs_to_values[rv] for rv in model.free_RVs]
        start = model.initial_point(0)
        shapes = [np.shape(start[v.name]) for v in values]
        ends = np.cumsum([0, *(np.prod(shape, dtype=int) for shape in shapes)])
        self.width = int(ends[-1])
        self.theta = pt.vector("theta", shape=(self.width,), dtype="float64")
        by_value = {
            v: self.theta[a:b].reshape(shape)
            for v, a, b, shape in zip(values, ends[:-1], ends[1:], shapes, strict=True)
        }
        natural = model.replace_rvs_by_values(list(model.free_RVs))
        graphs = graph_replace([model.logp(), *natural], by_value, strict=False)
        self.of_theta = graphs[1:]
        batch = pt.matrix("thetas", shape=(None, self.width), dtype="float64")
        # A check is one assertion for the whole batch: a row that fails it would fail all rows.
        fgraph = FunctionGraph(outputs=graphs, clone=True, copy_inputs=False)
        dfs_rewriter(local_check_parameter_to_ninf_switch).rewrite(fgraph)
        logp, *natural = vectorize_graph(fgraph.outputs, {self.theta: batch})
        self._logp = pm_compile([batch], logp, on_unused_input="ignore")
        self._natural = pm_compile([batch], natural, on_unused_input="ignore")

    @property
    def deterministics(self) -> list[TensorVariable]:
        """What the model computes from the parameters."""
        free = set(self.model.free_RVs)
        return [d for d in self.model.deterministics if set(nearest_rvs([d])) <= free]

    @property
    def untransformed(self) -> list[str]:
        """The parameters without a transform: a network's draws may leave their support."""
        transforms = self.model.rvs_to_transforms
        return [rv.name for rv in self.model.free_RVs if transforms[rv] is None]

    def _parts(self, model: pm.Model) -> list[TensorVariable]:
        return [
            rv if t is None else t.forward(rv, *rv.owner.inputs)
            for rv in map(model.__getitem__, self.names)  # a copy may have another order
            for t in [model.rvs_to_transforms[rv]]
        ]

    def flat(self, model: pm.Model | None = None) -> TensorVariable:
        """Return the vector as an expression of the variables of the model, or of a copy."""
        return pt.concatenate([part.ravel() for part in self._parts(model or self.model)])

    @property
    def shapes(self) -> dict[str, tuple[int, ...]]:
        """Shapes of the parameters by name."""
        return {k: v.shape for k, v in self.natural(np.zeros(self.width)).items()}

    def place(self, values: Mapping[str, Any]) -> np.ndarray:
        """Return the unconstrained vector of given values of all parameters; (width,)."""
        missing = [name for name in self.names if name not in values]
        if missing:
            raise ValueError(f"a value of {missing[0]!r} is needed, besides those of the others")
        shapes = self.shapes
        by_rv = {
            rv: pt.as_tensor(
                np.broadcast_to(np.asarray(values[rv.name], rv.dtype), shapes[rv.name])
            )
            for rv in self.model.free_RVs
        }
        vector = graph_replace(self.flat(), by_rv, strict=False).eval()
        if not np.isfinite(self.logp(vector[None])[0]):
            raise ValueError(
                f"the values {dict(values)} have no prior density: write values of "
                f"{', '.join(map(repr, self.names))} within the support of their priors"
            )
        return vector

    def draw(self, count: int, rng: np.random.Generator) -> np.ndarray:
        """Draw from the prior; returns (count, width)."""
        try:
            with python_is_meant():
                drawn = pm.draw(self._parts(self.model), draws=count, random_seed=rng)
        except NotImplementedError as error:
            raise NotImplementedError(
                f"the prior cannot be drawn from, and simulations start there: give "
                f"{', '.join(map(repr, self.names))} proper priors ({error})"
            ) from None
        for rv, part in zip(self.model.free_RVs, drawn, strict=True):
            if not np.all(np.isfinite(part)):
                raise ValueError(self._why_not_finite(rv, part))
        return np.concatenate([np.reshape(part, (count, -1)) for part in drawn], axis=1)

    def _why_not_finite(self, rv: TensorVariable, part: np.ndarray) -> str:
        wrong = np.sum(~np.all(np.isfinite(np.reshape(part, (len(part), -1))), axis=1))
        transform = type(self.model.rvs_to_transforms[rv]).__name__
        return (
            f"the prior of {rv.name!r}: {wrong} of {len(part)} draws have no finite value on the "
            f"unconstrained scale (transform: {transform}). A draw is on the border of the "
            f"support, to the precision of numbers: use a prior with less mass there; or the "
            f"transform states what draws of the prior do not obey, as `ordered` does: remove it, "
            f"and write parameters that are ordered by themselves, such as "
            f"pt.cumsum of positive steps"
        )

    def logp(self, theta: np.ndarray) -> np.ndarray:
        """Log density of the unconstrained vectors, Jacobian included; (count,)."""
        density = np.broadcast_to(self._logp(np.asarray(theta, "float64")), len(theta))
        return np.where(np.isnan(density), -np.inf, density)

    def natural(self, theta: np.ndarray) -> dict[str, np.ndarray]:
        """Return the parameters by name, (..., *shape), of unconstrained vectors (..., width)."""
        arrays = self._natural(np.asarray(theta, "float64").reshape(-1, self.width))
        shape = np.shape(theta)[:-1]
        return {n: v.reshape(shape + v.shape[1:]) for n, v in zip(self.names, arrays, strict=True)}
