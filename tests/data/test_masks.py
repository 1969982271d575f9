"""Photos with masks: how they are found, what is refused before a step, and what augmentation does to both."""

import os
import re
import zlib

import numpy as np
import pytest
from PIL import Image
from shape_tables import save_palette, write_masks

from keras_vit.data import load_dataset, open_source
from keras_vit.data.augmentation import Augmentation
from keras_vit.data.augmentation.masks import distort_colors, scale_crop
from keras_vit.data.mask_targets import MaskTargets, class_shares
from keras_vit.images.preprocessing import Preprocessing

RULE = Preprocessing(image_size=(48, 48), resize="squash", interpolation="bilinear", antialias=False)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return write_masks(tmp_path_factory.mktemp("set") / "squares")


@pytest.fixture
def small(tmp_path):
    return write_masks(tmp_path / "squares", 4)


def mask_of(folder, number):
    with Image.open(folder / "masks" / f"{number}.png") as file:
        return np.array(file)


def test_folder_of_equal_stems_gives_classes_and_their_pixels(folder):
    source = open_source(folder, targets=MaskTargets())
    assert (source.kind, source.class_names) == ("masks", ("0", "1", "2"))
    assert source.sizes == {"train": 24, "validation": 3, "test": 3}
    whole = source.split("train+validation+test")
    numbers = [path.rpartition("/")[2].removesuffix(".png") for path in whole.paths]
    counted = [[(mask_of(folder, number) == place).sum() for place in range(3)] for number in numbers]
    np.testing.assert_array_equal(whole.counts, counted)
    np.testing.assert_array_equal(whole.target(4), mask_of(folder, numbers[4]))
    train = source.split("train").counts.sum(0)
    np.testing.assert_allclose(class_shares(source), train / train.sum())
    assert source.subset(5, order="random").split("train").counts.shape == (5, 3)
    apart = open_source(folder / "images", targets=MaskTargets(str(folder / "masks")))
    assert apart.split("test").paths == source.split("test").paths


def test_folder_that_cannot_be_listed_is_refused(small, monkeypatch):
    """Of both sides alike no pair would be missed."""
    scandir = os.scandir

    def listed(path="."):
        if str(path).endswith("locked"):
            raise PermissionError(13, "Permission denied", path)
        return scandir(path)

    monkeypatch.setattr(os, "scandir", listed)
    for name in ("images", "masks"):
        (small / name / "locked").mkdir()
    with pytest.raises(ValueError, match=r"must be readable(?s:.*)locked"):
        open_source(small, targets=MaskTargets())


def test_pictures_that_are_no_pairs_are_named(small):
    for name in ("images/9.jpg.1", "images/more.zip", "masks/9.png.1"):
        (small / name).touch()
    (small / "images" / "list.txt").touch()
    (small / "annotations").mkdir()
    save(small / "annotations" / "1.png", np.zeros((4, 4), "uint8"))
    with (
        pytest.warns(UserWarning, match=r"2 files not read, as the suffix is not that of a photo: .*images/9\.jpg\.1"),
        pytest.warns(UserWarning, match=r"1 file not read, as the suffix is not that of a photo: .*masks/9\.png\.1"),
        pytest.warns(UserWarning, match=r"pictures in other folders left out: .*annotations\."),
    ):
        open_source(small, targets=MaskTargets())


def test_masks_that_are_turned_and_photos_with_masks_that_may_be_are_named(small):
    turned = Image.Exif()
    turned[0x0112] = 3
    for name, words in (
        ("images", r"1 photo\(s\) are turned upright .* taken to be upright already: .*images/1\.png"),
        ("masks", r"1 mask\(s\) have an EXIF orientation, which is not applied to masks: .*masks/1\.png"),
    ):
        with Image.open(small / name / "1.png") as file:
            file.save(small / name / "1.png", exif=turned)
        with pytest.warns(UserWarning, match=words):
            open_source(small, targets=MaskTargets())


def test_table_and_folders_of_splits_name_the_split(small):
    table = small / "pairs.csv"
    rows = [f"images/{number}.png,masks/{number}.png,{'val' if number else 'train'}" for number in range(3)]
    table.write_text("\n".join(["path,mask,split", *rows]))
    source = open_source(table, targets=MaskTargets())
    assert source.sizes == {"train": 1, "validation": 2}
    assert source.split("train").target(0).shape == (40, 56)
    for name in ("images", "masks"):
        for split, numbers in (("training", (0, 1)), ("validation", (2, 3))):
            (small / name / split).mkdir()
            for number in numbers:
                (small / name / f"{number}.png").rename(small / name / split / f"{number}.png")
    assert open_source(small, targets=MaskTargets()).sizes == {"train": 2, "validation": 2}


