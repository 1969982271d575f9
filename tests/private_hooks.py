"""What the package breaks without, of each private hook of Keras, and where a public way may be by then."""

import contextlib

import keras
import pytest

# Of each hook: what breaks without it, and what to do then.
ADVICE = {
    "flatten_layers": (
        "freezing, LoRA, quantised blocks in a .keras file, dropout under `rematerialize`, the memory estimate",
        "a public list of a layer's parts; else let `CompositeLayer` name its own parts, and walk over those",
    ),
    "settle_policy": (
        "saving a quantised model that was reloaded before (`CompositeLayer.build_parts`)",
        "a public setter of one layer's own policy; else hand the layers inside their own policies as they are made",
    ),
    "set_initializer": (
        "building from a file: `deferred_variables` and `initialise`, so every `weights=`, twin and merged LoRA",
        "a public way to give a variable made in `StatelessScope(initialize_variables=False)` its value; else build "
        "the model as usual and `assign`, which draws at random first and takes twice the memory",
    ),
    "forget_waiting_variables": (
        "memory after a model that could not be built: what it had of variables would be made by the next one",
        "a public way to drop variables made in `StatelessScope(initialize_variables=False)`; else `discard` each",
    ),
    "layout_of": (
        "moments of SGD and AdamW spread over devices as the weights are, on JAX",
        "a public layout of a variable; else ask `keras.distribution.distribution().get_variable_layout(variable)`",
    ),
    "track_loss": (
        "`loss` in the logs of `fit` with `accumulation_steps` on TensorFlow",
        "a public tracker of the loss; else a `keras.metrics.Mean` of our own in `VisionTransformer.metrics`",
    ),
    "updated_metrics": (
        "logs and metrics of `fit` with `accumulation_steps` on JAX",
        "how `train_step` of `keras/src/backend/jax/trainer.py` makes its logs now; else update the metrics in a "
        "`keras.StatelessScope` of our own",
    ),
    "update_metrics": (
        "metrics of batches that are filled up for JAX's devices, which would count what fills them",
        "a public way to hand a weight to metrics of `metrics=`; else hold `compile`'s metrics in "
        "`VisionTransformer.compile`, and update them by hand",
    ),
    "scalar_metrics": (
        "the refusal of metrics that give one number for a whole batch, on several devices",
        "a public function of `keras.metrics.MeanMetricWrapper`; else say in docs/devices.md that nothing refuses them",
    ),
    "start_at_epoch": (
        "`Checkpoints`, and `keras-vit finetune` that goes on: the epochs before are trained again",
        "what `on_train_begin` of `keras.callbacks.BackupAndRestore` does now",
    ),
    "build_metrics": (
        "metrics of an epoch in which `Checkpoints` goes on, on TensorFlow",
        "a public way to build metrics before the first step, as `on_train_begin` comes after them",
    ),
    "tensors_into": (
        "looking inside a Vision Transformer that is a layer of a user's own model",
        "a public input of a model among the layers; else ask for the inner model and the images that it gets",
    ),
    "schedule_of": (
        "`learning_rate` in `metrics.csv`, in the logs of `StepFacts` and in the message of `NonFiniteGuard`",
        "a public schedule of an optimizer; else keep it in `GuardedOptimizer.__init__`, under a name of our own",
    ),
    "averages_of": (
        "evaluation and `best.keras` of runs with Polyak averaging (`AveragedWeights`)",
        "public averages of an optimizer; else `keras.callbacks.SwapEMAWeights`, which rounds the weights",
    ),
    "clip_after_sum": (
        "optimizers of Keras with `clipnorm`, `global_clipnorm` or `clipvalue` on several devices",
        "how `apply` of `keras/src/optimizers/base_optimizer.py` clips now; else refuse such optimizers in "
        "`model/strategies.py`, whose users take `keras_vit.SGD` or `AdamW`",
    ),
    "flash_attention_was_enabled": (
        "the refusal of `keras.config.enable_flash_attention`, which nothing but a GPU looks at",
        "whether `keras.config.is_flash_attention_enabled` tells by now that it was called; then use that",
    ),
    "gpu_memory_limit": (
        "`available_memory` on a GPU of TensorFlow, and so `check_memory` and the micro-batches of `finetune`",
        "a limit in `tf.config.experimental.get_memory_info`; else `None`, so that nothing is refused",
    ),
    "without_tuning": (
        "time of `fit`, `evaluate` and `predict` on arrays: up to twice as long without it, with the same numbers",
        "whether `predict` of a second's images returns within it by now; then nothing need stand before the three",
    ),
    "HookedModel": (
        "a first batch that two devices cannot share evenly, under MirroredStrategy; on the OpenVINO backend, float32 "
        "where the processor knows bfloat16, and answers after new weights",
        "whether `fit` of a plain model takes 7 images in a batch of 7 on two devices by now, and what "
        "`_get_compiled_model` of `keras/src/backend/openvino/trainer.py` hands to `ov.compile_model`; what neither "
        "needs can go",
    ),
    "HookedOptimizer": (
        "SGD and AdamW: the norm over all devices, steps that are left out, decay of kernels only, float16",
        "how `apply` of `keras/src/optimizers/base_optimizer.py` and its TensorFlow class come to `update_step` now, "
        "and override what clips, decays and sums there",
    ),
}


@contextlib.contextmanager
def relies_on(hook):
    """Says of a failure inside what it means."""
    breaks, instead = ADVICE[hook]
    try:
        yield
    except Exception as error:
        pytest.fail(
            f"Keras {keras.__version__} is not what `keras_private.{hook}` needs: {type(error).__name__}: {error}\n"
            f"What breaks: {breaks}.\nWhat to do: look for {instead}."
        )
