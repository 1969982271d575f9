"""`import keras_vit` gives the API however a process was started; only the installed command goes without Keras.

The children run the package's own `__init__`, `renamed` and `version`, an API and a command of one line each, and
metadata of a made-up installation. So nothing of Keras is started.
"""

import os
import shutil
import subprocess
import sys

import pytest
from conftest import ROOT

SCRIPT = "import sys\nfrom keras_vit.__main__ import main\nsys.exit(main())\n"
IMPORT = "import keras_vit\nprint('done')\n"
API, COMMAND = "API\ndone\n", "command\n"


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """An installation in `site` and `bin`, and what somebody else wrote, in `own`."""
    place = tmp_path_factory.mktemp("start")
    package, metadata = place / "site" / "keras_vit", place / "site" / "keras_vit_zoo-9.8.7.dist-info"
    for folder in (package / "config", metadata, place / "bin", place / "own" / "other"):
        folder.mkdir(parents=True)
    for name in ("__init__.py", "renamed.py", "version.py"):
        shutil.copy(ROOT / "keras_vit" / name, package / name)
    (package / "api.py").write_text("print('API')\n")
    (package / "config" / "public_names.py").write_text("REGISTERED, MODULES, PLACES = ('api',), {}, {}\n")
    (package / "__main__.py").write_text("def main(): print('command')\nif __name__ == '__main__': main()\n")
    (metadata / "METADATA").write_text("Metadata-Version: 2.1\nName: keras-vit-zoo\nVersion: 9.8.7\n")
    (metadata / "RECORD").write_text("keras_vit/__init__.py,,\n../bin/keras-vit,,\n")
    (place / "bin" / "keras-vit").write_text(SCRIPT)
    (place / "link").symlink_to(place / "bin" / "keras-vit")
    (place / "own" / "bin").mkdir()
    (place / "own" / "bin" / "keras-vit").symlink_to(place / "bin" / "keras-vit")
    for name in ("keras-vit", "keras-vit.py", "runner.py", "other/__init__.py"):
        (place / "own" / name).write_text(IMPORT)
    (place / "own" / "other" / "tool.py").write_text("")
    return place


def output(place, *arguments, program=None):
    """What a child prints that is started in `place` with these arguments of Python."""
    paths = os.pathsep.join(str(place / name) for name in ("site", "own"))
    environment = {**os.environ, "PYTHONPATH": paths}
    command = [sys.executable, *arguments]
    return subprocess.run(
        command, cwd=place, env=environment, input=program, capture_output=True, text=True, check=True, timeout=60
    ).stdout


@pytest.mark.parametrize(
    "arguments",
    [
        ["-c", IMPORT],
        ["-c", IMPORT, "keras_vit"],
        ["own/keras-vit.py"],
        ["own/keras-vit", "models"],  # somebody's own executable
        ["own/runner.py", "-m", "keras_vit"],
        ["-m", "runner", "-m", "keras_vit"],  # as `python -m pytest -m keras_vit`
        ["-m", "runner", "keras_vit"],
        ["-m", "other.tool", "keras_vit"],  # imported before Python has got to the module
        ["-m", "other.tool", "-m", "keras_vit"],
        ["-mother.tool", "-mkeras_vit"],
    ],
    ids=" ".join,
)
def test_import_gives_the_api(place, arguments):
    assert output(place, *arguments) == API


def test_import_gives_the_api_in_a_session(place):
    assert output(place, program=IMPORT) == API


@pytest.mark.parametrize(
    "arguments",
    [
        ["bin/keras-vit"],
        ["bin/keras-vit", "predict", "-m", "pytest"],
        ["own/bin/keras-vit", "models"],  # a link of the same name
        ["-m", "keras_vit"],
        ["-m", "keras_vit", "-m", "other"],
        ["-mkeras_vit", "models"],
        ["-B", "-m", "keras_vit", "keras_vit"],
    ],
    ids=" ".join,
)
def test_installed_command_goes_without_the_api(place, arguments):
    assert output(place, *arguments) == COMMAND


def test_link_of_another_name_is_the_command_too(place):
    assert output(place, "link", "models") == COMMAND


def test_version_is_that_of_the_metadata(place):
    program = "from keras_vit import __version__; print(__version__)"
    assert output(place, "-c", program) == "API\n9.8.7\n"


def test_checkout_without_metadata_has_no_version_and_no_command(place):
    """`-S` leaves the folders of installed packages out; a script of the name is nobody's then."""
    program = (
        "import sys; sys.path = [path for path in sys.path if not path.endswith('own')]\n"
        "import importlib.metadata as metadata\n"
        "def nothing(name): raise metadata.PackageNotFoundError(name)\n"
        "metadata.version = metadata.files = nothing\n"
        "sys.argv = ['bin/keras-vit']\n"
        "import keras_vit; print(keras_vit.__version__)"
    )
    assert output(place, "-c", program) == "API\nunknown\n"
