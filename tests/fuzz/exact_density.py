"""The density of releases without random numbers: records are enumerated, or integrated."""

import math

import numpy as np
import pymc as pm
from pytensor.graph.replace import graph_replace, vectorize_graph
from pytensor.graph.traversal import ancestors
from scipy import special

from pymc_dp.graphs.values import is_random, plain_function

MOST = 200_000  # tables or vectors of records that are enumerated
_DRAWS = 400
_NODES, _WEIGHTS = special.roots_legendre(16)


def exact_density(written, point, values, rng):
    """Return the log density of releases given a point, or None where it is not known.

    Records that are whole numbers are enumerated. Of others each release has to be of one record:
    these are integrated by quadrature. Laws whose masses do not add up to one are left alone.
    """
    latents = written.drawn
    between = {*ancestors(written.inputs, blockers=written.given)} - {*written.given}
    if {*filter(is_random, between)} != {*latents}:
        return None
    fresh = [v.type() for v in latents]
    logs = [pm.logp(v, value) for v, value in zip(latents, fresh, strict=True)]
    logs = graph_replace(logs, dict(zip(latents, fresh, strict=True)), strict=False)
    many = [v.type.clone(shape=(None, *v.type.shape))() for v in fresh]
    logs = vectorize_graph(logs, dict(zip(fresh, many, strict=True)))
    log_law = plain_function([*written.given, *many], logs)
    _, drawn = written.draw(rng, point, _DRAWS)

    def law_of(*records):
        own = [np.asarray(r, dtype=v.type.dtype) for r, v in zip(records, latents, strict=True)]
        return log_law(*point, *own)

    def noise_of(*records):
        own = [np.asarray(r, dtype=v.type.dtype) for r, v in zip(records, latents, strict=True)]
        rows = [np.broadcast_to(v, (len(own[0]), *np.shape(v))) for v in point]
        return written.logs(written.inputs_of(rows, own), values)

    if all(v.type.dtype.startswith(("int", "uint", "bool")) for v in latents):
        return _enumerated(law_of, noise_of, drawn, [v.owner.op.ndim_supp for v in latents])
    if len(latents) > 1 or latents[0].owner.op.ndim_supp:
        return None
    return _integrated(law_of, noise_of, drawn[0])


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
        values = values.reshape(-1, *[1] * len(shape))
        records = np.broadcast_to(values, (len(values), *shape))
        return law_of(records)[0].reshape(len(values), -1), noise_of(records)

    for j, k in enumerate(of):
        if k < 0:
            alone = np.broadcast_to(logs[0], logs.shape)
            found += logs[0, j]
        else:
            _, alone = alike(drawn.reshape(_DRAWS, -1)[:, k])
        if not np.array_equal(alone[:, j], logs[:, j], equal_nan=True):
            return None  # of several records, which the first of the draws does not show
    for k in range(math.prod(shape)):
        own = drawn.reshape(_DRAWS, -1)[:, k]

        def of_one(x, entries=of == k, k=k):
            law, logs = alike(x.ravel())
            total = np.stack([law[:, k], law[:, k] + logs[:, entries].sum(axis=1)])
            return np.nan_to_num(total, nan=-np.inf).reshape(2, *x.shape)

        mass, density = (_log_integral(lambda x, i=i: of_one(x)[i], own) for i in (0, 1))
        if not abs(mass) < 1e-8:
            return None
        found += density
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
    edges = np.unique([*edges, *(edges[np.argmax(log(edges))] + wide)])

    def rule(a, b):
        half = (b - a) / 2
        x = ((a + b) / 2)[:, None] + half[:, None] * _NODES
        return special.logsumexp(log(x), b=half[:, None] * _WEIGHTS, axis=-1)

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
