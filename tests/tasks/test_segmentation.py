"""A run of segmentation from photos and masks to its report, resumption and answers; its figures by NumPy alone."""

import json

import keras
import numpy as np
import pytest
from conftest import assert_one_line, numpy, tiny_config
from PIL import Image
from shape_tables import save_palette, write_masks
from stopped_runs import Died, Dying

import keras_vit
import keras_vit.runs.finetune as module
from keras_vit.analysis.overlay import class_colors, paint, side_by_side
from keras_vit.dense import CrossEntropy, Dice, SegmentationIoU, cross_entropy, resize
from keras_vit.evaluation.segmentation import classes_at
from keras_vit.pages.html import picture_uri
from keras_vit.tasks import find_task, task_of_model
from keras_vit.tasks.segmentation import Segmentation

NAMES = ("ground", "red", "blue")
OPTIONS = {"image_size": (40, 48), "batch_size": 8, "epochs": 3, "learning_rate": 0.02, "checkpoint_every": 2}


def run_of(folder, out, **changes):
    printed = []
    options = OPTIONS | {"model": tiny_config(num_layers=2), "class_names": "ground,red,blue"} | changes
    return module.finetune(folder, out, task="segmentation", print_fn=printed.append, **options), printed


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """Folder of the data, result and lines of a run."""
    folder = tmp_path_factory.mktemp("set")
    data = write_masks(folder / "squares")
    return data, *run_of(data, folder / "run", colors="#777777,#ff0000,#0000ff")


def masks_of(data, split):
    return [split.target(number) for number in range(split.size)]


def test_figures_of_a_run_are_those_of_numpy_at_the_masks_own_sizes(finished):
    data, result, _ = finished
    facts = json.loads((result.out / "result.json").read_text())
    source = keras_vit.open_source(data, targets=result.task.targets())
    split, both, either, right, count, losses = source.split("test"), np.zeros(3), np.zeros(3), 0, 0, []
    for number in range(split.size):
        pixels, mask = split.pixels(number), split.target(number)
        logits = numpy(result.model(result.model.preprocessing(pixels)[None]))
        answer = numpy(resize(logits, mask.shape))[0].argmax(-1)
        valid = mask != 255
        for place in range(3):
            both[place] += (valid & (mask == place) & (answer == place)).sum()
            either[place] += (valid & ((mask == place) | (answer == place))).sum()
        right, count = right + (valid & (mask == answer)).sum(), count + valid.sum()
    assert facts["test_mean_iou"] == pytest.approx((both / either).mean(), abs=2e-3)  # equal logits within rounding
    assert facts["pixel_accuracy"] == pytest.approx(right / count, abs=2e-3)
    assert [each["name"] for each in facts["per_class"]] == list(NAMES)
    assert [each["iou"] for each in facts["per_class"]] == pytest.approx(both / either, abs=2e-3)
    shares = np.bincount(np.concatenate([mask[mask != 255] for mask in masks_of(data, split)]), minlength=3)
    assert [each["share"] for each in facts["per_class"]] == pytest.approx(shares / shares.sum())
    batches = keras_vit.load_dataset(source, "test", batch_size=3, preprocessing=result.model.preprocessing)
    for images, masks in batches:
        scores = numpy(result.model(images)).astype("float64")
        scores -= np.log(np.exp(scores).sum(-1, keepdims=True))
        known = np.where(masks == 255, 0, masks)
        losses += list(-np.take_along_axis(scores, known[..., None], -1)[..., 0][numpy(masks) != 255])
    assert facts["test_loss"] == pytest.approx(np.mean(losses), rel=1e-4)
    worst = [answer.iou for answer in result.evaluation.worst]
    assert len(worst) == 3
    assert worst == sorted(worst)
    with pytest.raises(ValueError, match="in the order of the model's outputs"):
        result.task.evaluate(result.model, data, names=("ground", "blue", "red"))


def test_run_learns_with_a_frozen_encoder_and_the_best_epoch_is_by_mean_iou(finished):
    _, result, printed = finished
    rows = np.genfromtxt(result.out / "metrics.csv", delimiter=",", names=True)
    facts = json.loads((result.out / "result.json").read_text())
    assert facts["best_validation_mean_iou"] == rows["val_mean_iou"].max()
    assert rows["loss"][-1] < 0.8 * rows["loss"][0]
    assert any("learn; images of 40x48x3" in line for line in printed)
    config = json.loads((result.out / "config.json").read_text())
    assert config["arguments"]["trainable"] == "head"
    assert config["augmentation"]["crop"] == "scale_crop"
    learned = {weight.path.partition("/")[0] for weight in result.model.trainable_weights}
    assert learned == {"segmentation_head"}
    assert result.model.class_names == NAMES
    assert task_of_model(result.model).name == "segmentation"


