"""Trains small models in one of several processes on JAX, and writes the losses and weights that each came to.

`python training_cases.py OUT CASE...`, with a case as `"fsdp sgd clip 4 float32 ema"`. The first
process writes one `.npz` for each. `one` stands for one device.
"""

import sys

import numpy as np

STEPS, BATCH, IMAGES = 20, 16, 32
SHAPE, CLASSES = (8, 12, 3), 7
LARGE = 300  # bytes: of weights this small some are cut and others are not
SWITCHES = {  # of the encoders
    "hidden_size": 16,
    "registers": 2,
    "layer_scale": "both",
    "gated_mlp": True,
    "rotary": "axial",
    "qk_norm": "head",
}
MESHES = {"replicated": (4,), "fsdp": (4,), "tensor": (2, 2), "tensor only": (1, 4)}


def config(**fields):
    import keras_vit

    return keras_vit.ViTConfig(
        **{"patch_size": 4, "hidden_size": 8, "num_layers": 1, "num_heads": 4, "mlp_dim": 12}
        | {"dropout_rate": 0.1, "patch_dropout_rate": 0.25}
        | fields
    )


def distribution(kind, fields):
    """Over all devices, of which there are 4, for a model with these fields."""
    import keras

    import keras_vit

    if kind == "data":
        return keras.distribution.DataParallel(auto_shard_dataset=False)
    shape = MESHES[kind]
    mesh = keras.distribution.DeviceMesh(shape, ("data", "model")[: len(shape)])
    arguments = {"input_shape": SHAPE, "classes": CLASSES}
    layout = keras_vit.layout_map(config(**fields), mesh, kind.split()[0], large=LARGE, **arguments)
    return keras.distribution.ModelParallel(layout_map=layout, auto_shard_dataset=False)


def optimizer(name, clip, extra):
    import keras_vit

    arguments = {"global_clipnorm": 0.5 if clip == "clip" else None}
    if extra in ("ema", "all"):
        arguments |= {"use_ema": True, "ema_momentum": 0.9}
    if extra in ("layers", "all"):
        arguments["layer_decay"] = 0.75
    if name == "sgd":
        return keras_vit.SGD(keras_vit.WarmupCosine(0.03, STEPS, 3), **arguments)
    # The gradient of a key's bias is 0 but for rounding, which Adam with a smaller epsilon would blow up to steps.
    return keras_vit.AdamW(keras_vit.WarmupCosine(0.001, STEPS, 3), epsilon=1e-3, weight_decay=0.1, **arguments)


def batches():
    """20 batches of this process: its rows of each, as `load_dataset` numbers them."""
    from keras_vit.data.pipeline import find_shard

    index, count = find_shard(None)
    rng = np.random.default_rng(5)
    images = rng.uniform(-1, 1, (IMAGES, *SHAPE)).astype("float32")
    labels = rng.integers(0, CLASSES, IMAGES)
    for step in range(STEPS):
        numbers = (np.arange(BATCH) + step * BATCH) % IMAGES
        # A batch is the hosts' parts one after the other, and dropout draws by place: so one host orders it likewise.
        share = numbers.reshape(count, -1)[index]
        yield images[share], labels[share]


def train(case):
    """`{name: array}` of a case: losses, weights, and the optimizer's averages, all of them whole."""
    import keras

    import keras_vit
    from keras_vit.runs.run_directory import gathered

    kind, name, clip, accumulation, precision, extra = case.replace("tensor only", "tensor_only").split()
    fields = SWITCHES if extra == "all" else {}
    keras.utils.set_random_seed(3)
    keras.config.set_dtype_policy(precision)
    keras.distribution.set_distribution(None if kind == "one" else distribution(kind.replace("_", " "), fields))
    model = keras_vit.build(config(**fields), input_shape=SHAPE, classes=CLASSES)
    # Tables of 0.02, as they are drawn, would be normalised to 50 times their size, and their rounding with them.
    rng = np.random.default_rng(1)
    model.set_weights([rng.normal(0, 0.2, w.shape).astype("float32") + (w.name == "gamma") for w in model.weights])
    losses = Losses()
    model.compile(
        optimizer(name, clip, extra),
        keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        accumulation_steps=int(accumulation),
        steps_per_execution=4 if extra in ("executions", "all") else 1,
        jit_compile=True,
    )
    model.fit(batches(), epochs=1, steps_per_epoch=STEPS, shuffle=False, verbose=0, callbacks=[losses.callback()])
    keras.config.set_dtype_policy("float32")
    found = {f"weight {index}": gathered(v) for index, v in enumerate(model.trainable_weights)}
    inner = getattr(model.optimizer, "inner_optimizer", model.optimizer)
    found |= {f"state {v.name}": gathered(v) for v in inner.variables if "average" in v.name or "moment" in v.name}
    keras.distribution.set_distribution(None)
    return found | {"losses": np.array(losses.values)}


class Losses:
    """Of each execution; metrics are not reset between, so each is a mean of all up to it."""

    def __init__(self):
        self.values = []

    def callback(self):
        import keras

        def note(_, logs):
            self.values.append(float(logs["loss"]))

        return keras.callbacks.LambdaCallback(on_train_batch_end=note)


def main(out, *cases):
    import keras

    from keras_vit.training.hosts.processes import connect, is_first

    keras.utils.set_random_seed(3)
    connect()
    for number, case in enumerate(cases):
        found = train(case)
        if is_first():
            np.savez(f"{out}/{number}.npz", **found)


if __name__ == "__main__":
    main(*sys.argv[1:])
