"""What is said of a random model: refused by name, right, undecided, or wrong."""

import re
import warnings
from collections import Counter
from pathlib import Path

import numpy as np
import pymc as pm
import pytensor
from pymc.logprob.utils import ParameterValueError
from pytensor.graph.basic import Constant

import pymc_dp as dp
from pymc_dp.graphs.values import nearest_rvs
from pymc_dp.ladder.check import Releases
from pymc_dp.reading.sums import additive
from tests.fuzz.exact_density import exact_density
from tests.fuzz.models import CHANGED, Choices, ReadOtherwise, build, simplest, write
from tests.fuzz.stepping import stepped
from tests.reading.sums.test_reader import evaluate, near_means, reassemble

REFUSALS = (ValueError, NotImplementedError)
OF_THE_PACKAGE = (*REFUSALS, TypeError)
NAMES = re.compile(r"'(z\d|x\d?|[ynqbs]|theta|total|rate|share|_?[a-z]+_\w+|[wg]data|potential)\b")
NOTHING = (
    "there are no records to integrate out", "there is nothing to collapse", "no step applies",
)  # fmt: skip
BAD = "wrong", "crash", "unnamed", "failed"
SIGMAS = 5.0  # at which one comparison in a million would differ by chance
ROUNDING = 1e-5  # of quadrature where densities jump near the end of a panel
STEPS_EVERY = 6  # models, of which one has its steps tried
TELLS = 0.25  # an error of a log density, above which nothing is said


def kind(message):
    """Return what is alike in messages about other models."""
    return re.sub(r"'[^']*'|`[^`]*`|[-\d.]+", "_", message)[:60]


def judge(text, seed, seconds=0.3):
    """Return what becomes of a text: a word, and what is said."""
    try:
        return _judge(text, seed, seconds)
    except Exception as error:  # of the oracle
        return "failed", f"{type(error).__name__}: {str(error)[:300]}"


