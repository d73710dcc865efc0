"""Theory at the ends of what may be asked, each row a right number or a refusal: ``python docs/checks/stress.py``.

Every point has to be an MSE between 0 and the 1 of the prior mean, with a finite error, within ``LIMIT`` seconds; or one line
that says what would be right. docs/stress.md has the table of a whole run.
"""

from __future__ import annotations

import math
import signal
import time
import warnings

from smimbench.interfaces import ParameterError
from smimbench.problem.problem import Problem, ProblemError
from smimbench.theory.cache import TheoryCache

LIMIT = 8
"""Seconds of processor time for a point; those of hardmax with three tokens or more take minutes, once for each curve."""
ALPHAS = (1e-4, 0.1, 1.0, 1e4)
ATTENTION, SEQUENCE = "attention-indexed", "sequence-multi-index"


class Late(BaseException):
    """A point took too long."""


def problems():
    """Model, tokens, channel with parameters, rho."""
    channels = ({"name": "linear", "noise": 0.1}, {"name": "softmax"}, {"name": "hardmax"})
    for rho in (1e-3, 0.03, 0.5, 10, 1e3):
        yield from ((ATTENTION, 2, channel, rho) for channel in channels)
    for tokens in (1, 2, 3, 4, 8, 16):
        yield from ((ATTENTION, tokens, channel, 0.5) for channel in channels)
        yield from ((SEQUENCE, tokens, channel, None) for channel in channels)
    yield from ((ATTENTION, 2, {"name": "softmax", "beta": beta}, 0.5) for beta in (1e-3, 0.03, 30.0, 1e3))
    yield from ((SEQUENCE, 2, {"name": "linear", "noise": noise}, None) for noise in (0.0, 1e-3, 1e3))
    yield from ((SEQUENCE, 2, {"name": "softmax", "layers": 2, "skip": skip}, None) for skip in (0.0, 100.0))
    yield from ((ATTENTION, 2, {"name": "softmax", "layers": 2, "beta": beta}, 0.5) for beta in (1e-3, 9.0, 1e3))
    yield from ((ATTENTION, 2, channels[0], rho) for rho in (1e-30, 1e30))
    yield ATTENTION, 3000, channels[0], 0.5


def point(model, tokens, channel, rho, alpha) -> str:
    """MSE and its error, or why there is none."""
    prior = {"name": "gaussian"} if rho is None else {"name": "wishart", "rho": float(rho)}
    signal.setitimer(signal.ITIMER_PROF, LIMIT)
    try:
        found = TheoryCache().points(Problem({"name": model, "tokens": tokens}, channel, prior), [alpha])[0][0]
    except Late:
        return f"not within {LIMIT} s"
    except (ProblemError, ParameterError) as error:
        return f"refused: {error}"
    except Exception as error:
        return f"WRONG: {type(error).__name__}: {error}"
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
    values, errors = ([v] if isinstance(v, float) else v for v in (found["mse"], found["mse_error"]))
    sound = all(math.isfinite(e) and -1e-9 <= v <= 1 + 1e-6 + 4 * e for v, e in zip(values, errors))
    return ("" if sound else "WRONG: ") + ", ".join(f"{v:.5g} ± {e:.1g}" for v, e in zip(values, errors))


def late(*_):
    """The alarm."""
    raise Late


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    signal.signal(signal.SIGPROF, late)
    print("| model | tokens | channel | rho | alpha | MSE | s |\n|---|---|---|---|---|---|---|")
    for model, tokens, channel, rho in problems():
        words = ", ".join(f"{k} {v:g}" if k != "name" else str(v) for k, v in channel.items())
        for alpha in ALPHAS:
            begin = time.process_time()
            said = point(model, tokens, channel, rho, alpha)
            seconds = time.process_time() - begin
            print(
                f"| {model} | {tokens} | {words} | {'' if rho is None else rho} | {alpha:g} | {said} | {seconds:.1f} |",
                flush=True,
            )
            if said.startswith(("refused", "not")):
                break
