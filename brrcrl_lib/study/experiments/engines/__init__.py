"""Where trainings run. An engine takes training groups and yields what became of each, in any order.

Rows never pass through an engine: workers leave them in the work folder. So an engine may be stopped or lost at any
moment, and another may go on.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from importlib import import_module
from typing import Any

from brrcrl_lib.base.errors import KitError
from brrcrl_lib.methods.base import method_named
from brrcrl_lib.study.experiments.group import Group, Outcome
from brrcrl_lib.study.experiments.plan import ExperimentConfig

Engine = Callable[[Sequence[Group], ExperimentConfig], Iterator[Outcome]]
STARTS = 3
"""How often a group is started before its worker's deaths are taken to be its own doing."""


def engine_named(name: str) -> Engine:
    """local, ray or slurm; what it needs is imported now, before any work."""
    if name == "ray":
        needed("ray", "ray")
    if name == "slurm":
        needed("submitit", "slurm")
    return import_module(f"{__name__}.{name if name == 'local' else f'on_{name}'}").run


def needed(module: str, extra: str) -> Any:
    """An optional package, or the command that installs it."""
    try:
        return import_module(module)
    except ImportError:
        raise KitError(f"--engine {extra} needs the package {module}: pip install 'brrcrl[{extra}]'") from None


def resources(group: Group, config: ExperimentConfig) -> tuple[float, float]:
    """(CPUs, GPUs) of a training: its method's, or as the command says."""
    wanted = method_named(group.cells[0].method).resources
    return wanted.get("cpus", 1), wanted.get("gpus", 0.0) if config.gpus is None else config.gpus


def give_up(group: Group, why: str) -> Outcome:
    """Note for every cell that is still missing why nothing came of it."""
    for cell in group.missing():
        group.store.fail(cell, why)
    return Outcome(group.train_key)
