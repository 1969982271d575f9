import json
import struct
import zlib
from pathlib import Path

import pytest
from conftest import make_tiny, run_python
from exporting.served import make_job
from pictures import chunk, disguised, encoded, picture, turned, with_scans, with_texts
from PIL import Image

from keras_vit.exporting.serving_inputs import MAX_SIDE, SEVERAL_SCANS, STATUSES
from keras_vit.exporting.serving_inputs import write_signatures as write
from keras_vit.exporting.spec import MAX_BYTES, MAX_PIXELS

MEGABYTES = 100  # what hostile files may add to the memory of a server

HUNT = """
import json, random, sys
sys.path.insert(0, {tests!r})
for name in ("keras_vit", "keras"): sys.modules[name] = None
import tensorflow as tf
import mutations
place, folder, count = sys.argv[1], sys.argv[2], int(sys.argv[3])
names = ("jpeg", "progressive", "cmyk", "turned", "png", "interlaced", "grey")
originals = [open(f"{{folder}}/{{name}}", "rb").read() for name in names]
bombs = [open(f"{{folder}}/{{name}}", "rb").read() for name in sys.argv[4:]]
answer = tf.saved_model.load(place).signatures["serving_default"]
changes = [mutations.flip_bits, mutations.overwrite_run, mutations.truncate, mutations.splice, mutations.cut_out]
rng, statuses, done, changed = random.Random(5), {{}}, 0, 0
alone = [answer(image_bytes=tf.constant([file] * 8)) for file in originals]
base = mutations.peak()
while done < count:
    batch, turn = [], rng.randrange(len(originals))
    for _ in range(7):
        data = bytearray(rng.choice(originals))
        for _ in range(rng.choice((1, 1, 2, 4))):
            rng.choice(changes)(rng, data, None)
            data = data or bytearray(1)
        batch.append(bytes(data))
    found = answer(image_bytes=tf.constant([originals[turn], *batch]))
    changed += any(bool(tf.reduce_any(found[name][0] != alone[turn][name][0])) for name in found)
    for status in found["status"].numpy().tolist():
        statuses[status.decode()] = statuses.get(status.decode(), 0) + 1
    done += 7
mutated = (mutations.peak() - base) / 2**20
sizes = [answer(image_bytes=tf.constant([bomb] * 2))["status"].numpy()[0].decode() for bomb in bombs]
answer(image_bytes=tf.constant(bombs * 2))
bombed = (mutations.peak() - base) / 2**20
print(json.dumps([statuses, changed, mutated, sizes, bombed]))
"""


BOMBS = {
    "bomb": "too many pixels",
    "disguised": "not a JPEG or PNG",
    "largest": "ok",
    "largest_progressive": "ok",
    "tall": "ok",
    "texts": "ok",
    "scans": "too many parts",
}


def grey_png(height, width, texts=0):
    """A whole PNG of nothing, which takes thousands of times its size when decoded, and so do its texts."""
    packer, row = zlib.compressobj(9), bytes(1 + (width + 7) // 8)
    rows = b"".join(packer.compress(row) for _ in range(height)) + packer.flush()
    header = chunk(b"IHDR", struct.pack(">IIBBBBB", width, height, 1, 0, 0, 0, 0))
    return with_texts(b"\x89PNG\r\n\x1a\n" + header + chunk(b"IDAT", rows) + chunk(b"IEND", b""), texts)


def progressive(side, scans=0):
    """A JPEG of one colour, whose last scan comes some times more."""
    data = encoded(Image.new("RGB", (side, side), "teal"), progressive=True, subsampling=0)
    return with_scans(data, scans) if scans else data


def write_originals(folder):
    pixels, side = picture(61, 83), int(MAX_PIXELS**0.5)
    files = {
        "jpeg": encoded(pixels, quality=80),
        "progressive": encoded(pixels, progressive=True),
        "cmyk": encoded(Image.fromarray(pixels).convert("CMYK")),
        "turned": turned(pixels, 6),
        "png": encoded(pixels, "PNG"),
        "interlaced": turned(pixels, 8, "PNG"),
        "grey": encoded(pixels[..., 0], "PNG"),
        "bomb": grey_png(20000, 20000),
        "disguised": disguised(grey_png(20000, 20000)),
        "largest": grey_png(side, side),
        "largest_progressive": progressive(int((MAX_PIXELS / SEVERAL_SCANS) ** 0.5)),
        "tall": grey_png(MAX_SIDE, MAX_PIXELS // MAX_SIDE),
        "texts": grey_png(41, 67, texts=90),
        "scans": progressive(997, scans=5000),
    }
    for name, data in files.items():
        (folder / name).write_bytes(data)


@pytest.mark.parametrize("count", [210, pytest.param(2002, marks=pytest.mark.slow)])
def test_hostile_files_get_documented_statuses_in_bounded_memory(count, tmp_path):
    write(make_job(make_tiny(), max_bytes=MAX_BYTES, max_pixels=MAX_PIXELS), tmp_path / "1")
    write_originals(tmp_path)
    code = HUNT.format(tests=str(Path(__file__).parents[1]))
    statuses, changed, mutated, sizes, bombed = json.loads(run_python(code, tmp_path / "1", tmp_path, count, *BOMBS))
    print(f"{sum(statuses.values())} files: {statuses}; {mutated:.0f} MB, with bombs {bombed:.0f} MB")
    assert set(statuses) <= set(STATUSES)
    assert {"ok", "damaged"} <= set(statuses)
    assert changed == 0  # a good file beside seven bad ones gets every bit of its answer
    assert sizes == list(BOMBS.values())
    assert mutated < MEGABYTES
    assert bombed < MEGABYTES
