"""What learns: parts of a model that are not frozen, and LoRA's factors beside frozen kernels."""

import functools
import json
import pickle
from copy import deepcopy
from pathlib import Path

import keras
import numpy as np
import pytest
from conftest import images, make_tiny, numpy, randomise, run_python, tiny_config

import keras_vit
from keras_vit.checks import processor_flags
from keras_vit.model.freezing import add_lora, freeze, merge_lora

X = images(4, 20, 28, 3)
LABELS = np.arange(4)
PER_BLOCK = {"attention": 4 * (12 + 12), "mlp": 2 * (12 + 17)}  # times the rank: D = 12, M = 17
HEAD = 12 * 7 + 7


def fit(model, optimizer=None, steps=2):
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    # Tracing a few steps takes longer than they do.
    model.compile(optimizer or keras.optimizers.SGD(0.1), loss, run_eagerly=True)
    for _ in range(steps):
        model.train_on_batch(X, LABELS)


def trained(**arguments):
    model = make_tiny()
    add_lora(model, 2, **arguments)
    fit(model)
    return model


@functools.cache
def shared(alpha=None):
    """A trained model and what it merges to, for tests that change neither."""
    model = trained(alpha=alpha)
    return model, merge_lora(model)


@pytest.fixture(scope="module")
def untouched():
    """A model for what is refused: that it stays as it is, is part of each claim."""
    return make_tiny()


def values(model):
    return {weight.path: numpy(weight).copy() for weight in model.weights}


def changed_since(before, model):
    return {path for path, value in values(model).items() if not np.array_equal(value, before[path])}


def count(weights):
    return sum(int(np.prod(weight.shape)) for weight in weights)


@pytest.mark.parametrize(
    ("fields", "arguments", "layers"),
    [
        ({"representation_size": 6}, ("head",), ("head",)),
        ({"representation_size": 6}, ("last_blocks", 1), ("block_01", "encoder_norm", "pre_logits", "head")),
        ({}, ("last_blocks", 2), ("block_00", "block_01", "encoder_norm", "head")),
        ({"pooling": "map"}, ("last_blocks", 1), ("block_01", "encoder_norm", "pooling", "head")),
        ({"distilled": True}, ("head",), ("head", "head_distillation")),
    ],
)
def test_only_what_learns_changes_even_with_weight_decay(fields, arguments, layers):
    model = make_tiny(**fields)
    freeze(model, *arguments)
    before = values(model)
    fit(model, keras.optimizers.AdamW(0.01, weight_decay=0.1), steps=1)
    changed = {path for path in changed_since(before, model) if not path.endswith("key/bias")}
    learns = {weight.path for weight in model.weights if weight.path.startswith(layers)}
    assert changed == {path for path in learns if not path.endswith("key/bias")}  # which softmax takes off


def test_all_undoes_freezing(tiny):
    freeze(tiny, "head")
    assert count(tiny.trainable_weights) == HEAD
    freeze(tiny, "all")
    assert len(tiny.trainable_weights) == len(tiny.weights)


def test_freezing_is_saved_and_survives_another_shape(tmp_path, tiny):
    freeze(tiny, "last_blocks", 1)
    tiny.save(tmp_path / "model.keras")
    expected = [w.path for w in tiny.trainable_weights]
    for copy in (keras.saving.load_model(tmp_path / "model.keras"), keras_vit.with_input_shape(tiny, (32, 16, 3))):
        assert [w.path for w in copy.trainable_weights] == expected


def frozen_core(make, around):
    """A model in which a frozen backbone of ours stands."""
    core = make()
    core.trainable = False
    return around(core)


def in_a_graph(core):
    photos = keras.Input((20, 28, 3))
    return keras.Model(photos, keras.layers.Dense(3)(core(photos, training=False)))


def over_time(core):
    frames = keras.Input((2, 20, 28, 3))
    return keras.Model(frames, keras.layers.TimeDistributed(core)(frames))


def flat(core):
    core.trainable = True
    for layer in core.layers:
        layer.trainable = False
    return keras.Model(core.input, keras.layers.Dense(3)(core.output))


def vit():
    return keras_vit.build(tiny_config(), include_top=False, input_shape=(20, 28, 3))


def resnet():
    config = keras_vit.ResNetConfig((1, 1), 0.5)
    return keras_vit.build_resnet(config, include_top=False, input_shape=(20, 28, 3))


def probe(classes=3):
    model = keras_vit.build(tiny_config(), classes=classes, input_shape=(20, 28, 3))
    freeze(model, "head")
    return model


def with_frozen_parts():
    model = probe()
    freeze(model, "all")
    model.get_layer("block_00").trainable = False
    model.get_layer("block_01").attention.query.trainable = False
    model.get_layer("block_01").mlp.trainable = False
    return model


