"""The command line: what it prints, and that every failure is one line and an exit code (row C1)."""

import json
import os
import pickle
import re
import shutil

import numpy as np
import pytest
from conftest import GOLDEN, ROOT, assert_one_line
from fault_server import FaultServer
from forged import npy, zipped

import keras_vit
from keras_vit import Preprocessing, cli
from keras_vit.checks import ArgumentError
from keras_vit.cli.terminal import one_line
from keras_vit.config.variants import ENCODERS, FAMILIES, RESNETS, VARIANTS
from keras_vit.files import file_sha256
from keras_vit.weights.download import cache_dir
from keras_vit.weights.registry import all_records, find_weights, list_weights

OFFICIAL = GOLDEN / "token.npz"
TIMM = GOLDEN / "foreign" / "timm_token.safetensors"
PUBLISHED = "vit_models/imagenet21k/ViT-B_16.npz"


@pytest.fixture
def server():
    with FaultServer() as server:
        server.content = OFFICIAL.read_bytes()
        yield server


# What is said


def test_models_are_those_of_the_page_with_its_counts(run):
    page = (ROOT / "docs" / "models.md").read_text()
    rows = re.findall(r"^\| (`\w*ViT.*?) \| (.*?) \| ([\d, ]+) \|", page, re.MULTILINE)
    published = {
        variant: (builder.strip("`"), count)
        for builders, variants, counts in rows
        for builder, variant, count in zip(*(cell.split(", ") for cell in (builders, variants, counts)), strict=True)
    }
    assert published.keys() == VARIANTS.keys()
    code, (_, *lines), _ = run("models")
    printed = [line.split() for line in lines]
    resnets = [(builder, variant, patch) for family, builder, variant, _, patch, _ in printed if family == "bit"]
    assert resnets == [(name, name, "32") for name in RESNETS]
    of_page = [row[1:] for row in printed if row[0] == "vit"]
    assert {variant: (builder, count) for builder, variant, count, *_ in of_page} == published
    assert {variant: int(patch) for _, variant, _, patch, _ in of_page} == {v: VARIANTS[v].stride for v in VARIANTS}
    assert {tuple(row[1:3]) for row in printed if row[0] in FAMILIES} == {(ENCODERS[name], name) for name in ENCODERS}
    assert code == 0


def test_models_of_a_family_have_their_native_size_and_published_parameters(run):
    _, (_, *lines), _ = run("models", "--family", "dinov3")
    assert {line.split()[0] for line in lines} == {"dinov3"}
    parameters = {r.variant: f"{r.parameters:,}" for r in all_records() if r.name == "dinov3-lvd1689m"}
    assert {variant: (count, "16", "256") for _, _, variant, count, *_ in map(str.split, lines)} == {
        variant: (count, "16", "256") for variant, count in parameters.items()
    }
    assert [line.split()[-1] for line in run("models", "--family", "sapiens2")[1][1:]] == ["1024x768"] * 5


def test_models_have_gigaflops_and_parameters_at_a_size(run):
    code, (header, *lines), _ = run("models", "--flops", "--image-size", 384)
    assert header.split(None, 7)[6:] == ["GFLOP", "GFLOP of every token"]
    printed = {variant: figures for _, _, variant, *figures in (line.split() for line in lines)}
    assert printed["B/16"] == ["86,859,496", "16", "384", "103.15", "110.97"]
    assert printed["H/14"] == ["-", "14", "384", "-", "-"]  # whose patches do not tile 384 pixels
    assert printed["R50x1"] == ["25,549,352", "32", "384", "24.03", "24.03"]
    assert printed.keys() == VARIANTS.keys() | RESNETS.keys() | ENCODERS.keys()
    assert code == 0
    assert_one_line(run("models", "--image-size", 0)[2], "`--image-size`")


def test_weights_are_listed_as_a_table_and_for_programs(run):
    _, (header, *lines), _ = run("weights", "list", "ViTB16")
    assert header.split()[:2] == ["name", "variant"]
    assert "imagenet21k" in {line.split()[0] for line in lines}
    _, json_lines, _ = run("weights", "list", "B/16", "--json")
    records = json.loads("\n".join(json_lines))
    assert [record["name"] for record in records] == [line.split()[0] for line in lines]
    for record in records:
        Preprocessing(**record["preprocessing"])


