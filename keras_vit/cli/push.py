"""`keras-vit push`: a run or a checkpoint folder on the Hugging Face Hub."""

from keras_vit.cli.printing import path
from keras_vit.cli.startup import loading, quiet_start
from keras_vit.weights.upload import check_repository


def add_commands(top, command):
    """Adds this command to the parser; `command` makes it."""
    summary = "publish a run or a checkpoint folder on the Hugging Face Hub, from where `hf:` loads it"
    new = command(top, "push", push, summary, "keras-vit push run owner/name --license apache-2.0")
    new.add_argument("folder", metavar="FOLDER", type=path, help="of a run, or of weights for timm or transformers")
    new.add_argument("repository", metavar="REPOSITORY", help="as owner/name; made if it is not there")
    new.add_argument("--license", metavar="NAME", help="of the weights, as mit; by default as the card says")
    new.add_argument("--dialect", choices=("timm", "huggingface"), help="of a run's weights; by default timm")
    new.add_argument("--private", action="store_true", help="make a new repository private")


def push(arguments):
    """Prints the name by which the weights are loaded; a wrong one is told before Keras is imported."""
    check_repository(arguments.repository)
    yield loading(arguments.folder)
    with quiet_start():
        import keras_vit.api  # noqa: F401  # every layer that a model's file may name
        from keras_vit.runs.publishing import push_to_hub
    said = {name: getattr(arguments, name) for name in ("license", "dialect", "private")}
    yield push_to_hub(arguments.folder, arguments.repository, **said)
