"""Learning rate, layer decay and augmentation for your photos, searched with Optuna. Needs `pip install optuna`.

    python examples/search_rates.py --data photos --out search --trials 20 [--model Ti/16] [--epochs 10]

Start it in several terminals, or on several machines that share the disk: all processes take trials from one journal
file, until there are as many as asked for. A trial is a run of `keras_vit.finetune` in a folder of its own. One that is
worse than the median of the trials before it is stopped after an epoch, and keeps its best model. A trial whose process
was killed goes on in the next process that is free, from the run's last checkpoint. What is searched for is the
accuracy on the validation images. The last line is the best trial as JSON; its folder has the report.
"""

import argparse
import contextlib
import fcntl
import json
from pathlib import Path

import optuna
from optuna.storages import JournalStorage
from optuna.storages.journal import JournalFileBackend
from optuna.trial import TrialState

import keras_vit

AUGMENTATIONS = ["none", "inception", "augreg-light1", "augreg-medium1"]
ENDED = (TrialState.COMPLETE, TrialState.PRUNED)


def main():
    arguments = parse()
    arguments.out.mkdir(parents=True, exist_ok=True)
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    study = optuna.create_study(
        study_name="rates",
        storage=JournalStorage(JournalFileBackend(str(arguments.out / "journal.log"))),
        pruner=optuna.pruners.MedianPruner(n_startup_trials=2),
        direction="maximize",
        load_if_exists=True,
    )
    while train_one(study, arguments):
        pass
    print(json.dumps(summary(study)))


def train_one(study, arguments):
    """Makes one trial; whether there was one to make."""
    with contextlib.ExitStack() as held:
        trial = next_trial(study, arguments, held)
        if trial is not None:
            train(study, trial, arguments)
        return trial is not None


def next_trial(study, arguments, held):
    """A trial with its options, whose lock enters `held`; `None` once there are enough."""
    with locked(arguments.out / "asking.lock", wait=True):
        for old in study.get_trials(deepcopy=False, states=(TrialState.RUNNING,)):
            with contextlib.suppress(BlockingIOError), locked(lock_of(arguments, old)):
                study.tell(old.number, state=TrialState.FAIL)  # its process is gone
                study.enqueue_trial(old.params, user_attrs={"folder": folder_of(old)})
        states = [*ENDED, TrialState.RUNNING]
        if len(study.get_trials(deepcopy=False, states=states)) >= arguments.trials:
            return None
        trial = study.ask()
        held.enter_context(locked(lock_of(arguments, trial)))
        trial.suggest_float("learning_rate", 1e-3, 1e-1, log=True)
        trial.suggest_float("layer_decay", 0.6, 1.0)
        trial.suggest_categorical("augmentation", AUGMENTATIONS)
        return trial


@contextlib.contextmanager
def locked(path, wait=False):
    """Holds the lock of a file, which ends with the process; raises `BlockingIOError` if another process holds it."""
    with open(path, "w") as file:
        fcntl.flock(file, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
        yield


def lock_of(arguments, trial):
    """Path of the file that the process of a trial locks while it lives."""
    return arguments.out / f"trial-{trial.number:04d}.lock"


def folder_of(trial):
    """Name of a trial's run, which is that of the trial that it goes on with."""
    return trial.user_attrs.get("folder", f"trial-{trial.number:04d}")


def train(study, trial, arguments):
    def on_epoch(record):
        trial.report(record.metrics["val_accuracy"], record.epoch)
        if record.epoch < record.epochs and trial.should_prune():
            raise keras_vit.StopTraining("worse than the median")

    folder = arguments.out / folder_of(trial)
    options = {name: getattr(arguments, name) for name in ("model", "weights", "epochs", "train_images", "image_size")}
    options = {name: value for name, value in options.items() if value is not None}
    try:
        facts = keras_vit.finetune(arguments.data, folder, on_epoch_end=on_epoch, **options, **trial.params).facts
    except keras_vit.TrainingDivergedError as error:
        print(error)
        study.tell(trial, state=TrialState.FAIL)
        return
    value, state = facts["best_validation_accuracy"], TrialState.PRUNED if "stopped" in facts else TrialState.COMPLETE
    study.tell(trial, None if state == TrialState.PRUNED else value, state=state)
    print(f"trial {trial.number}: {value:.4f} on validation, {state.name.lower()}, {folder}")


def summary(study):
    best = study.best_trial
    states = {state.name.lower(): len(study.get_trials(states=(state,))) for state in ENDED}
    return {"best": best.number, "folder": folder_of(best), "validation_accuracy": best.value, **best.params, **states}


def parse():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", required=True, help="as `keras-vit finetune` takes it")
    parser.add_argument("--out", type=Path, default=Path("search"))
    parser.add_argument("--trials", type=int, default=20, help="of all processes together")
    parser.add_argument("--model")
    parser.add_argument("--weights")
    parser.add_argument("--epochs", type=int)
    parser.add_argument("--train-images", type=int)
    parser.add_argument("--image-size", type=int)
    return parser.parse_args()


if __name__ == "__main__":
    main()