NIGHTLY = pytest.mark.nightly


@pytest.mark.parametrize(
    "head", ["upernet", pytest.param("dpt", marks=NIGHTLY), pytest.param("segmenter", marks=NIGHTLY)]
)
def test_head_that_is_named_learns_and_the_run_opens_again(finished, tmp_path, head):
    data, linear, _ = finished
    result, _ = run_of(
        data, tmp_path / "run", map_head=head, model=tiny_config(num_layers=4), epochs=2, learning_rate=0.005
    )
    rows = np.genfromtxt(result.out / "metrics.csv", delimiter=",", names=True)
    assert rows["loss"][-1] < 0.9 * rows["loss"][0]
    assert {weight.path.partition("/")[0] for weight in result.model.trainable_weights} == {"segmentation_head"}
    kinds = [type(each.model.get_layer("segmentation_head")).__name__ for each in (result, linear)]
    assert kinds == [
        {"upernet": "UPerNetHead", "dpt": "DPTHead", "segmenter": "MaskTransformerHead"}[head],
        "LinearHead",
    ]
    again, photo = keras.models.load_model(result.out / "best.keras"), np.ones((1, 40, 48, 3), "float32")
    np.testing.assert_array_equal(numpy(again(photo)), numpy(result.model(photo)))


def test_killed_run_goes_on_to_the_same_numbers(finished, tmp_path, monkeypatch):
    data, result, _ = finished
    options = {"colors": "#777777,#ff0000,#0000ff"}
    monkeypatch.setattr(module, "StepFacts", Dying)
    monkeypatch.setattr(Dying, "at", 5)  # the second of the second epoch
    with pytest.raises(Died):
        run_of(data, tmp_path / "run", **options)
    monkeypatch.setattr(Dying, "at", None)
    with pytest.raises(ValueError, match=r"options\.task: segmentation"):
        run_of(data, tmp_path / "run", average="valid", **options)
    again, printed = run_of(data, tmp_path / "run", resume="must", **options)
    assert any(line.startswith("goes on from step ") for line in printed)
    for name in ("best.keras", "last.keras"):
        weights, others = (keras.models.load_model(each.out / name).weights for each in (result, again))
        assert all((numpy(one) == numpy(other)).all() for one, other in zip(weights, others, strict=True))
    assert {**again.evaluation.summary(), "seconds": 0} == {**result.evaluation.summary(), "seconds": 0}


