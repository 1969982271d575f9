"""Folders of generated photos in three classes that a small model tells apart, and files that are no good."""

import numpy as np
from PIL import Image

CLASSES = ("disc", "stripes", "tiles")
BAD = {"disc/short.jpg": "truncated JPEG", "tiles/note.jpg": "not an image: text"}  # of `add_odd_files`
ODD = ("disc/cmyk.jpg", "stripes/grey.jpg", "tiles/deep.png")  # of unusual kinds, but good


def photo(kind, rng, height=60, width=72):
    """uint8 `(H, W, 3)`: a bright shape of random colour and place on a dark ground."""
    y, x = np.mgrid[:height, :width]
    shift = rng.integers(0, 24, 2)
    shapes = {
        "disc": (y - 20 - shift[0]) ** 2 + (x - 24 - shift[1]) ** 2 < 18**2,
        "stripes": (y + shift[0]) // 6 % 2 == 0,
        "tiles": ((y + shift[0]) // 10 + (x + shift[1]) // 10) % 2 == 0,
    }
    colour = rng.integers(120, 256, 3) * shapes[kind][..., None]
    return np.clip(colour + rng.normal(30, 8, (height, width, 3)), 0, 255).astype("uint8")


def make_photos(folder, per_class=20, seed=0, classes=CLASSES):
    """Writes `folder/{class}/{number}.jpg` and gives `folder`."""
    rng = np.random.default_rng(seed)
    for name in classes:
        (folder / name).mkdir(parents=True)
        for number in range(per_class):
            height, width = rng.integers(56, 80, 2)
            Image.fromarray(photo(name, rng, height, width)).save(folder / name / f"{number}.jpg", quality=90)
    return folder


def add_odd_files(folder):
    """Adds the files of `BAD` and `ODD`."""
    rng = np.random.default_rng(9)
    whole = (folder / "disc" / "0.jpg").read_bytes()
    (folder / "disc" / "short.jpg").write_bytes(whole[: len(whole) // 2])
    (folder / "tiles" / "note.jpg").write_text("remember the milk")
    Image.fromarray(photo("disc", rng)).convert("CMYK").save(folder / "disc" / "cmyk.jpg")
    Image.fromarray(photo("stripes", rng)).convert("L").save(folder / "stripes" / "grey.jpg")
    deep = photo("tiles", rng).mean(axis=-1).astype("uint16") * 257
    Image.fromarray(deep).save(folder / "tiles" / "deep.png")
    return folder
