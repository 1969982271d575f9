"""The task `contrastive`: a run from captions to both towers, its measures against NumPy, and what is refused."""

import io
import json
import shutil
import tarfile
import types

import keras
import numpy as np
import pytest
from conftest import GOLDEN, numpy
from PIL import Image
from stopped_runs import Died, Dying

import keras_vit
import keras_vit.runs.finetune as module
from keras_vit.checks import ArgumentError
from keras_vit.data import open_source
from keras_vit.tasks import find_task
from keras_vit.weights.save import save_towers

pytestmark = pytest.mark.filterwarnings("ignore:.*training captions of:UserWarning")  # one test looks at it
WEIGHTS = GOLDEN / "text" / "towers" / "oc_clip"
COLOURS = ("red", "green", "blue")
OPTIONS = {"weights": WEIGHTS, "batch_size": 8, "epochs": 2, "learning_rate": 1e-3, "checkpoint_every": 2}
TASK = find_task("contrastive")


def picture(number):
    pixels = np.random.default_rng(number).normal(60, 8, (32, 32, 3))
    pixels[4 : 10 + number % 20, 6:26, number % 3] = 240
    return np.clip(pixels, 0, 255).astype("uint8")


def caption(number):
    return f"a {COLOURS[number % 3]} bar, {10 + number % 21} wide"


@pytest.fixture(scope="module")
def table(tmp_path_factory):
    """Forty pictures, of which the last 16 are for validation and test; one of them has two captions."""
    folder = tmp_path_factory.mktemp("pairs")
    lines = ["path,split,caption"]
    for number in range(40):
        Image.fromarray(picture(number)).save(folder / f"{number}.png")
        split = "train" if number < 24 else "validation" if number < 32 else "test"
        lines.append(f'{number}.png,{split},"{caption(number)}"')
    lines.append("39.png,test,nan")
    path = folder / "pairs.csv"
    path.write_text("\n".join(lines) + "\n")
    return path


def run_of(table, out, **changes):
    said = []
    return module.finetune(table, out, task="contrastive", print_fn=said.append, **OPTIONS | changes), said


@pytest.fixture(scope="module")
def finished(table, tmp_path_factory):
    return run_of(table, tmp_path_factory.mktemp("runs") / "run")


def unit(rows):
    rows = np.asarray(rows, "float64")
    return rows / np.linalg.norm(rows, axis=1, keepdims=True)


def test_run_measures_recall_and_loss_as_numpy(finished, table):
    result, said = finished
    facts = json.loads((result.out / "result.json").read_text())
    assert next(iter(facts)) == "test_recall"
    rows = np.genfromtxt(result.out / "metrics.csv", delimiter=",", names=True)
    assert facts["best_validation_recall"] == rows["val_recall"].max()
    numbers, texts = [*range(32, 40), 39], [*map(caption, range(32, 40)), "nan"]
    towers = result.model
    photos = towers.preprocessing(np.stack([picture(number) for number in numbers]).astype("float32"))
    cosines = unit(numpy(towers.image(photos))) @ unit(towers.text.embed(texts)).T
    alike = np.equal.outer(numbers, numbers) | np.equal.outer(texts, texts)
    for way, found in (("image_to_text", cosines), ("text_to_image", cosines.T)):
        ranks = 1 + ((found >= np.diag(found)[:, None]) & ~alike).sum(axis=1)
        assert [facts["recalls"][f"{way}_{k}"] for k in (1, 5, 10)] == [(ranks <= k).mean() for k in (1, 5, 10)]
    assert facts["test_recall"] == pytest.approx(np.mean([*facts["recalls"].values()]))
    logits = np.exp(towers.scale_and_bias()[0]) * cosines
    losses = [np.log(np.exp(each).sum(axis=1)) - np.diag(each) for each in (logits, logits.T)]
    assert facts["test_loss"] == pytest.approx(np.mean(losses), rel=1e-5)
    assert any("a caption for each image; train 24, validation 8, test 9" in line for line in said)
    assert said[-1].endswith(' --classes "cat,dog"')
    again = TASK.evaluate(keras.models.load_model(result.out / "best.keras", compile=False), table, "test")
    assert {**again.summary(), "seconds": 0} == {**result.evaluation.summary(), "seconds": 0}


