"""Generalization errors on fresh samples: Bayes, plug-in and constant predictor."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar

from smimbench.interfaces import Capabilities, Metric, NotMeasured
from smimbench.theory import measured_error

if TYPE_CHECKING:
    from smimbench.interfaces import Array, Claims, Model, Uncertain
    from smimbench.problem import Instance, Problem

MEMORY = "generalization errors"


class _PredictionError(Metric):
    """Base class of generalization errors, computed once per estimate by a Monte Carlo integral over fresh latents;
    ``kind`` is that of the predictor: bayes, plugin or constant.
    """

    kind: ClassVar[str]  # kind of the predictor
    version = 2
    reference = "the definition; see smimbench.theory.generalization"
    capabilities = Capabilities()
    unit = "squared norm of the label, summed over its entries"
    direction = "lower"  # lower values are better
    per_component = False  # one value for all components

    def measure(
        self, instance: Instance, estimate: Array, claims: Claims
    ) -> list[float]:
        """Expected squared error on fresh samples, from the overlaps of teacher (in ``instance``) and estimate; ``claims`` holds
        the error that the algorithm claims.
        """
        return [float(_errors(instance, estimate, claims)[self.kind].value)]

    def theory(
        self, problem: Problem, point: dict[str, Any]
    ) -> tuple[list[float | None], list[float | None]]:
        """Theoretical generalization error and its own error at a ``point`` of theory, or None where theory gives none."""
        errors = point.get("generalization_error") or {}
        predictor_kind = (
            "plugin" if self.kind == "bayes" and "bayes" not in errors else self.kind
        )
        error_of_kind = errors.get(predictor_kind)
        if error_of_kind is None:
            return [None], [None]
        return [error_of_kind], [
            (point.get("generalization_error_error") or {}).get(predictor_kind, 0.0)
        ]


def _errors(
    instance: Instance, estimate: Array, claims: Claims
) -> dict[str, Uncertain]:
    """Generalization errors of the estimate for the teacher in ``instance`` by kind of predictor (bayes, plugin, constant),
    computed once and kept in ``claims.memory``. ``overlap_of`` is the model's function for the overlap matrix (P, P) of two
    signals.
    """
    if MEMORY not in claims.memory:
        if (reason := instance.problem.no_theory) is not None:
            raise NotMeasured(f"generalization errors need Gaussian latents: {reason}")
        overlap_of, signal = instance.problem.model.inner, instance.signal
        claims.memory[MEMORY] = measured_error(
            instance.problem,
            overlap_of(signal, signal),
            overlap_of(signal, estimate),
            overlap_of(estimate, estimate),
            claims.V,
        )
    errors: dict[str, Uncertain] = claims.memory[MEMORY]
    return errors


class BayesError(_PredictionError):
    """Bayes generalization error: error of ``E[f(z) | estimate, V]``, with the error V that the algorithm claims.

    For algorithms that claim no error it is the plug-in error.
    """

    name = "generalization_error_bayes"
    label = "Bayes generalization error"
    kind = "bayes"  # kind of the predictor

    def bounded(self, model: Model) -> bool:
        """Whether the Bayes predictor at the posterior mean is the best by this metric: true, no predictor has a smaller error,
        in any model.
        """
        return True

    def measure(
        self, instance: Instance, estimate: Array, claims: Claims
    ) -> list[float]:
        """Expected squared error of the Bayes predictor on fresh samples, from the estimate of the teacher in ``instance`` and
        the error V that the algorithm claims (in ``claims``).
        """
        errors = _errors(instance, estimate, claims)
        if "bayes" not in errors:
            claims.remarks.append(
                "the algorithm states no error of its estimate, so the Bayes predictor is the plug-in predictor"
            )
        return [float(errors.get("bayes", errors["plugin"]).value)]


class PluginError(_PredictionError):
    """Plug-in generalization error: error of ``f(omega)``, the channel applied to the latents of the estimate."""

    name = "generalization_error_plugin"
    label = "plug-in generalization error"
    kind = "plugin"  # kind of the predictor


class ConstantError(_PredictionError):
    """Generalization error of the constant predictor ``E f(z)``, the best one that ignores the input."""

    name = "generalization_error_constant"
    label = "error of the constant predictor"
    kind = "constant"  # kind of the predictor
