"""One call from a data set to a trained model with its folder and report.

`options` says what can be asked for, and `small_models` what is trained where no model is named. `preparation` opens
the data and makes model and plan. `finetune` trains and measures. `configuration`, `recorder`, `run_directory`,
`run_page` and `run_card` write it down, and `progress` tells of it.
"""
