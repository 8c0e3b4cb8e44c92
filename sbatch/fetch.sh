#!/usr/bin/env bash
# Downloads a model or a data set from Hugging Face or ModelScope, on a node with network.
#
#   bash sbatch/fetch.sh Qwen/Qwen3-4B weights/Qwen3-4B
#   bash sbatch/fetch.sh --type dataset BytedTsinghua-SIA/DAPO-Math-17k data/dapo --include '*.parquet'
#   bash sbatch/fetch.sh --from modelscope Qwen/Qwen3-4B weights/Qwen3-4B
#
#   --from hf|modelscope      where from (hf)
#   --type model|dataset      what it is (model)
#   --revision NAME           branch, tag or commit (main, of ModelScope master)
#   --include GLOB            only files whose path matches; may be repeated
#   --exclude GLOB            not these; may be repeated
#
# Reads:  HF_ENDPOINT, MODELSCOPE_ENDPOINT (other servers of the same interface), HF_TOKEN (for what is gated), SLIME_RETRIES
#         (5: starts of one file again), PYTHON (python3: reads the list of files)
# Writes: the files, each under its name when its size and checksum (SHA-256, of small files on Hugging Face git's SHA-1) are
#         those of the list. Started again, it skips what is there and goes on inside a file that was interrupted.
# Exit:   0, 64 usage, 65 a file is not what the list says, 66 not found or not allowed, 69 no curl or no network, 74 I/O
#SBATCH --job-name=fetch
#SBATCH --nodes=1
#SBATCH --ntasks=1
#SBATCH --time=12:00:00
#SBATCH --output=%x-%j.out
set -euo pipefail
case ${1:-} in -h | --help) sed -n '2,/^[^#]/{/^#SBATCH/d;s/^# \{0,1\}//p}' "${BASH_SOURCE[0]}"; exit 0 ;; esac
say() { printf '%s slime: %s\n' "$(date -u +%FT%TZ)" "$*" >&2; }
die() {
    say "error: $2"
    [ -z "${3:-}" ] || say "hint: $3"
    exit "$1"
}

from=hf type=model revision='' include=() exclude=() names=()
while [ $# -gt 0 ]; do
    case $1 in
        --from | --type | --revision | --include | --exclude) [ $# -ge 2 ] || die 64 "$1 wants a value" "bash sbatch/fetch.sh --help" ;;&
        --from) from=$2 && shift ;;
        --type) type=$2 && shift ;;
        --revision) revision=$2 && shift ;;
        --include) include+=("$2") && shift ;;
        --exclude) exclude+=("$2") && shift ;;
        -*) die 64 "unknown option $1" "bash sbatch/fetch.sh --help" ;;
        *) names+=("$1") ;;
    esac
    shift
done
[ ${#names[@]} -eq 2 ] || die 64 "expected a repository and a folder, got ${#names[@]} names" "bash sbatch/fetch.sh Qwen/Qwen3-4B weights/Qwen3-4B"
repository=${names[0]} folder=${names[1]}
[[ $repository =~ ^[A-Za-z0-9._-]+/[A-Za-z0-9._-]+$ ]] || die 64 "$repository: expected OWNER/NAME"
case $type in model | dataset) ;; *) die 64 "--type $type: expected model or dataset" ;; esac
case $from in
    hf)
        server=${HF_ENDPOINT:-https://huggingface.co} revision=${revision:-main}
        first="$server/api/${type}s/$repository/tree/$revision?recursive=true"
        place=$server/$repository/resolve/$revision
        [ "$type" = model ] || place=$server/datasets/$repository/resolve/$revision
        ;;
    modelscope)
        server=${MODELSCOPE_ENDPOINT:-https://modelscope.cn} revision=${revision:-master}
        first="$server/api/v1/models/$repository/repo/files?Revision=$revision&Recursive=true"
        [ "$type" = model ] || first="$server/api/v1/datasets/$repository/repo/tree?Revision=$revision&Recursive=true&PageSize=10000"
        place=$server/${type}s/$repository/resolve/$revision
        ;;
    *) die 64 "--from $from: expected hf or modelscope" ;;
esac
command -v curl >/dev/null || die 69 "there is no curl" "module load curl, or a node that has it"

scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
# A token on the command line would be seen by every user of the node.
: >"$scratch/curlrc"
chmod 600 "$scratch/curlrc"
if [ "$from" = hf ] && [ -n "${HF_TOKEN:-}" ]; then printf 'header = "Authorization: Bearer %s"\n' "$HF_TOKEN" >"$scratch/curlrc"; fi

# ask URL OPTIONS...: curl, whose failure is told in words that help.
ask() {
    local url=$1 status=0
    shift
    curl --config "$scratch/curlrc" --silent --show-error --location --fail --connect-timeout 30 \
        --speed-limit 1 --speed-time 120 "$@" "$url" 2>"$scratch/error" || status=$?
    [ "$status" -ne 0 ] || return 0
    case $(cat "$scratch/error") in
        *" 401"* | *" 403"*) die 66 "$repository: not allowed" "HF_TOKEN, and the licence accepted on the page of the model" ;;
        *" 404"*) die 66 "$url: not found" "the name, --type and --revision" ;;
    esac
    return "$status"
}

