"""What growing images and patch dropout save in training, and what they cost in accuracy.

    python examples/less_work.py [--out less_work] [--seeds 0 1 2] [--only plain growing dropout both]

Each training is a run of `keras_vit.finetune` on the handwritten digits from random initialisation, where only these
two options differ. A run whose figures are in the folder already is not made again, so that the work can be done in
pieces. For each of the four it prints the share of the forward passes' FLOPs, the processor seconds of an epoch, and
the accuracies on the test images. The seconds are the median of the seeds, with compilation, evaluation and saving in
them. The last line is the same as JSON.
"""

import argparse
import json
import math
import statistics
import time
from pathlib import Path

import keras_vit
from keras_vit.config.progressive_resizing import growing_stages


def main():
    arguments = parse()
    arguments.out.mkdir(parents=True, exist_ok=True)
    growing, dropout = {"start_image_size": arguments.start}, {"patch_dropout_rate": arguments.rate}
    kinds = {"plain": {}, "growing": growing, "dropout": dropout, "both": growing | dropout}
    runs = {kind: [train(arguments, kind, kinds[kind], seed) for seed in arguments.seeds] for kind in arguments.only}
    print(f"{'':>9}{'FLOPs':>8}{'s an epoch':>12}{'accuracy':>10}  of each seed")
    found = {}
    for kind, each in runs.items():
        accuracies, seconds = ([run[name] for run in each] for name in ("accuracy", "seconds"))
        share = each[0]["flops"]
        found[kind] = {"flops": share, "seconds": seconds, "accuracies": accuracies}
        listed = " ".join(f"{accuracy:.3f}" for accuracy in accuracies)
        mean, taken = statistics.mean(accuracies), statistics.median(seconds)
        print(f"{kind:>9}{share:8.2f}{taken:12.2f}{mean:10.3f}  {listed}")
    print(json.dumps(found))


def train(arguments, kind, options, seed):
    """One run's accuracy, processor seconds an epoch, and share of the FLOPs without these options."""
    kept = arguments.out / f"{kind}-{seed}.json"
    if kept.exists():
        return json.loads(kept.read_text())
    times = []

    def say(line):
        if line.startswith(("compiling", "epoch ")):
            times.append(time.process_time())

    options = options | {"image_size": arguments.size, "epochs": arguments.epochs, "seed": seed}
    options["resume"] = "never"  # the seconds of a run that goes on are those of its last part
    result = keras_vit.finetune("digits", arguments.out / f"{kind}-{seed}", print_fn=say, **options)
    facts = {
        "accuracy": result.test_accuracy,
        "seconds": (times[-1] - times[0]) / arguments.epochs,
        "flops": flops_share(result.model, options, arguments.epochs),
    }
    kept.write_text(json.dumps(facts))
    return facts


def flops_share(model, options, epochs):
    """FLOPs of the forward passes in all epochs, in those of images of the final size with all patches."""
    config, final = model.config, model.input_shape[1:3]
    stages = []
    if (start := options.get("start_image_size")) is not None:
        stages = growing_stages((start, start), final, epochs, config.side_unit)
    begins = [stage.epoch - 1 for stage in stages] or [0]
    sizes = [stage.image_size for stage in stages] or [final]
    total = 0
    for size, begin, end in zip(sizes, begins, [*begins[1:], epochs], strict=True):
        total += (end - begin) * forward_flops(model, size, config.patch_dropout_rate)
    return total / (epochs * forward_flops(model, final, 0.0))


def forward_flops(model, image_size, dropped):
    """Of one image in training: all patches are embedded, and those that stay go through the blocks."""
    every, side = keras_vit.flops(model, image_size), model.config.side_unit
    kept = max(1, int(math.prod(model.config.grid(*image_size)) * (1 - dropped) + 1e-6))
    rest = keras_vit.flops(model, (side, kept * side))  # as many patches, in one row
    return every.embedding + rest.total - rest.embedding


def parse():
    kinds = ["plain", "growing", "dropout", "both"]
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, default=Path("less_work"), help="folder of the runs and their figures")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--only", nargs="+", choices=kinds, default=kinds)
    parser.add_argument("--size", type=int, default=32, help="side of the images at the end, in pixels")
    parser.add_argument("--start", type=int, default=16, help="side of the first epochs' images where they grow")
    parser.add_argument("--rate", type=float, default=0.5, help="share of the patches that dropout leaves out")
    parser.add_argument("--epochs", type=int, default=20)
    return parser.parse_args()


if __name__ == "__main__":
    main()
