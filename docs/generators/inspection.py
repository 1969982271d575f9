"""Draws `docs/pictures/inspection.png`: trays of apples with something that does not belong there, and their maps.

    python docs/generators/inspection.py STAMPS --weights dinov2

STAMPS is the folder of Debian's package tuxpaint-stamps-default, `usr/share/tuxpaint/stamps`. `--weights` is the folder
that `examples/published_encoder.py` writes. Trays are composed of photographed stamps: 24 good ones make the memory
bank, and 12 other good ones and 24 flawed ones are inspected, by the published weights and by random ones. The last
line is one JSON object with what was measured.
"""

import argparse
import json
import tempfile
from pathlib import Path

import keras
import numpy as np
from PIL import Image, ImageEnhance

import keras_vit
from keras_vit.analysis.overlay import anomaly_limits, paint_anomalies
from keras_vit.cli import main as keras_vit_command

PICTURE = Path(__file__).parents[1] / "pictures" / "inspection.png"
HEIGHT, WIDTH = 480, 640
APPLES = ("apple_red", "apple_green", "apple_granny_smith", "apple_fuji", "apple_sierra_beauty")
INSECTS = ("fly", "bee", "hornet", "hoverfly", "Brown_slug", "Woodlouse", "grasshopper", "mantis")
OTHERS = ("tomato", "onion", "garlic", "potato", "mushroom", "pepper", "broccoli", "pattypan_squash")
SHOWN = ("fly", "mushroom", "Woodlouse", "good")
GOOD, UNSEEN, SIDE = 24, 12, 200  # good trays; those that are inspected; pixels of a picture


def stamp(file, size, rng):
    """A stamp in RGBA, turned, of `size` pixels."""
    with Image.open(file) as opened:
        image = opened.convert("RGBA")
    image = image.crop(image.getbbox())
    image.thumbnail((size, size), Image.Resampling.LANCZOS)
    image = image.rotate(rng.uniform(-180, 180), Image.Resampling.BICUBIC, expand=True)
    return ImageEnhance.Brightness(image).enhance(rng.uniform(0.85, 1.1))


def tray(stamps, rng, flaw=None):
    """The pixels of a tray of twelve apples, and the mask of the flaw: an insect, or another thing for one apple."""
    coarse = rng.integers(120, 160, (6, 8), "uint8")
    ground = np.asarray(Image.fromarray(coarse).resize((WIDTH, HEIGHT), Image.Resampling.BICUBIC), "float32")
    ground = ground[..., None] * (1.0, 0.92, 0.8) + rng.normal(0, 6, (HEIGHT, WIDTH, 3))
    page = Image.fromarray(ground.clip(0, 255).astype("uint8")).convert("RGBA")
    mask = Image.new("L", page.size)
    other = int(rng.integers(12)) if flaw in OTHERS else -1
    for place in range(12):
        name = stamps / "food" / "fruit" / f"{APPLES[rng.integers(len(APPLES))]}.png"
        if place == other:
            name = stamps / "food" / "vegetables" / f"{flaw}.png"
        image = stamp(name, rng.integers(100, 120), rng)
        centre = 80 + place % 4 * 160 + rng.integers(-12, 13), 80 + place // 4 * 160 + rng.integers(-12, 13)
        put(page, mask, image, centre, place == other)
    if flaw in INSECTS:
        image = stamp(stamps / "animals" / "insects" / f"{flaw}.png", 60, rng)
        put(page, mask, image, (rng.integers(60, WIDTH - 60), rng.integers(60, HEIGHT - 60)), True)
    return page.convert("RGB"), mask


def put(page, mask, image, centre, is_flaw):
    """Lays a stamp on the tray, and on the mask if it is the flaw."""
    corner = tuple(int(at) - side // 2 for at, side in zip(centre, image.size, strict=True))
    layer = Image.new("RGBA", page.size)
    layer.paste(image, corner)
    page.alpha_composite(layer)
    if is_flaw:
        mask.paste(layer.getchannel("A").point(lambda level: 255 * (level > 127)))


def compose(stamps, folder):
    """Writes `good`, `photos` and `masks` into a folder."""
    rng = np.random.default_rng(0)
    for name in ("good", "photos", "masks"):
        (folder / name).mkdir(parents=True)
    for number in range(GOOD + UNSEEN):
        place = "good" if number < GOOD else "photos"
        tray(stamps, rng)[0].save(folder / place / f"good{number}.png")
    for name in (*INSECTS, *OTHERS, *INSECTS):
        number = len(list((folder / "masks").iterdir()))
        photo, mask = tray(stamps, rng, name)
        photo.save(folder / "photos" / f"{name}{number}.png")
        mask.save(folder / "masks" / f"{name}{number}.png")


def measured(folder, model, out):
    """What the command measures."""
    arguments = ["inspect", folder / "good", folder / "photos", "--model", model, "--masks", folder / "masks"]
    if keras_vit_command([*map(str, arguments), "--out", str(out), "--values", "npy"]):
        raise SystemExit("the command failed")
    return json.loads((out / "measures.json").read_text())


def draw(folder, out, picture):
    """Photos above their maps."""
    inspector = keras_vit.embedding.inspection.read_record(out)
    limits = anomaly_limits(inspector.median_distance, inspector.threshold)
    columns = []
    for name in SHOWN:
        file = sorted((folder / "photos").glob(f"{name}*.png"))[0]
        photo = np.asarray(Image.open(file))
        painted = paint_anomalies(np.load(out / "maps" / f"{file.stem}.npy"), limits, photo)
        columns.append(np.concatenate([np.asarray(small(each)) for each in (photo, painted)]))
    Image.fromarray(np.concatenate(columns, axis=1)).quantize(256).save(picture, optimize=True)


def small(pixels):
    """With a white border."""
    image = Image.fromarray(pixels).resize((SIDE * WIDTH // HEIGHT, SIDE), Image.Resampling.LANCZOS)
    page = Image.new("RGB", (image.width + 6, image.height + 6), "white")
    page.paste(image, (3, 3))
    return page


def main():
    """Composes, inspects by published and by random weights, and draws."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("stamps", type=Path)
    parser.add_argument("--weights", type=Path, required=True)
    parser.add_argument("--out", type=Path, default=PICTURE)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        folder = Path(folder)
        compose(arguments.stamps, folder)
        published = measured(folder, arguments.weights, folder / "published")
        draw(folder, folder / "published", arguments.out)
        keras.utils.set_random_seed(0)
        encoder = keras_vit.build("dinov2/S14", include_top=False, input_shape=(518, 518, 3))
        encoder.save(folder / "random.keras")
        random = measured(folder, folder / "random.keras", folder / "random")
    print(json.dumps({"published": published, "random": random}))


if __name__ == "__main__":
    main()
