#!/bin/bash
# Not run here. JAX asks Open MPI 4 by itself; Open MPI 5 has no word for the address, so Keras' variables say it.
set -eu
export KERAS_BACKEND=jax KERAS_DISTRIBUTION_NUM_PROCESSES="${PROCESSES:-16}"
export KERAS_DISTRIBUTION_JOB_ADDRESSES="${FIRST_HOST:?the host of rank 0}:${PORT:-12345}"
mpirun -n "$KERAS_DISTRIBUTION_NUM_PROCESSES" -x KERAS_BACKEND -x KERAS_DISTRIBUTION_NUM_PROCESSES \
  -x KERAS_DISTRIBUTION_JOB_ADDRESSES bash -c '
    export KERAS_DISTRIBUTION_PROCESS_ID=$OMPI_COMM_WORLD_RANK JAX_LOCAL_DEVICE_IDS=$OMPI_COMM_WORLD_LOCAL_RANK
    exec keras-vit finetune --data "$0" --model L/16 --layout fsdp --out "$1"' "$DATA" "$RUN"
