"""Recipes of our own, for training small models on small data from scratch; no paper has these numbers."""

from keras_vit.config.recipes.records import Recipe, cite

SOURCE = "keras_vit, not published"
_OURS = "not in a paper; ours"
_USUAL = "arXiv:2010.11929, table 3, as its models on ImageNet"


def _from_scratch(name, augmentation) -> Recipe:
    return Recipe(
        name=name,
        source=SOURCE,
        stage="pretrain",
        optimizer="adamw",
        batch_size=32,
        learning_rate=1e-3,
        schedule="cosine",
        warmup_fraction=0.1,
        epochs=60,
        weight_decay=0.1,
        beta_1=0.9,
        beta_2=0.999,
        clip_norm=1.0,
        augmentation=augmentation,
        citations=cite(
            **dict.fromkeys(("batch_size", "learning_rate", "warmup_fraction", "epochs", "weight_decay"), _OURS),
            **dict.fromkeys(("optimizer", "schedule", "beta_1", "beta_2", "clip_norm"), _USUAL),
            **dict.fromkeys(("augmentation", "accumulation_steps", "loss", "label_smoothing", "head_bias"), _OURS),
            **dict.fromkeys(("final_learning_rate", "cooldown_steps"), _OURS),
        ),
    )


RECIPES = (
    _from_scratch("digits", "digits"),  # the embedded set of 8 x 8 pixels
    _from_scratch("small", "inception"),  # a small ViT on a folder of photos
)
