"""Cases of ``sabotage.py``: sabotaged algorithms on three problems, random honest cases, random problems for GAMP."""

from __future__ import annotations

import json
import math

import numpy as np

METRICS = ["mse", "overlap", "nishimori"]
LOW, MATRIX = "sequence-multi-index", "attention-indexed"


def table(**entries):
    """Write entries as an inline table of TOML."""
    return (
        "{ "
        + ", ".join(
            f"{key} = {value(setting)}"
            for key, setting in entries.items()
            if setting is not None
        )
        + " }"
    )


def value(setting):
    """Write a setting as a value of TOML."""
    if isinstance(setting, dict):
        return table(**setting)
    if isinstance(setting, bool):
        return str(setting).lower()
    return json.dumps(setting)


def suite_text(problem, grid, algorithms, run=()):
    """Write a suite from (model, channel, prior), grid, tables of algorithms, and entries of ``[run]``."""
    model, channel, prior = problem
    lines = [
        "[problem]",
        f"model = {value(model)}",
        f"channel = {value(channel)}",
        f"prior = {value(prior)}",
        "[grid]",
    ]
    lines += [f"{key} = {value(setting)}" for key, setting in grid.items()]
    for algorithm in algorithms:
        lines += [
            "[[algorithms]]",
            *(
                f"{key} = {value(entry)}"
                for key, entry in algorithm.items()
                if entry is not None
            ),
        ]
    lines += [
        "[run]",
        f"metrics = {value(METRICS)}",
        *(f"{key} = {value(setting)}" for key, setting in dict(run).items()),
    ]
    return "\n".join(lines) + "\n"


# -- sabotage -------------------------------------------------------------------------------------------------------------

GAMP = [
    *(
        ("onsager", {"factor": factor})
        for factor in (0.7, 0.9, 0.97, 1.01, 1.03, 1.1, 1.3)
    ),
    *(("denoiser", {"factor": factor}) for factor in (0.9, 0.97, 0.99, 1.02, 1.05)),
    *(("posterior", {"mean": factor}) for factor in (0.95, 1.02)),
    ("posterior", {"covariance": 1.1}),
    *(("misled", {"noise": factor}) for factor in (0.8, 1.05, 1.3)),
    *(("fewer", {"share": share}) for share in (0.9, 0.97)),
]
SGD = [
    ("gradient", {"factor": 0.95}),
    ("gradient", {"flipped": 0.05}),
    ("rate", {"factor": 1.05}),
    ("rate", {"lost": 1}),
    ("momentum", {"factor": 1.1}),
    ("decay", {"factor": 1.2}),
]
PENALTY = [
    ("penalty", {"factor": 0.8}),
    ("penalty", {"factor": 1.3}),
    ("fewer", {"share": 0.9}),
]


def sabotaged(base, changes, **parameters):
    """Return the tables of the intact algorithm ``base`` and of one version of it for each of the ``changes``."""
    tables = [{"name": base, "label": base, **parameters}]
    for change, options in changes:
        words = " ".join(f"{key} {number:g}" for key, number in options.items())
        tables.append(
            {
                "name": f"{base}-{change}",
                "label": f"{base}, {change} {words}".strip(),
                **parameters,
                **options,
            }
        )
    return tables


def low(channel, tokens=2):
    """Return the items of a problem with a signal of low rank."""
    return {"name": LOW, "tokens": tokens}, channel, {"name": "gaussian"}


def matrix(channel, tokens, rho):
    """Return the items of a problem with a matrix signal of width ``rho``."""
    return {"name": MATRIX, "tokens": tokens}, channel, {"name": "wishart", "rho": rho}


