"""What an item must have, what it may leave out, and what the engine does then.

This is the one list. The engine asks for an optional member with ``offers`` and ``member``, which know no other names; the
reference page (docs/hooks.md) and ``smimbench info`` say the same, and a test fails where they do not.
"""

from __future__ import annotations

from typing import Any, NamedTuple

__all__ = ["OPTIONAL", "REQUIRED", "Optional", "describe", "has", "member", "offers"]


class Optional(NamedTuple):
    """A member that an item of a kind may leave out.

    Attributes
    ----------
    kind : str
        ``"model"``, ``"channel"``, ``"prior"``, ``"metric"``, ``"algorithm"``, ``"rule"``
        (what ``stopping_rule`` of an algorithm makes), or ``"item"`` for all kinds of items.
    name : str
    without : str
        What happens without it.
    derived : bool
        Whether the engine then works it out by itself.
    """

    kind: str
    name: str
    without: str
    derived: bool = False


REQUIRED: dict[str, tuple[tuple[str, ...], tuple[tuple[str, ...], ...]]] = {
    "model": (
        ("rank", "sample_count", "sample_ratio", "signal_shape", "draw_inputs", "draw_noise", "forward", "adjoint"),
        (),
    ),
    "channel": (("forward",), (("posterior",), ("log_likelihood",))),
    "prior": ((), (("sample", "denoise"), ("log_density",), ("quantile",), ("eigenvalues",))),
    "metric": (("label", "unit", "direction", "per_component", "measure"), ()),
    "algorithm": ((), (("init", "step", "estimate"), ("fit",))),
}
"""What an item must have, and the sets of methods of which it must have one whole."""

