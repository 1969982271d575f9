"""Small generated pictures: tables of the shapes on them and of the size of a disc, masks and depths of squares."""

import numpy as np
from PIL import Image

SHAPES = ("disc", "stripes", "water")
_Y, _X = np.mgrid[:24, :28]


def write_labels(folder, count=60, seed=0):
    """Writes pictures of one to three shapes and a table `labels.csv` of them; gives the path of the table."""
    rng = np.random.default_rng(seed)
    lines = ["path,labels"]
    for number in range(count):
        there = rng.random(3) < [0.5, 0.5, 0.3]
        there[0] |= not there.any()
        pixels = rng.normal(60, 8, (24, 28, 3))
        pixels[(_Y - 8) ** 2 + (_X - 8) ** 2 < 36, 0] += 150 * there[0]
        pixels[:, 14:, 1] += 120 * there[1] * (_X[:, 14:] % 4 < 2)
        pixels[16:, :14, 2] += 140 * there[2]
        names = [name for name, is_there in zip(SHAPES, there, strict=True) if is_there]
        lines.append(f"{_saved(folder, f'shapes{number}', pixels)},{';'.join(names)}")
    return _table(folder, "labels.csv", lines)


def write_numbers(folder, count=60, seed=0):
    """Writes pictures of a disc and a table `numbers.csv` of its radius and brightness; gives the path of the table."""
    rng = np.random.default_rng(seed)
    lines = ["path,radius,brightness"]
    for number in range(count):
        radius, brightness = rng.uniform(2, 10), rng.uniform(40, 200)
        pixels = rng.normal(30, 5, (24, 28, 3))
        pixels[radius**2 > (_Y - 12) ** 2 + (_X - 14) ** 2] += brightness
        lines.append(f"{_saved(folder, f'disc{number}', pixels)},{radius:.3f},{1000 + brightness:.1f}")
    return _table(folder, "numbers.csv", lines)


def write_masks(folder, count=30, seed=0):
    """Writes photos of a red and a blue square to `images`, and palette masks to `masks`; gives the folder.

    Half of the photos are upright. The first row of each mask does not count.
    """
    rng = np.random.default_rng(seed)
    for name in ("images", "masks"):
        (folder / name).mkdir(parents=True)
    for number in range(count):
        height, width = ((40, 56), (56, 40))[number % 2]
        pixels, mask = rng.normal(90, 15, (height, width, 3)), np.zeros((height, width), "uint8")
        for place, channel in ((1, 0), (2, 2)):
            y, x = rng.integers(1, height - 16), rng.integers(0, width - 16)
            pixels[y : y + 14, x : x + 14], mask[y : y + 14, x : x + 14] = 40, place
            pixels[y : y + 14, x : x + 14, channel] = 210
        mask[0] = 255
        _saved(folder / "images", number, pixels)
        save_palette(folder / "masks" / f"{number}.png", mask)
    return folder


def write_depths(folder, count=30, seed=0):
    """Writes photos of a wall with a near square to `images`, and maps to `depths`; gives the folder.

    The nearer the brighter. Even maps are 16-bit PNGs of millimetres, odd ones `.npy` files of metres. The first row of
    each is not known, and the second beyond 9 m.
    """
    rng = np.random.default_rng(seed)
    for name in ("images", "depths"):
        (folder / name).mkdir(parents=True)
    for number in range(count):
        height, width = ((40, 56), (56, 40))[number % 2]
        depths = np.full((height, width), rng.uniform(4, 6)) + np.linspace(0, 1, width)
        y, x = rng.integers(2, height - 20), rng.integers(0, width - 20)
        depths[y : y + 18, x : x + 18] = rng.uniform(1, 3)
        _saved(folder / "images", number, 260 - 32 * depths[..., None] + rng.normal(0, 3, (height, width, 3)))
        depths[0], depths[1] = (0, np.nan)[number % 2], 12
        if number % 2:
            np.save(folder / "depths" / f"{number}.npy", depths.astype("float32"))
        else:
            Image.fromarray(np.rint(1000 * depths).astype("uint16")).save(folder / "depths" / f"{number}.png")
    return folder


def save_palette(path, mask):
    """Writes a mask as a PNG of indices, whose colours say nothing of these."""
    image = Image.fromarray(mask, "P")
    image.putpalette([value for index in range(256) for value in (255 - index, 7, index // 2)])
    image.save(path)


def _saved(folder, name, pixels):
    folder.mkdir(parents=True, exist_ok=True)
    Image.fromarray(np.clip(pixels, 0, 255).astype("uint8")).save(folder / f"{name}.png")
    return f"{name}.png"


def _table(folder, name, lines):
    path = folder / name
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return path
