"""The same grid on a Ray cluster and through submitit: machines die, jobs are sent back, and the rows are the same."""

from __future__ import annotations

import os
import signal
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from grid_cases import Kit, comparable, in_thread, wait_until

from brrcrl_lib.base.errors import KitError
from brrcrl_lib.study.experiments.running import run_grid

STEPS = list(range(40))


def workers(kit: Kit) -> list[int]:
    """Processes that are training now."""
    claims = kit.config("quick").store.claims
    names = {path.stem for path in claims.folder.glob("*.[0-9]")}
    return [holder.pid for name in names if (holder := claims.holder(name))]


def same_rows(kit: Kit, undisturbed: Kit) -> None:
    made, expected = comparable(kit.rows("quick")), comparable(undisturbed.rows("quick"))
    pd.testing.assert_frame_equal(made, expected[expected.key.isin(made.key)].reset_index(drop=True))
    for key in made.key:
        name = f"{key}.csv.gz"
        assert (kit.work / "traces" / name).read_bytes() == (undisturbed.work / "traces" / name).read_bytes()


def test_a_job_sent_back_to_the_queue_continues(kit: Kit, undisturbed: Kit, monkeypatch) -> None:
    monkeypatch.setenv("FRAGILE_PAUSE", "0.05")
    runner, ended = in_thread(kit.config("quick", engine="slurm", cluster="local", shard="1/4"))

    def steps() -> list[int]:
        return [step for seed in range(4) for step in kit.steps(seed)]

    wait_until(lambda: len(steps()) > 22 or ended)
    assert not ended
    os.kill(workers(kit)[0], signal.SIGUSR2)  # what SLURM sends before it takes a machine away
    runner.join()
    assert ended == [0] and len(kit.rows("quick")) == 2
    stopped = steps().index(20, 21)  # where it began again, at the checkpoint
    assert steps() == [*range(stopped), *range(20, 40)]
    same_rows(kit, undisturbed)


SMALL = {"num_cpus": 1, "object_store_memory": 80 * 2**20, "include_dashboard": False}


def ray_cluster() -> Any:
    """A cluster of one small node. Ray gives its own processes 15 s to start; a machine too busy for that skips."""
    from ray.cluster_utils import Cluster

    for _ in range(2):
        with suppress(Exception, SystemExit):
            return Cluster(initialize_head=True, head_node_args=SMALL)
    pytest.skip("Ray does not start on this machine as busy as it is")


@pytest.mark.slow
def test_a_ray_cluster_loses_a_machine_and_no_row(kit: Kit, undisturbed: Kit, tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))  # Ray keeps a token there
    monkeypatch.setenv("FRAGILE_PAUSE", "0.1")
    monkeypatch.setenv("RAY_USAGE_STATS_ENABLED", "0")
    cluster = ray_cluster()
    try:
        second = cluster.add_node(**SMALL)
        runner, ended = in_thread(kit.config("quick", engine="ray", address=cluster.address))
        wait_until(lambda: ended or (len(workers(kit)) == 2 and max(len(kit.steps(seed)) for seed in range(4)) > 5))
        assert not ended
        cluster.remove_node(second, allow_graceful=False)
        cluster.add_node(**SMALL)
        runner.join()
    finally:
        cluster.shutdown()
    assert ended == [0] and len(kit.rows("quick")) == 8
    twice = [seed for seed in range(4) if kit.steps(seed) != STEPS]
    assert len(twice) <= 1 and all(kit.steps(seed)[-20:] == STEPS[20:] for seed in twice)
    same_rows(kit, undisturbed)


def test_what_is_not_installed_is_named_with_its_command(kit: Kit, monkeypatch) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(KitError, match=r"--engine ray needs the package ray: pip install 'brrcrl\[ray\]'"):
        run_grid(kit.config("quick", engine="ray"))
    monkeypatch.setitem(sys.modules, "submitit", None)
    with pytest.raises(KitError, match=r"pip install 'brrcrl\[slurm\]'"):
        run_grid(kit.config("quick", engine="slurm"))
    monkeypatch.delitem(sys.modules, "submitit")
    monkeypatch.setenv("PATH", "")
    with pytest.raises(KitError, match="there is no SLURM here"):
        run_grid(kit.config("quick", engine="slurm"))
    assert not (kit.work / "trainings").exists()
