"""The kinds of YAML files that there are, for `schemas/*.json`."""

from collections.abc import Mapping

from hivemind_addon.formats.profile.format import WireFormat
from hivemind_addon.formats.profile.formats import packaged_formats
from hivemind_addon.formats.profile.grants import AgentRules
from hivemind_addon.formats.profile.model import Profile
from hivemind_addon.formats.profile.rules import FORMAT_RULES, PROFILE_RULES
from hivemind_addon.plugins.fleets.tasks.fleet_file import BATCH_RULES, FLEET_RULES, FleetFile
from hivemind_addon.plugins.fleets.tasks.model import TaskSpec
from hivemind_addon.proxy.api.config_file import PREFIX, RUN_KEYS
from hivemind_addon.proxy.run.option_table import OPTIONS
from hivemind_addon.sim.library import SCENARIO_RULES, ScenarioFile
from hivemind_addon.tools.launch.programs import ProgramTable
from lab.generators.json_schema import DocumentKind

_FORMATS: Mapping[type, tuple[str, ...]] = {WireFormat: tuple(packaged_formats())}
_SPLIT: Mapping[tuple[type, str], type] = {(TaskSpec, "command"): str}

CONFIG = "config"
"""The name of the schema of `hivemind.yaml`, whose keys are the options of the proxy."""


def config_schema() -> dict[str, object]:
    """The JSON Schema of `hivemind.yaml`."""
    kinds: Mapping[object, list[str]] = {bool: ["boolean"], int: ["integer"], str: ["string", "number"]}
    keys: dict[str, object] = {
        key: {"type": kinds[kind][0], "description": about, "default": default}
        for key, (kind, default, about) in RUN_KEYS.items()
    }
    keys |= {
        option.name.removeprefix(PREFIX): {
            **({"type": kinds[option.type]} if option.type in kinds else _TEXTS),
            "description": option.help,
            "default": option.default,
        }
        for option in OPTIONS
    }
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "hivemind.yaml: the options of a proxy",
        "type": "object",
        "properties": keys,
        "additionalProperties": False,
    }


_TEXTS = {"type": ["array", "string"], "items": {"type": "string"}}

DOCUMENTS: Mapping[str, DocumentKind] = {
    "profile": DocumentKind(
        "A profile: one provider",
        Profile,
        PROFILE_RULES,
        extends="The profile whose keys it takes, and changes.",
        named=_FORMATS,
    ),
    "format": DocumentKind(
        "A wire format", WireFormat, FORMAT_RULES, extends="The format whose keys it changes.", named=_FORMATS
    ),
    "agents": DocumentKind("What agents may have", AgentRules, PROFILE_RULES),
    "fleet": DocumentKind("A fleet: tasks with dependencies", FleetFile, FLEET_RULES, also=_SPLIT),
    "batch": DocumentKind("A batch: a list of tasks", TaskSpec, BATCH_RULES, is_list=True, also=_SPLIT),
    "scenario": DocumentKind("A scenario: simulated load", ScenarioFile, SCENARIO_RULES),
    "programs": DocumentKind("What is known of agents' programs", ProgramTable),
}
"""Name of the schema → the kind of file."""
