"""Gibbs sampling of a Poisson factorization, its counts known or released with noise."""

from __future__ import annotations

import os
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import singledispatch
from typing import Literal, NamedTuple

import numpy as np
import pytensor.tensor as pt
from pymc.step_methods.state import dataclass_state
from pytensor.tensor.basic import Alloc
from pytensor.tensor.blockwise import Blockwise
from pytensor.tensor.elemwise import DimShuffle
from pytensor.tensor.math import Dot
from pytensor.tensor.random.basic import PoissonRV
from pytensor.tensor.variable import TensorVariable

from pymc_dp.graphs.values import depends_on, nearest_rvs
from pymc_dp.laws.integrated import IntegratedReleaseRV
from pymc_dp.laws.one_value import Independent
from pymc_dp.mechanisms import GeometricMechanism, LaplaceMechanism
from pymc_dp.plugins.factorization import kernels as kernel
from pymc_dp.reading.checks import check_transform
from pymc_dp.reading.model import Reading, children
from pymc_dp.step_methods.base import (
    DPStep,
    DPStepState,
    point_function,
    unusable,
    updated_by,
    value_writer,
)
from pymc_dp.step_methods.conjugacy.registry import find_families
from pymc_dp.step_methods.registry import STEPS
from pymc_dp.step_methods.two_sided import TwoSidedGibbs, latent_conditional

Method = Literal["direct", "bessel"]

# Noise under which a count can be drawn, and how.
_METHODS: dict[type, dict[str, int]] = {
    GeometricMechanism: {"direct": kernel.DIRECT, "bessel": kernel.BESSEL},
    LaplaceMechanism: {"direct": kernel.DIRECT},
}


class Seen(NamedTuple):
    """What is known of the counts: their rate, their value or release, and its noise if any."""

    rate: TensorVariable
    value: TensorVariable
    mechanism: type | None
    scale: TensorVariable | float


class Factor(NamedTuple):
    """One side of the product: a variable of the step, or, with no `prior`, what is held fixed."""

    value: TensorVariable  # a row for each row or column of the table, as the kernel has it
    rv: TensorVariable | None
    transposed: bool  # the variable, against the value
    prior: tuple[TensorVariable, TensorVariable] | None  # shapes, rates, oriented like the value


class Factorization(NamedTuple):
    """A Poisson factorization as found in a model."""

    seen: Seen
    theta: Factor
    phi: Factor
    counts: TensorVariable | None  # latent counts that the step draws


@singledispatch
def _see(op, reading: Reading, child: TensorVariable, drawn: bool) -> Seen | None:
    """Say what is known of Poisson counts; dispatched on the op of the factors' child."""
    return None


@_see.register
def _see_poisson(op: PoissonRV, reading, child, drawn):
    model = reading.model
    [rate] = op.dist_params(child.owner)
    if not drawn:  # observed, or read from the point
        known = child if child in model.free_RVs else model.rvs_to_values[child]
        return Seen(rate, known, None, 1.0)
    with updated_by(TwoSidedGibbs.__name__, child):
        (value, scale, *_), _, _ = latent_conditional(TwoSidedGibbs, reading, child)
    [release] = children(reading, child)
    return Seen(rate, value, type(release.owner.op.mechanism), scale)


@_see.register
def _see_release(op: IntegratedReleaseRV, reading, child, drawn):
    model = reading.model
    if not (isinstance(op.law, Independent) and isinstance(op.law.statistic.law, PoissonRV)):
        return None
    mechanism, [rate] = op.split(child.owner.inputs)
    mechanism, value, _ = op.law.standardised(model.rvs_to_values[child], mechanism)
    scale = (
        None if mechanism.rates is None else mechanism.parameters[0]
    )  # other noise is refused later
    return Seen(rate, value, type(mechanism), scale)


