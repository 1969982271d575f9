"""The ablations of the paper as choices of a config, and what each of them needs of the other fields.

Appendix D.4 (kinds of positions, and where they are added) and D.6 (axial attention) of arXiv:2010.11929; token
merging is arXiv:2210.09461. A layer of its own has each of them; the rest of the package does not know them.
"""

import dataclasses
from collections.abc import Mapping
from typing import Any

POSITION_EMBEDDINGS = ("learned2d", "relative")
POSITION_INJECTIONS = ("blocks", "blocks_shared")
ATTENTIONS = ("axial",)


@dataclasses.dataclass(frozen=True)
class Rule:
    """What some values of one field need of other fields.

    Attributes:
        reason: why, as a sentence.
        when: the field, and the values of it for which the rule holds; `None` for every value that is not zero.
        needs: other fields or properties of the config, and the values that go together with these.
        advice: what to do.
    """

    reason: str
    when: Mapping[str, tuple | None]
    needs: Mapping[str, tuple]
    advice: str

    def check(self, config: Any) -> None:
        """Raises a `ValueError` if a config breaks the rule."""
        for name, values in self.when.items():
            value = getattr(config, name)
            if not (value if values is None else value in values):
                return
        wrong = [
            f"{name}={getattr(config, name)!r}" for name, fit in self.needs.items() if getattr(config, name) not in fit
        ]
        if wrong:
            asked = ", ".join(f"{name}={getattr(config, name)!r}" for name in self.when)
            raise ValueError(f"{self.reason}\nReceived: {asked} with {', '.join(wrong)}. {self.advice}")


RULES = (
    Rule(
        "`position_injection` says where a position table is added to tokens, and there is none: relative positions "
        "are inside of every block's attention.",
        {"position_injection": POSITION_INJECTIONS},
        {"position_embedding": ("learned", "learned2d", "sincos2d")},
        "Leave `position_injection` out.",
    ),
    Rule(
        "positions that blocks add are those of all patches, and `patch_dropout_rate` leaves some out.",
        {"patch_dropout_rate": None},
        {"position_injection": ("stem",)},
        'Pass `position_injection="stem"`.',
    ),
    Rule(
        '`attention="axial"` attends along rows and columns of all patches, in none of which a prefix token is, and '
        "whose positions are added before the blocks.",
        {"attention": ("axial",)},
        {
            "prefix_tokens": ((),),
            "position_embedding": ("learned", "learned2d", "sincos2d", "none"),
            "patch_dropout_rate": (0,),
        },
        'Pass `pooling="gap"`, or `"map"`, or `"none"` with `class_token=False`.',
    ),
    Rule(
        "tokens are merged between blocks that attend to all, whose places no block asks for, and behind which the "
        "class token or the mean is read.",
        {"merged_tokens": None},
        {
            "pooling": ("token", "gap", "token_gap"),
            "attention": ("global",),
            "position_embedding": ("learned", "learned2d", "sincos2d", "none"),
            "position_injection": ("stem",),
            "patch_dropout_rate": (0,),
            "rematerialize": (False,),
        },
        "Leave out either.",
    ),
)
