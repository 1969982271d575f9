"""What users write, for the type checker alone: mypy passes over the right calls and must refuse the wrong ones.

Nothing here runs. An ignored error that mypy does not find is an error itself (`warn_unused_ignores`), so every line
with `type: ignore[...]` shows that the wrong call above it is caught, and by which rule.
"""

from pathlib import Path
from typing import Any, assert_type

import numpy as np

import keras_vit


def builds() -> None:
    model = keras_vit.ViTB16(weights="imagenet21k", classes=10, input_shape=(384, 384, 3), dropout_rate=0.1)
    assert_type(model, keras_vit.VisionTransformer)
    assert_type(model.config.patch_size, int)
    assert_type(model.load_report, tuple[str, ...])
    keras_vit.build("B/16", weights=Path("B_16.npz"), strict=True)
    keras_vit.build(keras_vit.ViTConfig(16, 192, 12, 3, 768, pooling="gap"), input_shape=(None, None, 3))
    keras_vit.build("B/16", classes="10")  # type: ignore[arg-type]
    keras_vit.build(16)  # type: ignore[arg-type]
    keras_vit.ViTB16(classes="10")  # type: ignore[arg-type]
    keras_vit.R50ViTL32(weights=21)  # type: ignore[arg-type]
    keras_vit.ViTB16("B/16")  # type: ignore[arg-type]


def counts(model: keras_vit.VisionTransformer) -> None:
    assert_type(keras_vit.flops(model), keras_vit.Flops)
    assert_type(keras_vit.flops("B/16", (224, 256), classes=0).total, int)
    assert_type(keras_vit.training_exaflops(model.config, images=7 * 303e6), float)
    keras_vit.flops(16)  # type: ignore[arg-type]
    keras_vit.flops("B/16", (224, 256, 3))  # type: ignore[arg-type]
    keras_vit.training_exaflops("B/16", "jft300m")  # type: ignore[arg-type]


def predicts(model: keras_vit.VisionTransformer) -> None:
    pixels = keras_vit.read_image("photo.jpg")
    assert_type(keras_vit.decode_predictions(model(model.preprocessing(pixels)), top=3)[0][0], tuple[str, str, float])
    keras_vit.preprocess_input(pixels, keras_vit.Preprocessing(image_size=(384, 384)))
    keras_vit.with_input_shape(model, (384, 512, 3))
    keras_vit.read_image(b"photo.jpg")  # type: ignore[arg-type]
    keras_vit.decode_predictions(pixels, top="3")  # type: ignore[arg-type]
    keras_vit.with_input_shape(model, 384)  # type: ignore[arg-type]


def keeps_weights(model: keras_vit.VisionTransformer) -> None:
    assert_type(keras_vit.load_checkpoint(model, "B_16.npz"), tuple[str, ...])
    assert_type(keras_vit.save_checkpoint(model, "vit.safetensors", format="timm"), Path)
    assert_type(keras_vit.convert_checkpoint("a.npz", Path("b.npz"), "linen", grid=(14, 14)), Path)
    assert_type(keras_vit.push_to_hub("run", "owner/name", license="mit", private=True), str)
    keras_vit.push_to_hub("run")  # type: ignore[call-arg]
    keras_vit.resize_pos_embed(np.zeros((1, 197, 768)), (24, 24))
    keras_vit.find_weights("imagenet21k", "B/16").config.grid(224, 224)
    keras_vit.list_weights("B/16")
    keras_vit.convert_checkpoint("a.npz", "b.npz")  # type: ignore[call-arg]
    keras_vit.load_checkpoint(model, "B_16.npz", (14, 14))  # type: ignore[call-arg]
    keras_vit.resize_pos_embed(np.zeros((1, 197, 768)), (24, 24, 3))  # type: ignore[arg-type]


