"""Trainings without labels, against those of the authors' code step by step, on each backend and on two devices.

The files of golden/selfsupervised have the weights, batches, schedules and projectors of tiny trainings, and what
DINOv2's, LeJEPA's and MAE's code logged of them in float64 (torch 2.13.0), with the final weights of one.
"""

import contextlib
import functools
import json
import tempfile
import warnings
from pathlib import Path

import keras
import numpy as np
import pytest
from conftest import GOLDEN, images, make_tiny, numpy, tiny_config
from safetensors.numpy import load_file, save_file

import keras_vit
from keras_vit.training.selfsupervised.features import features
from keras_vit.training.selfsupervised.steps import ValuesByStep

FOLDER = GOLDEN / "selfsupervised"
FACTS = json.loads((FOLDER / "trainings.json").read_text())
NEAR = 1e-4  # of the largest number of a log; the worst case measured is 1e-6, and of weights 5e-7
PROJECTOR = [f"{kind}{i}" for i in (0, 1) for kind in ("kernel", "bias", "gamma", "beta")] + ["kernel2", "bias2"]
HEAD = [f"{kind}{i}" for i in range(3) for kind in ("kernel", "bias")] + ["directions", "lengths"]
SMALL = {"patch_size": 4, "hidden_size": 12, "num_layers": 2, "num_heads": 3, "mlp_dim": 17}


def part(case, start):
    arrays = np.load(FOLDER / f"{case}.npz")
    return {name.removeprefix(start): arrays[name] for name in arrays.files if name.startswith(start)}


def encoder_of(case, folder, name="model"):
    """An encoder from a folder of transformers."""
    folder.mkdir(parents=True, exist_ok=True)
    save_file(
        {key: np.ascontiguousarray(array) for key, array in part(case, f"{name}/").items()},
        folder / "model.safetensors",
    )
    (folder / "config.json").write_text(json.dumps(FACTS["configs"][f"{case}/{name}"]))
    arguments = {"include_top": False, "input_shape": (None, None, 3), "resize_method": "bicubic_offset"}
    return keras_vit.build(weights=folder, **arguments)


def pixels(array):
    return ((array / 255 - 0.5) / 0.25).astype("float32")


def lejepa(folder, **how):
    given = part("train_lejepa", "in/")
    model = keras_vit.LeJEPA(encoder_of("train_lejepa", folder), projection_size=6, hidden_size=20)
    model.projector.set_weights([given[f"projector_{name}"] for name in PROJECTOR])
    model.compile(given["schedule_rate"], weight_decay=0.05, **how)
    batches = [
        {"views": pixels(views), "directions": np.repeat(directions[None], len(views), 0)}
        for views, directions in zip(given["views"], given["directions"], strict=True)
    ]
    return model, batches, {"loss": "loss", "pull": "pull", "sigreg": "sigreg"}


def distillation(folder, **how):
    given = part("train_distil", "in/")
    student, teacher = (encoder_of("train_distil", folder / name, name) for name in ("student", "teacher"))
    model = keras_vit.FeatureDistillation(student, teacher)
    for kind, projector in model.projectors.items():
        projector.set_weights([given[f"projector_{kind}_{name}"] for name in ("kernel", "bias")])
    rate = ValuesByStep(given["schedule_rate"])
    model.compile(keras_vit.AdamW(rate, weight_decay=0.05, global_clipnorm=1.0), **how)
    batches = [{"images": pixels(each)} for each in given["images"]]
    return model, batches, {"loss": "loss", "class_loss": "class", "patch_loss": "patch"}


