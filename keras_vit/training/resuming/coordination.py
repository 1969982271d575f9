"""What processes of JAX that train together share: the checkpoint to resume from, when to save, and a run's id."""

import uuid

import keras

from keras_vit.training.resuming.checkpoint_folder import Checkpoint, CheckpointFolder


def processes() -> tuple[int, int]:
    """Number of this process, and of all that train together."""
    if keras.backend.backend() != "jax":
        return 0, 1
    import jax

    return jax.process_index(), jax.process_count()


def all_reduce_max(value: int) -> int:
    """The largest value of any process, as 0 for nothing, 1 to save, a signal's number to leave."""
    if processes()[1] == 1:
        return value
    import numpy as np
    from jax.experimental import multihost_utils

    return int(np.max(multihost_utils.process_allgather(np.array(value, "int32"))))


def broadcast_latest(folder: CheckpointFolder) -> Checkpoint | None:
    """The newest valid checkpoint, as the first process finds it; the others check of it what they read."""
    process, count = processes()
    found = folder.newest() if process == 0 else None
    if count == 1:
        return found
    import numpy as np
    from jax.experimental import multihost_utils

    place = [found.facts["step"], found.facts["epoch"]] if found else [-1, 0]
    step, epoch = map(int, multihost_utils.broadcast_one_to_all(np.array(place, "int32")))
    return found if process == 0 or step < 0 else folder.opened(step, epoch)


def broadcast_run_id() -> str:
    """An id that all processes of this run share, and no other run has."""
    mark = uuid.uuid4().int % 2**31
    if processes()[1] == 1:
        return str(mark)
    import numpy as np
    from jax.experimental import multihost_utils

    return str(int(multihost_utils.broadcast_one_to_all(np.array(mark, "int32"))))