def trains(model: keras_vit.VisionTransformer) -> None:
    source = keras_vit.open_source("photos/", seed=1)
    assert_type(source, keras_vit.Source)
    plan = keras_vit.plan("official-cifar10", model, num_images=source.sizes["train"], batch_size=64)
    keras_vit.load_dataset(source, batch_size=64, preprocessing=model.preprocessing, augmentation="flip")
    keras_vit.SGD(keras_vit.WarmupCosine(0.03, 500, 100), momentum=0.9, global_clipnorm=1.0)
    keras_vit.add_lora(model, 8, targets="attention")
    keras_vit.freeze(model, "last_blocks", blocks=2)
    model.compile(**plan.compile_arguments())
    model.fit(source, **plan.fit_arguments())
    assert_type(keras_vit.evaluate(model, source).accuracy, float)
    assert_type(keras_vit.probe(model, source, "knn", num_neighbors=5).deviation(), float | None)
    assert_type(keras_vit.vtab(model, ["dtd"]).mean, float | None)
    keras_vit.probe(model, source, shots=5)  # type: ignore[arg-type]
    assert_type(keras_vit.estimate_memory(model, 64).total, int)
    keras_vit.finetune("photos/", "run", keras_vit.FinetuneOptions(epochs=3), seed=1)
    keras_vit.finetune("photos/", "run", model="B/16", image_size=(224, 320), weights=Path("B_16.npz"), epochs=3)
    keras_vit.finetune("photos/", "run", epochs="3")  # type: ignore[arg-type]
    keras_vit.finetune("photos/", "run", recipe=3)  # type: ignore[arg-type]
    keras_vit.finetune("photos/", "run", epoch=3)  # type: ignore[call-arg]
    keras_vit.plan("official-cifar10")  # type: ignore[call-arg]
    keras_vit.load_dataset(source, preprocessing=model.preprocessing)  # type: ignore[call-arg]
    keras_vit.load_dataset(source, batch_size="64", preprocessing=model.preprocessing)  # type: ignore[arg-type]
    keras_vit.open_source(5)  # type: ignore[arg-type]
    keras_vit.SGD("fast")  # type: ignore[arg-type]
    keras_vit.AdamW(beta=0.9)  # type: ignore[call-arg]
    keras_vit.freeze(model, blocks="2")  # type: ignore[arg-type]
    keras_vit.FinetuneOptions(epoch=3)  # type: ignore[call-arg]


def accelerates(model: keras_vit.VisionTransformer) -> None:
    engine = keras_vit.accelerate(model, "openvino", "bfloat16", 4, batch_size=8)
    assert_type(engine, keras_vit.Engine)
    assert_type(engine(engine.preprocessing(np.zeros((1, 5, 7, 3), "uint8"))), np.ndarray)
    assert_type(engine.report.seconds, dict[str, float])
    assert_type(keras_vit.evaluate(engine, "photos/").accuracy, float)
    keras_vit.accelerate("B/16")  # type: ignore[arg-type]
    keras_vit.accelerate(model, threads="4")  # type: ignore[arg-type]
    keras_vit.evaluate("B/16", "photos/")  # type: ignore[arg-type]


def pretrains(model: keras_vit.VisionTransformer) -> None:
    masked = keras_vit.MaskedPatchPrediction(model, "pixels", rate=0.4, seed=1)
    masked.compile(keras_vit.AdamW(1e-3), accumulation_steps=2)
    assert_type(masked.model, keras_vit.VisionTransformer)
    assert_type(keras_vit.open_source("photos/").subset(500, order="random"), keras_vit.Source)
    keras_vit.finetune("photos/", "run", train_images=500)
    keras_vit.MaskedPatchPrediction(model, 3)  # type: ignore[arg-type]
    keras_vit.MaskedPatchPrediction(model, ratio=0.4)  # type: ignore[call-arg]
    keras_vit.open_source("photos/").subset("500")  # type: ignore[arg-type]
    keras_vit.finetune("photos/", "run", train_images="500")  # type: ignore[arg-type]


def exports(model: keras_vit.VisionTransformer, photos: list[np.ndarray[Any, Any]]) -> None:
    report = keras_vit.export(model, "model.onnx", format="onnx", images=photos, options={"opset": 17})
    assert_type(report, keras_vit.ExportReport)
    assert_type(report.max_difference, float | None)
    keras_vit.export(model, "served", labels=["cat", "dog"], options={"image_size": "any"})
    keras_vit.export(model, "served", topk=3)  # type: ignore[call-arg]
    keras_vit.export("B/16", "served")  # type: ignore[arg-type]
    keras_vit.export(model, "served", options=1e6)  # type: ignore[arg-type]
