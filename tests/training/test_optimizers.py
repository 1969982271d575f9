"""The optimizers against NumPy in float64: rate, decay, clipping, averaging, depth, and what is not finite."""

import keras
import numpy as np
import pytest
from conftest import make_tiny, numpy, tiny_config
from keras import ops

import keras_vit
from keras_vit.training.optimizers import (
    SGD,
    AdamW,
    GlobalStepOptimizer,
    inner_optimizer,
    layer_multipliers,
    rate_at,
    steps_of,
)
from keras_vit.training.schedules import WarmupCosine

STEPS, DECAY, CLIP = 5, 0.1, 2.0
PATHS = ("block_00/mlp/dense_1/kernel", "block_00/mlp/dense_1/bias", "head/kernel", "block_00/norm_1/gamma")
SHAPES = ((3, 5), (5,), (5, 2), (5,))
TOLERANCE = 2e-6  # a few float32 roundings at 1, over 5 steps


class Weight(keras.Variable):
    """A variable that says it lies somewhere in a model."""

    def __init__(self, value, path):
        super().__init__(value, name=path.split("/")[-1])
        self._path = path
        self.layer_depth = (1, 2) if path.startswith("block_00") else (2, 2)


def weights(seed=0):
    rng = np.random.default_rng(seed)
    return [Weight(rng.normal(size=s).astype("float32"), p) for s, p in zip(SHAPES, PATHS, strict=True)]


def gradients(step):
    """Of norms on both sides of `CLIP`."""
    rng = np.random.default_rng(100 + step)
    return [rng.normal(0, 0.2 + 0.3 * step, shape).astype("float32") for shape in SHAPES]


def schedule():
    return WarmupCosine(0.2, 8, 2)


def run(optimizer, steps=STEPS, variables=None):
    variables = variables or weights()
    optimizer.build(variables)
    for step in range(steps):
        optimizer.apply([keras.ops.convert_to_tensor(gradient) for gradient in gradients(step)])
    return variables


def rate(step):
    progress = np.clip((step - 2) / 6, 0, 1)
    return 0.2 * 0.5 * (1 + np.cos(np.pi * progress)) * min(1, step / 2)


def clipped(step):
    found = [gradient.astype("float64") for gradient in gradients(step)]
    norm = np.sqrt(sum((gradient**2).sum() for gradient in found))
    return [gradient * min(1, CLIP / norm) for gradient in found]


def decay(path):
    return DECAY if path.endswith("kernel") else 0


def numpy_sgd():
    values = [numpy(weight).astype("float64") for weight in weights()]
    momenta = [np.zeros(shape) for shape in SHAPES]
    for step in range(STEPS):
        momenta = [0.9 * m + g for m, g in zip(momenta, clipped(step), strict=True)]
        values = [p - rate(step) * (m + decay(path) * p) for p, m, path in zip(values, momenta, PATHS, strict=True)]
    return values


def numpy_adamw(epsilon):
    values = [numpy(weight).astype("float64") for weight in weights()]
    first, second = [np.zeros(s) for s in SHAPES], [np.zeros(s) for s in SHAPES]
    for step in range(STEPS):
        first = [0.9 * m + 0.1 * g for m, g in zip(first, clipped(step), strict=True)]
        second = [0.999 * v + 0.001 * g**2 for v, g in zip(second, clipped(step), strict=True)]
        units = [
            (m / (1 - 0.9 ** (step + 1))) / (np.sqrt(v / (1 - 0.999 ** (step + 1))) + epsilon)
            for m, v in zip(first, second, strict=True)
        ]
        values = [p - rate(step) * (u + decay(path) * p) for p, u, path in zip(values, units, PATHS, strict=True)]
    return values


def assert_close(found, expected, atol=TOLERANCE):
    for ours, theirs in zip(found, expected, strict=True):
        np.testing.assert_allclose(numpy(ours), theirs, atol=atol, rtol=0)


