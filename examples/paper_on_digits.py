"""The experiments of arXiv:2010.11929 in miniature, on scikit-learn's handwritten digits.

    python examples/paper_on_digits.py --out studies [--seeds 4] [--only positions heads]

Six studies, each with several seeds: how many images a ViT and a ResNet need (figures 3 and 4), kinds of positions
(table 8), class token or mean (figure 9), a few-shot probe of digits that were not trained on (figure 4), masked patch
prediction (appendix B.1.2), and fine-tuning at a higher resolution (section 3.2). The folder gets the tables, also
as `studies.csv`, the pictures and all figures as JSON. Each number is a mean with a 95 % interval over the seeds. Two
settings are said to differ only if the interval of their paired difference leaves 0 out. Models are small and trained
for 300 steps, so what holds here need not hold for the paper's.
"""

import argparse
import csv
import dataclasses
import functools
import json
import time
from pathlib import Path

import keras
import numpy as np
from scipy import stats
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split

import keras_vit

SIZE, LOW = 32, 24  # pixels of the digits' 8 x 8, and of the same after 6 x 6
VIT = keras_vit.ViTConfig(patch_size=8, hidden_size=64, num_layers=4, num_heads=4, mlp_dim=128)
RESNET = keras_vit.ResNetConfig(stages=(1, 1), width_factor=0.5)
MODELS = {  # config, rate, weight decay; table 3 has .03 without and .3 with regularisation
    "ViT": (VIT, 3e-3, 0.03),
    "ViT, regularised": (dataclasses.replace(VIT, dropout_rate=0.1), 3e-3, 0.3),
    "ResNet": (RESNET, 3e-3, 0.03),
}
STEPS, BATCH, AT_ONCE = 300, 32, 20
SUBSETS = (50, 200, 600, 1257)
UPSTREAM = (50, 200, 629)  # of the digits 0 to 4
LABELS = 100  # after masked patch prediction


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, required=True, help="a new folder")
    parser.add_argument("--seeds", type=int, default=4)
    parser.add_argument("--only", nargs="+", choices=STUDIES, default=list(STUDIES))
    arguments = parser.parse_args()
    if arguments.seeds < 2:
        parser.error("--seeds must be at least 2, so that there is an interval")
    arguments.out.mkdir(parents=True)
    began, found, lines = time.monotonic(), {}, []
    for name in arguments.only:
        study_began = time.monotonic()
        found[name] = STUDIES[name](range(arguments.seeds))
        lines += [*table(name, found[name]), ""]
        print("\n".join(table(name, found[name])), f"{time.monotonic() - study_began:.0f} s\n", sep="\n", flush=True)
    (arguments.out / "tables.md").write_text("\n".join(lines))
    write_csv(found, arguments.out / "studies.csv")
    draw(found, arguments.out)
    result = {name: {" | ".join(map(str, key)): row for key, row in rows.items()} for name, rows in found.items()}
    result["seconds"] = round(time.monotonic() - began, 1)
    (arguments.out / "results.json").write_text(json.dumps(result, indent=1))
    print(json.dumps(result))


# Data and training


@functools.cache
def digits(side=SIZE, low=False):
    """1,257 digits to train, 180 to choose by and 360 to test, `(n, side, side, 1)` in [0, 255]."""
    images, labels = load_digits(return_X_y=True)
    images = np.asarray(images, "float32").reshape(-1, 8, 8, 1) * (255 / 16)
    if low:
        images = keras.ops.image.resize(images, (6, 6), antialias=True)
    images = np.clip(keras.ops.convert_to_numpy(keras.ops.image.resize(images, (side, side))), 0, 255)
    parts = {}
    for name, count in (("test", 360), ("validation", 180)):
        split = train_test_split(images, labels, test_size=count, stratify=labels, random_state=0)
        images, parts[name], labels = split[0], (split[1], split[3]), split[2]
    return keras_vit.open_source({"train": (images, labels), **parts})


@functools.cache
def trainer(config, rate, decay, side=SIZE, steps=STEPS, classes=10):
    """One compiled model for all runs of a setting, since compiling takes longer than a run."""
    return Trainer(config, rate, decay, side, steps, classes)


