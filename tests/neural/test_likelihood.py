"""A network as the likelihood of a PyMC model: its value, its gradient, the order of parameters."""

import numpy as np
import pymc as pm
import pytest
from pymc.pytensorf import gradient as gradient_of

import pymc_dp as dp

pytest.importorskip("sbi")
import torch
from torch import nn

from pymc_dp.neural.density import Density
from pymc_dp.neural.likelihood import network_model
from pymc_dp.neural.simulator import model_problem
from pymc_dp.neural.standard import Standard
from pymc_dp.neural.training import Box


def as_is(width):
    return Standard(np.zeros(width), np.ones(width), np.zeros(width, bool))


class Known(nn.Module):
    """A log density that tells its parameters apart: -0.5 z'z + (1, 10, 100)'θ + θ₀ θ₁."""

    def __init__(self):
        super().__init__()
        self.place = nn.Parameter(torch.zeros(1))

    def log_prob(self, target, condition):
        linear = condition @ torch.tensor([1.0, 10.0, 100.0])
        return -0.5 * (target**2).sum(-1) + (linear + condition[:, 0] * condition[:, 1])[None]


@pytest.mark.parametrize("names", [("a", "b", "s"), ("s", "b", "a"), ("b", "s", "a")])
def test_parameters_keep_their_order(names):
    """Whatever order a copy of the model has: a swap would give each the other's posterior."""
    laws = {"a": pm.Normal, "b": pm.Normal, "s": pm.HalfNormal}
    with pm.Model() as model:
        parts = [laws[name](name) for name in names]
        pm.Deterministic("ratio", parts[2] / parts[0])  # which copies the others in its own order
        x = pm.Normal("x", parts[0] + parts[1] + parts[2], 1.0, shape=4)
        dp.PrivateObservation("z", x[:2], dp.LaplaceMechanism(1.0), observed=[0.5, -1.0])
    problem = model_problem(model)
    network = network_model(problem, Density("known", Known(), as_is(2), as_is(3)))
    assert problem.prior.names == list(names)
    point = network.initial_point()
    values = {"a": 0.3, "b": -0.7, "s_log__": 0.4}
    point = {k: np.asarray(values[k]) for k in point}
    theta = np.array([values["s_log__" if n == "s" else n] for n in names])
    expected = -0.5 * 1.25 + theta @ [1.0, 10.0, 100.0] + theta[0] * theta[1]
    np.testing.assert_allclose(
        network.compile_logp(vars=network.observed_RVs)(point), expected, rtol=1e-6
    )
    slope = [1.0 + theta[1], 10.0 + theta[0], 100.0]
    values = [network.rvs_to_values[network[n]] for n in names]
    gradient = network.compile_fn(gradient_of(network.logp(vars=network.observed_RVs), values))
    np.testing.assert_allclose(gradient(point), slope, rtol=1e-6)
    few = network_model(
        problem,
        Density("known", Known(), as_is(2), as_is(3)),
        Box(theta - [1, 1, 0.1], theta - [-1, -1, 0.01]),
    )
    assert few.compile_logp(vars=few.observed_RVs)(point) == -np.inf  # beyond what it has seen
