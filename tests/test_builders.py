import inspect
import re

import keras
import numpy as np
import pytest
from conftest import images, make_tiny, numpy, randomise, tiny_config
from test_variants import PUBLISHED_PARAMETERS

import keras_vit
from keras_vit.config.variants import VARIANTS

BUILDERS = {
    "Ti/16": "ViTTi16",
    "S/16": "ViTS16",
    "S/32": "ViTS32",
    "B/8": "ViTB8",
    "B/16": "ViTB16",
    "B/32": "ViTB32",
    "L/16": "ViTL16",
    "L/32": "ViTL32",
    "H/14": "ViTH14",
    "g/14": "ViTg14",
    "G/14": "ViTG14",
    "R+Ti/16": "RViTTi16",
    "R26+S/32": "R26ViTS32",
    "R26+B/32": "R26ViTB32",
    "R50+B/16": "R50ViTB16",
    "R50+L/32": "R50ViTL32",
}


@pytest.mark.parametrize(("name", "builder"), BUILDERS.items())
def test_builder_builds_its_variant_with_the_published_parameters(name, builder):
    """For logits of a thousand classes at 224 pixels."""
    function = getattr(keras_vit, builder)
    assert function.__name__ == builder
    assert name in function.__doc__
    with keras.StatelessScope(initialize_variables=False):
        model = function()
    assert model.config == VARIANTS[name]
    assert model.count_params() == PUBLISHED_PARAMETERS[name]
    assert (model.input_shape, model.output_shape) == ((None, 224, 224, 3), (None, 1000))
    assert model.get_layer("block_00").dropout_rate == VARIANTS[name].dropout_rate
    assert model.get_layer("head").activation is keras.activations.linear


def test_help_of_a_builder_describes_every_argument():
    described = inspect.getdoc(keras_vit.ViTB16)
    _, *arguments = inspect.signature(keras_vit.build).parameters
    for name in arguments:
        assert re.search(rf"^    \**{name}: \S", described, re.MULTILINE), name
    assert "\nArgs:\n    include_top: " in described  # and no line of `config`, which the name has filled in
    assert "\nReturns:" in described
    assert "\nRaises:" in described


@pytest.mark.parametrize(("name", "own_name"), [("Ti/16", "vit_ti16"), ("R+Ti/16", "vit_r_ti16")])
def test_builder_takes_another_shape_and_other_classes(name, own_name):
    stride = VARIANTS[name].stride
    with keras.StatelessScope(initialize_variables=False):
        model = getattr(keras_vit, BUILDERS[name])(input_shape=(stride * 2, stride, 3), classes=3)
    assert (model.input_shape, model.output_shape, model.name) == ((None, stride * 2, stride, 3), (None, 3), own_name)


@pytest.mark.parametrize("builder", [*BUILDERS.values(), "build"])
def test_builder_has_the_signature_of_keras_applications(builder):
    parameters = list(inspect.signature(getattr(keras_vit, builder)).parameters.values())
    parameters = parameters[1:] if builder == "build" else parameters
    assert [(p.name, p.default) for p in parameters[:-1]] == [
        ("include_top", True),
        ("weights", None),
        ("input_tensor", None),
        ("input_shape", None),
        ("pooling", None),
        ("classes", None),
        ("classifier_activation", None),
        ("name", None),
        ("sha256", None),
        ("strict", False),
        ("resize_method", None),
    ]
    assert parameters[-1].kind is inspect.Parameter.VAR_KEYWORD


def test_new_model_answers_with_its_head_of_zeros():
    model = keras_vit.build(tiny_config(), input_shape=(20, 28, 3), classes=7)
    assert (numpy(model(images(2, 20, 28, 3))) == 0).all()  # official initialiser; so the first loss is log K


def test_classifier_activation_is_applied_to_the_logits(tiny):
    probabilities = make_tiny(classifier_activation="softmax")
    x = images(2, 20, 28, 3)
    expected = np.exp(numpy(tiny(x)))
    np.testing.assert_allclose(numpy(probabilities(x)), expected / expected.sum(-1, keepdims=True), atol=1e-6)


@pytest.mark.parametrize(
    ("pooling", "shape"), [("token", (2, 12)), ("gap", (2, 12)), ("map", (2, 12)), ("none", (2, 36, 12))]
)
def test_without_a_top_the_representation_comes_out(pooling, shape):
    model = make_tiny(include_top=False, pooling=pooling, classes=None)
    assert numpy(model(images(2, 20, 28, 3))).shape == shape
    assert model.output_shape == (None, *shape[1:])
    assert model.get_layer("block_01").output.shape[1] == {"token": 1, "none": 36}.get(pooling, 35)


def test_mean_pooling_leaves_out_every_token_before_the_patches():
    model = make_tiny(include_top=False, classes=None, pooling="gap", class_token=True, registers=2)
    x = images(2, 20, 28, 3)
    tokens = numpy(keras.Model(model.input, model.get_layer("encoder_norm").output)(x))
    assert tokens.shape == (2, 3 + 35, 12)
    np.testing.assert_allclose(numpy(model(x)), tokens[:, 3:].mean(1), atol=1e-6)


