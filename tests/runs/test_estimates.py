"""What a run will take is said before its first step: time, what takes less, and disk."""

import dataclasses
import os
import re
from types import SimpleNamespace

import numpy as np
import pytest

import keras_vit
from keras_vit import cli
from keras_vit.config.progressive_resizing import ResolutionStage
from keras_vit.runs import progress as estimates
from keras_vit.runs.options import FinetuneOptions
from keras_vit.runs.progress import print_estimates

CONFIG = keras_vit.ViTConfig(patch_size=4, hidden_size=12, num_layers=4, num_heads=3, mlp_dim=17)


def prepared(steps=500, batch_size=64, image_size=(12, 20), model=None, **options):
    model = model or keras_vit.build(CONFIG, input_shape=(*image_size, 3), classes=2)
    recipe = keras_vit.RECIPES["augreg-finetune"]
    plan = SimpleNamespace(recipe=recipe, steps=steps, steps_per_epoch=steps, batch_size=batch_size, epochs=5)
    options = FinetuneOptions(model=CONFIG, **options)
    facts = {"source": SimpleNamespace(sizes={"train": 9, "validation": 4, "test": 6}), "split": "test"}
    return SimpleNamespace(
        model=model, plan=plan, stages=(ResolutionStage(1, image_size),), devices=1, options=options, **facts
    )


@pytest.fixture
def slow(monkeypatch):
    """A processor that takes 0.5 s for the forward pass of an image, and 0.4 s to compile it."""
    monkeypatch.setattr(estimates, "has_accelerator", lambda: False)
    monkeypatch.setattr(estimates, "_LONG_WORK", 0)
    monkeypatch.setattr(estimates, "_seconds_of_an_image", lambda model, timed: (0.4, 0.5))


def said_of(preparation, out):
    said = []
    print_estimates(preparation, out, said.append)
    return said


def test_long_run_on_a_processor_says_its_time_and_offers_less(slow, tmp_path):
    disk, *lines = said_of(prepared(), tmp_path / "run")
    expected = " ".join(" ".join(lines).split())
    # 64 images, each 3 passes of 0.5 s; beside them 10 times 0.4 s, and 5 times 4 and once 6 images.
    assert re.match(r"time about 13:20:17, until \S+( \S+)?: 500 steps of 96.0 s, and 0:00:17 for compiling", expected)
    assert re.search(r"--batch-size 32, about 6:40:0[89]", expected)
    assert re.search(r"--trainable last_blocks:1, about 6:40:0[89]", expected)  # forward, and back through a quarter
    assert "--image-size" not in expected  # they are small
    assert max(map(len, lines)) < 80
    assert "as 64 images took" in expected  # of which two would measure the call
    assert re.fullmatch(r"disk      at most 0.02 GB; [\d.]+ GB are free", disk)


def test_larger_images_are_offered_at_224(slow, tmp_path):
    shorter = "\n".join(said_of(prepared(image_size=(224, 448)), tmp_path))
    assert "shorter: --image-size 224 --batch-size 32, about" in shorter
    offers = re.findall(r"shorter: (.*), about", shorter)
    asked = [vars(cli._parser().parse_args(["finetune", *offer.split()])) for offer in offers]
    fields = {field.name for field in dataclasses.fields(FinetuneOptions)}
    first, second = (FinetuneOptions(**{name: one[name] for name in fields & set(one)}) for one in asked)
    assert (first.image_size, first.batch_size, second.trainable) == (224, 32, "last_blocks:1")
    head = prepared(batch_size=16, trainable="head")
    keras_vit.freeze(head.model, "head")
    expected = " ".join(said_of(head, tmp_path))
    assert "500 steps of 8.0 s" in expected  # one pass; and nothing takes less


@pytest.mark.parametrize(("locked", "step"), [(False, "192.0"), (True, "128.0")])
def test_both_towers_of_a_contrastive_run_are_timed(slow, tmp_path, locked, step):
    """64 pairs, of which each tower takes 3 passes of 0.5 s; a locked one takes 1."""
    image = keras_vit.build(CONFIG, input_shape=(12, 20, 3), include_top=False)
    text = keras_vit.build_text(keras_vit.TextConfig(40, 8, 12, num_layers=1, num_heads=2, mlp_dim=24))
    model = keras_vit.ContrastiveModel(image, text, lock_image=locked)
    printed = " ".join(said_of(prepared(model=model), tmp_path))
    assert f"500 steps of {step} s" in printed
    assert "shorter:" not in printed


def test_checkpoints_on_another_disk_are_said_by_themselves(monkeypatch, tmp_path):
    (tmp_path / "disk").mkdir()
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "checkpoints").symlink_to(tmp_path / "disk")
    known = os.stat

    def stat(path, **options):
        mode, inode, device, *others = known(path, **options)
        return os.stat_result((mode, inode, device + str(path).endswith("checkpoints"), *others))

    monkeypatch.setattr(os, "stat", stat)
    said = " ".join(map(str.strip, said_of(prepared(steps=2), tmp_path / "run")))
    assert f"disk      {tmp_path / 'run'}: at most 0.02 GB" in said
    assert f"disk      {tmp_path / 'run' / 'checkpoints'}: at most 0.00 GB" in said


def test_short_run_and_an_accelerator_are_not_timed(monkeypatch, tmp_path):
    monkeypatch.setattr(estimates, "_seconds_of_an_image", lambda model: pytest.fail("timed"))
    assert len(said_of(prepared(steps=2), tmp_path)) == 1
    monkeypatch.setattr(estimates, "has_accelerator", lambda: True)
    monkeypatch.setattr(estimates, "_LONG_WORK", 0)
    assert len(said_of(prepared(), tmp_path)) == 1


def test_an_image_is_timed_and_the_model_stays(slow, monkeypatch, tmp_path):
    monkeypatch.undo()
    monkeypatch.setattr(estimates, "_TIMING", 0.01)
    text = keras_vit.build_text(keras_vit.TextConfig(40, 8, 12, num_layers=1, num_heads=2, mlp_dim=24))
    for model in (prepared().model, text):
        before = [np.array(weight) for weight in model.variables]
        compiling, image = estimates._seconds_of_an_image(model, 3)
        assert 0 < image < 10
        assert 0 <= compiling < 60
        after = [np.array(weight) for weight in model.variables]
        assert all(np.array_equal(one, other) for one, other in zip(before, after, strict=True))
