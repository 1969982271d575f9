"""One call from a data set to a trained model with its folder and report.

`options` says what can be asked for, `preparation` opens the data and makes model and plan, `finetune` trains and
measures; `run_directory`, `report`, `plots` and `progress` write it down.
"""
