import itertools
import logging
import re

import keras
import numpy as np
import pytest
from conftest import GOLDEN, images, make_tiny, numpy, randomise, tiny_config

import keras_vit
from keras_vit.config.variants import VARIANTS
from keras_vit.model.layer_access import weight_paths
from keras_vit.weights.checkpoint import Checkpoint, read_checkpoint
from keras_vit.weights.read import CheckpointError

TOKEN = GOLDEN / "token.npz"
SMALL = keras_vit.ViTConfig(patch_size=8, hidden_size=48, num_layers=3, num_heads=4, mlp_dim=96)


@pytest.fixture
def saved(tmp_path):
    """A tiny model and its file; `edit` writes the file anew with some arrays replaced, or dropped as None."""
    model, path = make_tiny(representation_size=9), tmp_path / "tiny.npz"
    keras_vit.save_checkpoint(model, path)

    def edit(**replaced):
        arrays = dict(np.load(path)) | replaced
        np.savez(path, **{name: array for name, array in arrays.items() if array is not None})

    return model, path, edit


def load_into_copy(model, path, **arguments):
    copy = keras.models.clone_model(model)
    return copy, keras_vit.load_checkpoint(copy, path, **arguments)


def test_loading_into_a_built_model_gives_its_weights(saved):
    model, path, _ = saved
    copy, report = load_into_copy(model, path)
    assert report == ()
    x = images(2, 20, 28, 3)
    np.testing.assert_array_equal(numpy(copy(x)), numpy(model(x)))


@pytest.mark.parametrize(
    ("name", "array", "line"),
    [
        ("encoderblock_0/LayerNorm_2/scale", None, r"- block_00/norm_2/gamma \(12,\)"),
        ("encoder_norm/scales", np.ones(12, "float32"), r"\+ Transformer/encoder_norm/scales \(12,\)"),
    ],
)
def test_a_missing_or_extra_array_is_named_and_nothing_changes(saved, name, array, line):
    model, path, edit = saved
    edit(**{f"Transformer/{name}": array})
    copy = keras.models.clone_model(model)
    before = [numpy(w) for w in copy.weights]
    with pytest.raises(CheckpointError, match=rf"\(1\):\n    {line}"):
        keras_vit.load_checkpoint(copy, path)
    for old, new in zip(before, copy.weights, strict=True):
        np.testing.assert_array_equal(old, numpy(new))


def test_every_array_of_a_wrong_shape_is_named(saved):
    model, path, edit = saved
    original, before = dict(np.load(path)), model.get_weights()
    for name, array in original.items():
        edit(**{**original, name: np.ones((*array.shape[:-1], array.shape[-1] + 1), "float32")})
        with pytest.raises(
            CheckpointError, match=r"~ .*file \(.*model \(|number of heads|position table|shapes of weights"
        ):
            keras_vit.load_checkpoint(model, path)
    for weight, old in zip(model.get_weights(), before, strict=True):
        np.testing.assert_array_equal(weight, old)


def test_a_transposed_square_kernel_of_several_heads_is_refused(saved):
    model, path, edit = saved
    name = "Transformer/encoderblock_0/MultiHeadDotProductAttention_1/query/kernel"
    edit(**{name: np.load(path)[name].transpose(1, 2, 0)})
    with pytest.raises(CheckpointError, match="number of heads"):
        load_into_copy(model, path)


def test_another_number_of_heads_is_refused_though_every_shape_fits(saved):
    _, path, _ = saved
    config = tiny_config(num_heads=6, representation_size=9)
    with pytest.raises(CheckpointError, match="~ attention heads  file 3  model 6"):
        keras_vit.build(config, weights=path)


def test_long_lists_are_cut_and_counted(saved):
    _, path, _ = saved
    with pytest.raises(CheckpointError, match=r"\(16\):(\n    \+ .*){5}\n    ... and 11 more"):
        keras_vit.build(tiny_config(num_layers=1, representation_size=9), weights=path)


def shape_table(name):
    """A checkpoint of a variant with shapes alone: arrays of stride 0 over one number."""
    with keras.StatelessScope(initialize_variables=False):
        model = keras_vit.build(name)
    tensors = {path: np.broadcast_to(np.float32(0), v.shape) for path, v in weight_paths(model).items()}
    return model, Checkpoint(path=f"{name}.npz", layout="official", tensors=tensors, num_heads=VARIANTS[name].num_heads)


