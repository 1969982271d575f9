"""The task `contrastive`: a run from captions to both towers, its measures against NumPy, and what is refused."""

import contextlib
import io
import json
import math
import shutil
import tarfile
import tempfile
import types
from pathlib import Path

import keras
import numpy as np
import pytest
from conftest import GOLDEN, numpy
from hub_server import HubServer, turn_to
from huggingface_hub import constants
from PIL import Image
from stopped_runs import Died, Dying

import keras_vit
import keras_vit.runs.finetune as module
from keras_vit.checks import ArgumentError
from keras_vit.data import open_source
from keras_vit.embedding import search
from keras_vit.embedding.job import has_projection
from keras_vit.exporting.text_towers import text_in_precision
from keras_vit.model.layer_access import stem_positions
from keras_vit.runs import preparation
from keras_vit.tasks import find_task
from keras_vit.weights.read import CheckpointError
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
    return write_table(tmp_path_factory.mktemp("pairs"))


def write_table(folder):
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
    assert not any(
        "text tower" in line for line in json.loads((result.out / "config.json").read_text())["weights_report"]
    )
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
    np.testing.assert_array_equal(keras_vit.build_text(weights=result.out).embed(words), text.embed(words))
    np.testing.assert_array_equal(keras_vit.tokenizer(result.out)(words), text.tokenizer(words))
    assert keras_vit.zero_shot(result.out, classes=["red", "blue"]).output_shape == (None, 2)
    assert [*search._names_of(str(result.out))] == [*search._names_of(str(folder))][::-1]
    assert has_projection(str(result.out))
    assert has_projection(str(folder))
    config = json.loads((folder / "open_clip_config.json").read_text())["model_cfg"]
    assert config == json.loads((WEIGHTS / "open_clip_config.json").read_text())["model_cfg"] | {
        "quick_gelu": False,
        "text_cfg": {"context_length": 24, "width": 32, "heads": 2, "layers": 2, "vocab_size": 664, "mlp_ratio": 4.0},
    }


@pytest.mark.parametrize("name", ["bv_siglip", "hf_siglip2_naflex", "hf_tipsv2", "oc_clipa", "other"])
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
    with pytest.raises(CheckpointError, match="OpenCLIP must have a class of both towers"):
        save_towers(image, text, tmp_path / "for", 2.0, -3.0, "open_clip")
    assert not (tmp_path / "for").exists()
    if "siglip" not in name:
        with pytest.raises(CheckpointError, match="transformers must have a class of both towers"):
            save_towers(image, text, tmp_path / "for", 2.0, -3.0, "huggingface")
        assert not (tmp_path / "for").exists()
        return
    is_naflex = name == "hf_siglip2_naflex"
    warned = pytest.warns(UserWarning, match="otherwise than clean='lower_ascii'")
    with contextlib.nullcontext() if is_naflex else warned:
        save_towers(image, text, tmp_path / "for", 2.0, -3.0, "huggingface")
    read = keras_vit.build_text(weights=tmp_path / "for")
    again = keras_vit.build(weights=tmp_path / "for", include_top=False)
    np.testing.assert_array_equal(read.embed(["photo"]), text.embed(["photo"]))
    np.testing.assert_array_equal(numpy(again(pixels)), numpy(image(pixels)))
    assert (read.logit_scale, read.logit_bias, again.preprocessing) == (2.0, -3.0, image.preprocessing)
    if is_naflex:  # which differs in the patches' kernel, and in how positions are resized
        configs = [json.loads((folder / "config.json").read_text()) for folder in (source, tmp_path / "for")]
        assert [(found["model_type"], found["vision_config"]["num_patches"]) for found in configs] == [
            ("siglip2", 16)
        ] * 2
        towers = (again, keras_vit.build(weights=tmp_path / "both", include_top=False))
        assert {stem_positions(tower).resize_method for tower in towers} == {"bilinear_antialias"}
    else:
        assert (tmp_path / "for" / "spiece.model").read_bytes() == text.tokenizer.pieces.data


