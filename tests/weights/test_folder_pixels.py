"""The image processors of transformers and timm, set up by our folders, against `model.preprocessing`."""

import dataclasses
import json
import os
import subprocess
import sys

import numpy as np
import pytest
from conftest import make_tiny
from PIL import Image
from test_peers import STAND_INS

import keras_vit
from keras_vit.weights.metadata.photo_differences import DIFFERENCES_FILE

SQUARE, TALL, WIDE = (48, 48), (48, 32), (32, 48)
TRANSFORMERS, TIMM = {"rounding": "transformers"}, {"rounding": "timm"}
CROP = {"resize": "crop", "interpolation": "bicubic", "antialias": True, "crop_fraction": 0.9}
# What both processors can do, and what is said of the rest: the folder, the fields of the record, a word of each line.
ALIKE = [
    ("huggingface", SQUARE, {"antialias": True}),
    ("huggingface", TALL, {"antialias": True, "interpolation": "bicubic"}),
    ("huggingface", SQUARE, CROP | TRANSFORMERS),
    ("huggingface", SQUARE, CROP | TRANSFORMERS | {"interpolation": "bilinear", "crop_fraction": 0.7}),
    ("huggingface", SQUARE, CROP | TRANSFORMERS | {"resize": "squash_crop", "crop_fraction": 48 / 56}),
    ("timm", WIDE, {"antialias": True}),
    ("timm", WIDE, {"antialias": True, "crop_fraction": 0.9}),  # which "squash" has no use for
    ("timm", SQUARE, CROP | TIMM),
    ("timm", TALL, CROP | TIMM),
    ("timm", TALL, CROP | TIMM | {"resize": "squash_crop"}),
    ("timm", WIDE, CROP | TIMM | {"interpolation": "bilinear"}),
]
UNLIKE = [
    ("huggingface", SQUARE, {}, ["antialias=False"]),
    ("timm", WIDE, {}, ["antialias=False"]),
    ("huggingface", SQUARE, {"interpolation": "bicubic"}, ["antialias=False"]),
    ("huggingface", TALL, CROP | TRANSFORMERS, ["one size"]),
    ("huggingface", WIDE, CROP | TIMM | {"antialias": False}, ["antialias=False", "rules", "one size"]),
    ("huggingface", SQUARE, CROP | TIMM, ["by those of timm"]),
    ("timm", SQUARE, CROP | TRANSFORMERS, ["by those of transformers"]),
    ("timm", SQUARE, CROP | {"interpolation": "area", "rounding": "big_vision"}, ["averages areas", "big_vision"]),
    ("timm", SQUARE, {"resize": "none"}, ["images as they are"]),
]
FILTERS = {"bilinear": Image.Resampling.BILINEAR, "bicubic": Image.Resampling.BICUBIC}


def photos():
    """Landscape, portrait, square, small and large; noise on waves, which moves by a pixel are seen in."""
    rng = np.random.default_rng(0)
    for height, width in [(97, 150), (150, 97), (111, 111), (21, 30), (30, 21), (24, 24), (301, 533)]:
        waves = np.sin(np.arange(height)[:, None] / 7) + np.cos(np.arange(width)[None] / 5)
        noisy = 127 + 50 * waves[..., None] + rng.normal(0, 30, (height, width, 3))
        yield noisy.clip(0, 255).astype("uint8")


def written(folder, layout, image_size, fields):
    """The JSON of a folder of ours, and the record behind it."""
    model = make_tiny(input_shape=(*image_size, 3), num_layers=1, activation="gelu")
    model.preprocessing = dataclasses.replace(model.preprocessing, **fields)
    keras_vit.save_checkpoint(model, folder, layout)
    name = "config.json" if layout == "timm" else "preprocessor_config.json"
    return json.loads((folder / name).read_text()), model.preprocessing


