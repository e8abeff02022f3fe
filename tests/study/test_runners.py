"""Runners come to harm, are interrupted and meet one another: no row is lost, nothing is trained twice."""

from __future__ import annotations

import os
import signal
import threading
import time
from dataclasses import asdict, replace
from pathlib import Path

import pandas as pd
import pytest
from grid_cases import Kit, comparable, finish, in_thread, wait_until

from brrcrl_lib.base.errors import KitError
from brrcrl_lib.base.files import write_json
from brrcrl_lib.base.locks import hold_folder
from brrcrl_lib.data.vectors import OfflineDataset
from brrcrl_lib.methods.base import config_for
from brrcrl_lib.study.experiments.claims import Claims, Holder
from brrcrl_lib.study.experiments.plan import make_plan
from brrcrl_lib.study.experiments.recording import merge_command
from brrcrl_lib.study.experiments.running import run_grid
from brrcrl_lib.study.experiments.status import look
from brrcrl_lib.training import fit

STEPS = list(range(40))


def test_a_killed_worker_costs_the_cell_in_its_hands_and_nothing_else(kit: Kit, capfd) -> None:
    assert run_grid(kit.config("shaky", workers=2)) == 0
    out, err = capfd.readouterr()
    assert "the worker was killed by SIGKILL; its last words: out of memory, for instance; starting it again" in err
    assert "4 of 4 cells done" in out and len(kit.rows("shaky")) == 4
    assert kit.steps(0) == STEPS  # the other training did not notice
    assert kit.steps(0, deaths=1) == [*range(26), *range(20, 40)]  # continued from its checkpoint at 20


def test_a_group_that_kills_its_worker_three_times_is_reported(kit: Kit, capfd) -> None:
    config = kit.config("doomed")
    assert run_grid(config) == 1
    said = capfd.readouterr().out
    assert "killed by SIGKILL; its last words: out of memory, for instance (started 3 times)" in said
    assert "2 of 4 cells done, 2 missing" in said and "mode=sample: the same" in said
    assert len(kit.rows("doomed")) == 2 and kit.steps(0) == STEPS
    status = look(config)
    assert (status.done, len(status.running), len(status.failed), status.missing) == (2, 0, 2, 0)
    assert run_grid(config) == 0  # what killed it is mended: the rest is made up for
    said = capfd.readouterr().out
    assert "2 to do in 1 trainings" in said and "4 of 4 cells done" in said


def test_a_worker_killed_from_outside_is_replaced(kit: Kit) -> None:
    thread, ended = in_thread(kit.config("slow"))
    wait_until(lambda: len(kit.steps(0)) > 22)
    os.kill(_worker(kit).pid, signal.SIGKILL)
    thread.join()
    assert ended == [0] and len(kit.rows("slow")) == 4
    assert kit.steps(1) == STEPS and kit.steps(0)[-20:] == STEPS[20:]


def test_ctrl_c_ends_at_once_keeps_what_is_finished_and_says_how_to_continue(kit: Kit) -> None:
    runner = kit.start("run", "slow", "--workers", 1)
    wait_until(lambda: len(kit.steps(1)) > 22)  # the first training is finished and measured
    worker = _worker(kit)
    os.killpg(runner.pid, signal.SIGINT)  # as a terminal does
    pressed = time.monotonic()
    code, said = finish(runner)
    assert time.monotonic() - pressed < 10
    assert code == 130 and "What is finished is kept; `brrcrl experiments run slow --preset smoke" in said
    assert "Traceback" not in said
    assert not _alive(worker.pid)
    assert len(kit.rows("slow")) == 2
    before = len(kit.steps(1))
    assert run_grid(kit.config("slow")) == 0 and len(kit.rows("slow")) == 4
    assert kit.steps(0) == STEPS and kit.steps(1)[before:] == STEPS[20:]


def test_workers_end_with_their_runner(kit: Kit) -> None:
    runner = kit.start("run", "slow", "--workers", 1)
    wait_until(lambda: kit.steps(0))
    worker = _worker(kit)
    runner.kill()
    finish(runner)
    wait_until(lambda: not _alive(worker.pid), 10)


def test_two_runners_on_one_folder_share_the_work(kit: Kit, undisturbed: Kit) -> None:
    both = [kit.start("run", "quick", "--workers", 1) for _ in range(2)]
    ended = [finish(runner) for runner in both]
    assert [code for code, _ in ended] == [0, 0], ended
    assert all(kit.steps(seed) == STEPS for seed in range(4))  # every training ran once
    pd.testing.assert_frame_equal(comparable(kit.rows("quick")), comparable(undisturbed.rows("quick")))