def test_sgd_is_the_formula_with_schedule_clipping_and_decay_of_kernels():
    assert_close(run(SGD(schedule(), weight_decay=DECAY, global_clipnorm=CLIP)), numpy_sgd())


@pytest.mark.parametrize("epsilon", [1e-8, 0.1])
def test_adamw_is_the_formula_with_schedule_clipping_and_decay_of_kernels(epsilon):
    found = run(AdamW(schedule(), epsilon=epsilon, weight_decay=DECAY, global_clipnorm=CLIP))
    assert_close(found, numpy_adamw(epsilon))


@pytest.mark.parametrize("kind", [SGD, AdamW])
def test_the_way_for_any_dtype_is_that_of_the_kernels(kind, monkeypatch):
    """What runs on JAX and with a bfloat16 accumulator gives the numbers of TensorFlow's own kernels."""
    arguments = {"weight_decay": DECAY, "global_clipnorm": CLIP}
    expected = run(kind(schedule(), **arguments))
    monkeypatch.setattr("keras_vit.training.optimizers.has_fused_kernel", lambda *variables: False)
    assert_close(run(kind(schedule(), **arguments)), [numpy(weight) for weight in expected])


@pytest.mark.parametrize("kind", [SGD, AdamW])
def test_a_bfloat16_accumulator_is_stored_so_and_changes_little(kind):
    optimizer = kind(schedule(), accumulator_dtype="bfloat16")
    rounded = run(optimizer)
    momenta = [v for v in optimizer.variables if v.name.endswith("momentum")]
    assert [v.dtype for v in momenta] == ["bfloat16"] * len(SHAPES)
    exact = [numpy(weight) for weight in run(kind(schedule()))]
    differences = [abs(numpy(a) - b).max() for a, b in zip(rounded, exact, strict=True)]
    assert 1e-5 < max(differences) < 0.05


def step_of_casts(kind):
    """Variables, one step in a graph of TensorFlow, and gradients in bfloat16 that the graph doubles and casts."""
    tf = pytest.importorskip("tensorflow")
    variables, optimizer = weights(), kind(0.1, weight_decay=DECAY, global_clipnorm=CLIP)
    optimizer.build(variables)

    @tf.function
    def step(halves):
        optimizer.apply([tf.cast(2 * half, "float32") for half in halves])

    return variables, step, [tf.cast(gradient, "bfloat16") for gradient in gradients(3)]


@pytest.mark.parametrize("kind", [SGD, AdamW])
def test_gradients_before_their_cast_give_the_same_bits(kind, monkeypatch):
    found = []
    for patched in (False, True):
        if patched:
            monkeypatch.setattr("keras_vit.training.optimizers.undo_cast", lambda gradient: gradient)
        variables, step, halves = step_of_casts(kind)
        step(halves)
        found.append([numpy(variable) for variable in variables])
    for ours, theirs, start in zip(*found, weights(), strict=True):
        np.testing.assert_array_equal(ours, theirs)
        assert (ours != numpy(start)).all()


@pytest.mark.parametrize("kind", [SGD, AdamW])
def test_each_update_casts_its_gradient_in_its_turn(kind):
    """So that of all gradients at once TensorFlow keeps those in bfloat16."""
    _, step, halves = step_of_casts(kind)
    operations = step.get_concrete_function(halves).graph.get_operations()
    updates = [operation for operation in operations if operation.type.startswith("ResourceApply")]
    assert len(updates) == len(SHAPES)
    for update, last in zip(updates, [None, *updates[:-1]], strict=True):
        (scaled,) = [tensor.op for tensor in update.inputs if tensor.op.type == "MulNoNan"]
        cast = scaled.inputs[0].op
        assert cast.type == "Cast"
        assert cast.inputs[0].dtype == "bfloat16"
        assert last is None or last in cast.control_inputs