def read_factorization(reading: Reading, rvs: Sequence[TensorVariable]) -> Factorization:
    """Read a factorization whose factors, and perhaps counts, are `rvs`.

    Raises
    ------
    ValueError
        Naming the variable that does not fit, and why.
    """
    counts = [rv for rv in rvs if isinstance(rv.owner.op, PoissonRV)]
    factors = [rv for rv in rvs if rv not in counts]
    if len(counts) > 1 or len(factors) not in (1, 2):
        raise ValueError(
            f"a step updates one or both factors of one table, and perhaps its latent counts; got "
            f"{[rv.name for rv in rvs]}"
        )
    child_rvs = children(reading, factors[0])
    if len(child_rvs) != 1:
        raise ValueError(
            f"{factors[0].name!r} must feed one table of counts and nothing else, and feeds "
            f"{[c.name for c in child_rvs]}"
        )
    [child] = child_rvs
    for rv in factors[1:]:
        if children(reading, rv) != child_rvs:
            raise ValueError(
                f"{factors[0].name!r} and {rv.name!r} must feed one table of counts, the same, and "
                f"nothing else; {rv.name!r} feeds {[c.name for c in children(reading, rv)]}"
            )
    if counts and counts != child_rvs:
        raise ValueError(f"{counts[0].name!r} is not the table of counts that the factors feed")
    seen = _see(getattr(child.owner, "op", None), reading, child, bool(counts))
    if seen is None:
        raise ValueError(
            f"{child.name!r} is neither a pm.Poisson table nor a release of pm.Poisson.dist(...)"
        )
    if seen.mechanism is not None and seen.mechanism not in _METHODS:
        raise ValueError(
            f"the counts behind {child.name!r} are released with {seen.mechanism.__name__}; "
            f"{' and '.join(m.__name__ for m in _METHODS)} are covered"
        )
    sides = _product(seen.rate)
    if sides is None or any(side.type.ndim != 2 for side in sides):
        raise ValueError(
            f"the rate of {child.name!r} is not the product of two matrices: write theta @ phi"
        )
    theta, phi = (_factor(reading, side, factors, k == 1) for k, side in enumerate(sides))
    if {theta.rv, phi.rv} - {None} != set(factors):
        raise ValueError(
            f"the rate of {child.name!r} is not a product of "
            f"{' and '.join(repr(f.name) for f in factors)} themselves: write theta @ phi, with a "
            f"transposed factor at most"
        )
    for one, other in ((theta, phi), (phi, theta)):
        if one.rv is not None and depends_on(other.value, one.rv):
            raise ValueError(
                f"both factors of the rate of {child.name!r} depend on {one.rv.name!r}"
            )
    return Factorization(seen, theta, phi, counts[0] if counts else None)


def _product(rate: TensorVariable) -> list[TensorVariable] | None:
    if isinstance(getattr(rate.owner, "op", None), Alloc):  # shape= was written, too
        within = rate.owner.inputs[0]
        return _product(within) if within.type.broadcastable == rate.type.broadcastable else None
    op = getattr(rate.owner, "op", None)
    core = op.core_op if isinstance(op, Blockwise) else op
    return list(rate.owner.inputs) if isinstance(core, Dot) else None


def _factor(
    reading: Reading, side: TensorVariable, factors: Sequence[TensorVariable], flip: bool
) -> Factor:
    node = side.owner
    flipped = isinstance(getattr(node, "op", None), DimShuffle) and node.op.new_order == (1, 0)
    rv = node.inputs[0] if flipped else side
    value = side.T if flip else side
    if rv not in factors:
        return Factor(value, None, False, None)
    try:
        check_transform(reading.model, rv)
    except NotImplementedError as error:
        raise ValueError(str(error)) from None
    families = find_families(rv.owner.op)
    if "gamma" not in families:
        raise ValueError(
            f"{rv.name!r} has the prior {rv.owner.op}: write pm.Gamma or pm.Exponential"
        )
    prior = families["gamma"](rv)
    if prior.lower is not None or prior.upper is not None:
        raise ValueError(f"the prior of {rv.name!r} is cut: write pm.Gamma or pm.Exponential")
    natural = [
        pt.broadcast_to(pt.as_tensor(x).astype("float64"), rv.shape)
        for x in (prior.first, prior.second)
    ]
    transposed = flipped != flip
    shape, rate = (x.T if transposed else x for x in natural)
    return Factor(value, rv, transposed, (shape, rate))


@dataclass_state
class FactorizationState(DPStepState):
    """The generators of the blocks of rows, and the latent rates of the published augmentation."""

    generators: list
    augmentation: np.ndarray | None


