#!/bin/bash
# Not run here. One process for each host of the pod; JAX learns of the others from the pod's metadata.
# On every host first: pip install "jax[tpu]" and this package; the data and the folder of the run on shared storage.
set -eu
gcloud compute tpus tpu-vm ssh "$POD" --zone="$ZONE" --worker=all --command="
  KERAS_BACKEND=jax keras-vit finetune --data $DATA --model L/16 --layout fsdp --precision mixed_bfloat16 --out $RUN"
