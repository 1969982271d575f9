"""COCO's annotations as masks: pixels of pycocotools, which class lies on top, and every fault by its name."""

import json
import re
import zlib

import numpy as np
import pytest
from PIL import Image

from keras_vit.data import load_dataset, open_source
from keras_vit.data.coco.rasters import draw
from keras_vit.data.mask_targets import MaskTargets
from keras_vit.images.preprocessing import Preprocessing

SIDES = 12, 16
CATEGORIES = [{"id": 7, "name": "dog", "isthing": 1}, {"id": 3, "name": "cat", "isthing": 1}]


def box(left, top, right, bottom):
    return [[left, top, right, top, right, bottom, left, bottom]]


def write(folder, annotations, count=4, **changes):
    """Photos `train/0.png`, ... in `photos`, and their annotations; gives both paths."""
    photos = folder / "photos" / "train"
    photos.mkdir(parents=True, exist_ok=True)
    for number in range(count):
        Image.new("RGB", SIDES[::-1], (number, 0, 0)).save(photos / f"{number}.png")
    images = [{"id": 9 - n, "file_name": f"train/{n}.png", "height": 12, "width": 16} for n in range(count)]
    found = {"images": images, "annotations": annotations, "categories": CATEGORIES} | changes
    (folder / "found.json").write_text(json.dumps(found))
    return folder / "photos", folder / "found.json"


def instance(number=0, category=3, where=None, **more):
    where = box(1, 1, 9, 9) if where is None else where
    return {"id": 50 + number, "image_id": 9 - number, "category_id": category, "segmentation": where, **more}


def instances(count=4):
    return [instance(number) for number in range(count)]


def opened(photos, masks, **options):
    return open_source(photos, targets=MaskTargets(str(masks), **options))


# fmt: off
CRCS = [
    1898088987, 3412399669, 1452531562, 60152422, 4089896382, 1287441277, 4218304841, 2628705062, 1851378466,
    1508262170, 2766225194, 1967931520, 1880198389, 1649802630, 1161775631, 3316602798, 709074813, 1797048258,
    820037137, 989964289, 792674065, 3000883428, 508161133, 2715896389, 2900946607, 3010465100, 3873414341,
    4113188983, 3844386153, 358466033, 729645403, 2276014451, 3929395300, 2389192201, 3190014034, 2574874856,
    1176859673, 1721002879, 2613409773, 3811282560, 3278573475, 3240352950, 3749056547, 1481909314, 3668143917,
    143193577, 697154988, 322926299, 2732886164, 2512641448,
]
# fmt: on


def test_polygons_and_runs_have_the_pixels_of_pycocotools():
    """The CRCs of 50 masks were computed by pycocotools 2.0.11: `decode(merge(frPyObjects(...)))`, seed 0."""
    assert [zlib.crc32(np.packbits(draw(what, *sides)).tobytes()) for what, sides in random_segmentations()] == CRCS


def random_segmentations():
    rng = np.random.default_rng(0)
    for number in range(50):
        height, width = map(int, rng.integers(8, 120, 2))
        if number % 5 < 3:
            ways = [rng.uniform(-0.1, 1.1, (rng.integers(3, 20), 2)) * (width, height) for _ in range(number % 5 + 1)]
            yield [np.round(way, number % 4).ravel().tolist() for way in ways], (height, width)
            continue
        flat = rng.random(height * width) < rng.random()
        turns = np.flatnonzero(np.diff(flat, prepend=False, append=not flat[-1]))
        counts = np.diff(turns, prepend=0).tolist()
        yield {"size": [height, width], "counts": counts if number % 5 == 3 else compressed(counts)}, (height, width)


def compressed(counts):
    """COCO's string of run lengths, by the words of its specification."""
    text = ""
    for place, count in enumerate(counts):
        value, more = count - (counts[place - 2] if place > 2 else 0), True
        while more:
            low, value = value & 31, value >> 5
            more = value != (-1 if low & 16 else 0)
            text += chr(48 + low + 32 * more)
    return text


def test_classes_are_categories_by_id_and_smaller_instances_lie_on_top(tmp_path):
    crowd = {"size": [12, 16], "counts": [0, 24, 168]}
    annotations = [
        instance(0, 3, box(4, 4, 8, 8)),
        instance(0, 7, box(2, 2, 12, 10)),
        instance(0, 7, crowd, iscrowd=1),
        instance(0, 3, box(0, 0, 16, 3)),
        *instances()[1:],
    ]
    source = opened(*write(tmp_path, annotations))
    assert (source.kind, source.class_names) == ("masks", ("background", "cat", "dog"))
    wanted = np.zeros(SIDES, int)
    wanted[:, :2] = 2  # the crowd is smaller than the largest two, and below them nevertheless
    wanted[2:10, 2:12] = 2
    wanted[:3] = 1
    wanted[4:8, 4:8] = 1
    split = source.split("train")
    np.testing.assert_array_equal(split.target(0), wanted)
    np.testing.assert_array_equal(split.counts[0], np.bincount(wanted.ravel(), minlength=3))
    rule = Preprocessing(image_size=SIDES, resize="squash", interpolation="bilinear", antialias=False)
    _, masks = next(iter(load_dataset(source, "train", batch_size=4, preprocessing=rule)))
    np.testing.assert_array_equal(masks[0], wanted)


