"""Published hyper-parameters as frozen records, each number with its source: `RECIPES`.

Names begin with who published them: `paper-` (arXiv:2010.11929), `official-` (its code), `augreg-` (arXiv:2106.10270),
`big_vision-`; `digits` and `small` are our own. Nothing here imports Keras.
"""

from keras_vit.config.recipes import augreg, big_vision, official, ours, paper
from keras_vit.config.recipes.records import Recipe, RecipeTable, find_in

__all__ = ["RECIPES", "Recipe", "find_recipe"]

RECIPES = RecipeTable(
    (
        *(*paper.PRETRAIN, *paper.FINETUNE, *official.FINETUNE, *augreg.PRETRAIN, *augreg.TRANSFER),
        *(*big_vision.PRETRAIN, *big_vision.TRANSFER, *ours.RECIPES),
    )
)


def find_recipe(name_or_record: Recipe | str) -> Recipe:
    """The recipe of this name.

    Args:
        name_or_record: a name in `RECIPES`, or a `Recipe`, which is returned as it is.

    Raises:
        ValueError: for an unknown name; the error lists the nearest ones.
        TypeError: for anything else.
    """
    return find_in(RECIPES, name_or_record)
