"""The marginal of one value of any law under any noise that has a density, by quadrature."""

from __future__ import annotations

from functools import cached_property, partial
from typing import Any

import numpy as np
import pytensor.tensor as pt
from pymc.distributions.distribution import _support_point
from pymc.logprob.abstract import _logprob
from pytensor.gradient import pushforward
from pytensor.graph.traversal import ancestors
from pytensor.scalar.basic import float64
from pytensor.tensor.variable import TensorVariable

from pymc_dp.graphs.compiled import Piece, arrays, from_code, from_graph, from_numbers, from_source
from pymc_dp.graphs.declined import Declined
from pymc_dp.graphs.ops import KernelOp
from pymc_dp.graphs.substitution import simplified
from pymc_dp.graphs.values import known_value, nearest_rvs
from pymc_dp.kernels import joined, key_of
from pymc_dp.laws import GENERAL_PAIRS, Pair
from pymc_dp.laws.count_sums import Atom
from pymc_dp.laws.inverse import jumps
from pymc_dp.laws.mixture import MixtureLaw, choose
from pymc_dp.laws.of_function import OfFunction
from pymc_dp.laws.parts import CensoredLaw, Part, SymbolicLaw, TruncatedLaw, parts_of
from pymc_dp.laws.real_line import backward, forward, log_density, support
from pymc_dp.mechanisms.arguments import as_float
from pymc_dp.mechanisms.base import Mechanism, kind_of
from pymc_dp.mechanisms.postprocessed import PostProcessed
from pymc_dp.plugins.single_values import kernels
from pymc_dp.plugins.single_values.grid import Grid, number_of_all
from pymc_dp.reading.kept import reads_outside

_CLOSE = 8.0, 25.0  # logs of how much closer to an end than the typical value


def single_parts(law: Any, parameters) -> list[Part]:
    """Return the parts of a law; one that is truncated is a law of its own."""
    return [part.truncated() for part in parts_of(law, parameters)]


def is_whole(part: Part) -> bool:
    """Whether a part of a law has values on the whole numbers only."""
    return not part.law.dtype.startswith("float")


def log_integrand(part: Part, mechanism: Mechanism, z, y) -> TensorVariable:
    """Return the log of law times noise at values y, of a continuous law on the real line."""
    op, inputs = part.law.owner.op, part.law.owner.inputs
    if is_whole(part):
        return _logprob(op, (y,), *inputs) + mechanism.logp(z, part.clipped(y))
    x = backward(part.law, y)
    return log_density(part.law, y) + mechanism.logp(z, part.clipped(x))


def places(mechanism: Mechanism, z) -> list[TensorVariable]:
    """Return values at which the noise bends or jumps, and one where it is large."""
    return [*dict.fromkeys(map(as_float, [*mechanism.kinks(z), mechanism.typical_statistic(z)]))]


def knots(part: Part, around) -> TensorVariable:
    """Return where the integrand may be large, or bend, on the real line for a continuous law.

    Where a place is beyond an end of the support, what is large may be close to that end.
    """
    law = part.law
    anchor = as_float(_support_point(law.owner.op, law, *law.owner.inputs))
    ends = [as_float(end) for pair in part.ends for end in pair]
    x = pt.stack([anchor, *around, *ends])
    y = x if is_whole(part) else forward(law, x)
    close = []
    for end, side in zip(
        (None, None) if is_whole(part) else support(law), (-1.0, 1.0), strict=True
    ):
        if end is not None:
            beyond = side * (x - end) >= 0.0
            y = pt.switch(beyond, y[0] + side * _CLOSE[1], y)
            close.append(y[0] + pt.switch(pt.any(beyond), side * _CLOSE[0], 0.0))
    y = pt.concatenate([y, pt.stack(close)]) if close else y
    return pt.switch(pt.isnan(y) | pt.isinf(y), y[0], y)