@STEPS.register(order=20)
class FactorizationGibbs(DPStep):
    r"""Update the factors of a Poisson factorization by Gibbs sweeps.

    For counts :math:`y_{dv} \sim \mathrm{Poisson}(\sum_k \theta_{dk} \phi_{kv})`, Gamma priors on
    :math:`\theta` (D x K) and :math:`\phi` (K x V), a sweep draws the counts from their exact
    conditional given their release, allocates each to the K components by a multinomial draw, and
    draws both factors from their Gamma conditionals,

    .. math::

        \theta_{dk} \mid \cdot \sim \mathrm{Gamma}\Bigl(a + \sum_v y_{dvk},\;
        b + \sum_v \phi_{kv}\Bigr),

    in O(D V K). The counts may be observed (``pm.Poisson("y", theta @ phi, observed=y)``),
    released with the counts integrated out (``dp.PrivateObservation("z",
    pm.Poisson.dist(theta @ phi), mechanism, observed=z)``), which is what
    `poisson_factorization` writes, or a latent variable of the model with a release of its own,
    which is then one of `vars`. The noise is two-sided geometric or Laplace.

    The components are exchangeable: where both factors are unknown, chains may number them
    differently. Look at convergence on the rates ``theta @ phi``.

    Parameters
    ----------
    vars : list of TensorVariable
        One or both factors, with Gamma or Exponential priors, whose parameters may be random, and
        the counts where they are a latent variable. A factor that is not named is held at its value
        in the point or in the model: a constant, `pm.Data`, a variable of another step.
    method : {"direct", "bessel"}
        How a count is drawn given its release: from its two-sided law, or by the published
        augmentation with Bessel draws [1]_, which covers geometric noise. The posterior is the
        same.
    sweeps : int, default 1
        Sweeps to a recorded draw.
    threads : int, default 1
        Threads that share a sweep of a table with 2,048 cells or more. The draws do not depend on
        it. PyMC runs chains side by side: more than one pays where cores are left idle.
    model : pm.Model, optional
        The model of the context by default.

    Raises
    ------
    ValueError
        Naming what in the model is not of this form; a method that does not cover the noise.

    References
    ----------
    .. [1] A. Schein, Z. S. Wu, A. Schofield, M. Zhou, H. Wallach (2019). Locally private Bayesian
       inference for count models. ICML.

    Examples
    --------
    >>> import numpy as np
    >>> import pymc_dp as dp
    >>> released = np.array([[3, -1, 12], [0, 4, 2], [7, 1, 25], [-2, 0, 3]])
    >>> model = dp.poisson_factorization(released, 2, dp.GeometricMechanism(1.0))
    >>> step = dp.FactorizationGibbs([model["theta"], model["phi"]], model=model, rng=1)
    >>> point, _ = step.step(model.initial_point())
    >>> point["theta_log__"].shape, point["phi_log__"].shape
    ((4, 2), (2, 3))
    """

    name = "dp_factorization"
    _state_class = FactorizationState

    @classmethod
    def claims(cls, reading, left):
        """Claim the factors of each Poisson factorization, with its latent counts."""
        return find_factorizations(reading)

    def __init__(self, vars, *, method: Method = "direct", sweeps: int = 1, threads: int = 1, **kwargs):  # fmt: skip  # noqa: E501
        known = list(_METHODS[GeometricMechanism])
        if method not in known:
            raise ValueError(f"method={method!r}: write {' or '.join(map(repr, known))}")
        for name, number in (("sweeps", sweeps), ("threads", threads)):
            if not (isinstance(number, int | np.integer) and number >= 1):
                raise ValueError(f"{name}={number!r}: write a whole number, at least 1")
        self.method, self.sweeps, self.threads = method, int(sweeps), int(threads)
        super().__init__(vars, **kwargs)

    def _prepare(self, reading, initial_point):
        names = ", ".join(repr(rv.name) for rv in self.model_rvs)
        try:
            factorization = read_factorization(reading, self.model_rvs)
            self._code = _code(self.method, factorization.seen.mechanism)
        except ValueError as error:
            raise ValueError(f"FactorizationGibbs cannot update {names}: {error}") from None
        factors = [factorization.theta, factorization.phi]
        values = reading.model.rvs_to_values
        value = factorization.seen.value.astype("float64")
        scale = pt.as_tensor(factorization.seen.scale).astype("float64")
        outputs = [value, pt.broadcast_to(scale, value.shape)]
        for factor in factors:
            outputs += [factor.value.astype("float64"), *(factor.prior or ())]
        self._values = point_function(reading.model, outputs)
        self._drawn = [factor.prior is not None for factor in factors]
        self._writers = [
            (j, values[f.rv].name, value_writer(reading.model, f.rv), f.transposed)
            for j, f in enumerate(factors)
            if f.rv is not None
        ]
        self._counts = None if factorization.counts is None else values[factorization.counts].name
        self._names, self._pool = " and ".join(rv.name for rv in self.model_rvs), None
        self.generators, self.augmentation = [], None

    def setup_chain(self, rng, tune, draws):
        """Start afresh: the generators of the blocks are those of the chain."""
        super().setup_chain(rng, tune, draws)
        self.generators, self.augmentation = [], None

    def __getstate__(self):
        """Leave the threads behind, which cannot be pickled."""
        return {**self.__dict__, "_pool": None}

    def _threads(self) -> ThreadPoolExecutor | None:
        if self.threads == 1:
            return None
        if self._pool is None or self._pool[0] != os.getpid():  # threads do not survive a fork
            self._pool = os.getpid(), ThreadPoolExecutor(self.threads - 1)
        return self._pool[1]

    def step(self, point):
        """Sweep, and write the factors, and latent counts, to the point."""
        table, theta, phi = self._table(map(np.ascontiguousarray, self._values(point)))
        if not self.generators:
            blocks = kernel.block_count(*table.z.shape)
            self.generators = self.rng.spawn(blocks)
        state = kernel.start_state(self.generators[0], table, theta, phi.T, self.augmentation)
        pool = self._threads()
        for _ in range(self.sweeps):
            if not kernel.sweep(self.generators, table, state, pool, self.threads):
                raise unusable(self._names)
        self.augmentation = state.augmentation if table.method == kernel.BESSEL else None
        point = dict(point)
        for j, name, write, transpose in self._writers:
            new = state[j].T if transpose else state[j]
            point[name] = np.ascontiguousarray(write(new), dtype=point[name].dtype)
        if self._counts is not None:
            point[self._counts] = state.y.astype(point[self._counts].dtype)
        return point, [{}]

    def _table(self, values):
        """Check what was read; the shapes and scales may be those of a pm.Data that changed."""
        z, scale, *rest = values
        priors, factors = [], []
        for drawn in self._drawn:
            factors.append(rest.pop(0))
            priors.append((rest.pop(0), rest.pop(0)) if drawn else None)
        theta, phi = factors
        positive = [scale, *(x for prior in priors if prior is not None for x in prior[:1])]
        whole = self._code == kernel.DIRECT or np.array_equal(z, np.floor(z))
        if (
            z.shape != (len(theta), len(phi))
            or not whole
            or not all((x > 0).all() for x in positive)
            or not all((x >= 0).all() for x in factors)
        ):
            raise unusable(self._names)
        return kernel.Table(self._code, z, scale, *priors), theta, phi


