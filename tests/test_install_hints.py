"""What a user is told to install can be installed: extras of setup.cfg, from a checkout, as the README does it."""

import configparser
import re

import pytest
from conftest import ROOT, run_python

from keras_vit.checks import check_installed, install_hint

TEXTS = [ROOT / "README.md", *(ROOT / "docs").glob("*.md"), *(ROOT / "examples").glob("*.py")]
SOURCES = sorted((ROOT / "keras_vit").rglob("*.py"))


@pytest.fixture(scope="module")
def extras():
    setup = configparser.ConfigParser()
    setup.read(ROOT / "setup.cfg")
    return dict(setup["options.extras_require"])


def test_every_hint_is_an_extra_of_a_checkout(extras):
    """No package index has the distribution, so its name must stand in no command."""
    found = set()
    for path in (*SOURCES, *TEXTS):
        text = path.read_text()
        assert "keras-vit-zoo[" not in text, path
        commands = re.findall(r"pip install (?:--quiet )?([\"'])(.*?)\1", text)
        if path in TEXTS:
            found |= {command for _, command in commands}
        else:
            assert [command for _, command in commands if command != ".[{extra}]"] == [], path
            named = re.findall(r"(?:install_hint\(|check_installed\(.*, )[\"']([\w,-]+)[\"']\)", text)
            found |= {f".[{extra}]" for extra in named}
    assert len(found) >= 8
    for command in found:
        names = re.fullmatch(r"\.\[([\w,-]+)\]", command)
        assert names, command
        assert set(names[1].split(",")) <= set(extras), command


def test_module_that_is_missing_names_its_extra():
    with pytest.raises(ImportError, match=r"no_such.*it draws.*\n.*" + re.escape(install_hint("train"))):
        check_installed("no_such", "it draws", "train")
    assert install_hint("train") == 'pip install ".[train]" in the checkout of keras_vit'


IMPORT = """
import sys
sys.modules.update(dict.fromkeys({missing}))
try:
    import keras_vit
except ImportError as error:
    print(error)
"""


def test_import_without_a_backend_says_which_extra_to_install():
    told = run_python(IMPORT.format(missing=("tensorflow", "jax", "torch")), backend="tensorflow")
    assert told.startswith("Keras needs a backend, and tensorflow cannot be imported.\nReceived: No module named")
    for extra in ("tensorflow-cpu", "tensorflow", "jax", "torch"):
        assert f'".[{extra}]"' in told
    assert install_hint("tensorflow-cpu") in told


def test_import_without_the_chosen_backend_names_those_that_are_there(tmp_path):
    """And another module that is missing is told as it is."""
    told = run_python(IMPORT.format(missing=("jax",)), backend="jax")
    assert "Set KERAS_BACKEND=tensorflow, which is installed." in told
    assert run_python(IMPORT.format(missing=("keras",))).startswith("import of keras halted")


def test_what_draws_and_reads_the_logs_of_a_run_is_in_its_extra(extras):
    """`tensorboard/` of a run is written by TensorFlow alone, and read by the package."""
    assert {re.split("[<>=]", line)[0] for line in extras["train"].split()} >= {"matplotlib", "jinja2", "tensorboard"}
    assert "tensorboard --logdir" in (ROOT / "docs" / "runs.md").read_text()
