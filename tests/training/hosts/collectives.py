"""Trains nothing: compiles a step on 8 forced devices, and tells what its collectives move and where weights lie.

`python collectives.py` prints JSON: for each layout the collectives, as kind, bytes of the result and group, and the
bytes of each device by `jax.live_arrays()`.
"""

import json
import math
import re
import sys

import numpy as np

SIDE, CLASSES, BATCH, LARGE = 8, 16, 16, 4000
SIZES = {"patch_size": 2, "hidden_size": 32, "num_layers": 2, "num_heads": 8, "mlp_dim": 128}
KINDS = {"data": (8,), "fsdp": (8,), "tensor": (2, 4)}
BYTES = {"f32": 4, "s32": 4, "u32": 4, "pred": 1, "bf16": 2, "f16": 2}
RESULT = re.compile(
    r"= (.*?) (all-reduce|all-gather|reduce-scatter|all-to-all|collective-permute)(?:-start)?\((.*)$", re.M
)


def model_of(kind):
    import keras

    import keras_vit

    arguments = {"input_shape": (SIDE, SIDE, 3), "classes": CLASSES}
    shape = KINDS[kind]
    mesh = keras.distribution.DeviceMesh(shape, ("data", "model")[: len(shape)])
    if kind == "data":
        keras.distribution.set_distribution(keras.distribution.DataParallel(mesh))
    else:
        layout = keras_vit.layout_map(keras_vit.ViTConfig(**SIZES), mesh, kind, large=LARGE, **arguments)
        keras.distribution.set_distribution(keras.distribution.ModelParallel(layout_map=layout))
    model = keras_vit.build(keras_vit.ViTConfig(**SIZES), **arguments)
    model.compile(keras_vit.SGD(0.1), keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    model.optimizer.build(model.trainable_weights)
    return model, keras.distribution.distribution()


def collectives(model, distribution):
    """Of the compiled step, one for each operation: its kind, the bytes of its result, and the size of its groups."""
    import jax

    images = np.zeros((BATCH, SIDE, SIDE, 3), "float32"), np.zeros(BATCH, "int32")
    data = tuple(jax.device_put(part, distribution.get_data_layout(part.shape).backend_layout) for part in images)
    model._symbolic_build(data_batch=data)
    variables = (model.trainable_variables, model.non_trainable_variables)
    state = tuple([v.value for v in some] for some in (*variables, model.optimizer.variables, model.metrics_variables))
    shardings = [[value.sharding for value in some] for some in state]
    text = jax.jit(model.train_step, out_shardings=(None, tuple(shardings))).lower(state, data).compile().as_text()
    return [
        (kind, sum(map(bytes_of, re.findall(r"(\w+)\[([\d,]*)\]", result))), group_of(rest), name_of(rest))
        for result, kind, rest in RESULT.findall(text)
    ]


def bytes_of(found):
    dtype, shape = found
    return BYTES[dtype] * int(np.prod([int(side) for side in shape.split(",") if side]))


def group_of(text):
    """Devices of a group.

    4 of `replica_groups=[2,4]<=[8]`, 2 of `{{0,1},{2,3}}`, and 8 of `mesh['a'=8,'b'=2] {'a'}`,
    which may have `device_ids=(...)` before the braces.
    """
    if found := re.search(r"replica_groups=mesh\[(.*?)\][^{]*\{(.*?)\}", text):
        sizes = dict(re.findall(r"'(\w+)'=(\d+)", found[1]))
        return math.prod(int(sizes[name]) for name in re.findall(r"'(\w+)'", found[2]))
    if found := re.search(r"replica_groups=\[(\d+),(\d+)\]", text):
        return int(found[2])
    return len(re.search(r"replica_groups=\{\{([\d,]*)\}", text)[1].split(","))


def name_of(text):
    found = re.search(r'op_name="([^"]*)"', text)
    return found[1] if found else ""


def bytes_by_device(variables):
    import jax

    ours = {id(variable.value) for variable in variables}
    found = {}
    for array in jax.live_arrays():
        if id(array) in ours:
            for shard in array.addressable_shards:
                found[str(shard.device)] = found.get(str(shard.device), 0) + shard.data.nbytes
    return sorted(found.values())


def main():
    results = {}
    for kind in KINDS:
        model, distribution = model_of(kind)
        moments = [v for v in model.optimizer.variables if "momentum" in v.name]
        results[kind] = {
            "weights": bytes_by_device(model.trainable_variables),
            "moments": bytes_by_device(moments),
            "collectives": collectives(model, distribution),
        }
    json.dump(results, sys.stdout)


if __name__ == "__main__":
    main()
