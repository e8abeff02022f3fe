"""Processes of this machine, watched one by one: a worker that dies costs the cell in its hands and nothing else."""

from __future__ import annotations

import faulthandler
import multiprocessing
import os
import signal
import sys
import threading
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from multiprocessing import connection, resource_tracker
from typing import Any

from tqdm.auto import tqdm

from brrcrl_lib.study.experiments.engines import STARTS, give_up
from brrcrl_lib.study.experiments.group import Group, Outcome, run_group
from brrcrl_lib.study.experiments.plan import ExperimentConfig

KEEP_FREED_MEMORY = {"MALLOC_TRIM_THRESHOLD_": "1000000000", "MALLOC_MMAP_THRESHOLD_": "1000000000"}
"""For workers: what one step frees the next takes again, where glibc would give it back to the system and ask anew."""


PRELOADED = ["torch", "torch._dynamo", "pandas", "gymnasium", "mujoco", "scipy", "minari"]
"""What takes seconds to import: done once, and a worker that is started later begins at once."""


class Worker:
    """A process that does one group at a time, and what it has in hand."""

    def __init__(self) -> None:
        context: Any = multiprocessing.get_context("forkserver" if sys.platform == "linux" else "spawn")
        context.set_forkserver_preload(PRELOADED)
        self.pipe, theirs = context.Pipe()
        self.process = context.Process(target=_serve, args=(theirs, dict(os.environ)), daemon=True)
        with _deaf_to_interrupts():
            self.process.start()
        theirs.close()  # so that its death shows as the end of the pipe
        self.group: Group | None = None
        self.start = 0

    def give(self, group: Group, start: int) -> None:
        self.group, self.start = group, start
        with suppress(OSError):  # it died before; `answer` will say so
            self.pipe.send(group)

    def answer(self) -> Outcome | None:
        """What became of the group; None if the worker died over it."""
        try:
            return self.pipe.recv()
        except (EOFError, OSError):
            return None

    def last_words(self, group: Group) -> str:
        """How it ended, once it has."""
        self.process.join()
        code = self.process.exitcode or 0
        how = f"killed by {signal.Signals(-code).name}" if code < 0 else f"ended with exit code {code}"
        words = group.store.last_words(group.train_key)
        return f"the worker was {how}" + (f"; its last words: {words}" if words else " and left no word")

    def stop(self, at_once: bool) -> None:
        self.pipe.close()
        if not at_once:
            self.process.join(5)
        self.process.kill()
        self.process.join()


def run(groups: Sequence[Group], config: ExperimentConfig) -> Iterator[Outcome]:
    """Hand out groups until all have ended. A group whose worker dies is started again, STARTS times in all."""
    queue = deque((group, 1) for group in groups)
    team: list[Worker] = []
    finished = False
    os.environ |= KEEP_FREED_MEMORY
    try:
        while queue or any(worker.group for worker in team):
            _hand_out(queue, team, config.workers)
            connection.wait([worker.pipe for worker in team])
            for worker in [worker for worker in team if worker.pipe.poll()]:
                group, outcome = worker.group, worker.answer()
                worker.group = None
                if outcome is None:
                    team.remove(worker)
                if group is not None and outcome is None:
                    outcome = _after_death(worker, group, queue)
                if outcome is not None:
                    yield outcome
        finished = True
    finally:
        for worker in team:
            worker.stop(at_once=not finished)


def _hand_out(queue: deque[tuple[Group, int]], team: list[Worker], workers: int) -> None:
    """Work for everybody who has none; more hands while there is more work than hands."""
    idle = [worker for worker in team if worker.group is None]
    while queue and (idle or len(team) < workers):
        if not idle:
            team.append(Worker())
            idle.append(team[-1])
        idle.pop().give(*queue.popleft())


def _after_death(worker: Worker, group: Group, queue: deque[tuple[Group, int]]) -> Outcome | None:
    """Put the group back, or give it up if this was its last start."""
    words = worker.last_words(group)
    if worker.start >= STARTS:
        return give_up(group, f"{words} (started {STARTS} times)")
    queue.appendleft((group, worker.start + 1))
    tqdm.write(f"{group.describe()}: {words}; starting it again ({worker.start} of {STARTS - 1})", file=sys.stderr)
    return None


# -- inside the worker -------------------------------------------------------------------------------------------


def _serve(pipe: Any, environment: dict[str, str]) -> None:
    """Take groups until the pipe is closed. Without its parent a worker has no reason to live."""
    os.environ |= environment  # as it is now, not as it was when the first worker was started
    threading.Thread(target=_end_with_parent, daemon=True).start()
    while True:
        try:
            group = pipe.recv()
        except EOFError:
            return
        _write_errors_to(group)
        pipe.send(run_group(group))


def _end_with_parent() -> None:
    parent = multiprocessing.parent_process()
    assert parent is not None
    connection.wait([parent.sentinel])
    os._exit(1)


def _write_errors_to(group: Group) -> None:
    """Standard error, also what the system's libraries write there, goes to the log of the training."""
    path = group.store.log(group.train_key)
    path.parent.mkdir(parents=True, exist_ok=True)
    descriptor = os.open(path, os.O_CREAT | os.O_TRUNC | os.O_WRONLY, 0o644)
    os.dup2(descriptor, 2)
    os.close(descriptor)
    faulthandler.enable()


@contextmanager
def _deaf_to_interrupts() -> Iterator[None]:
    """Processes begun here do not hear Ctrl-C, which goes to everybody at the terminal: the parent ends them."""
    if not hasattr(signal, "pthread_sigmask"):
        yield
        return
    resource_tracker.ensure_running()  # else it is begun inside the block, and ends the deafness
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
