"""Quadrature nodes for a law of records, as a graph in its parameters."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pymc as pm
import pytensor.tensor as pt
from pymc.distributions.distribution import _support_point
from pytensor.graph.replace import graph_replace
from pytensor.tensor.variable import TensorVariable

from pymc_dp.graphs.declined import Declined
from pymc_dp.graphs.registry import ability
from pymc_dp.graphs.values import known_value
from pymc_dp.laws import is_registered
from pymc_dp.laws.parts import Part, parts_of
from pymc_dp.laws.real_line import backward, forward, log_density, support
from pymc_dp.mechanisms.base import Mechanism, has_kink
from pymc_dp.plugins.inversion.kernels.nodes import DISTANCES, RULE, SAMPLES, WEIGHTS
from pymc_dp.plugins.inversion.kernels.numbers import FEW
from pymc_dp.plugins.inversion.ops import Panels, Reaches, ReleaseDensity


@ability
def detail(op) -> int:
    """Return the factor of a law's number of panels: 3 where its tails are powers, else 1.

    Dispatched on the op of the law. A law may register if its density is smooth and unimodal once
    the support is mapped to the real line by the law's default transform, but for a kink at the
    support point (Laplace). Other laws are checked by `readable_law`, and take most panels.
    """
    return 3


for _law in (
    pm.Beta, pm.Cauchy, pm.Exponential, pm.Gamma, pm.Gumbel, pm.HalfNormal, pm.InverseGamma,
    pm.Laplace, pm.LogNormal, pm.Logistic, pm.Moyal, pm.Normal, pm.SkewNormal, pm.StudentT,
    pm.TruncatedNormal, pm.Uniform, pm.Wald,
):  # fmt: skip
    detail.register(type(_law.rv_op), lambda op: 1)
for _law in (pm.Cauchy, pm.StudentT):
    detail.register(type(_law.rv_op), lambda op: 3)


def starts_at_zero(law, parameters: Sequence[TensorVariable], name: str) -> bool:
    """Whether the support of the records of this name is known to begin at zero."""
    parts = parts_of(law, parameters)
    ends = [None if part.is_atom else support(part.law, name)[0] for part in parts]
    return all(lower is not None and bool(known_value(lower) == 0) for lower in ends)


def noise_parts(
    mechanism: Mechanism, *, whole: bool = False
) -> tuple[TensorVariable, TensorVariable]:
    r"""Laplace scale b and Gaussian standard deviation :math:`\sigma` of a mechanism's noise.

    The noise has the characteristic function :math:`e^{-\sigma^2 w^2 / 2} / (1 + b^2 w^2)`; one of
    them is zero. Of sums of whole numbers it may be discrete noise with these rates, see `excess`.
    """
    if mechanism.rates is None or (mechanism.is_discrete and not whole):
        raise Declined(
            f"no characteristic function is known of {type(mechanism).__name__}: LaplaceMechanism "
            f"and GaussianMechanism have one, and others with continuous noise and `rates`"
        )
    assert mechanism.rates is not None
    lam, tau = mechanism.rates
    if has_kink(mechanism):
        return 1.0 / lam, pt.zeros_like(lam)
    return pt.zeros_like(tau), tau**-0.5


def log_density_of_sum(
    parts, n, least, summand, added, log_number, z, laplace, gaussian
) -> TensorVariable:
    """See `Summand.log_density`."""
    chance = pt.special.softmax(log_number)
    mean = n + pt.dot(chance, pt.arange(log_number.shape[0]))
    at = [v[0] if v.type.shape == (1,) else pt.dot(chance, v) for v in (z, laplace, gaussian)]
    counts = panel_counts(least)
    mean = pt.maximum(mean, 1.0)
    sets = law_of_sum(parts, mean, counts, summand, at[0] - added * mean, *at[1:])
    log_weight, h, cut = (pt.concatenate(tiers) for tiers in zip(*sets, strict=True))
    known = log_number.type.shape == (1,)
    density = ReleaseDensity(
        node_count(parts, counts[0], summand),
        plain=known and least >= FEW,
        each=not known and z.type.shape != (1,),
    )
    return density(log_weight, h + added, cut, n, log_number, z, laplace, gaussian)[0]


def law_of_sum(parts, n, counts, summand, z, laplace, gaussian) -> list[tuple]:
    """Log masses of quadrature nodes, the summand at the nodes, and which nodes are cut ends.

    For each number of panels, the nodes of all parts of the records' law.
    """
    sets_of_parts = []
    for part in parts:
        share = 0.0 if part.share is None else pt.log(part.share.astype("float64"))
        if part.is_atom:
            mass = np.log(0.5 * WEIGHTS) + share
            h = summand.at(part.clipped(part.law * np.ones(RULE)))
            sets_of_parts.append([(mass, h, pt.zeros(WEIGHTS.size)) for _ in counts])
            continue
        law, part_summand = part.law, _of_part(part, summand)
        sets = quadrature(law, n, counts, part_summand, z, laplace, gaussian)
        sets_of_parts.append(
            [
                (
                    share + log_weight + log_density(law, nodes),
                    part_summand.at(backward(law, nodes)),
                    cut,
                )
                for log_weight, nodes, cut in sets
            ]
        )
    return [
        tuple(pt.concatenate(arrays) for arrays in zip(*of_parts, strict=True))
        for of_parts in zip(*sets_of_parts, strict=True)
    ]


def _of_part(part: Part, summand: Any) -> Any:
    """Return the summand as a function of the variable of a part, which may be clipped."""
    if not part.ends:
        return summand
    ends = (end.astype("float64") for pair in part.ends for end in pair)
    replacements = {summand.record: part.clipped(summand.record)}
    [h] = graph_replace([summand.h], replacements, strict=False)
    return replace(summand, h=h, breakpoints=(*summand.breakpoints, *ends))


def _panels(part: Part, count: int, summand: Any) -> int:
    """Return how many panels a side of a piece takes."""
    op = part.law.owner.op
    more = detail(op)  # tails that are powers have many scales
    # Without a clamp they have more; laws that `readable_law` checks keep the number checked there.
    if more > 1 and not summand.breakpoints and not part.ends and is_registered(detail, op):
        more *= 4
    return more * count


def node_count(parts: Sequence[Part], count: int, summand: Any) -> int:
    """Return how many nodes `law_of_sum` gives for a number of panels."""
    pieces = len(summand.breakpoints) + 1
    return RULE * sum(
        1 if part.is_atom else 2 * (pieces + 2 * len(part.ends)) * _panels(part, count, summand)
        for part in parts
    )


def panel_counts(least: int) -> tuple[int, int]:
    """Return how many panels a side of a piece takes: first few, then enough."""
    # Few records have high frequencies.
    return 3, 40 if least < 20 else 24 if least < 100 else 12


def quadrature(law, n, counts, summand, z, laplace, gaussian):
    """Log weights and positions of quadrature nodes on the real line, and which are cut ends.

    For each number of panels.
    """
    origin = forward(law, _support_point(law.owner.op, law, *law.owner.inputs).astype("float64"))
    points = summand.breakpoints
    edges = pt.constant(np.array([-np.inf, np.inf]))
    if points:
        edges = forward(law, pt.stack([pt.as_tensor(p).astype("float64") for p in points]))
        edges = pt.concatenate([[-np.inf], pt.sort(edges), [np.inf]])
    low, high = edges[:-1], edges[1:]
    center = pt.clip(origin, low, high)
    distance = DISTANCES * pt.maximum(1.0, pt.abs(center))[:, None]
    scouted = pt.stack(
        [
            pt.maximum(center[:, None] - distance, low[:, None]),
            pt.minimum(center[:, None] + distance, high[:, None]),
        ],
        axis=1,
    )

    def look(y):
        return log_density(law, y), summand.at(backward(law, y))

    # How far a saddlepoint can tilt: not beyond a pole, nor beyond what Gaussian noise asks for.
    gap = z - n * summand.at(backward(law, origin))
    has_laplace = laplace > 0
    tilt = pt.switch(
        has_laplace,
        1.0 / pt.switch(has_laplace, laplace, 1.0),
        pt.abs(gap) / pt.switch(has_laplace, 1.0, gaussian) ** 2,
    )
    reach = Reaches()(scouted, *look(scouted), z / n, tilt)
    limit = pt.stack([center - low, high - center], axis=1)
    reach = pt.minimum(reach, limit)
    sign = np.array([-1.0, 1.0])[:, None]
    sampled = center[:, None, None] + sign * reach[:, :, None] * SAMPLES
    looked = look(sampled)
    sets = []
    for count in counts:
        panels = Panels(_panels(Part(law), count, summand))
        nodes, log_weight, cut = panels(center, limit, reach, *looked, origin)
        sets.append((log_weight, nodes, cut))
    return sets