def save(path, values):
    Image.fromarray(np.asarray(values)).save(path)


def _every(folder, change):
    for path in (folder / "masks").iterdir():
        with Image.open(path) as file:
            mask = np.array(file)
        save(path, change(mask))


def _swap_sides(folder):
    save_palette(folder / "masks" / "1.png", mask_of(folder, 1).T.copy())


def _value_beyond(folder):
    save_palette(folder / "masks" / "2.png", np.where(mask_of(folder, 2) == 1, 7, mask_of(folder, 2)).astype("uint8"))


def _as_colors(folder):
    with Image.open(folder / "masks" / "3.png") as file:
        picture = file.convert("RGB")
    picture.save(folder / "masks" / "3.png")


def _without_photo(folder):
    (folder / "images" / "1.png").unlink()


def _two_of_a_stem(folder):
    Image.new("RGB", (40, 56)).save(folder / "images" / "1.jpg")


def _lossy(folder):
    Image.fromarray(mask_of(folder, 1)).save(folder / "masks" / "1.jpg")
    (folder / "masks" / "1.png").unlink()


def _no_picture(folder):
    (folder / "masks" / "1.png").write_bytes(b"none")


def _pipe(folder):
    (folder / "masks" / "1.png").unlink()
    os.mkfifo(folder / "masks" / "1.png")


def _huge(folder):
    place = folder / "masks" / "1.png"
    head = b"IHDR" + (50_000).to_bytes(4, "big") * 2 + b"\x08\0\0\0\0"
    rest = place.read_bytes()[33:]
    place.write_bytes(b"\x89PNG\r\n\x1a\n\0\0\0\r" + head + zlib.crc32(head).to_bytes(4, "big") + rest)


NAMES = ("ground", "red", "blue")
WHITE = lambda folder: _every(folder, lambda mask: np.where(mask == 1, 255, 0).astype("uint8"))  # noqa: E731
IGNORED = lambda folder: _every(folder, lambda mask: np.full_like(mask, 255))  # noqa: E731
BINARY = lambda folder: _every(folder, lambda mask: (mask == 1).astype("uint8"))  # noqa: E731
NOTHING = lambda folder: None  # noqa: E731


@pytest.mark.parametrize(
    ("break_it", "options", "words"),
    [
        (_swap_sides, {}, ["size of its photo", "1.png of 40x56 for 56x40", "EXIF"]),
        (_value_beyond, {"class_names": NAMES}, ["classes 0 to 2", "2.png with 7"]),
        (WHITE, {}, ["0 and 255 alone", "masks/", "Write 1 for 255"]),
        (IGNORED, {}, ["4 masks with the levels 255", "no pixel that counts", "masks/"]),
        (_as_colors, {}, ["3.png with 4 colours"]),
        (_without_photo, {}, ["1 mask(s) without a photo", "masks/1.png"]),
        (_two_of_a_stem, {}, ["different stems", "1.jpg and", "1.png"]),
        (BINARY, {"rule": "ade20k"}, ["the class 0 alone", "The rule 'ade20k'"]),
        (_lossy, {}, ["without loss", "1.jpg"]),
        (_no_picture, {}, ["must be a picture", "1.png"]),
        (_pipe, {}, ["must be a picture", "1.png: a pipe"]),
        (_huge, {}, ["must be a picture", "1.png: ", "decompression bomb"]),
        (NOTHING, {"ignore_class": 1}, ["must not be that of a class", "ignore_class=1"]),
        (NOTHING, {"masks": "voc"}, ["the layout voc has the folders", "without JPEGImages"]),
        (NOTHING, {"masks": "gone"}, ["`masks` must be a folder", "gone"]),
    ],
)
def test_faults_of_masks_are_refused_by_file_and_value(small, break_it, options, words):
    break_it(small)
    with pytest.raises(ValueError, match="Received") as error:
        open_source(small, targets=MaskTargets(**options))
    text = str(error.value)
    assert all(word in text for word in words), text


def test_one_mask_of_nothing_and_classes_never_there_are_warned_of(small):
    save_palette(small / "masks" / "1.png", np.full((56, 40), 255, "uint8"))
    with pytest.warns(UserWarning, match=r"1 of 4 masks have no pixel.*1\.png, all 255"):
        open_source(small, targets=MaskTargets())
    save_palette(small / "masks" / "1.png", np.ones((56, 40), "uint8"))
    with pytest.warns(UserWarning, match="no mask of squares has 1 of 4 classes: sky"):
        open_source(small, targets=MaskTargets(class_names=(*NAMES, "sky")))


