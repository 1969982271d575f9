"""Prefixes that training scripts put before names, as `state_dict.module.`, and which to take of several.

A file of a whole training may hold one model more than once: its moving average, or a teacher beside its student.
"""

from collections.abc import Iterable, Sequence

from keras_vit.weights.reader import CheckpointError

# Of two models the one that its own software evaluates comes first: timm takes the average, DINO the teacher, and
# I-JEPA the target encoder.
_PREFERRED = ("state_dict_ema", "model_ema", "module_ema", "ema", "teacher", "target_encoder")
_OTHERS = ("state_dict", "model_state", "model_state_dict", "model", "net", "network", "module", "student")


def preferred(prefixes: Iterable[str]) -> str:
    """The prefix whose weights are taken.

    Args:
        prefixes: each with the dot at its end, or empty for names without any.

    Raises:
        CheckpointError: if there are several, and their words do not tell which is the model.
    """
    ranked = sorted(prefixes, key=lambda prefix: (_rank(prefix), prefix))
    if len(ranked) > 1 and _rank(ranked[0]) == _rank(ranked[1]):
        raise CheckpointError(
            "a file must tell which of its models is meant, by a word of other software before the names.\n"
            f"Received: weights below {' and '.join(map(repr, ranked[:5]))}. Save one of them as a file of its own."
        )
    return ranked[0]


def remark_on(taken: str, prefixes: Sequence[str]) -> tuple[str, ...]:
    """A line on the models of a file that are not taken, if there are any."""
    others = sorted(prefix for prefix in prefixes if prefix != taken)
    return (f"took {taken.rstrip('.')!r}, and not {', '.join(repr(o.rstrip('.')) for o in others)}",) if others else ()


def _rank(prefix: str) -> int:
    """0 for no prefix, then the words in their order, then unknown ones."""
    words = prefix.split(".")
    known = [place for place, word in enumerate((*_PREFERRED, *_OTHERS), 1) if word in words]
    return 0 if not prefix else min(known, default=len(_PREFERRED) + len(_OTHERS) + 1)
