"""A text tower learns what pictures show, from captions alone: recall, kinds without labels, a search by words.

    python examples/words_and_stamps.py STAMPS --weights dinov2/weights --out words

STAMPS is the folder of Debian's package tuxpaint-stamps-default, `usr/share/tuxpaint/stamps`: pictures with a sentence
next to each. `--weights` is the folder that `examples/published_encoder.py` writes. The image tower, DINOv2 ViT-S/14,
is locked (LiT, arXiv:2111.07991), so its features are computed once. A text tower of 2 blocks learns from random
weights, on four fifths of the captions; the others are held out. Kinds of pictures are described by the known sentences
of each.

The last line is one JSON object with what was measured.
"""

import argparse
import json
import time
from pathlib import Path

import keras
import numpy as np
from PIL import Image

import keras_vit

SIDE, LENGTH, SIZE = 112, 16, 384  # pixels, ids of a caption, width of the features
STEPS, BATCH = 800, 128
KINDS = ("animals", "plants", "food", "vehicles", "clothes")  # folders of the pictures
SHOWN = 5  # sentences of the picture


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("stamps", type=Path)
    parser.add_argument("--weights", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--seeds", type=int, default=3)
    arguments = parser.parse_args()
    arguments.out.mkdir(parents=True, exist_ok=True)
    began = time.monotonic()
    pictures, captions, kinds = read(arguments.stamps)
    features = encoded(pictures, arguments.weights)
    found = [trained(features, captions, kinds, seed) for seed in range(arguments.seeds)]
    draw(arguments.out / "words.png", pictures, found[0].pop("hits"))
    for each in found[1:]:
        del each["hits"]
    summary = {name: [round(each[name], 3) for each in found] for name in found[0]}
    print(json.dumps({"pairs": len(captions), "seconds": round(time.monotonic() - began), **summary}))


def read(folder):
    """Pictures on white, the English sentence of each and the first folder; of one sentence the first picture alone."""
    pictures, captions, kinds = [], [], []
    for file in sorted(folder.rglob("*.png")):
        text = file.with_suffix(".txt")
        lines = text.read_text("utf8").splitlines() if text.is_file() else [""]
        if not lines or not lines[0] or lines[0] in captions:
            continue
        with Image.open(file) as opened:
            picture = opened.convert("RGBA")
        picture.thumbnail((SIDE, SIDE))
        page = Image.new("RGBA", (SIDE, SIDE), "white")
        page.alpha_composite(picture, tuple((SIDE - side) // 2 for side in picture.size))
        pictures.append(np.asarray(page.convert("RGB")))
        captions.append(lines[0])
        kinds.append(file.relative_to(folder).parts[0])
    return np.stack(pictures), captions, np.array(kinds)


def encoded(pictures, weights):
    """The locked image tower's features, `(N, 384)`."""
    model = keras_vit.build(weights=weights, include_top=False, input_shape=(SIDE, SIDE, 3))
    return model.predict(model.preprocessing(pictures.astype("float32")), batch_size=32, verbose=0)


def text_tower(seed):
    keras.utils.set_random_seed(seed)
    config = keras_vit.TextConfig(49408, LENGTH, 128, num_layers=2, num_heads=4, mlp_dim=256, projection_size=SIZE)
    model = keras_vit.build_text(config)
    model.tokenizer = keras_vit.tokenizer("clip", max_length=LENGTH)
    return model


def trained(features, captions, kinds, seed):
    """What one training finds on the captions that it has not seen."""
    order = np.random.default_rng(seed).permutation(len(captions))
    held_out, known = order[: len(order) // 5], order[len(order) // 5 :]
    text, image = text_tower(seed), keras.Sequential([keras.Input((SIZE,)), keras.layers.Activation("linear")])
    both = keras_vit.ContrastiveModel(image, text, lock_image=True)
    both.compile(keras_vit.AdamW(keras_vit.WarmupCosine(1e-3, STEPS, 50), weight_decay=0.05))
    ids = text.tokenizer(captions)
    centred = features - features[known].mean(axis=0)
    epochs = STEPS // (len(known) // BATCH)
    pairs = {"images": centred[known], "ids": ids[known]}
    both.fit(pairs, batch_size=BATCH, epochs=epochs, verbose=0)
    words = text.embed([captions[row] for row in held_out])
    found = keras_vit.recall(centred[held_out], words)
    unit = centred / np.linalg.norm(centred, axis=1, keepdims=True)
    among = [row for row in held_out if kinds[row] in KINDS]
    sentences = [text.embed([captions[row] for row in known if kinds[row] == kind]) for kind in KINDS]
    described = np.stack([(each / np.linalg.norm(each, axis=1, keepdims=True)).mean(axis=0) for each in sentences])
    described /= np.linalg.norm(described, axis=1, keepdims=True)
    there = [kind for kind in KINDS if (kinds[among] == kind).any()]
    guesses = np.array(KINDS)[(unit[among] @ described.T).argmax(axis=1)]
    vocabulary = {word for row in known for word in captions[row].lower().strip(".").split()}
    of_known = [set(captions[row].lower().strip(".").split()) <= vocabulary for row in held_out]
    shown = held_out[np.flatnonzero(of_known)[:SHOWN]]  # the first whose words stand in other sentences too
    hits = keras_vit.nearest_neighbors(centred[held_out], text.embed([captions[row] for row in shown]), k=5).indices
    return {
        **found,
        "chance_of_5": 5 / len(held_out),
        "kinds": float(np.mean([(guesses == kind)[kinds[among] == kind].mean() for kind in there])),  # chance: 0.2
        "hits": {captions[row]: (row, held_out[places]) for row, places in zip(shown, hits, strict=True)},
    }


def draw(file, pictures, hits):
    """A row of the nearest held-out pictures for each sentence; the one that it belongs to has a frame."""
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(len(hits), 5, figsize=(8, 1.8 * len(hits)), layout="constrained")
    for row, (sentence, (right, places)) in enumerate(hits.items()):
        for axis, place in zip(axes[row], places, strict=True):
            axis.imshow(pictures[place])
            axis.set(xticks=[], yticks=[])
            plt.setp(axis.spines.values(), linewidth=3 if place == right else 0.5)
            plt.setp(axis.spines.values(), color="#0a7d32" if place == right else "#999")
        axes[row, 0].set_title(sentence, fontsize=9, loc="left")
    figure.savefig(file, dpi=110)
    plt.close(figure)


if __name__ == "__main__":
    main()
