#!/usr/bin/env bash
# Preflight of a host with GPUs: counts them, asks for memory errors and measures their links.
#
#   bash tests/gpu/preflight.sh SLIME_SYNC      the stripped tool, built on another machine
#
# Writes: the node's lines and the verdict on stdout
# Exit:   that of the verdict: 0 when the host is fit
set -euo pipefail
tool=${1:?usage: preflight.sh SLIME_SYNC}
num_gpus=$(nvidia-smi -L | grep -c '^GPU ')
run=$(mktemp -d)
trap 'rm -rf "$run"' EXIT
NCCL_NVLS_ENABLE=0 "$tool" preflight node --run "$run" --gpus "$num_gpus" --min-free-gb 1 | tee "$run/node.jsonl"
"$tool" preflight verdict --input "$run/node.jsonl" --output -
