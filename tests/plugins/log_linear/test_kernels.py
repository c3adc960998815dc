"""Moves of tables against the law of all tables of small models, counted over all full tables."""

from collections import defaultdict
from functools import cache
from itertools import combinations
from math import lgamma, log

import numpy as np
import pytest

from pymc_dp.kernels import jit, njit
from pymc_dp.plugins.log_linear.cliques import junction_tree
from pymc_dp.plugins.log_linear.kernels import (
    Release,
    extend,
    log_law,
    make_sweep,
)
from pymc_dp.plugins.log_linear.layout import (
    concentrations,
    draw_tables,
    draw_weights,
    fit_margins,
    make_layout,
    row_law,
)
from tests.agreement import values_follow

TOTAL = 2.4  # of the concentrations
MOST = 4  # rows, where their number varies


@jit
def gaussian(z, count, scale):
    return -0.5 * ((z - count) / scale) ** 2


@jit
def laplace(z, count, scale):
    return -abs(z - count) / scale


@jit
def bounded(z, count, scale):
    return gaussian(z, count, scale) if count <= MOST else -np.inf


class Model:
    """A small model, its released margins, and the law of all of its tables."""

    def __init__(self, levels, terms, margins, n, integrated, seed=0):
        rng = np.random.default_rng(seed)
        self.n, self.integrated = n, integrated
        self.tree = junction_tree(levels, terms)
        self.margins = [tuple(m) for m in margins]
        self.layout = make_layout(self.tree, self.margins)
        flat = concentrations(self.layout, TOTAL)
        cells = sum(map(self.tree.size, self.tree.cliques))
        self.theta = draw_weights(rng, self.tree, np.zeros(cells, dtype=int), flat + 2.0)
        self.weights = flat
        if not integrated:
            inside = [c for c in self.tree.separators if c]
            self.weights = np.concatenate([*self.theta, *map(self.theta_of, inside), flat])
        sizes = [self.tree.size(m) for m in self.margins]
        near = np.concatenate([rng.multinomial(n, np.full(s, 1 / s)) for s in sizes])
        self.z = near + rng.normal(0, 1.5, near.size)
        self.tables, self.log_prior = self.all_tables()

    def theta_of(self, columns):
        q = self.tree.clique_of(columns)
        return np.bincount(self.tree.cells_of(self.tree.cliques[q], columns), self.theta[q])

    def all_tables(self):
        """Add the probabilities of all full tables that have the same tables of the cliques."""
        columns = tuple(self.tree.levels)
        size = self.tree.size(columns)
        maps = [self.tree.cells_of(columns, c) for c in self.tree.cliques]
        lengths = [self.tree.size(c) for c in self.tree.cliques]
        inside = [s for s in self.tree.separators if s]
        row = np.prod([t[m] for t, m in zip(self.theta, maps, strict=True)], axis=0)
        for s in inside:
            row /= self.theta_of(s)[self.tree.cells_of(columns, s)]
        found = defaultdict(float)
        for bars in combinations(range(self.n + size - 1), size - 1):
            full = np.diff([-1, *bars, self.n + size - 1]) - 1
            parts = [
                np.bincount(m, full, k).astype(int) for m, k in zip(maps, lengths, strict=True)
            ]
            log_p = lgamma(self.n + 1) - sum(lgamma(c + 1) for c in full)
            if self.integrated:  # the mean of the product of rows' probabilities
                log_p += sum(map(rising, parts))
                log_p -= sum(rising(self.counts(full, s)) for s in inside)
                log_p -= self.tree.separators[1:].count(()) * rising(np.array([self.n]))
                log_p -= rising(np.array([self.n]))
            else:
                log_p += sum(c * log(p) for c, p in zip(full, row, strict=True))
            found[tuple(np.concatenate(parts).tolist())] += np.exp(log_p)
        assert sum(found.values()) == pytest.approx(1.0)
        return list(found), np.log(list(found.values()))

    def counts(self, full, columns):
        return np.bincount(self.tree.cells_of(tuple(self.tree.levels), columns), full)

    def posterior(self, noise, scale):
        first = self.layout.first[-1] - self.z.size
        log_p = self.log_prior.copy()
        for i, t in enumerate(self.tables):
            counts = extend(np.array(t), self.layout)[first:]
            log_p[i] += sum(noise(z, c, scale) for z, c in zip(self.z, counts, strict=True))
        p = np.exp(log_p - log_p.max())
        return p / p.sum()

    def move(self, rng, noise, scale, tables, times, lines, spread=None):
        """Move each row of tables by so many sweeps; rows come from a law with much dependence."""
        guide = [rng.choice([0, 2, 500], self.tree.size(m)) for m in self.margins]
        fitted = fit_margins(self.tree, dict(zip(self.margins, guide, strict=True)))
        noises = np.full((self.z.size, 1), scale)
        release = Release(self.z, noises, np.full(self.z.size, spread or scale))
        law = row_law(self.layout, fitted)
        rest = (self.layout, law, self.weights, self.integrated, release)
        make_many(noise)(rng, tables, times, lines, rest)