def test_level_of_two_colors_in_palettes_is_named_with_two_files(small):
    image = Image.fromarray(np.ones((56, 40), "uint8"), "P")
    image.putpalette([0, 0, 0, 0, 255, 0])
    image.save(small / "masks" / "1.png")
    words = r"1 is the colour \(254, 7, 0\) in .*0\.png and \(0, 255, 0\) in .*1\.png"
    with pytest.warns(UserWarning, match=f"{words}|{r'1 is the colour .0, 255, 0. in .*1.png and .254, 7, 0. in'}"):
        open_source(small, targets=MaskTargets())


def test_data_without_masks_are_refused(small):
    with pytest.raises(ValueError, match="each photo must have a mask"):
        open_source(small / "images", targets=MaskTargets())
    (small / "a.csv").write_text("path,label\nimages/0.png,1\n")
    with pytest.raises(ValueError, match="columns path and mask"):
        open_source(small / "a.csv", targets=MaskTargets())
    (small / "a.csv").write_text("path,mask\nimages/0.png,masks/9.png\n")
    with pytest.raises(ValueError, match=r"line 2 of .*'masks/9.png', where no file is"):
        open_source(small / "a.csv", targets=MaskTargets())
    with pytest.raises(ValueError, match="each photo must have a mask"):
        open_source((np.zeros((4, 8, 8, 3), "uint8"), [0, 1, 0, 1]), targets=MaskTargets())


def test_known_layouts(tmp_path):
    """Levels of each data set's files as they are published, to the classes that its scores are of."""
    size = (24, 24)
    ade, voc, city = (tmp_path / name for name in ("ade", "voc", "city"))
    levels = np.arange(16, dtype="uint8").repeat(36).reshape(size)

    def write(path, array, palette=False):
        path.parent.mkdir(parents=True, exist_ok=True)
        save_palette(path, array) if palette else save(path, array)

    for split in ("training", "validation"):
        write(ade / "images" / split / "a.jpg", np.full((*size, 3), 9 + len(split), "uint8"))
        write(ade / "annotations" / split / "a.png", levels)
    for name in ("a", "b"):
        write(voc / "JPEGImages" / f"{name}.jpg", np.full((*size, 3), ord(name), "uint8"))
        write(voc / "SegmentationClass" / f"{name}.png", np.where(levels == 15, 255, levels).astype("uint8"), True)
    lists = voc / "ImageSets" / "Segmentation"
    lists.mkdir(parents=True)
    (lists / "train.txt").write_text("a\n")
    (lists / "val.txt").write_text("b\n")
    for number, split in enumerate(("train", "val")):
        write(city / "leftImg8bit" / split / "x" / "x_1_leftImg8bit.png", np.full((*size, 3), number, "uint8"))
        write(city / "gtFine" / split / "x" / "x_1_gtFine_labelIds.png", levels)
    for folder, layout, wanted, names in (
        (ade, "ade20k", [255, *range(15)], 150),
        (voc, "voc", [*range(15), 255], 21),
        (city, "cityscapes", [255] * 7 + [0, 1, 255, 255, 2, 3, 4, 255, 255], 19),
    ):
        with pytest.warns(UserWarning, match="classes"):
            source = open_source(folder, targets=MaskTargets(layout))
        assert source.sizes == {"train": 1, "validation": 1}
        assert len(source.class_names) == names
        np.testing.assert_array_equal(
            source.split("train").target(0)[levels == levels], np.array(wanted)[levels].ravel()
        )
    (voc / "SegmentationClass" / "b.png").unlink()
    with pytest.raises(ValueError, match=r"1 files that are not there, as .*b\.png"):
        open_source(voc, targets=MaskTargets("voc"))
    write(voc / "SegmentationClassAug" / "a.png", np.ones(size, "uint8"), True)
    write(voc / "SegmentationClassAug" / "b.png", levels % 3, True)
    (lists / "trainaug.txt").write_text("a\nb\n")
    (lists / "val.txt").unlink()
    with pytest.warns(UserWarning, match="classes"):
        split = open_source(voc, targets=MaskTargets("voc")).split("train")
    assert (split.size, split.counts[:, 0].tolist()) == (2, [0, (levels % 3 == 0).sum()])


