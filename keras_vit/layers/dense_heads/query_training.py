"""How a head of masks learns: what it makes of the tokens around each block that has queries, with masked attention.

Source: arXiv:2503.19108, section 3, and Mask2Former, arXiv:2112.01527, section 3.2.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import keras
from keras import ops

from keras_vit.annotations import Tensor
from keras_vit.config.heads import CLASS_LOGITS, MASK_LOGITS
from keras_vit.dense import resize
from keras_vit.layers.dense_heads.masks import MaskHead
from keras_vit.layers.dropout import uniform

_HIDDEN = -1e4  # added to a logit of attention: its weight is 0, in half precision too
_PARTS, _POWER = 6, 0.9  # masked attention ends from 1/6 of all steps on, for 1/6 in each block, by EoMT's configs


class QueryBlocks:
    """The last blocks of a segmenter, which have queries, one after the other.

    Args:
        images: the input, a Keras tensor.
        known: what the first of the blocks reads, Keras tensors: `tokens`, and perhaps `rotation`, of all blocks.
        blocks: that have queries.
        norm: of their tokens, or `None`.
        head: of masks.
    """

    def __init__(
        self,
        images: Tensor,
        known: Mapping[str, Tensor],
        blocks: Sequence[keras.layers.Layer],
        norm: keras.layers.Layer | None,
        head: MaskHead,
    ) -> None:
        self._before = keras.Function([images], dict(known))
        self._blocks, self._norm, self._head = blocks, norm, head

    @property
    def seed_generator(self) -> keras.random.SeedGenerator:
        """Of all draws of the training."""
        return self._head.seed_generator

    def predict(self, images: Tensor, training: bool | None, shares: Sequence[Tensor] = ()) -> list[Any]:
        """`(class_logits, mask_logits)` before each block with queries, and after the last.

        Args:
            images: `(B, H, W, C)`.
            training: as of a call.
            shares: of the queries in each block that see the patches of their mask alone; empty for none.
        """
        known = self._before([images])
        tokens, rotation = known["tokens"], {name: known[name] for name in known if name != "tokens"}
        found = [self._answer(tokens, images, training)]
        for number, block in enumerate(self._blocks):
            bias = {"bias": self._bias(found[-1][1], images, shares[number], tokens.dtype)} if shares else {}
            tokens = block(tokens, training=training, **rotation, **bias)
            found.append(self._answer(tokens, images, training))
        return found

    def _answer(self, tokens: Tensor, images: Tensor, training: bool | None) -> tuple[Tensor, Tensor]:
        tokens = tokens if self._norm is None else self._norm(tokens, training=training)
        answers = self._head([tokens, images])
        return answers[CLASS_LOGITS], answers[MASK_LOGITS]

    def _bias(self, mask_logits: Tensor, images: Tensor, share: Tensor, dtype: Any) -> Tensor:
        """`(B, 1, T, T)`, which hides patches outside of a query's mask from it, for a share of the queries."""
        side, queries, prefix = self._head.patch_size, self._head.num_queries, self._head.num_prefix_tokens
        grid = tuple(each // side for each in ops.shape(images)[1:3])
        masks = resize(ops.cast(ops.stop_gradient(mask_logits), "float32"), grid)
        batch, patches = ops.shape(masks)[0], grid[0] * grid[1]
        is_inside = ops.reshape(ops.transpose(masks, (0, 3, 1, 2)), (batch, queries, patches)) > 0
        sees_all = uniform((batch, queries, 1), self.seed_generator) >= share
        hidden = ops.where(is_inside | sees_all, 0.0, _HIDDEN)  # (B, Q, N)
        around = ((0, 0), (prefix, patches), (prefix + queries, 0))
        return ops.cast(ops.pad(hidden, around)[:, None], dtype)


def masked_shares(step: Tensor, steps: int, blocks: int) -> list[Tensor]:
    """The share of queries with masked attention in each block with queries: from 1 to 0, block by block.

    Args:
        step: of the training, from 0.
        steps: of the whole training.
        blocks: how many have queries.
    """
    length, found = steps / _PARTS, []
    for number in range(blocks):
        begin = length * (1 + number * (_PARTS - 3) / max(blocks - 1, 1))
        left = 1 - (ops.cast(step, "float32") - begin) / length
        found.append(ops.clip(left, 0.0, 1.0) ** _POWER)
    return found
