"""Tables of small generated pictures: which shapes are on them, and how large and bright a disc is."""

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


def _saved(folder, name, pixels):
    folder.mkdir(parents=True, exist_ok=True)
    Image.fromarray(np.clip(pixels, 0, 255).astype("uint8")).save(folder / f"{name}.png")
    return f"{name}.png"


def _table(folder, name, lines):
    path = folder / name
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return path