class Varying(Model):
    """The same where 0, ..., MOST rows are as likely, and their number is released, too."""

    def __init__(self, levels, terms, margins, n, integrated):
        super().__init__(levels, terms, margins, MOST, integrated)
        self.margins = [(), *self.margins]
        self.layout = make_layout(self.tree, self.margins, True)
        self.z = np.append(MOST - 1.4, self.z)
        self.weights = concentrations(self.layout, TOTAL)
        if not integrated:
            rest = [*map(self.theta_of, self.tree.separators), np.zeros(self.z.size)]
            self.weights = np.concatenate([*self.theta, *rest])
        each = [Model(levels, terms, margins, k, integrated) for k in range(MOST + 1)]
        self.tables = [t for model in each for t in model.tables]
        self.log_prior = np.concatenate([model.log_prior for model in each])


@cache
def make_many(noise):
    sweep = make_sweep(noise, 1)

    @njit(cache=True)
    def many(rng, tables, times, lines, rest):
        for i in range(tables.shape[0]):
            for _ in range(times):
                sweep(rng, tables[i], *rest, lines)

    return many


def rising(counts):
    """Log of the product of Gamma(n + a) / Gamma(a) over a table's cells."""
    a = TOTAL / counts.size
    return sum(lgamma(c + a) - lgamma(a) for c in counts)


def binary(columns):
    return dict.fromkeys(columns, 2)


MODELS = {
    "chain": (binary("abc"), ["ab", "bc"], ["ab", "bc"], 6),
    "triangle": (binary("abc"), ["ab", "bc", "ca"], ["ab", "bc", "ca"], 5),
    "parts": ({"a": 3, "b": 2, "c": 2}, ["ab"], ["ba", "c"], 4),
    "path": (binary("abcd"), ["ab", "bc", "cd"], ["ab", "bc", "dc"], 3),
    "star": (binary("abcd"), ["ab", "ac", "ad"], ["ab", "ca", "d"], 3),
}
EACH = pytest.mark.parametrize("name", MODELS)
WEIGHTS = pytest.mark.parametrize("integrated", [True, False], ids=["integrated", "given"])


@EACH
@WEIGHTS
def test_law_of_tables_is_that_of_the_rows(name, integrated):
    model = Model(*MODELS[name], integrated)
    logs = [log_law(np.array(t), model.layout, model.weights, integrated) for t in model.tables]
    assert np.ptp(np.array(logs) - model.log_prior) < 1e-10


