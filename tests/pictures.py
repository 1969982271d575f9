"""Files that cameras, scanners and mishaps make, for the tests of the data room."""

import io
import struct
import zlib

import numpy as np
from PIL import Image


def picture(height=45, width=67, channels=3, seed=0):
    """Smooth random colours, uint8 `(H, W, C)`, as a photo compresses."""
    rng = np.random.default_rng(seed)
    coarse = rng.integers(0, 256, (5, 7, channels), dtype="uint8")
    planes = [Image.fromarray(coarse[..., c]).resize((width, height), Image.BICUBIC) for c in range(channels)]
    return np.stack([np.asarray(plane) for plane in planes], -1)


def encoded(pixels, kind="JPEG", **options):
    """Bytes of a file; `pixels` an array, or an image of Pillow."""
    image = pixels if isinstance(pixels, Image.Image) else Image.fromarray(pixels)
    file = io.BytesIO()
    image.save(file, kind, **options)
    return file.getvalue()


def decoded(data, mode="RGB"):
    """What Pillow makes of the bytes."""
    return np.asarray(Image.open(io.BytesIO(data)).convert(mode))


def turned(pixels, orientation, kind="JPEG"):
    """Bytes of a file that asks to be turned."""
    exif = Image.Exif()
    exif[0x0112] = orientation
    return encoded(pixels, kind, exif=exif.tobytes(), **({"quality": 95} if kind == "JPEG" else {}))


def sixteen_bit():
    """Pixels `(H, W)` of 16 bits, and their PNG."""
    pixels = (np.arange(45 * 67).reshape(45, 67) * 21).astype("uint16")
    return pixels, encoded(pixels, "PNG")


def forged_png(height, width):
    """A PNG whose header declares any size, over the data of a small one."""
    data = encoded(picture(), "PNG")
    return data[:8] + chunk(b"IHDR", struct.pack(">II", width, height) + data[24:29]) + data[33:]


def chunk(kind, content):
    """One chunk of a PNG."""
    return struct.pack(">I", len(content)) + kind + content + struct.pack(">I", zlib.crc32(kind + content))


def disguised(data, kind=b"abCd"):
    """A PNG with a chunk before its header that looks as the header of a small one."""
    return data[:8] + chunk(kind, struct.pack(">II", 7, 5) + data[24:29]) + data[8:]


def with_texts(data, count):
    """A PNG with texts that are a thousand times as long when they are unpacked, 7 MB each."""
    return data[:33] + chunk(b"zTXt", b"a\0\0" + zlib.compress(bytes(7 * 2**20), 9)) * count + data[33:]


def with_scans(data, count):
    """A progressive JPEG whose last scan comes again, `count` in all."""
    last = data[data.rindex(b"\xff\xda") : -2]
    return data[:-2] + last * (count - data.count(b"\xff\xda")) + data[-2:]


def write_photos(folder, classes=("ash", "birch", "cedar"), each=5, seed=0):
    """Class folders of small JPEGs and PNGs, all different."""
    for label, name in enumerate(classes):
        (folder / name).mkdir(parents=True, exist_ok=True)
        for number in range(each):
            kind = "PNG" if number % 3 == 2 else "JPEG"
            size = (21 + number % 4, 30 + label)
            pixels = picture(*size, seed=[seed, label, number])
            (folder / name / f"{number}.{kind.lower()}").write_bytes(encoded(pixels, kind))
    return folder