class Marginal(KernelOp):
    """Log of the integral of a part of a law times the noise.

    Inputs are `places`, the release, the parameters of the mechanism, and those of the law. With
    `moving`, release and noise depend on other variables of a model, and there are slopes for them.
    """

    nin = 0

    def __init__(
        self,
        law: Any,
        number: int,
        mechanism: Mechanism,
        n_parameters: int,
        n_places: int,
        moving: bool,
    ):
        self.law, self.number = law, number
        self.mechanism, self.n_parameters, self.n_places = mechanism, n_parameters, n_places
        self.moving = moving
        z, *noise = self.given = [
            pt.scalar(dtype="float64") for _ in range(1 + len(mechanism.parameters))
        ]
        self.z, self.noise = z, mechanism.with_parameters(*noise)
        self.nin = n_places + len(self.given) + n_parameters
        self.fixed = n_places + (0 if moving else len(self.given))
        self.nout = 1 + self.nin - self.fixed
        super().__init__(name=f"{type(mechanism).__name__}_marginal")
        self.output_types_preference = lambda *_: [float64] * self.nout

    def __reduce__(self):
        """Pickle what it was made of: other processes cannot load compiled code."""
        counts = self.n_parameters, self.n_places, self.moving
        return Marginal, (self.law, self.number, self.mechanism, *counts)

    def __eq__(self, other):
        """Compare by identity: the code need not be compiled for it."""
        return self is other

    def __hash__(self):
        """Hash by identity."""
        return id(self)

    @cached_property
    def kernel(self):  # type: ignore[override]
        """The compiled integral."""
        return self._integral.function

    @property
    def key(self) -> str | None:
        """See `KernelOp.key`."""
        return self._integral.key

    @cached_property
    def _integral(self) -> Piece:
        walk, n = self.walk(slopes=True), self.nout - 1
        make = kernels.make_integral
        integral = Piece(make(walk.function, n), joined(key_of(make), walk.key, n))
        given, around, theta = self._names()
        return from_code(
            "marginal",
            ", ".join([*around, *given, *theta]),
            f"args = {arrays([*given, *theta])}\n"
            f"value, slopes = integral(knots({arrays(around)}, args), args)\n"
            f"return ({', '.join(['value', *(f'slopes[{j}]' for j in range(n))])},)",
            integral=integral,
            knots=self._knots(),
            np=Piece(np, "numpy"),
        )

    def drawn(self) -> tuple[Piece, Piece]:
        """Compile log of the integral and a draw, of ``(z, *noise, *parameters)``."""
        walk, density = self.walk(slopes=False), self.density(slopes=False)
        integral, draw, whole = kernels.make_integral, kernels.make_draw, is_whole(self.part())
        mass = Piece(integral(walk.function, 0), joined(key_of(integral), walk.key))
        made = Piece(
            draw(walk.function, density.function, whole),
            joined(key_of(draw), walk.key, density.key, whole),
        )
        given, _, theta = self._names()
        at = arrays([f"at[{i}]" for i in range(self.n_places)])
        code = f"args = {arrays([*given, *theta])}\nat = around(args)\nhere = knots({at}, args)\n"
        pieces = {
            "around": self._compiled([], pt.stack(places(self.noise, self.z))),
            "knots": self._knots(),
            "np": Piece(np, "numpy"),
        }
        names = ", ".join([*given, *theta])
        y = pt.scalar("y", dtype="float64")
        x = y if whole else backward(self.part().law, y)
        value = self._compiled([y], self.part().clipped(x).reshape((1,)))
        code_of_draw = code + "return value(np.asarray(kernel(rng, here, args)), args)[0]"
        return (
            from_code("mass", names, code + "return mass(here, args)[0]", mass=mass, **pieces),
            from_code("draw", f"rng, {names}", code_of_draw, kernel=made, value=value, **pieces),
        )

    def _names(self) -> tuple[list[str], list[str], list[str]]:
        counts = {"z": len(self.given), "k": self.n_places, "t": self.n_parameters}
        return tuple([f"{c}{i}" for i in range(n)] for c, n in counts.items())  # type: ignore[return-value]

    def walk(self, *, slopes: bool) -> Piece:
        """Compile the walk over the values."""
        density, n = self.density(slopes=slopes), self.nout - 1 if slopes else 0
        if is_whole(self.part()):
            make = kernels.make_sum
            return Piece(make(density.function, n), joined(key_of(make), density.key, n))
        noise, edges, make_walk = of_statistic(self.noise), self._edges(), kernels.make_walk
        rough = noise.has_more_kinks or (noise.may_jump and not noise.kinks(self.z))
        made = make_walk(density.function, n, rough, edges.function)
        return Piece(made, joined(key_of(make_walk), density.key, n, rough, edges.key))

    def _edges(self) -> Piece:
        """Compile the ends of the cell around a value between which what is released steps."""
        law, y = self.part().law, pt.vector("y", dtype="float64")
        x = self.part().clipped(backward(law, y))
        found = self.noise.edges(x) if isinstance(self.noise, OfFunction) else []
        if not found:
            return Piece(kernels.no_edges, key_of(kernels.no_edges))
        return self._compiled([y], pt.concatenate([forward(law, e) for e in found]))

    @cached_property
    def theta(self) -> list[TensorVariable]:
        """Parameters of the law, as numbers."""
        return [pt.scalar(dtype="float64") for _ in range(self.n_parameters)]

    def part(self, parameters=None) -> Part:
        """Return the part of the law, with parameters that are numbers, or others."""
        return single_parts(self.law, parameters or self.theta)[self.number]

    def _knots(self) -> Piece:
        """Compile `knots` as ``knots(places, args)``."""
        around = [pt.scalar(dtype="float64") for _ in range(self.n_places)]
        [graph] = simplified([knots(self.part(), around)])  # without the law's variable
        inner = from_graph([*around, *self.given, *self.theta], [graph.astype("float64")])
        at = [f"places[{i}]" for i in range(self.n_places)] + self._args()
        return from_source("knots", "places, args", f"inner({', '.join(at)})[0]", inner=inner)

    def density(self, *, slopes: bool) -> Piece:
        """Compile `log_integrand` and its slopes, as rows, as ``density(y, args)``."""
        y = pt.vector("y", dtype="float64")
        h = log_integrand(self.part(), self.noise, self.z, y) + pt.zeros_like(y)
        rows, used = [h], set(ancestors([h]))
        for theta in [*(self.given if self.moving else []), *self.theta] if slopes else []:
            of_theta = theta in used
            rows.append(
                pushforward(h, theta, pt.ones_like(theta)) if of_theta else pt.zeros_like(y)
            )
        return self._compiled([y], pt.stack(rows))

    def _args(self) -> list[str]:
        return [f"args[{i}]" for i in range(len(self.given) + self.n_parameters)]

    def _compiled(self, inputs: list[TensorVariable], graph: TensorVariable) -> Piece:
        inner = from_graph([*inputs, *self.given, *self.theta], [graph.astype("float64")])
        names = [str(v.name) for v in inputs]
        arguments = ", ".join([*names, *self._args()])
        return from_source(
            "of_numbers", ", ".join([*names, "args"]), f"inner({arguments})[0]", inner=inner
        )


