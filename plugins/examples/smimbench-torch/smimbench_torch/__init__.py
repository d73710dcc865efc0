"""Optimisers of PyTorch as algorithms of smimbench, with gradients by autograd through the same forward map.

PyTorch is imported when one of them is made, not when they are registered: see ``source``.
"""

from __future__ import annotations

import dataclasses
import inspect
import math
from importlib.metadata import version
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

import numpy as np

from smimbench import Capabilities, Info, ParameterError, hookimpl
from smimbench.backend import to_host
from smimbench.derive import gives_probabilities, observable, predict
from smimbench.interfaces import Plan, require
from smimbench_torch.source import optimizers_in_source

if TYPE_CHECKING:
    from collections.abc import Iterable

    import torch

__all__ = ["TorchState", "algorithm", "optimizers"]

COMMON = {"steps": (int, 1000), "batch": (int | None, None), "width": (int | None, None), "loss": (str | None, None)}


class TorchState(NamedTuple):
    """What a run holds; parameters and optimiser change in place, as PyTorch has it."""

    parameters: list[torch.nn.Parameter]
    stacked: bool
    optimizer: torch.optim.Optimizer
    inputs: torch.Tensor
    targets: torch.Tensor
    problem: Any
    loss: str
    order: np.ndarray
    rng: np.random.Generator
    samples: int

    def factor(self) -> torch.Tensor:
        """The factor of the signal as one tensor that remembers how it was made."""
        import torch

        return torch.stack(self.parameters) if self.stacked else self.parameters[0]

    def signal(self) -> torch.Tensor:
        """The signal that the factor stands for."""
        return self.problem.prior.factor.compose(self.factor())


class _TorchAlgorithm:
    """Methods that all of these algorithms share; ``optimizer`` is the class, or its name in ``torch.optim``."""

    version: ClassVar[int] = 1
    capabilities: ClassVar[Capabilities] = Capabilities(backends=("numpy",))
    optimizer: ClassVar[type[torch.optim.Optimizer] | str]

    @property
    def optimizer_class(self) -> type[torch.optim.Optimizer]:
        """The class of the optimiser."""
        import torch

        return getattr(torch.optim, self.optimizer) if isinstance(self.optimizer, str) else self.optimizer

    def _options(self) -> dict[str, Any]:
        return {f.name: getattr(self, f.name) for f in dataclasses.fields(self) if f.name not in COMMON}

    def __post_init__(self) -> None:
        import torch

        for key in ("steps", "batch", "width"):
            value = getattr(self, key)
            require(self, key, value is None or value >= 1, "at least 1")
        require(self, "loss", self.loss in (None, "squared", "cross-entropy"), "squared or cross-entropy")
        try:
            self._optimizer([torch.nn.Parameter(torch.zeros(2, 2))])
        except (ValueError, TypeError, RuntimeError) as error:
            message = " ".join(str(error).split())
            options = self._options()
            key = next((name for name in sorted(options, key=len, reverse=True) if name in message.lower()), "")
            if not key and "learning rate" in message.lower():
                key = "lr"
            raise ParameterError(key or next(iter(options), "steps"), f"is not accepted by torch: {message}") from None

    def _optimizer(self, parameters: list[torch.nn.Parameter]) -> torch.optim.Optimizer:
        return self.optimizer_class(parameters, **self._options())

    def refuses(self, problem: Any) -> str | None:
        """Why this problem cannot be learned by autograd, or None."""
        channel, prior = problem.channel, problem.prior
        sparse = self.optimizer_class.__name__ == "SparseAdam"
        scores = self.loss == "cross-entropy" and not gives_probabilities(problem)
        reasons = {
            "SparseAdam wants sparse gradients, and those of a dense signal are not": sparse,
            f"channel {channel.name!r} has no derivative": channel.vjp is None,
            f"prior {prior.name!r} has no factor to descend on": prior.factor is None,
            "width applies to attention-indexed models only; remove it": self.width is not None
            and problem.model.kappa == 1,
            f"cross-entropy needs labels that are probabilities, those of channel {channel.name!r} are not": scores,
        }
        return next((reason for reason, refused in reasons.items() if refused), None)

    def plan(self, data: Any) -> Plan:
        """So many steps, each on a batch."""
        n = data.inputs.shape[0]
        return Plan(steps=self.steps, batch=n if self.batch is None else min(self.batch, n))

    def init(self, problem: Any, data: Any, rng: np.random.Generator) -> TorchState:
        """Iid N(0, 1) factor."""
        import torch

        draw = problem.prior.factor.draw(rng, problem.components, data.dimension, self.width)
        # Copies: tensors that share memory with arrays that must not be written to are not for PyTorch.
        inputs = torch.tensor(np.array(to_host(data.inputs)))
        labels = torch.tensor(np.array(to_host(data.labels)))
        # Some optimisers take matrices only, so that components are one parameter each where they are matrices.
        stacked = draw.ndim == 3
        parts = list(draw) if stacked else [draw]
        parameters = [torch.nn.Parameter(torch.tensor(part, dtype=inputs.dtype)) for part in parts]
        targets = observable(problem.channel, labels).to(inputs.dtype)
        empty = np.empty(0, dtype=np.int64)
        loss = self.loss or ("cross-entropy" if gives_probabilities(problem) else "squared")
        return TorchState(
            parameters, stacked, self._optimizer(parameters), inputs, targets, problem, loss, empty, rng, 0
        )

    def step(self, problem: Any, data: Any, state: TorchState) -> tuple[TorchState, Info]:
        """One step of the optimiser; the residual is the relative change of the factor."""
        import torch

        n = state.inputs.shape[0]
        size = n if self.batch is None else min(self.batch, n)
        order, chosen = state.order, None
        if size < n:
            order = order if len(order) else state.rng.permutation(n)
            chosen, order = torch.as_tensor(order[:size]), order[size:]
        inputs = state.inputs if chosen is None else state.inputs[chosen]
        targets = state.targets if chosen is None else state.targets[chosen]
        scale = n / (len(inputs) * data.dimension)
        seen = 0

        def closure() -> torch.Tensor:
            nonlocal seen
            seen += len(inputs)
            with torch.enable_grad():
                state.optimizer.zero_grad()
                output = predict(problem.channel, _latents(problem, inputs, state))
                loss = scale * _loss(state.loss, output, targets)
                loss.backward()
            return loss.detach()

        before = state.factor().detach().clone()
        state.optimizer.step(closure)
        after = state.factor().detach()
        residual = float((after - before).norm() / after.norm())
        samples = state.samples + seen
        new = state._replace(order=order, samples=samples)
        signal = self.estimate(new)
        overlap = np.diagonal(problem.model.inner(signal, signal))
        return new, Info(residual=residual, self_overlap=overlap, samples=samples)

    def estimate(self, state: TorchState) -> np.ndarray:
        """The signal that the factor stands for."""
        import torch

        with torch.no_grad():
            return state.signal().numpy().copy()


