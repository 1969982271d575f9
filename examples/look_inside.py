"""What two small models see: every picture of `keras_vit.analysis`, and whether relevance finds what counts.

    python examples/look_inside.py --out pictures [--theme dark] [--epochs 40]

One model learns scikit-learn's handwritten digits. The other predicts from which half of which of scikit-learn's two
photos a crop is: it is pre-trained to tell which way up a crop is, and fine-tuned from that checkpoint with a new head.
Crops to train and to test are drawn anywhere, so they overlap. Each model sits in one with augmentation around it, and
is looked into there; the second one also looks at a whole photo, by resized positions. Of that photo `keras-vit look`'s
page is written too, and its picture is taken by Chromium if one is on the PATH.

Of each test image a fifth of the patches is removed, that is, gets the mean of the training images at this place: the
most relevant patches for the model's answer, the least relevant, and some at random. The last line is one JSON object.
It has by how much the probability of the answer falls, in the mean over the test images, and half the width of the 95 %
confidence interval of that mean.
"""

import argparse
import json
import shutil
import subprocess
import tempfile
import time
from pathlib import Path

import keras
import numpy as np
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle
from PIL import Image
from sklearn.datasets import load_digits, load_sample_images
from sklearn.model_selection import train_test_split

import keras_vit
from keras_vit import analysis
from keras_vit.analysis import plots