def self_distillation(case, folder, **how):
    given, options = part(case, "in/"), FACTS["options"][case]
    model = keras_vit.SelfDistillation(
        encoder_of(case, folder),
        *(options[name] for name in ("prototypes", "hidden", "bottleneck")),
        *(options[f"patch_{name}"] for name in ("prototypes", "hidden", "bottleneck")),
        centering=options["centering"],
        gram_weight=options["gram_weight"],
    )
    for kind, head in model.heads.items():
        head.set_weights([given[f"head_{kind}_{name}"] for name in HEAD])
    model.copy_to_teacher()
    model.compile(
        *(given[f"schedule_{name}"] for name in ("rate", "weight_decay", "momentum", "temperature", "last_layer_rate")),
        clip_norm=options["clip"],
        layer_decay=options["layer_decay"],
        patch_rate=options["patch_rate"],
        **how,
    )
    batches = [
        {"global_crops": pixels(crops), "local_crops": pixels(local), "mask": mask}
        for crops, local, mask in zip(given["global_crops"], given["local_crops"], given["mask"], strict=True)
    ]
    names = ("class_global", "class_local", "koleo", "patch", "gram")
    return model, batches, {"loss": "loss", **{f"{name}_loss": name for name in names}}


TRAININGS = {
    "train_lejepa": lejepa,
    "train_distil": distillation,
    **{case: functools.partial(self_distillation, case) for case in ("train_dinov2", "train_dinov2_shared_gram")},
}


def faults(case, folder, **how):
    """The largest deviation of each log that is too large, and of each final weight."""
    model, batches, names = TRAININGS[case](folder, **how)
    wanted = part(case, "out/")
    logged = model.fit(iter(batches), steps_per_epoch=1, epochs=len(batches), verbose=0).history
    pairs = {name: (np.array(logged[name]), wanted[f"log_{log}"]) for name, log in names.items()}
    if "center_class" in wanted:
        file = keras_vit.save_checkpoint(model.teacher, folder / "out.safetensors", "huggingface_dinov2_registers")
        found = {f"teacher_encoder.{name}": array for name, array in load_file(file).items()}
        found |= {f"center_{kind}": numpy(center) for kind, center in model.centers.items()}
        for kind, head in model.teacher_heads.items():
            found |= {f"teacher_head.{kind}.{name}": w for name, w in zip(HEAD, head.get_weights(), strict=True)}
        pairs |= {
            name: (found[name], array) for name, array in wanted.items() if name.startswith(("teacher", "center"))
        }
    off = {name: float(np.abs(a - b).max() / max(np.abs(b).max(), 1e-9)) for name, (a, b) in pairs.items()}
    assert len(off) >= 3
    return {name: number for name, number in off.items() if not number <= NEAR}


@pytest.mark.parametrize("case", TRAININGS)
def test_a_training_is_the_authors(case, tmp_path):
    eagerly = case != "train_dinov2_shared_gram"  # of few steps, which are traced for longer
    assert faults(case, tmp_path, run_eagerly=eagerly) == {}


def faults_elsewhere(cases=tuple(TRAININGS)):
    with tempfile.TemporaryDirectory() as folder:
        return {case: faults(case, Path(folder) / case) for case in cases}


def faults_on_jax():
    return faults_elsewhere(("train_lejepa", "train_dinov2_shared_gram"))  # each compiles for half a minute


@pytest.mark.elsewhere("jax", "faults_on_jax")
def test_trainings_are_the_same_compiled_on_jax(found):
    assert found == {"train_lejepa": {}, "train_dinov2_shared_gram": {}}


@pytest.mark.elsewhere("torch", "faults_elsewhere")
def test_trainings_are_the_same_on_torch(found):
    assert found == {case: {} for case in TRAININGS}


def small(**fields):
    """An encoder for any size, with stochastic depth."""
    keras.utils.set_random_seed(7)
    config = keras_vit.ViTConfig(**SMALL | {"stochastic_depth_rate": 0.3} | fields)
    return keras_vit.build(config, include_top=False, input_shape=(None, None, 3))


def crops(count, seed=3):
    rng = np.random.default_rng(seed)
    draw = {"global_crops": (count, 2, 8, 12, 3), "local_crops": (count, 2, 4, 8, 3)}
    made = {name: rng.normal(size=shape).astype("float32") for name, shape in draw.items()}
    return made | {"mask": rng.random((count, 2, 6)) < 0.4}


def views(count):
    return {"views": np.random.default_rng(4).normal(size=(count, 3, 8, 8, 3)).astype("float32")}


