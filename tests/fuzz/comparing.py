"""What a collapsed model says of its releases, beside what it should say.

Two estimates of a log density are compared by their standard errors. Both are means over thousands
of effective draws, or exact: at five standard errors one comparison in a million would differ by
chance, and what differs is looked at again with more draws and other random numbers. What was found
without random numbers has to agree to 1e-6.
"""

import re

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
DOUBTFUL = 0.2  # of our own density's standard error, where it is drawn: nothing can be said


def differ(found, truth, normalised=False):
    """Return whether log densities differ, by more than a constant unless they are `normalised`.

    Each is a list of values and their standard errors. None where that cannot be said.
    """
    values, errors = np.array(truth).T
    own, own_errors = np.array(found).T
    # NaN says that a density was not found: no number, but none that is wrong.
    known = (errors < ENOUGH) & (own_errors < DOUBTFUL) & ~np.isnan(own)
    if np.any(known & np.isinf(own)):
        return True
    if known.sum() < 2 - normalised:
        return None
    change, error = (own - values)[known], np.hypot(errors, own_errors)[known]
    if not normalised:
        change, error = change - change[0], np.hypot(error, error[0])
    return bool(np.any(np.abs(change) > SIGMAS * error + 1e-6))


def kind(message):
    """Return what is alike in messages about other models."""
    return re.sub(r"'[^']*'|`[^`]*`|[-\d.]+", "_", message)[:60]


class Densities:
    """The density of all releases of a model without records, given its parameters.

    Latents of a law of PyTensor's are drawn from it, those that a release is a function of row by
    row in the coordinates that a sampler moves them in, which are near Normal: the mean of weights
    by a Student law is that of the density, whatever they are.
    """

    def __init__(self, model, names):
        parameters = [model[name] for name in names]
        self.latents = [rv for rv in model.free_RVs if rv not in parameters]
        self.names = names
        batches, given, terms = [], {}, []
        for rv in self.latents:
            if isinstance(rv.owner.op, RowLatentsRV):
                u, transform = pt.vector(dtype="float64"), model.rvs_to_transforms[rv]
                inputs = rv.owner.inputs
                given[rv] = transform.backward(u, *inputs) if transform else u
                jacobian = transform.log_jac_det(u, *inputs) if transform else 0.0
                terms.append((pm.logp(rv, given[rv]) + jacobian).reshape((1,)))
            else:
                u = given[rv] = rv.type()
            batches.append(u)
        self.rows = len(terms)
        terms += [pm.logp(rv, model.rvs_to_values[rv]).ravel() for rv in model.observed_RVs]
        given |= {rv: model.rvs_to_values[rv] for rv in model.observed_RVs}
        terms = graph_replace(terms, given, strict=False)
        found = pt.concatenate([t.astype("float64") for t in terms])
        if batches:
            many = [pt.TensorType(u.dtype, (None, *u.type.shape))() for u in batches]
            found = vectorize_graph(found, dict(zip(batches, many, strict=True)))
            batches = many
        options = {"on_unused_input": "ignore"}
        self.logp = pytensor.function([*parameters, *batches], found, **options)
        laws = [
            p
            for rv in self.latents
            if not isinstance(rv.owner.op, RowLatentsRV)
            for p in rv.owner.op.dist_params(rv.owner)
        ]
        self.laws = pytensor.function(parameters, laws, **options)
        start = model.initial_point()
        self.shapes = [np.shape(start[model.rvs_to_values[rv].name]) for rv in self.latents]

    def draw(self, rng, point, size):
        """Draw the latents; return them, and the log of what rows of them were drawn from."""
        numbers, drawn, log = iter(self.laws(*point)), [], np.zeros(size)
        for rv, shape in zip(self.latents, self.shapes, strict=True):
            op = rv.owner.op
            if isinstance(op, RowLatentsRV):
                drawn.append(rng.standard_t(6, (size, *shape)))
                log += stats.t.logpdf(drawn[-1], 6).sum(-1)
            else:
                own = [next(numbers) for _ in op.dist_params(rv.owner)]
                value = op.rng_fn(rng, *own, (size, *shape))
                drawn.append(np.asarray(value, dtype=rv.dtype))
        return drawn, log

    def parts(self, rng, point):
        """Return sets of entries: those of one set are of the same latents, others of none.

        By changing one latent after the other.
        """
        (drawn, _) = self.draw(rng, point, 2)
        first, other = ([d[k] for d in drawn] for k in range(2))
        rows = [first]
        for i, value in enumerate(first):
            for at in np.ndindex(value.shape):
                changed = np.array(value)
                changed[at] = other[i][at]
                rows.append([*first[:i], changed, *first[i + 1 :]])
        logs = self.logp(*point, *map(np.array, zip(*rows, strict=True)))
        moved = np.nan_to_num(logs[1:]) != np.nan_to_num(logs[0])
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