# huggingface_hub 2.4 hands a file to httpx by the name of before, in `_upload_single_part`.
@pytest.mark.filterwarnings("ignore:Use 'content=:DeprecationWarning", "ignore:transformers cleans texts:UserWarning")
def test_pushed_run_opens_as_both_towers(finished, tmp_path, monkeypatch):
    """As OpenCLIP and as transformers have it; bad ids of the tokenizer would change embeddings."""
    result, words = finished[0], ["a red bar", "two words"]
    rows = result.model.text.embed(words)
    for number, (format, names) in enumerate(PUSHED.items()):
        with HubServer() as hub:
            turn_to(hub, monkeypatch, tmp_path / str(number))
            monkeypatch.setattr(constants, "HF_HUB_DISABLE_XET", True)
            name = keras_vit.push_to_hub(result, "me/mine", license="mit", format=format)
            assert set(hub.contents) == names | {"README.md"}
            np.testing.assert_array_equal(keras_vit.build_text(weights=name).embed(words), rows)
            assert keras_vit.zero_shot(name, classes=["red", "blue"]).logit_scale is not None
            card = hub.contents["README.md"].decode()
            assert f'library_name: "{"transformers" if format else "open_clip"}"' in card
            assert 'keras_vit.zero_shot("hf:me/mine", classes=' in card
    config, tokens = (json.loads(hub.contents[name]) for name in ("config.json", "tokenizer_config.json"))
    assert (config["model_type"], config["text_config"]["eos_token_id"], config["projection_dim"]) == ("clip", 2, 24)
    assert (tokens["tokenizer_class"], tokens["eos_token"]) == ("CLIPTokenizer", "<end_of_text>")
    with pytest.raises(ValueError, match="`format` must be one of"):
        keras_vit.push_to_hub(result, "me/mine", format="timm")


PUSHED = {
    None: {"open_clip_model.safetensors", "open_clip_config.json", "tokenizer.json", "keras_vit_tokenizer.json"},
    "huggingface": {"model.safetensors", "tokenizer.json", "tokenizer_config.json"}
    | {"config.json", "preprocessor_config.json"},
}


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
        assert largest_difference(result, again, name) == 0
    assert {**again.evaluation.summary(), "seconds": 0} == {**result.evaluation.summary(), "seconds": 0}


def largest_difference(result, other, name="last.keras"):
    """Between weights of a model that two runs have saved."""
    weights, others = (keras.models.load_model(each.out / name).weights for each in (result, other))
    return max(float(np.abs(numpy(a) - numpy(b)).max()) for a, b in zip(weights, others, strict=True))


def lora_on_three_devices():
    """For `elsewhere`: runs with LoRA on one device, on three, and killed there in the second epoch and resumed."""
    with tempfile.TemporaryDirectory() as place, pytest.MonkeyPatch.context() as patch:
        folder, options = Path(place), {"lora_rank": 2, "batch_size": 6, "strategy": "mirrored"}
        table = write_table(folder)
        one, _ = run_of(table, folder / "one", **options | {"strategy": "one"})
        three, _ = run_of(table, folder / "three", **options)
        patch.setattr(module, "StepFacts", Dying)
        patch.setattr(Dying, "at", 6)
        with pytest.raises(Died):
            run_of(table, folder / "killed", **options)
        patch.setattr(Dying, "at", None)
        again, printed = run_of(table, folder / "killed", **options, resume="must")
        return {
            "goes on": any(line.startswith("goes on from step ") for line in printed),
            "apart": largest_difference(one, three),
            "resumed": largest_difference(three, again),
        }


@pytest.mark.slow
@pytest.mark.skipif(keras.backend.backend() != "tensorflow", reason="strategies are TensorFlow's")
@pytest.mark.elsewhere("two devices", "lora_on_three_devices")
def test_lora_on_three_devices_is_that_on_one_and_resumes_bitwise(found):
    assert found.pop("apart") < 1e-5  # sums in another order
    assert found == {"goes on": True, "resumed": 0}


