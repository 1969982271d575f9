"""The same file gives the same logits on every backend."""

import tempfile

import keras
import numpy as np
import pytest
from conftest import GOLDEN, numpy

import keras_vit

CASES = {
    "token": keras_vit.ViTConfig(8, 48, 3, 4, 96),
    "gap": keras_vit.ViTConfig(8, 48, 3, 4, 96, pooling="gap"),
    "hybrid_stages": keras_vit.ViTConfig(1, 48, 3, 4, 96, resnet_stages=(1, 2), resnet_width_factor=0.5),
}


def predictions():
    """Logits by case and size on this backend; before that, a model is reloaded and another trained."""
    found = answers()
    model = keras_vit.build("Ti/16", input_shape=(32, 32, 3), num_layers=2, classes=4, dropout_rate=0.1)
    model.compile("sgd", keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    losses = model.fit(expected_of("token")["images"], np.arange(4), epochs=3, verbose=0).history["loss"]
    return {**found, "losses": losses}


def answers():
    """Logits by case and size on this backend, and whether a reloaded model gives the same ones."""
    results = {}
    for case, config in CASES.items():
        for shape in ((32, 32, 3), (None, None, 3)):
            model = keras_vit.build(config, weights=GOLDEN / f"{case}.npz", input_shape=shape)
            results[f"{case}{shape[0]}"] = model.predict(expected_of(case)["images"], verbose=0)
        moved = keras_vit.with_input_shape(model, (64, 48, 3))
        results[f"{case}64"] = moved.predict(wide(case), verbose=0)
    with tempfile.TemporaryDirectory() as folder:
        model.save(f"{folder}/model.keras")
        again = keras.saving.load_model(f"{folder}/model.keras")
    same = (again.predict(expected_of(case)["images"], verbose=0) == results[f"{case}None"]).all()
    results["dinov3"] = dinov3().predict(dinov3_arrays()["images_other"], verbose=0)
    results["naflex"] = naflex().predict({name: naflex_arrays()[name] for name in naflex().input}, verbose=0)
    logits = {name: array.tolist() for name, array in results.items()}
    return {"backend": keras.backend.backend(), "reloaded": bool(same), "logits": logits}


def expected_of(case):
    return np.load(GOLDEN / f"{case}.expected.npz")


def dinov3():
    """All tokens of an encoder with rotary positions, at another size than its own."""
    return keras_vit.build(
        weights=GOLDEN / "encoders" / "timm_dinov3", include_top=False, pooling="none", input_shape=(16, 32, 3)
    )


def dinov3_arrays():
    return np.load(GOLDEN / "encoders" / "timm_dinov3" / "expected.npz")


def naflex():
    """An encoder for patches of several grids, padded and masked."""
    folder = GOLDEN / "encoders" / "huggingface_siglip2"
    return keras_vit.naflex(keras_vit.build(weights=folder, include_top=False, input_shape=(None, None, 3)))


def naflex_arrays():
    return np.load(GOLDEN / "naflex.npz")


def wide(case):
    return expected_of(case)["images"].repeat(2, 1)[:, :, [*range(32), *range(16)]]


def assert_backend_gives_the_same_logits(found, backend):
    losses = found["losses"]
    assert abs(losses[0] - np.log(4)) < 1e-5
    assert losses[-1] < losses[0], losses
    assert_answers_are_the_same(found, backend)


def assert_answers_are_the_same(found, backend):
    assert found["backend"] == backend
    assert found["reloaded"]
    got = found["logits"]
    assert len(got) == 3 * len(CASES) + 2
    np.testing.assert_allclose(got["naflex"], naflex_arrays()["pooled"], atol=1e-5)
    np.testing.assert_allclose(got["dinov3"], dinov3_arrays()["tokens_other"], atol=1e-5)
    for case, config in CASES.items():
        for shape in ("32", "None"):
            np.testing.assert_allclose(got[case + shape], expected_of(case)["logits"], atol=1e-5)
        ours = keras_vit.build(config, weights=GOLDEN / f"{case}.npz", input_shape=(64, 48, 3))
        np.testing.assert_allclose(got[f"{case}64"], numpy(ours(wide(case))), atol=1e-5)


@pytest.mark.skipif(keras.backend.backend() == "jax", reason="compares JAX with this process' backend")
@pytest.mark.elsewhere("jax", "predictions")
def test_jax_gives_the_same_logits(found):
    assert_backend_gives_the_same_logits(found, "jax")


@pytest.mark.torch
@pytest.mark.elsewhere("torch", "predictions")
def test_torch_gives_the_same_logits(found):
    assert_backend_gives_the_same_logits(found, "torch")


PUBLISHED = {"Ti/16": "float32", "R+Ti/16": "float32", "S/32": "bfloat16"}  # and the policy of its layers


def published(variant):
    """Three blocks of a published shape, whose every weight counts, and three images."""
    keras.config.set_dtype_policy(PUBLISHED[variant])
    model = keras_vit.build(variant, num_layers=3, input_shape=(64, 96, 3), classes=11)
    keras.config.set_dtype_policy("float32")
    rng = np.random.default_rng(3)
    model.set_weights([rng.normal(0, 0.05, w.shape).astype("float32") + (w.name == "gamma") for w in model.weights])
    return model, rng.uniform(-1, 1, (3, 64, 96, 3)).astype("float32")


MERGED = (0, 1, 2)  # tokens that each block merges


def asked_of_openvino():
    """What OpenVINO answers, before and after new weights, the loss that it tells, and what it says of training."""
    found = {**answers(), "published": {}, "refused": []}
    models = {variant: published(variant) for variant in PUBLISHED}
    for variant, (model, images) in models.items():
        found["published"][variant] = model.predict(images, verbose=0).tolist()
    model, images = models["Ti/16"]
    model.set_weights([weight * 0.9 for weight in model.get_weights()])
    found["new weights"] = model.predict(images, verbose=0).tolist()
    found["called"] = {merged: numpy(keras_vit.merge_tokens(model, merged)(images)).tolist() for merged in MERGED}
    model.compile("sgd", keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    found["loss"] = model.evaluate(images, np.arange(3), verbose=0)
    for train in (model.fit, model.train_on_batch):
        try:
            train(images, np.arange(3))
        except NotImplementedError as error:
            found["refused"].append(str(error))
    return found


@pytest.mark.nightly
@pytest.mark.elsewhere("openvino", "asked_of_openvino")
def test_openvino_gives_the_same_logits(found):
    assert_answers_are_the_same(found, "openvino")


@pytest.mark.nightly
@pytest.mark.elsewhere("openvino", "asked_of_openvino")
def test_openvino_computes_in_the_precision_of_the_layers(found):
    """On a processor that knows bfloat16 Keras has it compute float32 models in that: off by .03 deviations here."""
    for variant, policy in PUBLISHED.items():
        model, images = published(variant)
        wanted = model.predict(images, verbose=0)
        off = np.abs(found["published"][variant] - wanted).max() / wanted.std()
        assert off < {"float32": 5e-5, "bfloat16": 0.1}[policy], (variant, off)  # 4e-6; 8 bits


@pytest.fixture(scope="module")
def changed():
    """A published shape with other weights than it was first asked with, and images."""
    model, images = published("Ti/16")
    model.set_weights([weight * 0.9 for weight in model.get_weights()])
    return model, images


@pytest.mark.nightly
@pytest.mark.elsewhere("openvino", "asked_of_openvino")
def test_openvino_answers_for_the_weights_of_now(found, changed):
    model, images = changed
    wanted = model.predict(images, verbose=0)
    assert np.abs(found["new weights"] - wanted).max() < 5e-5 * wanted.std()
    model.compile("sgd", keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    assert abs(found["loss"] - model.evaluate(images, np.arange(3), verbose=0)) < 1e-5


@pytest.mark.nightly
@pytest.mark.elsewhere("openvino", "asked_of_openvino")
@pytest.mark.parametrize("merged", MERGED)
def test_openvino_answers_a_call_as_it_predicts(found, changed, merged):
    """A call leaves it to OpenVINO what is done together; it multiplies a transposed array by gathered rows wrongly."""
    model, images = changed
    wanted = numpy(keras_vit.merge_tokens(model, merged)(images))
    assert np.abs(found["called"][str(merged)] - wanted).max() < 5e-5 * wanted.std()


@pytest.mark.nightly
@pytest.mark.elsewhere("openvino", "asked_of_openvino")
def test_openvino_refuses_to_train(found):
    assert ["openvino" in said for said in found["refused"]] == [True] * 2
