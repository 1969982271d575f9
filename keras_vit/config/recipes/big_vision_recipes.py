"""Configurations of google-research/big_vision: ImageNet and ImageNet-21k, the better plain ViT-S, and transfers.

Its weight decay is absolute, the peak rate times ours: 1e-4 there is 0.1 here. It means no decay but on kernels.
The better plain ViT-S/16 is arXiv:2205.01580.
"""

from typing import Any

from keras_vit.config.recipes.paper_recipes import IMAGENET21K_IMAGES, IMAGENET_IMAGES
from keras_vit.config.recipes.recipe_records import Recipe, cite

SOURCE = "google-research/big_vision"
_TRAIN_IMAGES = IMAGENET_IMAGES * 99 // 100  # train[:99%]
_ADAM_DEFAULT = "default of optax.scale_by_adam"


def _pretrain(name: str, file: str, batch_size: int, epochs: int, augmentation: str, **fields: Any) -> Recipe:
    return Recipe(
        name=name,
        stage="pretrain",
        optimizer="adamw",
        batch_size=batch_size,
        learning_rate=1e-3,
        schedule="cosine",
        warmup_steps=10_000,
        epochs=epochs,
        weight_decay=0.1,
        beta_1=0.9,
        beta_2=0.999,
        accumulator_dtype="bfloat16",
        clip_norm=1.0,
        image_size=224,
        augmentation=augmentation,
        citations=_citations(file),
        **fields,
    )


def _citations(file: str) -> tuple[tuple[str, str], ...]:
    config = f"configs/{file}"
    from_file = dict.fromkeys(_FROM_FILE, config)
    return tuple({**from_file, **dict(_BESIDE), "weight_decay": f"{config}: wd / lr"}.items())


_FROM_FILE = (
    *("optimizer", "batch_size", "learning_rate", "schedule", "warmup_steps", "epochs", "accumulator_dtype"),
    *("clip_norm", "loss", "head_bias", "representation_layer", "model_fields", "image_size", "augmentation"),
)
_BESIDE = cite(
    beta_1=_ADAM_DEFAULT,
    beta_2=_ADAM_DEFAULT,
    final_learning_rate="utils.py: the cosine ends at 0",
    label_smoothing="none in the configuration",
    accumulation_steps="not in the configuration; ours: batches uncut",
    cooldown_steps="none in the configuration",
    train_images="99 % of ImageNet's training set; of ImageNet-21k issue 237 of the official repository",
)

_PLAIN = tuple(
    _pretrain(
        f"big_vision-vit_s16_i1k-{epochs}ep",
        "vit_s16_i1k.py",
        1024,
        epochs,
        "big_vision-vit_s16",
        source="arXiv:2205.01580, and its configuration in big_vision",
        models=("S/16",),
        loss="softmax",
        representation_layer=True,
        model_fields=(("pooling", "gap"), ("position_embedding", "sincos2d")),
        train_images=_TRAIN_IMAGES,
    )
    for epochs in (90, 150, 300)
)

_IMAGENET_LEVELS = (
    *(("Ti/16", "light1"), ("S/32", "medium1"), ("S/16", "medium2")),
    *(("B/32", "medium2"), ("B/16", "medium2"), ("L/16", "medium2")),
)
_IMAGENET = tuple(
    _pretrain(
        f"big_vision-vit_i1k-{model}",
        "vit_i1k.py",
        4096,
        300,
        f"augreg-{level}",
        source=SOURCE,
        models=(model,),
        loss="sigmoid",
        head_bias=-6.9,
        representation_layer=True,
        model_fields=(("pooling", "token"),),
        train_images=_TRAIN_IMAGES,
    )
    for model, level in _IMAGENET_LEVELS
)

_IMAGENET21K_LEVELS = (
    *(("Ti/16", "none"), ("S/32", "none"), ("S/16", "light1")),
    *(("B/32", "light2"), ("B/16", "light2"), ("L/16", "medium2")),
)
_IMAGENET21K = tuple(
    _pretrain(
        f"big_vision-vit_i21k-{model}",
        "vit_i21k.py",
        4096,
        300,
        f"augreg-{level}",
        source=SOURCE,
        models=(model,),
        loss="sigmoid",
        head_bias=-10.0,
        representation_layer=False,
        model_fields=(("pooling", "gap"),),
        train_images=IMAGENET21K_IMAGES,
    )
    for model, level in _IMAGENET21K_LEVELS
)

PRETRAIN = _PLAIN + _IMAGENET + _IMAGENET21K


_TRANSFER = "configs/transfer.py"
# Data set, steps, warm-up, rate, crop: the best for AugReg's B/32, as the file's head tells.
_TRANSFERS = (
    ("imagenet2012", 20_000, 500, 0.03, "inception"),
    ("cifar10", 10_000, 500, 0.003, "resmall_crop"),
    ("cifar100", 10_000, 500, 0.01, "resmall_crop"),
    ("oxford_iiit_pet", 500, 100, 0.003, "inception"),
    ("oxford_flowers102", 500, 100, 0.003, "inception"),
)


def _transfer(data: str, steps: int, warmup: int, rate: float, crop: str) -> Recipe:
    return Recipe(
        name=f"big_vision-transfer-{data}",
        source=SOURCE,
        stage="finetune",
        models=("B/32",),
        optimizer="sgd",
        batch_size=512,
        learning_rate=rate,
        schedule="cosine",
        warmup_steps=warmup,
        steps=steps,
        momentum=0.9,
        accumulator_dtype="bfloat16",
        clip_norm=1.0,
        dropout_rate=0.0,
        representation_layer=False,
        image_size=384,
        augmentation=crop,
        citations=_TRANSFER_CITATIONS,
    )


_TRANSFER_CITATIONS = cite(
    **dict.fromkeys(("batch_size", "schedule", "warmup_steps", "steps", "clip_norm", "loss", "image_size"), _TRANSFER),
    optimizer=f"{_TRANSFER}: momentum_hp",
    momentum="optax.py: momentum_hp",
    accumulator_dtype="optax.py: momentum_hp",
    learning_rate=f"{_TRANSFER}: best on held-out data for AugReg's B/32",
    augmentation=f"{_TRANSFER}: best on held-out data for AugReg's B/32; and a flip",
    final_learning_rate="utils.py: the cosine ends at 0",
    weight_decay=f"{_TRANSFER}: none",
    label_smoothing=f"{_TRANSFER}: none",
    head_bias=f"{_TRANSFER}: a zero-initialised head",
    dropout_rate="models/vit.py: default",
    representation_layer="models/vit.py: default",
    accumulation_steps=f"not in {_TRANSFER}; ours: batches uncut",
    cooldown_steps=f"{_TRANSFER}: none",
)

TRANSFER = tuple(_transfer(*row) for row in _TRANSFERS)
