"""Which pictures look alike: an exported model's features and scikit-learn's nearest neighbours.

    python examples/similar_images.py [--images FOLDER] [--model RUN] [--neighbours 5] [--out sheet.png]

The model becomes a SavedModel, whose signature `features` takes files as they are and gives one vector for each.
Queries are pictures that the model was not trained on; for each the gallery is ranked by the cosine of the angle
between vectors. By default a small model learns scikit-learn's digits first, which takes a minute; with `--images`
it learns the class folders in there, and with `--model` it is a trained one, and the photos need no classes.
The last line is one JSON object.
"""

import argparse
import dataclasses
import io
import json
import tempfile
import time
from pathlib import Path

import keras
import numpy as np
import tensorflow as tf
from matplotlib.figure import Figure
from PIL import Image, ImageOps
from sklearn.neighbors import NearestNeighbors

import keras_vit

BATCH_SIZE = 32
SUFFIXES = (".jpg", ".jpeg", ".png", ".webp", ".bmp")
SERVED = (b"\xff\xd8\xff", b"\x89PNG")  # starts of the files that a SavedModel reads
RIGHT, WRONG, UNKNOWN = "tab:green", "tab:red", "grey"  # frames of neighbours, by their class


@dataclasses.dataclass(frozen=True)
class Pictures:
    """Files in memory, with their names and, where they are known, classes."""

    files: list[bytes]
    names: list[str]
    classes: list[str] | None = None

    def where(self, chosen):
        """Those at which `chosen` is true."""
        parts = [part and [value for value, kept in zip(part, chosen, strict=True) if kept] for part in self.fields()]
        return Pictures(*parts)

    def fields(self):
        return self.files, self.names, self.classes


def bytes_of(path):
    """A file as a SavedModel reads it; a WebP or BMP becomes a PNG of the same pixels."""
    data = path.read_bytes()
    if data.startswith(SERVED):
        return data
    try:
        return tf.io.encode_png(keras_vit.read_image(path)).numpy()
    except ValueError:  # no photo, or a damaged one, which the model names and leaves out
        return data


def of_split(source, split):
    """The pictures of a labelled set; those that are no files become PNGs."""
    rows = source.rows(split)
    files = [
        bytes_of(Path(row["path"])) if "path" in row else tf.io.encode_png(source.pixels(split, row["index"])).numpy()
        for row in rows
    ]
    names = [Path(row["path"]).name if "path" in row else f"{split} {row['index']}" for row in rows]
    return Pictures(files, names, [row["class"] for row in rows])


def of_folder(folder, queries):
    """Queries, evenly spread, and gallery, of photos without classes."""
    paths = sorted(path for path in folder.rglob("*") if path.suffix.lower() in SUFFIXES)
    if len(paths) <= queries:
        raise SystemExit(f"{folder} must hold more photos than there are queries. Received: {len(paths)}.")
    photos = Pictures([bytes_of(path) for path in paths], [str(path.relative_to(folder)) for path in paths])
    chosen = np.isin(np.arange(len(paths)), np.linspace(0, len(paths) - 1, queries).astype(int))
    return photos.where(chosen), photos.where(~chosen)


def prepare(arguments, folder):
    """The model, the queries and the gallery."""
    classes = [path for path in arguments.images.iterdir() if path.is_dir()] if arguments.images else True
    if arguments.images and not (classes or arguments.model):
        raise SystemExit("photos without class folders need a trained model: pass --model RUN")
    if not classes:
        return trained(arguments.model), *of_folder(arguments.images, arguments.queries)
    source = keras_vit.open_source(arguments.images or "digits", seed=arguments.seed)
    if arguments.model:
        model = trained(arguments.model)
    else:
        model = keras_vit.finetune(source, folder / "run", epochs=arguments.epochs, seed=arguments.seed).model
    held_out = "test" if source.sizes.get("test") else "validation"
    return model, of_split(source, held_out), of_split(source, "train")


def trained(path):
    """The model of a run's folder, or of a file."""
    return keras.saving.load_model(path / "best.keras" if path.is_dir() else path)


def represent(features, pictures):
    """One vector for each picture, `(n, D)`, and the pictures, without those that the model refuses."""
    vectors, statuses = [], []
    for start in range(0, len(pictures.files), BATCH_SIZE):
        answer = features(image_bytes=tf.constant(pictures.files[start : start + BATCH_SIZE]))
        vectors.append(answer["features"].numpy())
        statuses += [status.decode() for status in answer["status"].numpy()]
    for name, status in zip(pictures.names, statuses, strict=True):
        if status != "ok":
            print(f"left out: {name}: {status}")
    valid = np.array(statuses) == "ok"
    return np.concatenate(vectors)[valid], pictures.where(valid)


