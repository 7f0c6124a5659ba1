#!/bin/sh
# The hand-written pages through mandoc's lint, or groff's warnings where mandoc is not installed. Says NOT RUN without both.
set -eu
cd "$(dirname "$0")/../man"
if command -v mandoc >/dev/null 2>&1; then
    mandoc -T lint -W warning ./*.[1-9]
elif command -v groff >/dev/null 2>&1; then
    warnings=$(groff -ww -mandoc -Tutf8 -z ./*.[1-9] 2>&1)
    [ -z "$warnings" ] || { echo "$warnings"; exit 1; }
else
    echo "NOT RUN: man-check: neither mandoc nor groff is installed"
fi
