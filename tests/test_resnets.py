"""The ResNet baselines: their sizes against timm's, and what a model of them can do as every model of ours."""

import dataclasses
import inspect

import keras
import numpy as np
import pytest
from conftest import images, numpy, randomise

import keras_vit
from keras_vit.config.flops import parameter_count
from keras_vit.config.variants import RESNETS, ResNetConfig, resnet

# Parameters with 1,000 classes and with 21,843: timm 1.0.31, `resnetv2_*_bit` and, for three, its `ResNetV2` of their
# layers and width. The official code's own R50x1 has 25,557,032, since its norms stand behind the convolutions.
PARAMETERS = {
    "R50x1": (25_549_352, 68_256_659),
    "R50x2": (97_988_712, None),
    "R50x3": (217_319_080, 345_399_315),
    "R101x1": (44_541_480, 87_248_787),
    "R101x3": (387_934_888, 516_015_123),
    "R152x1": (60_185_128, None),
    "R152x2": (236_335_208, 321_728_979),
    "R152x4": (936_533_224, 1_107_299_923),
    "R200x3": (568_633_000, None),
}
SMALL = ResNetConfig((2, 1), 0.5)


def small(**arguments):
    return randomise(keras_vit.build_resnet(SMALL, **{"classes": 7, "input_shape": (37, 50, 3)} | arguments))


def test_every_model_has_its_count():
    assert PARAMETERS.keys() == RESNETS.keys()
    for name, (imagenet, imagenet21k) in PARAMETERS.items():
        assert parameter_count(RESNETS[name], 224, 1000) == imagenet
        assert imagenet21k in (None, parameter_count(RESNETS[name], 224, 21843))


@pytest.mark.parametrize("name", RESNETS)
def test_builder_makes_the_model_of_its_name(name):
    with keras.StatelessScope(initialize_variables=False):
        model = getattr(keras_vit, name)(input_shape=(64, 96, 3))
    assert model.count_params() == PARAMETERS[name][0]
    assert isinstance(model, keras_vit.ResNet)
    assert (model.config, model.name, model.output_shape) == (RESNETS[name], f"resnet_{name.lower()}", (None, 1000))


def test_layers_are_those_of_the_name():
    """R50 has 50 layers with weights on its longest way: the root, three to each unit, and the head."""
    for name, config in RESNETS.items():
        depth, width = name.removeprefix("R").split("x")
        assert (3 * sum(config.stages) + 2, config.width_factor) == (int(depth), int(width))


def test_sizes_follow_from_the_configuration():
    config = RESNETS["R152x4"]
    assert (config.width, config.features, config.stride) == (256, 8192, 32)
    assert config.grid(224, 225) == (7, 8)


@pytest.mark.parametrize("sides", [(37, 50), (64, 33), (1, 9)])
def test_images_may_have_any_sides(sides):
    model = keras_vit.build_resnet(SMALL, input_shape=(*sides, 3))
    last = model.get_layer("resnet_relu").output.shape
    assert last[1:3] == SMALL.grid(*sides)
    x = images(2, *sides, 3)
    any_sides = keras_vit.with_input_shape(model, (None, None, 3))
    np.testing.assert_allclose(numpy(any_sides(x)), numpy(model(x)), atol=1e-6)


def test_new_head_is_zero_and_gives_logits():
    model = keras_vit.build_resnet(SMALL, classes=5, input_shape=(20, 28, 3))
    np.testing.assert_array_equal(numpy(model(images(2, 20, 28, 3))), np.zeros((2, 5)))


def test_features_are_what_the_head_reads():
    model = small()
    bare = keras.Model(model.input, model.get_layer("pooling").output)
    x = images(2, 37, 50, 3)
    kernel, bias = (numpy(weight) for weight in model.get_layer("head").weights)
    np.testing.assert_allclose(numpy(model(x)), numpy(bare(x)) @ kernel + bias, atol=1e-5)
    assert keras_vit.build_resnet(SMALL, include_top=False).output_shape == (None, SMALL.features)


def test_mirrored_image_of_mirrored_kernels_has_the_same_logits():
    """Padding is the same on all sides, so odd sides, whose strides are centred, know no left and right."""
    model = small(input_shape=(33, 49, 3))
    x = images(2, 33, 49, 3)
    before = model.predict(x, verbose=0)
    for weight in model.weights:
        if weight.ndim == 4:
            weight.assign(numpy(weight)[:, ::-1])
    np.testing.assert_allclose(model.predict(x[:, :, ::-1], verbose=0), before, atol=5e-5)  # sums in another order


