"""The random variable of a release whose confidential value is integrated out."""

from __future__ import annotations

import string
from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
import pytensor.tensor as pt
import xarray as xr
from pymc.distributions.distribution import SymbolicRandomVariable, _support_point
from pymc.logprob.abstract import _logprob
from pytensor.graph.replace import vectorize_graph

from pymc_dp.graphs.declined import Declined
from pymc_dp.mechanisms.release import PrivateReleaseRV

if TYPE_CHECKING:
    import pymc as pm
    from pytensor.tensor.variable import TensorVariable

    from pymc_dp.mechanisms.base import Mechanism


class Integrated(ABC):
    """The law of a confidential value that is integrated out of its release.

    Subclasses are frozen dataclasses. `parameters` of their methods are graphs, the arguments of
    `integrated_release`.

    Attributes
    ----------
    names : names of the statistics that `recover` draws.
    elementwise : whether `logp` is elementwise: each entry of the release has a density.
    by_inversion : whether each entry is a sum by inversion, which is slow, and the first of its
        group, so that its mean and variance are known: proposals take it for Normal.
    by_entry : whether the statistics that `recover` draws have the shape of the release.
    """

    names: tuple[str, ...]
    elementwise: ClassVar[bool] = False
    by_entry: ClassVar[bool] = False
    by_inversion: ClassVar[bool] = False

    @property
    def coarse(self) -> Integrated:
        """A law near this one, for proposals: it takes less time where this one takes long."""
        return self

    @abstractmethod
    def draw(self, rng, *parameters) -> tuple[Any, TensorVariable]:
        """Return the next generator and a draw of the confidential value."""

    @abstractmethod
    def logp(self, value: TensorVariable, mechanism: Mechanism, *parameters) -> TensorVariable:
        """Log density of a release."""

    def cost(self, entries: int) -> dict[str, float]:
        """Return the cost of the log density of a release, by `routes.costs`."""
        return {type(self).__name__: entries}

    def mean_variance(self, *parameters) -> tuple[TensorVariable, TensorVariable]:
        """Return the mean and the variance of the confidential value; may be declined."""
        raise Declined

    def left_out(self, value, mechanism, *parameters) -> tuple[TensorVariable, str] | None:
        """Return whether values that the density leaves out matter, as a graph, and them in words.

        None for a density that leaves nothing out.
        """
        return None

    def support_point(self, rv: TensorVariable, *parameters) -> TensorVariable:
        """Return a possible value of the release."""
        return pt.zeros(rv.shape)

    def recovered(
        self,
        rv: TensorVariable,
        value: TensorVariable,
        posterior: xr.Dataset,
        rng: np.random.Generator,
    ) -> dict[str, Any]:
        """Draw the confidential value given posterior draws of the parameters, for `dp.recover`.

        Returns what xarray takes as variables: by name, a pair of dimension names, chain and draw
        first, and an array. Declined where there is no draw.
        """
        raise Declined(
            f"what was integrated out of {rv.name!r} cannot be drawn: "
            "sample the model itself with rung='records'"
        )


class IntegratedReleaseRV(SymbolicRandomVariable):
    """A release whose confidential value is integrated out.

    Inputs are a generator, the parameters of the value's law and those of the mechanism.
    """

    _print_name = ("IntegratedRelease", "\\operatorname{IntegratedRelease}")
    law: Integrated
    mechanism: Mechanism  # its parameters are without values: see `split`

    def split(self, inputs: Sequence[TensorVariable]) -> tuple[Mechanism, list[TensorVariable]]:
        """Split inputs of the op: the mechanism with its parameters, and those of the law."""
        count = len(inputs) - len(self.mechanism.parameters)
        return self.mechanism.with_parameters(*inputs[count:]), list(inputs[1:count])


def integrated_release(law: Integrated, mechanism: Mechanism, *parameters) -> TensorVariable:
    """Build the release of a value that is integrated out (not registered with any model)."""
    rng = pt.random.shared_rng(seed=None)  # shared by the law and the noise
    inputs = [rng, *map(pt.as_tensor, parameters), *mechanism.parameters]
    rng, *dummies = [variable.type() for variable in inputs]
    law_parameters = dummies[: len(parameters)]
    noise_rng, confidential = law.draw(rng, *law_parameters)
    noise = mechanism.with_parameters(*dummies[len(parameters) :])
    next_rng, draw = noise.noise_sample(noise_rng, confidential)
    letters = iter(string.ascii_letters)

    def core(variable) -> str:
        axes = 0 if law.elementwise else variable.type.ndim
        return f"({','.join(next(letters) for _ in range(axes))})"

    cores = ",".join(map(core, dummies))
    op = IntegratedReleaseRV(
        [rng, *dummies],
        [next_rng, draw],
        extended_signature=f"[rng],{cores}->[rng],{core(draw)}",
    )
    op.law, op.mechanism = law, noise
    op.name = f"Integrated{mechanism.label}"
    op._print_name = op.name, rf"\operatorname{{{op.name}}}"
    return op(*inputs)


@_logprob.register(IntegratedReleaseRV)
def _integrated_logprob(op, values, *inputs, **kwargs):
    mechanism, parameters = op.split(inputs)
    [value], release_type = values, op.output_types[-1]
    if value.type.ndim <= release_type.ndim:
        return op.law.logp(value, mechanism, *parameters)
    # Several values of the release: the density of one is vectorized.
    single = release_type.clone(dtype=value.dtype)()
    return vectorize_graph(op.law.logp(single, mechanism, *parameters), {single: value})


@_support_point.register(IntegratedReleaseRV)
def _integrated_support_point(op, rv, *inputs):
    return op.law.support_point(rv, *op.split(inputs)[1])


def all_releases(model: pm.Model) -> list[TensorVariable]:
    """Return the releases of a model, with or without their confidential values."""
    kinds = PrivateReleaseRV | IntegratedReleaseRV
    return [rv for rv in model.basic_RVs if isinstance(rv.owner.op, kinds)]


def confidential(release: TensorVariable) -> str:
    """Return the name in results of the value that noise was added to."""
    return f"{release.name}_confidential"


def in_results(
    posterior: xr.Dataset, name: str, drawn: np.ndarray, *, whole: bool = False
) -> dict[str, Any]:
    """Return draws as variables of xarray; the first axis of `drawn` is chains times draws.

    With `whole`, floats are rounded to integers.
    """
    drawn = np.rint(drawn).astype("int64") if whole else drawn
    dims = ["chain", "draw", *(f"{name}_dim_{i}" for i in range(drawn.ndim - 1))]
    shape = posterior.sizes["chain"], posterior.sizes["draw"], *drawn.shape[1:]
    return {name: (dims, drawn.reshape(shape))}
