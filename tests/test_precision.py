"""Mixed precision and XLA change how fast the numbers come, and the numbers only by rounding."""

import keras
import numpy as np
import pytest
from conftest import GOLDEN, images, make_tiny, numpy

import keras_vit

SMALL = keras_vit.ViTConfig(patch_size=8, hidden_size=48, num_layers=3, num_heads=4, mlp_dim=96)
HYBRID = keras_vit.ViTConfig(1, 48, 3, 4, 96, resnet_stages=(1, 2), resnet_width_factor=0.5)


@pytest.mark.parametrize(("policy", "bound"), [("mixed_bfloat16", 0.08), ("mixed_float16", 0.01)])
@pytest.mark.parametrize(("case", "config"), [("token", SMALL), ("hybrid_stages", HYBRID)])
def test_half_precision_stays_near_the_official_logits(policy, bound, case, config):
    expected = np.load(GOLDEN / f"{case}.expected.npz")
    keras.config.set_dtype_policy(policy)
    model = keras_vit.build(config, weights=GOLDEN / f"{case}.npz", input_shape=(32, 32, 3))
    logits = model.predict(expected["images"], verbose=0)
    assert logits.dtype == np.float32  # the head is not in half precision
    error = np.abs(logits - expected["logits"]).max() / expected["logits"].std()
    assert 1e-6 < error < bound  # 8 and 11 bits of mantissa; exactly nothing would mean the policy was ignored


@pytest.mark.parametrize("policy", ["mixed_bfloat16", "mixed_float16"])
def test_weights_stay_in_float32_and_blocks_compute_in_half(policy):
    keras.config.set_dtype_policy(policy)
    model = make_tiny(resnet_stages=(1,), resnet_width_factor=0.5, patch_size=1)
    assert {w.dtype for w in model.weights} == {"float32"}
    half = policy.removeprefix("mixed_")
    for name in ("resnet_root", "resnet_stage_1_unit_1", "patch_embedding", "class_token", "block_01", "encoder_norm"):
        assert model.get_layer(name).output.dtype == half
    assert model.get_layer("block_00").attention.query.compute_dtype == half
    assert model.output.dtype == "float32"


@pytest.mark.parametrize(
    ("policy", "jit_compile"),
    [
        ("float32", False),
        ("mixed_bfloat16", False),
        ("mixed_float16", False),
        pytest.param("float32", True, marks=pytest.mark.slow),
        pytest.param("mixed_bfloat16", True, marks=pytest.mark.slow),
        pytest.param("mixed_float16", True, marks=pytest.mark.slow),
    ],
)
def test_training_step_runs_and_learns(policy, jit_compile):
    keras.config.set_dtype_policy(policy)
    model = make_tiny(num_layers=1, dropout_rate=0.1, stochastic_depth_rate=0.1)
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(keras.optimizers.Adam(0.01), loss, jit_compile=jit_compile)
    losses = model.fit(images(8, 20, 28, 3), np.arange(8) % 7, epochs=40, verbose=0).history["loss"]
    assert losses[-1] < 0.5 * losses[0]


def test_a_policy_is_kept_when_saved(tmp_path):
    keras.config.set_dtype_policy("mixed_bfloat16")
    model = make_tiny()
    model.save(tmp_path / "model.keras")
    keras.config.set_dtype_policy("float32")
    again = keras.saving.load_model(tmp_path / "model.keras")
    assert again.get_layer("block_00").mlp.dense_1.compute_dtype == "bfloat16"
    x = images(2, 20, 28, 3)
    np.testing.assert_array_equal(numpy(again(x)), numpy(model(x)))
    assert keras_vit.with_input_shape(again, (40, 56, 3)).get_layer("block_00").compute_dtype == "bfloat16"
