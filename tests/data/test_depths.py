"""Photos with depth maps: how they are read, what is refused before a step, and that crops and flips keep metres."""

import itertools
import os

import numpy as np
import pytest
from PIL import Image, PngImagePlugin
from shape_tables import write_depths

from keras_vit.data import load_dataset, open_source
from keras_vit.data.augmentation import Augmentation
from keras_vit.data.depth_targets import DepthTargets
from keras_vit.images.preprocessing import Preprocessing
from keras_vit.tasks import find_task

RULE = Preprocessing(image_size=(48, 48), resize="squash", interpolation="bilinear", antialias=False)
GIVEN = {"scale": 0.001, "depth_range": (0.5, 9.0)}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return write_depths(tmp_path_factory.mktemp("set") / "walls")


@pytest.fixture
def small(tmp_path):
    return write_depths(tmp_path / "walls", 4)


def metres_of(folder, number):
    """What a file holds, with 0 for what is unknown or beyond 9 m."""
    if number % 2:
        found = np.load(folder / "depths" / f"{number}.npy")
    else:
        with Image.open(folder / "depths" / f"{number}.png") as file:
            found = np.asarray(file).astype("float64") / 1000
    return np.where((found > 0.5) & (found < 9), found, 0)


def test_levels_and_arrays_are_metres_and_others_do_not_count(folder):
    source = open_source(folder, targets=DepthTargets(**GIVEN))
    assert (source.kind, source.class_names, source.sizes) == (
        "depths",
        ("depth",),
        {"train": 24, "validation": 3, "test": 3},
    )
    whole = source.split("train+validation+test")
    for index, path in enumerate(whole.paths[:8]):
        wanted, found = metres_of(folder, int(path.rpartition("/")[2].removesuffix(".png"))), whole.target(index)
        assert found.dtype == np.float32
        np.testing.assert_allclose(found, wanted, rtol=1e-7)
        assert (found[:2] == 0).all()
        assert whole.counts[index].tolist() == [(wanted > 0).sum()]
    assert source.subset(5, order="random").split("train").counts.shape == (5, 1)
    table = folder / "pairs.csv"
    table.write_text("path,depth\n" + "".join(f"images/{n}.png,depths/{n}.{('png', 'npy')[n % 2]}\n" for n in range(4)))
    listed = open_source(table, targets=DepthTargets(**GIVEN)).split("train+validation+test")
    assert listed.size == 4


def test_depths_move_with_their_photos_and_keep_their_metres(folder):
    """Brightness is 260 - 32 m: whatever scale, crop and flip do, a pixel's depth is that of its brightness."""
    source = open_source(folder, targets=DepthTargets(**GIVEN))
    options = {"batch_size": 4, "preprocessing": RULE, "training": True, "seed": 3}
    unknown = []
    for scale in ((1.0, 1.0), (0.6, 2.0)):
        batches = load_dataset(source, augmentation=Augmentation(crop="scale_crop", scale=scale), **options)
        photos, depths = (np.concatenate(part) for part in zip(*itertools.islice(batches, 4), strict=True))
        assert (depths.shape, depths.dtype) == ((16, 48, 48), np.float32)
        levels = ((photos * RULE.std + RULE.mean) * 255).mean(-1)
        off = np.abs((260 - levels) / 32 - depths)[depths > 0]
        assert np.quantile(off, 0.9) < 0.12, scale  # noise is 0.1 m; edges of squares are blurred
        unknown.append((depths == 0).mean())
    assert 0.01 < unknown[0] < 0.05 < unknown[1]  # padding has no depth
    later = next(iter(load_dataset(source, augmentation="depth", start_step=1, **options)))
    again = load_dataset(source, augmentation="depth", **options).skip(1)
    assert all((a.numpy() == b.numpy()).all() for a, b in zip(later, next(iter(again)), strict=True))


def _save_as(folder, number, values, **options):
    (folder / "depths" / f"{number}.npy").unlink(missing_ok=True)
    Image.fromarray(values).save(folder / "depths" / f"{number}.png", **options)


def _inverse(folder):
    note = PngImagePlugin.PngInfo()
    note.add_text("unit", "inverse")
    _save_as(folder, 2, np.ones((40, 56), "uint16"), pnginfo=note)


def _every(change):
    def break_it(folder):
        for path in (folder / "depths").iterdir():
            shape = metres_of(folder, int(path.stem)).shape
            path.unlink()
            np.save(path.with_suffix(".npy"), change(shape).astype("float32"))

    return break_it


def _array(values):
    return lambda folder: np.save(folder / "depths" / "1.npy", values)


def _pipe(folder):
    (folder / "depths" / "1.npy").unlink()
    os.mkfifo(folder / "depths" / "1.npy")