def unfreeze(model):
    """In all ways that Keras' users know, from the outside to the inside."""
    counts = [len(model.trainable_weights)]
    model.trainable = True
    counts.append(len(model.trainable_weights))
    for layer in model.layers:
        getattr(layer, "layer", layer).trainable = True
    return [*counts, len(model.trainable_weights)]


def through_file(model, tmp_path):
    model.save(tmp_path / "frozen.keras")
    return keras.saving.load_model(tmp_path / "frozen.keras")


COPIES = {
    "file": through_file,
    "config": lambda model, _: type(model).from_config(model.get_config()),
    "json": lambda model, _: keras.models.model_from_json(model.to_json()),
    "clone": lambda model, _: keras.models.clone_model(model),
    "deepcopy": lambda model, _: deepcopy(model),
    "pickle": lambda model, _: pickle.loads(pickle.dumps(model)),
}
FROZEN = {
    "ViT in a graph": lambda: frozen_core(vit, in_a_graph),
    "ResNet in a graph": lambda: frozen_core(resnet, in_a_graph),
    "ViT over time": lambda: frozen_core(vit, over_time),
    "flat ViT": lambda: frozen_core(vit, flat),
    "flat ResNet": lambda: frozen_core(resnet, flat),
    "probe": probe,
    "parts": with_frozen_parts,
}


ALIKE = ("ResNet in a graph", "ViT over time", "flat ViT")  # what the others have too, for the night


@pytest.mark.parametrize(
    "kind", [pytest.param(kind, marks=pytest.mark.nightly if kind in ALIKE else ()) for kind in FROZEN]
)
def test_copies_learn_what_the_model_learns_before_and_after_unfreezing(kind, tmp_path):
    """TensorFlow's tracking drops `trainable = True` where a layer says that it learns, whatever its weights say."""
    model = FROZEN[kind]()
    copies = {name: make(model, tmp_path) for name, make in COPIES.items()}
    if isinstance(model, keras_vit.VisionTransformer):
        copies["another shape"] = keras_vit.with_input_shape(model, (32, 16, 3))
    found = {name: unfreeze(each) for name, each in copies.items()}
    expected = unfreeze(model)
    assert expected[-1] == len(model.weights) > expected[0]
    assert found == dict.fromkeys(copies, expected)


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({"trainable": "heads"}, ValueError, "'head'"),
        ({"trainable": "last_blocks"}, TypeError, "`blocks`"),
        ({"trainable": "last_blocks", "blocks": 0}, ValueError, "blocks=0"),
        ({"trainable": "last_blocks", "blocks": 3}, ValueError, "blocks=3"),
        ({"trainable": "head", "blocks": 1}, ValueError, "blocks=1"),
    ],
)
def test_freezing_refuses(untouched, arguments, error, message):
    with pytest.raises(error, match=message):
        freeze(untouched, **arguments)
    assert len(untouched.trainable_weights) == len(untouched.weights)


def test_a_probe_needs_a_head():
    with pytest.raises(ValueError, match="head"):
        freeze(keras_vit.build(tiny_config(), include_top=False, input_shape=(20, 28, 3)), "head")


def test_freezing_needs_a_model_of_ours():
    with pytest.raises(TypeError, match="VisionTransformer"):
        freeze(keras.Sequential([keras.layers.Dense(3)]))


def test_freezing_leaves_lora_alone(tiny):
    add_lora(tiny, 2)
    with pytest.raises(ValueError, match="LoRA"):
        freeze(tiny, "all")


# LoRA


def test_lora_leaves_the_outputs_as_they_were(tiny):
    before = numpy(tiny(X))
    add_lora(tiny, 3)
    np.testing.assert_array_equal(numpy(tiny(X)), before)


@pytest.mark.parametrize(("rank", "targets"), [(1, ("attention", "mlp")), (5, "attention"), (3, ("mlp",))])
def test_lora_has_the_parameters_of_its_formula(tiny, rank, targets):
    add_lora(tiny, rank, targets=targets)
    wanted = (targets,) if isinstance(targets, str) else targets
    assert count(tiny.trainable_weights) == 2 * rank * sum(PER_BLOCK[target] for target in wanted) + HEAD


def test_lora_reaches_attention_pooling_too():
    model = randomise(keras_vit.build(tiny_config(), input_shape=(20, 28, 3), pooling="map", classes=7))
    add_lora(model, 2)
    assert count(model.trainable_weights) == 3 * 2 * sum(PER_BLOCK.values()) + HEAD


def test_lora_trains_its_factors_and_the_head_alone(tiny):
    add_lora(tiny, 2)
    before = values(tiny)
    fit(tiny)
    assert changed_since(before, tiny) == {path for path in before if "lora_kernel" in path or path.startswith("head/")}


