"""Which shard of a job a machine computes: as the command or the variables of a scheduler say."""

import pytest

from keras_vit.embedding.job import cluster_shard

SLURM = {"SLURM_ARRAY_TASK_ID": "5", "SLURM_ARRAY_TASK_MIN": "1", "SLURM_ARRAY_TASK_COUNT": "4"}


@pytest.mark.parametrize(
    ("text", "variables", "expected"),
    [
        ("2/8", {"RANK": "1", "WORLD_SIZE": "2"}, (2, 8)),
        (None, {}, (0, 1)),
        (None, {"WORLD_SIZE": "4"}, (0, 1)),
        (None, {"RANK": "3", "WORLD_SIZE": "4"}, (3, 4)),
        (None, {"RANK": "3", "NUM_SHARDS": "5", "WORLD_SIZE": "4"}, (3, 5)),
        (None, {"JOB_COMPLETION_INDEX": "0", "NUM_SHARDS": "3"}, (0, 3)),
        (None, {**SLURM, "SLURM_ARRAY_TASK_STEP": "2", "RANK": "0"}, (2, 4)),
        (None, SLURM, "no gaps"),
        (None, {"JOB_COMPLETION_INDEX": "0"}, "NUM_SHARDS"),
        (None, {"RANK": "x", "WORLD_SIZE": "2"}, "RANK=x"),
        (None, {"JOB_COMPLETION_INDEX": "2", "NUM_SHARDS": "2"}, "NUM_SHARDS=2"),
        ("8/8", {}, "from 0.*\n.*--shard 8/8.$"),
        ("1", {}, "--shard 1"),
    ],
)
def test_shard_is_that_of_the_command_or_the_variables(text, variables, expected):
    if isinstance(expected, tuple):
        assert cluster_shard(text, variables) == expected
        return
    with pytest.raises(ValueError, match=expected):
        cluster_shard(text, variables)
