"""Training groups as an array of SLURM jobs, through submitit. The work folder is on a file system that all nodes see.

A job that reaches its time limit or is pre-empted is queued again and continues from the training's checkpoint. The
launcher may go: jobs leave their rows in the work folder, and `brrcrl experiments status` and `merge` read them there.
"""

from __future__ import annotations

import math
import shutil
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from brrcrl_lib.base.errors import KitError
from brrcrl_lib.study.experiments.engines import give_up, needed, resources
from brrcrl_lib.study.experiments.group import Group, Outcome, run_group
from brrcrl_lib.study.experiments.plan import ExperimentConfig

POLL = {"slurm": 15.0, "local": 0.5}
"""Seconds between two looks at the jobs."""


@dataclass(frozen=True)
class Job:
    """A group as submitit wants it: to be called, and to be sent back to the queue."""

    group: Group

    def __call__(self) -> Outcome:
        return run_group(self.group)

    def checkpoint(self) -> Any:
        """The same again: the training's own checkpoint says how far it was."""
        return needed("submitit", "slurm").helpers.DelayedSubmission(self)


def run(groups: Sequence[Group], config: ExperimentConfig) -> Iterator[Outcome]:
    """SLURM gets everything at once and knows how much may run (--workers); this machine gets so much at a time."""
    limit = len(groups) if config.cluster == "slurm" else config.workers
    waiting = list(groups)
    jobs: list[tuple[Any, Group]] = []
    try:
        while waiting or jobs:
            room = limit - len(jobs)
            now, waiting = waiting[:room], waiting[room:]
            jobs += _submit(now, config)
            ended = [(job, group) for job, group in jobs if job.done()]
            jobs = [entry for entry in jobs if entry not in ended]
            for job, group in ended:
                yield _outcome(job, group)
            time.sleep(0 if ended else POLL[config.cluster])
    finally:
        for job, _ in jobs:
            job.cancel(check=False)


def _submit(groups: Sequence[Group], config: ExperimentConfig) -> list[tuple[Any, Group]]:
    """One array of jobs per size of job."""
    jobs: list[tuple[Any, Group]] = []
    for size in dict.fromkeys(resources(group, config) for group in groups):
        executor = make_executor(config, *size)
        same = [group for group in groups if resources(group, config) == size]
        with executor.batch():
            array = [executor.submit(Job(group)) for group in same]
        jobs += zip(array, same, strict=True)
    return jobs


def make_executor(config: ExperimentConfig, cpus: float, gpus: float) -> Any:
    """submitit's executor with what a job asks for."""
    submitit = needed("submitit", "slurm")
    if config.cluster == "slurm" and shutil.which("sbatch") is None:
        raise KitError(
            "there is no SLURM here (sbatch is not found); --cluster local runs the same jobs on this machine"
        )
    executor = submitit.AutoExecutor(folder=config.work.absolute() / "slurm" / "%j", cluster=config.cluster)
    executor.update_parameters(
        name=f"brrcrl-{config.grid}",
        timeout_min=config.minutes,
        cpus_per_task=math.ceil(cpus),
        gpus_per_node=math.ceil(gpus),
        slurm_array_parallelism=config.workers,
        **{f"slurm_{name}": value for name, value in config.slurm.items()},
    )
    return executor


def _outcome(job: Any, group: Group) -> Outcome:
    error = job.exception()
    if error is None:
        return job.result()
    return give_up(group, f"SLURM job {job.job_id}: {' '.join(str(error).split())[-300:]}")
