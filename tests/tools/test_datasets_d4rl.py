"""Importing files in D4RL's layout, which the tests write themselves."""

import tracemalloc

import h5py
import numpy as np
import pytest

from brrcrl_lib.base.errors import KitError
from brrcrl_lib.data.minari import load_dataset
from brrcrl_lib.data.registry import list_datasets
from brrcrl_lib.tools.importing.d4rl import ImportConfig, import_d4rl
from brrcrl_lib.tools.publishing.verify import verify

LENGTHS, TAIL = (5, 3, 1, 8, 4), 2
ID = "d4rl/pendulum/medium-replay-v2"


def table(lengths=LENGTHS, tail=TAIL, next_observations=True, seed=0):
    """Rows of episodes that end by terminals and timeouts in turn, and `tail` rows of an unfinished one."""
    rng = np.random.default_rng(seed)
    steps = sum(lengths) + tail
    terminals, timeouts = np.zeros(steps, bool), np.zeros(steps, bool)
    ends = np.cumsum(lengths, dtype=np.int64) - 1
    terminals[ends[::2]], timeouts[ends[1::2]] = True, True
    rows = {
        "observations": rng.normal(size=(steps, 3)).astype(np.float32),
        "actions": rng.uniform(-2, 2, (steps, 1)).astype(np.float32),
        "rewards": rng.normal(size=steps).astype(np.float32),
        "terminals": terminals,
        "timeouts": timeouts,
    }
    if next_observations:
        rows["next_observations"] = np.roll(rows["observations"], -1, 0)
        rows["next_observations"][ends] = rng.normal(size=(len(ends), 3))
    return rows


def save(path, rows):
    with h5py.File(path, "w") as file:
        for name, values in rows.items():
            file[name] = values
        file.create_group("infos")["qpos"] = np.zeros(3)  # D4RL files hold more than is needed
        file.create_group("metadata")
    return path


def run(tmp_path, rows, **options):
    file = save(tmp_path / "pendulum_medium_replay-v2.hdf5", rows)
    return import_d4rl(ImportConfig(file, "Pendulum-v1", ID, root=tmp_path / "root", **options))


def nothing_was_written(tmp_path):
    root = tmp_path / "root"
    return not root.exists() or not any(root.iterdir())


@pytest.mark.parametrize("chunk_rows", [1, 4, 7, 1000])
def test_episodes_are_split_at_terminals_and_timeouts(tmp_path, chunk_rows):
    rows = table()
    report = run(tmp_path, rows, chunk_rows=chunk_rows)
    data = load_dataset(ID, root=tmp_path / "root")
    steps = sum(LENGTHS)
    assert data.lengths.tolist() == list(LENGTHS)
    for name in ("observations", "actions", "rewards"):
        assert np.array_equal(getattr(data, name).numpy(), rows[name][:steps])
    ends = np.cumsum(LENGTHS) - 1
    assert np.array_equal(data.final_observations.numpy(), rows["next_observations"][ends])
    assert data.terminations.nonzero().flatten().tolist() == ends[::2].tolist()
    assert data.truncations.nonzero().flatten().tolist() == ends[1::2].tolist()
    assert (report.rows, report.transitions, report.episodes, report.tail_rows) == (steps + TAIL, steps, 5, TAIL)
    assert "last 2 rows belong to an unfinished episode and were dropped" in str(report)


def test_the_tail_can_be_kept_as_a_truncated_episode(tmp_path):
    report = run(tmp_path, table(), tail="keep", chunk_rows=6)
    data = load_dataset(ID, root=tmp_path / "root")
    assert data.lengths.tolist() == [*LENGTHS, TAIL]
    assert data.truncations[-1] and not data.terminations[-1]
    assert "kept as a truncated one" in str(report)
    assert data.card["card"]["tail"] == "keep"


def test_a_file_that_ends_with_an_episode_has_no_tail(tmp_path):
    report = run(tmp_path, table(tail=0))
    assert report.tail_rows == 0 and report.notes == []


def test_without_next_observations_the_last_one_is_repeated_and_said(tmp_path):
    rows = table(next_observations=False)
    report = run(tmp_path, rows)
    data = load_dataset(ID, root=tmp_path / "root")
    assert np.array_equal(data.final_observations.numpy(), rows["observations"][np.cumsum(LENGTHS) - 1])
    assert data.returns.sum().item() == pytest.approx(rows["rewards"][: sum(LENGTHS)].sum(), abs=1e-5)
    assert "no next_observations" in str(report)


def test_a_row_that_is_terminal_and_timeout_counts_as_terminal(tmp_path):
    rows = table()
    rows["timeouts"][4] = True
    run(tmp_path, rows)
    data = load_dataset(ID, root=tmp_path / "root")
    assert data.terminations[4] and not data.truncations[4]


def test_an_import_passes_verification(tmp_path):
    run(tmp_path, table())
    rows = verify(tmp_path / "root")
    assert all(row.ok for row in rows), rows
    assert next(row.details for row in rows if row.check == "replay") == "skipped: no seeds recorded"


def test_a_known_name_with_another_size_is_reported(tmp_path):
    file = save(tmp_path / "file.hdf5", table())
    report = import_d4rl(ImportConfig(file, "Pendulum-v1", "d4rl/hopper/medium-replay-v2", root=tmp_path / "root"))
    assert "hopper-medium-replay-v2 has 402,000 rows; this file has 23" in str(report)