def _of_header(text):
    """A `.npy` file of a header alone."""
    return lambda folder: (folder / "depths" / "1.npy").write_bytes(
        b"\x93NUMPY\1\0" + len(text).to_bytes(2, "little") + text
    )


HUGE = b"{'descr': '<f4', 'fortran_order': False, 'shape': (1099511627776, 4)}\n"
NOTHING = lambda folder: None  # noqa: E731
METRES = {"depth_range": (0.5, 9.0)}


@pytest.mark.parametrize(
    ("break_it", "options", "words"),
    [
        (_array(np.ones((40, 56), "float32")), {}, ["size of its photo", "1.npy of 40x56 for 56x40"]),
        (_array(np.ones((56, 40), "int32")), {}, ["must be metres", "1.npy, int32 of shape (56, 40)"]),
        (_array(np.ones((56, 40, 3), "float32")), {}, ["1.npy, float32 of shape (56, 40, 3)"]),
        (_array(np.full((56, 40), -2.5, "float32")), {}, ["at least 0", "1.npy with -2.5 m"]),
        (lambda folder: (folder / "depths" / "1.npy").write_bytes(b"none"), {}, ["array of NumPy", "1.npy"]),
        (lambda folder: (folder / "depths" / "1.npy").write_bytes(b"PK\3\4junk"), {}, ["array of NumPy", "1.npy"]),
        (_of_header(HUGE), {}, ["array of NumPy", "1.npy"]),
        (_pipe, {}, ["16-bit picture or a .npy file", "1.npy: a pipe"]),
        (lambda folder: _save_as(folder, 2, np.ones((40, 56), "uint8")), {}, ["16 bits", "2.png, a PNG of mode L"]),
        (lambda folder: (folder / "depths" / "2.png").write_bytes(b"none"), {}, ["must be a 16-bit picture", "2.png"]),
        (_inverse, {}, ["2.png, an inverse depth without a unit"]),
        (NOTHING, {"scale": None}, ["need their scale", ".png with levels up to 12,000", "0.001 for millimetres"]),
        (NOTHING, {"depth_range": None}, ["the range that counts", "to 12 m in", "`--depth-range NEAR FAR`"]),
        (NOTHING, {"depth_range": (20.0, 80.0)}, ["lie in the range, 20 to 80 m", "to 12 m", "none inside"]),
        (_every(np.zeros), {"scale": None}, ["must have depths", "4 maps of 0 and NaN alone"]),
        (_every(np.ones), {"scale": None}, ["different depths", "1 m in", "alone"]),
        (_every(lambda shape: 1000 * np.random.rand(*shape)), {}, ["hold metres", "depth_scale=0.001 for .npy"]),
        (lambda folder: (folder / "images" / "1.png").unlink(), {}, ["1 depth map(s) without a photo", "1.npy"]),
        (lambda folder: (folder / "depths" / "1.npy").unlink(), {}, ["1 photo(s) without a depth map", "1.png"]),
        (NOTHING, {"depths": "gone"}, ["`depths` must be a folder.", "gone"]),
    ],
)
def test_faults_of_depth_maps_are_refused_by_file_and_value(small, break_it, options, words):
    break_it(small)
    with pytest.raises(ValueError, match="Received") as error:
        open_source(small, targets=DepthTargets(**GIVEN | options))
    text = str(error.value)
    assert all(word in text for word in words), text


def test_another_unit_and_maps_of_nothing_are_warned_of(small):
    with pytest.warns(UserWarning, match=r"\d\d% of the depths lie beyond the range, 0.5 to 3 m.*to 12 m in"):
        open_source(small, targets=DepthTargets(scale=0.001, depth_range=(0.5, 3.0)))
    np.save(small / "depths" / "1.npy", np.zeros((56, 40), "float32"))
    with pytest.warns(UserWarning, match=r"1 of 4 depth maps have no pixel that counts.*1\.npy"):
        open_source(small, targets=DepthTargets(**GIVEN))


def test_data_without_depths_or_with_other_maps_are_refused(small):
    source = open_source(small, targets=DepthTargets(**GIVEN))
    with pytest.raises(ValueError, match="each photo must have a depth map, in a second folder"):
        open_source(small / "images", targets=DepthTargets(**GIVEN))
    with pytest.raises(ValueError, match=r"each photo must have a mask.*\n.*\(depths\)"):
        open_source(source, targets=find_task("segmentation").targets())
    with pytest.raises(ValueError, match=r"\(0\.5, 9\.0\) m for depth_range=\(0\.5, 8\.0\)"):
        open_source(source, targets=DepthTargets(scale=0.001, depth_range=(0.5, 8.0)))
