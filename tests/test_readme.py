"""The blocks of the README and of docs/ run and print what they say; links lead somewhere; all names are there."""

import contextlib
import io
import json
import re
import tempfile
from pathlib import Path

import keras
import numpy as np
import pytest
from conftest import ROOT, run_python
from published_files import write_published

import keras_vit

README = ROOT / "README.md"
# In the order of the index: a page may use files that pages before it have written.
PAGES = [
    README,
    *(
        ROOT / "docs" / name
        for name in re.findall(r"^\| \[.*\]\((\w+\.md)\)", (ROOT / "docs" / "index.md").read_text(), re.MULTILINE)
    ),
]
TEXTS = {path.name: path.read_text() for path in [*PAGES, ROOT / "docs" / "index.md"]}
BLOCKS = [
    (name, code, output)
    for name, text in TEXTS.items()
    if not name.startswith("own_")  # which change the package first: test_own_pages.py
    for code, output in re.findall(r"```python\n(.*?)```(?:\n\n```text\n(.*?)```)?", text, re.DOTALL)
]
ON_JAX = "keras.distribution."  # in the blocks that run on JAX, with two devices; the others run on TensorFlow
MARK = "=== next block ==="
MOST_LINES_OF_THE_README = 198
MOST_LETTERS_OF_A_LINE = 400
MOST_COLUMNS_OF_CODE = 80
PAGES_OF_0_5_0 = """
    architecture changelog checkpoints choosing coming_from compute concepts converting data developing devices
    distillation embedding encoders evaluation exporting finetuning getting_started hosts how_we_know_it_is_right
    images interruptions looking_inside many_devices masked_patches models processes quantising reproducing runs
    searching serving sizes speed studies training weights
"""
pytestmark = pytest.mark.timeout(1800)  # all blocks run before the first test; on a busy machine they take a while

RUN = f"""
import json, os, sys
import conftest  # so that models are compiled, and pipelines tuned, as in tests
os.chdir(sys.argv[1])
os.environ["KERAS_VIT_MIRROR"] = "mirror"
names = {{}}
from keras_vit.keras_private import drop_uninitialized_variables
for page, code in json.load(open("blocks.json")):
    exec(compile(code, page, "exec"), names.setdefault(page, {{"__name__": page}}))
    print({MARK!r})
    drop_uninitialized_variables()  # of models whose memory is estimated, which the next scope would make
"""


@pytest.fixture(scope="module")
def printed(tmp_path_factory):
    """What each block printed, run in order in one fresh process beside the files they name; a page knows its own
    names only, so that it can be read by itself."""
    folder = tmp_path_factory.mktemp("readme")
    write_files(folder)
    chosen = [index for index, (_, code, _) in enumerate(BLOCKS) if ON_JAX not in code]
    (folder / "blocks.json").write_text(json.dumps([BLOCKS[index][:2] for index in chosen]))
    said = run_python(RUN, folder, backend="tensorflow", timeout=1700, PYTHONPATH=f"{ROOT}:{ROOT}/tests")
    return dict(zip(chosen, said.split(f"{MARK}\n"), strict=False))


def printed_on_jax():
    """What each block on JAX printed, with two devices; they take their distribution with them."""
    found, names = {}, {}
    with tempfile.TemporaryDirectory() as folder, contextlib.chdir(folder), pytest.MonkeyPatch.context() as patch:
        write_files(Path(folder))
        patch.setenv("KERAS_VIT_MIRROR", "mirror")
        for index in range(len(BLOCKS)):
            page, code, _ = BLOCKS[index]
            if ON_JAX in code:
                with contextlib.redirect_stdout(io.StringIO()) as said:
                    exec(compile(code, page, "exec"), names.setdefault(page, {"__name__": page}))
                found[index] = said.getvalue()
    keras.distribution.set_distribution(None)
    return found


def write_files(folder):
    """A mirror with random weights, a photo, and photos of two colours."""
    image = pytest.importorskip("PIL.Image")
    model = keras_vit.ViTTi16(classes=21843)
    model.get_layer("head").kernel.assign_add(np.random.default_rng(0).normal(0, 0.02, (192, 21843)))
    record = keras_vit.find_weights("augreg-imagenet21k", "Ti/16")
    published = folder / "mirror" / record.path
    published.parent.mkdir(parents=True)
    keras_vit.save_checkpoint(model, published)
    record = keras_vit.find_weights("dinov2", "dinov2/S14")
    (folder / "mirror" / record.path).parent.mkdir(parents=True)
    write_published(record, folder / "mirror" / record.path)
    image.fromarray(np.random.default_rng(0).integers(0, 256, (50, 70, 3), "uint8")).save(folder / "photo.jpg")
    for index in range(60):
        channel, colour = index % 2 * 2, ("red", "blue")[index % 2]
        pixels = np.random.default_rng(index).integers(0, 60, (30, 40, 3), "uint8")
        pixels[..., channel] += 180
        photo = folder / "photos" / colour / f"{index}.png"
        photo.parent.mkdir(parents=True, exist_ok=True)
        image.fromarray(pixels).save(photo)


