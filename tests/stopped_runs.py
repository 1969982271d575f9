"""Small runs of `finetune`, and one that dies at a step as if it were killed."""

import numpy as np
import pytest
from conftest import numpy, tiny_config

import keras_vit.runs.finetune as module
from keras_vit.runs.finetune import finetune
from keras_vit.training.callbacks import StepFacts


class Died(BaseException):
    """What no code expects, as a kill."""


class Dying(StepFacts):
    """Ends the process, as far as one process can, at a step counted from 1; the last one that it was told."""

    at = None

    def on_train_batch_end(self, batch, logs=None):
        if int(numpy(self.model.optimizer.iterations)) == Dying.at:
            raise Died


def arrays():
    rng = np.random.default_rng(0)
    labels = np.arange(60) % 3
    images = (rng.integers(0, 120, (60, 16, 16, 1)) + 45 * labels[:, None, None, None]).astype("uint8")
    return {name: (images, labels) for name in ("train", "validation", "test")}


def run(out, **changes):
    """The result of three epochs of six steps, and what was said."""
    said = []
    options = {"model": tiny_config(num_layers=1, dropout_rate=0.1), "image_size": 16, "batch_size": 10, "epochs": 3}
    options |= {"ema_momentum": 0.9, "checkpoint_every": 2, "augmentation": "inception"}
    return finetune(arrays(), out, print_fn=said.append, **options | changes), said


def killed_run(out, step, **changes):
    """The folder of a run that died at a step."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "StepFacts", Dying)
        patch.setattr(Dying, "at", step)
        with pytest.raises(Died):
            run(out, **changes)
    return out
