"""Arithmetic of scalars that are computed from sums: linear forms, built up to a scalar graph."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

import numpy as np
from pytensor import scalar as ps
from pytensor.graph.basic import Constant, Variable
from pytensor.graph.op import Op
from pytensor.scalar.basic import ScalarVariable
from pytensor.tensor.elemwise import Elemwise

from pymc_dp.graphs.declined import Declined
from pymc_dp.graphs.values import keeps_values

_ROUNDING = 1e-14


def refusal(op: Op) -> Declined:
    """Return the refusal that names an op."""
    op = getattr(op, "core_op", op)
    name = type(op).__name__
    if isinstance(op, Elemwise):
        op = op.scalar_op
    if isinstance(op, ps.ScalarOp):
        name = op.name or type(op).__name__.lower()
    return Declined(f"`{name}` makes it something else than a function of sums")


def or_refusal(op: Op) -> Declined:
    """Return the refusal of an op that adds up truth values, where a sum means `or`."""
    return Declined(
        f"`{type(op).__name__}` adds up truth values, which means or: count them as numbers, "
        f"(x > 0).astype('int64') say",
        near=2,
    )


@dataclass(frozen=True)
class Form:
    """A constant plus multiples of symbols, which stand for values that are not known yet.

    Sums and differences are formed exactly: :math:`c - (S/n + c)` is :math:`-S/n`, however large c.
    """

    constant: float = 0.0
    weights: dict[ScalarVariable, float] = field(default_factory=dict)

    def scaled(self, factor: float) -> Form:
        """Return a multiple."""
        if factor == 0.0:
            return Form()
        return Form(factor * self.constant, {s: factor * w for s, w in self.weights.items()})


def added(forms: Iterable[Form]) -> Form:
    """Return the sum of forms."""
    constant, weights = 0.0, dict[ScalarVariable, float]()
    for form in forms:
        constant += form.constant
        for symbol, w in form.weights.items():
            before = weights.get(symbol, 0.0)
            weights[symbol] = before + w
            if abs(before + w) <= _ROUNDING * abs(w):
                del weights[symbol]
    return Form(constant, weights)


@dataclass
class Scalars:
    """Makes symbols for scalars that are not linear forms, each symbol once."""

    made: dict[tuple, ScalarVariable] = field(default_factory=dict)

    def _symbol(self, op: ps.ScalarOp, arguments: Sequence[Variable]) -> ScalarVariable:
        return node(self.made, op, arguments)

    def graph(self, form: Form) -> ScalarVariable | float:
        """Return a form as a graph, or as a number."""
        if not form.weights:
            return form.constant
        terms = [
            s if w == 1.0 else self._symbol(ps.mul, [ps.constant(w, dtype="float64"), s])
            for s, w in form.weights.items()
        ]
        if form.constant != 0.0:
            terms.append(ps.constant(form.constant, dtype="float64"))
        return terms[0] if len(terms) == 1 else self._symbol(ps.add, terms)

    def product(self, a: Form, b: Form) -> Form:
        """Return a product of two forms."""
        if not a.weights:
            return b.scaled(a.constant)
        if not b.weights:
            return a.scaled(b.constant)
        return Form(0.0, {self._symbol(ps.mul, [self.graph(a), self.graph(b)]): 1.0})

    def apply(self, op: ps.ScalarOp, forms: Sequence[Form], dtypes: Sequence[str]) -> Form:
        """Apply a scalar op; `dtypes` are those of the operands."""
        match op:
            case ps.Identity():
                return forms[0]
            case ps.Add() if set(dtypes) != {"bool"}:  # for truth values it means `or`
                return added(forms)
            case ps.Sub():
                return added([forms[0], forms[1].scaled(-1.0)])
            case ps.Neg():
                return forms[0].scaled(-1.0)
            case ps.Mul():
                total = forms[0]
                for form in forms[1:]:
                    total = self.product(total, form)
                return total
            case ps.TrueDiv() if not forms[1].weights and forms[1].constant != 0.0:
                return forms[0].scaled(1.0 / forms[1].constant)
            case ps.Second():
                return forms[1]
            case ps.Cast() if keeps_values(op, dtypes[0]):
                return forms[0]
        op = ps.or_ if isinstance(op, ps.Add) else op
        arguments = [self._typed(f, dtype) for f, dtype in zip(forms, dtypes, strict=True)]
        if all(isinstance(a, Constant) for a in arguments):
            with np.errstate(all="ignore"):
                return Form(float(op.impl(*(a.data[()] for a in arguments))))
        try:
            return Form(0.0, {self._symbol(op, arguments): 1.0})
        except (TypeError, NotImplementedError):  # an op of integers alone
            raise refusal(op) from None

    def _typed(self, form: Form, dtype: str) -> ScalarVariable:
        """Return a graph; conditions stay truth values, for `switch` and `and`."""
        graph = self.graph(form)
        kind = "bool" if dtype == "bool" else "float64"
        if not isinstance(graph, Variable):
            return ps.constant(bool(graph) if kind == "bool" else graph, dtype=kind)
        if kind == "bool" and graph.type.dtype != "bool":
            return self._symbol(ps.Cast(ps.bool), [graph])
        return graph


def node(made: dict[tuple, Variable], op: Op, arguments: Sequence[Variable]) -> Variable:
    """Apply an op, only once to the same arguments, in any order if it commutes."""
    keys = [a.signature() if isinstance(a, Constant) else a for a in arguments]
    commutes = getattr(getattr(op, "scalar_op", op), "commutative", False)
    key = (op, frozenset(_counted(keys)) if commutes else tuple(keys))
    if key not in made:
        made[key] = op(*arguments)
    return made[key]


def _counted(keys: Sequence) -> list[tuple]:
    return [(key, keys.count(key)) for key in keys]
