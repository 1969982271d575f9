"""What a `config.json` of transformers says in words of single families."""

from pathlib import Path
from typing import Any

from keras_vit.config.parts import QKV_BIASES
from keras_vit.weights.sidecar.facts import not_computed

_GATES = ("silu", "swish")


def gated_mlp_of(config: dict, place: Path) -> bool | None:
    """Whether the MLP is gated, `None` where nothing is said.

    Raises:
        CheckpointError: for a gate that is not a SiLU.
    """
    gated, gate = config.get("use_gated_mlp"), config.get("hidden_act")
    if gated is True and gate not in _GATES:
        raise not_computed("gate of the MLP", gate, place, "SiLU")
    return gated if isinstance(gated, bool) else None


def biases_of(config: dict, place: Path) -> dict[str, str]:
    """`qkv_bias`, if all three are said.

    Raises:
        CheckpointError: for biases that are none of ours.
    """
    said = {role: config.get(f"{role}_bias") for role in QKV_BIASES["all"]}
    if not all(isinstance(bias, bool) for bias in said.values()):
        return {}
    there = tuple(role for role, bias in said.items() if bias)
    word = next((word for word, roles in QKV_BIASES.items() if roles == there), None)
    if word is None:
        known = "; ".join(" and ".join(roles) or "none" for roles in QKV_BIASES.values())
        raise not_computed("choice of biases in attention", " and ".join(there), place, known)
    return {"qkv_bias": word}


def rotary_of(config: dict, kind: str, place: Path) -> dict[str, Any]:
    """Fields of the rotary positions of DINOv3.

    Raises:
        CheckpointError: for frequencies by another rule than powers of one number.
    """
    if kind != "dinov3_vit":
        return {}
    rope = config.get("rope_parameters")
    rope = rope if isinstance(rope, dict) else {}
    if (rule := rope.get("rope_type", "default")) != "default":
        raise not_computed("rotary position", f"rope_type={rule!r}", place, "default")
    theta = config.get("rope_theta") or 100.0  # by which alone the class computes
    if (other := rope.get("rope_theta", theta)) != theta:
        said = f"rope_theta={theta}, and {other} in rope_parameters"
        raise not_computed("rotary position", said, place, "one theta, as `rope_theta`, which transformers computes by")
    return {"rotary": "axial", "rotary_theta": theta}