def small_self_distillation(centering="sinkhorn", momentum=0.9, **how):
    model = keras_vit.SelfDistillation(small(), 11, 8, 5, centering=centering, gram_weight=1.0)
    model.compile(1e-3, 0.04, momentum, 0.06, **how)
    return model


def small_lejepa(**how):
    model = keras_vit.LeJEPA(small(), 5, 8, num_directions=7)
    model.compile(1e-3, **how)
    return model


def small_autoencoder():
    model = keras_vit.MaskedAutoencoder(small(position_embedding="sincos2d_mae"), 8, 1, 2, ratio=0.5)
    model.compile(keras_vit.AdamW(1e-3))
    return model


def photos(count):
    return {"images": images(count, 8, 12, 3)}


SMALL_TRAININGS = {
    "sinkhorn": (small_self_distillation, crops),
    "softmax": (functools.partial(small_self_distillation, "softmax"), crops),
    "lejepa": (small_lejepa, views),
    "autoencoder": (small_autoencoder, photos),
}
MESHED = ("softmax", "lejepa")
NO_GRADIENT = ("key/bias", "bias0", "bias1", "encoder_norm/beta")  # but for rounding, which Adam makes full steps of


def state(model):
    kept = [w for w in model.variables if not w.path.endswith(NO_GRADIENT) and "seed" not in w.path]
    return [numpy(w).astype("float64") for w in kept]


def same(one, two):
    kept = [state(model) + [numpy(w) for w in model.optimizer.variables] for model in (one, two)]
    return all((a == b).all() for a, b in zip(*kept, strict=True))


def differences_of_two_devices(names=MESHED):
    """Of 5 images, which two devices share as 3 and 2, against one device: of losses and weights."""
    import tensorflow as tf
    from mirrored import engine

    found = {}
    for name in names:
        trained, (make, batch) = [], SMALL_TRAININGS[name]
        for scope in (contextlib.nullcontext(), engine(2).scope()):
            with scope:
                model = make()
            data = tf.data.Dataset.from_tensor_slices((batch(10),)).batch(5)
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                logs = model.fit(data, shuffle=False, verbose=0).history
            trained.append((logs, state(model)))
        (one, ones), (two, twos) = trained
        off = [abs(one[log][0] - two[log][0]) / max(abs(one[log][0]), 1e-3) for log in one]
        off += [float(np.abs(a - b).max()) for a, b in zip(ones, twos, strict=True)]
        found[name] = max(off)
    return found


def differences_of_the_others():
    return differences_of_two_devices(SMALL_TRAININGS.keys() - set(MESHED))


@pytest.mark.parametrize(
    "number",
    [
        pytest.param(len(MESHED), marks=pytest.mark.elsewhere("two devices", "differences_of_two_devices")),
        pytest.param(
            len(SMALL_TRAININGS) - len(MESHED),
            marks=[pytest.mark.nightly, pytest.mark.elsewhere("two devices", "differences_of_the_others")],
        ),
    ],
)
def test_two_devices_train_as_one(found, number):
    assert len(found) == number
    assert max(found.values()) < 1e-4, found


def differences_of_a_mesh():
    """The same of JAX, with the batch shared by a mesh of two devices."""
    import jax

    found = {}
    for name in MESHED:
        trained, (make, batch) = [], SMALL_TRAININGS[name]
        for devices in jax.devices()[:1], jax.devices()[:2]:
            keras.distribution.set_distribution(
                keras.distribution.DataParallel(keras.distribution.DeviceMesh((len(devices),), ["batch"], devices))
            )
            model = make()
            logs = model.fit([batch(4)], epochs=2, verbose=0).history
            trained.append((logs, state(model)))
        keras.distribution.set_distribution(None)
        (one, ones), (two, twos) = trained
        off = [abs(one[log][1] - two[log][1]) / max(abs(one[log][1]), 1e-3) for log in one]
        found[name] = max(off + [float(np.abs(a - b).max()) for a, b in zip(ones, twos, strict=True)])
    return found


@pytest.mark.elsewhere("jax", "differences_of_a_mesh")
def test_a_mesh_of_two_devices_trains_as_one(found):
    assert set(found) == set(MESHED)
    assert max(found.values()) < 1e-4, found


