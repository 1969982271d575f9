"""Which devices of one machine train a model, and in which precision: one call for TensorFlow's strategies."""

import contextlib
import dataclasses
import functools
import os
from collections.abc import Callable
from types import TracebackType
from typing import Any, Self

import keras

from keras_vit.checks import TRAINING_PRECISIONS, ArgumentError, check_choice, check_strategy_name
from keras_vit.model.precision import round_products
from keras_vit.model.replicated_model import check_distribution_backend

_TPU_NAMES = ("TPU_NAME", "KUBE_GOOGLE_CLOUD_TPU_ENDPOINTS")  # variables in which Google's machines name their TPUs
_NEEDS_TPU = "`strategy='tpu'` needs a TPU, and TensorFlow built for it."
_POLICIES = {"float32": "float32", "tensorfloat32": "float32"}  # of Keras, by precision, where the two differ
_BFLOAT16, _TENSOR_CORES = (8, 0), (7, 0)  # compute capabilities from which GPUs multiply in these fast


@dataclasses.dataclass(eq=False)
class Devices:
    """The devices that share every batch, as `keras_vit.strategy` found them.

    Use it by `with`: inside, models are built and compiled for these devices in this precision, and afterwards Keras'
    dtype policy is what it was. `fit`, `evaluate` and `predict` need no `with`. One switch holds for the whole process
    and stays as the last `with` set it: how float32 products are rounded. See `strategy`.

    Example:
        >>> devices = keras_vit.strategy("one", precision="float32")
        >>> devices.kind, devices.precision, devices.num_replicas
        ('one', 'float32', 1)

    Attributes:
        kind: `"one"`, `"mirrored"` or `"tpu"`.
        precision: `"float32"`, `"tensorfloat32"` or the dtype policy of models built inside.
        num_replicas: how many devices share a batch.
        reason: why this kind and this precision, in a sentence each.
        engine: the `tf.distribute` strategy, or `None` with one device.
    """

    kind: str
    precision: str
    num_replicas: int
    reason: str
    engine: Any = dataclasses.field(default=None, repr=False)

    def __post_init__(self) -> None:
        self._entered: list[contextlib.ExitStack] = []

    def __enter__(self) -> Self:
        check_distribution_backend()
        with contextlib.ExitStack() as stack:
            stack.callback(keras.config.set_dtype_policy, keras.config.dtype_policy())
            keras.config.set_dtype_policy(_POLICIES.get(self.precision, self.precision))
            round_products(self.precision)
            if self.engine is not None:
                stack.enter_context(self.engine.scope())
            self._entered.append(stack.pop_all())
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._entered.pop().__exit__(kind, error, traceback)


def strategy(kind: str = "auto", *, precision: str = "auto") -> Devices:
    """Chooses the devices of this machine that train a model together, and the precision.

    How float32 products are rounded is a switch of the process. It stays after the `with`, since `fit` runs outside of
    it. `"float32"` and `"tensorfloat32"` set it; a mixed precision puts back the value that the user had.

    Example:
        >>> devices = keras_vit.strategy("one", precision="mixed_bfloat16")
        >>> with devices:
        ...     small = keras_vit.ViTTi16(num_layers=1, classes=3)
        >>> devices.num_replicas, small.dtype_policy.name
        (1, 'mixed_bfloat16')

    Args:
        kind: `"one"` device; `"mirrored"`, all GPUs, each with a copy of the model; `"tpu"`, all cores of a TPU; or
            `"auto"`: a TPU if there is one, all GPUs if there are several, else one device. On the JAX and torch
            backends `"auto"` is one device.
        precision: `"float32"`; `"tensorfloat32"`, in which a GPU of compute capability 8.0 or above rounds the factors
            of float32 products to 10 bits, as Keras' users have it by default; `"mixed_bfloat16"`, `"mixed_float16"`;
            or `"auto"`: bfloat16 on TPUs and on GPUs of compute capability 8.0 and above, float16 from 7.0, whose
            tensor cores have no other, and else float32. On torch `"auto"` is float32.

    Returns:
        `Devices`, to be entered by `with` around building and compiling.

    Raises:
        ValueError: for another word, for `"mirrored"` and `"tpu"` on another backend than TensorFlow, and where no TPU
            is found. Also for options of Keras that the backend would leave out without a word.
    """
    check_strategy_name(kind)
    check_choice("precision", precision, TRAINING_PRECISIONS)
    check_distribution_backend()
    if keras.backend.backend() != "tensorflow":
        return _elsewhere(kind, precision)
    kind, why = _found() if kind == "auto" else (kind, "asked for")
    engine = {"one": lambda: None, "mirrored": _mirrored, "tpu": _tpu}[kind]()
    replicas = 1 if engine is None else engine.num_replicas_in_sync
    if precision == "auto":
        precision, in_it = _fast_precision(kind)
    else:
        in_it = "asked for"
    return Devices(kind, precision, replicas, f"{kind}: {why}; {precision}: {in_it}", engine)


