"""Words of other software lead to those of this package, at every door, and `~` is the home folder."""

import contextlib
import functools
import os
import re

import numpy as np
import pytest
from conftest import make_tiny, tiny_config

import keras_vit
from keras_vit import cli
from keras_vit.checks import check_strategy_name
from keras_vit.data import open_source
from keras_vit.evaluation import measure
from keras_vit.synonyms import find_variant
from keras_vit.training.hosts.distribution import multi_process

TIMM = "vit_base_patch16_224.augreg_in21k"
build = functools.partial(keras_vit.build, tiny_config())


@pytest.mark.parametrize(
    ("call", "given", "words"),
    [
        (build, {"drop_path_rate": 0.1}, "'stochastic_depth_rate'"),
        (build, {"drop_rate": 0.1}, "'dropout_rate'"),
        (build, {"global_pool": "avg"}, "'pooling'"),
        (build, {"num_classes": 5}, "'classes'"),
        (build, {"img_size": 224}, "'input_shape'"),
        (build, {"in_chans": 1}, "'input_shape'"),
        (build, {"pretrained": True}, "'weights'"),
        (build, {"depth": 3}, "'num_layers'"),
        (build, {"pooling": "avg"}, '"gap"'),
        (keras_vit.ViTB16, {"Drop_Path_Rate": 0.1}, "'stochastic_depth_rate'"),
        (functools.partial(keras_vit.ViTConfig, 4, 12, 2, 3, 17), {"embed_dim": 3}, "'hidden_size'"),
        *[(keras_vit.ViTConfig, {name: 5}, r"build\(config, classes=") for name in ("num_classes", "classes")],
        *[(keras_vit.ViTConfig, {name: 5}, r"build\(config, input_shape=") for name in ("in_chans", "image_size")],
        (keras_vit.R50x1, {"num_classes": 5}, "'classes'"),
        (keras_vit.build, {"config": "resnet50"}, "build_resnet.'R50x1'"),
        (keras_vit.build, {"config": "resnetv2_101x3_bit"}, "build_resnet.'R101x3'"),
        (keras_vit.build, {"config": "vit-base"}, "'B/8' or 'B/16' or 'B/32'"),
        (keras_vit.build, {"config": "ViT_Large"}, "'L/16' or 'L/32'"),
        (keras_vit.FinetuneOptions, {"model": "huge"}, "'H/14'"),
        (keras_vit.build_resnet, {"config": "ResNet-152"}, "'R152x1'"),
        (keras_vit.FinetuneOptions, {"model": "resnet50"}, "'R50x1'"),
        (keras_vit.ViTB16, {"weights": "random"}, "weights='random'"),
        (functools.partial(keras_vit.finetune, "no data", "no run"), {"weights": "none"}, "weights='none'"),
        *[(keras_vit.finetune, {"data": "digits", name: "x"}, "'out'") for name in ("output", "outdir", "out_dir")],
        (functools.partial(keras_vit.finetune, "no data", "no run"), {"num_classes": 3}, "data say how many"),
        (functools.partial(keras_vit.finetune, "no data", "no run"), {"workers": 3}, "as many threads"),
        (keras_vit.strategy, {"kind": "multi"}, "'mirrored'"),
        (keras_vit.build_resnet, {"config": "R50x1", "pretrained": True}, "'weights'"),
        (keras_vit.build, {"config": TIMM}, f"'B/16'.*'hf:timm/{TIMM}'"),
        (keras_vit.build, {"config": "google/vit-base-patch16-224"}, "'B/16'.*'hf:google/vit-base-patch16-224'"),
        (keras_vit.flops, {"model": "vit_small_r26_s32_224"}, "'R26.S/32'"),
        (keras_vit.list_weights, {"model": "deit_tiny_patch16_224"}, "'Ti/16'"),
        (keras_vit.FinetuneOptions, {"model": "vit_large_patch32_384"}, "'L/32'"),
        (keras_vit.FinetuneOptions, {"lr": 0.1}, "'learning_rate'"),
        (keras_vit.FinetuneOptions, {"weight_decay": 0.1}, "find_recipe.*weight_decay="),
        (keras_vit.FinetuneOptions, {"drop_path_rate": 0.1}, "find_recipe.*stochastic_depth_rate="),
        (keras_vit.FinetuneOptions, {"global_pool": "avg"}, "VARIANTS.*pooling="),
        (functools.partial(keras_vit.finetune, "no data", "no run"), {"lr": 0.1}, "'learning_rate'"),
        (functools.partial(keras_vit.finetune, "no data", "no run"), {"strategy": "gpu"}, "'mirrored' or 'one'"),
        (keras_vit.SGD, {"lr": 0.1}, "'learning_rate'"),
        (keras_vit.AdamW, {"beta1": 0.9}, "'beta_1'"),
        (keras_vit.AdamW, {"clipnorm": 1.0}, "'global_clipnorm'"),
        (keras_vit.WarmupCosine, {"lr": 0.1}, "'base_rate'"),
        (keras_vit.WarmupLinear, {"learning_rate": 0.1}, "'base_rate'"),
        (functools.partial(keras_vit.plan, "digits", num_images=9), {"lr": 0.1}, "'learning_rate'"),
        (keras_vit.strategy, {"kind": "gpu"}, "'mirrored' or 'one'"),
        (keras_vit.strategy, {"kind": "CUDA:0"}, "'mirrored' or 'one'"),
        (keras_vit.strategy, {"kind": "one", "precision": "fp16"}, "'mixed_float16'"),
        (keras_vit.ViTB16, {"weights": "imagenet"}, "'augreg-imagenet21k.imagenet2012-224'.* 1,000 classes"),
        (keras_vit.ViTB16, {"weights": "in21k"}, "'augreg-imagenet21k'.* 21,843 classes"),
        (keras_vit.R50x1, {"weights": "imagenet"}, "'bit-imagenet2012'"),
        (keras_vit.ViTB16, {"weights": TIMM}, f"'hf:timm/{TIMM}'"),
        (keras_vit.ViTL16, {"weights": TIMM}, "for B/16"),
        (keras_vit.ViTB16, {"weights": "google/vit-base-patch16-224"}, "'hf:google/vit-base-patch16-224'"),
    ],
)
def test_words_of_others_lead_to_ours(call, given, words):
    with pytest.raises((TypeError, ValueError, FileNotFoundError), match=f"(?s)Received.*{words}"):
        call(**given)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ("finetune --lr 0.1", "--learning-rate\\?"),
        ("finetune --learning_rate=0.1", "--learning-rate\\?"),
        ("finetune --wd 0.1", "find_recipe.*weight_decay="),
        ("finetune --drop-path-rate 0.1", "find_recipe.*stochastic_depth_rate="),
        ("finetune --output_dir x", "--out\\?"),
        ("finetune --strategy gpu", "'mirrored' or 'one'"),
        ("finetune --lora-r 4", "--lora\\?"),
        (f"finetune --model {TIMM}", "'B/16'"),
        (f"predict x.png --model {TIMM}", "'B/16'"),
        ("predict x.png --model B/16 --weights imagenet", "'augreg-imagenet21k.imagenet2012-224'"),
        ("evaluate B/16 --dataset photos", "--data\\?"),
        ("weights list vit_base_patch16_224", "'B/16'"),
        ("nothing --lr 0.1", "invalid choice"),
    ],
)
def test_words_of_others_lead_to_options(arguments, words, capsys):
    with contextlib.suppress(SystemExit):  # as argparse ends
        assert cli.main(arguments.split()) == 1
    assert re.search(words, capsys.readouterr().err)


