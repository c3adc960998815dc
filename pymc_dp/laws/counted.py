"""Read the law of a confidential value from an unregistered PyMC distribution."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytensor.tensor as pt
from pymc.distributions.distribution import DiracDeltaRV
from pymc.distributions.mixture import MixtureRV
from pytensor.graph.basic import Apply
from pytensor.graph.op import Op
from pytensor.tensor.random.op import RandomVariable
from pytensor.tensor.type_other import NoneTypeT
from pytensor.tensor.variable import TensorVariable

from pymc_dp.graphs.declined import Declined
from pymc_dp.graphs.registry import ability
from pymc_dp.laws import law_names
from pymc_dp.laws.count_sums import COUNT_LAWS, Atom
from pymc_dp.laws.mixture import MixtureLaw


def read_law(variable: TensorVariable) -> tuple[Any, list[TensorVariable]]:
    """Return the law of a random variable with independent entries, and its parameters by entry.

    The law is the op, or a `MixtureLaw` or `Atom`, which draw likewise:
    ``law(*parameters, rng=rng, return_next_rng=True)``.
    """
    return read_op(variable.owner.op, variable.owner)


@ability
def read_op(op: Op, node: Apply) -> tuple[Any, list[TensorVariable]]:
    """Read the law of a node, see `read_law`; an ability, by op."""
    raise Declined(f"a {law_names([type(op)])} law cannot be integrated out")


@read_op.register
def _read_random_variable(op: RandomVariable, node):
    parameters = op.dist_params(node)
    if op.dtype.startswith("float"):  # an integer parameter may be an int8, which overflows
        parameters = [p.astype("float64") for p in parameters]
    if any(op.ndims_params):
        raise Declined(
            f"a {law_names([type(op)])} law, which has vectors for parameters, cannot be "
            f"integrated out"
        )
    return op, _sized(parameters, op.size_param(node), node)


@read_op.register
def _read_atom(op: DiracDeltaRV, node):
    size, value = node.inputs
    return Atom(), _sized([value], size, node)


@read_op.register
def _read_mixture(op: MixtureRV, node):
    mixture, parameters = mixture_of(node, read_law)
    if node.inputs[2].owner.op.ndim_supp:
        raise Declined("a mixture of vectors cannot be integrated out")
    for law in mixture.components:
        if type(law) not in COUNT_LAWS:
            raise Declined(
                f"a mixture with {law} as a component cannot be integrated out; components may "
                f"be {law_names(COUNT_LAWS)}"
            )
    return mixture, parameters


def mixture_of(node: Apply, read: Callable) -> tuple[MixtureLaw, list[TensorVariable]]:
    """Return a mixture and its parameters; `read` reads the law of a component, as `read_law`."""
    _, weights, *components = node.inputs
    count = weights.type.shape[-1]
    if count is None:
        raise Declined("a mixture with an unknown number of components cannot be integrated out")
    if len(components) == 1:  # its last axis holds the components
        law, stacked = read(components[0])
        *full, _ = pt.broadcast_arrays(*stacked, pt.zeros(count))
        laws = [(law, [p[..., k] for p in full]) for k in range(count)]
    else:
        laws = [read(component) for component in components]
    mixture = MixtureLaw(tuple(law for law, _ in laws), tuple(len(p) for _, p in laws))
    return mixture, [
        *(weights[..., k] for k in range(count)),
        *(p for _, parameters in laws for p in parameters),
    ]


def _sized(parameters, size, node) -> list[TensorVariable]:
    if isinstance(size.type, NoneTypeT):
        return list(parameters)
    shape = node.outputs[-1].type.shape
    # PyMC may compute the size of a resized component from the original: prefer the static shape.
    return [pt.broadcast_to(p, size if None in shape else shape) for p in parameters]
