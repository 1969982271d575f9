"""One call from a data set to a trained model with its folder and report, for any task.

`options` says what can be asked for. `preparation` resolves it into a frozen plan, which `plan` and `finetune` carry
out and `results` measures. `callbacks`, `run_directory` and `run_card` write it down, `messages` and `progress` print
it, and `load` opens what was written.
"""