def test_the_norm_is_that_before_clipping_and_known_without_clipping():
    expected = np.sqrt(sum((g.astype("float64") ** 2).sum() for g in gradients(STEPS - 1)))
    for clip in (None, 1e-3):
        optimizer = SGD(0.1, global_clipnorm=clip)
        run(optimizer)
        np.testing.assert_allclose(numpy(optimizer.gradient_norm), expected, rtol=1e-6)


@pytest.mark.parametrize("bad", [np.nan, np.inf, 1e30])  # the square of the last is not finite
@pytest.mark.parametrize("arguments", [{}, {"accumulator_dtype": "bfloat16"}, {"global_clipnorm": CLIP}])
@pytest.mark.parametrize("kind", [SGD, AdamW])
def test_a_gradient_that_is_not_finite_changes_no_bit(kind, arguments, bad):
    optimizer = kind(schedule(), weight_decay=DECAY, **arguments)
    variables = run(optimizer)
    kept = [*variables, *(v for v in optimizer.variables if v.name.endswith(("momentum", "velocity")))]
    before = [numpy(v).copy() for v in kept]
    poisoned = gradients(0)
    poisoned[1][2] = bad
    optimizer.apply([keras.ops.convert_to_tensor(gradient) for gradient in poisoned])
    assert numpy(optimizer.gradient_norm) == -1
    for value, v in zip(before, kept, strict=True):
        np.testing.assert_array_equal(numpy(v), value)
    optimizer.apply([keras.ops.convert_to_tensor(gradient) for gradient in gradients(1)])
    assert all(abs(numpy(v) - value).max() > 0 for value, v in zip(before, kept, strict=True))


@pytest.mark.parametrize("kind", [SGD, AdamW])
def test_a_rate_that_is_not_finite_changes_no_bit(kind):
    """As a callback may set it; `float` rates are looked at when the optimizer is made."""
    optimizer = kind(0.1, weight_decay=DECAY)
    variables = run(optimizer)
    before = [numpy(v).copy() for v in variables]
    optimizer.learning_rate = float("nan")
    optimizer.apply([keras.ops.convert_to_tensor(gradient) for gradient in gradients(0)])
    assert numpy(optimizer.gradient_norm) == -1
    for value, v in zip(before, variables, strict=True):
        np.testing.assert_array_equal(numpy(v), value)


def test_the_average_is_the_recursion_from_the_first_weights():
    optimizer = SGD(0.1, use_ema=True, ema_momentum=0.75)
    variables, average = weights(), None
    optimizer.build(variables)
    for step in range(STEPS):
        optimizer.apply([keras.ops.convert_to_tensor(gradient) for gradient in gradients(step)])
        values = [numpy(v).astype("float64") for v in variables]
        average = values if average is None else [0.75 * a + 0.25 * v for a, v in zip(average, values, strict=True)]
    assert_close([v for v in optimizer.variables if v.name.endswith("average")], average)


@pytest.mark.parametrize("kind", [SGD, AdamW])
def test_equal_gradients_move_each_layer_by_its_power_of_the_decay(kind):
    model = make_tiny()  # two blocks
    optimizer = kind(0.1, layer_decay=0.5)
    optimizer.build(model.trainable_variables)
    model.set_weights([np.zeros(w.shape) for w in model.weights])
    optimizer.apply([keras.ops.ones(w.shape) for w in model.trainable_variables])
    moved = {w.path.split("/")[0]: numpy(w).ravel()[0] / numpy(model.weights[-1]).ravel()[0] for w in model.weights}
    first = dict.fromkeys(("patch_embedding", "class_token", "position_embedding"), 0.125)
    assert moved == {**first, "block_00": 0.25, "block_01": 0.5, "encoder_norm": 1.0, "head": 1.0}


