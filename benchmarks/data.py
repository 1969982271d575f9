"""Processor time that a training image takes, from a JPEG of 500 x 375 to a batch, against plain tf.data and others.

    python -m benchmarks.data [--photos 200] [--rounds 7] [--batch-size 20] [--csv FILE]

All take the same files, shuffled, decode them with the accurate transform and bring them to 224 x 224 in [-1, 1]:

- `tf.data` is what its guides show: `read_file`, `decode_jpeg` or, with a crop, `decode_and_crop_jpeg`, `resize`,
  `random_flip_left_right`; nothing of it can be repeated or gone on with.
- `Pillow` opens, crops, resizes and mirrors one file after the other and stacks them with NumPy.
- `grain` runs the same functions of Pillow, where it is installed, in this process.

Loaders work in turn, one while the others stand still, and the ratio is a median over rounds. Processor time is that
of all threads, so a busy machine changes it little.
"""

import argparse
import csv
import functools
import importlib.util
import os
import resource
import statistics
import tempfile
import time
from pathlib import Path

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
import numpy as np
import tensorflow as tf

import keras_vit

SIDES, SIZE, CLASSES = (375, 500), (224, 224), ("a", "b")
ASPECTS, AREA = (0.75, 1.33), (0.05, 1.0)  # of a random crop
CHANGES = {
    "none": None,
    "crop, flip": keras_vit.Augmentation(),
    "crop, flip, RandAugment": keras_vit.Augmentation(randaugment_layers=2, randaugment_magnitude=15),
    "crop, flip, erasing": keras_vit.Augmentation(erasing_probability=0.25),
}


def main():
    arguments = parse(__doc__.splitlines()[0], photos=200, batches=10, batch_size=20)
    with tempfile.TemporaryDirectory() as folder:
        write_photos(Path(folder), arguments.photos)
        source = keras_vit.open_source(folder)
        files = sorted(map(str, Path(folder).rglob("*.jpg")))
        rows = []
        for change, augmentation in CHANGES.items():
            loaders = {"keras_vit": keras_vit_batches(source, augmentation, arguments.batch_size)}
            if change in ("none", "crop, flip"):
                loaders |= peers(files, augmentation is not None, arguments.batch_size)
            else:
                loaders["tf.data"] = plain(files, True, arguments.batch_size)  # which has no such change
            found = measure(loaders, arguments)
            print(f"\n{change}: milliseconds of processor time an image, over tf.data's")
            rows += [{"change": change, **row} for row in table(found)]
    write_csv(arguments.csv, rows)