def test_info_tells_every_fact_and_where_the_file_is(run, monkeypatch, tmp_path):
    _, lines, _ = run("weights", "info", "imagenet21k", "--model", "ViTB16")
    facts = dict(line.split(None, 1) for line in lines)
    assert (facts["variant"], facts["classes"], facts["license"]) == ("B/16", "21843", "Apache-2.0")
    assert facts["url"] == f"https://storage.googleapis.com/{PUBLISHED}"
    assert facts["local"] == f"not at hand; its place is {cache_dir() / PUBLISHED}"
    with monkeypatch.context() as patch:
        patch.setattr("keras_vit.cli.weights.terminal_width", lambda: 80)
        _, narrow, _ = run("weights", "info", "imagenet21k", "--model", "ViTB16")
    assert [line for line in narrow if len(line) >= 80 and len(line.split()) > 2] == []  # a URL stays whole
    assert " ".join(narrow).split() == " ".join(lines).split()
    _, lines, _ = run("weights", "info", "virchow2")
    facts = dict(line.split(None, 1) for line in lines)
    assert facts["bytes"] == "~2525 MB, by its parameters in float32"  # 631,239,424 of four bytes
    _, lines, _ = run("weights", "info", "sam")
    variants = [record.variant for record in list_weights() if record.name == "sam"]
    assert [line.split()[1] for line in lines if line.startswith("variant ")] == variants


def test_fetch_prints_the_place_in_a_mirror_once_its_content_is_right(run, monkeypatch, tmp_path):
    place = tmp_path / find_weights("gsam", "B/16").path
    place.parent.mkdir(parents=True)
    shutil.copy(OFFICIAL, place)
    monkeypatch.setenv("KERAS_VIT_MIRROR", str(tmp_path))
    fetch = ("weights", "fetch", "gsam", "--model", "B/16")
    code, output, error = run(*fetch)
    assert (code, output) == (1, [])
    assert_one_line(error, "'gsam' for ViT B/16.* patch size: expected 16, got 8")
    monkeypatch.setattr("keras_vit.weights.file_checks._differing", lambda *_: "")
    assert run(*fetch)[:2] == (0, [str(place)])


@pytest.mark.parametrize(("name", "models"), [("imagenet21k", ".*B/16.*R50"), ("hf:any/repo", "")])
def test_fetch_asks_for_the_model_where_the_name_does_not_tell(run, name, models):
    code, _, error = run("weights", "fetch", name)
    assert code == 1
    assert_one_line(error, f"`--model`{models}.*{name}")


def test_fetch_of_a_url_verifies_and_is_seen_by_verify(run, server):
    code, (path,), _ = run("weights", "fetch", f"{server.address}/ok/any.npz", "--sha256", server.sha256)
    assert (code, file_sha256(path)) == (0, server.sha256)
    assert run("weights", "verify") == (0, [f"ok  {path}  sha256 as noted"], [])


@pytest.mark.parametrize("file", [OFFICIAL, TIMM], ids=["npz", "safetensors"])
def test_inspect_shows_layout_model_and_every_tensor(run, file):
    code, lines, error = run("weights", "inspect", file)
    assert (code, error) == (0, [])
    assert "dialect  " + {".npz": "official", ".safetensors": "timm"}[file.suffix] in lines
    assert next(line for line in lines if line.startswith("model")).startswith("model    a ViT of")
    names = {line.split()[0] for line in lines if line.startswith("  ")}
    assert names > {".npz": {"embedding/kernel", "cls"}, ".safetensors": {"cls_token", "pos_embed"}}[file.suffix]


def test_inspect_says_what_the_config_and_the_projection_say(run):
    _, lines, _ = run("weights", "inspect", GOLDEN / "encoders" / "huggingface_clip")
    assert lines[1].startswith("dialect  huggingface_clip, by its config model_type")
    assert "an embedding of" in lines[2]


def test_inspect_escapes_what_would_steer_the_terminal(run, tmp_path):
    zipped(tmp_path / "x.npz", [("\x1b[31mred.npy", npy(np.zeros(3, "float32")))])
    _, lines, error = run("weights", "inspect", tmp_path / "x.npz")
    assert "dialect  unknown" in lines or error
    assert "\x1b" not in "".join(lines + error)