def test_without_a_top_classes_and_activation_are_ignored_as_keras_does():
    bare = make_tiny(include_top=False, classes=None)
    model = make_tiny(include_top=False, classes=9, classifier_activation="softmax")
    x = images(2, 20, 28, 3)
    assert (numpy(model(x)) == numpy(bare(x))).all()


def test_patches_of_one_pixel_take_images_of_few_rows_and_many_channels():
    model = make_tiny(patch_size=1, input_shape=(3, 4, 5))
    assert model.input_shape == (None, 3, 4, 5)


def test_a_head_on_all_tokens_classifies_each():
    model = make_tiny(pooling="none", class_token=False)
    assert numpy(model(images(2, 20, 28, 3))).shape == (2, 35, 7)


def test_stations_can_be_reached_by_name(tiny):
    names = "images patch_embedding class_token position_embedding dropout block_00 block_01 encoder_norm pooling head"
    assert [layer.name for layer in tiny.layers] == names.split()
    features = keras.Model(tiny.input, tiny.get_layer("block_00").output)
    assert numpy(features(images(2, 20, 28, 3))).shape == (2, 36, 12)


def test_weight_names_are_fixed_whatever_was_built_before(tiny):
    paths = [w.path for w in tiny.weights]
    assert [w.path for w in make_tiny().weights] == paths
    assert "block_00/attention/query/kernel" in paths
    assert "block_01/mlp/dense_2/bias" in paths


def test_short_cut_of_the_last_block_has_the_same_weights_and_numbers(tiny):
    whole = make_tiny(last_block_outputs="all")
    assert tiny.get_layer("block_01").output.shape == (None, 1, 12)
    assert whole.get_layer("block_01").output.shape == (None, 36, 12)
    assert [w.path for w in whole.weights] == [w.path for w in tiny.weights]
    x = images(2, 20, 28, 3)
    np.testing.assert_allclose(numpy(whole(x)), numpy(tiny(x)), atol=1e-6)


def test_permuting_patches_leaves_the_logits_when_there_are_no_positions():
    model = make_tiny(position_embedding="none", pooling="gap")
    x = images(2, 20, 28, 3)
    patches = x.reshape(2, 5, 4, 7, 4, 3)
    order = np.random.default_rng(0).permutation(35)
    flat = patches.transpose(0, 1, 3, 2, 4, 5).reshape(2, 35, 4, 4, 3)[:, order]
    shuffled = flat.reshape(2, 5, 7, 4, 4, 3).transpose(0, 1, 3, 2, 4, 5).reshape(x.shape)
    np.testing.assert_allclose(numpy(model(shuffled)), numpy(model(x)), atol=1e-5)
    placed = make_tiny(pooling="gap")
    assert np.abs(numpy(placed(shuffled)) - numpy(placed(x))).max() > 0.01


def test_stochastic_depth_grows_linearly():
    model = make_tiny(num_layers=5, stochastic_depth_rate=0.2)
    rates = [model.get_layer(f"block_{i:02}").stochastic_depth_rate for i in range(5)]
    assert rates == pytest.approx([0, 0.05, 0.1, 0.15, 0.2])
    assert make_tiny(num_layers=1, stochastic_depth_rate=0.2).get_layer("block_00").stochastic_depth_rate == 0


@pytest.mark.parametrize("pooling", ["token", "gap"])
def test_model_has_the_name_that_is_asked_for(pooling):
    assert keras_vit.build(tiny_config(pooling=pooling), input_shape=(20, 28, 3), name="mine").name == "mine"


def test_input_tensor_is_built_upon():
    inputs = keras.Input((20, 28, 1), name="grey")
    model = keras_vit.build(
        tiny_config(), input_tensor=keras.layers.Conv2D(3, 1, name="to_rgb")(inputs), classes=7, weights=None
    )
    assert model.input_shape == (None, 20, 28, 1)
    assert numpy(randomise(model)(images(2, 20, 28, 1))).shape == (2, 7)


@pytest.mark.parametrize("sides", [(None, None), (None, 28), (20, None)])
def test_unknown_sides_take_every_grid(sides):
    model = randomise(keras_vit.build(tiny_config(), input_shape=(*sides, 3), classes=7))
    assert model.preprocessing.image_size is None
    for height, width in [(20, 28), (8, 28), (20, 4), (20, 28)]:
        if sides[0] in (None, height) and sides[1] in (None, width):
            x = images(2, height, width, 3)
            fixed = keras_vit.with_input_shape(model, (height, width, 3))
            np.testing.assert_allclose(model.predict(x, verbose=0), numpy(fixed(x)), atol=2e-6)


@pytest.mark.parametrize("kind", ["learned", "sincos2d", "none"])
@pytest.mark.parametrize("resnet", [None, (1,)])
def test_dynamic_model_equals_static_models(kind, resnet):
    config = tiny_config(position_embedding=kind, resnet_stages=resnet, resnet_width_factor=0.5, patch_size=2)
    model = randomise(keras_vit.build(config, input_shape=(None, None, 3), classes=7))
    x = images(2, 24, 40, 3)
    fixed = keras_vit.with_input_shape(model, (24, 40, 3))
    np.testing.assert_allclose(model.predict(x, verbose=0), numpy(fixed(x)), atol=5e-6)


