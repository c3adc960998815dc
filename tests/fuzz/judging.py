"""What is said of a random model: refused by name, right, undecided, or wrong."""

import re
import warnings
from collections import Counter
from pathlib import Path

import numpy as np
import pymc as pm
import pytensor
from pymc.logprob.utils import ParameterValueError

import pymc_dp as dp
from pymc_dp.ladder.check import Releases
from tests.fuzz.comparing import REFUSALS, SIGMAS, kind
from tests.fuzz.models import Choices, ReadOtherwise, build, simplest, write

OF_THE_PACKAGE = (*REFUSALS, TypeError)
NAMES = re.compile(r"'(z\d|x|y|n|q|theta|_?[a-z]+_\w+|wdata|gdata|potential)\b")
NOTHING = "there are no records to integrate out", "there is nothing to collapse"
BAD = "wrong", "crash", "unnamed", "failed"
TELLS = 0.25  # an error of a log density, above which nothing is said


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
        said = []
        for rung in ("marginal", "statistics"):
            try:
                alone = "x" not in model.named_vars and rung == "marginal"
                ours = model if alone else dp.collapse(model, rung)
            except Exception as error:
                found = _refused(error)
            else:
                found = compare(model, ours, point, seed, seconds)
            said.append((rung, *found))
            if found[0] in BAD:
                return found[0], f"{rung}: {found[1]}"
        words = [word for _, word, _ in said]
        for word in ("right", "undecided"):
            if word in words:
                return word, said
        return "refused", said[0][2]


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
        observed = density.observed()
    except Exception as error:
        return "crash", f"ours: {type(error).__name__}: {str(error)[:200]}"
    written = Releases(model, names, written=True)
    variables = [model[name] for name in names]
    points = [[point[name] for name in names]]
    points += [pm.draw(variables, random_seed=rng) for _ in range(2 if names else 0)]
    known = 0
    for at in points:
        for more in (1, 20):
            try:
                own, own_error = density.log_density(at, [observed], rng, more * seconds)
            except Exception as error:
                return "crash", f"density: {type(error).__name__}: {str(error)[:200]}"
            truth, error = written.log_density(at, [observed], rng, more * seconds, own)
            error = np.hypot(error, own_error)
            if not error < TELLS:
                break
            if abs(own - truth) <= SIGMAS * error + 1e-6:
                known += 1
                break
        else:
            return (
                "wrong",
                f"{own} and {truth} +- {error:.2g} at {dict(zip(names, at, strict=True))}",
            )
    return ("right", "") if known else ("undecided", "")


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