def parse(description, photos, batches, batch_size):
    """The options of a command that reads photos; the last three are defaults."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--photos", type=int, default=photos)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--batches", type=int, default=batches, help="of a round")
    parser.add_argument("--batch-size", type=int, default=batch_size)
    parser.add_argument("--csv", help="file to write the rows to")
    return parser.parse_args()


def write_csv(path, rows):
    """Writes rows, unless `path` is `None`."""
    if path:
        with open(path, "w", newline="") as file:
            writer = csv.DictWriter(file, rows[0])
            writer.writeheader()
            writer.writerows(rows)


def write_photos(folder, count):
    """JPEGs of other parts of the two photos that scikit-learn brings along."""
    from sklearn.datasets import load_sample_images

    photos, rng = load_sample_images().images, np.random.default_rng(0)
    for number in range(count):
        photo, label = photos[number % len(photos)], CLASSES[number % len(CLASSES)]
        y, x = (rng.integers(0, have - want + 1) for have, want in zip(photo.shape, SIDES, strict=False))
        (folder / label).mkdir(exist_ok=True)
        jpeg = tf.io.encode_jpeg(photo[y : y + SIDES[0], x : x + SIDES[1]], quality=90)
        tf.io.write_file(str(folder / label / f"{number}.jpg"), jpeg)


def keras_vit_batches(source, augmentation, batch_size):
    preprocessing = keras_vit.Preprocessing(image_size=SIZE)
    arguments = {"preprocessing": preprocessing, "training": True, "augmentation": augmentation}
    return iter(keras_vit.load_dataset(source, "train", batch_size=batch_size, **arguments))


def peers(files, cropped, batch_size):
    found = {"tf.data": plain(files, cropped, batch_size), "Pillow": with_pillow(files, cropped, batch_size)}
    if importlib.util.find_spec("grain"):
        found["grain"] = with_grain(files, cropped, batch_size)
    return found


def plain(files, cropped, batch_size):
    """Batches of tf.data without this package."""
    dataset = tf.data.Dataset.from_tensor_slices(files).shuffle(len(files)).repeat()
    options = tf.data.Options()
    options.autotune.enabled = False
    dataset = dataset.map(functools.partial(plain_image, cropped=cropped), os.cpu_count())
    return iter(dataset.batch(batch_size, drop_remainder=True).prefetch(2).with_options(options))


def plain_image(file, cropped):
    data = tf.io.read_file(file)
    if not cropped:
        return tf.image.resize(tf.io.decode_jpeg(data, 3, dct_method="INTEGER_ACCURATE"), SIZE) / 127.5 - 1
    begin, size, _ = tf.image.sample_distorted_bounding_box(
        tf.io.extract_jpeg_shape(data),
        tf.zeros((1, 0, 4)),
        min_object_covered=0.0,
        aspect_ratio_range=ASPECTS,
        area_range=AREA,
        use_image_if_no_bounding_boxes=True,
    )
    window = tf.stack([begin[0], begin[1], size[0], size[1]])
    image = tf.image.resize(tf.io.decode_and_crop_jpeg(data, window, 3, dct_method="INTEGER_ACCURATE"), SIZE)
    return tf.image.random_flip_left_right(image) / 127.5 - 1


def with_pillow(files, cropped, batch_size):
    rng = np.random.default_rng(0)
    while True:
        batch = rng.choice(files, batch_size)
        yield np.stack([pillow_image(file, cropped, rng) for file in batch])


def pillow_image(file, cropped, rng):
    from PIL import Image

    with Image.open(file) as image:
        image = image.convert("RGB")
        box = pillow_box(image.size, rng) if cropped else None
        image = image.resize(SIZE[::-1], Image.Resampling.BILINEAR, box, reducing_gap=None)
        if cropped and rng.random() < 0.5:
            image = image.transpose(Image.Transpose.FLIP_LEFT_RIGHT)
        return np.asarray(image, "float32") / 127.5 - 1


def pillow_box(size, rng):
    """A window of random area and aspect, drawn until it fits."""
    while True:
        area, aspect = rng.uniform(*AREA) * size[0] * size[1], rng.uniform(*ASPECTS)
        width, height = round((area * aspect) ** 0.5), round((area / aspect) ** 0.5)
        if width <= size[0] and height <= size[1]:
            x, y = rng.integers(size[0] - width + 1), rng.integers(size[1] - height + 1)
            return x, y, x + width, y + height


def with_grain(files, cropped, batch_size):
    import grain

    dataset = grain.MapDataset.source(files).seed(0).shuffle().repeat()
    dataset = dataset.random_map(lambda file, rng: pillow_image(file, cropped, rng))
    return iter(dataset.batch(batch_size, drop_remainder=True).to_iter_dataset())


def measure(loaders, arguments):
    """Milliseconds of processor time an image takes, in lists by loader."""
    for loader in loaders.values():
        for _ in range(3):
            next(loader)
    found: dict[str, list[float]] = {name: [] for name in loaders}
    for number in range(arguments.rounds):
        for name in list(loaders)[:: -1 if number % 2 else 1]:
            start = settled()
            for _ in range(arguments.batches):
                next(loaders[name])
            found[name].append((settled() - start) / (arguments.batches * arguments.batch_size) * 1000)
    return found


def settled():
    """Seconds of processor time of this process, once no thread makes images ahead any more."""
    before = None
    while True:
        usage = resource.getrusage(resource.RUSAGE_SELF)
        now = usage.ru_utime + usage.ru_stime
        if before is not None and now - before < 2e-3:
            return now
        before = now
        time.sleep(0.1)


def table(found):
    """Prints and yields a row for each loader; ratios are to plain tf.data."""
    for name, times in found.items():
        ratio = statistics.median(own / other for own, other in zip(times, found["tf.data"], strict=True))
        row = {"loader": name, "ms_an_image": round(statistics.median(times), 3), "ratio": round(ratio, 2)}
        print(f"{name:12}{row['ms_an_image']:8.3f}{row['ratio']:8.2f}", flush=True)
        yield row


if __name__ == "__main__":
    main()
