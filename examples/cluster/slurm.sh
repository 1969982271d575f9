#!/bin/bash
# Not run here. One task for each GPU: JAX asks SLURM for the address, the number of tasks and the GPU of each.
#SBATCH --job-name=keras-vit
#SBATCH --nodes=2
#SBATCH --ntasks-per-node=8
#SBATCH --gpus-per-node=8
#SBATCH --cpus-per-task=8
#SBATCH --time=24:00:00
set -eu
export KERAS_BACKEND=jax
unset http_proxy https_proxy HTTP_PROXY HTTPS_PROXY  # with a proxy the tasks may not find each other
# A task that fails ends the others, which would wait for it.
srun --kill-on-bad-exit=1 keras-vit finetune --data "$DATA" --model L/16 --layout fsdp --out "$RUN"
