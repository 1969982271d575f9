"""Two hosts in small: two processes on this machine train one model over loopback, as two machines would.

Each process has two forced CPU devices, reads its own half of every batch, and holds its part of the weights. At the
end it compares the losses with those of one process. The last line is one JSON object.
"""

import argparse
import json
import os
import socket
import subprocess
import sys

STEPS, BATCH_SIZE, SEED = 6, 32, 0
LARGE = 4_000  # bytes: in a model this small, weights far below 4 MB are cut too


def train(processes, index, port):
    """Trains in one of several processes; gives the losses and how the weights lie."""
    os.environ["KERAS_BACKEND"] = "jax"
    import keras

    keras.utils.set_random_seed(SEED)  # before the processes meet, so that all draw the same
    if processes > 1:
        keras.distribution.initialize(f"127.0.0.1:{port}", processes, index)
    import keras_vit

    config = keras_vit.ViTConfig(patch_size=4, hidden_size=32, num_layers=2, num_heads=4, mlp_dim=64)
    arguments = {"classes": 10, "input_shape": (16, 16, 1)}
    mesh = keras.distribution.DeviceMesh((keras.distribution.get_device_count(),), ("data",))
    layout = keras_vit.layout_map(config, mesh, "fsdp", large=LARGE, **arguments)
    keras.distribution.set_distribution(
        keras.distribution.ModelParallel(layout_map=layout, auto_shard_dataset=False)  # load_dataset has done it
    )
    model = keras_vit.build(config, **arguments)
    plan = keras_vit.plan("digits", model, num_images=1437, batch_size=BATCH_SIZE, steps=STEPS)
    plan.prepare(model)
    model.compile(**plan.compile_arguments())
    data = keras_vit.load_dataset(
        "digits", batch_size=BATCH_SIZE, preprocessing=model.preprocessing, training=True, seed=SEED
    )
    losses = []
    for images, labels in data.take(STEPS):
        losses.append(float(model.train_on_batch(images.numpy(), labels.numpy(), return_dict=True)["loss"]))
    kernel = model.get_layer("block_00").mlp.dense_1.kernel.value
    part = kernel.addressable_shards[0].data.shape
    return {"losses": losses, "whole": list(kernel.shape), "part": list(part), "images": len(images)}


def start(processes, devices):
    """What the first of so many processes came to."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    flags = f"{os.environ.get('XLA_FLAGS', '')} --xla_force_host_platform_device_count={devices // processes}"
    environment = {**os.environ, "XLA_FLAGS": flags, "JAX_PLATFORMS": "cpu", "TF_CPP_MIN_LOG_LEVEL": "3"}
    command = [sys.executable, __file__, "--port", str(port), "--processes", str(processes), "--index"]
    children = [
        subprocess.Popen([*command, str(index)], env=environment, stdout=subprocess.PIPE, text=True)
        for index in range(processes)
    ]
    printed = [child.communicate()[0] for child in children]
    if any(child.returncode for child in children):
        sys.exit("a process failed")
    return json.loads(printed[0].splitlines()[-1])


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--index", type=int, help="of this process; without it, all are started")
    parser.add_argument("--port", type=int)
    arguments = parser.parse_args()
    if arguments.index is not None:
        print(json.dumps(train(arguments.processes, arguments.index, arguments.port)))
        return
    together, alone = start(arguments.processes, 4), start(1, 4)
    print(f"{arguments.processes} processes: {together}")
    print(f"1 process: {alone}")
    difference = max(abs(a - b) for a, b in zip(together["losses"], alone["losses"], strict=True))
    print(json.dumps({"difference": difference, "whole": together["whole"], "part": together["part"]}))


if __name__ == "__main__":
    main()
