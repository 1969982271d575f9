"""What tests of models with heads share: errors, files that are the same, random layers, and other backends."""

import tempfile
from pathlib import Path

import keras
import numpy as np
import pytest
from conftest import numpy
from safetensors.numpy import load_file

import keras_vit

# Of a test that looks at what `faults_elsewhere` of its module found there: `(backend, found)`. By default the heads
# of depths are on JAX, and the scores of photos; the others are of the same operations of Keras.
on_other_backends = pytest.mark.parametrize(
    "backend",
    [
        pytest.param(kind, marks=[pytest.mark.nightly, pytest.mark.elsewhere(kind, "faults_elsewhere")])
        for kind in ("jax", "torch")
    ],
)


def is_same(arrays, others):
    """Whether names, types and numbers are the same."""
    types = [{key: array.dtype for key, array in each.items()} for each in (arrays, others)]
    return types[0] == types[1] and all(np.array_equal(arrays[key], others[key]) for key in arrays)


def differing(pairs, near, least=1.0):
    """`{name: error}` of found and wanted arrays, by name, that differ by more than a share of the largest number."""
    errors = {name: np.abs(numpy(one) - numpy(other)).max() for name, (one, other) in pairs.items()}
    bounds = {name: near * max(least, np.abs(numpy(other)).max()) for name, (_, other) in pairs.items()}
    return {name: float(error) for name, error in errors.items() if not error <= bounds[name]}


def on_every_backend(faults):
    """`faults_elsewhere`, and the tests that a function of a new folder finds nothing here and on other backends."""

    def faults_elsewhere():
        with tempfile.TemporaryDirectory() as folder:
            return faults(Path(folder))

    def here():
        assert faults_elsewhere() == {}

    @on_other_backends
    def there(backend, found):
        assert found == {}, backend

    return faults_elsewhere, here, there


def random_weights(layer, input_shape, scale=0.4, around_one=(), seed=1):
    """Builds a layer with random weights, and gives these by path; variances are small and above 0."""
    layer.build(input_shape)
    rng = np.random.default_rng(seed)
    weights = {}
    for weight in layer.weights:
        values = rng.normal(0, scale, weight.shape)
        values = 0.05 + np.abs(values) * 0.1 if weight.name == "moving_variance" else values
        values = values + (weight.name in around_one)
        weights[weight.path.partition(f"{layer.name}/")[2]] = values
        weight.assign(values)
    return weights


def fixed_and_open(layer, maps, wanted, near):
    """Where a layer of maps `(B, h, w, D)` puts out other numbers, called and in a model of maps of any size."""
    maps = [each.astype("float32") for each in maps]
    inputs = [keras.Input((None, None, each.shape[-1])) for each in maps]
    free = keras.Model(inputs, layer(inputs)).predict(maps, verbose=0)
    return differing({"fixed": (layer(maps), wanted), "open": (free, wanted)}, near, least=0.0)


def check_saved(build, model, inputs, place, folder):
    """Holds a model of a file to its `.keras` file, and to checkpoints of both; gives the model of the first.

    Args:
        build: of a file or folder.
        model: of the folder `place`.
        inputs: of a call.
        place: what was read.
        folder: to write into.
    """
    wanted, before = keras.tree.map_structure(numpy, model(inputs)), load_file(place / "model.safetensors")
    model.save(folder / "model.keras")
    kept = keras.models.load_model(folder / "model.keras")
    assert kept.own_arguments() == model.own_arguments()
    assert (kept.config, kept.task, kept.classes, kept.raw) == (model.config, model.task, model.classes, model.raw)
    for number, each in enumerate((model, kept)):
        written = folder / f"written{number}"
        assert is_same(before, load_file(keras_vit.save_checkpoint(each, written)))
        for file in (written, keras_vit.save_checkpoint(each, folder / f"{number}.safetensors")):
            again = build(file)
            found = keras.tree.map_structure(numpy, again(inputs))
            keras.tree.map_structure(np.testing.assert_array_equal, wanted, found)
            assert (again.class_names, again.short_side) == (model.class_names, model.short_side)
    return kept
