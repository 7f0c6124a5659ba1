#!/bin/bash
# `make clients`: heavy programs of others against a sandbox pool, each a party in tests/clients/*.sh. As root.
# A party installs what it needs, cleans up, and ends with a line PASS, FAIL or NOT RUN and the reason.
# Usage: tests/clients.sh PROGRAMS [PARTY...]
set -euo pipefail
cd "$(dirname "$0")/.."
programs=$(realpath "${1:?usage: tests/clients.sh DIRECTORY-OF-PROGRAMS [PARTY...]}")
shift
logs=target/client-logs
mkdir -p "$logs"
# The longest that a party may take, in seconds.
patience_secs=1800

[ $# -gt 0 ] || set -- $(basename -s .sh tests/clients/*.sh)
passed=0 failed=0 not_run=0
for party in "$@"; do
    script=tests/clients/$party.sh
    [ -e "$script" ] || { echo "clients: there is no party \"$party\". Parties: $(basename -s .sh tests/clients/*.sh | paste -sd' ')" >&2; exit 2; }
    echo "clients: $party: $(sed -n 's/^# Installs: //p' "$script")"
    began=$SECONDS status=0
    timeout --kill-after=60 "$patience_secs" bash "$script" "$programs" >"$logs/$party" 2>&1 || status=$?
    # The last line is the verdict; a party that says PASS and fails all the same has failed in its cleaning up.
    verdict=$(grep -aE '^(PASS|FAIL|NOT RUN)' "$logs/$party" | tail -n 1) || true
    case "$status $verdict" in
    "0 PASS"*) passed=$((passed + 1)) ;;
    "0 NOT RUN"*) not_run=$((not_run + 1)) ;;
    *)
        failed=$((failed + 1))
        tail -n 40 "$logs/$party"
        [[ $verdict == FAIL* ]] || verdict="FAIL: ended with status $status"
        ;;
    esac
    echo "clients: $party: $verdict ($((SECONDS - began)) s, $logs/$party)"
done
echo "$passed passed, $failed failed, $not_run skipped"
[ "$failed" = 0 ]