def test_folder_of_a_run_opens_as_both_towers(finished):
    result, _ = finished
    folder, words = result.out / "model", ["A red bar!", "nan", "two words &amp; more"]
    text = keras_vit.build_text(weights=folder)
    np.testing.assert_array_equal(text.embed(words), result.model.text.embed(words))
    assert text.logit_scale == pytest.approx(result.model.scale_and_bias()[0])
    image = keras_vit.build(weights=folder)
    pixels = image.preprocessing(picture(3).astype("float32"))[None]
    np.testing.assert_array_equal(numpy(image(pixels)), numpy(result.model.image(pixels)))
    assert not numpy(image.get_layer("head").bias).any()
    assert keras_vit.zero_shot(folder, classes=["red", "blue"]).output_shape == (None, 2)
    config = json.loads((folder / "open_clip_config.json").read_text())["model_cfg"]
    assert config == json.loads((WEIGHTS / "open_clip_config.json").read_text())["model_cfg"] | {
        "quick_gelu": False,
        "text_cfg": {"context_length": 24, "width": 32, "heads": 2, "layers": 2, "vocab_size": 664, "mlp_ratio": 4.0},
    }


@pytest.mark.parametrize("name", ["bv_siglip", "hf_tipsv2", "oc_clipa", "other"])
def test_both_towers_are_written_in_the_layout_that_fits(name, tmp_path):
    """SigLIP in transformers' names, TIPS and a plain ViT as OpenCLIP has towers of timm; no config of a usual CLIP."""
    source = WEIGHTS.parent / ("oc_clip" if name == "other" else name)
    text = keras_vit.build_text(weights=source)
    if name == "other":
        image = keras_vit.ViTTi16(num_layers=1, input_shape=(32, 32, 3), include_top=False)
    else:
        image = keras_vit.build(weights=source, include_top=name == "oc_clipa")
    save_towers(image, text, tmp_path / "both", 2.0, -3.0)
    again = keras_vit.build(weights=tmp_path / "both", include_top=name == "oc_clipa")
    pixels = image.preprocessing(keras.ops.convert_to_numpy(np.stack([picture(1)]).astype("float32")))
    np.testing.assert_allclose(numpy(again(pixels)), numpy(image(pixels)), atol=1e-6)
    read = keras_vit.build_text(weights=tmp_path / "both")
    np.testing.assert_array_equal(read.embed(["a Photo!"]), text.embed(["a Photo!"]))
    assert (read.logit_scale, read.logit_bias, again.logit_scale) == pytest.approx((2.0, -3.0, 2.0))
    assert not (tmp_path / "both" / "open_clip_config.json").exists()
    with pytest.raises(FileExistsError):
        save_towers(image, text, tmp_path / "both", 2.0, -3.0)


def test_killed_run_goes_on_to_the_same_numbers(finished, table, tmp_path, monkeypatch):
    result, _ = finished
    monkeypatch.setattr(module, "StepFacts", Dying)
    monkeypatch.setattr(Dying, "at", 5)  # the second of the second epoch, of three
    with pytest.raises(Died):
        run_of(table, tmp_path / "run")
    monkeypatch.setattr(Dying, "at", None)
    again, said = run_of(table, tmp_path / "run", resume="must")
    assert any(line.startswith("goes on from step ") for line in said)
    for name in ("best.keras", "last.keras"):
        weights, others = (keras.models.load_model(each.out / name).weights for each in (result, again))
        assert all((numpy(one) == numpy(other)).all() for one, other in zip(weights, others, strict=True))
    assert {**again.evaluation.summary(), "seconds": 0} == {**result.evaluation.summary(), "seconds": 0}


