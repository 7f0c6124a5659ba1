#!/bin/bash
# `make test`: the pure crates through clippy, the kernel tests under other cgroup hierarchies, then every test of the workspace.
# The last line is the test runner's own, or counts what failed outside of it too. Before it stand the checks that said NOT RUN,
# and each step and test that failed.
set -euo pipefail
cd "$(dirname "$0")/.."
cargo=${CARGO:-cargo}
logs=target/test-logs
mkdir -p "$logs"
not_run="$logs/not-run"
: >"$not_run"
failures="$logs/failures"
: >"$failures"

# The same cases each time: what is under test is the change at hand. `make soak` looks for new ones.
export PROPTEST_RNG_SEED=${PROPTEST_RNG_SEED:-20261120}

say() { echo "test: $*"; }
# fail STEP WHERE: notes that a step failed and where its output is.
fail() { echo "FAILED: $1 ($2)" >>"$failures"; }

say "building, then all tests: about 19 minutes on 2 cores from nothing, 12 when built before"
# The same artifacts that the runner uses below, in one build: two would each end with one core at work.
"$cargo" build --workspace --lib --bins --tests --message-format=json-render-diagnostics >"$logs/build.json"

say "the kernel tests on pure cgroup v2 and pure v1, under user-mode Linux (1 min), beside the next two steps"
kernel_tests=$(sed -n 's/.*"name":"kernel".*"executable":"\([^"]*\)".*/\1/p' "$logs/build.json" | tail -n 1)
gsys/tests/uml.sh "$kernel_tests" >"$logs/uml" 2>&1 &
kernel_run=$!

say "the format of all source files"
if "$cargo" fmt --version >/dev/null 2>&1; then
    "$cargo" fmt --all --check -- --files-with-diff >"$logs/format" 2>&1 ||
        { cat "$logs/format"; fail "the format of all source files: cargo fmt" "$logs/format"; }
else
    echo "NOT RUN: the format: rustfmt is not installed" | tee -a "$not_run"
fi

say "clippy on the crates without clock, I/O and hash order (1 min)"
if "$cargo" clippy --version >/dev/null 2>&1; then
    # Its opinions are for make lint; what is denied here ends with an error.
    "$cargo" clippy --quiet -p gmodel -p gconfig -p gsched -p gcore -p gsim --lib 2>"$logs/clippy" ||
        { cat "$logs/clippy"; fail "clippy on the crates without clock, I/O and hash order" "$logs/clippy"; }
else
    echo "NOT RUN: clippy is not installed; tests/tidy.rs looks for the same words" | tee -a "$not_run"
fi

wait "$kernel_run" || fail "the kernel tests under user-mode Linux" "$logs/uml"
cat "$logs/uml"
# Of the whole step; what single kernel tests say is weighed below.
grep -a "^NOT RUN" "$logs/uml" >>"$not_run" || true

say "all tests"
outside=$(grep -c . "$failures" || true)
runner=0
if "$cargo" nextest --version >/dev/null 2>&1; then
    # Two tests for each core: most wait for a daemon. .config/nextest.toml says which of them compute, and count as two.
    "$cargo" nextest run --workspace --test-threads $((2 * $(nproc))) 2>&1 | tee "$logs/run" || runner=$?
    grep -a "NOT RUN" target/nextest/default/junit.xml >"$logs/said" || true
    closing=$(grep -a "^ *Summary \[" "$logs/run" | tail -n 1) || true
    # The runner says each failed test once more after its summary.
    sed -n '/^ *Summary \[/,$p' "$logs/run" | grep -aE "^ *(TRY [0-9]+ )?(FAIL|TIMEOUT|SIG[A-Z]+|ABORT)" >"$logs/failed" || true
else
    "$cargo" test --workspace --no-fail-fast -- --show-output 2>&1 | tee "$logs/run" || runner=$?
    grep -a "NOT RUN" "$logs/run" >"$logs/said" || true
    closing=$(grep -a "^test result: " "$logs/run" | tail -n 1) || true
    grep -aE "^test .* \.\.\. FAILED$" "$logs/run" >"$logs/failed" || true
fi
[ "$runner" = 0 ] || { fail "all tests" "$logs/run"; sed 's/^ */FAILED: /' "$logs/failed" >>"$failures"; }

# A kernel test that cannot run under this machine's hierarchy may have run under another: then it is none of these.
"$kernel_tests" --list 2>/dev/null | sed -n 's/: test$//p' >"$logs/kernel-tests"
guests=$(grep -ac "^guest: tests ended with 0" "$logs/uml" || true)
sed 's/.*NOT RUN/NOT RUN/' "$logs/said" | sort -u | while IFS= read -r line; do
    name=$(sed 's/^NOT RUN: \([A-Za-z0-9_:]*\): .*/\1/' <<<"$line")
    if ! grep -qx "$name" "$logs/kernel-tests" || [ "$(grep -ac "NOT RUN: $name: " "$logs/uml" || true)" = "$guests" ]; then
        echo "$line"
    fi
done >>"$not_run"
sort -u "$not_run"
say "$(sort -u "$not_run" | grep -c . || true) NOT RUN"
cat "$failures"
# sum WORD: of how many tests the runner's closing lines say so.
sum() { grep -aE "^ *Summary \[|^test result: " "$logs/run" | grep -oE "[0-9]+ $1" | awk '{ n += $1 } END { print n + 0 }' || true; }
# The runner knows nothing of a step that failed before it, nor plain cargo of the programs before the last.
if [ "$outside" != 0 ] || { [ "$runner" != 0 ] && ! grep -q "[1-9][0-9]* failed" <<<"${closing:-}"; }; then
    of_runner=$(sum failed)
    [ "$runner" = 0 ] || [ "$of_runner" != 0 ] || of_runner=1
    closing="$(sum passed) passed, $((of_runner + outside)) failed"
fi
[ -z "${closing:-}" ] || echo "$closing"
[ ! -s "$failures" ]