def _elsewhere(kind: str, precision: str) -> Devices:
    backend = keras.backend.backend()
    if kind not in ("auto", "one"):
        raise ArgumentError(
            f"`strategy={kind!r}` is TensorFlow's.\nReceived: the {backend} backend. Set KERAS_BACKEND=tensorflow, "
            "or on JAX use `keras.distribution`."
        )
    why = "asked for"
    if precision == "auto":
        unknown = "float32", f"{backend}'s devices are not checked"
        precision, why = _fast_on_jax() if backend == "jax" else unknown
    return Devices("one", precision, 1, f"one: the {backend} backend has no strategies; {precision}: {why}")


def _found() -> tuple[str, str]:
    """The kind of strategy for what is there, and what that is."""
    import tensorflow as tf

    names = [name for name in _TPU_NAMES if os.environ.get(name)]
    if names or tf.config.list_physical_devices("TPU"):
        return "tpu", f"${names[0]} names a TPU" if names else "this machine has a TPU"
    gpus = len(tf.config.list_physical_devices("GPU"))
    if gpus > 1:
        return "mirrored", f"this machine has {gpus} GPUs"
    return "one", "this machine has one GPU" if gpus else "no GPU or TPU is found"


def _mirrored() -> Any:
    import tensorflow as tf

    if tf.config.list_physical_devices("GPU"):
        return _made_once(tf.distribute.MirroredStrategy)
    # Of the logical CPUs that a test makes; TensorFlow's default sums are numbered by process there, which two models
    # would share.
    names = [device.name for device in tf.config.list_logical_devices("CPU")]
    return tf.distribute.MirroredStrategy(names, tf.distribute.ReductionToOneDevice())


@functools.cache
def _made_once(strategy: Callable[[], Any]) -> Any:
    """The one strategy of this process: TensorFlow numbers the sums of all alike, and would mix up two models'."""
    return strategy()


def _tpu() -> Any:
    import tensorflow as tf

    name = _tpu_name()
    try:
        resolver = tf.distribute.cluster_resolver.TPUClusterResolver(tpu=name)
        tf.config.experimental_connect_to_cluster(resolver)
        tf.tpu.experimental.initialize_tpu_system(resolver)
    except (ValueError, tf.errors.OpError) as error:
        raise ValueError(
            f"{_NEEDS_TPU}\nReceived: {type(error).__name__}: {str(error).splitlines()[0]}. Set TPU_NAME to the name "
            'or address of one, or to "local" on a machine that has one.'
        ) from error
    return tf.distribute.TPUStrategy(resolver)


def _tpu_name() -> str | None:
    """Name or address of the TPU, "local" for one in this machine, or `None` where Kubernetes' variable has it."""
    import tensorflow as tf

    name = os.environ.get("TPU_NAME")
    if not name and not os.environ.get("KUBE_GOOGLE_CLOUD_TPU_ENDPOINTS"):
        if not tf.config.list_physical_devices("TPU"):  # connecting in vain would end what runs in this process
            raise ValueError(
                f"{_NEEDS_TPU}\nReceived: a machine without one. Set TPU_NAME to the name or address of one, or to "
                '"local" if TensorFlow does not list that of this machine.'
            )
        name = "local"
    return name or None


def _fast_precision(kind: str) -> tuple[str, str]:
    """A dtype policy, and why it pays."""
    import tensorflow as tf

    gpus = tf.config.list_physical_devices("GPU")
    gpus = gpus if kind == "mirrored" else gpus[:1]
    details = [tf.config.experimental.get_device_details(gpu) for gpu in gpus]
    return _fast_on(kind == "tpu", [tuple(found.get("compute_capability") or (0, 0)) for found in details])


def _fast_on_jax() -> tuple[str, str]:
    import jax

    device = jax.local_devices()[0]
    gpus = [getattr(device, "compute_capability", "0.0")] if device.platform == "gpu" else []
    return _fast_on(device.platform == "tpu", [tuple(map(int, found.split("."))) for found in gpus])


def _fast_on(tpu: bool, capabilities: list[tuple[int, ...]]) -> tuple[str, str]:
    """A dtype policy for a TPU or GPUs of these compute capabilities, and why it pays."""
    if tpu:
        return "mixed_bfloat16", "TPUs multiply in bfloat16"
    if not capabilities:
        return "float32", "half precision does not pay on every CPU"
    slowest = min(capabilities)
    which = "GPUs of compute capability {}.{}".format(*slowest)
    if slowest >= _BFLOAT16:
        return "mixed_bfloat16", f"{which} multiply in bfloat16"
    if slowest >= _TENSOR_CORES:
        return "mixed_float16", f"{which} have tensor cores for float16"
    return "float32", f"{which} have no tensor cores"
