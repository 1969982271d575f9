"""Tables 3 and 4 of arXiv:2010.11929: how its models were pre-trained and fine-tuned.

What the tables leave open is from the authors' answers on GitHub or their code, and says so.
"""

from keras_vit.config.recipes.recipe_records import Recipe, cite
from keras_vit.config.resnets import RESNETS

SOURCE = "arXiv:2010.11929"
IMAGENET_IMAGES = 1_281_167
IMAGENET21K_IMAGES = 12_400_000
JFT_IMAGES = 303_000_000
_TABLE_3 = "arXiv:2010.11929, table 3"
_TABLE_4 = "arXiv:2010.11929, table 4"

_IMAGES = {"jft300m": JFT_IMAGES, "imagenet21k": IMAGENET21K_IMAGES, "imagenet2012": IMAGENET_IMAGES}
_IMAGES_CITATION = {
    "jft300m": "arXiv:2010.11929, section 4.1",
    "imagenet21k": "official repository, issue 237: about 12.4 million images; the paper says 14 million",
    "imagenet2012": "the size of ImageNet's training set; the paper says 1.3 million",
}

# Models, data set, epochs, base rate, weight decay, dropout: the rows of table 3.
_ROWS = (
    (("B/16", "B/32"), "jft300m", (7,), 8e-4, 0.1, 0.0),
    (("L/32",), "jft300m", (7,), 6e-4, 0.1, 0.0),
    (("L/16",), "jft300m", (7, 14), 4e-4, 0.1, 0.0),
    (("H/14",), "jft300m", (14,), 3e-4, 0.1, 0.0),
    (("R50x1", "R50x2"), "jft300m", (7,), 1e-3, 0.1, 0.0),
    (("R101x1",), "jft300m", (7,), 8e-4, 0.1, 0.0),
    (("R152x1", "R152x2"), "jft300m", (7,), 6e-4, 0.1, 0.0),
    (("R50+B/16", "R50+B/32"), "jft300m", (7,), 8e-4, 0.1, 0.0),
    (("R50+L/32",), "jft300m", (7,), 2e-4, 0.1, 0.0),
    (("R50+L/16",), "jft300m", (7, 14), 4e-4, 0.1, 0.0),
    (("B/16", "B/32"), "imagenet21k", (90,), 1e-3, 0.03, 0.1),
    (("L/16", "L/32"), "imagenet21k", (30, 90), 1e-3, 0.03, 0.1),
    ((), "imagenet2012", (300,), 3e-3, 0.3, 0.1),  # ViT-*, whichever
)


def _pretrain(
    models: tuple[str, ...], data: str, epochs: int, rate: float, decay: float, dropout: float, suffix: str = ""
) -> Recipe:
    on_imagenet = data == "imagenet2012"
    is_resnet = bool(models) and set(models) <= set(RESNETS)
    return Recipe(
        name="-".join(["paper-pretrain", data, *models]) + suffix,
        source=SOURCE,
        stage="pretrain",
        models=models,
        optimizer="adamw",
        batch_size=4096,
        learning_rate=rate,
        schedule="cosine" if on_imagenet else "linear",
        final_learning_rate=0.0 if on_imagenet else 1e-5,
        warmup_steps=10_000,
        epochs=epochs,
        weight_decay=decay,
        beta_1=0.9,
        beta_2=0.999,
        clip_norm=1.0 if on_imagenet else None,
        loss="sigmoid",
        label_smoothing=1e-4,
        head_bias=-10.0,
        dropout_rate=dropout,
        stochastic_depth_rate=0.0,
        representation_layer=not is_resnet,
        image_size=224,
        augmentation="inception",
        train_images=_IMAGES[data],
        citations=_PRETRAIN_CITATIONS
        + cite(representation_layer=_ONE_LAYER if is_resnet else _HIDDEN_LAYER)
        + cite(train_images=_IMAGES_CITATION[data])
        + cite(
            final_learning_rate="the cosine ends at 0" if on_imagenet else "official repository, issue 2: linear_end"
        )
        + (cite(clip_norm="arXiv:2010.11929, table 3, caption: on ImageNet alone") if on_imagenet else ()),
    )


_HIDDEN_LAYER = "arXiv:2010.11929, section 3.1: a hidden layer before the head"
_ONE_LAYER = "arXiv:1912.11370: a ResNet's head is one layer"
_PRETRAIN_CITATIONS = cite(
    optimizer="arXiv:2010.11929, section 4.1: Adam, its decay decoupled (arXiv:2106.10270, section 3)",
    batch_size=_TABLE_3,
    learning_rate=_TABLE_3,
    schedule=_TABLE_3,
    warmup_steps=_TABLE_3,
    epochs=_TABLE_3,
    weight_decay=f"{_TABLE_3}; on kernels alone as in big_vision, the paper does not say which",
    beta_1="arXiv:2010.11929, section 4.1",
    beta_2="arXiv:2010.11929, section 4.1",
    loss="official repository, issues 2 and 34",
    label_smoothing="not in the paper; scenic's ViT configuration and official repository, issue 153",
    head_bias="official repository, issues 2 and 34",
    dropout_rate=_TABLE_3,
    stochastic_depth_rate="not used in the paper",
    image_size=_TABLE_3,
    augmentation="official repository, issue 2: the crop of the fine-tuning code, at 224 pixels",
    accumulation_steps="not in the paper; ours: batches uncut",
    cooldown_steps="no cooldown in the paper",
)