def test_command_line_evaluates_and_names_what_is_on_photos(finished, table, run, tmp_path):
    result, _ = finished
    code, lines, _ = run("evaluate", result.out, "--split", "validation", "--page", tmp_path / "page")
    assert (code, lines[1].startswith("validation mean recall 0.")) == (0, True)
    assert lines[-2].split()[:4] == ["image", "of", "a", "text"]
    report = (result.out / "report.html").read_text()
    assert "Photos with their nearest captions" in report
    assert "<br>2. a " in report
    assert f">{(1 / 9 + 5 / 9 + 1) / 3:.4f}<" in report  # mean recall by chance, of nine pairs
    assert caption(32) in report
    card = (result.out / "README.md").read_text()
    assert all(words in card for words in ("keras_vit.zero_shot", "OpenCLIP opens the folder too.", "transformers"))
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
    code, best, _ = run("predict", table.parent / "3.png", "--model", result.out, "--classes", "a,b,c", "--top", 2)
    assert (code, len(best)) == (0, 2 + 2)
    _, _, error = run("export", result.out, tmp_path / "a.onnx", "--classes", "a,b", "--top", 1)
    assert "`--top` is of a SavedModel" in error[0]  # and not for a run without classes
    with pytest.raises(ValueError, match="Leave `--engine` out"):
        TASK.evaluate(types.SimpleNamespace(name="engine"), table)


PLAN = keras_vit.plan("clip", num_images=24, batch_size=8, steps=1, learning_rate=0.01)
SIGMOID = {"name": "contrastive", "loss": "sigmoid"}


def test_sigmoid_loss_and_lora_of_both_towers(table, tmp_path):
    """One step without a run: factors, scale and bias alone learn. A file and both towers give the same numbers."""
    source, task = open_source(table, targets=TASK.targets()), find_task(SIGMOID)
    plain = task.prepare(task.complete(keras_vit.build(weights=WEIGHTS)), PLAN, source, "reset")
    image = keras_vit.add_lora(keras_vit.build(weights=WEIGHTS), 2)
    model = task.prepare(task.complete(image, 2), PLAN, source, "reset")
    pairs = {"images": image.preprocessing(np.stack([picture(7), picture(8)]).astype("float32"))}
    pairs["ids"] = model.text.tokenizer(["a red bar", "nan"])
    first = {name: numpy(rows) for name, rows in plain(pairs).items()}
    before = [numpy(weight) for weight in model.weights]
    for name, rows in model(pairs).items():
        np.testing.assert_array_equal(numpy(rows), first[name])
    model.compile(**task.compile_arguments(PLAN, "int", source))
    options = {"batch_size": 8, "preprocessing": model.preprocessing}
    model.fit(task.batches(keras_vit.load_dataset(source, "validation", **options), model), verbose=0, shuffle=False)
    changed = {id(weight) for weight, old in zip(model.weights, before, strict=True) if (numpy(weight) != old).any()}
    factors = [weight for weight in model.weights if "lora_kernel" in weight.path]
    assert len(factors) == 2 * 6 * (image.config.num_layers + model.text.config.num_layers)
    learn = {id(weight) for weight in (*factors, model.logit_scale, model.logit_bias)}
    assert {id(weight) for weight in model.trainable_weights} == learn
    assert changed == learn - {id(weight) for weight in factors if weight.name.endswith("a")}  # of B = 0, no gradient
    model.save(tmp_path / "pair.keras")
    opened = task.opened(keras.models.load_model(tmp_path / "pair.keras", compile=False))
    save_towers(model.image, model.text, tmp_path / "both", *model.scale_and_bias())
    config = json.loads((tmp_path / "both" / "open_clip_config.json").read_text())
    assert config["model_cfg"]["init_logit_bias"] == pytest.approx(model.scale_and_bias()[1])
    texts = keras_vit.build_text(weights=tmp_path / "both")
    images = keras_vit.build(weights=tmp_path / "both")
    assert TASK.complete(images).kind == "sigmoid"  # that of the weights
    for name, rows in model(pairs).items():
        assert np.abs(numpy(rows) - first[name]).max() > 1e-3
        for merged in (opened.towers, keras_vit.ContrastiveModel(images, texts)):
            np.testing.assert_allclose(numpy(merged(pairs)[name]), numpy(rows), atol=1e-6)
    exported = text_in_precision(model.text, "float32")
    np.testing.assert_array_equal(numpy(exported(pairs["ids"])), numpy(opened.towers.text(pairs["ids"])))
    assert opened.towers.count_params() == plain.count_params() == opened.count_params() + exported.count_params() + 2
    assert (opened.logit_scale, opened.logit_bias) == model.scale_and_bias()