def test_actions_outside_the_box_are_reported(tmp_path):
    rows = table()
    rows["actions"][3] = 2.5
    assert "1 actions lie outside" in str(run(tmp_path, rows))
    assert not next(row.ok for row in verify(tmp_path / "root") if row.check == "actions")


def without(rows, key):
    return {name: values for name, values in rows.items() if name != key}


def with_value(rows, key, index, value):
    rows[key] = rows[key].copy()
    rows[key][index] = value
    return rows


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        (without(table(), "rewards"), "lacks rewards; it holds actions"),
        (without(table(), "timeouts"), "lacks timeouts"),
        (table() | {"rewards": np.zeros(5, np.float32)}, "columns of different lengths: .*rewards 5"),
        (table() | {"next_observations": np.zeros((5, 3))}, "columns of different lengths"),
        ({name: values[:0] for name, values in table().items()}, "is empty"),
        (
            table() | {"actions": np.zeros((23, 6), np.float32)},
            r"shape \(6,\) per row; Pendulum-v1 has \(1,\)",
        ),
        (table() | {"observations": np.zeros((23, 11), np.float32)}, r"observations have shape \(11,\)"),
        (table() | {"rewards": np.zeros((23, 1), np.float32)}, r"rewards have shape \(1,\) per row"),
        (table() | {"rewards": np.float32(1)}, "rewards should be an array"),
        (with_value(table(), "rewards", 17, np.nan), "rewards are not finite in row 17"),
        (with_value(table(), "actions", 2, np.inf), "actions are not finite in row 2"),
        (with_value(table(), "next_observations", 9, np.nan), "next_observations are not finite in row 9"),
        (table(lengths=(), tail=6), "holds no finished episode"),
    ],
)
def test_wrong_tables_are_refused_and_leave_nothing(tmp_path, rows, message):
    with pytest.raises(KitError, match=message):
        run(tmp_path, rows, chunk_rows=4)
    assert nothing_was_written(tmp_path)


def test_files_that_are_no_tables_are_refused_and_leave_nothing(tmp_path):
    file = save(tmp_path / "whole.hdf5", table(lengths=(500,) * 20))
    whole = file.read_bytes()
    broken = {"truncated": whole[: len(whole) // 2], "empty": b"", "text": b"this is no HDF5 file" * 50}
    for name, content in broken.items():
        (tmp_path / name).write_bytes(content)
        with pytest.raises(KitError, match="cannot be read"):
            import_d4rl(ImportConfig(tmp_path / name, "Pendulum-v1", ID, root=tmp_path / "root"))
    with pytest.raises(KitError, match="no file at"):
        import_d4rl(ImportConfig(tmp_path / "absent", "Pendulum-v1", ID, root=tmp_path / "root"))
    assert nothing_was_written(tmp_path)


def test_data_that_breaks_halfway_leaves_nothing(tmp_path):
    """The table opens, and a compressed chunk in its middle is damaged."""
    rows = table(lengths=(500,) * 20)
    file = tmp_path / "damaged.hdf5"
    with h5py.File(file, "w") as store:
        for name, values in rows.items():
            store.create_dataset(name, data=values, chunks=(1000, *values.shape[1:]), compression="gzip")
        place = store["observations"].id.get_chunk_info(6).byte_offset
    content = bytearray(file.read_bytes())
    content[place : place + 500] = bytes(500)
    file.write_bytes(content)
    with pytest.raises(KitError, match="cannot be read"):
        import_d4rl(ImportConfig(file, "Pendulum-v1", ID, root=tmp_path / "root", chunk_rows=1000))
    assert nothing_was_written(tmp_path)


def test_bad_requests(tmp_path):
    file = save(tmp_path / "file.hdf5", table())
    with pytest.raises(KitError, match="environment 'Pendulum-v99' cannot be made"):
        import_d4rl(ImportConfig(file, "Pendulum-v99", ID, root=tmp_path / "root"))
    with pytest.raises(KitError, match="is no dataset id"):
        import_d4rl(ImportConfig(file, "Pendulum-v1", "no version", root=tmp_path / "root"))
    with pytest.raises(KitError, match="no vectors of numbers"):
        import_d4rl(ImportConfig(file, "CartPole-v1", ID, root=tmp_path / "root"))
    run(tmp_path, table())
    with pytest.raises(KitError, match="exists in"):
        run(tmp_path, table())
    run(tmp_path, table(seed=1), overwrite=True)
    assert list_datasets(tmp_path / "root") == [ID]


def test_memory_does_not_grow_with_the_file(tmp_path):
    """Eight times the rows, the same chunks: much less than eight times the memory."""
    peaks = []
    for episodes in (10, 80):
        file = save(tmp_path / f"{episodes}.hdf5", table(lengths=(2000,) * episodes, tail=0))
        tracemalloc.start()
        config = ImportConfig(file, "Pendulum-v1", f"test/rows-{episodes}-v0", root=tmp_path, chunk_rows=5000)
        import_d4rl(config)
        peaks.append(tracemalloc.get_traced_memory()[1])
        tracemalloc.stop()
    assert peaks[1] < 3 * peaks[0]