def test_saved_model_is_the_same_bitwise(tmp_path):
    model = small()
    model.save(tmp_path / "x.keras")
    again = keras.saving.load_model(tmp_path / "x.keras")
    x = images(2, 37, 50, 3)
    np.testing.assert_array_equal(again.predict(x, verbose=0), model.predict(x, verbose=0))
    assert (type(again), again.config, again.preprocessing) == (keras_vit.ResNet, SMALL, model.preprocessing)


def test_half_precision_keeps_logits_in_float32():
    keras.config.set_dtype_policy("mixed_bfloat16")
    model = small()
    assert (model.get_layer("resnet_root").compute_dtype, model.output.dtype) == ("bfloat16", "float32")
    keras.config.set_dtype_policy("float32")
    x = images(4, 37, 50, 3)
    exact, rounded = small().predict(x, verbose=0), model.predict(x, verbose=0)
    assert np.abs(rounded - exact).max() < 0.1 * exact.std()  # 8 bits in each of 14 layers; .03 seen


def test_model_learns_in_micro_batches_as_in_one():
    x, y = images(8, 20, 28, 3), np.arange(8) % 3
    losses = []
    for parts in (1, 2):
        model = small(classes=3, input_shape=(20, 28, 3))
        loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
        model.compile(keras.optimizers.SGD(0.05), loss, accumulation_steps=parts)
        losses.append(model.fit(x, y, batch_size=8, epochs=3, verbose=0).history["loss"])
    np.testing.assert_allclose(losses[1], losses[0], rtol=1e-4)  # three steps of float32
    assert losses[0][-1] < losses[0][0]


def test_model_is_evaluated():
    model = small(classes=3, input_shape=(20, 28, 3))
    photos = np.random.default_rng(1).integers(0, 256, (9, 20, 28, 3), "uint8")
    labels = np.arange(9) % 3
    result = keras_vit.evaluate(model, {"train": (photos[:3], labels[:3]), "test": (photos, labels)})
    logits = model.predict(model.preprocessing(photos), verbose=0)
    assert (result.count, result.accuracy) == (9, (logits.argmax(1) == labels).mean())


def test_frozen_model_learns_its_head_alone():
    model = small()
    keras_vit.freeze(model, "head")
    assert [weight.path for weight in model.trainable_weights] == ["head/kernel", "head/bias"]


@pytest.mark.parametrize(
    "use",
    [
        lambda model: keras_vit.freeze(model, "last_blocks", 1),
        lambda model: keras_vit.add_lora(model, 2),
        lambda model: keras_vit.look(model, images(1, 37, 50, 3), "nowhere"),
        lambda model: keras_vit.estimate_memory(model, 4),
    ],
)
def test_what_is_about_tokens_refuses_a_resnet_with_the_reason(use):
    with pytest.raises(TypeError, match=r"ResNet has no tokens(.|\n)*ResNet"):
        use(small())


def test_vision_transformers_and_resnets_are_built_by_their_own_builders():
    with pytest.raises(ValueError, match=r"keras_vit\.R50x1"):
        keras_vit.build("R50x1")
    with pytest.raises(ValueError, match=r"'R50x9'.* 'R50x"):
        keras_vit.build_resnet("R50x9")
    with pytest.raises(TypeError, match="ResNetConfig"):
        keras_vit.build_resnet(keras_vit.VARIANTS["B/16"])


@pytest.mark.parametrize(
    ("fields", "error", "message"),
    [
        ({"stages": ()}, TypeError, "stages"),
        ({"stages": 3}, TypeError, "stages"),
        ({"stages": (3, 0)}, ValueError, "`stages`"),
        ({"stages": (1,), "width_factor": 0.7}, ValueError, "multiple of 32"),
        ({"stages": (1,), "width_factor": -1}, ValueError, "multiple of 32"),
        ({"stages": (1,), "width_factor": "1"}, TypeError, "width_factor"),
    ],
)
def test_invalid_configuration_is_refused(fields, error, message):
    with pytest.raises(error, match=message):
        ResNetConfig(**fields)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"input_shape": (3, 64, 64)}, r"channels last(.|\n)*\(64, 64, 3\)"),
        ({"input_shape": (64, 64)}, r"\(H, W, C\)"),
        ({"strict": True}, "strict=True"),
        ({"classes": 0}, "`classes`"),
    ],
)
def test_wrong_arguments_are_refused(arguments, message):
    with pytest.raises(ValueError, match=message):
        keras_vit.build_resnet(SMALL, **arguments)


