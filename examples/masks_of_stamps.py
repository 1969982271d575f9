"""A linear head on frozen features learns masks from few pictures: published weights against random ones.

    python examples/masks_of_stamps.py STAMPS --weights dinov2/weights --out masks

STAMPS is the folder of Debian's package tuxpaint-stamps-default, `usr/share/tuxpaint/stamps`. `--weights` is the folder
that `examples/published_encoder.py` writes. Photographed stamps of six kinds are laid on crops of a photo of
scikit-learn. Held out are a third of the stamps of each kind, and the right part of that photo. The encoder, DINOv2
ViT-S/14, stays as it is, so its features are computed once.

The last line is one JSON object with what was measured.
"""

import argparse
import json
import time
from pathlib import Path

import keras
import numpy as np
from PIL import Image
from sklearn.datasets import load_sample_image

import keras_vit
from keras_vit import dense

SIDE, BATCH, STEPS = 224, 10, 400
FOLDERS = ("animals/birds", "animals/mammals", "animals/fish", "food/fruit", "food/vegetables", "plants/flowers")
CLASSES = ("ground", *(folder.rpartition("/")[2] for folder in FOLDERS))
COUNTS, UNSEEN = (5, 20, 100, 500), 100  # pictures to learn from, and held-out ones
SHOWN = 6


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("stamps", type=Path)
    parser.add_argument("--weights", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--seeds", type=int, default=3)
    arguments = parser.parse_args()
    arguments.out.mkdir(parents=True, exist_ok=True)
    began, found = time.monotonic(), {"published": [], "random": []}
    for seed in range(arguments.seeds):
        photos, masks = compose(arguments.stamps, max(COUNTS), seed, held_out=False)
        unseen, truth = compose(arguments.stamps, UNSEEN, seed + 1000, held_out=True)
        for name, encoder in encoders(arguments.weights, seed).items():
            model = keras_vit.segmenter(encoder, "linear", classes=len(CLASSES))
            known, other = features(model, photos), features(model, unseen)
            row = []
            for count in COUNTS:
                head = trained(model, known[:count], masks[:count], seed)
                predicted = head.predict(other, verbose=0).argmax(-1)
                row.append(dense.segmentation_scores(truth, predicted, len(CLASSES)).mean_iou)
            found[name].append(row)
            if name == "published" and seed == 0:
                draw(arguments.out / "masks.png", unseen, truth, predicted)
    rounded = {name: np.round(rows, 3).tolist() for name, rows in found.items()}
    print(json.dumps({"pictures": COUNTS, "seconds": round(time.monotonic() - began), **rounded}))


def compose(stamps, count, seed, held_out):
    """Pictures uint8 `(count, 224, 224, 3)` of one to four stamps, and masks int32 `(count, 224, 224)`."""
    rng = np.random.default_rng(seed)
    files = [sorted((stamps / folder).glob("*.png")) for folder in FOLDERS]
    files = [[file for place, file in enumerate(each) if (place % 3 == 2) == held_out] for each in files]
    ground = load_sample_image("china.jpg")
    ground = ground[:, 400:] if held_out else ground[:, :400]
    photos, masks = [], []
    for _ in range(count):
        page, mask = background(ground, rng), Image.new("L", (SIDE, SIDE))
        for _ in range(rng.integers(1, 5)):
            kind = int(rng.integers(len(FOLDERS)))
            lay(page, mask, files[kind][rng.integers(len(files[kind]))], kind + 1, rng)
        photos.append(np.asarray(page.convert("RGB")))
        masks.append(np.asarray(mask, "int32"))
    return np.stack(photos), np.stack(masks)


def background(ground, rng):
    side = int(rng.integers(100, 230))
    top, left = (int(rng.integers(0, length - side + 1)) for length in ground.shape[:2])
    crop = ground[top : top + side, left : left + side][:, :: int(rng.choice([-1, 1]))]
    return Image.fromarray(crop).resize((SIDE, SIDE), Image.Resampling.BICUBIC).convert("RGBA")


def lay(page, mask, file, number, rng):
    """Lays a stamp on a picture, turned and mirrored, and its number on the mask."""
    with Image.open(file) as opened:
        image = opened.convert("RGBA")
    image = image.crop(image.getbbox())
    size = int(rng.integers(60, 130))
    image.thumbnail((size, size), Image.Resampling.LANCZOS)
    if rng.random() < 0.5:
        image = image.transpose(Image.Transpose.FLIP_LEFT_RIGHT)
    image = image.rotate(rng.uniform(-30, 30), Image.Resampling.BICUBIC, expand=True)
    layer = Image.new("RGBA", page.size)
    layer.paste(image, tuple(int(rng.integers(0, max(1, SIDE - side))) for side in image.size))
    page.alpha_composite(layer)
    mask.paste(number, mask=layer.getchannel("A").point(lambda level: 255 * (level > 127)))


def encoders(weights, seed):
    """The published encoder, and one of random weights."""
    keras.utils.set_random_seed(seed)
    shape = {"include_top": False, "input_shape": (SIDE, SIDE, 3)}
    published = keras_vit.build(weights=weights, **shape)
    random = keras_vit.build(published.config, **shape)
    random.preprocessing = published.preprocessing
    return {"published": published, "random": random}


def features(model, photos):
    """What the head reads, float32 `(B, 16, 16, 384)`."""
    network = keras.Model(model.input, model.get_layer("taps").output)
    return network.predict(model.preprocessing(photos.astype("float32")), batch_size=32, verbose=0)


def trained(model, known, masks, seed):
    """A head as the segmenter has it, trained on features by every second pixel; its answers have all."""
    keras.utils.set_random_seed(seed)
    layer = type(model.head).from_config(model.head.get_config())
    taps = keras.Input(known.shape[1:])
    logits, times = layer([taps]), SIDE // known.shape[1]
    small = keras.layers.UpSampling2D(times // 2, interpolation="bilinear")(logits)
    head = keras.Model(taps, small)
    head.compile(keras.optimizers.AdamW(1e-3, weight_decay=1e-2), dense.CrossEntropy())
    batch = min(BATCH, len(known))
    head.fit(known, masks[:, ::2, ::2], batch, epochs=STEPS * batch // len(known), verbose=0)
    return keras.Model(taps, keras.layers.UpSampling2D(times, interpolation="bilinear")(logits))


def draw(file, photos, truth, predicted):
    """Pictures above their masks, as drawn and as predicted."""
    colours = np.array(
        [(60, 60, 60), (86, 180, 233), (213, 94, 0), (0, 114, 178), (240, 228, 66), (0, 158, 115), (204, 121, 167)]
    )
    rows = [np.concatenate(list(each[:SHOWN]), axis=1) for each in (photos, colours[truth], colours[predicted])]
    Image.fromarray(np.concatenate(rows).astype("uint8")).resize((1008, 504), Image.Resampling.LANCZOS).save(file)


if __name__ == "__main__":
    main()
