"""Steps of ``torch.optim``, or of any subclass of its ``Optimizer``; PyTorch is imported on first use."""

from __future__ import annotations

import copy
from typing import TYPE_CHECKING, Any

from smimbench.backend import namespace
from smimbench_optimizers.base import (
    LibraryOptimizer,
    join_parameters,
    split_parameters,
)

if TYPE_CHECKING:
    from collections.abc import Callable

    from smimbench.interfaces import Array


class TorchRun:
    """Parameters and PyTorch optimizer of a run, which are changed in place; a deep copy continues like the original."""

    def __init__(
        self, make_optimizer: Callable[[list[Any]], Any], tensors: list[Any]
    ) -> None:
        """Make parameters of the ``tensors``, and the optimizer of these parameters with the function ``make_optimizer``."""
        import torch

        self.make_optimizer = make_optimizer
        self.parameters = [torch.nn.Parameter(tensor.clone()) for tensor in tensors]
        self.optimizer = make_optimizer(self.parameters)

    def __deepcopy__(self, memo: Any) -> TorchRun:
        """Copy the parameters and the optimizer's state."""
        copied_run = TorchRun(
            self.make_optimizer, [parameter.detach() for parameter in self.parameters]
        )
        copied_run.optimizer.load_state_dict(copy.deepcopy(self.optimizer.state_dict()))
        return copied_run

    def factor(self, like: Array) -> Array:
        """Return the parameters as one factor, an array in the shape and library of ``like``."""
        xp = namespace(like)
        return join_parameters(
            [xp.from_dlpack(parameter.detach()) for parameter in self.parameters], like
        )


class TorchOptimizer(LibraryOptimizer):
    """Gradient descent with the step of a ``torch.optim.Optimizer``."""

    rate_name = "lr"  # PyTorch's name of the learning rate

    def try_out(self, options: dict[str, Any]) -> None:
        """Create the optimizer for a small matrix, so that invalid options raise an error before a run."""
        import torch

        self._optimizer_maker(options)([torch.nn.Parameter(torch.zeros(2, 2))])

    def _optimizer_maker(self, options: dict[str, Any]) -> Callable[[list[Any]], Any]:
        """Function that makes the optimizer of given parameters with these options; lists become tuples."""
        options = {
            key: tuple(value) if isinstance(value, list) else value
            for key, value in options.items()
        }
        return lambda parameters: self.factory(
            parameters, lr=self.learning_rate, **options
        )

    def initial_state(self, factor: Array, seed: int) -> TorchRun:
        """Create parameters and optimizer of a run that starts at the factor; ``seed`` is for random numbers."""
        import torch

        torch.manual_seed(seed)  # for optimizers that draw from PyTorch's own generator
        return TorchRun(
            self._optimizer_maker(self.seeded(seed)),
            [torch.from_dlpack(matrix) for matrix in split_parameters(factor)],
        )

    def call(
        self, objective: Any, factor: Array, run: TorchRun, rate: float
    ) -> tuple[Array, TorchRun, Array | None]:
        """Make one step of a run's optimizer on the objective from a factor at the learning rate ``rate``, by
        ``optimizer.step(closure)``; each call of the closure counts as a pass over the samples of the step.
        """
        import torch

        with torch.no_grad():
            for parameter, matrix in zip(run.parameters, split_parameters(factor)):
                parameter.copy_(torch.from_dlpack(matrix))
        for parameter_group in run.optimizer.param_groups:
            parameter_group["lr"] = rate

        def closure() -> torch.Tensor:
            """Evaluate the objective at the current parameters, store its gradient in them and return the loss."""
            evaluation = objective(run.factor(factor))
            for parameter, matrix in zip(
                run.parameters, split_parameters(evaluation.gradient)
            ):
                parameter.grad = torch.from_dlpack(matrix)
            return torch.as_tensor(evaluation.loss)

        run.optimizer.step(closure)
        new_factor, averaged_factor = run.factor(factor), None
        if hasattr(
            run.optimizer, "eval"
        ):  # schedule-free: the gradient is taken at another point than the estimate
            run.optimizer.eval()
            averaged_factor = run.factor(factor)
            run.optimizer.train()
        return new_factor, run, averaged_factor
