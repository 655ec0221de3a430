from pathlib import Path

import pytest

from hivemind_addon.formats.base import resources


def test_a_checkout_has_its_profiles_and_its_script_at_the_top():
    assert (resources.profiles_folder() / "anthropic.yaml").is_file()
    assert (resources.scenarios_folder() / "stress.yaml").is_file()
    assert (resources.schemas_folder() / "profile.json").is_file()
    assert resources.script_path().is_file()
    assert resources.script_path().name == "hivemind_addon"


def test_an_installed_wheel_has_them_inside_the_package(tmp_path, monkeypatch):
    package = tmp_path / "site-packages" / "hivemind_addon"
    (package / "data" / "profiles").mkdir(parents=True)
    (package / "data" / "scenarios").mkdir()
    (package / "data" / "script").mkdir()
    (package / "data" / "script" / "hivemind_addon").touch()
    monkeypatch.setattr(resources, "_PACKAGE", package)
    monkeypatch.setattr(resources, "_CHECKOUT", tmp_path)
    assert resources.profiles_folder() == package / "data" / "profiles"
    assert resources.scenarios_folder() == package / "data" / "scenarios"
    assert resources.script_path() == package / "data" / "script" / "hivemind_addon"


def test_a_damaged_installation_is_told_in_one_line(tmp_path, monkeypatch):
    monkeypatch.setattr(resources, "_PACKAGE", tmp_path / "package")
    monkeypatch.setattr(resources, "_CHECKOUT", tmp_path)
    with pytest.raises(FileNotFoundError, match="install the package again"):
        resources.profiles_folder()


def test_the_wheel_is_built_with_them():
    pyproject = (Path(__file__).parents[3] / "pyproject.toml").read_text()
    assert '"profiles" = "hivemind_addon/data/profiles"' in pyproject
    assert '"scenarios" = "hivemind_addon/data/scenarios"' in pyproject
    assert '"examples" = "hivemind_addon/data/examples"' in pyproject
    assert 'packages = ["src/hivemind_addon"]' in pyproject
    assert '"hivemind_addon" = "hivemind_addon/data/script/hivemind_addon"' in pyproject