PRETRAIN = tuple(
    _pretrain((model,) if model else (), data, epochs, rate, decay, dropout, f"-{epochs}ep" if len(lengths) > 1 else "")
    for models, data, lengths, rate, decay, dropout in _ROWS
    for model in models or (None,)
    for epochs in lengths
)


_SMALL_GRID = (0.001, 0.003, 0.01, 0.03)
_CODE_WARMUP = "not in the paper; 500 in the official code, vit_jax/configs/common.py"
_SHORT_WARMUP = "not in the paper; 100 in big_vision, configs/transfer.py"

# Data set, steps, warm-up, its source, rate, grid: the rows of table 4.
_FINETUNE_ROWS = (
    ("imagenet2012", 20_000, 500, _CODE_WARMUP, 0.03, (0.003, 0.01, 0.03, 0.06)),
    ("cifar100", 10_000, 500, _CODE_WARMUP, 0.03, _SMALL_GRID),
    ("cifar10", 10_000, 500, _CODE_WARMUP, 0.03, _SMALL_GRID),
    ("oxford_iiit_pet", 500, 100, _SHORT_WARMUP, 0.03, _SMALL_GRID),
    ("oxford_flowers102", 500, 100, _SHORT_WARMUP, 0.03, _SMALL_GRID),
    ("vtab", 2_500, 200, "not in the paper; 200 in scenic's VTAB configuration", 0.01, ()),
)


def _finetune(
    data: str,
    steps: int,
    warmup: int,
    warmup_source: str,
    rate: float,
    grid: tuple[float, ...],
    size: int = 384,
    models: tuple[str, ...] = (),
    ema: float | None = None,
) -> Recipe:
    vtab = data == "vtab"
    grid_rate = f"{_TABLE_4} has the grid; 0.03 of it is the official code's default"
    return Recipe(
        name=f"paper-finetune-{data}" + (f"-{size}px" if size != 384 else ""),
        source=SOURCE,
        stage="finetune",
        models=models,
        optimizer="sgd",
        batch_size=512,
        learning_rate=rate,
        schedule="cosine",
        warmup_steps=warmup,
        steps=steps,
        momentum=0.9,
        clip_norm=1.0,
        accumulator_dtype="bfloat16",
        representation_layer=False,
        accumulation_steps=8,
        ema_momentum=ema,
        image_size=size,
        learning_rate_grid=grid,
        augmentation="resize_crop" if vtab else "inception",
        citations=_FINETUNE_CITATIONS
        + cite(
            learning_rate=_TABLE_4 if vtab else grid_rate,
            warmup_steps=warmup_source,
            augmentation="scenic's VTAB configuration; crop and flip by task" if vtab else _FINETUNE_AUGMENTATION,
            image_size=_TABLE_4 if size == 384 else "arXiv:2010.11929, section 4.1, of table 2",
        )
        + (cite(learning_rate_grid=_TABLE_4) if grid else ())
        + (cite(ema_momentum="arXiv:2010.11929, section 4.1, of table 2") if ema else ()),
    )


_FINETUNE_AUGMENTATION = "official code, vit_jax/input_pipeline.py; the paper refers to BiT"
_FINETUNE_CITATIONS = cite(
    optimizer=_TABLE_4,
    batch_size=_TABLE_4,
    schedule=_TABLE_4,
    steps=_TABLE_4,
    momentum=_TABLE_4,
    final_learning_rate="the cosine ends at 0",
    weight_decay=f"{_TABLE_4}: none",
    clip_norm=_TABLE_4,
    accumulator_dtype="official code, vit_jax/configs/common.py: optim_dtype",
    loss="official code, vit_jax/train.py",
    label_smoothing="official code, vit_jax/train.py: none",
    head_bias="arXiv:2010.11929, section 3.2: a zero-initialised head",
    representation_layer="arXiv:2010.11929, appendix D.3: one linear layer",
    accumulation_steps="not in the paper; 8 in the official code, vit_jax/configs/common.py",
    cooldown_steps="no cooldown in the paper",
)

FINETUNE = (
    *(_finetune(*row) for row in _FINETUNE_ROWS),
    _finetune(*_FINETUNE_ROWS[0], size=512, models=("L/16",), ema=0.9999),
    _finetune(*_FINETUNE_ROWS[0], size=518, models=("H/14",), ema=0.9999),
)
