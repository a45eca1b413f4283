"""The distribution: its lists agree, its wheel is whole, and its names are ours alone."""

import importlib
import importlib.metadata
import importlib.util
import os
import re
import shutil
import subprocess
import sys
import tomllib
import zipfile
from email import message_from_bytes
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[2]
CONFIG: dict[str, Any] = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
PACKAGES: list[str] = CONFIG["tool"]["uv"]["build-backend"]["module-name"]
EXTRAS: dict[str, list[str]] = CONFIG["project"]["optional-dependencies"]

#: Type-checked like the packages, but never shipped.
NOT_SHIPPED = {"benchmarks", "tests"}


def run(*command: str | Path, cwd: Path, **environment: str) -> str:
    """Run a command and return what it printed; a failure shows all of it."""
    # PYTHONPATH would let the checkout stand in for the wheel under test.
    inherited = {k: v for k, v in os.environ.items() if k not in {"PYTHONPATH", "VIRTUAL_ENV"}}
    done = subprocess.run(
        [str(part) for part in command],
        cwd=cwd,
        env=inherited | environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        encoding="utf-8",
        check=False,
    )
    assert done.returncode == 0, f"{command} exited with {done.returncode}:\n{done.stdout}"
    return done.stdout


def find_uv() -> list[str | Path] | None:
    """The uv that `make` installed, or one on the path, or the module."""
    if (ours := ROOT / ".uv" / "bin" / "uv").exists():
        return [ours]
    if (on_path := shutil.which("uv")) is not None:
        return [on_path]
    if importlib.util.find_spec("uv") is not None:
        return [sys.executable, "-m", "uv"]
    return None


# --- the lists agree ----------------------------------------------------------------------------


def test_wheel_lists_every_package_folder() -> None:
    folders = {path.parent.name for path in ROOT.glob("*/__init__.py")} - NOT_SHIPPED
    assert folders == set(PACKAGES)


def test_import_linter_knows_every_package() -> None:
    linter = CONFIG["tool"]["importlinter"]
    assert set(linter["root_packages"]) == set(PACKAGES)
    layers = [contract for contract in linter["contracts"] if contract["type"] == "layers"]
    assert len(layers) == 1
    layered = [name.strip() for layer in layers[0]["layers"] for name in re.split(r"[|:]", layer)]
    assert sorted(layered) == sorted(PACKAGES)


def test_mypy_checks_every_package() -> None:
    assert set(CONFIG["tool"]["mypy"]["files"]) == set(PACKAGES) | NOT_SHIPPED


# --- the names are ours -------------------------------------------------------------------------


@pytest.mark.parametrize("package", PACKAGES)
def test_package_is_imported_from_this_checkout(package: str) -> None:
    module = importlib.import_module(package)
    assert module.__file__ is not None
    assert Path(module.__file__).resolve() == ROOT / package / "__init__.py"


def test_no_foreign_distribution_owns_our_names() -> None:
    owners = importlib.metadata.packages_distributions()
    foreign = {
        package: others
        for package in PACKAGES
        if (others := sorted(set(owners.get(package, [])) - {"tidegate"}))
    }
    assert not foreign, "uninstall these distributions: they overwrite or hide our packages"


# --- the wheel ----------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel, built once from this checkout."""
    out = tmp_path_factory.mktemp("wheel")
    if (uv := find_uv()) is not None:
        run(*uv, "build", "--quiet", "--wheel", "--out-dir", out, ROOT, cwd=out)
    else:
        run(sys.executable, "-m", "pip", "wheel", "--no-deps", "-w", out, ROOT, cwd=out)
    (built,) = out.glob("*.whl")
    return built


@pytest.fixture(scope="module")
def installed(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The `bin` folder of a fresh environment that holds the wheel and its console extra."""
    venv = tmp_path_factory.mktemp("installed") / "venv"
    python = venv / "bin" / "python"
    if (uv := find_uv()) is not None:
        # The dependencies come from the lock file, so this resolves nothing anew.
        locked = ["--frozen", "--no-default-groups", "--no-install-project", "--extra", "console"]
        sync: list[str | Path] = [*uv, "sync", "--quiet", *locked, "--project", ROOT]
        run(*sync, "--python", sys.executable, cwd=venv.parent, UV_PROJECT_ENVIRONMENT=str(venv))
        pip: list[str | Path] = [*uv, "pip"]
        install = ["install", "--quiet", "--no-deps", "--offline", "--python"]
        run(*pip, *install, python, wheel, cwd=venv.parent)
        run(*pip, "check", "--python", python, cwd=venv.parent)
    else:
        run(sys.executable, "-m", "venv", venv, cwd=venv.parent)
        run(python, "-m", "pip", "install", "--quiet", f"{wheel}[console]", cwd=venv.parent)
    return python.parent


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_wheel_holds_the_packages_and_nothing_else(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        names = set(archive.namelist())
    info = next(name.split("/")[0] for name in names if name.endswith(".dist-info/METADATA"))
    assert {name.split("/")[0] for name in names} == {*PACKAGES, info}
    assert {f"{package}/py.typed" for package in PACKAGES} <= names
    sources = {
        path.relative_to(ROOT).as_posix()
        for package in PACKAGES
        for path in (ROOT / package).rglob("*.py")
    }
    assert {name for name in names if name.endswith(".py")} == sources
    # The console is there if the checkout has it built, and nothing of what it is made from.
    console = {
        path.relative_to(ROOT).as_posix()
        for path in (ROOT / "gateway" / "static").rglob("*")
        if path.is_file()
    }
    found = {name for name in names if name.startswith("gateway/static/") and name[-1] != "/"}
    assert found == console
    assert not [name for name in names if name.endswith((".ts", ".tsx"))]


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_wheel_metadata_names_the_extras_and_forbids_upload(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        info = next(name for name in archive.namelist() if name.endswith(".dist-info/METADATA"))
        metadata = message_from_bytes(archive.read(info))
    assert set(metadata.get_all("Provides-Extra", [])) == set(EXTRAS)
    assert "Private :: Do Not Upload" in metadata.get_all("Classifier", [])


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_installed_command_answers_outside_the_checkout(installed: Path, tmp_path: Path) -> None:
    assert "Usage" in run(installed / "tidegate", "--help", cwd=tmp_path, NO_COLOR="1")
    version = CONFIG["project"]["version"]
    assert version in run(installed / "tidegate", "--version", cwd=tmp_path, NO_COLOR="1")


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_every_installed_package_is_imported_from_the_wheel(
    installed: Path, tmp_path: Path
) -> None:
    code = f"import {', '.join(PACKAGES)}; print(*({', '.join(f'{p}.__file__' for p in PACKAGES)}))"
    files = run(installed / "python", "-I", "-c", code, cwd=tmp_path).split()
    assert [Path(file).parent.parent.name for file in files] == ["site-packages"] * len(PACKAGES)