def test_killed_run_of_panoptic_annotations_has_the_numbers_of_the_same_masks(finished, run, tmp_path, monkeypatch):
    data, result, _ = finished
    stems = sorted(path.stem for path in (data / "masks").iterdir())
    found = {"images": [], "annotations": [], "categories": [{"id": 2 + 3 * n, "name": NAMES[n]} for n in range(3)]}
    (tmp_path / "squares").mkdir()
    for number, stem in enumerate(stems):
        with Image.open(data / "masks" / f"{stem}.png") as file:
            mask = np.array(file, int)
        ids = np.where(mask == 255, 0, 70_000 + mask)
        levels = np.stack([ids % 256, ids // 256 % 256, ids // 65536], -1).astype("uint8")
        Image.fromarray(levels).save(tmp_path / "squares" / f"{stem}.png")
        found["images"].append(dict(id=number, file_name=f"{stem}.png", height=mask.shape[0], width=mask.shape[1]))
        segments = [{"id": 70_000 + place, "category_id": 2 + 3 * place} for place in range(3)]
        found["annotations"].append({"image_id": number, "file_name": f"{stem}.png", "segments_info": segments})
    file = tmp_path / "squares.json"
    file.write_text(json.dumps(found))
    options = {"colors": "#777777,#ff0000,#0000ff", "masks": str(file), "class_names": None}
    monkeypatch.setattr(module, "StepFacts", Dying)
    monkeypatch.setattr(Dying, "at", 5)
    with pytest.raises(Died):
        run_of(data / "images", tmp_path / "run", **options)
    monkeypatch.setattr(Dying, "at", None)
    again, _ = run_of(data / "images", tmp_path / "run", resume="must", **options)
    weights, others = (keras.models.load_model(each.out / "best.keras").weights for each in (result, again))
    assert all((numpy(one) == numpy(other)).all() for one, other in zip(weights, others, strict=True))
    assert {**again.evaluation.summary(), "seconds": 0} == {**result.evaluation.summary(), "seconds": 0}
    assert "Worst photos" in (again.out / "report.html").read_text()
    code, lines, _ = run("evaluate", result.out, "--data", data / "images", "--masks", file, "--split", "test")
    assert (code, any(f"test mean IoU {result.test_mean_iou:.4f}" in line for line in lines)) == (0, True), lines


def test_windows_measure_what_segment_gives_at_the_photos_own_sizes(finished, run):
    data, result, _ = finished
    source = keras_vit.open_source(data, targets=result.task.targets())
    split, confusion, losses = source.split("test"), np.zeros((3, 3)), []
    for number in range(split.size):
        found = keras_vit.segment(result.model, split.pixels(number), scores=True)
        mask, scores = split.target(number), found.scores.astype("float64")
        for truth in range(3):
            for answer in range(3):
                confusion[truth, answer] += ((mask == truth) & (found.classes == answer)).sum()
        chances = np.exp(scores) / np.exp(scores).sum(-1, keepdims=True)
        losses += [-np.log(chances[y, x, mask[y, x]]) for y, x in zip(*np.nonzero(mask != 255), strict=True)]
    right = np.diag(confusion)
    wanted = (right / (confusion.sum(0) + confusion.sum(1) - right)).mean()
    whole, slid = (
        result.task.evaluate(result.model, source, "test", names=NAMES, windows=windows) for windows in (False, True)
    )
    assert slid.mean_iou == pytest.approx(wanted, abs=1e-9)
    assert slid.loss == pytest.approx(np.mean(losses), rel=1e-5)
    assert abs(whole.mean_iou - wanted) > 1e-3  # whole photos lose their aspect
    code, lines, _ = run("evaluate", result.out, "--windows")
    assert (code, any(f"test mean IoU {wanted:.4f}" in line for line in lines)) == (0, True), lines
    code, _, errors = run("evaluate", result.out, "--windows", "--probe", "knn")
    assert code == 1
    assert_one_line(errors, "`--windows` is for a model of classes or depths of pixels.*--windows and --probe")


def test_report_and_card_show_classes_and_worst_photos(finished):
    data, result, _ = finished
    report, card = ((result.out / name).read_text() for name in ("report.html", "README.md"))
    assert all(f"<td>{name}</td>" in report for name in NAMES)
    assert "Worst photos" in report
    assert report.count("photo, mask, answer and error; IoU") == 3
    assert all(words in card for words in ("image-segmentation", "Mean IoU", *NAMES))
    source, colors = keras_vit.open_source(data, targets=result.task.targets()), class_colors(3, result.task.colors)
    photos = result.task.panel(result.evaluation, source=source).sections[-1].photos
    for photo, found in zip(photos, result.evaluation.worst, strict=True):
        picture = side_by_side(source.pixels("test", found.index), found.mask, found.answer, colors, 255)
        assert photo["picture"] == picture_uri(picture)
        assert photo["place"] == source.split("test").paths[found.index]
        np.testing.assert_array_equal(found.mask, source.split("test").target(found.index))


def test_command_line_trains_evaluates_and_predict_names_the_command_to_use(finished, run, tmp_path):
    data, result, _ = finished
    code, lines, _ = run("evaluate", result.out, "--split", "validation", "--page", tmp_path / "page")
    assert (code, lines[1].startswith("validation mean IoU 0.")) == (0, True)
    assert lines[5].split() == ["class", "share", "IoU", "recall"]
    assert "Mean IoU" in (tmp_path / "page" / "index.html").read_text()
    given = ("--data", data / "images", "--masks", data / "masks", "--split", "test")
    code, lines, _ = run("evaluate", result.out / "best.keras", *given)
    assert (code, any(f"test mean IoU {result.evaluation.mean_iou:.4f}" in line for line in lines)) == (0, True), lines
    code, _, errors = run("predict", data / "images" / "0.png", "--model", result.out)
    assert code == 1
    assert_one_line(errors, f"Take `keras-vit segment PHOTO --model {result.out} --out FOLDER`")
    code, lines, error = run("export", result.out, tmp_path / "a.onnx")
    assert (code, any("same best class" in line for line in lines)) == (0, True), error
    assert run("look", result.out, data / "images" / "0.png", "--out", tmp_path / "seen")[0] == 0
    assert "share of pixels" in (tmp_path / "seen" / "index.html").read_text()


def test_both_denominators_and_weights_are_those_of_the_whole_batch():
    """Of "all" the mean over parts of a batch is the batch's, so that devices may share it."""
    rng = np.random.default_rng(0)
    logits, labels = rng.normal(size=(4, 5, 6, 3)).astype("float32"), rng.integers(0, 3, (4, 5, 6))
    labels[rng.random(labels.shape) < 0.3] = 255
    weights = [1.0, 2.0, 0.5]
    scores = logits - np.log(np.exp(logits).sum(-1, keepdims=True))
    known = labels != 255
    each = -np.take_along_axis(scores, np.where(known, labels, 0)[..., None], -1)[..., 0]
    weighted = each * np.array(weights)[np.where(known, labels, 0)] * known
    loss = CrossEntropy(average="all", class_weights=weights)
    assert float(loss(labels, logits)) == pytest.approx(weighted.sum() / labels.size, rel=1e-5)
    halves = [float(loss(labels[part], logits[part])) for part in (slice(0, 2), slice(2, 4))]
    assert np.mean(halves) == pytest.approx(float(loss(labels, logits)), rel=1e-5)
    padded = float(loss(labels, logits, sample_weight=np.array([1, 1, 1, 0], "float32")))
    assert padded == pytest.approx(weighted[:3].sum() / labels.size, rel=1e-5)
    valid = float(CrossEntropy(average="valid")(labels, logits))
    assert valid == pytest.approx((each * known).sum() / known.sum(), rel=1e-5)
    three = float(CrossEntropy(average="valid")(labels, logits, sample_weight=np.array([1, 1, 1, 0], "float32")))
    assert three == pytest.approx((each * known)[:3].sum() / known[:3].sum(), rel=1e-5)
    first, rest = (float(Dice()(labels[part], logits[part])) for part in (slice(0, 3), slice(3, 4)))
    assert float(Dice()(labels, logits)) == pytest.approx((3 * first + rest) / 4, rel=1e-5)
    filled = float(Dice()(labels, logits, sample_weight=np.array([1, 1, 1, 0], "float32")))
    assert filled == pytest.approx(0.75 * first, rel=1e-5)  # the batch is divided by all its places, as Keras does
    assert float(cross_entropy(logits, labels, average="all")) == pytest.approx((each * known).mean(), rel=1e-5)
    again = CrossEntropy.from_config(loss.get_config())
    assert float(again(labels, logits)) == float(loss(labels, logits))


def test_metric_of_an_epoch_is_one_confusion_matrix():
    rng = np.random.default_rng(1)
    metric, pairs = SegmentationIoU(4), []
    for _ in range(3):
        logits, labels = rng.normal(size=(2, 7, 5, 4)).astype("float32"), rng.integers(0, 3, (2, 7, 5))
        labels[:, 0] = 255
        metric.update_state(labels, logits)
        pairs.append((labels[labels != 255], logits.argmax(-1)[labels != 255]))
    truth, found = (np.concatenate(part) for part in zip(*pairs, strict=True))
    both = np.array([((truth == k) & (found == k)).sum() for k in range(4)])
    either = np.array([((truth == k) | (found == k)).sum() for k in range(4)])
    assert float(metric.result()) == pytest.approx((both / either).mean(), rel=1e-6)


@pytest.mark.parametrize("size", [(7, 9), (3, 4), (33, 20), (5, 5)])
def test_classes_at_another_size_are_those_of_resized_logits(size):
    logits = np.random.default_rng(2).normal(size=(5, 5, 6)).astype("float32")
    wanted = numpy(resize(logits[None], size))[0].argmax(-1)
    assert (classes_at(logits, size) == wanted).mean() > 0.995


def test_pictures_show_what_is_right_wrong_and_not_counted():
    colors = class_colors(3)
    np.testing.assert_array_equal(colors, [[0, 0, 0], [128, 0, 0], [0, 128, 0]])  # PASCAL VOC's palette
    np.testing.assert_array_equal(class_colors(2, ["#ff8800", "#000102"]), [[255, 136, 0], [0, 1, 2]])
    mask, answer = np.array([[0, 1], [255, 2]]), np.array([[0, 2], [1, 2]])
    np.testing.assert_array_equal(paint(mask, colors)[:, :, 0], [[0, 128], [0, 0]])
    picture = side_by_side(np.full((4, 4, 3), 9, "uint8"), mask, answer, colors, 255)
    assert picture.shape == (2, 20, 3)
    right, wrong = picture[0, -2], picture[0, -1]
    assert (right[1] > right[0], wrong[0] > wrong[1], picture[1, -2].tolist()) == (True, True, [0, 0, 0])


def test_names_and_colors_come_from_a_file(tmp_path):
    (tmp_path / "names.txt").write_text("ground\nred\n\n")
    (tmp_path / "names.csv").write_text("name,color\nground,#000000\nred,#ff0000\n")
    assert Segmentation(class_names=tmp_path / "names.txt").class_names == ("ground", "red")
    (tmp_path / "names.txt").write_text("0 ground\n1 red\n")
    with pytest.warns(UserWarning, match="begin with numbers, which are read as part of them, as '0 ground'"):
        assert Segmentation(class_names=tmp_path / "names.txt").class_names == ("0 ground", "1 red")
    (tmp_path / "names.txt").write_text("ground\n\nred\n")
    with pytest.raises(ValueError, match=r"names\.txt', whose line 2 is empty"):
        Segmentation(class_names=tmp_path / "names.txt")
    task = Segmentation(class_names=str(tmp_path / "names.csv"))
    assert (task.class_names, task.colors) == (("ground", "red"), ("#000000", "#ff0000"))
    assert find_task(json.loads(json.dumps(task.facts()))) == task


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"map_head": "maskformer"}, "map_head"),
        ({"map_head": "eomt", "average": "valid"}, "average='valid'"),
        ({"map_head": "eomt", "class_weights": "balanced"}, "class_weights='balanced'"),
        ({"map_head": "dpt"}, "a head of 4 taps needs as many blocks"),
        ({"average": "some"}, "average"),
        ({"class_names": "ground"}, "two different names"),
        ({"class_names": "ground,red,red"}, "'red' twice"),
        ({"colors": "red,blue"}, "#ff8800"),
        ({"class_names": "gone.txt"}, "gone.txt"),
        ({"accumulation_steps": 2, "batch_size": 4}, "accumulation_steps"),
        ({"lora_rank": 2}, "lora_rank"),
        ({"augmentation": "inception"}, "Received: an augmentation of photos alone"),
        ({"model": "R50x1", "weights": None}, "ResNet"),
        ({"class_weights": {"ground": 1.0}}, "none for 'red'"),
        ({"colors": "#000000"}, "`colors` must be one for each class"),
    ],
)
def test_wrong_options_are_refused_before_anything_is_written(finished, tmp_path, options, words):
    data, _, _ = finished
    with pytest.raises(ValueError, match="Received") as error:
        run_of(data, tmp_path / "run", **options)
    assert words in str(error.value)
    assert not (tmp_path / "run").exists()


