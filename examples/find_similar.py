"""Finds similar pictures among 1,000 by the features of DINOv2 S/14, and measures how often they are right.

    pip install scikit-image
    python examples/find_similar.py --out similar [--weights FOLDER]

The 1,000 pictures are 50 crops of each of 20 that scikit-image, scikit-learn and matplotlib bring with them. A
neighbour is right if it is a crop of the same photo. Crops have a random place, size and side, so that two of them
share few pixels or none. `--weights` is the folder that published_encoder.py writes; without it, it is made.

The last line is one JSON object with the share of right neighbours: of the published weights, of random weights, and of
the pixels themselves.
"""

import argparse
import dataclasses
import json
from pathlib import Path

import keras
import matplotlib.cbook
import matplotlib.pyplot as plt
import numpy as np
import skimage.data
from PIL import Image
from published_encoder import downloaded, write_folder
from sklearn.datasets import load_sample_images

import keras_vit

NAMES = (
    *("astronaut", "brick", "camera", "cat", "cell", "clock", "coffee", "coins", "grass", "gravel"),
    *("hubble_deep_field", "immunohistochemistry", "microaneurysms", "moon", "page", "retina", "rocket"),
)
CROPS, SIDE = 50, 112  # of each photo; pixels
SIZES = (0.25, 0.5)  # of a crop's side, as a share of the photo's shorter one
NEIGHBOURS, SHOWN = 10, 8


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, default=Path("similar"))
    parser.add_argument("--weights", type=Path)
    arguments = parser.parse_args()
    arguments.out.mkdir(parents=True, exist_ok=True)
    weights = arguments.weights or write_folder(downloaded(arguments.out), arguments.out / "weights")
    keras.utils.set_random_seed(0)
    pictures, photo_of = crops(photos())
    found = {}
    for name, vectors in vectors_of(pictures, weights).items():
        nearest = keras_vit.nearest_neighbors(vectors, k=NEIGHBOURS).indices
        found[name] = round(float((photo_of[nearest] == photo_of[:, None]).mean()), 3)
        draw(pictures, photo_of, nearest, arguments.out / f"{name}.png")
    print(json.dumps(found))


def photos():
    """The 20 photos, `(H, W, 3)` of bytes each."""
    found = [getattr(skimage.data, name)() for name in NAMES]
    found += load_sample_images().images
    found += [np.asarray(Image.open(matplotlib.cbook.get_sample_data("grace_hopper.jpg")))]
    return [np.broadcast_to(each[..., None] if each.ndim == 2 else each, (*each.shape[:2], 3)) for each in found]


def crops(photos):
    """`(1000, 112, 112, 3)` of bytes, and the number of the photo that each is from."""
    generator = np.random.default_rng(0)
    found = []
    for photo in photos:
        for _ in range(CROPS):
            side = round(generator.uniform(*SIZES) * min(photo.shape[:2]))
            top, left = (generator.integers(0, length - side + 1) for length in photo.shape[:2])
            crop = Image.fromarray(np.uint8(photo[top : top + side, left : left + side])).resize((SIDE, SIDE))
            found.append(np.asarray(crop)[:, :: generator.choice((-1, 1))])  # half of them mirrored
    return np.stack(found), np.repeat(np.arange(len(photos)), CROPS)


def vectors_of(pictures, weights):
    """Vectors of each picture: by the published model, by the same one with random weights, and its pixels."""
    shape = pictures.shape[1:]
    published = keras_vit.build(weights=weights, include_top=False, input_shape=shape)
    random = keras_vit.build(published.config, include_top=False, input_shape=shape)
    as_they_are = dataclasses.replace(published.preprocessing, resize="none", image_size=None)
    prepared = as_they_are(pictures)
    found = {name: model.predict(prepared, verbose=0) for name, model in (("published", published), ("random", random))}
    pixels = pictures.reshape(len(pictures), -1).astype("float32")
    return found | {"pixels": pixels - pixels.mean(axis=0)}


def draw(pictures, photo_of, nearest, file):
    """Some pictures, each before its nearest ones; a wrong one has a red frame."""
    asked = np.arange(0, len(pictures), len(pictures) // 6)[:6] + 3
    figure, axes = plt.subplots(len(asked), SHOWN + 1, figsize=(9, 6.2), layout="constrained")
    for row, query in zip(axes, asked, strict=True):
        for place, (cell, index) in enumerate(zip(row, [query, *nearest[query][:SHOWN]], strict=True)):
            cell.imshow(pictures[index])
            cell.set(xticks=[], yticks=[])
            cell.spines[:].set_color("#c0392b" if photo_of[index] != photo_of[query] else "white")
            cell.spines[:].set_linewidth(3)
            if row is axes[0] and place < 2:
                cell.set_title("asked" if place == 0 else "nearest", loc="left", fontsize=11)
    figure.savefig(file, dpi=80)
    plt.close(figure)


if __name__ == "__main__":
    main()