@pytest.mark.docs
@pytest.mark.parametrize(
    "index",
    [pytest.param(i, id=f"{i}-{name}") for i, (name, code, _) in enumerate(BLOCKS) if ON_JAX not in code],
)
def test_block_prints_what_the_page_says(printed, index):
    assert_says_what_the_page_says(printed[index], index)


@pytest.mark.docs
@pytest.mark.elsewhere("jax", "printed_on_jax")
def test_blocks_on_jax_print_what_the_page_says(found):
    assert len(found) == sum(ON_JAX in code for _, code, _ in BLOCKS) > 0
    for index, said in found.items():
        assert_says_what_the_page_says(said, int(index))


def assert_says_what_the_page_says(printed, index):
    _, code, expected = BLOCKS[index]
    expected = expected or "".join(f"{line}\n" for line in re.findall(r"^print\(.*\)  # (.*)$", code, re.MULTILINE))
    if expected:
        assert printed == expected


@pytest.mark.docs
def test_predictions_are_named(printed):
    named = [index for index, (_, code, _) in enumerate(BLOCKS) if "in keras_vit.decode_predictions(" in code]
    assert named
    for index in named:
        assert len(re.findall(r"^n\d{8} 0\.\d{3} \w", printed[index], re.MULTILINE)) == 2


def test_readme_is_short():
    assert len(TEXTS["README.md"].splitlines()) <= MOST_LINES_OF_THE_README


@pytest.mark.parametrize("name", TEXTS)
def test_lines_can_be_read(name):
    long = [line for line in TEXTS[name].splitlines() if len(line) > MOST_LETTERS_OF_A_LINE]
    assert long == []


@pytest.mark.parametrize("name", TEXTS)
def test_code_fits_a_narrow_window(name):
    """But patches of the package, whose lines are as long as its own."""
    blocks = re.findall(r"^```(\w*)\n(.*?)^```", TEXTS[name], re.DOTALL | re.MULTILINE)
    lines = [line for language, block in blocks if language != "diff" for line in block.splitlines()]
    assert [line for line in lines if len(line) > MOST_COLUMNS_OF_CODE] == []


def test_addresses_of_earlier_versions_lead_on():
    moved = set(re.findall(r'^    "([\w/]+)": "', (ROOT / "docs" / "conf.py").read_text(), re.MULTILINE))
    pages = {path.stem for path in (ROOT / "docs").glob("*.md")}
    assert set(PAGES_OF_0_5_0.split()) - pages <= moved
    assert not moved & pages


def test_every_page_is_in_the_index():
    assert {path.name for path in (ROOT / "docs").glob("*.md")} == set(TEXTS) - {"README.md"}


def test_every_public_name_is_documented():
    """Also in braces: `CLIP{B16,L14}` names two builders."""

    def spelled(names):
        return " ".join(f"`{names[1]}{size}`" for size in names[2].split(","))

    text = re.sub(r"`(\w+)\{([\w,]+)\}`", spelled, "\n".join(TEXTS.values()))
    missing = [name for name in keras_vit.__all__ if not re.search(rf"(?:`|keras_vit\.){name}\b", text)]
    assert missing == []


def test_page_of_models_names_every_builder():
    builders = [name for name in keras_vit.__all__ if re.fullmatch(r"R?\d*ViT\w+\d", name)]
    assert len(builders) == len(keras_vit.VARIANTS)
    assert [name for name in builders if f"`{name}`" not in TEXTS["models.md"]] == []


def test_page_of_the_architecture_names_every_room():
    rooms = {path.name + "/" * path.is_dir() for path in (ROOT / "keras_vit").iterdir()}
    rooms -= {"__init__.py", "__main__.py", "__pycache__/", "py.typed"}
    assert [room for room in sorted(rooms) if f"`{room}`" not in TEXTS["architecture.md"]] == []


@pytest.mark.parametrize("path", [*PAGES, ROOT / "docs" / "index.md"], ids=lambda path: path.name)
def test_links_lead_to_files_and_headings(path):
    broken = []
    for link in re.findall(r"\]\(([^)]+)\)", outside_of_blocks(path)):
        if not re.match(r"[a-z]+:", link):
            file, _, heading = link.partition("#")
            target = (path.parent / file).resolve() if file else path
            if not target.exists() or (heading and heading not in headings(target)):
                broken.append(link)
    assert broken == []


def headings(path):
    """Anchors as GitHub and MyST make them of the headings of a page."""
    titles = re.findall(r"^#+ (.+)$", outside_of_blocks(path), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in titles}


def outside_of_blocks(path):
    """The text without its blocks of code."""
    return re.sub(r"^```.*?^```", "", path.read_text(), flags=re.DOTALL | re.MULTILINE)
