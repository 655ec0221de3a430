"""`hivemind.yaml`: which file counts, what it may say, and how a mistake in it is told."""

import os
import re
from pathlib import Path

import pytest
from jsonschema import Draft202012Validator

from hivemind_addon.formats.base.document import read_yaml
from hivemind_addon.formats.base.resources import checkout_folder
from hivemind_addon.formats.base.typed import DocumentError
from hivemind_addon.proxy.api.config_file import (
    BOOLEANS,
    PREFIX,
    PROJECT_KEYS,
    RUN_KEYS,
    ConfigFile,
    check_keys,
    option_values,
    read_config,
    run_setting,
    setting,
    user_file,
)
from hivemind_addon.proxy.run.option_table import OPTIONS
from lab.generators.schemas import config_schema
from tests.cases import each

KEYS = [option.name.removeprefix(PREFIX) for option in OPTIONS]


@pytest.fixture
def project(tmp_path, monkeypatch):
    """A folder in a project with a file, and a user with one."""
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    user_file().parent.mkdir(parents=True)
    user_file().write_text("keep: off\njournal: mine.db\nmax_concurrency: 2\n")
    inner = tmp_path / "project" / "src"
    inner.mkdir(parents=True)
    (tmp_path / "project" / "hivemind.yaml").write_text(
        "port: 9090\nmax_concurrency: 4\nkeep: 3 flows\nagents: agents.yaml\n"
    )
    return inner


def test_the_environment_comes_first_then_the_project_and_for_bounds_the_user(project):
    files = read_config({}, project)
    assert [file.is_project for file in files] == [True, False]
    mine = str(files[1].path)
    check_keys(files, KEYS)
    said = option_values(KEYS, {"HIVEMIND_AGENTS": "/a.yaml", "HIVEMIND_CLUSTER": "valkey://x"}, files)
    assert {key: (one.value, one.origin) for key, one in said.items()} == {
        "agents": ("/a.yaml", "HIVEMIND_AGENTS"),
        "max_concurrency": (2, mine),
        "keep": ("3 flows", str(files[0].path)),
        "journal": (str(user_file().parent / "mine.db"), mine),
    }
    assert setting("max_concurrency", "", {}, files[:1]).value == 4, "where the user says nothing"
    assert setting("agents", "", {}, files).value == str(project.parent / "agents.yaml")
    assert run_setting("port", {}, files).value == 9090
    assert run_setting("port", {"HIVEMIND_PORT": "7"}, files).value == 7
    assert run_setting("web", {"HIVEMIND_WEB": "true"}, files).value is True
    assert run_setting("host", {}, files).is_default


def test_a_file_may_be_named_or_switched_off(project):
    file = project / "other.yaml"
    file.write_text("notify: beep\n")
    (named,) = read_config({"HIVEMIND_CONFIG": str(file)}, project)
    check_keys([named], KEYS)
    assert named.values == {"notify": "beep"}
    assert read_config({"HIVEMIND_CONFIG": "off"}, project) == ()


@pytest.mark.skipif(not hasattr(os, "geteuid") or os.geteuid() != 0, reason="only root may give files away")
def test_a_file_or_folder_of_somebody_else_says_nothing(project):
    os.chown(project.parent / "hivemind.yaml", 12345, -1)
    assert [file.is_project for file in read_config({}, project)] == [False]
    os.chown(project.parent / "hivemind.yaml", 0, -1)
    os.chown(project, 12345, -1)
    assert [file.is_project for file in read_config({}, project)] == [False]


@each(
    ("text", "is_project", "words"),
    [
        ("max_concurency: 4", True, "max_concurency: no such key; did you mean max_concurrency?"),
        ("hivemind_keep: off", False, "hivemind_keep: no such key; did you mean keep?"),
        (
            "notify: rm",
            True,
            "notify: a project's file may not say what runs, nor where keys and files go; move it to ",
        ),
        ("upstream: http://x", True, "or trust this file: HIVEMIND_CONFIG=/p/hivemind.yaml"),
    ],
)
def test_a_key_that_is_none_or_not_a_projects_is_one_line_with_file_and_cure(text, is_project, words):
    key, _, value = text.partition(": ")
    with pytest.raises(DocumentError) as said:
        check_keys([ConfigFile(Path("/p/hivemind.yaml"), is_project, {key: value})], KEYS)
    assert str(said.value).startswith("/p/hivemind.yaml: ")
    assert words in str(said.value)


@each(("key", "value"), [("port", "x"), ("port", 0), ("port", 65536), ("port", True), ("web", "yes"), ("host", 7)])
def test_a_value_of_another_kind_is_one_line(key, value):
    with pytest.raises(DocumentError, match=f"^/p/hivemind.yaml: {key}: .* is not .*; write "):
        run_setting(key, {}, [ConfigFile(Path("/p/hivemind.yaml"), False, {key: value})])


def test_nothing_that_runs_or_leads_keys_elsewhere_is_a_projects_to_say():
    harmless = {"agents", "max_concurrency", "total_budget", "agent_budget", "refuse_unpriced"}
    guarded = {option.name.removeprefix(PREFIX) for option in OPTIONS if option.is_guarded}
    assert guarded & PROJECT_KEYS == harmless
    assert set(KEYS) | set(RUN_KEYS) >= PROJECT_KEYS
    assert {option.name.removeprefix(PREFIX) for option in OPTIONS if option.type is bool} <= BOOLEANS
    assert set(config_schema()["properties"]) == {*RUN_KEYS, *KEYS}


def test_the_schema_says_what_the_reader_says():
    page = (checkout_folder() / "docs" / "options.md").read_text(encoding="utf-8")
    (example,) = re.findall(r"```yaml\n(.*?)```", page, re.DOTALL)
    is_valid = Draft202012Validator(config_schema()).is_valid
    for text, is_right in (
        (example, True),
        ("reverse_hosts: [a.test]\nmax_concurrency: '4'\nweb: true", True),
        ("max_concurency: 4", False),
        ("web: 3", False),
        ("port: many", False),
    ):
        document = read_yaml(text, Path("hivemind.yaml"))
        assert is_valid(document) is is_right, text
        wrong = ""
        try:
            file = ConfigFile(Path("hivemind.yaml"), is_project=False, values=document)
            check_keys([file], KEYS)
            for key in RUN_KEYS:
                run_setting(key, {}, [file])
        except DocumentError as error:
            wrong = str(error)
        assert bool(wrong) is not is_right, wrong
    Draft202012Validator.check_schema(config_schema())
