"""What a collapsed model says of its releases, beside what it should say.

Two estimates of a log density are compared by their standard errors. Both are means over thousands
of effective draws, or exact: at five standard errors one comparison in a million would differ by
chance, and what differs is looked at again with more draws and other random numbers. What was found
without random numbers has to agree to 1e-6.
"""

import re
from collections import Counter

import numpy as np
import pymc as pm
import pytensor
import pytensor.tensor as pt
from pytensor.graph.replace import graph_replace, vectorize_graph
from scipy import stats

from pymc_dp.laws.moments.latents import RowLatentsRV
from tests.fuzz.grammar import ENOUGH, average

REFUSALS = (ValueError, NotImplementedError)
SIGMAS = 5.0
_OTHERS = 5  # values of a latent that are tried
DOUBTFUL = 0.2  # of our own density's standard error, where it is drawn: nothing can be said


def differ(found, truth, normalised=False):
    """Return whether log densities differ, by more than a constant unless they are `normalised`.

    Each is a list of values and their standard errors. None where that cannot be said.
    """
    values, errors = np.array(truth).T
    own, own_errors = np.array(found).T
    # NaN says that a density was not found: no number, but none that is wrong.
    known = (errors < ENOUGH) & (own_errors < DOUBTFUL) & ~np.isnan(own)
    if np.any(known & (np.isinf(own) != np.isinf(values))):
        return True
    known &= np.isfinite(own)
    if known.sum() < 2 - normalised:
        return None
    change, error = own[known] - values[known], np.hypot(errors, own_errors)[known]
    if not normalised:
        change, error = change - change[0], np.hypot(error, error[0])
    return bool(np.any(np.abs(change) > SIGMAS * error + 1e-6))


def kind(message):
    """Return what is alike in messages about other models."""
    return re.sub(r"'[^']*'|`[^`]*`|[-\d.]+", "_", message)[:60]


def fault(check, spec, draws):
    """Return what is wrong with a model, or None."""
    try:
        check(spec, Counter(), draws)
    except Exception as error:  # whatever it is, a user would see it
        return error
    return None


def fuzz(grammar, check, first, count, draws):
    """Check models with these seeds; the first that fails is made as simple as it can be."""
    outcomes = Counter()
    for number in range(first, first + count):
        spec = grammar.random_spec(number)
        try:
            check(spec, outcomes, draws)
        except Exception:
            while smaller := next(
                (s for s in grammar.simpler(spec) if fault(check, s, draws)), None
            ):
                spec = smaller
            error = fault(check, spec, draws)
            raise AssertionError(f"seed {number}, at its simplest {spec}") from error
    return outcomes