@EACH
@WEIGHTS
@pytest.mark.parametrize("noise", [gaussian, laplace], ids=["gaussian", "laplace"])
@pytest.mark.parametrize("lines", [1, 12], ids=["resettle", "all"])
def test_draws_stay_exact(name, integrated, noise, lines):
    """Draws from the exact law have it still after moves, table by table; the first resettles."""
    model = Model(*MODELS[name], integrated)
    exact, rng = model.posterior(noise, 1.5), np.random.default_rng(3)
    tables = np.array(model.tables)[rng.choice(exact.size, 40_000, p=exact)]
    before = tables.copy()
    model.move(rng, noise, 1.5, tables, 12 // lines, lines)
    assert (tables != before).any(axis=1).mean() > 0.3
    values_follow(tables, model.tables, exact)


@EACH
@WEIGHTS
def test_people_come_and_go(name, integrated):
    """Exact draws stay exact, and their law of n given the tables is left out nowhere."""
    model = Varying(*MODELS[name], integrated)
    logs = [log_law(np.array(t), model.layout, model.weights, integrated) for t in model.tables]
    assert np.ptp(np.array(logs) - model.log_prior) < 1e-10
    exact, rng = model.posterior(bounded, 1.5), np.random.default_rng(3)
    tables = np.array(model.tables)[rng.choice(exact.size, 40_000, p=exact)]
    before = tables.copy()
    model.move(rng, bounded, 1.5, tables, 1, 12)
    first = model.layout.first[1]
    moved = tables[:, :first].sum(axis=1) != before[:, :first].sum(axis=1)
    assert moved.mean() > 0.2
    values_follow(tables, model.tables, exact)


@EACH
def test_chains_find_the_law(name):
    """Of all chains from one start, the last draws."""
    model = Model(*MODELS[name], True)
    rng = np.random.default_rng(4)
    tables = np.repeat([model.tables[0]], 3_000, axis=0)
    model.move(rng, gaussian, 1.5, tables, 1, 1500)
    values_follow(tables, model.tables, model.posterior(gaussian, 1.5))


@pytest.mark.parametrize(
    ("spread", "near", "total"),
    [(0.4, 310.0, TOTAL), (12.0, 310.0, TOTAL), (1e9, 310.0, TOTAL), (12.0, 9.0, 0.3)],
)
def test_long_lines(spread, near, total):
    """Two cells of a column with many people, by slices whose width is guessed well or not.

    The last has a peak at an empty cell and a long tail.
    """
    model = Model(binary("a"), ["a"], ["a"], 1, True)
    model.z, n, a = np.array([near, 520.0 - near]), 500, total / 2
    model.weights = concentrations(model.layout, total)
    y = np.arange(n + 1)
    log_p = gaussian.py_func(near, y, 12.0) + gaussian.py_func(520.0 - near, n - y, 12.0)
    log_p += [lgamma(c + a) - lgamma(c + 1) + lgamma(n - c + a) - lgamma(n - c + 1) for c in y]
    p = np.exp(log_p - log_p.max())
    rng = np.random.default_rng(5)
    first = rng.choice(y, 50_000, p=p / p.sum())
    tables = np.stack([first, n - first], axis=1)
    model.move(rng, gaussian, 12.0, tables, 1, 6, spread)
    values_follow(tables[:, 0], y, p)


def test_start_agrees_on_separators_and_is_near_the_margins():
    rng = np.random.default_rng(6)
    levels = {"a": 4, "b": 3, "c": 5, "d": 2}
    tree = junction_tree(levels, ["abd", "bc"])
    margins = {m: rng.uniform(50, 150, tree.size(m)) for m in [("a", "b"), ("c", "b")]}
    margins["c", "b"][0] = -7.0
    tables = draw_tables(rng, tree, fit_margins(tree, margins), 5000)
    layout = make_layout(tree, [("b",), ("a", "b")])
    parts = np.split(tables, np.cumsum([tree.size(c) for c in tree.cliques])[:-1])
    b = [np.bincount(tree.cells_of(c, ("b",)), t) for c, t in zip(tree.cliques, parts, strict=True)]
    np.testing.assert_array_equal(*b)
    assert tables.min() >= 0
    assert b[0].sum() == 5000
    ab = extend(tables, layout)[-12:]
    shares = margins["a", "b"] / margins["a", "b"].sum()
    given = ab / np.tile(b[0], 4) - shares / np.tile(shares.reshape(4, 3).sum(axis=0), 4)
    assert abs(given).max() < 0.06


@pytest.mark.parametrize("scale", [0.02, 1.0])
def test_weights_given_the_tables(scale):
    """Their means are (count + concentration) / total, of all cliques; also of tiny shapes."""
    rng = np.random.default_rng(7)
    tree = junction_tree({"a": 3, "b": 2, "c": 4}, ["ab", "bc"])
    a = concentrations(make_layout(tree, []), scale)
    tables = draw_tables(rng, tree, [np.full(6, 1 / 6), np.full(8, 1 / 8)], 7)
    draws = np.array([np.concatenate(draw_weights(rng, tree, tables, a)) for _ in range(20_000)])
    exact = (tables + a[:14]) / (7 + scale)
    error = np.sqrt(exact * (1 - exact) / (8 + scale) / len(draws))
    assert (abs(draws.mean(axis=0) - exact) < 4.5 * error).all()
    seldom = exact < 0.01
    np.testing.assert_allclose(
        draws.var(axis=0)[~seldom], (error**2 * len(draws))[~seldom], rtol=0.1
    )
    np.testing.assert_allclose(draws[:, :6].sum(axis=1), 1)
    first, second = draws[0, :6].reshape(3, 2), draws[0, 6:].reshape(2, 4)
    np.testing.assert_allclose(first.sum(axis=0), second.sum(axis=1))
