"""arXiv:2106.10270, "How to train your ViT?": 28 configurations of pre-training on two data sets, and its transfers.

Seven levels of augmentation, with or without dropout and stochastic depth of 0.1, two weight decays. What the paper
leaves open is from big_vision's configurations vit_i1k and vit_i21k, which its authors published for it.
"""

from keras_vit.config.recipes.paper_recipes import IMAGENET21K_IMAGES, IMAGENET_IMAGES
from keras_vit.config.recipes.recipe_records import Recipe, cite

SOURCE = "arXiv:2106.10270"
LEVELS = ("none", "light1", "light2", "medium1", "medium2", "strong1", "strong2")
WEIGHT_DECAYS = (0.03, 0.1)
DROP_RATES = (0.0, 0.1)  # of dropout and stochastic depth at once
_LENGTHS = (("imagenet2012", 300), ("imagenet21k", 30), ("imagenet21k", 300))  # data set, epochs
_TEXT = "arXiv:2106.10270, section 3"
_TABLE_4 = "arXiv:2106.10270, table 4"


def _pretrain(data: str, epochs: int, level: str, decay: float, rate: float) -> Recipe:
    on_21k = data == "imagenet21k"
    return Recipe(
        name=f"augreg-pretrain-{data}-{epochs}ep-{level}-wd{decay:g}-do{rate:.1f}",
        source=SOURCE,
        stage="pretrain",
        optimizer="adamw",
        batch_size=4096,
        learning_rate=1e-3,
        schedule="cosine",
        warmup_steps=10_000,
        epochs=epochs,
        weight_decay=decay,
        beta_1=0.9,
        beta_2=0.999,
        accumulator_dtype="bfloat16",
        clip_norm=1.0,
        loss="sigmoid",
        head_bias=-10.0 if on_21k else -6.9,
        dropout_rate=rate,
        stochastic_depth_rate=rate,
        image_size=224,
        augmentation=f"augreg-{level}",
        train_images=IMAGENET21K_IMAGES if on_21k else IMAGENET_IMAGES,
        citations=_PRETRAIN_CITATIONS + cite(train_images=_IMAGES_21K if on_21k else _IMAGES),
    )


_IMAGES = "the size of ImageNet's training set"
_IMAGES_21K = "official repository, issue 237: about 12.4 million images"
_PRETRAIN_CITATIONS = cite(
    optimizer=_TEXT,
    batch_size=_TEXT,
    learning_rate=_TEXT,
    schedule=_TEXT,
    warmup_steps=_TEXT,
    epochs=_TEXT,
    weight_decay=f"{_TEXT}: times the rate; on kernels alone as in big_vision",
    beta_1="big_vision, configs/vit_i1k.py and vit_i21k.py: default of optax.scale_by_adam",
    beta_2="big_vision, configs/vit_i1k.py and vit_i21k.py: default of optax.scale_by_adam",
    accumulator_dtype="big_vision, configs/vit_i1k.py and vit_i21k.py: mu_dtype",
    clip_norm=_TEXT,
    final_learning_rate="the cosine ends at 0",
    loss="big_vision, configs/vit_i1k.py and vit_i21k.py",
    label_smoothing="big_vision, configs/vit_i1k.py and vit_i21k.py: none",
    head_bias="big_vision, configs/vit_i1k.py (-6.9) and vit_i21k.py (-10)",
    dropout_rate=_TEXT,
    stochastic_depth_rate=_TEXT,
    image_size=_TEXT,
    augmentation=_TEXT,
    accumulation_steps="not in the paper; ours: batches uncut",
    cooldown_steps="no cooldown in the paper",
)

PRETRAIN = tuple(
    _pretrain(data, epochs, level, decay, rate)
    for data, epochs in _LENGTHS
    for level in LEVELS
    for decay in WEIGHT_DECAYS
    for rate in DROP_RATES
)


_SHORT, _MIDDLE, _LONG, _LONGEST = (500, 100), (2_500, 200), (10_000, 500), (20_000, 500)  # steps, warm-up
_GRID = (0.001, 0.003, 0.01)
# Data set, (steps, warm-up) that were tried, rates that were tried: table 4.
_TRANSFERS = (
    ("imagenet2012", (_LONGEST,), (0.01, 0.03)),
    ("oxford_iiit_pet", (_SHORT, _MIDDLE), _GRID),
    ("kitti", (_SHORT, _MIDDLE), _GRID),
    ("cifar100", (_MIDDLE, _LONG), _GRID),
    ("resisc45", (_MIDDLE, _LONG), _GRID),
    ("vtab", (_SHORT, _MIDDLE), (0.001, 0.003, 0.01, 0.03)),
)


def _transfer(data: str, steps: int, warmup: int, grid: tuple[float, ...], size: int) -> Recipe:
    vtab = data == "vtab"
    return Recipe(
        name=f"augreg-transfer-{data}-{steps}steps-{size}px",
        source=SOURCE,
        stage="finetune",
        optimizer="sgd",
        batch_size=512,
        learning_rate=0.01,
        schedule="cosine",
        warmup_steps=warmup,
        steps=steps,
        momentum=0.9,
        accumulator_dtype="bfloat16",
        clip_norm=1.0,
        dropout_rate=0.0,
        stochastic_depth_rate=0.0,
        representation_layer=False,
        accumulation_steps=8,
        image_size=size,
        learning_rate_grid=grid,
        augmentation="resize_crop" if vtab else "inception",
        citations=_TRANSFER_CITATIONS
        + cite(
            warmup_steps="not in the paper for VTAB; ours: that of its other runs of this length" if vtab else _TABLE_4
        ),
    )


_TRANSFER_CITATIONS = cite(
    optimizer=_TABLE_4,
    batch_size=_TABLE_4,
    learning_rate="not in the paper, which takes the best of the grid; ours: 0.01, which every grid has",
    learning_rate_grid=_TABLE_4,
    schedule=_TABLE_4,
    steps=_TABLE_4,
    momentum=_TABLE_4,
    final_learning_rate="the cosine ends at 0",
    weight_decay="arXiv:2106.10270, section 3: none in transfer",
    accumulator_dtype="official code, vit_jax/configs/common.py: optim_dtype",
    clip_norm="official code, vit_jax/configs/common.py",
    loss="official code, vit_jax/train.py",
    label_smoothing="official code, vit_jax/train.py: none",
    head_bias="official code, vit_jax/checkpoint.py: a zero-initialised head",
    dropout_rate="official code, vit_jax/configs/augreg.py: forced to 0",
    stochastic_depth_rate="official code has none",
    representation_layer="official code, vit_jax/checkpoint.py: pre_logits is dropped",
    accumulation_steps="official code, vit_jax/configs/common.py",
    image_size="arXiv:2106.10270, section 3: 224 and 384",
    augmentation="not in the paper's table; the crop of the official code, for VTAB that of scenic's configuration",
    cooldown_steps="no cooldown in the paper",
)

TRANSFER = tuple(
    _transfer(data, steps, warmup, grid, size)
    for data, lengths, grid in _TRANSFERS
    for steps, warmup in lengths
    for size in (224, 384)
)
