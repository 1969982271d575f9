"""Examples in the docstrings of public names print what they say, and no public name is without one."""

import doctest
import functools
import inspect

import keras
import numpy as np
import pytest
from photos import make_photos

import keras_vit

FLAGS = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE
MODULES = ("studies", "analysis", "layers")  # whose names need examples too
WITHOUT = {
    "push_to_hub": "sends files over a network",
    "search_photos": "needs a folder of both towers",
    **dict.fromkeys(("detector", "detect"), "need a file of a detector"),
    "keypoint_estimator": "needs a file of one",
}
ON_JAX = ("layout_map", "check_layout")
BUILDERS = ("ViTTi16", "EUPETi16")  # of one text; these run
# A second or more each: they compile a training step, convert, or draw.
SLOW = ("finetune", "look", "Checkpoints", "NonFiniteGuard", "StepFacts", "Distiller", "MaskedPatchPrediction")
SLOW += ("export", "ExportReport", "accelerate", "Engine", "EngineReport", "Embedder", "Probe", "probe", "vtab")
SLOW += ("inspector", "Inspector", "write_evaluation_page", "analysis.patch_filters", "pretrain", "distil")


def public():
    """`{name: value}` of the functions and classes that a user calls, `"analysis.rollout"` among them."""
    names = {name: getattr(keras_vit, name) for name in keras_vit.api.__all__}
    for module in MODULES:
        found = vars(names[module])
        own = [name for name, value in found.items() if getattr(value, "__module__", "") == found["__name__"]]
        names |= {f"{module}.{name}": found[name] for name in found.get("__all__", own) if name[0] != "_"}
    return {name: value for name, value in names.items() if callable(value) and not is_error(value)}


def is_error(value):
    return inspect.isclass(value) and issubclass(value, Exception)


def is_builder(name):
    return "classes=10).output_shape" in inspect.getdoc(PUBLIC[name]) and not name.startswith("build")


PUBLIC = public()
CHOSEN = [name for name in PUBLIC if name not in (*WITHOUT, *ON_JAX) and (name in BUILDERS or not is_builder(name))]


class Runner(doctest.DocTestRunner):
    """Skips an example for which a package is missing."""

    def report_unexpected_exception(self, out, test, example, exc_info):
        if issubclass(exc_info[0], ImportError):
            pytest.skip(str(exc_info[1]))
        super().report_unexpected_exception(out, test, example, exc_info)


def said(name, **given):
    """What is wrong about the example of a name, or `""`."""
    names = {"keras": keras, "keras_vit": keras_vit, "np": np, **given}
    test = doctest.DocTestParser().get_doctest(inspect.getdoc(PUBLIC[name]), names, name, None, 0)
    lines = []
    Runner(verbose=False, optionflags=FLAGS).run(test, out=lines.append)
    return "".join(lines)


@functools.cache
def shared():
    """What the head of the reference says that examples may use, and the weights that the model begins with."""
    model = keras_vit.ViTTi16(num_layers=2, input_shape=(32, 48, 3), classes=3)
    images = np.random.default_rng(0).uniform(-1, 1, (2, 32, 48, 3)).astype("float32")
    return {"model": model, "images": images}, model.get_weights()


@pytest.fixture
def given(tmp_path, tmp_path_factory, monkeypatch):
    """The same for each example, in a folder of its own."""
    given, weights = shared()
    monkeypatch.chdir(tmp_path)
    make_photos(tmp_path / "photos", per_class=10)
    yield given | {"photos": tmp_path / "photos"}
    given["model"].trainable = True  # which a teacher no longer is
    given["model"].set_weights(weights)


@pytest.mark.parametrize(
    "name", [pytest.param(n, marks=pytest.mark.slow if n in SLOW else pytest.mark.docs) for n in CHOSEN]
)
def test_example_prints_what_it_says(name, given):
    assert said(name, **given) == ""


def said_on_jax():
    found = {name: said(name) for name in ON_JAX}
    keras.distribution.set_distribution(None)
    return found


@pytest.mark.docs
@pytest.mark.elsewhere("jax", "said_on_jax")
def test_example_prints_what_it_says_on_jax(found):
    assert found == dict.fromkeys(ON_JAX, "")


def test_public_names_have_an_example_of_few_lines():
    for name, value in PUBLIC.items():
        examples = doctest.DocTestParser().get_examples(inspect.getdoc(value))
        assert (name in WITHOUT) == (not examples), name
        assert sum(example.source.count("\n") for example in examples) <= 6, name
        assert not examples or any(example.want for example in examples), name
        assert all(len(line) <= 78 for example in examples for line in example.source.splitlines()), name


def test_lists_of_names_are_of_names_that_exist():
    assert {*WITHOUT, *ON_JAX, *BUILDERS, *SLOW} <= set(PUBLIC)
    assert sum(map(is_builder, PUBLIC)) == len(keras_vit.encoder_builders.__all__) + 16 + len(keras_vit.RESNETS)
