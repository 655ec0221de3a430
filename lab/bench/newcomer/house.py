"""An empty house: a home with nothing in it, an environment that names nothing of ours, and the wheel installed."""

import os
import subprocess
import sys
import venv
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[3]
_SYSTEM = "/usr/local/bin:/usr/bin:/bin"
_INSTALL_S = 600


@dataclass(frozen=True, slots=True)
class House:
    """Where a new user lives."""

    folder: Path
    tools: Path | None = None
    """Where what he has already lies; None: he has Python alone."""

    @property
    def home(self) -> Path:
        """It was empty."""
        return self.folder / "home"

    @property
    def bin(self) -> Path:
        """Of the environment that the wheel is in, where it was not installed by a tool."""
        return self.folder / "venv" / "bin"

    @property
    def environment(self) -> dict[str, str]:
        """Of the processes there."""
        path = [str(self.bin), str(self.home / ".local" / "bin"), *([str(self.tools)] if self.tools else []), _SYSTEM]
        return {"HOME": str(self.home), "PATH": ":".join(path), "LANG": "C.UTF-8"} | (
            _registries() if self.tools else {}
        )


def built_wheel(folder: Path) -> Path:
    """A wheel of this checkout."""
    _run([sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(folder)], ROOT, dict(os.environ))
    (wheel,) = folder.glob("*.whl")
    return wheel


def tools(folder: Path, *packages: str) -> Path:
    """What a new user has before: commands of packages of the registry, in a folder of their own."""
    venv.create(folder, with_pip=True, symlinks=True)
    _run([str(folder / "bin" / "pip"), "install", "--quiet", *packages], folder, dict(os.environ))
    chosen = folder / "chosen"
    chosen.mkdir()
    for package in packages:
        (chosen / package).symlink_to(folder / "bin" / package)
    return chosen


def borrowed(folder: Path, wheel: Path) -> House:
    """The wheel, and all that it needs from our own environment: in a second instead of a minute."""
    house = House(folder)
    house.home.mkdir(parents=True)
    venv.create(folder / "venv", with_pip=False, symlinks=True)
    python = house.bin / "python"
    arguments = ["--python", str(python), "install", "--quiet", "--no-deps", "--no-index", str(wheel)]
    _run([sys.executable, "-m", "pip", *arguments], house.home, dict(os.environ))
    (packages,) = (house.folder / "venv" / "lib").glob("python3.*/site-packages")
    ours = Path(sys.prefix) / packages.relative_to(house.folder / "venv")
    # Its own packages come first, and where our editable checkout is nobody reads: that is said in a .pth of its own.
    (packages / "borrowed.pth").write_text(f"{ours}\n", encoding="utf-8")
    for program in ("mitmdump", "mitmweb"):
        script = (ours.parents[2] / "bin" / program).read_text(encoding="utf-8").split("\n", 1)[1]
        (house.bin / program).write_text(f"#!{python}\n{script}", encoding="utf-8")
        (house.bin / program).chmod(0o755)
    return house


def _registries() -> dict[str, str]:
    """How this machine reaches the registries, and which Python uv is to take instead of fetching a Python."""
    authority = os.environ.get("SSL_CERT_FILE") or os.environ.get("PIP_CERT")
    found = {name: os.environ[name] for name in ("PIP_INDEX_URL", "UV_INDEX_URL") if name in os.environ}
    if authority:
        found |= {"SSL_CERT_FILE": authority, "NODE_EXTRA_CA_CERTS": authority}
    return found | {"UV_PYTHON": str(Path(sys.executable).resolve())}


def _run(command: list[str], folder: Path, environment: dict[str, str]) -> None:
    done = subprocess.run(
        command, cwd=folder, env=environment, capture_output=True, text=True, timeout=_INSTALL_S, check=False
    )
    if done.returncode:
        raise RuntimeError(f"{' '.join(command)} failed with status {done.returncode}:\n{done.stdout}\n{done.stderr}")
