"""The README's blocks run, and print what they say."""

import re

import numpy as np
import pytest
from conftest import ROOT, run_python

import keras_vit

README = (ROOT / "README.md").read_text()
BLOCKS = re.findall(r"```python\n(.*?)```(?:\n\n```text\n(.*?)```)?", README, re.DOTALL)
MARK = "=== next block ==="
pytestmark = pytest.mark.timeout(600)  # all blocks run before the first test


@pytest.fixture(scope="module")
def printed(tmp_path_factory):
    """What each block printed, run in order in one fresh process beside the files they name."""
    image = pytest.importorskip("PIL.Image")
    folder = tmp_path_factory.mktemp("readme")
    model = keras_vit.ViTTi16(classes=21843)
    model.get_layer("head").kernel.assign_add(np.random.default_rng(0).normal(0, 0.02, (192, 21843)))
    record = keras_vit.find_weights("augreg-imagenet21k", "Ti/16")
    published = folder / "mirror" / record.path
    published.parent.mkdir(parents=True)
    keras_vit.save_checkpoint(model, published)
    image.fromarray(np.random.default_rng(0).integers(0, 256, (50, 70, 3), "uint8")).save(folder / "photo.jpg")
    for index in range(60):
        channel, colour = index % 2 * 2, ("red", "blue")[index % 2]
        pixels = np.random.default_rng(index).integers(0, 60, (30, 40, 3), "uint8")
        pixels[..., channel] += 180
        photo = folder / "photos" / colour / f"{index}.png"
        photo.parent.mkdir(parents=True, exist_ok=True)
        image.fromarray(pixels).save(photo)
    code = f"\nprint({MARK!r})\n".join(block for block, _ in BLOCKS)
    place = f"import os; os.chdir({str(folder)!r}); os.environ['KERAS_VIT_MIRROR'] = 'mirror'\n"
    return run_python(f"{place}{code}", timeout=560).split(f"{MARK}\n")


@pytest.mark.parametrize("index", range(len(BLOCKS)))
def test_block_prints_what_the_readme_says(printed, index):
    block, expected = BLOCKS[index]
    expected = expected or "".join(f"{line}\n" for line in re.findall(r"^print\(.*\)  # (.*)$", block, re.MULTILINE))
    if expected:
        assert printed[index] == expected


def test_predictions_are_named(printed):
    index = next(i for i, (block, _) in enumerate(BLOCKS) if "decode_predictions" in block)
    assert len(re.findall(r"^n\d{8} 0\.\d{3} \w", printed[index], re.MULTILINE)) == 2


def test_readme_is_short_and_names_every_builder():
    assert len(README.splitlines()) < 300
    for name in keras_vit.__all__:
        if "ViT" in name and name[0].isupper() and name != "VisionTransformer":
            assert f"`{name}`" in README, name