def _judge(text, seed, seconds):
    flags = pytensor.config.change_flags(mode="FAST_COMPILE")
    with flags, np.errstate(all="ignore"), warnings.catch_warnings(action="ignore"):
        try:
            model, point, released = build(text, seed)
        except ReadOtherwise as error:
            return "wrong", str(error)[:300]
        except Exception as error:
            return "invalid", kind(str(error))
        for name, s, mechanism, z in released:
            try:
                with model:
                    dp.PrivateObservation(name, s, mechanism, observed=z)
            except Exception as error:
                return _refused(error)
        said = [sums_read(model, released, point)]
        for rung in ("marginal", "statistics"):
            try:
                alone = "x" not in model.named_vars and rung == "marginal"
                ours = model if alone else dp.collapse(model, rung)
            except Exception as error:
                found = _refused(error)
            else:
                found = compare(model, ours, point, seed, seconds)
                if found[0] == "right" and (before := public_data(model, ours)):
                    said.append((rung, *found))
                    set_data((model, ours), {k: CHANGED[k](v) for k, v in before.items()})
                    found = compare(model, ours, point, seed, seconds)
                    set_data((model, ours), before)
                if rung == "statistics" and found[0] not in BAD and not seed % STEPS_EVERY:
                    said += steps(ours, seed, rung)
            said.append((rung, *found))
        refused = all(word == "refused" for _, word, _ in said[1:])
        if not seed % (STEPS_EVERY // 2 if refused else STEPS_EVERY):
            said += steps(model, seed, "records")
        for word in (*BAD, "right", "undecided"):
            for what, found, more in said:
                if found == word:
                    return word, f"{what}: {more}" if word in BAD else said
        return "refused", said[1][2]


def public_data(model, ours):
    """Return the public data of two models that can be changed: all of it, or nothing."""
    names = [name for name in CHANGED if name in model.named_vars]
    if any(isinstance(ours.named_vars.get(name), Constant) for name in names):
        return {}
    return {name: model[name].get_value() for name in names}


def set_data(models, values):
    """Give models these public data, where they have it."""
    for model in models:
        for name in {*values} & {*model.named_vars}:
            model.set_data(name, values[name])


def sums_read(model, released, point):
    """Compare what the sweep over records reads of the statistics with their numbers."""
    x = model.named_vars.get("x")
    if x not in model.free_RVs or not np.ndim(point["x"]):
        return "sums", "none", ""
    n, values = len(point["x"]), {x: np.asarray(point["x"])}
    for name, s, _, _ in released:
        if nearest_rvs([s]) != [x]:
            continue
        try:
            read = additive(s, {x: n})
            found = reassemble(read, values, near_means(read, values), n)
        except REFUSALS:
            continue
        except Exception as error:
            return "sums", "crash", f"{name}: {type(error).__name__}: {str(error)[:200]}"
        direct = evaluate(s, {x: pytensor.shared(values[x], shape=x.type.shape)})
        if not np.allclose(np.ravel(found), np.ravel(direct), 1e-6, 1e-6, equal_nan=True):
            return "sums", "wrong", f"{name}: read as {found}, and is {direct}"
    return "sums", "read", ""


def steps(model, seed, what):
    """Return what becomes of the steps of a model, one after the other."""
    try:
        made = dp.steps(model)
    except Exception as error:
        return [(f"steps of {what}", *_refused(error))]
    try:
        found = stepped(model, made, seed)
    except Exception as error:
        return [(f"steps of {what}", "crash", f"{type(error).__name__}: {str(error)[:300]}")]
    return [(f"steps of {what}", word, name) for word, name in found]


def _refused(error):
    if isinstance(error, ParameterValueError):
        return "invalid", kind(str(error))
    if not isinstance(error, OF_THE_PACKAGE):
        return "crash", f"{type(error).__name__}: {str(error)[:300]}"
    named = NAMES.search(str(error)) or str(error).startswith(NOTHING)
    return ("refused", kind(str(error))) if named else ("unnamed", str(error)[:300])


def compare(model, ours, point, seed, seconds):
    """Compare the density of the releases at points with Monte Carlo."""
    names = [rv.name for rv in ours.free_RVs if rv.name in model.named_vars]
    rng = np.random.default_rng([seed, 7])
    try:
        density = Releases(ours, names, written=False)
        own_values = [density.observed()]  # some rungs have releases in one
    except Exception as error:
        return "crash", f"ours: {type(error).__name__}: {str(error)[:200]}"
    written = Releases(model, names, written=True)
    observed = written.observed()
    variables = [model[name] for name in names]
    points = [[point[name] for name in names]]
    points += [pm.draw(variables, random_seed=rng) for _ in range(2 if names else 0)]
    if written.is_drawn and {*names} == {rv.name for rv in model.free_RVs}:
        return "undecided", "nothing is integrated out"
    exactly, known = exact_density(written) if written.is_drawn else None, []
    for at in points:
        exact = exactly(at, observed, rng) if exactly else None
        for more in (1, 20):
            try:
                own, truth, error = beside(
                    density, own_values, written, [observed], at, rng, more * seconds, exact
                )
            except Exception as error:
                return "crash", f"density: {type(error).__name__}: {str(error)[:200]}"
            if np.isnan(own) or not error < TELLS:  # NaN: dp.sample says that there is no density
                break
            if own == truth or abs(own - truth) <= SIGMAS * error + ROUNDING * (1 + abs(truth)):
                known.append("exact" if exact is not None else "drawn")
                break
        else:
            where = dict(zip(names, at, strict=True))
            return "wrong", f"{own} and {truth} +- {error:.2g} at {where}"
    return ("right", "".join({*known})) if known else ("undecided", "")


def beside(density, own_values, written, values, at, rng, seconds, exact=None):
    """Return a log density, that of what is written or the `exact` one, and their error."""
    own, error = density.log_density(at, own_values, rng, seconds, exact)
    if exact is not None:
        return own, exact, error
    truth, other = written.log_density(at, values, rng, seconds, own)
    return own, truth, np.hypot(error, other)


def run(first, last, path=None):
    """Judge models of these seeds; return how many there are of each word, and the bad ones."""
    counts, bad = Counter(), []
    for seed in range(first, last):
        text = write(Choices(seed))
        word, said = judge(text, seed)
        counts[word] += 1
        line = f"{seed} {word} {said}"
        if word in BAD:
            kept = word
            text = simplest(seed, lambda text, seed: judge(text, seed)[0] == kept)  # noqa: B023
            line += "\n    " + text.replace("\n", "\n    ")
            bad.append(line)
        if path is not None:
            with Path(path).open("a", encoding="utf-8") as file:
                print(line, file=file)
    return counts, bad
