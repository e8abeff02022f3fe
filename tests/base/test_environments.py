"""Known noise is dropped, everything else gets through."""

from __future__ import annotations

import warnings

import mujoco
import pytest

from brrcrl_lib.base.environments import make_env


def test_half_cheetah_is_made_in_silence_and_other_warnings_are_heard(capfd, tmp_path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        make_env("HalfCheetah-v5").close()
    assert "settotalmass" not in "".join(capfd.readouterr())
    assert not list(tmp_path.iterdir()), "MuJoCo wrote a log file"
    with pytest.warns(UserWarning, match="MuJoCo: something else"):
        mujoco.get_mju_user_warning()("something else")