def test_command_line_evaluates_and_names_what_is_on_photos(finished, table, run, tmp_path):
    result, _ = finished
    code, lines, _ = run("evaluate", result.out, "--split", "validation", "--page", tmp_path / "page")
    assert (code, lines[1].startswith("validation mean recall 0.")) == (0, True)
    assert lines[-2].split()[:4] == ["image", "of", "a", "text"]
    report = (result.out / "report.html").read_text()
    assert "Photos with their nearest captions" in report
    assert caption(32) in report
    assert "keras_vit.zero_shot" in (result.out / "README.md").read_text()
    code, _, error = run("predict", table.parent / "3.png", "--model", result.out)
    assert (code, "--classes" in error[0]) == (1, True)
    words = tmp_path / "words.xml"
    moved = shutil.copy(result.out / "best.keras", tmp_path / "moved.keras")
    code, lines, _ = run("evaluate", moved, "--data", table, "--split", "test")
    assert (code, f"test mean recall {result.evaluation.recall:.4f}" in lines[1]) == (0, True)
    code, _, error = run("export", result.out, words)
    assert (code, "--classes" in error[0], words.exists()) == (1, True, False)
    assert run("export", result.out, words, "--text", "--no-verify")[0] == 0
    assert keras_vit.tokenizer(f"{words}.tokenizer.json").max_length == result.model.text.config.max_length
    code, lines, _ = run("predict", table.parent / "3.png", "--model", result.out, "--classes", "red bar,blue bar")
    assert (code, sorted(line.split()[1] for line in lines[2:])) == (0, ["blue", "red"])
    with pytest.raises(ValueError, match="Leave `--engine` out"):
        TASK.evaluate(types.SimpleNamespace(name="engine"), table)


def test_sigmoid_loss_and_locked_image_tower(table):
    """One step of each, without a run."""
    source = open_source(table, targets=TASK.targets())
    task = find_task({"name": "contrastive", "loss": "sigmoid", "lock_image": True})
    plan = keras_vit.plan("clip", num_images=24, batch_size=8, steps=1, learning_rate=1e-3)
    model = task.prepare(keras_vit.build(weights=WEIGHTS), plan, source, "reset")
    before = [numpy(weight) for weight in model.weights]
    model.compile(**task.compile_arguments(plan, "int", source))
    options = {"batch_size": 8, "preprocessing": model.preprocessing}
    model.fit(task.batches(keras_vit.load_dataset(source, "validation", **options), model), verbose=0, shuffle=False)
    changed = {id(weight) for weight, old in zip(model.weights, before, strict=True) if (numpy(weight) != old).any()}
    assert id(model.logit_bias) in changed
    assert not changed & set(map(id, model.image.weights))
    assert changed >= {id(weight) for weight in model.text.weights if weight.path.endswith("kernel")}


def write_tar(folder, texts):
    path = folder / "pairs-0.tar"
    with tarfile.open(path, "w") as tar:
        for number, text in texts.items():
            buffer = io.BytesIO()
            Image.fromarray(picture(number)).save(buffer, "png")
            for suffix, data in (("png", buffer.getvalue()), ("txt", text)):
                if data is not None:
                    member = tarfile.TarInfo(f"{number:03}.{suffix}")
                    member.size = len(data)
                    tar.addfile(member, io.BytesIO(data))
    return path


def captions_of(data):
    source = open_source(data, targets=TASK.targets())
    return sorted(text for split in source.splits.values() for text in split.labels[:, 0])


