"""Memory of a device, bytes that it sends in a step, and a step's time, for every variant on 1 to 1,024 devices.

    python -m benchmarks.scale > benchmarks/results/scale.csv

Nothing runs here: weights, moments and gradients are counted from the variables of the model itself, built without
values. What each layout sends is from the rules of `keras_vit.training.hosts.layout_maps`, a step's work from
`keras_vit.flops`. `tests/training/hosts/test_scale.py` holds the bytes to the collectives of the compiled step, the
parts of the weights to `jax.live_arrays()`, and the work to XLA's count. The time is that of an ideal device, which
computes while it sends, with the FLOP/s and the bandwidth that are given. By default these are 400 TFLOP/s in bfloat16
and 100 GB/s to its neighbours.
"""

import argparse
import csv
import dataclasses
import math
import re
import sys

from keras_vit.config.flops import TRAINING_PASSES, flops
from keras_vit.config.variants import VARIANTS
from keras_vit.training.hosts.layout_maps import ITEM, LARGE, sharding_rules
from keras_vit.training.hosts.layout_maps import shapes_of as layout_shapes

DEVICES = tuple(2**power for power in range(11))
KINDS = ("data", "fsdp", "tensor")
MOST_OF_A_GROUP = 8  # devices of one machine
SLOTS = {"sgd": 1, "adamw": 2}
_KEPT = (9, 3, 1)  # numbers kept of an example and block, times T * D, T * M and A * T * T: `training/memory.py`, XLA
_KEPT_BY_CONVOLUTION = 5  # numbers kept for each that a convolution of a hybrid's ResNet puts out: same place
_STEM = re.compile(r"resnet_(?:root|stage_(\d+)_unit_(\d+))/(\w+)")


@dataclasses.dataclass(frozen=True)
class Device:
    """What a step's time is reckoned from."""

    flops: float = 400e12  # per second
    bandwidth: float = 100e9  # bytes per second that a device sends, and receives at once


@dataclasses.dataclass(frozen=True)
class Estimate:
    """Of one device.

    Attributes:
        weights: bytes of its part of the weights.
        slots: bytes of its part of the optimizer's moments.
        gradients: bytes of its part of the gradients.
        gathered: bytes of the largest block's weights, whole, where they are gathered for their turn.
        activations: bytes that the way back needs of its images.
        sent: bytes that it sends in a step.
        seconds: of a step.
    """

    weights: float
    slots: float
    gradients: float
    gathered: float
    activations: float
    sent: float
    seconds: float

    @property
    def memory(self) -> float:
        """All bytes of the device."""
        return self.weights + self.slots + self.gradients + self.gathered + self.activations


def shapes_of(name, image_size=224):
    """`{path: shape}` of the weights of a variant, which is built without values."""
    return layout_shapes(name, input_shape=(image_size, image_size, 3))


def numbers(shape):
    return math.prod(shape)


def group_of(config, kind, devices):
    """Devices that share one copy of the weights: with tensor parallelism those of one machine, as far as they can."""
    if kind != "tensor":
        return devices if kind == "fsdp" else 1
    shared = math.gcd(config.num_heads, config.mlp_dim, devices)
    return max(size for size in range(1, MOST_OF_A_GROUP + 1) if shared % size == 0)


def cut(shapes, kind, devices, large=LARGE):
    """Paths of the weights that a layout cuts into as many parts as there are devices.

    Raises:
        ValueError: if it cannot.
    """
    if kind == "data" or devices == 1:
        return set()
    found = sharding_rules(shapes, devices, "parts", kind, large)
    return {path for path in shapes if any(re.fullmatch(pattern, path) for pattern in found)}