def test_convert_there_and_back_keeps_every_bit(run, tmp_path):
    there, back = tmp_path / "there.npz", tmp_path / "back.safetensors"
    convert = ("weights", "convert")
    heads = json.loads((GOLDEN / "foreign" / "cases.json").read_text())["timm_token"]["num_heads"]
    code, (printed,), error = run(*convert, TIMM, there, "--dialect", "official", "--heads", heads)
    assert (code, printed) == (0, str(there))
    assert error == ["keras-vit: warning: " + error[0].removeprefix("keras-vit: warning: ")]  # of timm's exact GELU
    assert run(*convert, there, back, "--dialect", "timm")[:2] == (0, [str(back)])
    from safetensors.numpy import load_file

    before, after = load_file(TIMM), load_file(back)
    assert before.keys() == after.keys()
    assert all((before[name] == after[name]).all() for name in before)


# Row C1: every failure is one line, exit code 1, and leaves nothing behind


def pickled(path):
    class Payload:
        def __reduce__(self):
            return os.mkdir, (str(path.parent / "PWNED"),)

    path.write_bytes(pickle.dumps(Payload()))


def keras_archive(path):
    zipped(path, [("config.json", b"{}"), ("model.weights.h5", b"\x89HDF\r\n\x1a\n")])


def object_array(path):
    np.savez(path.with_suffix(".npz"), cls=np.array([{}], object))
    path.with_suffix(".npz").replace(path)


def flipped_bit(path):
    with np.load(OFFICIAL) as arrays, open(path, "wb") as file:
        np.savez(file, **arrays)
        data = arrays["cls"].tobytes()
    path.write_bytes(path.read_bytes().replace(data, bytes([data[0] ^ 1]) + data[1:]))


BAD_FILES = {
    "an HTML page": lambda path: path.write_text("<!doctype html>Log in"),
    "0 bytes": lambda path: path.touch(),
    "a pickle": pickled,
    "a Keras .keras archive": keras_archive,
    "an HDF5 file": lambda path: path.write_bytes(b"\x89HDF\r\n\x1a\n" + bytes(99)),
    "a folder": lambda path: path.mkdir(),
    "no checkpoint at this path": lambda path: None,
    "cut short": lambda path: path.write_bytes(OFFICIAL.read_bytes()[:-100]),
    "CRC-32": flipped_bit,
    "pickles": object_array,
}


@pytest.mark.parametrize("what", BAD_FILES)
def test_bad_file_is_one_line_for_every_command_and_never_run(run, tmp_path, what):  # C1 of N1, N2, N4, N12
    BAD_FILES[what](tmp_path / "bad")
    out = tmp_path / "out.npz"
    for command in (("inspect",), ("convert", tmp_path / "bad", out, "--dialect", "linen")):
        code, _, error = run("weights", command[0], *(command[1:] or [tmp_path / "bad"]))
        assert code == 1
        assert_one_line(error, re.escape(what))
    code, (line,), error = run("weights", "verify", tmp_path / "bad")
    assert code == 1
    assert line.startswith(f"BAD  {tmp_path / 'bad'}  ")
    assert what in line
    assert_one_line(error, "not valid")
    assert {path.name for path in tmp_path.iterdir()} <= {"bad"}