def write_panoptic(folder, levels, segments):
    (folder / "found").mkdir(exist_ok=True)
    levels = np.asarray(levels)
    Image.fromarray(np.stack([levels % 256, levels // 256 % 256, levels // 65536], -1).astype("uint8")).save(
        folder / "found" / "0.png"
    )
    return write_segments(folder, segments)


def write_segments(folder, segments, count=1):
    return write(folder, [{"image_id": 9, "file_name": "0.png", "segments_info": segments}], count)


def test_panoptic_segments_are_classes_and_void_is_ignored(tmp_path):
    levels = np.zeros(SIDES, int)
    levels[2:], levels[6:] = 300, 70_000
    segments = [{"id": 300, "category_id": 7}, {"id": 70_000, "category_id": 3, "iscrowd": 1}]
    source = opened(*write_panoptic(tmp_path, levels, segments))
    assert source.class_names == ("cat", "dog")
    wanted = np.full(SIDES, 255)
    wanted[2:], wanted[6:] = 1, 0
    np.testing.assert_array_equal(source.split("train").target(0), wanted)
    with pytest.raises(ValueError, match=r"found/0\.png: 1 segment\(s\) that segments_info does not list, as 300"):
        opened(*write_panoptic(tmp_path, levels, segments[1:]))
    Image.new("RGB", (3, 3)).save(tmp_path / "found" / "0.png")
    with pytest.raises(ValueError, match=r"found/0\.png of 3x3 for 12x16"):
        opened(*write_segments(tmp_path, segments))
    (tmp_path / "found" / "0.png").unlink()
    with pytest.raises(ValueError, match=r"a mask must be a picture(?s:.*)found/0\.png"):
        opened(*write_segments(tmp_path, segments))
    with pytest.raises(ValueError, match=r"found\.json: 1 image\(s\) without annotation, as train/1\.png"):
        opened(*write_segments(tmp_path, segments, count=2))


def listed(name, height):
    return {"images": [{"id": 9, "file_name": name, "height": height, "width": 16}]}


RUNS = {"size": [12, 16], "counts": [10, 20]}
FAULTS = {
    "unknown category": ([instance(category=5)], {}, "annotation 50 with the category_id 5, which is unknown"),
    "unknown image": ([{**instance(), "image_id": 77}], {}, "annotation 50 of the image 77, which is not listed"),
    "short runs": ([instance(where=RUNS)], {}, r"0\.png: annotation 50: runs of 30 pixels for an image of 192"),
    "other runs": ([instance(where=RUNS | {"size": [3, 3]})], {}, r"runs of the size \[3, 3\] for an image of"),
    "cut string": ([instance(where=RUNS | {"counts": "`"})], {}, "a string of runs that was cut off"),
    "two points": ([instance(where=[[1, 1, 5, 5]])], {}, "annotation 50: a polygon of 4 numbers"),
    "outside": ([instance(where=box(40, 1, 50, 9))], {}, "a polygon outside of the image, x 40 and y 1"),
    "none": ([instance(where=[])], {}, "annotation 50: no polygon and no runs"),
    "large runs": ([instance(where=RUNS | {"counts": [2**70]})], {}, "neither numbers of pixels nor a string"),
    "long way": ([instance(where=[[0, 0, 9e5, 1, 0, 2, 9e5, 3]])], {}, "a boundary of 3,600,000 pixels"),
    "no list": ([], {"categories": None}, "no list 'categories'"),
    "no key": ([{"id": 1}], {}, "an entry without 'image_id'"),
    "other kind": ([3], {}, "an entry of another kind"),
    "name": ([], listed(3, 12), r"the image 9 with \(3, 12, 16\)"),
    "sides": (
        [],
        listed("a", 10**9),
        "the image 9 of 1000000000x16, and at most",
    ),
    "no size": (
        [],
        listed("a", "a"),
        r"with \('a', 'a', 16\), not a name and two sides",
    ),
    "equal ids": ([], {"categories": CATEGORIES[:1] * 2}, "two with one id of category"),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_fault_of_a_file_is_named(tmp_path, fault):
    annotations, changes, words = FAULTS[fault]
    with pytest.raises(ValueError, match=rf"found\.json(?s:.*){words}"):
        opened(*write(tmp_path, [*annotations, *instances()[1:]], **changes))


def test_file_photos_and_names_that_do_not_fit_are_named(tmp_path):
    photos, file = write(tmp_path, instances())
    for options, words in (
        ({"class_names": ("background", "dog", "cat")}, "Received: background, cat, dog for background, dog, cat"),
        ({"rule": "ade20k"}, "a rule is for masks in files"),
        ({"ignore_class": 2}, "'dog' among them"),
    ):
        with pytest.raises(ValueError, match=words):
            opened(photos, file, **options)
    Image.new("RGB", SIDES).save(photos / "train" / "0.png")
    with pytest.raises(ValueError, match=r"found\.json/train/0\.png of 12x16 for 16x12"):
        opened(photos, file)
    (photos / "train" / "0.png").unlink()
    with pytest.raises(ValueError, match=r"1 that are not there, as .*train/0\.png"):
        opened(photos, file)
    file.write_text('{"images": [')
    with pytest.raises(ValueError, match=re.escape("found.json: the file must be JSON.")):
        opened(photos, file)


def test_photos_that_are_not_listed_and_images_without_instances_are_named(tmp_path):
    photos, file = write(tmp_path, instances(3))
    Image.new("RGB", (4, 4)).save(photos / "more.png")
    with (
        pytest.warns(UserWarning, match=r"has 1 image\(s\) without annotation, as train/3\.png; they are background"),
        pytest.warns(UserWarning, match=r"1 photo\(s\) that .*found\.json does not list are not read: .*more\.png"),
        pytest.warns(UserWarning, match="has 1 of 3 classes: dog"),
    ):
        source = opened(photos, file)
    assert source.split("train").counts[3].tolist() == [192, 0, 0]
