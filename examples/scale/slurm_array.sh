#!/bin/bash
# Eight jobs, each of which computes every eighth part; one that is requeued goes on. Not run on a cluster.
#   PHOTOS=/shared/photos MODEL=/shared/model.onnx OUT=/shared/vectors sbatch examples/scale/slurm_array.sh
#SBATCH --job-name=keras-vit-embed
#SBATCH --array=0-7
#SBATCH --nodes=1
#SBATCH --cpus-per-task=8
#SBATCH --mem=8G
#SBATCH --time=24:00:00
#SBATCH --requeue
set -eu
keras-vit embed "$PHOTOS" --model "$MODEL" --out "$OUT" --processes "${SLURM_CPUS_PER_TASK:-1}"
