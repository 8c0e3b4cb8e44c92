#!/usr/bin/env bash
# Training under train.deterministic on one GPU: three runs of each model, equal to the bit.
#
#   cargo test --release -p slime-trainer --test deterministic --no-run
#   bash tests/gpu/deterministic.sh FOLDER      with deterministic, stripped
#
# Reads:  PYTHON, a Python with torch 2.11
# shellcheck disable=SC1091
set -euo pipefail
[ $# -eq 1 ] || { sed -n '2,/^[^#]/s/^# \{0,1\}//p' "${BASH_SOURCE[0]}"; exit 64; }
here=$(dirname "${BASH_SOURCE[0]}")
. "$here/env.sh"
export SLIME_FIXTURES=$here/../fixtures/models
"$1/deterministic" --nocapture