def _code(method: str, mechanism: type | None) -> int:
    if mechanism is None:
        return kernel.KNOWN
    if method not in _METHODS[mechanism]:
        raise ValueError(
            f"method={method!r} does not cover {mechanism.__name__}: write "
            f"{' or '.join(map(repr, _METHODS[mechanism]))}"
        )
    return _METHODS[mechanism][method]


def find_factorizations(reading: Reading) -> list[list[TensorVariable]]:
    """Return, for each Poisson factorization in a model, the variables of its step."""
    groups: list[list[TensorVariable]] = []
    for child in reading.model.basic_RVs:
        seen = None
        with suppress(ValueError, NotImplementedError):
            seen = _see(child.owner.op, reading, child, False)
        sides = None if seen is None else _product(seen.rate)
        if sides is None:
            continue
        factors = [rv for rv in nearest_rvs(sides) if rv in reading.model.free_RVs]
        latent = (
            [child]
            if isinstance(child.owner.op, PoissonRV) and child in reading.model.free_RVs
            else []
        )
        # One of two factors may have a prior that leaves it to another step.
        together = [factors, *([rv] for rv in factors)]
        for group in [[*some, *latent] for some in together] + together * bool(latent):
            with suppress(ValueError, NotImplementedError):
                read_factorization(reading, group)
                groups.append(group)
                break
    return groups