def _loss(name: str, output: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    """Loss summed over samples; a probability that has underflowed counts as the smallest one."""
    import torch

    if name == "squared":
        return ((output - target) ** 2).sum()
    return -(target * output.clamp_min(torch.finfo(output.dtype).tiny).log()).sum()


def _latents(problem: Any, inputs: torch.Tensor, state: TorchState) -> torch.Tensor:
    """Latents of the student, by the model's own forward map on tensors."""
    model, prior = problem.model, problem.prior
    factor = state.factor()
    if model.forward_gram is not None and prior.factor.gram_scale is not None:
        return model.forward_gram(inputs, math.sqrt(prior.factor.gram_scale(factor)) * factor)[0]
    return model.forward(inputs, prior.factor.compose(factor))


def _type_of(parameter: inspect.Parameter) -> Any:
    """What a suite may give for an option: the type of its default, an integer being as good as a float."""
    default, text = parameter.default, str(parameter.annotation)
    if isinstance(default, bool):
        return bool
    if isinstance(default, tuple):
        return tuple[tuple(float for _ in default)]
    if "bool" in text and default is None:
        return bool | None
    if isinstance(default, float) or (isinstance(default, int) and "float" in text):
        return float
    if isinstance(default, int):
        return int
    if isinstance(default, str):
        return str
    return Any


def algorithm(optimizer: type[torch.optim.Optimizer], name: str | None = None) -> type[Any]:
    """An algorithm of smimbench from an optimiser class.

    Parameters
    ----------
    optimizer : type
        A subclass of ``torch.optim.Optimizer``. Its constructor's parameters other than ``params`` become parameters of the
        algorithm; ``step(closure)`` is called once a step.
    name : str, optional
        Under which suites find it; default: ``torch.`` and the class's name in lower case.

    Returns
    -------
    type
        To be given to ``register`` in ``smimbench_register_algorithms``.
    """
    signature = inspect.signature(optimizer.__init__)
    skipped = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    given = [p for p in signature.parameters.values() if p.name not in ("self", "params") and p.kind not in skipped]
    first = (inspect.getdoc(optimizer) or "").strip().split("\n\n")[0].replace("\n", " ")
    summary = first if first and "``" not in first and ":" not in first else f"``{optimizer.__name__}``."
    return _algorithm(optimizer, optimizer.__name__, optimizer.__module__, given, summary, name)


def _algorithm(
    optimizer: type[torch.optim.Optimizer] | str,
    title: str,
    module: str,
    given: Iterable[inspect.Parameter],
    summary: str,
    name: str | None = None,
) -> type[Any]:
    """The class of an algorithm, from an optimiser or its name and from the parameters of its constructor."""
    fields = [(key, kind, dataclasses.field(default=default)) for key, (kind, default) in COMMON.items()]
    for parameter in given:
        if parameter.name in COMMON:
            raise TypeError(f"{title}: option {parameter.name!r} has the name of a common parameter")
        needed = parameter.default is inspect.Parameter.empty
        field = dataclasses.field() if needed else dataclasses.field(default=parameter.default)
        fields.append((parameter.name, Any if needed else _type_of(parameter), field))
    namespace = {
        "__doc__": f"{summary}\n\nBy autograd, on the loss summed over samples and divided by D; see smimbench-torch.",
        "__module__": __name__,
        "name": name or f"torch.{title.lower()}",
        "reference": f"PyTorch {version('torch').partition('+')[0]}, {module}.{title}",
        "optimizer": optimizer,
    }
    return dataclasses.make_dataclass(
        f"Torch{title}", fields, bases=(_TorchAlgorithm,), namespace=namespace, frozen=True, kw_only=True
    )


def optimizers() -> dict[str, type[torch.optim.Optimizer]]:
    """Every optimiser of ``torch.optim`` by the name it is registered under."""
    import torch

    found = [item for item in vars(torch.optim).values() if inspect.isclass(item)]
    found = [item for item in found if issubclass(item, torch.optim.Optimizer) and item is not torch.optim.Optimizer]
    return {f"torch.{item.__name__.lower()}": item for item in sorted(found, key=lambda item: item.__name__)}


@hookimpl
def smimbench_register_algorithms(register: Any) -> None:
    """Register every optimiser of ``torch.optim``."""
    for title, given in optimizers_in_source().items():
        register(_algorithm(title, title, "torch.optim", given, f"``torch.optim.{title}``."))