def centre(image, size, halve):
    (height, width), (rows, columns) = image.shape[:2], size
    if height < rows or width < columns:  # padded with black
        missing = [max(size[axis] - image.shape[axis], 0) for axis in (0, 1)]
        image = np.pad(image, [((side + 1) // 2, side // 2) for side in missing] + [(0, 0)])
    top, left = halve(image.shape[0] - rows), halve(image.shape[1] - columns)
    return image[top : top + rows, left : left + columns]


def resized(image, size, interpolation):
    return np.asarray(Image.fromarray(image).resize(size[::-1], interpolation))


def by_transformers(image, said):
    """`PilBackend` of `image_processing_backends.py`."""
    size, (height, width) = said["size"], image.shape[:2]
    if "shortest_edge" in size:
        short, long = size["shortest_edge"], int(size["shortest_edge"] * max(height, width) / min(height, width))
        new = (long, short) if width <= height else (short, long)
    else:
        new = (size["height"], size["width"])
    image = resized(image, new, said["resample"])
    if not said.get("do_center_crop"):
        return image
    return centre(image, (said["crop_size"]["height"], said["crop_size"]["width"]), lambda margin: margin // 2)


def by_timm(image, config):
    """`transforms_imagenet_eval` of `transforms_factory.py`, with torchvision's `Resize` and `CenterCrop`."""
    said = config["pretrained_cfg"]
    size, (height, width) = tuple(said["input_size"][1:]), image.shape[:2]
    cover = tuple(int(side / said["crop_pct"]) for side in size)
    if said["crop_mode"] == "squash":
        new = cover
    elif cover[0] == cover[1]:
        short, long = cover[0], int(cover[0] * max(height, width) / min(height, width))
        new = (long, short) if width <= height else (short, long)
    else:  # ResizeKeepRatio
        ratio = min(height / cover[0], width / cover[1])
        new = (round(height / ratio), round(width / ratio))
    return centre(resized(image, new, FILTERS[said["interpolation"]]), size, lambda margin: round(margin / 2))


def largest_difference(said, record, prepare):
    levels = [(prepare(image, said), record(image) * 127.5 + 127.5) for image in photos()]
    return max(np.abs(theirs - ours).max() for theirs, ours in levels)


@pytest.mark.parametrize(("layout", "image_size", "fields"), ALIKE)
def test_processor_of_a_folder_agrees_with_our_preprocessing(tmp_path, recwarn, layout, image_size, fields):
    said, record = written(tmp_path / "folder", layout, image_size, fields)
    prepare = by_timm if layout == "timm" else by_transformers
    assert largest_difference(said, record, prepare) <= 2  # Pillow's rounding to grey levels between and after passes
    assert not [warning for warning in recwarn if "photos" in str(warning.message)]
    assert not (tmp_path / "folder" / DIFFERENCES_FILE).exists()


@pytest.mark.parametrize(("layout", "image_size", "fields", "words"), UNLIKE)
def test_what_a_processor_cannot_do_is_said_by_a_warning_and_in_the_folder(tmp_path, layout, image_size, fields, words):
    software = "timm" if layout == "timm" else "transformers"
    with pytest.warns(UserWarning, match=f"{software} prepares photos") as caught:
        said, record = written(tmp_path / "folder", layout, image_size, fields)
    text = (tmp_path / "folder" / DIFFERENCES_FILE).read_text()
    lines = [line for line in text.splitlines() if line.startswith("- ")]
    assert [word in line for word, line in zip(words, lines, strict=True)] == [True] * len(words)
    warned = " ".join(str(warning.message) for warning in caught)
    assert all(line.removeprefix("- ") in warned for line in lines)
    if record.resize != "none":
        assert largest_difference(said, record, by_timm if layout == "timm" else by_transformers) > 2


def test_square_photos_agree_where_a_rectangle_is_cut_out(tmp_path):
    for image_size in (TALL, WIDE):
        said, record = written(tmp_path / str(image_size[0]), "huggingface", image_size, CROP | TRANSFORMERS)
        for image in [image for image in photos() if image.shape[0] == image.shape[1]]:
            np.testing.assert_allclose(by_transformers(image, said), record(image) * 127.5 + 127.5, atol=2)


def test_folder_that_needs_no_words_any_more_has_none(tmp_path):
    written(tmp_path / "folder", "huggingface", SQUARE, {})
    assert (tmp_path / "folder" / DIFFERENCES_FILE).exists()
    written(tmp_path / "folder", "huggingface", SQUARE, {"antialias": True})
    assert not (tmp_path / "folder" / DIFFERENCES_FILE).exists()


PROCESSORS = (
    STAND_INS
    + """
import json
import numpy as np
folder, photos, out, layout = sys.argv[1:]
images = [value for _, value in sorted(np.load(photos).items())]
if layout == "timm":  # its transforms are torchvision's, which has no build for a CPU-only torch: the config alone
    sys.meta_path.insert(0, StandIns())
    import timm
    model = timm.create_model(f"local-dir:{folder}", pretrained=True)
    said = timm.data.resolve_model_data_config(model)
    names = ("input_size", "interpolation", "crop_pct", "crop_mode", "mean", "std")
    print(json.dumps({name: said[name] for name in names}))
else:
    import transformers
    processor = transformers.AutoImageProcessor.from_pretrained(folder, backend="pil")
    done = [processor(image, return_tensors="np")["pixel_values"][0].transpose(1, 2, 0) for image in images]
    np.savez(out, *done)
"""
)


@pytest.mark.peers
@pytest.mark.parametrize(("layout", "image_size", "fields"), ALIKE + [row[:3] for row in UNLIKE[:-1]])
def test_processors_themselves_prepare_as_these_tests_say(tmp_path, layout, image_size, fields):
    said, record = written(tmp_path / "folder", layout, image_size, fields)
    np.savez(tmp_path / "photos.npz", **{f"{index:02}": image for index, image in enumerate(photos())})
    python = os.environ.get("KERAS_VIT_PEERS_PYTHON", sys.executable)
    arguments = [tmp_path / "folder", tmp_path / "photos.npz", tmp_path / "out.npz", layout]
    done = subprocess.run([python, "-c", PROCESSORS, *map(str, arguments)], check=True, capture_output=True, text=True)
    if layout == "timm":
        resolved = json.loads(done.stdout.splitlines()[-1])
        assert {name: said["pretrained_cfg"][name] for name in resolved} == resolved
        return
    theirs = np.load(tmp_path / "out.npz")
    for name, image in zip(theirs.files, photos(), strict=True):
        expected = by_transformers(image, said).astype("float32") / 127.5 - 1
        np.testing.assert_allclose(theirs[name], expected, atol=1e-5)
    print(layout, image_size, fields, f"{largest_difference(said, record, by_transformers):.0f} grey levels")
