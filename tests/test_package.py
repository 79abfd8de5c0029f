"""Files that describe the package: its version, its dependencies, and its distributions."""

import configparser
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import skgpsvm

ROOT = Path(__file__).parents[1]


def test_every_file_names_the_same_version():
    citation = (ROOT / "CITATION.cff").read_text(encoding="utf-8")
    assert f"\nversion: {skgpsvm.__version__}\n" in citation
    changes = (ROOT / "doc" / "changes.rst").read_text(encoding="utf-8")
    number = skgpsvm.__version__.removesuffix(".dev0")
    assert re.search(r"^\d+\.\d+\.\d+", changes, re.M)[0] == number


def test_table_of_oldest_versions_is_that_of_setup():
    setup = configparser.ConfigParser()
    setup.read(ROOT / "setup.cfg")
    needed = setup["options"]["install_requires"].split()
    oldest = dict(line.split(">=") for line in needed)
    page = (ROOT / "doc" / "development" / "release.rst").read_text(encoding="utf-8")
    rows = re.findall(r"^   \* - (.+)\n     - ([\d., ]+)$", page, re.M)
    pairs = [zip(*(part.split(", ") for part in row), strict=True) for row in rows]
    assert oldest == {name: version for row in pairs for name, version in row}


def test_wheel_has_the_marker_of_annotations(monkeypatch):
    setuptools = pytest.importorskip("setuptools")
    monkeypatch.chdir(ROOT)
    distribution = setuptools.Distribution({"packages": ["skgpsvm"]})
    distribution.parse_config_files(["setup.cfg"])
    command = distribution.get_command_obj("build_py")
    command.ensure_finalized()
    (files,) = (names for package, *_, names in command.data_files if package == "skgpsvm")
    assert files == ["py.typed"]


def test_source_distribution_has_every_file_of_the_repository(monkeypatch):
    setuptools = pytest.importorskip("setuptools")
    egg_info = pytest.importorskip("setuptools.command.egg_info")
    git = shutil.which("git")
    if git is None or not (ROOT / ".git").exists():
        pytest.skip("not a git repository")
    listed = subprocess.run([git, "ls-files"], cwd=ROOT, capture_output=True, text=True, check=True)
    tracked = {name for name in listed.stdout.split("\n") if name and (ROOT / name).exists()}
    monkeypatch.chdir(ROOT)
    distribution = setuptools.Distribution()
    distribution.parse_config_files(["setup.cfg"])
    distribution.script_name = "setup.cfg"
    command = distribution.get_command_obj("sdist")
    command.ensure_finalized()
    command.filelist = egg_info.FileList()
    command.add_defaults()
    command.read_template()
    missing = tracked - {Path(name).as_posix() for name in command.filelist.files}
    assert {name for name in missing if not name.startswith(".git")} == set()


def test_import_takes_few_packages_of_scikit_learn():
    """`sklearn.cluster` alone imports decomposition, linear_model, neighbors and svm."""
    told = "import sys, sklearn.base, torch; before = set(sys.modules); import skgpsvm; "
    told += "print(*{'.'.join(name.split('.')[:2]) for name in set(sys.modules) - before})"
    command = [sys.executable, "-c", told]
    found = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    names = {name for name in found.stdout.split() if name.startswith("sklearn.")}
    names = {name for name in names if not name.startswith("sklearn._")}
    needed = "callback", "gaussian_process", "metrics", "multiclass", "pipeline", "preprocessing"
    assert names <= {f"sklearn.{name}" for name in (*needed, "utils", "exceptions")}