LINE = low({"name": "linear", "noise": 0.3})
PROBIT = low({"name": "probit", "noise": 0.5})
PAIRS = matrix({"name": "linear", "noise": 0.3}, 2, 0.3)
SIZES = {"dimension": [150, 300, 600], "seeds": [128, 96, 64]}
FEW = {"dimension": [150, 300, 600], "seeds": [64, 48, 32]}
SMALL = {"dimension": [30, 60, 120], "seeds": [24, 12, 8]}
STREAM = {
    "learning_rate": 0.03,
    "batch": 60,
    "steps": 40,
    "online": True,
    "momentum": 0.5,
    "weight_decay": 0.3,
}
SABOTAGES = {
    "line": (
        LINE,
        {"alpha": [0.6], **SIZES},
        [
            *sabotaged("gamp", [*GAMP, ("ahead", {})], damping=0.0),
            *sabotaged("ridge", PENALTY, regularisation=0.2),
        ],
    ),
    "line-stream": (
        LINE,
        {"alpha": [0.05], "dimension": [100, 200, 400], "seeds": [64, 48, 32]},
        sabotaged("sgd", SGD, **STREAM),
    ),
    "probit": (
        PROBIT,
        {"alpha": [1.0], **FEW},
        [
            *sabotaged("gamp", [*GAMP, ("ahead", {})], damping=0.0),
            *sabotaged("erm", PENALTY, loss="logistic", penalty=0.2),
        ],
    ),
    "probit-stream": (
        PROBIT,
        {"alpha": [0.05], "dimension": [100, 200, 400], "seeds": [64, 48, 32]},
        sabotaged("sgd", SGD, **STREAM),
    ),
    "matrix": (
        PAIRS,
        {"alpha": [0.2], **SMALL},
        [
            *sabotaged("gamp", [*GAMP, ("misled", {"rho": 1.2})]),
            *sabotaged("ridge", PENALTY[:2]),
            *sabotaged("nuclear", PENALTY[:2], regularisation=0.5),
            *sabotaged(
                "spectral",
                [("denoiser", {"factor": 0.97}), ("labels", {"factor": 1.05})],
            ),
        ],
    ),
    # The factor has as many columns as that of the teacher: as many as the matrix is large.
    "matrix-descent": (
        matrix({"name": "linear", "noise": 0.3}, 1, 1.0),
        {"alpha": [0.4], "dimension": [20, 40, 80], "seeds": [24, 12, 6]},
        sabotaged(
            "adam",
            [*SGD[:2], ("decay", {"factor": 1.2})],
            weight_decay=2.0,
            learning_rate=0.1,
            schedule="cosine",
            steps=400,
        ),
    ),
}


# -- honest cases ---------------------------------------------------------------------------------------------------------


def number(rng, low, high):
    """Draw a number between ``low`` and ``high``, uniform on a logarithmic scale, to three digits."""
    return float(f"{math.exp(rng.uniform(math.log(low), math.log(high))):.3g}")


def whole_number(rng, low, high):
    """Draw an integer uniformly, both ends included."""
    return int(rng.integers(low, high + 1))


def pick(rng, *choices):
    """Draw one of the choices."""
    return choices[int(rng.integers(len(choices)))]


def line(rng, largest_noise=2.0):
    """Draw a channel with linear labels of random noise."""
    return {"name": "linear", "noise": number(rng, 0.05, largest_noise)}


def probit(rng):
    """Draw a channel with noisy signs as labels."""
    return {"name": "probit", "noise": number(rng, 0.1, 2)}


SIGN = {"name": "sign"}


def honest_gamp_low(rng):
    """Draw a case of GAMP on a signal of low rank: problem, ranges of sample ratios and dimensions, algorithm."""
    channel = pick(
        rng,
        line(rng),
        line(rng),
        probit(rng),
        SIGN,
        {"name": "softmax", "layers": 1},
        {"name": "hardmax"},
    )
    # One layer is learned from 1/6 on (softmax; its signal is known from 1/2 on) and from 0.82 on (hardmax).
    ratios = {"softmax": (0.2, 0.6), "hardmax": (0.9, 3.0)}.get(
        channel["name"], (0.15, 3.0)
    )
    tokens = whole_number(rng, 1, 3) if ratios[0] == 0.15 else 2
    damping = pick(rng, None, None, 0.0 if ratios[0] == 0.15 else 0.3)
    return low(channel, tokens), ratios, (50, 400), {"name": "gamp", "damping": damping}


def honest_gamp_matrix(rng):
    """Draw a case of GAMP on a matrix signal."""
    rho, tokens = number(rng, 0.1, 2), whole_number(rng, 1, 3)
    channel = pick(
        rng,
        line(rng),
        {"name": "softmax", "beta": number(rng, 0.5, 2)},
        {"name": "hardmax"},
    )
    tokens = 2 if channel["name"] != "linear" else tokens
    return matrix(channel, tokens, rho), (0.03, 0.5), (24, 60), {"name": "gamp"}


def honest_ridge(rng):
    """Draw a case of ridge regression, sample ratios with alpha T near 1 included."""
    if rng.random() < 0.3:
        channel = pick(rng, line(rng), {"name": "softmax"})
        return (
            matrix(channel, 2, number(rng, 0.1, 2)),
            (0.05, 0.5),
            (20, 50),
            {"name": "ridge"},
        )
    penalty = pick(rng, "theory", number(rng, 0.01, 10))
    return (
        low(line(rng), whole_number(rng, 1, 3)),
        (0.2, 3.0),
        (50, 400),
        {"name": "ridge", "regularisation": penalty},
    )


def honest_erm(rng):
    """Draw a case of empirical risk minimization with a convex loss."""
    loss = pick(rng, "square", "logistic", "squared-hinge")
    channel = (
        line(rng)
        if loss == "square" and rng.random() < 0.5
        else pick(rng, SIGN, probit(rng))
    )
    options = {
        "name": "erm",
        "loss": loss,
        "penalty": pick(rng, "optimal", number(rng, 0.03, 3)),
    }
    return low(channel, whole_number(rng, 1, 2)), (0.3, 3.0), (60, 300), options