_MADE: dict[Any, Marginal] = {}
_MOST_MADE = 64
_SEEN = 500  # releases between which bends are looked for


def marginal(
    law: Any, number: int, mechanism: Mechanism, n_parameters: int, n_places: int, *, moving=False
) -> Marginal:
    """Return the marginal of a part of a law, made once: a gradient shares its evaluation.

    With a function of the user's it is made anew: the numbers that this reads may have changed.
    """
    if mechanism.reads_outside or reads_outside(law):
        return Marginal(law, number, mechanism, n_parameters, n_places, moving)
    key = law, number, kind_of(mechanism), n_parameters, n_places, moving
    if key not in _MADE:
        if len(_MADE) >= _MOST_MADE:
            _MADE.clear()
        _MADE[key] = Marginal(law, number, mechanism, n_parameters, n_places, moving)
    return _MADE[key]


def width(law: Any) -> int:
    """Return the number of parameters of a law."""
    match law:
        case MixtureLaw():
            return len(law.components) + sum(law.widths)
        case CensoredLaw():
            return width(law.law) + 2
        case SymbolicLaw():
            return len(law.op.ndims_params)
        case TruncatedLaw():
            return width(law.law)
        case Atom():
            return 1
    return len(law.ndims_params)


def compiled_draw(law: Any, mechanism: Mechanism) -> Piece:
    """Compile the draw of a `Pair`: a part of the law, then its value."""
    given = [pt.scalar(dtype="float64") for _ in range(1 + len(mechanism.parameters))]
    theta = [pt.scalar(dtype="float64") for _ in range(width(law))]
    noise = mechanism.with_parameters(*given[1:])
    pieces: dict[str, Piece] = {"choose": Piece(choose, key_of(choose)), "np": Piece(np, "numpy")}
    names, parts = [f"a{i}" for i in range(len(given) + len(theta))], single_parts(law, theta)
    masses, draws = [], []
    for k, part in enumerate(parts):
        if part.is_atom:
            value = part.clipped(part.law)
            for name, graph in ((f"mass{k}", noise.logp(given[0], value)), (f"draw{k}", value)):
                pieces[name] = from_numbers([*given, *theta], as_float(graph))
            draws.append(f"draw{k}({', '.join(names)})")
        else:
            op = marginal(law, k, mechanism, len(theta), len(places(noise, given[0])))
            pieces[f"mass{k}"], pieces[f"draw{k}"] = op.drawn()
            draws.append(f"draw{k}(rng, {', '.join(names)})")
        masses.append(f"mass{k}({', '.join(names)})")
        share = pt.constant(1.0) if part.share is None else part.share
        pieces[f"share{k}"] = from_numbers([*given, *theta], as_float(share))
    code = "chosen = 0\n"
    if len(parts) > 1:
        shares = ", ".join(f"share{k}({', '.join(names)})" for k in range(len(parts)))
        code = f"chosen = choose(rng, ({shares},), ({', '.join(masses)},))\n"
    for k, draw in enumerate(draws):
        code += f"if chosen == {k}:\n    return {draw}\n"
    cut = len(given)
    arguments = ", ".join(["rng", *names[:cut], "lo", "hi", *names[cut:]])
    return from_code("draw", arguments, code + "return np.nan", **pieces)


