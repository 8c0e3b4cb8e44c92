# What every script here needs to know; sourced, never run.
#
# Reads: SLIME_HOME, else SLURM_SUBMIT_DIR (sbatch copies a script before it runs it), else the script's own place;
#        SLIME_BIN (default bin of an installed home, else target/release); sbatch/site.env where a site keeps its own
#        settings; SLIME_CONTAINER, an image that has the tools (SLIME_BINDS: more folders for it, a:a,b:b);
#        SLIME_TORCH, a folder of Python packages with torch 2.11.0 and its CUDA libraries (default what
#        'bootstrap.sh --cuda' fetched; without one the tools compute on the CPU); SLIME_NET_IFACE, SLIME_NVLS (see
#        choose_network)
# Sets:  home, bin, in_slurm (1 in a batch script or an allocation's shell), contained (what stands before a tool here),
#        in_image and container_of_step (the same for a step: before the tool, and among srun's options)
# shellcheck shell=bash disable=SC2034
home=${SLIME_HOME:-${SLURM_SUBMIT_DIR:-$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)}}
say() { printf '%s slime%s: %s\n' "$(date -u +%FT%TZ)" "${SLURM_JOB_ID:+[$SLURM_JOB_ID.${SLURM_RESTART_COUNT:-0}]}" "$*" >&2; }
# die CODE MESSAGE [HINT]
die() {
    say "error: $2"
    [ -z "${3:-}" ] || say "hint: $3"
    exit "$1"
}
if [ -r "$home/sbatch/site.env" ]; then
    set +u # modules' own scripts read variables that may not be set
    # shellcheck source=/dev/null
    . "$home/sbatch/site.env" ||
        die 69 "$home/sbatch/site.env failed" "the message above says which line; 'module avail' lists modules"
    set -u