OPTIONAL = (
    Optional("item", "contract", "it is taken to be written for the present contracts"),
    Optional("item", "example", "the published checks make it with its defaults"),
    Optional("model", "forward_gram", "latents are made from the signal, not from its factor"),
    Optional("model", "cost", "the runtime table says nothing of the machine's speed"),
    Optional("model", "narrow_inputs", "inputs stored in float32 are widened on a device before they are multiplied"),
    Optional("model", "denoiser_flops", "a run is priced without its denoiser"),
    Optional("channel", "posterior", "integrated from `log_likelihood`", derived=True),
    Optional("channel", "log_likelihood", "not needed where there is a posterior"),
    Optional("channel", "components", "1", derived=True),
    Optional("channel", "symmetry", "found by trying; state it", derived=True),
    Optional("channel", "layers", "tables call its components components"),
    Optional("channel", "information", "sampled with the posterior, or nested quadrature of the likelihood", derived=True),
    Optional("channel", "susceptibility", "sampled from second moments; needed only where no label sees a sign", derived=True),
    Optional("channel", "rough_labels", "slopes of sampled information are secants, fixed points take accurate values alone"),
    Optional("channel", "resampled", "draws of `theory --verify` share the points of a sampled posterior, and their error"),
    Optional("channel", "equations", "the limit is looked at numerically", derived=True),
    Optional("channel", "vjp", "finite differences where the label is smooth; gradient methods refuse otherwise", derived=True),
    Optional("channel", "predict", "the noiseless label, or the mean of draws of a noisy one", derived=True),
    Optional("channel", "observable", "the label itself", derived=True),
    Optional("channel", "log_partition", "the check `gradient` is skipped"),
    Optional("channel", "generalization_error", "sampled", derived=True),
    Optional("channel", "accuracy", "posteriors from a likelihood are integrated to 1e-2 of their width"),
    Optional("prior", "sample", "drawn from the density or the spectrum, scaled to unit variance", derived=True),
    Optional("prior", "denoise", "integrated from the density, or free convolution of the spectrum", derived=True),
    Optional("prior", "denoise_continued", "an iteration at finite size applies `denoise`"),
    Optional("prior", "overlap", "integrated from the same, or simulated with `sample` and `denoise`", derived=True),
    Optional("prior", "overlap_error", "the map `overlap` is taken to be exact"),
    Optional("prior", "mean", "from the law, or what `denoise` makes of nothing", derived=True),
    Optional("prior", "second_moment", "from the law, or simulated", derived=True),
    Optional("prior", "mean_overlap", "from the law, or simulated", derived=True),
    Optional("prior", "log_density", "not needed where there are `sample` and `denoise`"),
    Optional("prior", "quantile", "not needed where there are `sample` and `denoise`"),
    Optional("prior", "eigenvalues", "not needed where there are `sample` and `denoise`"),
    Optional("prior", "draw_factor", "gradient methods move in the signal itself"),
    Optional("prior", "compose", "gradient methods move in the signal itself"),
    Optional("prior", "pullback", "gradient methods move in the signal itself"),
    Optional("prior", "gram_scale", "latents are made from the signal, not from its factor"),
    Optional("prior", "spectral_means", "no theory for `nuclear`"),
    Optional("prior", "fluctuation", "self-overlaps are taken to fluctuate by sqrt(2 / D)"),
    Optional("prior", "theory_only", "it can be run as well"),
    Optional("metric", "in_trajectory", "measured once, on the final estimate, in the cells of suites that list it"),
    Optional("metric", "theory", "rows and figures show no theory for it"),
    Optional("algorithm", "init", "made around `fit`", derived=True),
    Optional("algorithm", "step", "made around `fit`", derived=True),
    Optional("algorithm", "estimate", "made around `fit`", derived=True),
    Optional("algorithm", "fit", "not needed where there are `init`, `step` and `estimate`"),
    Optional("algorithm", "plan",
             "the steps that `steps` or `steps_for` says, each on all samples, one estimate, nothing drawn", derived=True),
    Optional("algorithm", "steps", "the stopping rule decides"),
    Optional("algorithm", "steps_for", "the stopping rule decides"),
    Optional("algorithm", "stopping_rule",
             "the residual, and the overlaps that `Info` reports: they must stand still and agree", derived=True),
    Optional("rule", "settled", "a run that has used all its iterations is not converged"),
    Optional("algorithm", "start", "it cannot be named as `start` in the table `[run]`"),
    Optional("algorithm", "restarted", "no second attempt after divergence"),
    Optional("algorithm", "resumed", "a run that has not come to rest does not go on"),
    Optional("algorithm", "refuses", "every problem that its capabilities allow is tried"),
    Optional("algorithm", "theory", "its rows are compared with the Bayes-optimal value only"),
    Optional("algorithm", "variance", "no Bayes predictor of the label"),
    Optional("algorithm", "cost", "no share of the machine's speed in the runtime table"),
    Optional("algorithm", "findings", "nothing beside the errors is kept"),
    Optional("algorithm", "bayes_optimal", "no check holds it to the Bayes-optimal error at infinite size"),
    Optional("algorithm", "init_students", "`averaged` runs one student after the other"),
)  # fmt: skip
"""All optional members of all kinds of items."""

_NAMES = frozenset(entry.name for entry in OPTIONAL)


def has(item: Any, name: str) -> bool:
    """Whether an item, or a class, has a method, an attribute or a field of that name."""
    # A field of a dataclass without a default is no attribute of the class.
    return hasattr(item, name) or name in getattr(item, "__dataclass_fields__", {})


def offers(item: Any, name: str) -> bool:
    """Whether an item has an optional member.

    Raises
    ------
    KeyError
        If ``OPTIONAL`` does not list the name.
    """
    if name not in _NAMES:
        raise KeyError(f"{name!r} is not listed in smimbench.interfaces.members.OPTIONAL")
    return has(item, name)


def member(item: Any, name: str, default: Any = None) -> Any:
    """An optional member of an item, or ``default`` where it has none.

    Raises
    ------
    KeyError
        If ``OPTIONAL`` does not list the name.
    """
    return getattr(item, name) if offers(item, name) else default


def describe(kind: str, item: Any) -> dict[str, str]:
    """For every optional member of a kind ``"own"``, ``"derived"`` (the engine works it out) or ``"none"``."""
    return {
        entry.name: "own" if offers(item, entry.name) else "derived" if entry.derived else "none"
        for entry in OPTIONAL
        if entry.kind == kind
    }