@pytest.mark.parametrize("pairs", ["neighbours", pytest.param("all", marks=pytest.mark.nightly)])
def test_a_file_of_another_variant_is_recognised_for_all_ordered_pairs(pairs):
    from keras_vit.weights.load import _check_fit

    made = {name: shape_table(name) for name in VARIANTS}
    wanted = {name: weight_paths(model) for name, (model, _) in made.items()}
    both_ways = itertools.chain(itertools.pairwise(VARIANTS), itertools.pairwise([*VARIANTS][::-1]))
    for ours, theirs in itertools.permutations(VARIANTS, 2) if pairs == "all" else both_ways:
        model, checkpoint = made[ours][0], made[theirs][1]
        blocks, width = VARIANTS[theirs].num_layers, VARIANTS[theirs].hidden_size
        with pytest.raises(CheckpointError, match=re.escape(f"ViT {theirs} ({blocks} blocks, width {width})")):
            _check_fit(model, checkpoint, dict(checkpoint.tensors), wanted[ours])


@pytest.mark.parametrize(("case", "stride"), [("token", 8), ("hybrid_root", 16), ("hybrid_stages", 8)])
def test_file_tells_the_size_of_its_images(case, stride):
    checkpoint = read_checkpoint(GOLDEN / f"{case}.npz")
    assert (checkpoint.stride, checkpoint.image_size) == (stride, (32, 32))


def test_builder_follows_the_file():
    model = keras_vit.build(SMALL, weights=GOLDEN / "token_representation.npz")
    assert model.input_shape == (None, 32, 32, 3)
    assert model.output_shape == (None, 10)
    assert model.config.representation_size == 48
    assert model.load_report == ()


def test_another_number_of_classes_gets_a_new_head_of_zeros_and_drops_the_pre_logits():
    model = keras_vit.build(SMALL, weights=GOLDEN / "token_representation.npz", classes=3)
    assert model.load_report == ("new head", "set aside head (48, 10)", "set aside pre_logits (48, 48)")
    assert model.config.representation_size is None
    assert (model.predict(images(2, 32, 32, 3), verbose=0) == np.zeros((2, 3))).all()


def test_no_top_sets_the_head_aside():
    model = keras_vit.build(SMALL, weights=GOLDEN / "token_representation.npz", include_top=False)
    assert model.output_shape == (None, 48)
    assert model.load_report == ("set aside head (48, 10)", "set aside pre_logits (48, 48)")
    arguments = {"weights": GOLDEN / "token_representation.npz", "representation_size": 48}
    kept = keras_vit.build(SMALL, include_top=False, **arguments)
    assert kept.layers[-1].name == "pre_logits"


def test_a_head_is_not_kept_without_the_pre_logits_it_was_trained_on():
    with pytest.raises(CheckpointError, match=r"\+ pre_logits/kernel \(48, 48\)"):
        keras_vit.build(SMALL, weights=GOLDEN / "token_representation.npz", representation_size=None)


def test_pre_logits_asked_for_beside_a_new_head_are_new_if_the_file_has_none():
    model = keras_vit.build(SMALL, weights=TOKEN, classes=3, representation_size=9)
    assert model.load_report == ("new pre_logits", "new head", "set aside head (48, 10)")
    kept = keras_vit.build(SMALL, weights=GOLDEN / "token_representation.npz", classes=3, representation_size=48)
    assert kept.load_report == ("new head", "set aside head (48, 10)")


def test_mean_pooling_of_a_file_with_class_token_keeps_the_token():
    model = keras_vit.build(SMALL, weights=TOKEN, include_top=False, pooling="gap")
    tokens = keras_vit.build(SMALL, weights=TOKEN, include_top=False, pooling="none")
    x = images(2, 32, 32, 3)
    np.testing.assert_allclose(numpy(model(x)), numpy(tokens(x))[:, 1:].mean(1), atol=1e-6)


def test_file_without_a_head_asks_for_classes(saved):
    _, path, edit = saved
    edit(**{"head/kernel": None, "head/bias": None})
    with pytest.raises(CheckpointError, match="`classes`"):
        keras_vit.build(tiny_config(), weights=path, input_shape=(20, 28, 3))
    assert keras_vit.build(tiny_config(), weights=path, input_shape=(20, 28, 3), classes=4).output_shape == (None, 4)