def test_lora_is_rank_times_alpha_of_the_factors():
    """W + alpha / rank * A B, in float64."""
    model, _ = shared(6.0)
    query = model.get_layer("block_00").attention.query
    kernel, bias, a, b = (numpy(weight).astype("float64") for weight in query.weights)
    tokens = images(3, 12)
    np.testing.assert_allclose(numpy(query(tokens)), tokens @ (kernel + 3.0 * a @ b) + bias, atol=1e-6)
    assert np.abs(a @ b).max() > 1e-4


@pytest.mark.parametrize("alpha", [None, 6.0])
def test_merged_lora_computes_the_same(alpha):
    model, merged = shared(alpha)
    plain = make_tiny()
    assert [w.path for w in merged.weights] == [w.path for w in plain.weights]
    np.testing.assert_allclose(numpy(merged(X)), numpy(model(X)), atol=1e-6)
    assert np.abs(numpy(merged(X)) - numpy(plain(X))).max() > 1e-2


def test_merging_leaves_the_model_as_it_was():
    model, _ = shared()
    before = values(model)
    fit(merge_lora(model))
    after = values(model)
    assert all(np.array_equal(after[path], before[path]) for path in before)


def test_merged_model_knows_what_the_model_knew(monkeypatch):
    model, _ = shared()
    monkeypatch.setattr(model, "load_report", ("a line",))
    merged = merge_lora(model)
    for name in ("config", "preprocessing", "load_report"):
        assert getattr(merged, name) == getattr(model, name)
    assert len(merged.trainable_weights) == len(merged.weights)


def test_merged_model_can_be_saved_as_a_checkpoint_and_resized(tmp_path):
    model, merged = shared()
    path = keras_vit.save_checkpoint(merged, tmp_path / "merged.npz")
    again = make_tiny()
    keras_vit.load_checkpoint(again, path)
    np.testing.assert_allclose(numpy(again(X)), numpy(model(X)), atol=1e-6)
    assert keras_vit.with_input_shape(merged, (32, 16, 3)).input_shape == (None, 32, 16, 3)


def test_lora_its_frozen_weights_and_the_optimizer_survive_a_file(tmp_path):
    model = add_lora(keras_vit.build(tiny_config(), input_shape=(20, 28, 3), pooling="map", classes=7), 2, alpha=6.0)
    fit(model, keras.optimizers.Adam(0.01))
    model.save(tmp_path / "model.keras")
    again = keras.saving.load_model(tmp_path / "model.keras")
    assert [weight.path for weight in again.trainable_weights] == [weight.path for weight in model.trainable_weights]
    for _ in range(2):  # as they were, and after one more step
        assert changed_since(values(model), again) == set()
        assert len(again.optimizer.variables) == len(model.optimizer.variables) > 2 * len(model.trainable_weights)
        for ours, found in zip(model.optimizer.variables, again.optimizer.variables, strict=True):
            np.testing.assert_array_equal(numpy(found), numpy(ours), err_msg=ours.path)
        for each in (model, again):
            each.run_eagerly = True
            each.train_on_batch(X, LABELS)
    np.testing.assert_allclose(numpy(merge_lora(again)(X)), numpy(model(X)), atol=1e-6)
    assert len(merge_lora(again).trainable_weights) == len(merge_lora(again).weights)


def test_weights_with_lora_load_with_and_without_it_and_beside_new_factors(tmp_path):
    (model, merged), plain = shared(6.0), make_tiny()
    model.save_weights(tmp_path / "lora.weights.h5")
    merged.save_weights(tmp_path / "plain.weights.h5")
    plain.load_weights(tmp_path / "lora.weights.h5")
    np.testing.assert_allclose(numpy(plain(X)), numpy(model(X)), atol=1e-6)
    other = add_lora(make_tiny(), 2, alpha=6.0)
    other.load_weights(tmp_path / "lora.weights.h5")
    assert changed_since(values(model), other) == set()
    other.load_weights(tmp_path / "plain.weights.h5")
    np.testing.assert_allclose(numpy(other(X)), numpy(model(X)), atol=1e-6)
    query = other.get_layer("block_00").attention.query
    assert [bool(numpy(factor).any()) for factor in (query.lora_kernel_a, query.lora_kernel_b)] == [True, False]
    with pytest.raises(ValueError, match="of rank 3, and rank 2 in the file"):
        add_lora(make_tiny(), 3).load_weights(tmp_path / "lora.weights.h5")
    with pytest.raises(ValueError, match="alpha / rank"):
        add_lora(make_tiny(), 2).load_weights(tmp_path / "lora.weights.h5")


