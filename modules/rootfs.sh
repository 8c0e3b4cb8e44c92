#!/usr/bin/env bash
# Assembles the root filesystem that slime.def and Dockerfile describe, without a registry: for Enroot and Pyxis
# (FILE.sqsh), for Apptainer (DIR or FILE.sqsh), for chroot and bwrap (DIR).
#
#   bash modules/rootfs.sh DIR | FILE.sqsh | DIR FILE.sqsh
#
# Reads:  SLIME_MIRROR (default: the mirror that apt uses here for the same release of Debian), what install.sh reads.
#         The tools run on the C library of that release or a newer one than the machine's that built them.
# Writes: DIR, FILE.sqsh; each appears whole. What is there already is not replaced.
# Needs:  root, debootstrap, and mksquashfs for a FILE.sqsh
# Exit:   0 ok, 64 usage, 69 no mirror or a program for it is missing, 73 cannot create, 77 not root
set -euo pipefail
umask 022
home=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
# The image both definitions end in, and what they install into it.
suite=bookworm
packages=(libgcc-s1 libstdc++6 zlib1g)
say() { printf 'rootfs: %s\n' "$*" >&2; }
die() { say "error: $2"; say "hint: $3"; exit "$1"; }

folder='' file=''
for argument; do
    case $argument in
        -h | --help) sed -n '2,/^[^#]/s/^# \{0,1\}//p' "${BASH_SOURCE[0]}"; exit 0 ;;
        -*) die 64 "unknown flag $argument" "bash modules/rootfs.sh DIR FILE.sqsh" ;;
        *.sqsh) [ -z "$file" ] || die 64 "two files: $file and $argument" "name one"; file=$argument ;;
        *) [ -z "$folder" ] || die 64 "two folders: $folder and $argument" "name one"; folder=$argument ;;
    esac
done
[ -n "$folder$file" ] || die 64 "neither DIR nor FILE.sqsh" "bash modules/rootfs.sh slime.sqsh"
for target in "$folder" "$file"; do
    [ -z "$target" ] || [ ! -e "$target" ] || die 73 "$target is there already" "remove it, or choose another name"
    [ -z "$target" ] || [ -w "$(dirname "$target")" ] || die 73 "cannot write to $(dirname "$target")" "make it first"
done
command -v debootstrap >/dev/null || die 69 "no debootstrap on PATH" "apt-get install debootstrap"
[ -z "$file" ] || command -v mksquashfs >/dev/null || die 69 "no mksquashfs on PATH" "apt-get install squashfs-tools"
[ "$(id -u)" -eq 0 ] || die 77 "a root filesystem is made by root" "run it as root, or build slime.def with Apptainer"
# shellcheck disable=SC2016 # apt's own words
mirror=${SLIME_MIRROR:-$(apt-get indextargets --format '$(REPO_URI)' 'Created-By: Packages' "Codename: $suite" \
    'Component: main' 2>/dev/null | head -n 1)}
[ -n "$mirror" ] || die 69 "apt knows no mirror of $suite" "name one: SLIME_MIRROR=URL"

work=$(mktemp -d "$(dirname "${folder:-$file}")/.rootfs.XXXXXX")
image=${file:+$(dirname "$file")/.rootfs.$$.sqsh}
trap 'rm -rf --one-file-system "$work" ${image:+"$image"}' EXIT
root=$work/root
list=$(IFS=,; printf '%s' "${packages[*]}")
say "assembling $suite"
debootstrap --variant=minbase --include="$list" "$suite" "$root" "$mirror" >"$work/log" 2>&1 ||
    { tail -n 5 "$work/log" >&2; die 69 "debootstrap did not succeed" "see above; is $suite on its mirror?"; }
rm -rf "$root"/var/cache/apt/* "$root"/var/lib/apt/lists/*
# Devices come from the host, and only root could unpack them.
find "$root/dev" -mindepth 1 -delete
# debootstrap copied these from this machine; who runs the image puts that host's own there.
: >"$root/etc/resolv.conf"
: >"$root/etc/hostname"
printf '127.0.0.1 localhost\n' >"$root/etc/hosts"
bash "$home/modules/install.sh" "$root/opt/slime"

# Apptainer reads the first of these, Enroot and Pyxis the second.
environment=$root/.singularity.d/env/90-environment.sh
mkdir -p "${environment%/*}"
sed -n '/^%environment/,/^%runscript/s/^    //p' "$home/modules/slime.def" >"$environment"
sed -n 's/^export //p' "$environment" >"$root/etc/environment"

if [ -n "$file" ]; then
    say "packing $file"
    mksquashfs "$root" "$image" -comp zstd -Xcompression-level 3 -quiet -no-progress >&2 ||
        die 73 "mksquashfs did not succeed" "is there room beside $file?"
    chmod 644 "$image"
fi
if [ -n "$folder" ]; then mv -T "$root" "$folder"; fi
if [ -n "$file" ]; then mv -T "$image" "$file"; fi
say "ready: ${folder:+$folder }$file"