class GeneralPair(Pair):
    """The pair of any law and mechanism, whose draw is compiled when it is asked for."""

    def __init__(self, law: Any, mechanism: Mechanism, density: Any = None, *, slow: bool = True):
        of_law = density or partial(log_marginal, law)
        given: dict[str, Any] = {"law": type(law), "mechanism": type(mechanism)}
        given["log_marginal"] = of_law
        given |= {"require": self._require, "parameters": lambda *theta: theta}
        vars(self).update(given, examples=(), slow=slow, of=(law, mechanism))

    def _require(self, *theta) -> None:
        """Decline a support that moves, and noise that may jump: the slopes do not know of that."""
        law, mechanism = vars(self)["of"]
        for part in single_parts(law, theta):
            if part.is_atom or is_whole(part):
                continue
            moving = nearest_rvs([e for e in support(part.law) if e is not None])
            if moving and may_jump(mechanism):
                raise Declined(
                    f"the ends of the support of the law move with {moving[0].name!r}, and the "
                    f"density of the release jumps, or what is released of a value does: this has "
                    f"no gradient here",
                    near=1,
                )

    @cached_property
    def draw(self):
        """See `Pair`."""
        return compiled_draw(*vars(self)["of"]).function


def log_marginal(law: Any, mechanism: Mechanism, value, *parameters) -> TensorVariable:
    """Return the log marginal density of a release, see `Pair`."""
    given = [as_float(p) for p in (*parameters, *mechanism.parameters)]
    alike = [number_of_all(p) for p in given]
    numbers = known_value(pt.as_tensor(value), fixed=True)
    if numbers is not None and numbers.size > 1 and None not in alike:
        given, released = alike, np.asarray(numbers, dtype="float64")
        each = mechanism.with_parameters(*alike[len(parameters) :])
        bent = bends(law, each, alike[: len(parameters)], released)
        smooth = bent is not None and is_smooth(law, mechanism, parameters)
        grid = Grid(released, smooth=smooth, bends=bent or ())
        value = pt.constant(grid.nodes)
    else:
        grid, value = None, as_float(value)
    theta, noise = given[: len(parameters)], given[len(parameters) :]
    density = marginal_at(law, mechanism.with_parameters(*noise), value, theta)
    return density if grid is None else grid.at_all(density)