SHARE = 0.2  # of the patches that are removed
CROP = 64  # pixels
WHOLE = (208, 320)  # pixels of a whole photo
PATCH = (13, 12)  # row and column of a patch of it, on the pagoda
NAMES = ("pagoda, left half", "pagoda, right half", "flower, left half", "flower, right half")
PAGE = (1000, 900)  # pixels of the picture of the page
KEYS = """
const pressed = setInterval(() => {
  if (document.body.dataset.ready !== "yes") return;
  clearInterval(pressed);
  for (let count = 0; count < 9; count++)  // the first chooses the centre, row 13 and column 20
    document.querySelector(".stage").dispatchEvent(new KeyboardEvent("keydown", {key: "ArrowLeft"}));
  document.querySelectorAll("fieldset input")[1].click();  // similarity to the patch
}, 50);
"""


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, default=Path("pictures"))
    parser.add_argument("--theme", choices=("light", "dark"), default="light")
    parser.add_argument("--epochs", type=int, default=40)
    arguments = parser.parse_args()
    keras.utils.set_random_seed(0)
    found, began = {}, time.monotonic()
    for name, load in (("digits", digits), ("photos", crops)):
        train, test, patch_size = load()
        with tempfile.TemporaryDirectory() as folder:
            weights = turned(train, patch_size, arguments.epochs // 2, Path(folder)) if name == "photos" else None
            model = trained(train, patch_size, arguments.epochs, weights)
        images = test[0][:6]
        draw(model, images, [np.uint8(image) for image in images], arguments.out / name, arguments.theme)
        found[name] = {"accuracy": round(float((answers(model, test[0]).argmax(-1) == test[1]).mean()), 4)}
        found[name] |= removals(model, test[0], train[0].mean(axis=0))
    inner = keras_vit.with_input_shape(model.layers[-1], (*WHOLE, 3))
    photo = keras.ops.image.resize(load_sample_images().images[0].astype("float32"), WHOLE, antialias=True)
    photo = np.clip(np.rint(keras.ops.convert_to_numpy(photo)), 0, 255)
    draw(inner, photo[None] / 127.5 - 1, [np.uint8(photo)], arguments.out / "whole", arguments.theme)
    draw_front(inner, photo, arguments.out / "whole" / "front.png")
    draw_page(inner, photo, arguments.out / "whole", arguments.theme)
    print(json.dumps(found | {"out": str(arguments.out), "seconds": round(time.monotonic() - began, 1)}))


def digits():
    """Pairs of pixels `(B, 24, 24, 1)` in [0, 255] and labels, to train and to test; the side of a patch."""
    images, labels = load_digits(return_X_y=True)
    images = np.asarray(images, "float32").reshape(-1, 8, 8, 1) * (255 / 16)
    images = keras.ops.convert_to_numpy(keras.ops.image.resize(images, (24, 24)))
    parts = train_test_split(np.clip(images, 0, 255), labels, test_size=360, stratify=labels, random_state=0)
    return (parts[0], parts[2]), (parts[1], parts[3]), 4


def crops():
    """Crops `(B, 64, 64, 3)` of the left and right halves of two photos, as pairs of pixels and 4 labels."""
    rng = np.random.default_rng(0)
    found = {"train": ([], []), "test": ([], [])}
    for kind, count in (("train", 300), ("test", 90)):
        for label in range(4):
            photo = load_sample_images().images[label // 2]
            half = photo[:, (label % 2) * 320 :][:, :320]
            for _ in range(count):
                row, column = rng.integers(0, half.shape[0] - CROP), rng.integers(0, 320 - CROP)
                found[kind][0].append(half[row : row + CROP, column : column + CROP].astype("float32"))
                found[kind][1].append(label)
    return *((np.stack(images), np.array(labels)) for images, labels in found.values()), 8


def turned(data, patch_size, epochs, folder):
    """A checkpoint of a model that has learned which way up a crop is."""
    turns = np.random.default_rng(1).integers(0, 4, len(data[0]))
    images = np.stack([np.rot90(image, turn) for image, turn in zip(data[0], turns, strict=True)])
    return keras_vit.save_checkpoint(trained((images, turns), patch_size, epochs).layers[-1], folder / "turned.npz")


def trained(data, patch_size, epochs, weights=None):
    """A small model with scaling and augmentation around it, for pixels in [0, 255]."""
    images, labels = data
    config = keras_vit.ViTConfig(patch_size, hidden_size=96, num_layers=4, num_heads=4, mlp_dim=192)
    classes, shape = int(labels.max()) + 1, images.shape[1:]
    inner = keras_vit.build(config, weights=weights, classes=classes, input_shape=shape)
    if weights is not None:
        keras_vit.plan("augreg-finetune", inner, num_images=len(images), batch_size=32, steps=1).prepare(
            inner, head="reset"
        )
    around = [
        keras.layers.RandomTranslation(0.1, 0.1, fill_mode="nearest"),
        keras.layers.RandomRotation(0.03, fill_mode="nearest"),
        keras.layers.Rescaling(1 / 127.5, offset=-1.0),
    ]
    model = keras.Sequential([keras.Input(shape), *around, inner])
    steps = epochs * -(-len(images) // 32)
    rate = keras.optimizers.schedules.CosineDecay(0.0, steps, warmup_target=1e-3, warmup_steps=steps // 10)
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(keras_vit.AdamW(rate, weight_decay=1e-4), loss)
    model.fit(images, labels, 32, epochs, verbose=2)
    return model


def answers(model, images):
    """Probabilities `(B, K)`."""
    return keras.ops.convert_to_numpy(keras.ops.softmax(model.predict(images, verbose=0)))


def draw(model, images, photos, folder, theme):
    """Every picture, of images `(B, H, W, C)` as the model takes them and as they are shown."""
    folder.mkdir(parents=True, exist_ok=True)
    maps = keras_vit.attention_maps(model, images)
    last = len(maps.blocks)
    tokens = keras_vit.features(model, images, blocks=range(1, last + 1))
    draws = {
        "filters": (plots.draw_filters, *analysis.patch_filters(model, 14)),
        "positions": (plots.draw_position_similarity, analysis.position_similarity(model)),
        "distance": (plots.draw_attention_distance, maps.mean_distance()),
        "rollout": (plots.draw_overlays, photos, maps.rollout()),
        "relevance": (plots.draw_overlays, photos, keras_vit.class_relevance(model, images)),
        "colours": (plots.draw_colours, photos, analysis.pca_to_rgb(tokens[last])),
    }
    heads = maps.over_patches(maps.blocks[last - 1, 0, :, 0])
    titles = [f"head {number}" for number in range(1, len(heads) + 1)]
    draws["heads"] = (plots.draw_maps, heads, titles, "attention of the class token", photos[0])
    h, w = maps.grid
    similar = [analysis.token_similarity(tokens[block][0], (h // 2, w // 2)) for block in range(1, last + 1)]
    titles = [f"block {number}" for number in range(1, last + 1)]
    draws["similarity"] = (plots.draw_maps, similar, titles, "cosine similarity to the centre", photos[0])
    alike = [[analysis.linear_cka(tokens[a], tokens[b]) for b in tokens.maps] for a in tokens.maps]
    draws["blocks"] = (plots.draw_similarity_of_blocks, np.array(alike))
    for name, (function, *what) in draws.items():
        function(*what, path=folder / f"{name}.png", theme=theme)


def draw_front(model, photo, path):
    """The picture of the README: a photo `(H, W, 3)`, similarity to one of its patches, principal components."""
    last = model.config.num_layers
    tokens = keras_vit.features(model, photo[None] / 127.5 - 1, blocks=(last,))[last]
    similar, colours = analysis.token_similarity(tokens[0], PATCH), analysis.pca_to_rgb(tokens)[0]
    side = model.config.patch_size
    figure = Figure((9.6, 2.22), dpi=110, layout="constrained")
    titles = ("a photo", "similarity of all patches to the marked one", "principal components of the patches")
    for axis, what, title in zip(figure.subplots(1, 3), (np.uint8(photo), similar, colours), titles, strict=True):
        axis.imshow(what, cmap="cividis", interpolation="nearest", extent=(0, WHOLE[1], WHOLE[0], 0))
        axis.set_title(title, fontsize=10)
        axis.set_axis_off()
        if what is not colours:
            axis.add_patch(Rectangle((PATCH[1] * side, PATCH[0] * side), side, side, fill=False, color="white", lw=1.5))
    figure.savefig(path)


def draw_page(model, photo, folder, theme):
    """The page of `keras_vit.look` on a photo, and its picture if there is a browser."""
    with tempfile.TemporaryDirectory() as place:
        file = Path(place) / "pagoda.png"
        Image.fromarray(np.uint8(photo)).save(file)
        page = keras_vit.look(model, [file], folder / "page", class_names=NAMES, theme=theme)
    if (browser := shutil.which("chromium")) is None:
        print("No Chromium is on the PATH, so the page has no picture: look_page.png was not drawn.")
        return
    draw_browser(browser, page, folder / "look_page.png")


def draw_browser(browser, page, path):
    """A page of one photo as a browser shows it, after arrow keys went to `PATCH`; the photo shows similarity to it."""
    with tempfile.TemporaryDirectory() as place:
        used = Path(place) / "index.html"
        used.write_text(page.read_text() + f"<script>{KEYS}</script>")
        options = ["--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars", "--virtual-time-budget=10000"]
        options += [f"--window-size={PAGE[0]},{PAGE[1]}", f"--screenshot={path.resolve()}"]
        subprocess.run([browser, *options, used.resolve().as_uri()], check=True, capture_output=True, timeout=120)
    with Image.open(path) as drawn:
        few = drawn.convert("RGB").quantize(256)  # colours, which makes the file small
    few.save(path, optimize=True)


def removals(model, images, mean):
    """By how much the probability of the model's answer falls, in the mean over images, with the 95 % interval."""
    before = answers(model, images)
    classes = before.argmax(axis=-1)
    relevance = keras_vit.class_relevance(model, images, classes, batch_size=30)
    order = np.argsort(relevance.reshape(len(images), -1), axis=1)  # from the least
    random = np.argsort(np.random.default_rng(0).random(order.shape), axis=1)
    count = round(SHARE * order.shape[1])
    falls = {}
    for name, patches in (("most", order[:, -count:]), ("random", random[:, :count]), ("least", order[:, :count])):
        left = without(images, patches, mean, relevance.shape[1:])
        falls[name] = (before - answers(model, left))[np.arange(len(images)), classes]
    found = {name: interval(fall) for name, fall in falls.items()}
    pairs = {f"most - {name}": interval(falls["most"] - falls[name]) for name in ("random", "least")}
    return {"images": len(images), "removed": count, "patches": order.shape[1]} | found | pairs


def interval(values):
    """The mean, and half the width of its 95 % confidence interval."""
    return [round(float(values.mean()), 4), round(float(1.96 * values.std(ddof=1) / np.sqrt(len(values))), 4)]


def without(images, patches, mean, grid):
    """Images whose patches of these numbers `(B, n)` are those of `mean`."""
    removed = np.zeros((len(images), grid[0] * grid[1]), bool)
    np.put_along_axis(removed, patches, True, axis=1)
    sides = [side // count for side, count in zip(images.shape[1:3], grid, strict=True)]
    mask = removed.reshape(-1, *grid).repeat(sides[0], axis=1).repeat(sides[1], axis=2)[..., None]
    return np.where(mask, mean, images).astype("float32")


if __name__ == "__main__":
    main()