def test_lora_in_half_precision_learns_in_float32():
    keras.config.set_dtype_policy("mixed_bfloat16")
    model = trained()
    factor = model.get_layer("block_00").mlp.dense_1.lora_kernel_b
    assert factor.dtype == "float32"
    assert np.abs(numpy(factor)).max() > 0
    outputs = [numpy(m(X)).astype("float32") for m in (model, merge_lora(model))]
    np.testing.assert_allclose(*outputs, atol=0.02)  # a kernel rounded to 8 bits after the sum or before it


def test_lora_after_freezing_learns_all_the_same(tiny):
    add_lora(freeze(tiny, "none"), 2)
    assert count(tiny.trainable_weights) == 2 * 2 * sum(PER_BLOCK.values()) + HEAD


def test_compiled_model_asks_to_be_compiled_again(tiny):
    for change in (lambda: freeze(tiny, "head"), lambda: add_lora(tiny, 2)):
        fit(tiny, steps=1)
        change()
        with pytest.raises(ValueError, match="must call `compile"):
            tiny.fit(X, LABELS, verbose=0)


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({"rank": 0}, ValueError, "rank=0"),
        ({"rank": 2.0}, TypeError, "rank=2.0"),
        ({"rank": 13}, ValueError, "rank=13"),
        ({"rank": 2, "alpha": 0}, ValueError, "alpha=0"),
        ({"rank": 2, "alpha": float("nan")}, ValueError, "alpha=nan"),
        ({"rank": 2, "alpha": "1"}, TypeError, "`alpha`"),
        ({"rank": 2, "targets": "mpl"}, ValueError, "'mlp'"),
        ({"rank": 2, "targets": ()}, ValueError, "targets"),
    ],
)
def test_lora_refuses(untouched, arguments, error, message):
    before = values(untouched)
    with pytest.raises(error, match=message):
        add_lora(untouched, **arguments)
    assert list(values(untouched)) == list(before)
    assert len(untouched.trainable_weights) == len(before)


def test_lora_is_refused_a_second_time(tiny):
    add_lora(tiny, 2, targets="mlp")
    with pytest.raises(ValueError, match="LoRA"):
        add_lora(tiny, 2, targets="attention")


def test_lora_is_refused_beside_integers(tiny):
    tiny.get_layer("block_01").mlp.dense_2.quantize("int8")
    with pytest.raises(ValueError, match="int8"):
        add_lora(tiny, 2)


@pytest.mark.parametrize("function", [lambda model: add_lora(model, 2), merge_lora])
def test_lora_needs_a_model_of_ours(function):
    with pytest.raises(TypeError, match="VisionTransformer"):
        function(keras.Sequential([keras.layers.Dense(3)]))


def test_merging_needs_lora(untouched):
    with pytest.raises(ValueError, match="LoRA"):
        merge_lora(untouched)


def test_prediction_after_lora_was_added_has_its_factors(tiny):
    x = images(2, 20, 28, 3)
    before = tiny.predict(x, verbose=0)
    keras_vit.add_lora(tiny, 2)
    for weight in tiny.trainable_weights:
        weight.assign(np.full(weight.shape, 0.05, "float32"))
    after = tiny.predict(x, verbose=0)
    np.testing.assert_allclose(after, numpy(tiny(x)), atol=1e-5)
    assert np.abs(after - before).max() > 1e-3


SWITCH = "TF_ONEDNN_ASSUME_FROZEN_WEIGHTS"
STALE = """
import json

import numpy as np

import keras_vit
from keras_vit.model.layer_access import dense_parts

model = keras_vit.build("Ti/16", num_layers=1, classes=10, input_shape=(32, 32, 3))
rng = np.random.default_rng(0)
model.set_weights([rng.normal(0, 0.1, w.shape) for w in model.weights])
images = rng.uniform(-1, 1, (2, 32, 32, 3)).astype("float32")
before = model.predict_on_batch(images)
for found in dense_parts(model):
    found.dense.kernel.assign(np.zeros(found.dense.kernel.shape))
after, right = model.predict_on_batch(images), np.asarray(model(images))
print(json.dumps([float(np.abs(after - other).max()) for other in (before, right)]))
"""


def test_nothing_of_ours_sets_it():
    sources = [path.read_text() for path in Path(keras_vit.__file__).parent.rglob("*.py")]
    assert sources
    assert not any(SWITCH in source for source in sources)


@pytest.mark.skipif(keras.backend.backend() != "tensorflow", reason="a switch of TensorFlow")
@pytest.mark.skipif("avx512_vnni" not in processor_flags(), reason="TensorFlow does without oneDNN by default")
def test_with_it_new_weights_are_ignored_without_a_word():
    """If this fails with a difference from before, TensorFlow has mended it, and the warnings of our pages can go."""
    of_before, of_right = json.loads(run_python(STALE, **{SWITCH: "1"}).splitlines()[-1])
    assert of_before == 0
    assert of_right > 0.1
