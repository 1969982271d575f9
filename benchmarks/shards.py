"""Processor time that a training image takes from each kind of shard, against the same photos in a folder.

    python -m benchmarks.shards [--photos 2000] [--rounds 7] [--batch-size 64] [--csv FILE]

JPEGs of 320 x 256 are packed in every format, and a compressed Parquet is written too. All are opened by
`keras_vit.open_source` and read as a run reads them: shuffled, decoded, resized to 224 x 224. Loaders work in turn, one
while the others stand still, and the ratio is a median over rounds. It is images a second of a shard over those of the
folder, so above 1 is faster.
"""

import os
import statistics
import tempfile
from pathlib import Path

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
import numpy as np
import tensorflow as tf

import keras_vit
from benchmarks.data import CLASSES, SIZE, parse, settled, write_csv
from keras_vit.config.datasets import SHARD_FORMATS

SIDES = (256, 320)
SHARDS = 8


def main():
    arguments = parse(__doc__.splitlines()[0], photos=2000, batches=8, batch_size=64)
    with tempfile.TemporaryDirectory() as folder:
        places = write(Path(folder), arguments.photos)
        sources = {name: keras_vit.open_source(place) for name, place in places.items()}
        rows = table(measure(sources, arguments))
    write_csv(arguments.csv, rows)


def write(folder, count):
    """Parts of the two photos of scikit-learn, all for training, as a table, and the same as shards; places by name."""
    from sklearn.datasets import load_sample_images

    photos, rng = load_sample_images().images, np.random.default_rng(0)
    lines = ["path,label,split"]
    (folder / "photos").mkdir()
    for number in range(count):
        photo = photos[number % 2]
        y, x = (rng.integers(0, have - want + 1) for have, want in zip(photo.shape, SIDES, strict=False))
        jpeg = tf.io.encode_jpeg(photo[y : y + SIDES[0], x : x + SIDES[1]], quality=90)
        tf.io.write_file(str(folder / "photos" / f"{number:06}.jpg"), jpeg)
        lines.append(f"photos/{number:06}.jpg,{CLASSES[number % 2]},train")
    (folder / "table.csv").write_text("\n".join(lines) + "\n")
    places = {"folder": folder / "table.csv"}
    size = sum(file.stat().st_size for file in (folder / "photos").iterdir())
    source = keras_vit.open_source(places["folder"])
    for name in SHARD_FORMATS:
        places[name] = folder / name
        keras_vit.pack(source, places[name], format=name, shard_bytes=size // SHARDS)
    places["parquet, snappy"] = compressed(places["parquet"], folder / "snappy")
    return places


def compressed(plain, folder):
    import pyarrow.parquet as pq

    folder.mkdir()
    for file in plain.glob("*.parquet"):
        pq.write_table(pq.read_table(file), folder / file.name, compression="snappy")
    return folder


def measure(sources, arguments):
    """Milliseconds of processor time an image takes, in lists by name."""
    record = keras_vit.Preprocessing(image_size=SIZE)
    loaders = {
        name: iter(
            keras_vit.load_dataset(source, batch_size=arguments.batch_size, preprocessing=record, training=True, seed=1)
        )
        for name, source in sources.items()
    }
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


def table(found):
    """Prints a row for each kind, and gives them."""
    rows = []
    for name, times in found.items():
        ratio = statistics.median(other / own for own, other in zip(times, found["folder"], strict=True))
        row = {"shards": name, "ms_an_image": round(statistics.median(times), 3), "ratio": round(ratio, 2)}
        rows.append(row)
        print(f"{name:16}{row['ms_an_image']:8.3f}{row['ratio']:8.2f}", flush=True)
    return rows


if __name__ == "__main__":
    main()