def test_captions_come_from_tars_tabs_parquet_and_arrays_as_text(tmp_path, table):
    pa = pytest.importorskip("pyarrow")
    import pyarrow.parquet

    texts = [*(f"photo {number}" for number in range(18)), "nan", "1.5"]
    tar = write_tar(tmp_path, {number: f" {text}\n".encode() for number, text in enumerate(texts)})
    assert captions_of(tar) == sorted(texts)
    (table.parent / "tabs.tsv").write_text(
        "path\ttext\n" + "".join(f"{number}.png\t{text}, with a comma\n" for number, text in enumerate(texts))
    )
    assert captions_of(table.parent / "tabs.tsv") == sorted(f"{text}, with a comma" for text in texts)
    photos = np.stack([picture(number) for number in range(20)])
    assert captions_of((photos, texts)) == sorted(texts)
    data = [(table.parent / f"{number}.png").read_bytes() for number in range(20)]
    for number, values in enumerate((texts, [*texts[:3], None, *texts[4:]], range(20))):
        columns = {"image": [{"bytes": each, "path": f"{n}.png"} for n, each in enumerate(data)], "caption": values}
        file = tmp_path / f"set{number}" / "pairs.parquet"
        file.parent.mkdir()
        pyarrow.parquet.write_table(pa.table(columns), file)
        if not number:
            assert captions_of(file) == sorted(texts)
            continue
        place = "row 3 of .*pairs.parquet" if number == 1 else "row 0 of .*pairs.parquet.* of type int"
        with pytest.raises(ValueError, match=f"a caption must .*\n.*{place}"):
            captions_of(file)


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (lambda folder: write_tar(folder, {1: b"a", 2: None}), "002.png' without '002.txt'"),
        (lambda folder: write_tar(folder, {1: b"a", 2: b" \n"}), "must not be empty.*member '002.txt'"),
        (lambda folder: write_tar(folder, {1: b"a", 2: b"\xff"}), "text in UTF-8.*002.txt"),
        (lambda folder: (np.zeros((2, 8, 8, 3), "uint8"), ["a", 1.5]), "must be text.*row 1 .*'caption': 1.5"),
        (lambda folder: (np.zeros((2, 8, 8, 3), "uint8"), ["a", b"b"]), "must be text.*row 1 .*b'b' of type bytes"),
        (lambda folder: (np.zeros((2, 8, 8, 3), "uint8"), [1, 2]), "must be text.*row 0 .*of type int"),
        (lambda folder: table_of(folder, "path,caption\n1.png,\n"), "have its caption.*line 2"),
        (lambda folder: table_of(folder, "path,captoin\n1.png,a\n"), "column 'caption'.*captoin.*caption_column"),
        (lambda folder: "digits", "must have a caption.*digits"),
    ],
)
def test_what_is_no_caption_is_refused_with_its_place(data, words, tmp_path):
    import re

    with pytest.raises(ValueError, match=re.compile(words, re.DOTALL)):
        captions_of(data(tmp_path))


def table_of(folder, text):
    (folder / "pairs.csv").write_text(text)
    return folder / "pairs.csv"


def test_what_cannot_be_trained_is_refused(table, tmp_path):
    source = open_source(table, targets=TASK.targets())
    with pytest.warns(UserWarning, match=r"3 of 24 training captions .* \(false negatives\)"):
        TASK.check_source(source)
    image = keras_vit.ViTTi16(num_layers=1, input_shape=(16, 16, 3), include_top=False)
    plan = types.SimpleNamespace(batch_size=32)
    with pytest.raises(ArgumentError, match="batch_size=32, 24 pairs"):
        TASK.prepare(image, plan, source, "reset")
    plan.batch_size = 8
    with pytest.raises(ArgumentError, match="both towers must be known"):
        TASK.prepare(image, plan, source, "reset")
    text = keras_vit.build_text(keras_vit.TextConfig(40, 8, 16, 1, num_heads=2, mlp_dim=24, projection_size=192))
    text.tokenizer = keras_vit.build_text(weights=WEIGHTS).tokenizer  # of 664 ids
    text.save(tmp_path / "text.keras")
    task = find_task({"name": "contrastive", "text": tmp_path / "text.keras"})
    with pytest.raises(ArgumentError, match=r"664 ids, for a table of 40 rows in .*text.keras"):
        task.prepare(image, plan, source, "reset")
    with pytest.raises(ArgumentError, match="`augmentation`"):
        TASK.encoding(plan, keras_vit.AUGMENTATIONS["augreg-medium1"])
    for options in ({"accumulation_steps": 2}, {"layer_decay": 0.5}, {"lora_rank": 2}, {"start_image_size": 16}):
        with pytest.raises(ArgumentError, match=f"`{next(iter(options))}` must be left out"):
            keras_vit.FinetuneOptions(task="contrastive", **options)
    with pytest.raises(ArgumentError, match="`loss` must be one of"):
        find_task({"name": "contrastive", "loss": "mse"})