def of_statistic(mechanism: Mechanism) -> Mechanism:
    """Return the mechanism behind functions of the value."""
    while isinstance(mechanism, OfFunction):
        mechanism = mechanism.inner
    return mechanism


def may_jump(mechanism: Mechanism) -> bool:
    """Whether the density of a release jumps in the value."""
    while isinstance(mechanism, OfFunction):
        if jumps(mechanism.function.graph):
            return True
        mechanism = mechanism.inner
    return mechanism.may_jump


def is_smooth(law: Any, mechanism: Mechanism, parameters) -> bool:
    """Whether neither law nor noise has points of positive probability: a release has none then."""
    points = any(part.is_atom or is_whole(part) for part in single_parts(law, parameters))
    noise = of_statistic(mechanism)
    return not points and noise.spacing is None and not isinstance(noise, PostProcessed)


def bends(law: Any, mechanism: Mechanism, parameters, released: np.ndarray) -> list[float] | None:
    """Return releases at which noise makes the marginal bend; None where these are not known.

    There a point at which the law or the function bends meets a kink of the noise.
    """
    noise, z = of_statistic(mechanism), np.unique(released[np.isfinite(released)])
    z = z[np.unique(np.linspace(0, max(z.size - 1, 0), _SEEN).astype(int))] if z.size else z
    around = [known_value(kink, fixed=True) for kink in noise.kinks(pt.constant(z))]
    if not around and not noise.has_more_kinks:
        return []
    points = []
    for part in single_parts(law, parameters):
        points += [as_float(end) for pair in part.ends for end in pair]
        points += [] if part.is_atom else [end for end in support(part.law) if end is not None]
    if isinstance(mechanism, OfFunction):
        points = [mechanism.at(p) for p in [*points, *mechanism.bends()]]
    known = [known_value(p, fixed=True) for p in points]
    if (points and noise.has_more_kinks) or any(x is None for x in (*known, *around)):
        return None
    levels = np.array([np.squeeze(np.asarray(x)) for x in known])  # numbers: all laws are alike
    found: list[float] = []
    for kink in around:
        beyond = np.broadcast_to(np.asarray(kink), z.shape) - levels[:, None]
        here, at = np.nonzero(beyond[:, :-1] * beyond[:, 1:] <= 0.0)
        low, high = beyond[here, at], beyond[here, at + 1]
        share = low / np.where(low == high, 1.0, low - high)
        found += (z[at] + share * (z[at + 1] - z[at])).tolist()
    return found


def marginal_at(law: Any, mechanism: Mechanism, value, theta) -> TensorVariable:
    """Return the log marginal density at each value, by integrals and sums."""
    terms = []
    moving = any(known_value(pt.as_tensor(v)) is None for v in (value, *mechanism.parameters))
    for number, part in enumerate(single_parts(law, theta)):
        if part.is_atom:
            term = mechanism.logp(value, part.clipped(part.law))
        else:
            around = places(mechanism, value)
            counts = len(theta), len(around)
            op = marginal(law, number, mechanism, *counts, moving=moving)
            term = op.on(*around, value, *mechanism.parameters, *theta)
        terms.append(term if part.share is None else pt.log(part.share) + term)
    if len(terms) == 1:
        return terms[0]
    return pt.logsumexp(pt.stack(pt.broadcast_arrays(*terms), axis=-1), axis=-1)


@GENERAL_PAIRS.register("quadrature")
def general_pair(law: Any, mechanism: Mechanism) -> Pair:
    """Return the pair of any law and mechanism; decline noise that is not by entry."""
    if mechanism.statistic_ndim or mechanism.is_channel:
        raise Declined
    return GeneralPair(law, mechanism)