class Densities:
    """The density of all releases of a model without records, given its parameters.

    Latents of a law of PyTensor's are drawn from it. Those that a release is a function of row by
    row are drawn from their law, Normal and logarithms of Gamma variables, and as often by a
    Student law in the coordinates that a sampler moves them in: the mean of the weights by what
    they were drawn from is the density, whatever these coordinates are.
    """

    def __init__(self, model, names):
        parameters = [model[name] for name in names]
        self.latents = [rv for rv in model.free_RVs if rv not in parameters]
        self.names = names
        many = [pt.TensorType(rv.dtype, (None, *rv.type.shape))() for rv in self.latents]
        rows, options = [], {"on_unused_input": "ignore"}
        self.rows = [rv for rv in self.latents if isinstance(rv.owner.op, RowLatentsRV)]
        given = {rv: rv.type() for rv in self.latents}
        for rv in self.rows:
            rows.append(pm.logp(rv, given[rv]).reshape((1,)))
            transform = model.rvs_to_transforms[rv]
            u, inputs, batch = rv.type(), rv.owner.inputs, many[self.latents.index(rv)]
            there, back, jacobian = given[rv], u, pt.zeros(())
            if transform is not None:
                there, back = (
                    f(v, *inputs)
                    for f, v in ((transform.forward, given[rv]), (transform.backward, u))
                )
                jacobian = transform.log_jac_det(u, *inputs)
            self.back, self.there = (
                pytensor.function([*parameters, v], vectorize_graph(graphs, {one: v}), **options)
                for one, graphs, v in (
                    (u, [back, jacobian], batch.type()),
                    (given[rv], [there, there.sum()], batch.type()),
                )
            )
        rows += [pm.logp(rv, model.rvs_to_values[rv]).ravel() for rv in model.observed_RVs]
        values = given | {rv: model.rvs_to_values[rv] for rv in model.observed_RVs}
        rows = graph_replace(rows, values, strict=False)
        found = pt.concatenate([t.astype("float64") for t in rows])
        if many:
            batches = dict(zip(given.values(), many, strict=True))
            found = vectorize_graph(found, batches)
        self.logp = pytensor.function([*parameters, *many], found, **options)
        laws = [
            p
            for rv in self.latents
            if rv not in self.rows
            for p in rv.owner.op.dist_params(rv.owner)
        ]
        self.laws = pytensor.function(parameters, laws, **options)
        start = model.initial_point()
        self.shapes = [np.shape(start[model.rvs_to_values[rv].name]) for rv in self.latents]

    def draw(self, rng, point, size):
        """Draw the latents; return them, and the log of what rows of them were drawn from."""
        numbers, drawn, log = iter(self.laws(*point)), [], np.zeros(size)
        for rv, shape in zip(self.latents, self.shapes, strict=True):
            if rv in self.rows:
                value, log = self._draw_rows(rng, point, rv.owner.op.alpha, (size, *shape))
            else:
                op = rv.owner.op
                own = (next(numbers) for _ in op.dist_params(rv.owner))
                value = op.rng_fn(rng, *own, (size, *shape[: len(shape) - op.ndim_supp]))
            drawn.append(np.asarray(value, dtype=rv.dtype))
        return drawn, log

    def _draw_rows(self, rng, point, alpha, shape):
        size, k = shape[0], shape[-1] - alpha.shape[-1]
        root = np.sqrt(alpha)
        value = rng.normal(size=shape)
        value[..., k:] = root * np.log(rng.gamma(alpha, size=(size, *alpha.shape)) / alpha)
        value[::2] = self.back(*point, rng.standard_t(6, value[::2].shape))[0]
        u, _ = self.there(*point, value)
        _, jacobian = self.back(*point, u)
        gammas = stats.loggamma.logpdf(value[..., k:] / root + np.log(alpha), alpha) - np.log(root)
        own = np.concatenate([stats.norm.logpdf(value[..., :k]), gammas], axis=-1)
        own = own.reshape(size, -1).sum(-1)
        student = stats.t.logpdf(u, 6).reshape(size, -1).sum(-1) - jacobian
        return value, np.logaddexp(student, own) - np.log(2)

    def parts(self, rng, point):
        """Return sets of entries: those of one set are of the same latents, others of none.

        By changing one latent after the other.
        """
        # Counts are often equal in two draws, and noise as likely on both sides of a value.
        (drawn, _) = self.draw(rng, point, 100)
        # What has no density hides what it depends on.
        start = np.argmax(np.isfinite(self.logp(*point, *drawn)).sum(axis=1))
        first = [d[start] for d in drawn]
        rows, of = [first], []
        for i, value in enumerate(first):
            core = getattr(self.latents[i].owner.op, "ndim_supp", 0)  # those are not independent
            for at in np.ndindex(value.shape):
                others = np.unique(drawn[i][(slice(None), *at)])
                for other in others[others != value[at]][:_OTHERS]:
                    changed = np.array(value)
                    changed[at] = other
                    rows.append([*first[:i], changed, *first[i + 1 :]])
                    of.append((i, at[: len(at) - core]))
        logs = self.logp(*point, *map(np.array, zip(*rows, strict=True)))
        changes = np.nan_to_num(logs[1:]) != np.nan_to_num(logs[0])
        moved = [changes[[entry == one for one in of]].any(axis=0) for entry in dict.fromkeys(of)]
        parts = []
        for used in [*moved, *np.eye(logs.shape[1], dtype=bool)]:
            apart = [p for p in parts if not (p & used).any()]
            together = [p for p in parts if (p & used).any()]
            parts = [*apart, np.any([used, *together], axis=0)]
        return [p for p in parts if p.any()]

    def at(self, point, rng, draws):
        """Return the log density of all releases at a point, and its standard error."""
        point = [point[name] for name in self.names]
        if not self.latents:
            return float(self.logp(*point).sum()), 0.0
        drawn, log = self.draw(rng, point, draws)
        logs = self.logp(*point, *drawn)
        parts = [np.ones(logs.shape[1], dtype=bool)] if self.rows else self.parts(rng, point)
        found = np.array([average(logs[:, own].sum(-1) - log) for own in parts])
        return found[:, 0].sum(), np.sqrt((found[:, 1] ** 2).sum())
