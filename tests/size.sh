#!/usr/bin/env bash
# Builds the tools for size, strips them and holds them to 50 MB together.
#
#   bash tests/size.sh
#
# Takes about a quarter of an hour on two cores, most of it the link of each tool, so tests/run.sh leaves it out.
# Exit:   0 they fit, 1 they do not
set -euo pipefail
home=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
limit=50000000
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
bash "$home/modules/bootstrap.sh"
(cd "$home" && cargo build --profile dist --workspace --bins)
total=0
for tool in "$home"/bins/*/; do
    tool=$(basename "$tool")
    strip --strip-all -o "$folder/$tool" "$home/target/dist/$tool"
    bytes=$(stat -c %s "$folder/$tool")
    total=$((total + bytes))
    printf '%-14s %5.1f MB\n' "$tool" "$(awk "BEGIN { print $bytes / 1e6 }")"
done
printf '%-14s %5.1f MB of 50\n' together "$(awk "BEGIN { print $total / 1e6 }")"
[ "$total" -le "$limit" ]