def estimate(
    config, shapes, kind, devices, batch=8, optimizer="sgd", device=None, image_size=224, large=LARGE, group=None
):
    """The `Estimate` of one of `devices`.

    With `"tensor"`, a group of devices shares one copy of the weights and `batch` images; else each device has
    `batch` images.

    Raises:
        ValueError: if the devices cannot share the model so.
    """
    device = device or Device()
    group = group or group_of(config, kind, devices)
    parts = cut(shapes, kind, group, large)
    held = sum(numbers(shape) / (group if path in parts else 1) for path, shape in shapes.items()) * ITEM
    tokens = config.num_prefix_tokens + math.prod(config.grid(image_size, image_size))
    sent = sent_bytes(config, shapes, parts, kind, devices, group, batch, tokens)
    shared = group if kind == "tensor" else 1
    kept = (config.num_layers * _kept(config, tokens, shared) + kept_by_stem(shapes, image_size)) * batch * ITEM
    gathered = _largest_block(shapes, parts) * ITEM if kind == "fsdp" else 0
    seconds = max(work(config, shapes, image_size, shared) * batch / device.flops, sent / device.bandwidth)
    return Estimate(held, held * SLOTS[optimizer], held, gathered, kept, sent, seconds)


def work(config, shapes, image_size, shared):
    """FLOPs of a training step of one device for each image; devices share what follows a hybrid's ResNet."""
    classes = shapes["head/kernel"][-1] if "head/kernel" in shapes else 0
    forward = flops(config, image_size, classes=classes)
    return TRAINING_PASSES * (forward.stem + (forward.total - forward.stem) / shared)


def kept_by_stem(shapes, image_size):
    """Numbers that a hybrid's ResNet keeps of one image; 0 without one. Every device of a group computes all of it."""
    kept = 0
    for path, shape in shapes.items():
        found = _STEM.match(path)
        if not found or len(shape) != 4:  # kernels (height, width, in, out)
            continue
        stage, unit, convolution = found.groups()
        side = image_size // 2 if stage is None else image_size // 2 ** (int(stage) + 1)
        if convolution == "conv_1" and unit == "1" and stage != "1":
            side *= 2  # the next one has the stride
        kept += _KEPT_BY_CONVOLUTION * side**2 * shape[-1]
    return kept


