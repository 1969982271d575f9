"""Published hyper-parameters as frozen records, each number with its source: `RECIPES`.

Names begin with who published them: `paper-` (arXiv:2010.11929), `official-` (its code), `augreg-` (arXiv:2106.10270),
`big_vision-`; `digits` and `small` are our own. Nothing here imports Keras.
"""

from keras_vit.config.recipes import augreg_recipes, big_vision_recipes, official_recipes, paper_recipes
from keras_vit.config.recipes.recipe_records import Recipe, RecipeTable, cite, find_in

__all__ = ["RECIPES", "Recipe", "find_recipe"]

_SOURCE = "keras_vit, not published"
_OURS = "not in a paper; ours"
_USUAL = "arXiv:2010.11929, table 3, as its models on ImageNet"


def _from_scratch(name: str, augmentation: str) -> Recipe:
    return Recipe(
        name=name,
        source=_SOURCE,
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


_SMALL = (
    _from_scratch("digits", "digits"),  # the embedded set of 8 x 8 pixels
    _from_scratch("small", "inception"),  # a small ViT on a folder of photos
)

RECIPES = RecipeTable(
    (
        *(*paper_recipes.PRETRAIN, *paper_recipes.FINETUNE, *official_recipes.FINETUNE),
        *(*augreg_recipes.PRETRAIN, *augreg_recipes.TRANSFER),
        *(*big_vision_recipes.PRETRAIN, *big_vision_recipes.TRANSFER, *_SMALL),
    )
)


def find_recipe(name_or_record: Recipe | str) -> Recipe:
    """Finds a published recipe by its name.

    Example:
        >>> keras_vit.find_recipe("augreg-finetune").schedule
        'cosine'
        >>> [name for name in keras_vit.RECIPES if "finetune" in name][:3]
        ['paper-finetune-imagenet2012', 'paper-finetune-cifar100', 'paper-finetune-cifar10']

    Args:
        name_or_record: a name in `RECIPES`, or a `Recipe`, which is returned as it is.

    Raises:
        ValueError: for an unknown name; the error lists the nearest ones.
        TypeError: for anything else.
    """
    return find_in(RECIPES, name_or_record)