def test_names_of_models_that_are_no_variant_of_ours_are_none():
    for name in ("vit_base_patch16_clip_224.openai", "vit_so400m_patch14_siglip_224", "B/17", "photo.jpg", "resnet50"):
        assert find_variant(name) is None
    found = map(find_variant, ("vit_b_16", "ViT-B/16", "vit_giant_patch14_224", "vit_tiny_r_s16_p8_224"))
    assert list(found) == ["B/16", "B/16", "g/14", "R+Ti/16"]
    assert find_variant("google/vit-base-patch16-224-in21k") == "B/16"


def test_strategy_for_several_hosts_names_what_does_it():
    with pytest.raises(ValueError, match="KERAS_BACKEND=jax"):
        check_strategy_name("MultiWorkerMirroredStrategy")


def test_tilde_is_the_home_folder_wherever_a_path_is_taken(tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    model, photo = make_tiny(), "~/photos/a/1.png"
    for name in ("a", "b"):
        for number in range(5):
            file = tmp_path / "photos" / name / f"{number}.png"
            file.parent.mkdir(parents=True, exist_ok=True)
            pytest.importorskip("PIL.Image").new("RGB", (8, 9), (20 * number, ord(name), 0)).save(file)
    keras_vit.save_checkpoint(model, "~/w.npz")
    keras_vit.load_checkpoint(model, "~/w.npz")
    keras_vit.convert_checkpoint("~/w.npz", "~/linen.npz", "linen")
    assert keras_vit.build(tiny_config(), weights="~/w.npz", input_shape=(20, 28, 3)).load_report is not None
    assert keras_vit.read_image(photo).shape == (9, 8, 3)
    rows = [f"~/photos/{name}/{number}.png,{name}" for name in "ab" for number in range(5)]
    (tmp_path / "t.csv").write_text("\n".join(["path,label", *rows]))
    for data in ("~/photos", "~/t.csv"):
        assert sum(open_source(data).sizes.values()) == 10
    keras_vit.write_evaluation_page(measure(np.eye(2), [0, 1], ("a", "b")), "~/page")
    keras_vit.look(model, [photo], "~/seen")
    keras_vit.Checkpoints("~/state")
    with pytest.raises(FileExistsError, match=str(tmp_path)):
        keras_vit.export(model, "~/w.npz")
    with multi_process(keras_vit.FinetuneOptions(), "~/run", print) as (out, _):
        assert out == tmp_path / "run"
    assert cli.main(["weights", "inspect", "~/w.npz"]) == 0
    assert not os.path.exists("~")
