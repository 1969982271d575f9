"""Parts of Vision Transformers that a model without them cannot do for, by the names that their weights have in files.

Some are of no model here. Others are, in files of other families, so under names that the layout at hand does not have.
"""

import re
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

from keras_vit.weights.reader import CheckpointError

_PARTS = {  # regular expressions of a part of the name: what it is
    r"\brope|rotary|freqs|inv_freq": "rotary positions",
    r"\.[qk]_norm\.|\.(query|key)_norm\.": "a LayerNorm of queries and keys (`qk_norm`)",
    r"relative_position_bias|relative_position_index|\.rel_pos": "a relative position bias",
    r"^layers\.\d+\.blocks\.|^stages\.|\.downsample\.reduction": "stages with windows or merged patches (Swin)",
    r"^patch_embed\.(norm|conv|backbone\.(?!stem|stages|conv|norm))|^stem\.": "another stem or a LayerNorm of patches",
    r"^blocks_token_only|talking_head|proj_[lw]\.": "class attention or talking heads (CaiT)",
    r"logit_scale|text_(model|projection)|token_embedding|^visual\.": "a text tower",
    r"\.(adapter|lora_[AB])\.|lora_": "adapters, as LoRA: merge them into the weights first",
}


def check_parts(path: Path, tensors: Mapping[str, Any], wanted: Collection[str]) -> None:
    """Raises for a file whose model has what no model here has.

    Args:
        path: of the file.
        tensors: of the file, by our paths where they have one.
        wanted: our paths of the model's weights.

    Raises:
        CheckpointError: that names the parts, and a weight of each.
    """
    extra = [name for name in tensors if name not in wanted]
    if found := _named(extra):
        raise CheckpointError(
            "the file has parts that its layout here has no name for, and without these its numbers would be others.\n"
            f"Received: {path} with {'; '.join(found)}. Take a checkpoint of a plain ViT as its software writes it, or "
            "use that software."
        )


def _named(names: Collection[str]) -> list[str]:
    """Each part that a name tells, with the first such name."""
    firsts = {part: next(filter(re.compile(pattern).search, names), None) for pattern, part in _PARTS.items()}
    return [f"{part}, as {name}" for part, name in firsts.items() if name is not None]