@pytest.mark.parametrize("name", ["softmax", "lejepa"])
def test_weights_are_saved_and_a_stopped_training_goes_on_bitwise(name, tmp_path):
    make, batch = SMALL_TRAININGS[name]
    make, data = functools.partial(make, run_eagerly=True), [batch(4)] * 2
    whole = make()
    whole.fit(data, callbacks=[keras_vit.Checkpoints(tmp_path / "run")], verbose=0)
    whole.save_weights(tmp_path / "half.weights.h5")
    loaded = make()
    loaded.optimizer.build(loaded.trainable_variables)
    loaded.load_weights(tmp_path / "half.weights.h5")
    assert same(whole, loaded)
    whole.fit(data, verbose=0)
    loaded.fit(data, epochs=2, callbacks=[keras_vit.Checkpoints(tmp_path / "run")], verbose=0)
    assert same(whole, loaded)
    assert int(numpy(loaded.step)) == 4


def test_mixed_bfloat16_keeps_a_teacher_of_float32():
    keras.config.set_dtype_policy("mixed_bfloat16")
    model = small_self_distillation(momentum=0.9999, run_eagerly=True)
    before = model.teacher.get_weights()
    logs = model.fit([crops(4)], epochs=2, verbose=0).history
    assert np.isfinite(logs["loss"]).all()
    moved = [np.abs(a - b).max() for a, b in zip(model.teacher.get_weights(), before, strict=True)]
    assert {w.dtype.name for w in map(numpy, model.teacher.weights)} == {"float32"}
    assert 0 < max(moved) < 1e-5  # where bfloat16 would not move


def test_the_mask_token_comes_from_a_file_and_goes_into_one(tmp_path):
    encoder = encoder_of("train_dinov2", tmp_path / "in")
    token = part("train_dinov2", "model/")["embeddings.mask_token"][0]
    np.testing.assert_array_equal(encoder.mask_token, token)
    encoder.save(tmp_path / "model.keras")
    np.testing.assert_array_equal(keras.models.load_model(tmp_path / "model.keras").mask_token, token)
    training = keras_vit.SelfDistillation(encoder, 11, 8, 5)
    training.teacher_mask_token.assign(training.teacher_mask_token + 1)
    file = keras_vit.save_checkpoint(training.teacher, tmp_path / "out.safetensors", "dinov2")
    np.testing.assert_allclose(load_file(file)["mask_token"][0], token + 1, rtol=1e-6)
    np.testing.assert_allclose(keras_vit.build(weights=file, include_top=False).mask_token, token + 1, rtol=1e-6)
    encoder.mask_token = None
    with pytest.warns(UserWarning, match="without a mask token"):
        keras_vit.SelfDistillation(encoder, 11, 8, 5)


def autoencoder_of(folder):
    save_file(part("mae_model", "model/"), folder / "mae.safetensors")
    config = tiny_config(hidden_size=24, mlp_dim=96, activation="gelu", position_embedding="sincos2d_mae")
    model = keras_vit.MaskedAutoencoder(keras_vit.build(config, include_top=False, input_shape=(16, 16, 3)), 16, 1, 2)
    return model, folder / "mae.safetensors"


