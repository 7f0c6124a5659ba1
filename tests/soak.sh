#!/bin/bash
# `make soak`: a user who means harm (tests/tests/hostile.rs, root), a node that lies (gpuctld/tests/daemon/lying_node.rs), then the property
# tests with ever new cases, until one fails or SOAK_SECS are over. A case that fails is printed at its
# smallest and kept under proptest-regressions/, so that the next run begins with it.
set -euo pipefail
cd "$(dirname "$0")/.."
secs=${SOAK_SECS:-600}
crates=(-p gmodel -p gsched -p gcore -p gwire -p gcli -p gq -p gsub -p gstepd -p gpuctld)
unset PROPTEST_RNG_SEED
export PROPTEST_CASES=${PROPTEST_CASES:-1000}
"${CARGO:-cargo}" build --quiet --workspace
hostile_secs=$((secs / 4))
echo "soak: $hostile_secs s of those who mean harm"
SOAK_SECS=$hostile_secs "${CARGO:-cargo}" test --quiet -p gpupool-tests --test hostile -- --nocapture
secs=$((secs - hostile_secs))
echo "soak: $secs s of property tests, $PROPTEST_CASES cases each round"
"${CARGO:-cargo}" test --quiet "${crates[@]}" --lib --bins --no-run
# A node that lies to a live controller gets a quarter of the time, before the rest.
end=$(($(date +%s) + secs))
echo "soak: a lying node, $((secs / 4)) s"
LIAR_SECS=$((secs / 4)) "${CARGO:-cargo}" test --quiet -p gpuctld --test daemon lying_node
for ((round = 1; $(date +%s) < end; round++)); do
    "${CARGO:-cargo}" test --quiet "${crates[@]}" --lib --bins >target/soak.log 2>&1 || {
        cat target/soak.log
        echo "soak: failed in round $round"
        exit 1
    }
    echo "soak: round $round passed"
done
