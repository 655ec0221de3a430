"""Where the files that are not Python lie: in a checkout, and in an installed wheel."""

from pathlib import Path

_PACKAGE = Path(__file__).resolve().parents[2]
_CHECKOUT = _PACKAGE.parents[1]


def _find(*, wheel: Path, checkout: Path) -> Path:
    for place in (wheel, checkout):
        if place.exists():
            return place
    msg = f"this installation of hivemind_addon lacks {wheel}: install the package again"
    raise FileNotFoundError(msg)


def checkout_folder() -> Path | None:
    """The checkout's top folder; None in an installed package."""
    return _CHECKOUT if (_CHECKOUT / "lab" / "__init__.py").is_file() else None


def profiles_folder() -> Path:
    """The folder of the packaged profiles. FileNotFoundError: the installation is damaged."""
    return _find(wheel=_PACKAGE / "data" / "profiles", checkout=_CHECKOUT / "profiles")


def tools_folder() -> Path:
    """The folder of the packaged profiles of services that are no models. FileNotFoundError: as above."""
    return profiles_folder() / "tools"


def formats_folder() -> Path:
    """The folder of the packaged wire formats. FileNotFoundError: the installation is damaged."""
    return profiles_folder() / "formats"


def scenarios_folder() -> Path:
    """The folder of the packaged scenarios. FileNotFoundError: the installation is damaged."""
    return _find(wheel=_PACKAGE / "data" / "scenarios", checkout=_CHECKOUT / "scenarios")


def schemas_folder() -> Path:
    """The folder of the JSON Schemas of our YAML files, which `make docs` writes."""
    return _PACKAGE / "data" / "schemas"


def script_path() -> Path:
    """The script that `mitmdump -s` takes. FileNotFoundError: the installation is damaged."""
    return _find(wheel=_PACKAGE / "data" / "script" / "hivemind_addon", checkout=_CHECKOUT / "hivemind_addon")