def test_a_published_autoencoder_is_read_with_its_decoder(tmp_path):
    import tensorflow as tf

    model, file = autoencoder_of(tmp_path)
    model.load(file)
    given, wanted = part("mae_model", "in/"), part("mae_model", "out/")
    with tf.GradientTape() as tape:
        found = model({"images": pixels(given["images"]), "noise": given["noise"]})
    gradients = tape.gradient(found["loss"], model.trainable_variables)
    np.testing.assert_allclose(found["loss"], wanted["out_value"], rtol=1e-6)
    np.testing.assert_allclose(found["predictions"], wanted["out_predictions"], atol=1e-5)
    assert (numpy(found["mask"]) == wanted["out_mask"]).all()
    assert (numpy(found["restore"]) == wanted["out_restore"]).all()
    norms = {v.path: float(np.linalg.norm(g)) for v, g in zip(model.trainable_variables, gradients, strict=True)}
    names = {"class_token/token": "cls_token", "encoder_norm/gamma": "norm.weight", "decoder/mask_token": "mask_token"}
    names |= {"patch_embedding/projection/kernel": "patch_embed.proj.weight", "decoder/norm/beta": "decoder_norm.bias"}
    names |= {"decoder/embed/kernel": "decoder_embed.weight", "decoder/predict_pixels/bias": "decoder_pred.bias"}
    for path, name in names.items():
        assert norms[path] == pytest.approx(float(wanted[f"gradnorm_{name}"]), rel=1e-5), name
    transformers = tmp_path / "transformers.safetensors"
    save_file(as_transformers(part("mae_model", "model/")), transformers)
    for weight in model.decoder.weights:
        weight.assign(weight * 0)
    model.load(transformers)
    again = model({"images": pixels(given["images"]), "noise": given["noise"]})
    np.testing.assert_array_equal(again["predictions"], found["predictions"])


def as_transformers(arrays):
    """The names of `ViTMAEForPreTraining`."""
    made, ours = {}, {"norm1": "layernorm_before", "norm2": "layernorm_after", "attn.proj": "attention.output.dense"}
    ours |= {"mlp.fc1": "intermediate.dense", "mlp.fc2": "output.dense"}
    names = {"cls_token": "vit.embeddings.cls_token", "pos_embed": "vit.embeddings.position_embeddings"}
    for name, array in arrays.items():
        if ".qkv." in name:
            start, end = name.split("attn.qkv.")
            for kind, third in zip(("query", "key", "value"), np.split(array, 3), strict=True):
                made[f"{start}attention.attention.{kind}.{end}"] = third
            continue
        for old, new in ours.items():
            name = name.replace(f".{old}.", f".{new}.")
        made[names.get(name, name)] = array
    place = {"blocks.": "vit.encoder.layer.", "norm.": "vit.layernorm.", "decoder_blocks.": "decoder.decoder_layers."}
    place |= {"patch_embed.proj.": "vit.embeddings.patch_embeddings.projection.", "mask_token": "decoder.mask_token"}
    place |= {"decoder_": "decoder.decoder_"}
    for name in list(made):
        old = next((each for each in place if name.startswith(each)), None)
        if old is not None:
            made[place[old] + name.removeprefix(old)] = made.pop(name)
    return {name: np.ascontiguousarray(array) for name, array in made.items()}


def test_a_decoder_that_is_missing_or_does_not_fit_is_named(tmp_path):
    model, file = autoencoder_of(tmp_path)
    encoder_alone = {n: a for n, a in part("mae_model", "model/").items() if not n.startswith(("decoder", "mask"))}
    save_file(encoder_alone, tmp_path / "no_decoder.safetensors")
    with pytest.raises(keras_vit.CheckpointError, match="without one"):
        model.load(tmp_path / "no_decoder.safetensors")
    other = keras_vit.MaskedAutoencoder(model.encoder, 24, 1, 2)
    with pytest.raises(keras_vit.CheckpointError, match="mask_token  file"):
        other.load(file)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"global_crops": None}, "no 'global_crops'"),
        ({"mask": None}, "no 'mask'"),
        ({"local_crops": np.zeros((4, 2, 6, 8, 3), "float32")}, "multiples of 4"),
        ({"global_crops": np.zeros((4, 3, 8, 12, 3), "float32")}, "B, 2, H, W, C"),
        ({"mask": np.zeros((4, 2, 5), bool)}, "2 x 3 patches"),
        (1, "two images or more"),
    ],
)
def test_a_wrong_batch_is_named(change, words):
    batch = crops(1) if change == 1 else {n: v for n, v in (crops(4) | change).items() if v is not None}
    with pytest.raises(ValueError, match=words):
        small_self_distillation()(batch)


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: keras_vit.SelfDistillation(small(), 1), "`prototypes` must be 2 or more"),
        (lambda: keras_vit.SelfDistillation(small(), 8, patch_hidden_size=4), "`patch_prototypes`"),
        (lambda: keras_vit.SelfDistillation(small(), 8, koleo_weight=-1.0), "koleo_weight"),
        (lambda: keras_vit.SelfDistillation(make_tiny(), 8), "include_top=False"),
        (lambda: small_self_distillation().compile(1e-3, 0.04, 1.5, 0.06), "at most 1"),
        (lambda: small_self_distillation().compile(1e-3, 0.04, 0.9, 0.0), "above 0"),
        (lambda: small_self_distillation().compile(1e-3, 0.04, 0.9, 0.06, accumulation_steps=2), "whole batch"),
        (lambda: small_lejepa().compile(1e-3, loss="mse"), "loss"),
        (lambda: keras_vit.LeJEPA(small(), 5, weight=2.0), r"\[0, 1\]"),
        (lambda: small_lejepa()({"views": np.zeros((2, 1, 8, 8, 3), "float32")}), "2 global views"),
        (lambda: keras_vit.FeatureDistillation(*[small()] * 2), "two models"),
        (lambda: keras_vit.MaskedAutoencoder(small(), 10, 1, 2), "multiple of 4"),
        (lambda: keras_vit.MaskedAutoencoder(small(rotary="axial", hidden_size=24), 8, 1, 2), "add positions"),
    ],
)
def test_a_wrong_argument_is_named(make, words):
    with pytest.raises(ValueError, match=words):
        make()