def test_mask_moves_with_its_photo_and_a_step_decides_both(folder):
    """Squares are recognised by their colours: whatever crop and flip do, the mask has them where the photo has."""
    source = open_source(folder, targets=MaskTargets())
    options = {"batch_size": 4, "preprocessing": RULE, "training": True, "seed": 3}
    plain = Augmentation(crop="scale_crop")
    batches = [batch for batch, _ in zip(load_dataset(source, augmentation=plain, **options), range(4), strict=False)]
    photos, masks = (np.concatenate([each[part] for each in batches]) for part in range(2))
    levels = (photos * RULE.std + RULE.mean) * 255
    assert (masks.shape, masks.dtype, set(np.unique(masks))) == ((16, 48, 48), np.int32, {0, 1, 2, 255})
    red, blue = (levels[..., one] - levels[..., other] > 85 for one, other in ((0, 2), (2, 0)))
    for found, place in ((red, 1), (blue, 2)):
        assert (found & (masks == place)).sum() > 0.9 * (masks == place).sum() > 0
        assert (found & (masks == place)).sum() > 0.85 * (found & (masks != 255)).sum()
    later = next(iter(load_dataset(source, augmentation=plain, start_step=2, **options)))
    assert all((one.numpy() == other.numpy()).all() for one, other in zip(later, batches[2], strict=True))


def test_evaluation_resizes_the_photo_and_takes_the_nearest_label(folder):
    source = open_source(folder, targets=MaskTargets())
    _, masks = next(iter(load_dataset(source, "test", batch_size=3, preprocessing=RULE)))
    for mask, found in zip((source.split("test").target(number) for number in range(3)), masks.numpy(), strict=True):
        rows, columns = (np.floor((np.arange(48) + 0.5) * side / 48).astype(int) for side in mask.shape)
        np.testing.assert_array_equal(found, mask[np.ix_(rows, columns)])


def test_window_is_padded_with_the_ignored_label_and_has_not_too_much_of_a_class():
    """A photo of half the size ends in padding; of one whose classes meet in the middle windows show both."""
    pixels, mask = np.full((20, 30, 3), 100.0, "float32"), np.zeros((20, 30), "int32")
    record = Augmentation(crop="scale_crop", scale=(0.5, 0.5), most_of_one_class=1.0)
    levels, labels = scale_crop(pixels, mask, record, (20, 30), np.array([0, 1]), 255, [7.0, 8.0, 9.0])
    assert (labels.numpy() == 0).sum() == 10 * 15
    assert (labels.numpy()[:10, :15] == 0).all()
    np.testing.assert_allclose(levels.numpy()[labels.numpy() == 255], np.tile([7, 8, 9], (450, 1)))
    wide, halves = np.zeros((40, 160, 3), "float32"), np.zeros((40, 160), "int32")
    halves[:, 84:], halves[:, :8] = 1, 255
    record = Augmentation(crop="scale_crop", scale=(1.0, 1.0))
    shares = []
    for number in range(40):
        _, labels = scale_crop(wide, halves, record, (40, 40), np.array([number, 0]), 255)
        counts = np.bincount(labels.numpy()[labels.numpy() != 255], minlength=2)
        shares.append(counts.max() / counts.sum())
    assert np.mean(np.array(shares) <= 0.75) > 0.7  # of one draw it would be a sixth


def test_colors_stay_levels_and_change_in_most_draws():
    pixels = np.random.default_rng(0).uniform(0, 255, (8, 9, 3)).astype("float32")
    found = [distort_colors(pixels, np.array([number, 5])).numpy() for number in range(16)]
    assert all(each.min() >= 0 and each.max() <= 255.001 for each in found)
    assert sum(not np.allclose(each, pixels, atol=0.01) for each in found) >= 12
    grey = np.linspace(90, 110, 12, dtype="float32").reshape(3, 4, 1)  # which nothing clips
    lines = [np.polyfit(grey.ravel(), distort_colors(grey, np.array([i, 5])).numpy().ravel(), 1) for i in range(64)]
    contrasts, offsets = np.array(lines).T
    assert 20 < (np.abs(contrasts - 1) > 0.01).sum() < 44
    assert 20 < (np.abs(offsets) > 0.5).sum() < 44
    assert 0.499 < contrasts.min() < 0.6 < 1.4 < contrasts.max() < 1.501


@pytest.mark.parametrize(("augmentation", "words"), [("inception", "crop='inception'"), ("augreg-light1", "randaug")])
def test_augmentation_of_photos_alone_is_refused(folder, augmentation, words):
    source = open_source(folder, targets=MaskTargets())
    with pytest.raises(ValueError, match=re.escape(words)):
        load_dataset(source, batch_size=2, preprocessing=RULE, training=True, augmentation=augmentation)