def honest_sgd(rng):
    """Draw a case of gradient descent on fresh samples."""
    channel, batch = (
        pick(rng, line(rng, 1.0), line(rng, 1.0), probit(rng)),
        whole_number(rng, 20, 60),
    )
    options = {
        "name": "sgd",
        "online": True,
        "learning_rate": number(rng, 0.005, 0.03),
        "batch": batch,
        "steps": whole_number(rng, 10, 50),
    }
    options |= {
        "momentum": pick(rng, 0.0, 0.5),
        "weight_decay": pick(rng, 0.0, number(rng, 0.05, 1)),
    }
    return low(channel, whole_number(rng, 1, 2)), (0.05, 0.05), (60, 200), options


def honest_adam(rng):
    """Draw a case of Adam with weight decay on a factor as wide as the matrix."""
    size = whole_number(rng, 16, 32)
    options = {
        "name": "adam",
        "weight_decay": number(rng, 0.5, 2),
        "learning_rate": 0.1,
        "schedule": "cosine",
        "steps": 500,
    }
    problem = matrix(
        {"name": "linear", "noise": number(rng, 0.2, 1)}, 1, number(rng, 0.1, 1)
    )
    return problem, (0.15, 0.5), (size, size), options | {"width": size}


def honest_nuclear(rng):
    """Draw a case of nuclear-norm regression."""
    options = {
        "name": "nuclear",
        "regularisation": pick(rng, "optimal", number(rng, 0.2, 2)),
        "positive": pick(rng, True, False),
    }
    return (
        matrix(line(rng, 1.0), whole_number(rng, 1, 2), number(rng, 0.1, 1)),
        (0.1, 0.5),
        (20, 50),
        options,
    )


def honest_spectral(rng):
    """Draw a case of the spectral method, on a signal of low rank or a matrix."""
    if rng.random() < 0.4:
        return (
            low({"name": "softmax", "layers": 1}, 2),
            (0.2, 1.0),
            (100, 400),
            {"name": "spectral"},
        )
    channel = pick(rng, line(rng), {"name": "softmax"}, {"name": "hardmax"})
    return (
        matrix(channel, 2, number(rng, 0.1, 2)),
        (0.05, 0.5),
        (24, 80),
        {"name": "spectral"},
    )


def honest_averaged(rng):
    """Draw a case of the mean of several runs."""
    problem, *ratios, options = pick(rng, honest_gamp_low, honest_erm, honest_ridge)(
        rng
    )
    return (
        problem,
        *ratios,
        {
            "name": "averaged",
            "of": {k: v for k, v in options.items() if v is not None},
            "students": 2,
        },
    )


HONEST = (
    *(honest_gamp_low,) * 5,
    *(honest_gamp_matrix,) * 4,
    *(honest_ridge,) * 3,
    *(honest_erm,) * 3,
    *(honest_sgd,) * 3,
    *(honest_nuclear,) * 2,
    *(honest_spectral,) * 2,
    honest_adam,
    honest_averaged,
)
CASES = 200


def honest_suite(case):
    """Write the suite of a random case, given by number: one to three dimensions, two or three sample ratios, 4 to 24 runs."""
    rng = np.random.default_rng([28, case])
    problem, ratios, (smallest, largest), options = HONEST[case % len(HONEST)](rng)
    sizes = sorted(
        {
            round(size)
            for size in np.geomspace(
                smallest, rng.uniform(smallest, largest), whole_number(rng, 1, 3)
            )
        }
    )
    alphas = sorted({number(rng, *ratios) for _ in range(whole_number(rng, 2, 3))})
    grid = {
        "alpha": alphas,
        "dimension": sizes,
        "seeds": whole_number(rng, 4, 24),
        "seed": 1000 + case,
    }
    return suite_text(problem, grid, [options])


# -- GAMP at the optimum of its size --------------------------------------------------------------------------------------

GAMP_SIZES = {
    "low": ([80, 160, 320], [48, 32, 24]),
    "matrix": ([24, 48, 96], [24, 16, 8]),
}


def gamp_suite(case, root=0):
    """Write the suite of GAMP on a random problem (number ``case``) at three dimensions; another ``root`` gives other seeds."""
    rng = np.random.default_rng([82, case])
    problem, ratios, *_ = (honest_gamp_low, honest_gamp_matrix)[case % 2](rng)
    dimension, seeds = GAMP_SIZES[("low", "matrix")[case % 2]]
    grid = {
        "alpha": [number(rng, *ratios)],
        "dimension": dimension,
        "seeds": seeds,
        "seed": 5000 + 1000 * root + case,
    }
    return suite_text(problem, grid, [{"name": "gamp"}])