class Trainer:
    """Trains a model anew from given or fresh weights, always with the same steps."""

    def __init__(self, config, rate, decay, side, steps, classes):
        self.config, self.steps = config, steps
        build = keras_vit.build_resnet if isinstance(config, keras_vit.ResNetConfig) else keras_vit.build
        self.build = functools.partial(build, config, input_shape=(side, side, 1), classes=classes)
        self.model = self.build()
        schedule = keras_vit.WarmupCosine(rate, steps, steps // 10)
        optimizer = keras_vit.AdamW(schedule, weight_decay=decay, global_clipnorm=1.0)
        loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
        self.model.compile(optimizer, loss, jit_compile=False, steps_per_execution=AT_ONCE)

    def train(self, examples, seed, weights=None):
        """The model, trained on a split from `weights`, or from fresh ones of this seed."""
        keras.utils.set_random_seed(seed)
        self.model.set_weights(self.build().get_weights() if weights is None else weights)
        for variable in self.model.optimizer.variables:
            variable.assign(keras.ops.zeros_like(variable))
        rng, count = np.random.default_rng(seed), self.steps * BATCH
        rounds = [rng.permutation(len(examples.labels)) for _ in range(-(-count // len(examples.labels)))]
        order = np.concatenate(rounds)[:count]
        images = self.model.preprocessing(examples.images)
        self.model.fit(images[order], examples.labels[order], batch_size=BATCH, shuffle=False, verbose=0)
        return self.model

    def accuracy(self, source, seed, weights=None):
        """The test accuracy of a model trained on a source."""
        return keras_vit.evaluate(self.train(source.split("train"), seed, weights), source).accuracy


# The studies: each gives `{setting: [a result for each seed]}`


def data_size(seeds):
    """Nested subsets of the training images; the same subset of a seed for every model."""
    return {
        (model, count): [trainer(*MODELS[model]).accuracy(digits().subset(count, seed=s), s) for s in seeds]
        for model in MODELS
        for count in SUBSETS
    }


def positions(seeds):
    """Each row of table 8, trained on all images."""
    _, rate, decay = MODELS["ViT"]
    return {
        key: [trainer(config, rate, decay).accuracy(digits(), s) for s in seeds]
        for key, config in keras_vit.studies.position_study(VIT).items()
    }


def heads(seeds):
    """Class token and mean, at two rates: the paper found them equal, each at its own."""
    decay = MODELS["ViT"][2]
    return {
        (pooling, rate): [trainer(config, rate, decay).accuracy(digits(), s) for s in seeds]
        for pooling, config in keras_vit.studies.head_study(VIT).items()
        for rate in (1e-3, 3e-3)
    }


def few_shot(seeds):
    """5 shots of each of the digits 5 to 9 for a probe on models that learned 0 to 4 from more and more images.

    These are trained on in four orientations, which are 20 classes: with 5, models learn little that separates others.
    """
    upstream, downstream = (_some_classes(digits(), classes) for classes in (range(5), range(5, 10)))
    found = {}
    for name in ("ViT", "ResNet"):
        train = trainer(*MODELS[name], classes=20)
        found[name, 0] = [_probed(_fresh(train, s), downstream) for s in seeds]
        for count in UPSTREAM:
            models = (train.train(_turned(upstream.subset(count, seed=s).split("train")), s) for s in seeds)
            found[name, count] = [_probed(model, downstream) for model in models]
    return found


def _turned(split):
    """Every image in four orientations, each of which makes a class of its own of a digit."""
    images = np.concatenate([np.rot90(split.images, turns, axes=(1, 2)) for turns in range(4)])
    return dataclasses.replace(split, images=images, labels=np.concatenate([4 * split.labels + t for t in range(4)]))


def _some_classes(source, classes):
    parts = {}
    for name in ("train", "validation", "test"):
        split = source.split(name)
        rows = np.isin(split.labels, list(classes))
        parts[name] = (split.images[rows], split.labels[rows] - min(classes))
    return keras_vit.open_source(parts)


def _fresh(train, seed):
    keras.utils.set_random_seed(seed)
    return train.build()


def _probed(model, source):
    return keras_vit.probe(model, source, "fewshot", shots=[5], cache=None).accuracy


def masked_patches(seeds):
    """Fine-tuning on few labels, from fresh weights and after masked patch prediction on all images without labels."""
    config = dataclasses.replace(VIT, pooling="gap")
    train = trainer(config, *MODELS["ViT"][1:])
    few = [digits().subset(LABELS, seed=s) for s in seeds]
    found = {("from scratch",): [train.accuracy(each, s) for each, s in zip(few, seeds, strict=True)]}
    pairs = zip(few, seeds, strict=True)
    found["pre-trained",] = [train.accuracy(each, s, _pretrained(train, s)) for each, s in pairs]
    return found


def _pretrained(train, seed):
    """The weights of a model after 4 times the steps of masked patch prediction, with a fresh head."""
    model = _fresh(train, seed)
    masked = keras_vit.MaskedPatchPrediction(model, "mean_color", seed=seed)
    images, steps = model.preprocessing(digits().split("train").images), 4 * STEPS
    schedule = keras_vit.WarmupCosine(2e-3, steps, steps // 10)
    masked.compile(keras_vit.AdamW(schedule, weight_decay=0.05, global_clipnorm=1.0), jit_compile=False)
    masked.fit(images, batch_size=BATCH, epochs=-(-steps * BATCH // len(images)), verbose=0)
    return model.get_weights()


def resolution(seeds):
    """Models of 24 pixels that go on at 24, or at 32 with interpolated positions; and 32 pixels from the beginning."""
    _, rate, decay = MODELS["ViT"]
    low, high, longer = (
        trainer(VIT, rate, decay, side, steps) for side, steps in ((LOW, STEPS), (SIZE, STEPS), (SIZE, 2 * STEPS))
    )
    names = [("24 px, again 24",), ("24 px, then 32",), ("32 px",), ("32 px, twice the steps",)]
    found = {name: [] for name in names}
    for seed in seeds:
        small, large = digits(LOW, low=True), digits()
        first = low.train(small.split("train"), seed)
        weights = first.get_weights(), keras_vit.with_input_shape(first, (SIZE, SIZE, 1)).get_weights()
        runs = [(low, small, weights[0]), (high, large, weights[1]), (high, large, None), (longer, large, None)]
        for name, (train, source, start) in zip(names, runs, strict=True):
            found[name].append(train.accuracy(source, seed, start))
    return found


STUDIES = {
    "data size": data_size,
    "positions": positions,
    "heads": heads,
    "few-shot": few_shot,
    "masked patches": masked_patches,
    "resolution": resolution,
}
COLUMNS = {
    "data size": ("model", "training images"),
    "positions": ("kind", "where"),
    "heads": ("pooling", "rate"),
    "few-shot": ("model", "images of digits 0 to 4"),
    "masked patches": ("start",),
    "resolution": ("training",),
}


# Tables and pictures


def interval(values):
    """Mean and half of the 95 % interval of Student's t over the seeds."""
    values = np.asarray(values, "float64")
    return values.mean(), stats.t.ppf(0.975, len(values) - 1) * values.std(ddof=1) / np.sqrt(len(values))


def summaries(name, rows):
    """A line of `studies.csv` for each setting, as a dictionary; by seeds against the best setting of as many images.

    Whether it is the best, or its difference from the best is `"shown"` or `"not shown"`, is its `verdict`.
    """
    for key, values in rows.items():
        rivals = {other: found for other, found in rows.items() if name not in _BY_COUNT or other[1] == key[1]}
        best = max(rivals, key=lambda other: np.mean(rivals[other]))
        (accuracy, half), below = interval(values), interval(np.subtract(rivals[best], values))
        settings = "; ".join(f"{column}={value}" for column, value in zip(COLUMNS[name], key, strict=True))
        verdict = "best" if key == best else "shown" if below[0] > below[1] else "not shown"
        numbers = (accuracy, half, *(("", "") if key == best else below))
        cells = (f"{number:.3f}" if number != "" else "" for number in numbers)
        yield dict(zip(FIELDS, (name, settings, len(values), *cells, verdict), strict=True))


FIELDS = ("study", "settings", "seeds", "accuracy", "accuracy_half", "below_best", "below_best_half", "verdict")


def write_csv(found, path):
    """All studies in one file, as `benchmarks/results/studies.csv`."""
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, FIELDS, lineterminator="\n")
        writer.writeheader()
        writer.writerows(row for name, rows in found.items() for row in summaries(name, rows))


def table(name, rows):
    """The study as lines of Markdown."""
    header = (*COLUMNS[name], "accuracy", "below the best")
    lines = [f"| {' | '.join(header)} |", f"|{'---|' * len(header)}"]
    for key, row in zip(rows, summaries(name, rows), strict=True):
        verdict = {"best": "best", "shown": "", "not shown": ", not shown"}[row["verdict"]]
        if row["verdict"] != "best":
            verdict = f"{row['below_best']} ± {row['below_best_half']}{verdict}"
        lines.append(f"| {' | '.join(map(str, key))} | {row['accuracy']} ± {row['accuracy_half']} | {verdict} |")
    return lines


_BY_COUNT = ("data size", "few-shot")  # studies whose settings are compared at one number of images


def draw(found, folder):
    """A picture of each study: curves over the number of images, else a point with its interval for each setting."""
    from matplotlib.figure import Figure

    for name, rows in found.items():
        height = 4.2 if name in _BY_COUNT else 1.4 + 0.3 * len(rows)
        figure = Figure(figsize=(7, height), layout="constrained")
        axis = figure.subplots()
        if name in _BY_COUNT:
            _draw_curves(axis, name, rows)
        else:
            _draw_points(axis, rows)
        axis.set_title(f"{name}: mean and 95 % interval over {len(next(iter(rows.values())))} seeds", fontsize=11)
        figure.savefig(folder / f"{name.replace(' ', '_').replace('-', '_')}.png", dpi=120)


def _draw_curves(axis, name, rows):
    for model, marker in zip(dict.fromkeys(key[0] for key in rows), "osD", strict=False):
        counts = [count for other, count in rows if other == model]
        means, halves = zip(*(interval(rows[model, count]) for count in counts), strict=True)
        axis.errorbar([max(count, 20) for count in counts], means, halves, marker=marker, capsize=3, label=model)
    axis.set_xscale("log")
    counts = sorted({count for _, count in rows})
    axis.set_xticks([max(count, 20) for count in counts], [str(count) for count in counts], minor=False)
    axis.set_xticks([], minor=True)
    axis.set(xlabel=COLUMNS[name][1], ylabel="test accuracy")
    axis.legend()


def _draw_points(axis, rows):
    means, halves = zip(*map(interval, rows.values()), strict=True)
    places = range(len(rows))[::-1]
    axis.errorbar(means, places, xerr=halves, fmt="o", capsize=3)
    axis.set_yticks(places, [", ".join(map(str, key)) for key in rows])
    axis.set(xlabel="test accuracy", ylim=(-0.7, len(rows) - 0.3))


if __name__ == "__main__":
    main()
