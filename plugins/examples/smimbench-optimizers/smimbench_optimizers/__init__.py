"""Optimizers of PyTorch and optax as algorithms of smimbench; others are added with ``torch_optimizer`` or ``optax_optimizer`` in
one line.
"""

from __future__ import annotations

from importlib.util import find_spec
from typing import Any

from smimbench import hookimpl
from smimbench_optimizers.optax_steps import OptaxOptimizer
from smimbench_optimizers.torch_steps import TorchOptimizer

__all__ = ["optax_optimizer", "torch_optimizer"]

torch_optimizer = TorchOptimizer.registered
optax_optimizer = OptaxOptimizer.registered


@hookimpl
def smimbench_register_algorithms(register: Any) -> None:
    """Register optimizers of the installed libraries, and ``torch`` and ``optax``, which take any optimizer by its path."""
    algorithms_of_library = {
        "torch": [
            TorchOptimizer.any_path("torch", "torch.optim.Adam"),
            torch_optimizer("torch.adam", "torch.optim.Adam"),
            torch_optimizer("torch.adamw", "torch.optim.AdamW"),
            torch_optimizer("torch.sgd", "torch.optim.SGD"),
            torch_optimizer("torch.muon", "torch.optim.Muon", weight_decay=0.0),
            torch_optimizer(
                "torch.lbfgs",
                "torch.optim.LBFGS",
                learning_rate=1.0,
                line_search_fn="strong_wolfe",
            ),
        ],
        "pytorch_optimizer": [
            torch_optimizer("torch.soap", "pytorch_optimizer.SOAP", weight_decay=0.0),
            torch_optimizer("torch.shampoo", "pytorch_optimizer.Shampoo"),
        ],
        "optax": [
            OptaxOptimizer.any_path("optax", "optax.adam"),
            optax_optimizer("optax.adam", "optax.adam"),
            optax_optimizer("optax.lion", "optax.lion", weight_decay=0.0),
            optax_optimizer("optax.muon", "optax.contrib.muon"),
            optax_optimizer(
                "optax.schedule-free-adamw", "optax.contrib.schedule_free_adamw"
            ),
            optax_optimizer(
                "optax.prodigy", "optax.contrib.prodigy", learning_rate=1.0
            ),
            optax_optimizer("optax.sam", "smimbench_optimizers.optax_steps.sam"),
        ],
    }
    for library, algorithms in algorithms_of_library.items():
        for algorithm in algorithms if find_spec(library) else ():
            register(algorithm)