def test_the_depth_of_a_hybrid_counts_all_before_the_blocks_as_one():
    fields = {"patch_size": 1, "resnet_stages": (1,), "resnet_width_factor": 0.5, "num_layers": 11}
    model = keras_vit.build(tiny_config(**fields, representation_size=5), input_shape=(8, 12, 3), classes=3)
    factors = dict(zip([w.path for w in model.weights], layer_multipliers(model.weights, 0.5), strict=True))
    wanted = {"resnet_root/conv/kernel": 0.5**12, "resnet_stage_1_unit_1/conv_1/kernel": 0.5**12}
    wanted |= {"block_10/mlp/dense_1/kernel": 0.5, "pre_logits/kernel": 1.0}
    assert {path: factors[path] for path in wanted} == wanted


def test_the_depth_is_that_of_the_model_whatever_its_layers_are_called():
    """A token of another name, LoRA's factors, and layers around the model, in a copy that was saved and loaded."""
    model = make_tiny(distilled=True)
    keras_vit.add_lora(model, 2)
    around = keras.layers.Dense(3, name="block_99")
    outer = keras.Model(model.input, around(model.output))
    factors = {w.path: f for w, f in zip(outer.weights, layer_multipliers(outer.weights, 0.5), strict=True)}
    assert factors["distillation_token/token"] == factors["patch_embedding/projection/kernel"] == 0.125
    assert factors["block_00/attention/query/lora_kernel_a"] == 0.25
    assert factors["head_distillation/kernel"] == factors["block_99/kernel"] == 1.0


def test_layer_decay_without_blocks_is_refused():
    with pytest.raises(ValueError, match="blocks"):
        layer_multipliers(make_tiny().get_layer("head").weights, 0.75)
    assert layer_multipliers(make_tiny().get_layer("head").weights, 1.0) == [1.0, 1.0]


@pytest.mark.parametrize("kind", [SGD, AdamW])
def test_a_config_makes_the_same_optimizer(kind):
    arguments = {"weight_decay": 0.1, "global_clipnorm": 1.0, "accumulator_dtype": "bfloat16", "layer_decay": 0.75}
    assert kind().ema_momentum == 0.9999  # arXiv:2010.11929, section 4.1
    optimizer = kind(schedule(), use_ema=True, ema_momentum=0.5, **arguments)
    again = keras.optimizers.deserialize(keras.optimizers.serialize(optimizer))
    assert type(again) is kind
    assert again.get_config() == optimizer.get_config()
    assert_close(run(again), [numpy(weight) for weight in run(optimizer)], atol=0)


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        ({"learning_rate": -0.1}, ValueError),
        ({"learning_rate": float("nan")}, ValueError),
        ({"learning_rate": float("inf")}, ValueError),
        ({"momentum": 1.0}, ValueError),
        ({"momentum": float("nan")}, ValueError),
        ({"weight_decay": -0.1}, ValueError),
        ({"global_clipnorm": 0}, ValueError),
        ({"global_clipnorm": float("nan")}, ValueError),
        ({"accumulator_dtype": "float16"}, ValueError),
        ({"layer_decay": 0}, ValueError),
        ({"layer_decay": 1.1}, ValueError),
        ({"layer_decay": "0.5"}, TypeError),
    ],
)
def test_sgd_refuses_what_is_out_of_range(arguments, error):
    with pytest.raises(error, match=f"`{next(iter(arguments))}`"):
        SGD(**{"learning_rate": 0.1} | arguments)


@pytest.mark.parametrize("wrap", [lambda inner: inner, keras.optimizers.LossScaleOptimizer], ids=["plain", "scaled"])
def test_optimizer_that_moves_the_weights_is_found_with_its_steps(wrap):
    model, inner = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)]), SGD(0.1)
    model.compile(wrap(inner), "mse")
    model.fit(np.ones((6, 2)), np.ones((6, 1)), batch_size=2, verbose=0)
    assert inner_optimizer(model) is inner
    assert steps_of(inner) == 3