# Lines of the list: size, algorithm, checksum, path. What is no file, or lies outside the folder, is refused.
cat >"$scratch/list.py" <<'PYTHON'
import json, sys
data = json.load(open(sys.argv[1]))
if isinstance(data, dict):
    data = data.get("Data") or {}
    data = data.get("Files") or []
for entry in data:
    path = entry.get("path") or entry.get("Path")
    if (entry.get("type") or entry.get("Type")) not in ("file", "blob"):
        continue
    if path.startswith("/") or ".." in path.split("/") or any(ord(c) < 32 for c in path):
        sys.exit(f"the list names a file outside the folder: {path!r}")
    lfs = entry.get("lfs") or {}
    size = entry.get("size", entry.get("Size"))
    sha256 = lfs.get("oid") or entry.get("Sha256")
    kind, sum_ = ("sha256", sha256.removeprefix("sha256:")) if sha256 else ("git", entry.get("oid") or "-")
    print(size, kind, sum_, path, sep="\t")
PYTHON
next=$first
: >"$scratch/list"
while [ -n "$next" ]; do
    ask "$next" --retry 3 --dump-header "$scratch/head" --output "$scratch/page" ||
        die 69 "$server does not answer: $(cat "$scratch/error")" "is this a node with network? HF_ENDPOINT names another server"
    "${PYTHON:-python3}" "$scratch/list.py" "$scratch/page" >>"$scratch/list" 2>"$scratch/error" ||
        die 65 "$next: not a list of files: $(tail -n 1 "$scratch/error")"
    next=$(sed -n 's/^[Ll]ink: *<\([^>]*\)>; *rel="next".*/\1/p' "$scratch/head" | tr -d '\r' | tail -n 1)
done

is_wanted() {
    local glob
    # shellcheck disable=SC2053
    for glob in "${exclude[@]}"; do [[ $1 != $glob ]] || return 1; done
    [ ${#include[@]} -gt 0 ] || return 0
    # shellcheck disable=SC2053
    for glob in "${include[@]}"; do [[ $1 != $glob ]] || return 0; done
    return 1
}

# escaped PATH: as it stands in a URL.
escaped() {
    local path=${1//%/%25}
    path=${path// /%20} path=${path//\#/%23}
    printf '%s' "${path//\?/%3F}"
}

# is_right FILE SIZE ALGORITHM CHECKSUM
is_right() {
    [ -f "$1" ] && [ "$(stat -c %s "$1")" = "$2" ] || return 1
    case $3 in
        sha256) [ "$(sha256sum <"$1" | cut -d ' ' -f 1)" = "$4" ] ;;
        git) [ "$4" = - ] || [ "$({ printf 'blob %s\0' "$2" && cat "$1"; } | sha1sum | cut -d ' ' -f 1)" = "$4" ] ;;
    esac
}

# get SIZE ALGORITHM CHECKSUM PATH: a file under its name, or the end of this script.
get() {
    local size=$1 kind=$2 sum=$3 path=$4 part=$folder/$4.part tries status
    if is_right "$folder/$path" "$size" "$kind" "$sum"; then return; fi
    mkdir -p "$(dirname "$folder/$path")" || die 74 "cannot make $(dirname "$folder/$path")"
    for ((tries = 0; tries <= ${SLIME_RETRIES:-5}; tries++)); do
        status=0
        # More than the whole is no beginning of it.
        if [ -e "$part" ] && [ "$(stat -c %s "$part")" -gt "$size" ]; then rm "$part"; fi
        if [ "$size" -eq 0 ]; then
            : >"$part"
        elif [ ! -e "$part" ] || [ "$(stat -c %s "$part")" -lt "$size" ]; then
            ask "$place/$(escaped "$path")" --continue-at - --output "$part" || status=$?
            # A server that cannot go on inside a file begins it again.
            [ "$status" -ne 33 ] || rm -f "$part"
            [ "$status" -ne 23 ] || die 74 "$part: $(cat "$scratch/error")"
        fi
        if is_right "$part" "$size" "$kind" "$sum"; then
            mv "$part" "$folder/$path" || die 74 "cannot write $folder/$path"
            say "$path, $size bytes"
            return
        fi
        if [ "$status" -eq 0 ] && [ -e "$part" ] && [ "$(stat -c %s "$part")" -ge "$size" ]; then
            say "$path: not the bytes of the list; from its beginning again"
            rm "$part"
        else
            say "$path: interrupted at $(stat -c %s "$part" 2>/dev/null || echo 0) of $size bytes: $(cat "$scratch/error")"
            sleep "$((tries < 5 ? tries : 5))"
        fi
    done
    [ "$status" -ne 0 ] || die 65 "$path: size or checksum is not that of the list after $tries downloads"
    die 69 "$path: interrupted $tries times: $(cat "$scratch/error")" "start again: what is there is kept"
}

num=0
while IFS=$'\t' read -r size kind sum path; do
    is_wanted "$path" || continue
    num=$((num + 1))
    get "$size" "$kind" "$sum" "$path"
done <"$scratch/list"
[ "$num" -gt 0 ] || die 66 "$repository holds no file that is wanted" "--include and --exclude"
say "$num files of $repository in $folder"