def test_split_without_a_pixel_that_counts_is_refused_before_a_run_and_a_measurement(finished, tmp_path):
    _, result, _ = finished
    data, out = write_masks(tmp_path / "squares"), tmp_path / "run"
    for path in keras_vit.open_source(data, targets=result.task.targets()).split("test").paths:
        save_palette(
            data / "masks" / path.rpartition("/")[2], np.full(keras_vit.read_image(path).shape[:2], 255, "uint8")
        )
    for call in (lambda: run_of(data, out), lambda: result.task.evaluate(result.model, data, "test")):
        with (
            pytest.warns(UserWarning, match="no pixel that counts"),
            pytest.raises(ValueError, match="squares, where each pixel of the masks of test is ignored"),
        ):
            call()
    assert not out.exists()


def test_balanced_weights_and_a_head_on_four_blocks(finished):
    data, _, _ = finished
    task = Segmentation(map_head="linear4", class_weights="balanced")
    source = keras_vit.open_source(data, targets=task.targets())
    counts = source.split("train").counts.sum(0)
    np.testing.assert_allclose(task._weights(source), counts.sum() / (3 * counts))
    arguments = {"classes": 3, "name": None, "input_shape": (40, 48, 3), "weights": None}
    model = keras_vit.freeze(task.build(keras_vit.build, tiny_config(num_layers=4), **arguments), "last_blocks", 1)
    assert model.blocks == (1, 2, 3, 4)
    learned = {weight.path.partition("/")[0] for weight in model.trainable_weights}
    assert learned == {"block_03", "encoder_norm", "segmentation_head"}
    assert not any("moving" in weight.path for weight in model.trainable_weights)