fi
if [ -z "${SLIME_BIN:-}" ] && [ -x "$home/bin/slime-train" ]; then bin=$home/bin; else bin=${SLIME_BIN:-$home/target/release}; fi
# CUDA is opened at run time, from there.
torch=${SLIME_TORCH:-${SLIME_DEPS:-${XDG_CACHE_HOME:-${HOME:-}/.cache}/slime}/cuda}
if [ -e "$torch/torch/lib/libtorch_cuda.so" ]; then
    for libraries in "$torch"/nvidia/*/lib "$torch/torch/lib"; do
        [ ! -d "$libraries" ] || LD_LIBRARY_PATH=$libraries${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}
    done
    export LD_LIBRARY_PATH
elif [ -n "${SLIME_TORCH:-}" ]; then
    die 66 "SLIME_TORCH: no $torch/torch/lib/libtorch_cuda.so" "bash modules/bootstrap.sh --cuda, or the site-packages of a torch 2.11.0"
fi
# OpenMP threads that spin while the other tool computes cost more than they bring.
export OMP_WAIT_POLICY=passive
# Slurm gives the shell inside a step the variables of a rank: there, tools are plain processes.
in_slurm=0
if [ -n "${SLURM_JOB_ID:-}" ] && [ "${SLURM_STEP_ID:-4294967291}" -ge 4294967280 ] && command -v srun >/dev/null; then in_slurm=1; fi

# An image takes the place of $bin. pyxis is an srun option; everything else starts through apptainer.
contained=()
container_of_step=()
in_image=()
if [ -n "${SLIME_CONTAINER:-}" ]; then
    [ -e "$SLIME_CONTAINER" ] || die 66 "SLIME_CONTAINER: no image $SLIME_CONTAINER" "modules/slime.def and modules/Dockerfile make one"
    bin=${SLIME_BIN:-/opt/slime/bin}
    # Only what is there can be bound.
    [ -z "${SLIME_RUN_DIR:-}" ] || mkdir -p "$SLIME_RUN_DIR"
    binds="$home:$home${SLIME_RUN_DIR:+,$SLIME_RUN_DIR:$SLIME_RUN_DIR}${SLIME_BINDS:+,$SLIME_BINDS}"
    if [ "$in_slurm" = 1 ] && [ "${SLIME_CONTAINER##*.}" = sqsh ] && srun --help 2>/dev/null | grep -q -- --container-image; then
        container_of_step=(--container-image="$SLIME_CONTAINER" --container-mounts="$binds" --no-container-mount-home)
        contained=(srun --overlap --nodes=1 --ntasks=1 --mem=0 "${container_of_step[@]}")
    elif command -v apptainer >/dev/null; then
        contained=(apptainer exec --no-home --bind "$binds" "$SLIME_CONTAINER")
        if [ -e /dev/nvidiactl ]; then contained=(apptainer exec --nv --no-home --bind "$binds" "$SLIME_CONTAINER"); fi
        in_image=("${contained[@]}")
    else
        die 69 "SLIME_CONTAINER is set, but there is neither apptainer nor an srun that knows --container-image" \
            "'module load apptainer', or take a .sqsh image where Slurm has pyxis"
    fi
fi

# tool NAME ARGS...: runs a tool here, in the image where there is one.
tool() {
    local name=$1
    shift
    [ ${#contained[@]} -gt 0 ] || [ -x "$bin/$name" ] ||
        die 66 "no tool $bin/$name" "build with 'cargo build --release', install with modules/install.sh, or set SLIME_BIN"
    "${contained[@]}" "$bin/$name" "$@"
}

# weights_of DIR: the newest published weights of a run directory; another directory is taken as it is.
weights_of() {
    local newest
    [ -e "$1/run.toml" ] || { echo "$1"; return; }
    # Names order as numbers do. What has no publication is still being written, or void.
    newest=$(cd "$1" && for name in version/*.json; do
        name=$(basename "$name" .json)
        [ ! -d "weights/$name" ] || echo "$name"
    done | sort | tail -n 1)
    [ -n "$newest" ] || die 66 "$1 has no published weights" "wait for its first step"
    echo "$1/weights/$newest"
}

# choose_network NODE: the interface that leads there, for NCCL, MPI and UCX. What is set already stays.
#   SLIME_NET_IFACE=NAME chooses it, none leaves all three alone; SLIME_NVLS=0|1 chooses NVLink SHARP.
choose_network() {
    local iface=${SLIME_NET_IFACE:-} address
    if [ -z "$iface" ] && command -v ip >/dev/null; then
        address=$(scontrol show node "$1" 2>/dev/null | sed -n 's/.*NodeAddr=\([^ ]*\).*/\1/p')
        address=$(getent ahosts "${address:-$1}" | awk 'NR == 1 { print $1 }')
        iface=$(ip -o route get "${address:-127.0.0.1}" 2>/dev/null | sed -n 's/.* dev \([^ ]*\).*/\1/p')
    fi
    if [ -n "$iface" ] && [ "$iface" != none ]; then
        export NCCL_SOCKET_IFNAME=${NCCL_SOCKET_IFNAME:-$iface} OMPI_MCA_btl_tcp_if_include=${OMPI_MCA_btl_tcp_if_include:-$iface}
        # Where there is InfiniBand UCX finds it; a name of an Ethernet interface would forbid it.
        [ -n "$(ls /sys/class/infiniband 2>/dev/null)" ] || export UCX_NET_DEVICES=${UCX_NET_DEVICES:-$iface}
        say "network: $iface"
    fi
    # NVLink SHARP wants every GPU on one switch fabric; without it NCCL may hang in its set-up.
    if command -v nvidia-smi >/dev/null && [ -z "${NCCL_NVLS_ENABLE:-}" ]; then
        local fabric=0
        if nvidia-smi -q 2>/dev/null | grep -A2 -E '^ *Fabric' | grep -q 'State.*: Completed'; then fabric=1; fi
        export NCCL_NVLS_ENABLE=${SLIME_NVLS:-$fabric}
    fi
}
