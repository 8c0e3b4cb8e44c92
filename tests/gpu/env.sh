# For scripts in tests/gpu: the CUDA half of libtorch from the Python of this machine; sourced.
# shellcheck shell=bash
: "${SLIME_TORCH:=$("${PYTHON:-python3}" -c 'import os, torch; print(os.path.dirname(os.path.dirname(torch.__file__)))')}"
export SLIME_TORCH NCCL_NVLS_ENABLE=${NCCL_NVLS_ENABLE:-0}
for libraries in "$SLIME_TORCH"/nvidia/*/lib "$SLIME_TORCH/torch/lib"; do
    [ ! -d "$libraries" ] || LD_LIBRARY_PATH=$libraries${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}
done
export LD_LIBRARY_PATH SLIME_REQUIRE_CUDA=1
