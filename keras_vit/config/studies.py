"""The paper's ablations as configurations to build: positions (table 8), the head (figure 9), the shape (figure 8).

The settings of training, dropout and weight decay of table 3 among them, are `keras_vit.RECIPES`; subsets of a data
set are `Source.subset`.
"""

from collections.abc import Sequence

from keras_vit.checks import check_choice, check_number
from keras_vit.config.vit import ViTConfig

SHAPE_BASE = ViTConfig(32, 1024, 8, 16, 2048)  # appendix D.2; its number of heads is that of ViT-L, by our choice
SHAPE_DIMENSIONS = ("depth", "width", "mlp", "patch", "all")

# Table 8: 5-shot accuracy on ImageNet of B/16, by kind of positions and by where they are added.
TABLE_8 = {
    ("none", "stem"): 0.61382,
    ("learned", "stem"): 0.64206,
    ("learned2d", "stem"): 0.64001,
    ("relative", "stem"): 0.64032,
    ("learned", "blocks"): 0.63964,
    ("learned2d", "blocks"): 0.64046,
    ("learned", "blocks_shared"): 0.64292,
    ("learned2d", "blocks_shared"): 0.64022,
}


def position_study(config: ViTConfig) -> dict[tuple[str, str], ViTConfig]:
    """Gives the configurations of table 8: every kind of positions, wherever it can be added.

    Example:
        >>> rows = keras_vit.studies.position_study(keras_vit.VARIANTS["B/16"])
        >>> len(rows), rows["learned2d", "blocks"].position_embedding
        (8, 'learned2d')

    Args:
        config: of the model to vary.

    Returns:
        `{(position_embedding, position_injection): config}`, in the order of `TABLE_8`, which has the paper's results.

    Source: arXiv:2010.11929, appendix D.4.
    """
    return {(kind, where): config.replace(position_embedding=kind, position_injection=where) for kind, where in TABLE_8}


def head_study(config: ViTConfig) -> dict[str, ViTConfig]:
    """Gives the two configurations of figure 9: one reads its class token, the other the mean of its patches.

    Example:
        >>> models = keras_vit.studies.head_study(keras_vit.VARIANTS["B/16"])
        >>> {name: config.has_class_token for name, config in models.items()}
        {'token': True, 'gap': False}

    Args:
        config: of the model to vary; its head is one linear layer.

    Returns:
        `{pooling: config}`. The paper found them equal, each at its own learning rate.

    Source: arXiv:2010.11929, appendix D.3.
    """
    return {
        pooling: config.replace(pooling=pooling, class_token=None, representation_size=None)
        for pooling in ("token", "gap")
    }


def shape_study(
    dimension: str, factors: Sequence[float] = (0.25, 0.5, 1, 2, 4, 8), config: ViTConfig = SHAPE_BASE
) -> dict[float, ViTConfig]:
    """Gives the configurations of figure 8: one dimension of a base, or all of them, times some factors.

    Example:
        >>> models = keras_vit.studies.shape_study("depth")
        >>> {factor: config.num_layers for factor, config in models.items()}
        {0.25: 2, 0.5: 4, 1: 8, 2: 16, 4: 32, 8: 64}

    Args:
        dimension: `"depth"` (number of blocks), `"width"` (size of a token), `"mlp"` (width of the MLP), `"patch"`
            (patches as many times smaller, so more tokens), or `"all"`.
        factors: of the base; each must give whole numbers. The paper goes up to 8 times the depth, 64 blocks.
        config: the base, by default the paper's: 8 blocks, D = 1,024, M = 2,048, P = 32.

    Returns:
        `{factor: config}`.

    Raises:
        ValueError: for another dimension, or a factor that gives no whole number.

    Source: arXiv:2010.11929, appendix D.2.
    """
    check_choice("dimension", dimension, SHAPE_DIMENSIONS)
    return {factor: _scaled(config, dimension, factor) for factor in factors}


_FIELDS = {"depth": "num_layers", "width": "hidden_size", "mlp": "mlp_dim", "patch": "patch_size"}


def _scaled(config: ViTConfig, dimension: str, factor: float) -> ViTConfig:
    check_number("factors", factor)
    changed = {}
    for name, field in _FIELDS.items():
        if dimension not in (name, "all"):
            continue
        size = getattr(config, field) * (1 / factor if name == "patch" else factor) if factor > 0 else 0
        if size < 1 or size != round(size):
            raise ValueError(
                "a factor must give a whole number of at least 1 for every dimension that it scales.\n"
                f"Received: factor {factor} of {field}={getattr(config, field)}."
            )
        changed[field] = round(size)
    return config.replace(**changed)
