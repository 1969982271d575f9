"""What values of a config's fields require of other fields: `CONSTRAINTS`, checked where a `ViTConfig` is made."""

import dataclasses
from collections.abc import Mapping
from typing import Any

from keras_vit.config.records import ADDED_POSITIONS


@dataclasses.dataclass(frozen=True)
class FieldConstraint:
    """What some values of one field require of other fields.

    Attributes:
        reason: why, as a sentence.
        when: the field, and the values of it for which it holds; `None` for every value that is not zero.
        requires: other fields or properties of the config, and the values that go together with these.
        advice: what to do.
    """

    reason: str
    when: Mapping[str, tuple | None]
    requires: Mapping[str, tuple]
    advice: str

    def check(self, config: Any) -> None:
        """Raises a `ValueError` if a config breaks it."""
        for name, values in self.when.items():
            value = getattr(config, name)
            if not (value if values is None else value in values):
                return
        wrong = [
            f"{name}={getattr(config, name)!r}"
            for name, fit in self.requires.items()
            if getattr(config, name) not in fit
        ]
        if wrong:
            given = ", ".join(f"{name}={getattr(config, name)!r}" for name in self.when)
            raise ValueError(f"{self.reason}\nReceived: {given} with {', '.join(wrong)}. {self.advice}")


CONSTRAINTS = (
    FieldConstraint(
        '`pooling="token"` reads the class token, so there must be one.',
        {"pooling": ("token",)},
        {"class_token": (None, True)},
        'Pass `pooling="gap"`, or leave `class_token` out.',
    ),
    FieldConstraint(
        '`pooling="token_gap"` reads one class token and the mean of the patches.',
        {"pooling": ("token_gap",)},
        {"class_token": (None, True), "class_tokens": (1,)},
        'Pass `pooling="gap"`, or leave `class_token` and `class_tokens` out.',
    ),
    FieldConstraint(
        "`distilled=True` reads a class token and a distillation token, each with a head of its own.",
        {"distilled": (True,)},
        {"pooling": ("token", "none"), "class_token": (None, True), "representation_size": (None,)},
        'Pass `pooling="token"` without `representation_size`.',
    ),
    FieldConstraint(
        "a distillation token follows one class token, and each of its two heads reads a token as it is.",
        {"distilled": (True,)},
        {"class_tokens": (1,), "projection_size": (None,), "normalize_embedding": (False,)},
        "Leave out either.",
    ),
    FieldConstraint(
        "what is pooled has one vector an image, so there must be a pooling of one token or of the mean.",
        {"final_norm": ("pooled",)},
        {"pooling": ("token", "gap"), "distilled": (False,)},
        'Pass `pooling="gap"`, or `final_norm="tokens"`.',
    ),
    FieldConstraint(
        "a norm at the end of a branch has a factor for each channel already.",
        {"norm_position": ("post",)},
        {"layer_scale": ("none",)},
        'Pass `layer_scale="none"`.',
    ),
    FieldConstraint(
        "registers have no positions, and positions that blocks add are those of all tokens.",
        {"registers": None},
        {"position_injection": ("stem",)},
        'Pass `position_injection="stem"`.',
    ),
    FieldConstraint(
        "a relative bias is that of one class token and all patches to each other.",
        {"relative_bias": ("blocks", "shared")},
        {
            "prefix_tokens": (("class",),),
            "attention": ("global",),
            "position_embedding": (*ADDED_POSITIONS, "none"),
            "rotary": ("none",),
            "merged_tokens": (0,),
        },
        "Leave out either.",
    ),
    FieldConstraint(
        "rotary positions turn queries and keys of all patches, each in its own place.",
        {"rotary": ("axial", "mixed")},
        {
            "attention": ("global",),
            "position_embedding": (*ADDED_POSITIONS, "none"),
            "merged_tokens": (0,),
        },
        "Leave out either.",
    ),
    FieldConstraint(
        "coordinates in [-1, 1] are the same on every grid, with nothing added and no other grid to go by.",
        {"rotary": ("axial", "mixed"), "rotary_coordinates": ("unit",)},
        {"rotary_offset": (0,), "rotary_reference": (None,)},
        'Pass `rotary_coordinates="grid"`.',
    ),
    FieldConstraint(
        "learned angles are of each head, and keys that heads share cannot be turned by those of each.",
        {"rotary": ("mixed",)},
        {"kv_heads": (None,)},
        "Leave `kv_heads` out.",
    ),
    FieldConstraint(
        "learned angles have no periods, which only axial ones do.",
        {"rotary": ("mixed",)},
        {"rotary_periods": ("computed",)},
        "Leave `rotary_periods` out.",
    ),
    FieldConstraint(
        "learned angles of a class token are those of one such token, and all heads share them, as axial ones.",
        {"rotary_class_angles": (True,)},
        {"rotary": ("axial",), "has_class_token": (True,), "class_tokens": (1,)},
        "Leave `rotary_class_angles` out.",
    ),
    FieldConstraint(
        "`position_injection` says where a position table is added to tokens, and there is none: relative positions "
        "are inside of every block's attention.",
        {"position_injection": ("blocks", "blocks_shared")},
        {"position_embedding": ADDED_POSITIONS},
        "Leave `position_injection` out.",
    ),
    FieldConstraint(
        "a vector that is added to all patches alike belongs to positions that are added to patches alone at the stem.",
        {"position_offset": (True,)},
        {"position_embedding": ADDED_POSITIONS, "position_injection": ("stem",), "positioned_tokens": ((),)},
        "Pass `class_token=False`, or leave `position_offset` out.",
    ),
    FieldConstraint(
        "positions that blocks add are those of all patches, and `patch_dropout_rate` leaves some out.",
        {"patch_dropout_rate": None},
        {"position_injection": ("stem",)},
        'Pass `position_injection="stem"`.',
    ),
    FieldConstraint(
        '`attention="axial"` attends along rows and columns of all patches, in none of which a prefix token is, and '
        "whose positions are added before the blocks.",
        {"attention": ("axial",)},
        {
            "prefix_tokens": ((),),
            "position_embedding": (*ADDED_POSITIONS, "none"),
            "patch_dropout_rate": (0,),
        },
        'Pass `pooling="gap"`, or `"map"`, or `"none"` with `class_token=False`.',
    ),
    FieldConstraint(
        '`attention="windowed"` is that of all patches on their grid, each with positions of its own row and column.',
        {"attention": ("windowed",)},
        {
            "prefix_tokens": ((),),
            "position_embedding": (*ADDED_POSITIONS, "none"),
            "position_injection": ("stem",),
            "patch_dropout_rate": (0,),
        },
        'Pass `pooling="gap"`, or `"map"`, or `"none"` with `class_token=False`.',
    ),
    FieldConstraint(
        "a neck makes a map of all patches, which is what the model puts out.",
        {"neck_size": None},
        {"pooling": ("none",), "prefix_tokens": ((),), "representation_size": (None,), "projection_size": (None,)},
        'Pass `pooling="none"`, or `neck_size=None` for tokens.',
    ),
    FieldConstraint(
        "token merging needs global attention, no rotary or relative positions, and token or mean pooling.",
        {"merged_tokens": None},
        {
            "pooling": ("token", "gap", "token_gap"),
            "attention": ("global",),
            "position_embedding": (*ADDED_POSITIONS, "none"),
            "position_injection": ("stem",),
            "patch_dropout_rate": (0,),
            "rematerialize": (False,),
        },
        "Leave out either.",
    ),
)