def test_lora_of_a_locked_image_tower_is_the_text_tower_s():
    task, image = find_task(SIGMOID | {"lock_image": True}), keras_vit.build(weights=WEIGHTS)
    assert not task.trains_image_model
    model = task.complete(image, 2)
    found = [weight.name for weight in model.trainable_weights]
    assert set(found) == {"logit_bias", "logit_scale", "lora_kernel_a", "lora_kernel_b"}
    assert len(found) == 2 + 2 * 6 * model.text.config.num_layers
    assert not any("lora" in weight.path for weight in image.weights)
    assert keras_vit.estimate_memory(model, 8).gradients == 4 * sum(math.prod(w.shape) for w in model.trainable_weights)


def test_memory_is_that_of_both_towers(table, tmp_path, monkeypatch):
    """In a run too, before its first step."""
    towers = TASK.complete(keras_vit.build(weights=WEIGHTS))
    both, alone = (keras_vit.estimate_memory(model, 8, optimizer="adamw") for model in (towers, towers.image))
    parameters = towers.image.count_params() + towers.text.count_params() + 1  # and the scale
    assert both.weights == 4 * parameters
    assert both.optimizer == 8 * (parameters - 24)  # the bias of the projection, which is 0
    texts = 8 * 24 * 2 * 4 * (9 * 32 + 3 * 128)  # bytes of 2 blocks of 32 and 128 numbers at 24 places
    assert texts < both.activations - alone.activations < 2 * texts
    monkeypatch.setattr(preparation, "check_memory", lambda model, *_, **__: pytest.fail(type(model).__name__))
    with pytest.raises(pytest.fail.Exception, match="ContrastiveModel"):
        run_of(table, tmp_path / "run")


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
        folder = tmp_path / f"set{number}"
        file, listed = folder / "data" / "pairs.parquet", table.parent / f"paths{number}.parquet"
        file.parent.mkdir(parents=True)
        pyarrow.parquet.write_table(pa.table(columns), file)
        columns = {"path": [f"{n}.png" for n in range(20)], "text": columns["caption"], "width": [32] * 20}
        pyarrow.parquet.write_table(pa.table(columns), listed)
        if not number:
            assert captions_of(folder) == captions_of(listed) == sorted(texts)  # as downloaded from the Hub; paths
            continue
        kind = "have its text.\nReceived: row 3" if number == 1 else "must be text.\nReceived: row 0 .* of type int"
        with pytest.raises(ValueError, match=kind):
            captions_of(listed)
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
        (lambda folder: "digits", "must have captions.*digits.*'path,caption'"),
    ],
)
def test_what_is_no_caption_is_refused_with_its_place(data, words, tmp_path):
    import re

    with pytest.raises(ValueError, match=re.compile(words, re.DOTALL)):
        captions_of(data(tmp_path))


def table_of(folder, text):
    (folder / "pairs.csv").write_text(text)
    return folder / "pairs.csv"


