"""Wheel and sdist as a release builds them: twine takes them, all files are in, and they install without a network."""

import os
import re
import subprocess
import sys
import tarfile
import venv
import zipfile
from pathlib import Path

import pytest
from conftest import ROOT

from keras_vit.weights.registry import all_records

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]
CODE = """
import sys
import numpy
import keras_vit
from keras_vit.images.preprocessing import LABEL_FILES
from keras_vit.weights.registry import all_records
assert keras_vit.__file__.startswith(sys.argv[1]), keras_vit.__file__
scores = [[float(number == 7) for number in range(classes)] for classes in LABEL_FILES]
names = [keras_vit.decode_predictions(numpy.array([row]), top=1)[0][0][1] for row in scores]
config = keras_vit.ViTConfig(patch_size=4, hidden_size=8, num_layers=1, num_heads=2, mlp_dim=8)
print(keras_vit.__version__, len(all_records()), names, keras_vit.build(config, input_shape=(8, 12, 3)).output_shape)
"""


@pytest.fixture(scope="module")
def built(tmp_path_factory):
    """The folder of both files; the wheel is built from the sdist, so what that lacks is missing in both."""
    pytest.importorskip("build")
    pytest.importorskip("setuptools", minversion="77")
    folder = tmp_path_factory.mktemp("dist")
    run("-m", "build", "--no-isolation", "--outdir", folder, ROOT)
    return folder


@pytest.fixture(scope="module")
def names(built):
    """Of all files in the sdist, as in the repository."""
    (sdist,) = built.glob("*.tar.gz")
    with tarfile.open(sdist) as archive:
        return {member.name.partition("/")[2] for member in archive.getmembers() if member.isfile()}


def run(*arguments, python=sys.executable):
    """What a command printed; `PYTHONPATH` would show it the checkout."""
    command = [str(python), *map(str, arguments)]
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False, env=environment)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
    return done.stdout


def shipped():
    """All files of the package, as `keras_vit/...`."""
    files = (path for path in (ROOT / "keras_vit").rglob("*") if path.is_file() and "__pycache__" not in path.parts)
    return {str(path.relative_to(ROOT)) for path in files}


def test_wheel_has_every_file_of_the_package(built):
    (wheel,) = built.glob("*.whl")
    names = set(zipfile.ZipFile(wheel).namelist())
    assert {name for name in names if not name.partition("/")[0].endswith(".dist-info")} == shipped()
    assert {"keras_vit/py.typed", "keras_vit/images/labels/imagenet21k.tsv"} <= names
    rows = {f"keras_vit/config/{name}.csv" for name in ("variants", "encoders", "datasets", "recipes", "citations")}
    assert names >= rows | {f"keras_vit/weights/registry/{name}.csv" for name in ("vit", "encoders")}
    assert [name for name in names if name.endswith("licenses/LICENSE")]


def test_sdist_has_every_file_of_the_package_and_what_builds_it(names):
    assert shipped() | {"setup.cfg", "pyproject.toml", "README.md", "LICENSE"} <= names


def test_sdist_has_documentation_examples_and_tests(names):
    assert {"examples/transfer_digits.py", "docs/index.md", "tests/conftest.py", "CHANGELOG.md"} <= names
    for folder in (".ci", ".github", "benchmarks", "docs", "examples", "tests"):
        assert {name for name in files_of(folder) if not is_built(name)} <= names, folder


def test_sdist_has_nothing_that_is_built(names):
    assert sorted(filter(is_built, names)) == []


def files_of(folder):
    return {str(path.relative_to(ROOT)) for path in (ROOT / folder).rglob("*") if path.is_file()}


def is_built(name):
    """Whether a build or a run makes a file; the lists in `keras_vit_zoo.egg-info` are every sdist's own."""
    parts, made = name.split("/"), {"build", "dist", "docs/reference", "docs/weights"}
    caches = [part for part in parts if part == "__pycache__" or re.fullmatch(r"\..+(_cache|checkpoints)", part)]
    return bool(caches or made & {parts[0], "/".join(parts[:2])} or re.search(r"\.py[cod]$", name))


def test_twine_takes_both(built):
    pytest.importorskip("twine")
    said = run("-m", "twine", "check", "--strict", *sorted(built.iterdir()))
    assert said.count("PASSED") == 2


def test_wheel_says_its_licence_as_an_expression_and_its_pythons(built):
    (wheel,) = built.glob("*.whl")
    archive = zipfile.ZipFile(wheel)
    (name,) = [name for name in archive.namelist() if name.endswith(".dist-info/METADATA")]
    headers = archive.read(name).decode().partition("\n\n")[0].splitlines()
    assert "License-Expression: Apache-2.0" in headers
    assert not [line for line in headers if line.startswith("License: ")]  # which indexes no longer read
    assert "Requires-Python: >=3.11" in headers


def test_wheel_installs_without_a_network_and_finds_its_data(built, tmp_path):
    """Into an environment of its own, which sees the packages of this one behind its own."""
    venv.create(tmp_path / "env", with_pip=True)
    python = tmp_path / "env" / "bin" / "python"
    place = Path(run("-c", "import sysconfig; print(sysconfig.get_path('purelib'))", python=python).strip())
    (wheel,) = built.glob("*.whl")
    run("-m", "pip", "install", "--no-index", "--no-deps", wheel, python=python)
    (place / "others.pth").write_text("\n".join(path for path in sys.path if path.endswith("-packages")))
    said = run("-I", "-c", CODE, place, python=python)
    assert said.startswith(f"{wheel.name.split('-')[1]} {len(all_records())} ")
    assert "(None, 1000)" in said
    assert "ViTTi16" in run(tmp_path / "env" / "bin" / "keras-vit", "models", python=python)
