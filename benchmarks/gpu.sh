#!/usr/bin/env bash
# Measures this package on a GPU by JAX, beside timm and Flax. Not run yet: no GPU was at hand.
#
#     KERAS_VIT_PEERS_PYTHON=/path/to/python benchmarks/gpu.sh [FOLDER]
#
# This interpreter needs keras_vit and a JAX for CUDA; that of the peers torch for CUDA, timm, safetensors, and jax,
# flax and optax for CUDA. FOLDER gets inference.csv and train.csv, by default benchmarks/results. Each row has
# share_of_peak: the model's FLOPs over those of a timed bfloat16 product of two matrices of side 8192.
set -euo pipefail
cd "$(dirname "$0")/.."
results=${1:-benchmarks/results}
python=${PYTHON:-python3}

common=(--backend jax --device gpu --precision bfloat16 --runners model --against timm,timm-compiled,flax)
common+=(--matrix-peak 8192 --threads "${THREADS:-4}" --rounds "${ROUNDS:-30}" --warmup 5 --results "$results")
for model in B/16 L/16; do
  for task in inference train; do
    for batch in 1 32 256; do # one command each: a batch that does not fit costs the others nothing
      "$python" -m keras_vit benchmark --model "$model" --task "$task" --batch "$batch" "${common[@]}" ||
        echo "not measured: $model $task batch $batch" >&2
    done
  done
done
"$python" benchmarks/tables.py "$results"
