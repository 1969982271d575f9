"""TensorFlow, which reads images for every backend, made ready and quiet for a command line."""


def start_tensorflow() -> None:
    """Imports Keras and TensorFlow and looks for devices, so that what these print is printed now.

    Raises:
        ImportError: without TensorFlow, or without the backend that Keras is set to.
    """
    try:
        import keras  # noqa: F401
        import tensorflow as tf
    except ImportError as error:
        raise ImportError(
            'training and prediction need TensorFlow: pip install "keras-vit-zoo[tensorflow-cpu,train]"'
        ) from error
    tf.get_logger().setLevel("ERROR")
    tf.config.list_physical_devices()