def test_head_of_zeros_is_said(saved):
    _, path, edit = saved
    arrays = np.load(path)
    edit(**{name: np.zeros_like(arrays[name]) for name in ("head/kernel", "head/bias")})
    with pytest.warns(UserWarning, match="all zeros.*AugReg"):
        keras_vit.build(tiny_config(), weights=path, input_shape=(20, 28, 3))
    # A new head needs no warning: warnings are errors here.
    keras_vit.build(tiny_config(), weights=path, input_shape=(20, 28, 3), classes=3)


def test_positions_are_resized_by_grid_not_by_count(tmp_path):
    square = randomise(keras_vit.build(tiny_config(), input_shape=(24, 24, 3), classes=7))
    keras_vit.save_checkpoint(square, tmp_path / "square.npz")
    wide = keras_vit.build(tiny_config(), weights=tmp_path / "square.npz", input_shape=(12, 48, 3))
    assert wide.load_report == ("position embedding resized from (6, 6) to (3, 12) (align_corners)",)
    old, new = (numpy(m.get_layer("position_embedding").table) for m in (square, wide))
    np.testing.assert_allclose(new, keras_vit.resize_pos_embed(old, (3, 12)), atol=1e-6)
    assert np.abs(old - new).max() > 0.1


def test_file_of_ours_with_as_many_patches_as_a_square_remembers_its_grid(tmp_path):
    wide = randomise(keras_vit.build(tiny_config(), input_shape=(12, 48, 3), classes=7))
    keras_vit.save_checkpoint(wide, tmp_path / "wide.npz")
    again = keras_vit.build(tiny_config(), weights=tmp_path / "wide.npz")
    assert again.input_shape == wide.input_shape
    np.testing.assert_array_equal(*(numpy(m.get_layer("position_embedding").table) for m in (wide, again)))


@pytest.mark.parametrize("method", ["bilinear", "bicubic_antialias"])
def test_positions_are_resized_by_the_method_asked_for(method):
    model = keras_vit.build(SMALL, input_shape=(48, 24, 3), classes=10)
    report = keras_vit.load_checkpoint(model, TOKEN, resize_method=method)
    assert report == (f"position embedding resized from (4, 4) to (6, 3) ({method})",)
    table = np.load(TOKEN)["Transformer/posembed_input/pos_embedding"]
    expected = keras_vit.resize_pos_embed(table, (6, 3), method=method)
    np.testing.assert_array_equal(numpy(model.get_layer("position_embedding").table), expected)


def test_unknown_grid_is_asked_for():
    rectangular = GOLDEN / "rectangular.npz"
    with pytest.raises(ValueError, match="not square"):
        keras_vit.build(SMALL, weights=rectangular)
    model = keras_vit.build(SMALL, input_shape=(48, 40, 3), classes=7)
    with pytest.raises(CheckpointError, match="`grid="):
        keras_vit.load_checkpoint(model, rectangular)
    report = keras_vit.load_checkpoint(model, rectangular, grid=(3, 5))
    assert report == ("position embedding resized from (3, 5) to (6, 5) (align_corners)",)


def test_adaptations_are_logged(caplog):
    with caplog.at_level(logging.INFO, "keras_vit"):
        keras_vit.build(SMALL, weights=TOKEN, input_shape=(48, 48, 3))
    assert re.search(r"token.npz.*\(4, 4\) to \(6, 6\)", caplog.text)


@pytest.fixture
def drawn(monkeypatch):
    """Shapes that random initialisers were asked for."""
    shapes = []
    for cls in (keras.initializers.VarianceScaling, keras.initializers.RandomNormal):
        monkeypatch.setattr(cls, "__call__", lambda self, shape, dtype=None: shapes.append(shape) or np.zeros(shape))
    return shapes


def test_builder_with_weights_draws_no_random_numbers(drawn):
    keras_vit.build(SMALL, weights=TOKEN)
    assert drawn == []
    keras_vit.build(SMALL)
    assert len(drawn) == 3 * 8 + 2  # four kernels, two kernels and two biases a block; patches and positions