@pytest.mark.parametrize(
    ("arguments", "pattern"),
    [
        ("list ViTB17", "`--model`.*'ViTB16'"),
        ("list vitb16", ".{1,200}'B/16'[^,]{0,50}$"),
        ("info nope", "'openai'"),
        ("fetch https:///x.npz", "host"),
        ("fetch nope --model B/16", "list_weights.*'nope' for B/16"),
        ("info imagenet21", "'imagenet21k'"),
        ("info B_16-i21k-300ep-lr_0.001-aug_medium7-wd_0.1-do_0.0-sd_0.0", "aug_medium7|medium"),
        ("fetch imagenet21 --model B/16", "'imagenet21k'"),
        ("fetch imagenet21k --model B16", "'B/16'"),
        ("fetch https://x.org/x.npz --sha256 12", "64 hexadecimal digits"),
        (f"convert {TIMM} OUT.npz --dialect official", "--heads None.*`--heads`"),
        (f"convert {TIMM} OUT.npz --dialect official --heads 5", "`--heads`.*--heads 5"),
        (f"convert {TIMM} OUT.npz --dialect linen --model B/16", "--model B/16.* a ViT"),
        (f"convert {OFFICIAL} OUT.npz --dialect timm", ".safetensors"),
        (f"convert {OFFICIAL} OUT/no/x.npz --dialect linen", "no/"),
    ],
)
def test_bad_request_is_one_line_and_writes_nothing(run, tmp_path, arguments, pattern):  # C1
    code, output, error = run("weights", *arguments.replace("OUT", str(tmp_path / "out")).split())
    assert (code, output) == (1, [])
    assert_one_line([line for line in error if "warning" not in line], pattern)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("route", "variables", "pattern"),
    [
        ("404", {}, "404"),  # D3
        ("500", {}, "500.*4 tries"),  # D4
        ("cut", {}, "x.npz"),  # D1
        ("html", {}, "HTML"),  # D2
        ("hang", {"KERAS_VIT_TIMEOUT": "0.1"}, "0.1 s"),  # D5
        ("redirect", {}, "https.*file:///etc/passwd"),  # D13
        ("ok", {"KERAS_VIT_OFFLINE": "1"}, "KERAS_VIT_OFFLINE"),  # D11
    ],
)
def test_failed_download_is_one_line_with_the_recipe_below(run, server, monkeypatch, route, variables, pattern):  # C1
    server.location = "file:///etc/passwd"
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    url = f"{server.address}/{route}/x.npz"
    code, output, error = run("weights", "fetch", url)
    assert (code, output) == (1, [])
    assert_one_line(error[:1], pattern)
    assert all(line.startswith("  ") for line in error[1:])
    recipe = [line.strip() for line in error]
    curl = next(line for line in recipe if line.startswith("curl "))
    assert curl.endswith(url)
    assert recipe[recipe.index(curl) - 1].startswith("mkdir -p ")
    assert not list(cache_dir().rglob("*.npz"))


def test_bad_variable_and_cache_without_room_are_one_line(run, server, monkeypatch, tmp_path):  # C1 of D10
    monkeypatch.setenv("KERAS_VIT_TIMEOUT", "soon")
    code, _, error = run("weights", "fetch", server.url("ok"))
    assert code == 1
    assert_one_line(error, "KERAS_VIT_TIMEOUT=soon")
    monkeypatch.delenv("KERAS_VIT_TIMEOUT")
    (tmp_path / "file").touch()
    monkeypatch.setenv("KERAS_VIT_CACHE", str(tmp_path / "file"))
    code, _, error = run("weights", "fetch", server.url("ok"))
    assert code == 1
    assert_one_line(error, "folder.*KERAS_VIT_CACHE")


def test_verify_of_an_empty_cache_says_so(run):
    assert run("weights", "verify") == (0, [f"no file in the cache, {cache_dir()}"], [])


def test_verify_of_one_file_compares_with_the_noted_sha256(run, server):  # D12
    _, (path,), _ = run("weights", "fetch", f"{server.address}/ok/x.npz")
    assert run("weights", "verify", path)[:2] == (0, [f"ok  {path}  sha256 as noted"])
    shutil.copy(GOLDEN / "gap.npz", path)  # a valid checkpoint, and another
    code, (line,), _ = run("weights", "verify", path)
    assert code == 1
    assert re.match(f"BAD  {path}  sha256.* {server.sha256}", line)
    assert run("weights", "verify", OFFICIAL)[1] == [f"ok  {OFFICIAL}  valid, with no sha256 noted yet"]


def test_wrong_sha256_of_a_file_at_hand_is_one_line(run, server):
    url = f"{server.address}/ok/x.npz"
    run("weights", "fetch", url)
    code, _, error = run("weights", "fetch", url, "--sha256", "0" * 64)
    assert code == 1
    assert_one_line(error, f"{'0' * 64}.* {server.sha256}")


def test_verify_names_the_file_of_the_cache_that_rotted(run, server):  # D12
    _, (good,), _ = run("weights", "fetch", f"{server.address}/ok/good.npz")
    _, (rotten,), _ = run("weights", "fetch", f"{server.address}/ok/rotten.npz")
    status = os.stat(rotten)
    with open(rotten, "r+b") as file:
        file.seek(1000)
        file.write(bytes([file.read(1)[0] ^ 1]))
    os.utime(rotten, ns=(status.st_atime_ns, status.st_mtime_ns))
    code, lines, error = run("weights", "verify")
    assert code == 1
    assert {line.split()[0]: line.split()[1] for line in lines} == {"ok": good, "BAD": rotten}
    assert_one_line(error, rotten)


