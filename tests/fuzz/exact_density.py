"""The density of releases without random numbers: records are enumerated, or integrated."""

import math

import numpy as np
import pymc as pm
from pytensor.graph.replace import graph_replace, vectorize_graph
from pytensor.graph.traversal import ancestors
from scipy import special

from pymc_dp.graphs.values import is_random, plain_function
from pymc_dp.ladder.check.vectorized import many
from tests.fuzz.exact import panels

MOST = 200_000  # tables or vectors of records that are enumerated
_DRAWS = 400


def exact_density(written):
    """Return the function of a point, values and generator that is the log density, or None.

    Records that are whole numbers are enumerated. Of others each release has to be of one record:
    these are integrated by quadrature. The function returns None where that does not apply, or the
    masses of the laws do not add up to one.
    """
    latents = written.drawn
    between = {*ancestors(written.inputs, blockers=written.given)} - {*written.given}
    if {*filter(is_random, between)} != {*latents}:
        return None
    fresh = [v.type() for v in latents]
    try:
        logs = [pm.logp(v, value) for v, value in zip(latents, fresh, strict=True)]
    except NotImplementedError:
        return None
    logs = graph_replace(logs, dict(zip(latents, fresh, strict=True)), strict=False)
    batches = [many(v) for v in fresh]
    logs = vectorize_graph(logs, dict(zip(fresh, batches, strict=True)))
    log_law = plain_function([*written.given, *batches], logs)
    cores = [v.owner.op.ndim_supp for v in latents]
    whole = all(v.type.dtype.startswith(("int", "uint", "bool")) for v in latents)

    def found(point, values, rng):
        def typed(records):
            return [
                np.asarray(r, dtype=v.type.dtype) for r, v in zip(records, latents, strict=True)
            ]

        def law_of(*records):
            return log_law(*point, *typed(records))

        def noise_of(*records):
            rows = [np.broadcast_to(v, (len(records[0]), *np.shape(v))) for v in point]
            return written.logs(written.inputs_of(rows, typed(records)), values)

        _, drawn = written.draw(rng, point, _DRAWS)
        if whole:
            return _enumerated(law_of, noise_of, drawn, cores)
        if len(latents) > 1 or cores[0]:
            return None
        return _integrated(law_of, noise_of, drawn[0])

    return found


def _enumerated(law_of, noise_of, drawn, cores):
    supports = []
    first = [d[0] for d in drawn]
    for i, (values, core) in enumerate(zip(drawn, cores, strict=True)):
        tried = np.arange(values.sum(-1).max() + 1 if core else values.max() + 40)
        for at in np.ndindex(values.shape[1:]):
            if core:
                supports.append(tried)
                continue
            changed = [np.repeat(f[None], len(tried), axis=0) for f in first]
            changed[i][(slice(None), *at)] = tried
            log = _total(law_of(*changed))
            supports.append(tried[np.nan_to_num(log, nan=-np.inf) > -60])
    if math.prod(map(len, supports)) > MOST:
        return None
    rows = np.stack(np.meshgrid(*supports, indexing="ij"), axis=-1).reshape(-1, len(supports))
    ends = np.cumsum([f.size for f in first])[:-1]
    records = [r.reshape(-1, *f.shape) for r, f in zip(np.split(rows, ends, 1), first, strict=True)]
    law = np.nan_to_num(_total(law_of(*records)), nan=-np.inf)
    if abs(special.logsumexp(law)) > 1e-9:
        return None
    possible = law > -np.inf
    noise = noise_of(*(r[possible] for r in records)).sum(axis=1)
    return special.logsumexp(law[possible] + np.nan_to_num(noise, nan=-np.inf))


def _total(logs):
    """Return the sum of log densities of all entries, a number for each draw."""
    return sum(own.reshape(len(own), -1).sum(axis=1) for own in logs)


def _integrated(law_of, noise_of, drawn):
    shape = drawn.shape[1:]
    if law_of(drawn)[0].shape != drawn.shape:
        return None
    logs = noise_of(drawn)
    found, of = 0.0, np.full(logs.shape[1], -1)  # the record that an entry is of
    for k, at in enumerate(np.ndindex(shape)):
        changed = np.repeat(drawn[:1], len(drawn), axis=0)
        changed[(slice(None), *at)] = drawn[(slice(None), *at)]
        own = noise_of(changed)
        uses = ((own != own[0]) & (own == own)).any(axis=0)
        if (of[uses] >= 0).any():
            return None
        of[uses] = k

    def alike(values):
        values = np.reshape(values, (-1, *[1] * len(shape)))
        return np.broadcast_to(values, (len(values), *shape))

    for j, k in enumerate(of):
        if k < 0:
            alone = np.broadcast_to(logs[0], logs.shape)
            found += logs[0, j]
        else:
            alone = noise_of(alike(drawn.reshape(_DRAWS, -1)[:, k]))
        if not np.array_equal(alone[:, j], logs[:, j], equal_nan=True):
            return None  # of several records, which the first of the draws does not show
    for k in range(math.prod(shape)):
        own = drawn.reshape(_DRAWS, -1)[:, k]

        def law(x, k=k):
            return law_of(alike(x))[0].reshape(x.size, -1)[:, k].reshape(x.shape)

        def joint(x, law=law, entries=of == k):
            return law(x) + noise_of(alike(x))[:, entries].sum(axis=1).reshape(x.shape)

        if not abs(_log_integral(law, own)) < 1e-8:
            return None
        found += _log_integral(joint, own)
    return found


def _log_integral(log, draws):
    """Log of the integral of an exponential; panels are halved until halves agree with them."""
    spread = np.ptp(np.quantile(draws, [0.25, 0.75])) or 1.0
    wide = spread * 10.0 ** np.arange(-8, 9)
    wide = np.concatenate([-wide, [0.0], wide])
    around = np.add.outer([np.median(draws), -1.0, 0.0, 1.0, 2.0], wide).ravel()
    quantiles, tiny = np.quantile(draws, np.linspace(0, 1, 21)), 10.0 ** np.arange(-300, -8, 10)
    edges = np.concatenate([quantiles, around, tiny])
    edges = np.unique(edges)
    edges = np.unique([*edges, *(edges[np.argmax(np.nan_to_num(log(edges), nan=-np.inf))] + wide)])

    def rule(a, b):
        x, w = panels(np.stack([a, b], axis=-1), 16)
        return special.logsumexp(np.nan_to_num(log(x), nan=-np.inf), b=w, axis=-1)

    a, b, done = edges[:-1], edges[1:], np.array([])
    for _ in range(60):
        middle = (a + b) / 2
        halves = np.logaddexp(rule(a, middle), rule(middle, b))
        total = special.logsumexp([*done, *halves])
        bad = np.abs(np.exp(rule(a, b) - total) - np.exp(halves - total)) > 1e-10
        bad &= (a < middle) & (middle < b)
        done = np.append(done, halves[~bad])
        if not bad.any():
            return total
        a, b = np.append(a[bad], middle[bad]), np.append(middle[bad], b[bad])
    return np.nan
