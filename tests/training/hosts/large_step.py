"""Two training steps of a large model on one device or spread over all, and what they took, as JSON.

`python large_step.py VARIANT one|fsdp|tensor IMAGES SIDE`
"""

import json
import resource
import sys
import time

import numpy as np

CLASSES = 1000


def main(variant, kind, count, side):
    import keras

    import keras_vit

    count, side = int(count), int(side)
    keras.utils.set_random_seed(0)
    arguments = {"input_shape": (side, side, 3), "classes": CLASSES}
    if kind != "one":
        devices = len(keras.distribution.list_devices())
        shape = (1, devices) if kind == "tensor" else (devices,)
        mesh = keras.distribution.DeviceMesh(shape, ("data", "model")[: len(shape)])
        layout = keras_vit.layout_map(variant, mesh, kind, **arguments)
        keras.distribution.set_distribution(keras.distribution.ModelParallel(layout_map=layout))
    began = time.time()
    model = keras_vit.build(variant, **arguments)
    rng = np.random.default_rng(1)
    kernel = model.get_layer("head").kernel
    kernel.assign(rng.normal(0, 0.05, kernel.shape).astype("float32"))  # with zeros the loss would tell nothing
    model.compile(
        keras_vit.SGD(0.03, global_clipnorm=1.0), keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    )
    images = rng.uniform(-1, 1, (count, side, side, 3)).astype("float32")
    labels = rng.integers(0, CLASSES, count)
    built, losses, seconds = time.time() - began, [], []
    for _ in range(2):
        began = time.time()
        losses.append(float(model.train_on_batch(images, labels)))
        seconds.append(time.time() - began)
    value = model.get_layer("block_00").mlp.dense_1.kernel.value
    print(
        json.dumps(
            {
                "variant": variant,
                "kind": kind,
                "images": count,
                "parameters": model.count_params(),
                "losses": losses,
                "build_seconds": built,
                "step_seconds": seconds,
                "part": list(value.addressable_shards[0].data.shape),
                "peak_gib": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20,
            }
        )
    )


if __name__ == "__main__":
    main(*sys.argv[1:])