def precision(queries, gallery, found):
    """Share of neighbours of the query's class, and what neighbours by lot would have."""
    classes = np.array(gallery.classes)
    same = classes[found] == np.array(queries.classes)[:, None]  # (n, k)
    chance = np.mean([np.mean(classes == name) for name in queries.classes])
    return float(same.mean()), float(chance)


def tell(queries, gallery, found, distances, rows):
    """Prints the neighbours of the first queries."""

    def title(pictures, index):
        return pictures.names[index] + (f" ({pictures.classes[index]})" if pictures.classes else "")

    for query in range(min(rows, len(queries.names))):
        answers = [
            f"{title(gallery, index)} {1 - distance:.3f}"
            for index, distance in zip(found[query], distances[query], strict=True)
        ]
        print(f"{title(queries, query)}: {', '.join(answers)}")


def draw(queries, gallery, found, distances, rows, path):
    """A row for each of the first queries: the picture, and its neighbours from left to right."""
    rows, columns = min(rows, len(queries.files)), found.shape[1] + 1
    figure = Figure(figsize=(1.4 * columns, 1.6 * rows), layout="constrained")
    axes = figure.subplots(rows, columns, squeeze=False)
    for query, line in enumerate(axes):
        label = queries.classes and queries.classes[query]
        show(line[0], queries.files[query], f"query {label or ''}", "black")
        for place, index, distance in zip(line[1:], found[query], distances[query], strict=True):
            other = gallery.classes and gallery.classes[index]
            colour = UNKNOWN if label is None else RIGHT if other == label else WRONG
            show(place, gallery.files[index], f"{other or ''} {1 - distance:.2f}", colour)
    figure.savefig(path, dpi=110)


def show(axes, file, title, colour):
    picture = ImageOps.exif_transpose(Image.open(io.BytesIO(file)))  # upright, as the model saw it
    picture.thumbnail((256, 256))
    axes.imshow(picture.convert("RGB"))
    axes.set_title(title.strip(), fontsize=9)
    axes.set(xticks=[], yticks=[])
    for spine in axes.spines.values():
        spine.set(color=colour, linewidth=3)


def parse():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--images", type=Path, help="folder of photos; the digits if left out")
    parser.add_argument("--model", type=Path, help="folder of a run, or a .keras file; trained first if left out")
    parser.add_argument("--neighbours", type=int, default=5)
    parser.add_argument("--queries", type=int, default=8, help="rows of the sheet")
    parser.add_argument("--epochs", type=int, default=8)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, default=Path("similar_images.png"))
    arguments = parser.parse_args()
    for name in ("neighbours", "queries", "epochs"):
        if getattr(arguments, name) < 1:
            parser.error(f"--{name} must be at least 1")
    return arguments


def main():
    arguments, began = parse(), time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        model, queries, gallery = prepare(arguments, Path(folder))
        report = keras_vit.export(model, Path(folder) / "served")
        print(report.table(), flush=True)
        features = tf.saved_model.load(str(report.path)).signatures["features"]
        wanted, queries = represent(features, queries)
        stored, gallery = represent(features, gallery)
    if not len(wanted) or len(stored) < arguments.neighbours:
        raise SystemExit(
            f"a search needs a query, and as many other pictures as neighbours, {arguments.neighbours}.\n"
            f"Received: {len(wanted)} and {len(stored)} that can be read. Choose other --queries or --neighbours."
        )
    search = NearestNeighbors(n_neighbors=arguments.neighbours, metric="cosine").fit(stored)
    distances, found = search.kneighbors(wanted)
    tell(queries, gallery, found, distances, arguments.queries)
    draw(queries, gallery, found, distances, arguments.queries, arguments.out)
    result = {"queries": len(queries.files), "gallery": len(gallery.files), "neighbours": arguments.neighbours}
    if queries.classes:
        share, chance = precision(queries, gallery, found)
        result |= {"precision": round(share, 4), "chance": round(chance, 4)}
    print(json.dumps(result | {"sheet": str(arguments.out), "seconds": round(time.monotonic() - began, 1)}))


if __name__ == "__main__":
    main()