def test_failed_build_leaves_nothing_to_initialise(saved, drawn):
    _, path, _ = saved
    drawn.clear()
    with pytest.raises(CheckpointError):
        keras_vit.build(tiny_config(num_layers=3), weights=path)
    with keras.StatelessScope():
        pass  # leaving it initialises what still waits
    assert drawn == []


def test_weights_do_not_rest_on_the_file(saved):
    _, path, _ = saved
    again = keras_vit.build(tiny_config(), weights=path)
    x = images(2, 20, 28, 3)
    before = numpy(again(x))
    path.write_bytes(bytes(path.stat().st_size))  # in place: a mapping would show it
    np.testing.assert_array_equal(numpy(again(x)), before)


def test_mixed_precision_and_bfloat16_models_load_and_save(tmp_path):
    for policy in ("mixed_bfloat16", "bfloat16", "float64"):
        keras.config.set_dtype_policy(policy)
        model = keras_vit.build(SMALL, weights=TOKEN)
        keras_vit.save_checkpoint(model, tmp_path / "x.npz")
        saved, original = np.load(tmp_path / "x.npz"), np.load(TOKEN)
        for name in original.files:
            atol = 0.01 if policy == "bfloat16" else 0  # 8 bits of mantissa at values below 2
            np.testing.assert_allclose(saved[name], original[name], atol=atol)


def mirrored_weights():
    """Whether each of two devices has the kernel of the file."""
    import tensorflow as tf

    with tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"]).scope():
        model = keras_vit.build(keras_vit.ViTConfig(8, 48, 3, 4, 96), weights=TOKEN)
    kernel = model.get_layer("block_02").mlp.dense_2.kernel.value
    theirs = np.load(TOKEN)["Transformer/encoderblock_2/MlpBlock_3/Dense_1/kernel"]
    return [bool((value.numpy() == theirs).all()) for value in kernel.values]


@pytest.mark.elsewhere("two devices", "mirrored_weights")
def test_strategy_scope_gets_mirrored_variables_with_the_values_of_the_file(found):
    assert found == [True, True]


def test_saving_a_sincos_model_writes_its_table(tmp_path):
    model = make_tiny(position_embedding="sincos2d")
    keras_vit.save_checkpoint(model, tmp_path / "x.npz")
    learned = keras_vit.build(tiny_config(), weights=tmp_path / "x.npz")
    x = images(2, 20, 28, 3)
    np.testing.assert_allclose(numpy(learned(x)), numpy(model(x)), atol=1e-6)
    again = keras_vit.build(tiny_config(position_embedding="sincos2d"), weights=tmp_path / "x.npz")
    np.testing.assert_array_equal(numpy(again(x)), numpy(model(x)))
    assert again.load_report == ()


def test_a_learned_table_does_not_fit_a_sincos_model():
    with pytest.raises(CheckpointError, match=r"\+ position_embedding/table"):
        keras_vit.build(SMALL, weights=TOKEN, position_embedding="sincos2d")


def test_a_model_around_ours_is_refused_with_the_way_in(saved, tmp_path):
    model, path, _ = saved
    around = keras.Sequential([model, keras.layers.Softmax()])
    for use in (keras_vit.load_checkpoint, keras_vit.save_checkpoint):
        with pytest.raises(ValueError, match=r"model.get_layer\('vit'\)"):
            use(around, path)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"grid": (4,)}, r"`grid`(.|\n)*\(4,\)"),
        ({"grid": "4x4"}, r"`grid`(.|\n)*4x4"),
        ({"grid": (-4, -4)}, r"`grid`(.|\n)*\(-4, -4\)"),
        ({"resize_method": "nearest"}, r"`resize_method`(.|\n)*nearest"),
    ],
)
def test_loading_refuses_arguments(tiny, arguments, message):
    with pytest.raises(ValueError, match=message):
        keras_vit.load_checkpoint(tiny, TOKEN, **arguments)


def test_format_must_be_known(tmp_path, tiny):
    with pytest.raises(ValueError, match="'linen'"):
        keras_vit.save_checkpoint(tiny, tmp_path / "x.npz", "line")


def test_file_of_an_unknown_layout_is_refused(tmp_path):
    np.savez(tmp_path / "x.npz", a=np.zeros(3, "float32"))
    with pytest.raises(CheckpointError, match="1 arrays: a, "):
        keras_vit.build("Ti/16", weights=tmp_path / "x.npz")
