"""Checks that need a process of their own: on another backend, or on two devices.

`python elsewhere.py KIND FILE CHECK...` runs checks of one kind and writes what each found as JSON, or its traceback.
The checks are functions of the test modules that look at the results, so that one process serves them all.
"""

import importlib
import json
import sys
import traceback
from pathlib import Path

HERE = Path(__file__).parent
CHECKS = {
    "jax": {
        "augmentation": "test_augmentation.digest_of_everything",
        "pipeline": "test_pipeline.digests_and_a_fit",
        "logits": "test_backends.predictions",
        "micro-batches": "test_accumulation.micro_batches_against_the_whole",
        "uneven batches": "test_input_checks.uneven_batches",
        "filled batches": "test_batch_padding.furthest_from_one_device",
        "layouts": "test_layout.layouts",
        "bad image": "test_callbacks.divergences",
        "golden finetuning": "test_golden_finetune.all_deviations",
        "plan": "test_plan.fit_of_a_plan",
        "schedules": "test_schedules.rates",
        "sharded checkpoints": "test_checkpoints.sharded_here",
        "views and donations": "test_checkpoints.views_and_donations",
        "looked inside": "test_attention_maps.looked_inside",
        "multiply-adds": "test_flops.traced",
        "features of images": "test_cached_features.features_here",
        "ResNet": "test_resnets.logits_here",
        "masked patches": "test_masked_patches.told_here",
        "fused attention": "test_fused.differences",
        "growing images": "test_growing.trained_here",
    },
    "torch": {"logits": "test_backends.predictions", "looked inside": "test_attention_maps.looked_inside"},
    "openvino": {"logits": "test_backends.asked_of_openvino"},
    "two devices": {
        "batches": "test_pipeline.batches_of_two_devices",
        "uneven shares": "test_replicas.uneven_shares",
        "refusals": "test_replicas.refusals",
        "reloaded": "test_replicas.reloaded",
        "distilled": "test_replicas.distilled",
        "masked patches": "test_replicas.masked",
        "recomputed": "test_replicas.recomputed",
        "wrapped": "test_replicas.wrapped",
        "parts of sums": "test_replicas.parts_of_sums",
        "weights of a file": "test_load.mirrored_weights",
        "one device": "test_mirrored.some_cases",
        "overflow": "test_mirrored.overflow_on_one_device",
        "steps at once": "test_mirrored.measured_in_steps",
        "scopes": "test_strategies.refused_scopes",
        "strategy": "test_devices.mirrored_by_one_call",
        "keras alone": "test_upstream_defects.keras_alone",
        "growing images": "test_growing.trained_on_two",
    },
}


def run(path):
    """What a check finds, from the same seed whichever ran before it."""
    import keras

    module, name = path.split(".")
    keras.utils.set_random_seed(7)
    try:
        return {"found": getattr(importlib.import_module(module), name)()}
    except Exception:
        return {"error": traceback.format_exc()}


def main(kind, out, *checks):
    sys.path[:0] = [str(HERE), *(str(path) for path in HERE.rglob("*") if path.is_dir() and "__" not in path.name)]
    from mirrored import logical_devices

    if kind == "two devices":
        logical_devices(3)
    results = {check: run(CHECKS[kind][check]) for check in checks}
    Path(out).write_text(json.dumps(results))


if __name__ == "__main__":
    main(*sys.argv[1:])