def sent_bytes(config, shapes, parts, kind, devices, group, batch, tokens):
    """Bytes that a device sends in a step, by rings: a sum of n bytes sends 2 n (d - 1) / d, a gathering half of it.

    Data parallelism sums every gradient. FSDP gathers each cut weight and sums its gradient: XLA gathers once and sums
    whole, or gathers twice and sums parts, which is as much. Behind a last block that computes the class token alone
    it sends that instead of the MLP's weights, if that is less. Tensor parallelism sums tokens after attention and
    after the MLP, and on the way back before the MLP and before query, key and value, each for itself.
    """
    whole = sum(numbers(shape) for path, shape in shapes.items() if path not in parts)
    share = sum(numbers(shapes[path]) for path in parts)
    pooled = config.pooling == "token" and config.last_block_outputs == "pooled"
    read = config.num_prefix_tokens if pooled else tokens  # that the last block computes
    if kind == "fsdp":
        mlp = sum(numbers(shapes[p]) for p in parts if p.startswith(f"block_{config.num_layers - 1:02}/mlp"))
        instead = min(3 * mlp, 6 * devices * batch * read * config.hidden_size)
        return ITEM * _ring(devices) * (2 * whole + 3 * (share - mlp) + instead)
    sums = (6 * (config.num_layers - 1) + 2) * tokens + 4 * read
    sums *= batch * config.hidden_size
    return ITEM * 2 * (_ring(group) * sums + _ring(devices // group) * (whole + share / group))


def _ring(devices):
    return (devices - 1) / devices


def _kept(config, tokens, parts):
    """Numbers kept of one example and block: heads and the MLP's width are shared, what is D wide is not."""
    sizes = (tokens * config.hidden_size, tokens * config.mlp_dim / parts, config.num_heads * tokens**2 / parts)
    return sum(factor * size for factor, size in zip(_KEPT, sizes, strict=True))


def _largest_block(shapes, parts):
    blocks: dict[str, int] = {}
    for path in parts:
        block = path.split("/")[0]
        blocks[block] = blocks.get(block, 0) + numbers(shapes[path])
    return max(blocks.values(), default=0)


def table(names, devices, **arguments):
    """`{(name, kind, devices): Estimate}`, without what cannot be shared so."""
    found = {}
    for name in names:
        config, shapes = VARIANTS[name], shapes_of(name, image_size=arguments.get("image_size", 224))
        for kind in KINDS:
            for count in devices:
                try:
                    found[name, kind, count] = estimate(config, shapes, kind, count, **arguments)
                except ValueError:
                    continue
    return found


FIELDS = ("weights", "slots", "gradients", "gathered", "activations", "memory", "sent")  # bytes of a device


def write_csv(found, file, **settings):
    """Writes one row for each estimate, with what it was reckoned for: bytes, and seconds of a step."""
    writer = csv.writer(file, lineterminator="\n")
    writer.writerow(("variant", "layout", "devices", *settings, *(f"{field}_bytes" for field in FIELDS), "step_s"))
    for key, e in found.items():
        sizes = (round(getattr(e, field)) for field in FIELDS)
        writer.writerow([*key, *settings.values(), *sizes, f"{e.seconds:.6g}"])


def draw(found, path):
    """Memory of a device and time of a step over the number of devices, a line for each variant and layout."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    names = list(dict.fromkeys(name for name, _, _ in found))
    figure, axes = pyplot.subplots(2, 3, figsize=(13, 8), sharex=True, sharey="row")
    colours = pyplot.get_cmap("viridis")
    for column, kind in enumerate(KINDS):
        for index, name in enumerate(names):
            points = [(count, e) for (other, its, count), e in found.items() if (other, its) == (name, kind)]
            colour = colours(index / max(len(names) - 1, 1))
            style = {"color": colour, "marker": "o", "markersize": 3, "label": name}
            axes[0, column].plot([count for count, _ in points], [e.memory / 1e9 for _, e in points], **style)
            sent = [(count, e.sent / 1e9) for count, e in points if e.sent]
            axes[1, column].plot([count for count, _ in sent], [size for _, size in sent], **style)
        axes[0, column].set_title({"data": "data parallel", "fsdp": "FSDP", "tensor": "tensor parallel"}[kind])
        axes[1, column].set_xlabel("devices")
        for row in (0, 1):
            axes[row, column].set_xscale("log", base=2)
            axes[row, column].set_yscale("log")
            axes[row, column].grid(True, alpha=0.3)
    axes[0, 0].set_ylabel("memory of a device, GB")
    axes[1, 0].set_ylabel("sent by a device in a step, GB")
    axes[0, 2].legend(fontsize=8, loc="center left", bbox_to_anchor=(1, 0.5))
    figure.tight_layout()
    figure.savefig(path, dpi=110)
    pyplot.close(figure)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--variants", nargs="+", default=list(VARIANTS), choices=list(VARIANTS), metavar="NAME")
    parser.add_argument("--devices", nargs="+", type=int, default=list(DEVICES))
    parser.add_argument("--batch", type=int, default=8, help="images of a device; with tensor of all together")
    parser.add_argument("--image-size", type=int, default=224)
    parser.add_argument("--optimizer", default="sgd", choices=list(SLOTS))
    parser.add_argument("--tflops", type=float, default=400)
    parser.add_argument("--bandwidth", type=float, default=100, help="GB/s")
    parser.add_argument("--plot", help="a PNG to write")
    arguments = parser.parse_args()
    device = Device(arguments.tflops * 1e12, arguments.bandwidth * 1e9)
    found = table(
        arguments.variants,
        arguments.devices,
        batch=arguments.batch,
        optimizer=arguments.optimizer,
        device=device,
        image_size=arguments.image_size,
    )
    settings = {name: getattr(arguments, name) for name in ("optimizer", "image_size", "batch", "tflops")}
    write_csv(found, sys.stdout, **settings, bandwidth_gb_per_s=arguments.bandwidth)
    if arguments.plot:
        draw({key: e for key, e in found.items() if key[0] in PLOTTED}, arguments.plot)


PLOTTED = ("Ti/16", "S/16", "B/16", "L/16", "H/14", "g/14", "G/14")

if __name__ == "__main__":
    main()