def test_a_running_graph_refuses_a_size_that_patches_do_not_tile():
    model = randomise(keras_vit.build(tiny_config(), input_shape=(None, None, 3), classes=7))
    with pytest.raises(ValueError, match="patches tile the image"):
        model(images(1, 21, 28, 3))
    tf = pytest.importorskip("tensorflow")
    run = tf.function(model, input_signature=[tf.TensorSpec((None, None, None, 3))])
    assert run(tf.constant(images(1, 20, 28, 3))).shape == (1, 7)
    with pytest.raises(tf.errors.InvalidArgumentError, match=r"requested shape"):
        run(tf.constant(images(1, 21, 28, 3)))


def test_integer_images_are_refused(tiny):
    x = np.zeros((1, 20, 28, 3), "int32")  # uint8 would be pixels
    for call in (tiny, lambda images: tiny.predict(images, verbose=0)):
        with pytest.raises(TypeError, match=r"model.preprocessing\(images\)"):
            call(x)


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({"config": "B16"}, ValueError, "'B/16'"),
        ({"config": 16}, TypeError, "`config`.*ViTConfig"),
        ({"input_shape": (21, 28, 3)}, ValueError, r"patch_size=4.* \(20, 28, 3\)"),
        ({"input_shape": (1, 28, 3)}, ValueError, r"\(4, 28, 3\)"),
        ({"input_shape": (30, 28, 3), "resnet_stages": ()}, ValueError, r"16 pixels.* \(32, 32, 3\)"),
        ({"input_shape": (20, 28)}, ValueError, r"\(H, W, C\)"),
        ({"input_shape": (3, 64, 68)}, ValueError, r"channels last.\n.*\(3, 64, 68\).* \(64, 68, 3\)"),
        ({"input_shape": (1, None, None)}, ValueError, r"channels last.\n.* \(None, None, 1\)"),
        ({"input_shape": None, "input_tensor": keras.Input((3, 64, 64))}, ValueError, "channels last"),
        ({"input_shape": (20.0, 28, 3)}, TypeError, "`input_shape`"),
        ({"input_shape": (-4, 28, 3)}, ValueError, "`input_shape`"),
        ({"input_shape": (20, 28, None)}, TypeError, "`input_shape`"),
        ({"include_top": "no"}, TypeError, "`include_top`"),
        ({"classes": 0}, ValueError, "`classes`"),
        ({"classes": True}, TypeError, "`classes`"),
        ({"include_top": False, "classes": 7.0}, TypeError, "`classes`"),
        ({"classifier_activation": "softmaks"}, ValueError, "softmaks"),
        ({"pooling": "avg"}, ValueError, "`pooling`.*\n.*'avg'. \"gap\""),
        ({"pooling": "max"}, ValueError, 'no maximum.*"gap"'),
        ({"drop_rate": 0.1}, ValueError, "'dropout_rate'"),
        ({"image_size": 64}, ValueError, "'input_shape'"),
        ({"num_classes": 5}, ValueError, "'classes'"),
        ({"weights": "imagenet21k"}, ValueError, "published variants"),
        ({"weights": "nowhere.npz"}, FileNotFoundError, "nothing at that path"),
        ({"weights": 3}, TypeError, "`weights`"),
        ({"strict": True}, ValueError, "strict=True"),
        ({"strict": 1.5, "weights": "x"}, TypeError, "`strict`"),
        ({"resize_method": "cubic", "weights": "x"}, ValueError, "`resize_method`.*\n.*cubic"),
        ({"distilled": True, "pooling": "none"}, ValueError, "include_top=False"),
        ({"input_tensor": np.zeros((1, 20, 28, 3))}, TypeError, "Keras tensor"),
    ],
)
def test_builder_refuses(arguments, error, message):
    with pytest.raises(error, match=message):
        keras_vit.build(**{"config": tiny_config(), "input_shape": (20, 28, 3)} | arguments)


def test_input_tensor_and_shape_must_agree():
    with pytest.raises(ValueError, match="`input_tensor`"):
        keras_vit.build(tiny_config(), input_tensor=keras.Input((20, 28, 3)), input_shape=(20, 24, 3))


def test_channels_first_is_refused_with_the_way_out():
    keras.config.set_image_data_format("channels_first")
    with pytest.raises(ValueError, match="image_data_format"):
        keras_vit.build(tiny_config())


def test_fit_trains_every_weight(tiny):
    before = [numpy(w) for w in tiny.trainable_weights]
    tiny.compile("sgd", keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    tiny.fit(images(4, 20, 28, 3), np.arange(4), verbose=0)
    unchanged = [w.path for old, w in zip(before, tiny.trainable_weights, strict=True) if (numpy(w) == old).all()]
    # A key's bias shifts all logits of a query alike, which the softmax cannot see; its gradient is rounding.
    assert [path for path in unchanged if not path.endswith("key/bias")] == []
