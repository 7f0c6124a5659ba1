#!/bin/bash
# What a pool tells a real Prometheus: the names by promtool, every alert rule, every query of the dashboards in etc/grafana.
# Installs: Prometheus of Debian (60 MB).
source "$(dirname "$0")/party.bash" "$@"
etc=$(realpath "$here/../../etc")
debian prometheus
pool_up --nodes 3 --gpus h100:8 --cpus 32

# A pool with something of everything: guarantees, a borrower that was preempted, demand, a budget, a lost GPU, a drained node.
cat >policy.toml <<'TOML'
[account.vision]
guaranteed = { h100 = 16 }
[account.speech]
guaranteed = { h100 = 4 }
[[account.speech.budget]]
kind = "cap"
gpu_hours = 100
period = "month"
TOML
gadm policy import policy.toml >/dev/null
printf '[preempt]\nmin_run = 0\n' >>"$pool/gpuctld/gpuctld.toml"
gadm reload
state_is() { [ "$(gq -h -t all -j "$1" -o %T)" = "$2" ]; }
wait_until() {
    local deadline=$((SECONDS + 60)) what=$1
    shift
    until "$@"; do
        [ $SECONDS -lt $deadline ] || fail "waited too long until $what"
        sleep 0.2
    done
}
borrower=$(gsub -A speech --gpus 8 --nodes 1 --time 30 --checkpoint USR1@1 --requeue --wrap 'trap "exit 0" USR1; while :; do sleep 0.1; done')
small=$(gsub -A speech --gpus 2 --time 30 --wrap 'sleep 600')
wait_until "the borrower runs" state_is "$borrower" RUNNING
wait_until "the small one runs" state_is "$small" RUNNING
gadm node drain --reason 'new disks' node3 >/dev/null
gadm sandbox fault node2 gpu7 lost
gsub --hold --gpus 1 --wrap true >/dev/null
wait_until "the lost GPU is known" eval 'gnodes --health | grep -q "lost\|out\|quarantined\|missing"'

socket=$(sed -n 's/^socket = "\(.*\)"/\1/p' "$GPUPOOL_CONFIG")
curl -s --unix-socket "$socket" http://localhost/metrics >metrics
right "promtool finds no fault with the metrics" promtool check metrics <metrics
right "one series has a job in it" [ "$(grep -v '^#' metrics | grep -F 'job="' | sed 's/{.*//' | sort -u)" = gpupool_job_gpu_info ]
right "promtool takes the rules" promtool check rules "$etc/prometheus/gpupool.rules.yml" >/dev/null

# As in docs/monitoring.md: over https, with a token that is good for this alone.
own=$(free_port) address=$(sed -n 's/^listen = "\(.*\)"/\1/p' "$pool/gpuctld/gpuctld.toml")
gadm token user daemon --scope metrics --expires 1d >gpupool.token 2>/dev/null
cp "$pool/gpuctld/state/pki/ca.pem" gpupool-ca.pem
cp "$etc/prometheus/gpupool.rules.yml" .
sed "s,/etc/prometheus/,,; s,ctl.example.org:7117,$address,; s/scrape_interval: 30s/scrape_interval: 1s\n  evaluation_interval: 1s/" "$etc/prometheus/prometheus.yml" >prometheus.yml
prometheus --config.file=prometheus.yml --storage.tsdb.path=tsdb --web.listen-address="127.0.0.1:$own" --log.level=warn &
prometheus=$!
undo() { kill "$prometheus" 2>/dev/null; wait "$prometheus" 2>/dev/null; }
ask() { curl -s --get "http://127.0.0.1:$own/api/v1/$1" "${@:2}"; }
# Rates need scrapes of some time.
wait_until "Prometheus has five scrapes" eval 'ask query --data-urlencode "query=count_over_time(gpupool_build_info[1m]) >= 5" | grep -q "\"value\""'
# Starts, ends and a preemption happen while Prometheus looks.
owner=$(gsub -A vision --gpus 7 --nodes 1 --time 30 --wrap 'sleep 600')
wait_until "the owner's job runs in the borrower's place" state_is "$owner" RUNNING
gsub --gpus 1 --time 5 --wait --wrap true >/dev/null

cat >queries.py <<'PY'
import json, subprocess, sys, time, urllib.parse, urllib.request
base, boards = sys.argv[1], sys.argv[2:]
def ask(path, **words):
    with urllib.request.urlopen(f"{base}/api/v1/{path}?{urllib.parse.urlencode(words)}") as answer:
        return json.load(answer)["data"]
empty = []
def rows(expr):
    for word, value in {"$cluster": ".*", "$partition": ".*", "$account": "speech", "$__rate_interval": "1m"}.items():
        expr = expr.replace(word, value)
    for _ in range(20):
        found = ask("query", query=expr)["result"]
        if found and not all(row["value"][1] == "NaN" for row in found):
            return len(found)
        time.sleep(1)
    empty.append(expr)
queries = 0
for board in boards:
    for panel in json.load(open(board))["panels"]:
        for target in panel["targets"]:
            queries += 1
            rows(target["expr"])
print(queries, "queries of the dashboards")
for expr in empty:
    print("no row:", expr)
rules = [rule for group in ask("rules")["groups"] for rule in group["rules"]]
bad = [rule for rule in rules if rule["health"] != "ok"]
for rule in bad:
    print("rule:", rule["name"], rule["lastError"])
begun = {rule["name"] for rule in rules if rule.get("state", "inactive") != "inactive"}
print("alerts that began:", *sorted(begun))
missing = {"GpupoolGpuOutOfService"} - begun
sys.exit(bool(empty or bad or missing))
PY
right 'each query of the dashboards has a row, each rule can be computed, and the lost GPU is an alert' \
    python3 queries.py "http://127.0.0.1:$own" "$etc"/grafana/*.json
pass "metrics, rules and dashboards with $(prometheus --version 2>&1 | sed -n 's/^prometheus, version \([^ ]*\).*/Prometheus \1/p')"
