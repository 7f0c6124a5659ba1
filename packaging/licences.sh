#!/bin/bash
# The libraries in our programs, by name, version and licence, and the texts of these licences, each text once. Reads cargo's sources.
# `licences.sh list`: only the names, NAME VERSION|LICENCE.
set -euo pipefail
cd "$(dirname "$0")/.."
export LC_ALL=C.UTF-8
sources=${CARGO_HOME:-$HOME/.cargo}/registry/src
list=$(${CARGO:-cargo} tree --locked --quiet --workspace --exclude gpupool-tests --exclude gpupool-bench --exclude gsim-lab -e normal --prefix none \
    -f '{p}|{l}' | sed '/^$/d; s/ (proc-macro)//; s/ (\*)//; /(\//d; s/ v/ /' | sort -u)
[ "${1:-}" != list ] || { echo "$list"; exit; }
echo "$list" | sed 's/|/: /'
declare -A shown
while read -r name version; do
    for file in "$sources"/*/"$name-$version"/{LICEN[CS]E,COPYING,COPYRIGHT,NOTICE,licen[cs]e,UNLICENSE}*; do
        [ -f "$file" ] || continue
        sum=$(sha256sum <"$file")
        [ -z "${shown[$sum]:-}" ] || continue
        shown[$sum]=yes
        printf '\n=== %s %s, %s\n\n' "$name" "$version" "${file##*/}"
        cat "$file"
    done
done < <(echo "$list" | sed 's/|.*//')
