"""A trained network as the likelihood of a PyMC model."""

from __future__ import annotations

import numba
import numpy as np
import pymc as pm
import pytensor.tensor as pt
import torch
from pytensor.gradient import DisconnectedType, disconnected_type
from pytensor.graph.basic import Apply
from pytensor.graph.op import Op
from pytensor.link.numba.dispatch.basic import get_numba_type, numba_funcify, numba_njit

from pymc_dp.neural.density import Density
from pymc_dp.neural.problem import Problem
from pymc_dp.neural.training import Box


class NetworkLogLikelihood(Op):
    r"""Log density of a release under a network, with its gradient: (z, θ) to (log q, ∇ log q).

    Parameters
    ----------
    density : Density
        q(z | θ), evaluated at a vector z and a vector of unconstrained parameters.
    """

    __props__ = ("density",)

    def __init__(self, density: Density):
        self.density = density
        density.network.to("cpu").eval()
        for parameter in density.network.parameters():
            parameter.requires_grad_(False)

    def make_node(self, z, theta):
        """Take two float vectors."""
        z, theta = (pt.as_tensor(v).astype("float64") for v in (z, theta))
        if z.type.ndim != 1 or theta.type.ndim != 1:
            raise TypeError(f"two vectors are needed, not {z.type} and {theta.type}")
        return Apply(self, [z, theta], [pt.dscalar(), theta.type()])

    def value_and_gradient(self, z: np.ndarray, theta: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Evaluate both with torch."""
        value, gradient = self.density.value_and_gradient(z, theta)
        return np.asarray(value), gradient

    def perform(self, node, inputs, outputs):
        """Evaluate without numba."""
        outputs[0][0], outputs[1][0] = self.value_and_gradient(*inputs)

    def infer_shape(self, node, shapes):
        """Return the shape of a scalar, and that of theta."""
        return [(), shapes[1]]

    def connection_pattern(self, node):
        """Theta moves both, the release is data."""
        return [[False, False], [True, True]]

    def pullback(self, inputs, outputs, cotangents):
        """Multiply the gradient, which is the second output."""
        [weight, second] = cotangents
        if not isinstance(second.type, DisconnectedType):
            raise NotImplementedError("a network's log density has no second derivatives here")
        if isinstance(weight.type, DisconnectedType):
            return [disconnected_type(), disconnected_type()]
        return [disconnected_type(), weight * outputs[1]]


@numba_funcify.register(NetworkLogLikelihood)
def _numba_network(op, node, **kwargs):
    # Object mode is intended: PyTensor would fall back to it with a warning.
    returned = numba.types.Tuple([get_numba_type(o.type) for o in node.outputs])
    evaluate = op.value_and_gradient

    @numba_njit
    def network(z, theta):
        with numba.objmode(evaluated=returned):
            evaluated = evaluate(z, theta)
        return evaluated

    return network


def network_model(problem: Problem, density: Density, box: Box | None = None) -> pm.Model:
    """Return a model of the user's priors, with a network for the law of the releases.

    The release is a vector of all released values, and can be drawn. Outside the box, where the
    network was trained on no parameters, its density is 0.
    """
    op = NetworkLogLikelihood(density)
    size_of_release = len(problem.observed)
    name = "_".join(c.name for c in problem.channels)

    def logp(value, theta, template):
        level = op(value, theta)[0]
        return level if box is None else pt.switch(box.holds(theta), level, -np.inf)

    def random(theta, template, rng=None, size=None):
        place = np.asarray(theta, "float64").reshape(-1, theta.shape[-1])
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(int(rng.integers(2**31)))
            drawn = density.sample(place, 1)[0]
        return drawn.reshape(*np.shape(theta)[:-1], size_of_release)

    model = problem.prior.model.copy()
    with model:
        theta = problem.prior.flat(model)
        pm.CustomDist(
            name,
            theta,
            np.zeros(size_of_release),  # tells PyMC the length of a draw
            logp=logp,
            random=random,
            signature="(p),(d)->(d)",
            observed=problem.observed,
        )
    return model