def test_model_stands_upon_a_tensor():
    tensor = keras.Input((40, 24, 3))
    model = keras_vit.build_resnet(SMALL, input_tensor=tensor, classes=2)
    assert model.inputs[0] is tensor
    with pytest.raises(ValueError, match="`input_tensor`"):
        keras_vit.build_resnet(SMALL, input_tensor=tensor, input_shape=(24, 40, 3))


def test_builders_show_the_arguments_of_build_resnet():
    first, *arguments = inspect.signature(keras_vit.build_resnet).parameters.values()
    assert first.name == "config"
    for name in RESNETS:
        builder = getattr(keras_vit, name)
        assert [*inspect.signature(builder).parameters.values()] == arguments
        assert builder.__doc__.startswith(f"Builds ResNet {name}, as `keras_vit.build_resnet({name!r})` does.")


def test_every_resnet_of_the_recipes_is_one_that_is_built():
    named = {model for recipe in keras_vit.RECIPES.values() for model in recipe.models}
    baselines = {model for model in named if "/" not in model}
    assert baselines == {"R50x1", "R50x2", "R101x1", "R152x1", "R152x2"}  # arXiv:2010.11929, table 3
    for name in baselines:
        recipe = keras_vit.find_recipe(f"paper-pretrain-jft300m-{name}")
        assert recipe.model_arguments(resnet(name)) == {}
        assert recipe.representation_layer is False


def test_recipe_that_trains_what_a_resnet_has_not_is_refused():
    model = small(classes=3, input_shape=(20, 28, 3))
    plan = keras_vit.plan("paper-finetune-cifar10", model, num_images=90, batch_size=9, epochs=2)
    assert plan.steps == 20
    recipe = dataclasses.replace(plan.recipe, dropout_rate=0.1)
    with pytest.raises(ValueError, match=r"dropout_rate=0\.1"):
        keras_vit.plan(recipe, model, num_images=90, batch_size=9, epochs=2)


@pytest.mark.parametrize("options", [{"lora_rank": 2}, {"trainable": "last_blocks:1"}, {"layer_decay": 0.7}])
def test_finetuning_refuses_what_is_about_blocks(tmp_path, options):
    with pytest.raises(ValueError, match=f"{next(iter(options))}="):
        keras_vit.finetune("digits", tmp_path / "run", model="R50x1", weights=None, **options)


def test_finetuning_takes_published_weights_unless_there_are_none(tmp_path):
    with pytest.raises(ValueError, match="R50x2"):
        keras_vit.finetune("digits", tmp_path / "run", model="R50x2")


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_resnet_is_finetuned_in_one_call(tmp_path):
    pytest.importorskip("sklearn")
    result = keras_vit.finetune("digits", model=SMALL, image_size=20, epochs=2, out=tmp_path / "run", seed=0)
    assert isinstance(result.model, keras_vit.ResNet)
    assert result.evaluation.accuracy > 0.5  # .1 by chance; .62 seen with (1, 1)


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.parametrize(("format", "name"), [("saved_model", "served"), ("onnx", "x.onnx")])
def test_exported_model_answers_as_the_model_does(tmp_path, format, name):
    """`export` itself compares what was written, and raises where it differs."""
    if format == "onnx":
        pytest.importorskip("onnxruntime")
    report = keras_vit.export(small(classes=3), tmp_path / name, format=format)
    assert report.path.exists()
    assert report.top1_agreement == 1.0  # of the class on every photo


def logits_here():
    """Logits on this backend of a model whose weights every backend draws alike."""
    return small().predict(images(2, 37, 50, 3), verbose=0).tolist()


@pytest.mark.skipif(keras.backend.backend() == "jax", reason="compares JAX with this process' backend")
@pytest.mark.elsewhere("jax", "logits_here")
def test_jax_gives_the_same_logits(found):
    np.testing.assert_allclose(found, logits_here(), atol=5e-5)  # 11 convolutions in float32
