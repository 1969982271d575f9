"""How the official code fine-tunes by default: google-research/vision_transformer, vit_jax/configs."""

from keras_vit.config.recipes.recipe_records import Recipe, cite

SOURCE = "google-research/vision_transformer, vit_jax/configs"
_DEFAULT = "vit_jax/configs/common.py"


def _finetune(
    name: str,
    rate: float = 0.03,
    steps: int = 10_000,
    warmup: int = 500,
    dropout: float | None = None,
    models: tuple[str, ...] = (),
    places: tuple[tuple[str, str], ...] = (),
) -> Recipe:
    return Recipe(
        name=name,
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
        accumulator_dtype="bfloat16",
        clip_norm=1.0,
        dropout_rate=dropout,
        representation_layer=False,
        accumulation_steps=8,
        image_size=384,
        augmentation="inception",
        citations=tuple({**_CITATIONS, **dict(places)}.items()),
    )


_CITATIONS = {
    "optimizer": "vit_jax/train.py",
    "batch_size": _DEFAULT,
    "learning_rate": _DEFAULT,
    "schedule": _DEFAULT,
    "warmup_steps": _DEFAULT,
    "steps": f"{_DEFAULT}: with_dataset",
    "momentum": "vit_jax/train.py",
    "accumulator_dtype": f"{_DEFAULT}: optim_dtype",
    "clip_norm": _DEFAULT,
    "final_learning_rate": "vit_jax/utils.py: the cosine ends at 0",
    "weight_decay": "vit_jax/train.py: none",
    "loss": "vit_jax/train.py",
    "label_smoothing": "vit_jax/train.py: none",
    "head_bias": "vit_jax/models_vit.py: head_bias_init",
    "representation_layer": "vit_jax/checkpoint.py: pre_logits is dropped",
    "accumulation_steps": _DEFAULT,
    "image_size": f"{_DEFAULT}: pp.crop",
    "augmentation": "vit_jax/input_pipeline.py",
    "cooldown_steps": "vit_jax/utils.py: none",
}
_AUGREG = "vit_jax/configs/augreg.py"

FINETUNE = (
    _finetune("official-finetune-cifar10"),
    _finetune(
        "official-finetune-cifar10-B/16",
        rate=0.01,
        models=("B/16",),
        places=cite(learning_rate="vit_jax/configs/vit.py: B/16 on CIFAR-10"),
    ),
    _finetune("official-finetune-cifar100"),
    _finetune("official-finetune-imagenet2012", steps=20_000),
    _finetune(
        "augreg-finetune",
        steps=500,
        warmup=100,
        dropout=0.0,
        places=cite(
            learning_rate=_AUGREG, steps=_AUGREG, warmup_steps=_AUGREG, dropout_rate=_AUGREG, image_size=_AUGREG
        ),
    ),
)
