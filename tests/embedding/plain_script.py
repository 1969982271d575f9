"""What a careful user would write by hand: each process reads, decodes, prepares, runs and writes its share of photos.

python plain_script.py photos engine.onnx out index count
"""

import sys
from pathlib import Path

import numpy as np
import onnxruntime
import pyarrow
import pyarrow.parquet
from PIL import Image

SIDE, BATCH, PART = 64, 32, 1000


def prepared(path):
    """Bilinear without antialias to 64 pixels, and to [-1, 1]: the numbers that the model was trained with."""
    pixels = np.asarray(Image.open(path).convert("RGB"))
    places = [(np.arange(SIDE, dtype="float32") + 0.5) * (side / SIDE) - 0.5 for side in pixels.shape[:2]]
    low = [np.floor(place).astype(int) for place in places]
    (top, left), (bottom, right) = (
        low,
        [np.minimum(one + 1, side - 1) for one, side in zip(low, pixels.shape[:2], strict=True)],
    )
    down, along = places[0] - top, places[1] - left
    top, left, down, along = np.maximum(top, 0), np.maximum(left, 0), down[:, None, None], along[:, None]
    lines = [pixels[rows].astype("float32") for rows in (top, bottom)]
    above, below = (line[:, left] + (line[:, right] - line[:, left]) * along.astype("float32") for line in lines)
    return ((above + (below - above) * down.astype("float32")) - 127.5) / 127.5


def main(photos, engine, out, index, count):
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    session = onnxruntime.InferenceSession(engine, options, providers=["CPUExecutionProvider"])
    paths = sorted(map(str, Path(photos).rglob("*.jpg")))
    for number, start in list(enumerate(range(0, len(paths), PART)))[int(index) :: int(count)]:
        names, rows = paths[start : start + PART], []
        for first in range(0, len(names), BATCH):
            images = np.stack([prepared(path) for path in names[first : first + BATCH]])
            rows.append(session.run(["features"], {"images": images})[0])
        vectors = pyarrow.FixedSizeListArray.from_arrays(pyarrow.array(np.concatenate(rows).reshape(-1)), 192)
        pyarrow.parquet.write_table(pyarrow.table({"photo": names, "features": vectors}), f"{out}/{number}.parquet")


if __name__ == "__main__":
    main(*sys.argv[1:])