def test_captions_that_are_cut_are_counted_and_do_not_find_each_other(tmp_path):
    """Cut to 24 ids ten of twelve are one text, whose photos no tower can name."""
    rows = [f"{n}.png,test,{'word ' * 60 * (n < 10)}{caption(n)}" for n in range(12)]
    rows += [f"{n}.png,train,{text}" for n, text in ((12, "a red bar"), (13, "A  red bar"))]
    for number in range(14):
        Image.fromarray(picture(number)).save(tmp_path / f"{number}.png")
    path = table_of(tmp_path, "\n".join(["path,split,caption", *(row.replace(", ", " ") for row in rows)]) + "\n")
    source = open_source(path, targets=TASK.targets())
    plan, model = types.SimpleNamespace(batch_size=2), TASK.complete(keras_vit.build(weights=WEIGHTS))
    with pytest.warns(UserWarning, match="captions") as given:
        TASK.prepare(model, plan, source, "reset")
    words = [str(warning.message) for warning in given]
    assert any(line == "10 of 14 captions are longer than 24 tokens and are cut." for line in words)
    assert any(line.startswith("12 of 14 captions have the ids of another text, as 'a red bar' and ") for line in words)
    ranks = TASK.evaluate(model, path, "test").ranks["image_to_text"]
    assert (ranks[:10] >= 10).all()


def test_what_cannot_be_trained_is_refused(table, tmp_path):
    source = open_source(table, targets=TASK.targets())
    with pytest.warns(UserWarning, match=r"3 of 24 training captions .* \(false negatives\)"):
        TASK.check_source(source)
    image = keras_vit.ViTTi16(num_layers=1, input_shape=(16, 16, 3), include_top=False)
    plan = types.SimpleNamespace(batch_size=32)
    with pytest.raises(ArgumentError, match="batch_size=32, 24 pairs"):
        TASK.prepare(image, plan, source, "reset")
    with pytest.raises(ArgumentError, match="both towers must be known"):
        TASK.complete(image)
    text = keras_vit.build_text(keras_vit.TextConfig(40, 8, 16, 1, num_heads=2, mlp_dim=24, projection_size=192))
    text.tokenizer = keras_vit.build_text(weights=WEIGHTS).tokenizer  # of 664 ids
    text.save(tmp_path / "text.keras")
    task = find_task({"name": "contrastive", "text": tmp_path / "text.keras"})
    with pytest.raises(ArgumentError, match=r"664 ids, for a table of 40 rows in .*text.keras"):
        task.complete(image)
    with pytest.raises(ArgumentError, match="`augmentation`"):
        TASK.encoding(plan, keras_vit.AUGMENTATIONS["augreg-medium1"])
    for options in ({"accumulation_steps": 2}, {"layer_decay": 0.5}, {"start_image_size": 16}):
        with pytest.raises(ArgumentError, match=f"`{next(iter(options))}` must be left out"):
            keras_vit.FinetuneOptions(task="contrastive", **options)
    for name in ("clip/B16", "hf:owner/name", WEIGHTS):
        keras_vit.FinetuneOptions(task={"name": "contrastive", "text": name})
    with pytest.raises(ArgumentError, match=r"`text` must be a folder(?s:.*)Did you mean 'clip/B16'"):
        keras_vit.FinetuneOptions(task={"name": "contrastive", "text": "clip/B61"})
    with pytest.raises(ArgumentError, match="`loss` must be one of"):
        find_task({"name": "contrastive", "loss": "mse"})


def reopened_here():
    """For `elsewhere`: how far both towers of a run's folder, opened again, are from those that were trained."""
    with tempfile.TemporaryDirectory() as folder:
        result, _ = run_of(write_table(Path(folder)), Path(folder) / "run", epochs=1)
        text = keras_vit.build_text(weights=result.out / "model")
        image = keras_vit.build(weights=result.out / "model")
        pairs = {
            "texts": [tower.embed(["a red bar", "nan"]) for tower in (text, result.model.text)],
            "images": [numpy(tower(picture(3)[None] / np.float32(255))) for tower in (image, result.model.image)],
            "scales": [text.logit_scale, result.model.scale_and_bias()[0]],
        }
    return {name: float(np.abs(np.subtract(*pair)).max()) for name, pair in pairs.items()}


@pytest.mark.elsewhere("jax", "reopened_here")
def test_run_on_jax_has_both_towers_in_its_folder(found):
    assert found == pytest.approx({"texts": 0, "images": 0, "scales": 0}, abs=1e-6)
