"""Training groups as tasks of a Ray cluster. The work folder and the data are shared between its machines.

Ray starts a task again when its worker or its machine dies. Whatever it loses for good (its head too) is still
missing in the work folder, and the next `brrcrl experiments run` goes on from there.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from typing import Any

from brrcrl_lib.base.errors import KitError
from brrcrl_lib.base.files import ROOT
from brrcrl_lib.study.experiments.engines import STARTS, give_up, needed, resources
from brrcrl_lib.study.experiments.group import Group, Outcome, run_group
from brrcrl_lib.study.experiments.plan import ExperimentConfig

PASSED_ON = ("MINARI_DATASETS_PATH", "BRRCRL_FRAMES_PATH", "BRRCRL_METHODS", "PYTHONPATH")


def run(groups: Sequence[Group], config: ExperimentConfig) -> Iterator[Outcome]:
    """All groups are handed to Ray at once; it knows which machine has room."""
    ray = needed("ray", "ray")
    joined = ray.is_initialized()
    if not joined:
        _join(ray, config)
    task = ray.remote(run_group)
    waiting = {}
    try:
        for group in groups:
            cpus, gpus = resources(group, config)
            options = {"num_cpus": cpus, "num_gpus": gpus, "max_retries": STARTS - 1, "name": group.describe()}
            waiting[task.options(**options).remote(group)] = group
        while waiting:
            (ready,), _ = ray.wait(list(waiting), num_returns=1)
            group = waiting.pop(ready)
            try:
                yield ray.get(ready)
            except ray.exceptions.RayError as error:
                yield give_up(group, f"{type(error).__name__}: {' '.join(str(error).split())[:300]}")
    finally:
        for reference in waiting:
            ray.cancel(reference, force=True)
        if not joined:
            ray.shutdown()


def _join(ray: Any, config: ExperimentConfig) -> None:
    """Connect to a cluster, or start one here with as many CPUs as there are workers."""
    variables = {name: os.environ[name] for name in PASSED_ON if os.environ.get(name)}
    if (ROOT / "pyproject.toml").exists():  # a checkout need not be installed
        variables.setdefault("PYTHONPATH", str(ROOT))
    size = {} if config.address else {"num_cpus": config.workers, "include_dashboard": False}
    options = {"runtime_env": {"env_vars": variables}, "log_to_driver": False, "logging_level": "error", **size}
    try:
        ray.init(address=config.address, **options)
    except (ConnectionError, ValueError, RuntimeError) as error:
        why = (str(error).strip() or type(error).__name__).splitlines()[0]
        where = f"there is no Ray cluster at '{config.address}'" if config.address else "Ray does not start here"
        raise KitError(f"{where}: {why}") from None