def test_rate_is_that_of_the_schedule_at_a_step_or_the_fixed_one():
    schedule = WarmupCosine(0.1, 20, 4)
    assert [rate_at(SGD(schedule), step) for step in (0, 2, 4)] == [float(schedule(step)) for step in (0, 2, 4)]
    assert rate_at(SGD(schedule), 4) == pytest.approx(0.1)  # the highest, after the warm-up
    assert rate_at(SGD(0.25), 7) == 0.25


class Descent(GlobalStepOptimizer):
    """Plain gradient descent, which notes what it is given."""

    def update_all(self, gradients, variables, learning_rate):
        self.seen = [float(numpy(gradient)[0]) for gradient in gradients]
        self.update_each(gradients, variables, (learning_rate,))

    def update_one(self, variable, gradient, scalars, index):
        (rate,) = scalars
        self.assign_sub(variable, gradient * rate)
        self.seen.append(index)


def variables():
    return [keras.Variable(np.full((n,), float(n), "float32")) for n in (2, 3)]


def some_gradients(step=0):
    return [ops.convert_to_tensor(np.full((n,), 0.25 * n + step, "float32")) for n in (2, 3)]


OPTIONS = [
    {},
    {"use_ema": True, "ema_momentum": 0.75},
    {"use_ema": True, "ema_momentum": 0.75, "ema_overwrite_frequency": 2},
    {"loss_scale_factor": 4.0},
]


@pytest.mark.parametrize("options", OPTIONS, ids=["plain", "average", "overwritten", "scaled"])
def test_steps_and_state_are_those_of_keras_bit_for_bit(options):
    schedule = keras.optimizers.schedules.PiecewiseConstantDecay([1], [0.5, 0.25])
    states = []
    for kind in (Descent, keras.optimizers.SGD):
        optimizer, weights = kind(schedule, name="descent", **options), variables()
        for step in range(3):
            optimizer.apply_gradients(zip(some_gradients(step), weights, strict=True))
        states.append([*map(numpy, weights), *map(numpy, optimizer.variables)])
        names = [variable.path for variable in optimizer.variables]
    assert len(states[0]) == len(states[1]) == len(names) + 2
    for ours, theirs in zip(*states, strict=True):
        np.testing.assert_array_equal(ours, theirs)


@pytest.mark.parametrize("option", [{"global_clipnorm": 1e-3}, {"clipnorm": 1e-3}, {"weight_decay": 0.5}])
def test_keras_neither_clips_nor_decays(option):
    optimizer, weights = Descent(1.0, **option), variables()
    optimizer.apply(some_gradients(), weights)
    assert optimizer.seen == [0.5, 0.75, 0, 1]
    np.testing.assert_array_equal(numpy(weights[0]), [1.5] * 2)


def test_constraints_hold_after_a_step():
    weights = variables()
    weights[0].constraint = keras.constraints.NonNeg()
    optimizer = Descent(5.0)
    optimizer.apply(some_gradients(), weights)  # 2 - 5 * 0.5 is below 0
    np.testing.assert_array_equal(numpy(weights[0]), [0.0] * 2)


def test_variable_without_a_gradient_stays_with_a_warning():
    optimizer, weights = Descent(1.0), variables()
    with pytest.warns(UserWarning, match="Gradients do not exist"):
        optimizer.apply([None, some_gradients()[1]], weights)
    assert optimizer.seen == [0.75, 1]
    np.testing.assert_array_equal(numpy(weights[0]), [2.0] * 2)
    with pytest.raises(ValueError, match="None for all 2"):
        optimizer.apply([None, None])


def test_other_variables_than_those_of_before_are_refused():
    optimizer = Descent(1.0)
    optimizer.build(variables())
    with pytest.raises(ValueError, match="built with"):
        optimizer.apply(some_gradients(), variables())
    optimizer.apply([])
    assert int(numpy(optimizer.iterations)) == 0