@pytest.mark.parametrize("where", ["before", "between", "after"])
def test_traceback_only_with_debug(run, where):
    arguments = ["weights", "inspect", "/nowhere"]
    arguments.insert({"before": 0, "between": 1, "after": 3}[where], "--debug")
    code, _, error = run(*arguments)
    assert code == 1
    assert error[0].startswith("Traceback")
    assert_one_line(error[-1:], "/nowhere")


def test_fault_of_our_own_is_one_line_that_names_its_kind(run, monkeypatch):
    monkeypatch.setattr(cli.weights, "list_weights", lambda model, family: {}["x"])
    code, _, error = run("weights", "list")
    assert code == 1
    assert_one_line(error, "KeyError: 'x' .*--debug")


def test_lines_of_an_error_are_joined_as_sentences():
    assert one_line("a rule.\nReceived: 1, where:\n  2  before\n  3 now\nTake another") == (
        "a rule. Received: 1, where: 2 before; 3 now. Take another"
    )
    assert one_line("") == ""


EMPTY = ["weights", "convert", str(OFFICIAL), "", "--dialect", "linen"]
WRONG = [[], ["weights"], ["wieghts"], ["models", "x"], ["weights", "convert", "a", "b"], EMPTY]


@pytest.mark.parametrize("arguments", WRONG)
def test_wrong_usage_is_exit_code_2(capsys, arguments):
    with pytest.raises(SystemExit) as stop:
        cli.main(arguments)
    assert stop.value.code == 2
    assert "keras-vit" in capsys.readouterr().err.splitlines()[-1]


def test_version_is_the_packages(capsys):
    with pytest.raises(SystemExit) as stop:
        cli.main(["--version"])
    assert stop.value.code == 0
    assert capsys.readouterr().out == f"keras-vit {keras_vit.__version__}\n"


def test_grid_and_heads_reach_the_conversion(run, monkeypatch):
    said = []
    monkeypatch.setattr(cli.weights, "convert_checkpoint", lambda *_, **options: said.append(options) or "x")
    run("weights", "convert", "a", "b", "--dialect", "linen", "--heads", 3, "--grid", 4, 5)
    assert said == [{"num_heads": 3, "grid": (4, 5)}]


def test_option_stands_for_an_argument_that_the_error_names_and_for_no_other():
    text = "`image_size` must be.\nReceived: image_size=3, start_image_size=2. Pass `image_size=4`, overwrite=True."
    assert cli._error_text(ArgumentError(text, parameters=("image_size", "overwrite"))) == (
        "`--image-size` must be. Received: --image-size 3, start_image_size=2. Pass `--image-size 4`, --overwrite."
    )
    assert cli._error_text(ValueError(text)) == " ".join(text.split())


@pytest.mark.parametrize(
    ("words", "meant"),
    [
        (("embed", "fotos", "--model", "B/16", "--out", "new"), "photos"),
        (("predict", "fotos", "--model", "B/16"), "photos"),
        (("predict", "photos", "--model", "rum"), "run"),
        (("evaluate", "run", "--data", "./fotos"), "photos"),
        (("pack", "./fotos", "new"), "photos"),
        (("look", "B/16", "fotos", "--out", "new"), "photos"),
        (("duplicates", "vektors"), "vectors"),
        (("search", "vektors", "a dog", "--model", "clip/B16"), "vectors"),
        (("export", "rum", "x.onnx"), "run"),
        (("predict", "photos", "--model", "B/16", "--engine", "auto", "--images", "fotos"), "photos"),
    ],
)
def test_name_nearly_that_of_a_folder_is_followed_by_that(words, meant, tmp_path, monkeypatch, run):
    for folder in ("photos", "vectors", "run"):
        (tmp_path / folder).mkdir()
    monkeypatch.chdir(tmp_path)
    code, _, errors = run(*words)
    assert (code, f"Did you mean '{meant}'" in errors[-1]) == (1, True), errors
