#!/bin/bash
# `make test`: the pure crates through clippy, the kernel tests under other cgroup hierarchies, then every test of the workspace.
# The last line is the test runner's own; before it stands how many checks said NOT RUN, and which.
set -euo pipefail
cd "$(dirname "$0")/.."
cargo=${CARGO:-cargo}
logs=target/test-logs
mkdir -p "$logs"
not_run="$logs/not-run"
: >"$not_run"
failed=0

say() { echo "test: $*"; }

say "building, then all tests: about 15 minutes on 2 cores from nothing, 5 when built before"
"$cargo" build --workspace
# The same artifacts that the runner uses below.
"$cargo" test --workspace --no-run --message-format=json >"$logs/build.json"

say "clippy on the crates without clock, I/O and hash order (1 min)"
if "$cargo" clippy --version >/dev/null 2>&1; then
    "$cargo" clippy --quiet -p gmodel -p gsched -p gcore -p gsim --lib || failed=1
else
    echo "NOT RUN: clippy is not installed; tests/tidy.rs looks for the same words" | tee -a "$not_run"
fi

say "the kernel tests on pure cgroup v2 and pure v1, under user-mode Linux (1 min)"
kernel_tests=$(sed -n 's/.*"name":"kernel".*"executable":"\([^"]*\)".*/\1/p' "$logs/build.json" | tail -n 1)
gsys/tests/uml.sh "$kernel_tests" 2>&1 | tee "$logs/uml" || failed=1
grep -a "NOT RUN" "$logs/uml" >>"$not_run" || true

say "all tests"
if "$cargo" nextest --version >/dev/null 2>&1; then
    "$cargo" nextest run --workspace 2>&1 | tee "$logs/run" || failed=1
    grep -a "NOT RUN" target/nextest/default/junit.xml >>"$not_run" || true
    closing=$(grep -a "^ *Summary \[" "$logs/run" | tail -n 1) || true
else
    "$cargo" test --workspace --no-fail-fast -- --show-output 2>&1 | tee "$logs/run" || failed=1
    grep -a "NOT RUN" "$logs/run" >>"$not_run" || true
    closing=$(grep -a "^test result: " "$logs/run" | tail -n 1) || true
fi

count=$(sed 's/.*NOT RUN/NOT RUN/' "$not_run" | sort -u | tee "$logs/not-run-once" | grep -c . || true)
cat "$logs/not-run-once"
say "$count NOT RUN"
[ "$failed" = 0 ] || say "something failed, see above"
[ -z "${closing:-}" ] || echo "$closing"
exit "$failed"
