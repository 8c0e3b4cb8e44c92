#!/usr/bin/env bash
# Opens CUDA in a binary that links only libtorch's CPU half, and compares training steps on the card with the CPU.
#
#   cargo test --release -p slime-torch --test cuda --no-run       on a machine that builds
#   bash tests/gpu/open_cuda.sh path/to/the/test/binary            on a machine with a GPU and torch 2.11.0
set -euo pipefail
[ $# -eq 1 ] || { echo "usage: open_cuda.sh TEST_BINARY" >&2; exit 64; }
site=$("${PYTHON:-python3}" -c 'import os, torch; print(os.path.dirname(os.path.dirname(torch.__file__)))')
export LD_LIBRARY_PATH="$site/torch/lib:$site/nvidia/cu13/lib:$site/nvidia/nccl/lib${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}"
SLIME_REQUIRE_CUDA=1 "$1" --nocapture