def test_a_student_learns_from_a_teacher_of_another_patch_and_preprocessing():
    other = keras_vit.build(keras_vit.ViTConfig(**SMALL | {"patch_size": 2}), include_top=False, input_shape=(8, 12, 3))
    student = small()
    model = keras_vit.FeatureDistillation(student, other)
    found = model(photos(3))
    assert tuple(found["teacher"][1].shape) == (3, 6, 12)
    raw = np.random.default_rng(2).integers(0, 256, (3, 8, 12, 3)).astype("uint8")
    other.preprocessing = keras_vit.Preprocessing(image_size=(8, 12), mean=(0.3,) * 3, std=(0.2,) * 3)
    by_floats = model({"images": student.preprocessing(raw)})
    for one, two in zip(by_floats["teacher"], model({"images": raw})["teacher"], strict=True):
        np.testing.assert_allclose(one, two, atol=1e-4)


def test_an_encoder_is_held_to_another_while_its_heads_learn():
    config = tiny_config(**SMALL)
    encoder, other = (keras_vit.build(config, include_top=False, input_shape=(8, 8, 3)) for _ in range(2))
    training = keras_vit.SelfDistillation(encoder, 6, 8, 4, patch_weight=0, gram_teacher=other, anchor_weight=0.5)
    training.compile(0.0, 0.0, teacher_momentum=0.9, teacher_temperature=0.04, head_rate=1e-2, run_eagerly=True)
    before = [[weight.copy() for weight in model.get_weights()] for model in (encoder, training.heads["class"])]
    crops = images(2, 2, 8, 8, 3)
    batch = {"global_crops": crops, "local_crops": crops[:, :0], "mask": np.zeros((2, 2, 4), bool)}
    logs = training.fit([batch], verbose=0).history
    first = keras_vit.build(config, include_top=False, input_shape=(8, 8, 3))
    first.set_weights(before[0])
    found, wanted = (features(model).predict(crops.reshape(-1, 8, 8, 3), verbose=0) for model in (first, other))
    distances = []
    for pair in zip(found, wanted, strict=True):
        a, b = (each.astype(float) / np.linalg.norm(each, axis=-1, keepdims=True) for each in pair)
        distances.append(1 - np.mean(np.sum(a * b, axis=-1)))
    np.testing.assert_allclose(logs["anchor_loss"][0], 0.5 * sum(distances), rtol=1e-5)
    parts = [v[0] for name, v in logs.items() if name != "loss"]
    np.testing.assert_allclose(logs["loss"][0], sum(parts), rtol=1e-6)
    for model, weights, moves in zip((encoder, training.heads["class"]), before, (False, True), strict=True):
        changed = [not np.array_equal(a, b) for a, b in zip(model.get_weights(), weights, strict=True)]
        assert any(changed) == moves