def test_the_second_runner_does_the_rest_and_says_who_holds_what_it_waits_for(kit: Kit, capfd) -> None:
    config, said = kit.config("slow"), []
    held = next(cell for cell in make_plan(config).every if cell.seed == 0)
    with config.store.claims.hold(held.train_key) as other:
        assert other is None
        runner, ended = in_thread(config)
        wait_until(lambda: "is held by process" in (said.append(capfd.readouterr().out) or "".join(said)))
        status = look(config)
        assert (status.done, len(status.running), len(status.failed), status.missing) == (2, 1, 0, 0)
        assert "2 done, 2 running" in status.lines()[0] and f"process {os.getpid()} on " in status.lines()[1]
        assert kit.steps(0) == [] and kit.steps(1) == STEPS and not ended
    runner.join()  # now that it is free, the runner does that too
    assert ended == [0] and len(kit.rows("slow")) == 4 and kit.steps(0) == STEPS


def test_shards_side_by_side_give_the_rows_of_one_run(kit: Kit, undisturbed: Kit, capfd) -> None:
    (one, first), (two, second) = (in_thread(kit.config("quick", shard=f"{k}/2")) for k in (1, 2))
    one.join()
    two.join()
    assert first == second == [0] and capfd.readouterr().out.count("4 of 4 cells done") == 2
    assert all(kit.steps(seed) == STEPS for seed in range(4))
    pd.testing.assert_frame_equal(comparable(kit.rows("quick")), comparable(undisturbed.rows("quick")))
    for trace in (undisturbed.work / "traces").iterdir():
        assert trace.read_bytes() == (kit.work / "traces" / trace.name).read_bytes()


def test_merging_makes_the_same_file_again(kit: Kit, undisturbed: Kit, capsys) -> None:
    config, path = undisturbed.config("quick"), undisturbed.work / "quick.csv"
    before = path.read_bytes()
    path.unlink()
    assert merge_command(config) == 0 and "8 rows" in capsys.readouterr().out
    assert path.read_bytes() == before
    status = look(config)
    assert status.done == 8 and status.spent > 0 and status.expected == 0 and status.unknown == ()
    rows = undisturbed.rows("quick")
    trained = rows.drop_duplicates("train_key")["train_seconds"].sum()
    assert status.spent == pytest.approx((trained + rows["seconds"].sum()) / 3600)
    nothing = look(undisturbed.config("slow", work=path.parent / "elsewhere"))
    assert nothing.missing == 4 and nothing.unknown == ("fragile",)
    assert "without fragile: no recorded row says how long" in nothing.lines()[-1]


def test_two_trainings_never_share_a_folder(tmp_path: Path, dataset: OfflineDataset) -> None:
    config = config_for("cloning", "smoke", "box")
    with hold_folder(tmp_path / "run", "training in"):
        with pytest.raises(KitError, match=rf"process {os.getpid()} on .* is training in .*run; wait for it to end"):
            fit(config, dataset, tmp_path / "run")
        assert [path.name for path in (tmp_path / "run").iterdir()] == [".lock"]
    fit(config, dataset, tmp_path / "run")
    fit(config, dataset, tmp_path / "run", resume=True)  # a training that has ended holds nothing


# -- claims ------------------------------------------------------------------------------------------------------


def test_one_of_many_gets_a_claim(tmp_path: Path) -> None:
    claims, won, lost = Claims(tmp_path), [], []
    barrier, over = threading.Barrier(8), threading.Event()

    def take() -> None:
        barrier.wait()
        with claims.hold("training") as other:
            (won if other is None else lost).append(other)
            over.wait()

    threads = [threading.Thread(target=take) for _ in range(8)]
    for thread in threads:
        thread.start()
    wait_until(lambda: len(won) + len(lost) == 8)
    assert len(won) == 1
    over.set()
    for thread in threads:
        thread.join()
    assert claims.holder("training") is None  # and it is free again
    with claims.hold("training") as other:
        assert other is None and claims.starts("training") == 2


def test_claims_of_the_gone_are_taken_over(tmp_path: Path) -> None:
    claims, me = Claims(tmp_path), Holder.me()
    file = tmp_path / "training.1"
    write_json(file, asdict(me))
    assert claims.holder("training") == me
    write_json(file, asdict(replace(me, born="long ago")))  # another process got its number
    assert claims.holder("training") is None
    write_json(file, asdict(replace(me, pid=2**22 + 1)))
    assert claims.holder("training") is None
    away = replace(me, host="elsewhere")
    write_json(file, asdict(away))
    assert claims.holder("training") == away  # of another machine only its signs of life tell
    old = time.time() - 301
    os.utime(file, (old, old))
    assert claims.holder("training") is None
    with claims.hold("training") as other:
        assert other is None and claims.holder("training") is not None


def _worker(kit: Kit) -> Holder:
    """The process that is training."""
    claims = Claims(kit.work / "claims")
    return next(holder for path in claims.folder.glob("*.[0-9]") if (holder := claims.holder(path.stem)))


def _alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False
