"""`make lab`: works on copies, loses nothing that a reader changed, and starts wherever it is called."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import pytest
from jupyter_client.kernelspec import KernelSpecManager
from jupyter_server.services.config.manager import ConfigManager as LabConfigManager

from brrcrl_lib.tools import lab
from brrcrl_lib.tools.notebooks import KERNEL


@pytest.fixture
def folders(tmp_path: Path) -> tuple[Path, Path]:
    originals = tmp_path / "notebooks"
    originals.mkdir()
    for name in ("01_first", "02_second"):
        (originals / f"{name}.ipynb").write_text(f"{name}, as shipped")
    return originals, tmp_path / "lab"


def test_copies_are_made_once_and_then_left_alone(folders: tuple[Path, Path]) -> None:
    originals, copies = folders
    assert "2 new from notebooks/" in lab.copy_notebooks(*folders)
    (copies / "01_first.ipynb").write_text("my experiment")
    assert "as you left them" in lab.copy_notebooks(*folders)
    assert (copies / "01_first.ipynb").read_text() == "my experiment"
    assert (originals / "01_first.ipynb").read_text() == "01_first, as shipped"


def test_a_newer_original_replaces_its_copy_and_what_the_reader_changed_is_kept(folders: tuple[Path, Path]) -> None:
    originals, copies = folders
    lab.copy_notebooks(*folders)
    (copies / "01_first.ipynb").write_text("my experiment")
    for path in originals.iterdir():
        path.write_text(f"{path.stem}, new")
    said = lab.copy_notebooks(*folders)
    assert "2 new" in said and "1 that you had changed" in said and said.count("\n") == 0
    assert (copies / "01_first.ipynb").read_text() == "01_first, new"
    assert (copies / "02_second.ipynb").read_text() == "02_second, new"
    assert [path.read_text() for path in copies.glob("01_first_2*.ipynb")] == ["my experiment"]
    assert list(copies.glob("02_second_*")) == []


def test_jupyter_finds_the_kits_kernel_and_settings_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JUPYTER_PATH", str(tmp_path / "mine"))
    monkeypatch.delenv("JUPYTER_CONFIG_PATH", raising=False)
    found = lab.register(tmp_path / "kit")
    assert found["JUPYTER_PATH"].split(os.pathsep) == [str(tmp_path / "kit"), str(tmp_path / "mine")]
    for name, value in found.items():
        monkeypatch.setenv(name, value)
    spec = KernelSpecManager().get_kernel_spec("python3")
    assert spec.display_name == KERNEL["display_name"] == "BR-RCRL kit" and spec.argv[0] == sys.executable
    settings = LabConfigManager(config_dir_name="labconfig").get("default_setting_overrides")
    assert settings == lab.SETTINGS


def test_a_lost_copy_comes_back(folders: tuple[Path, Path]) -> None:
    lab.copy_notebooks(*folders)
    (folders[1] / "01_first.ipynb").unlink()
    assert "1 new" in lab.copy_notebooks(*folders)
    assert (folders[1] / "01_first.ipynb").read_text() == "01_first, as shipped"


def test_the_settings_are_ones_that_the_widget_manager_knows() -> None:
    schemas = Path(sys.prefix, "share/jupyter/labextensions/@jupyter-widgets/jupyterlab-manager/schemas")
    for plugin, values in lab.SETTINGS.items():
        schema = json.loads((schemas / f"{plugin.replace(':', '/')}.json").read_text())
        assert set(values) <= set(schema["properties"])


def test_root_is_allowed_and_flags_are_passed_on() -> None:
    assert lab.flags(["--port=9"], root=False) == [f"--notebook-dir={lab.COPIES}", "--port=9"]
    assert lab.flags(["--port=9"], root=True)[1:] == ["--allow-root", "--port=9"]
    assert lab.flags(["--allow-root"], root=True).count("--allow-root") == 1
