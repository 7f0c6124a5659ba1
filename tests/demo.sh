#!/bin/bash
# `make demo`: a cluster of two nodes with eight simulated GPUs each on this machine, real daemons and real fences, and the jobs of
# etc/examples as an ordinary user. Ends with 0 only if every result was right; removes all it made. Usage: tests/demo.sh PROGRAMS
set -euo pipefail
cd "$(dirname "$0")/.."
programs=$(realpath "${1:?usage: tests/demo.sh DIRECTORY-OF-PROGRAMS}")
user=gpupool-demo
patience_secs=240
checks=0

say() { printf '\n== %s\n' "$*"; }
fail() { echo "demo: FAILED: $*" >&2; exit 1; }
right() { checks=$((checks + 1)); echo "  right: $*"; }

[ "$(id -u)" = 0 ] || fail "root is needed for fences, device files and another user: sudo make demo"
say "about 2 minutes from here; the first time 100 MB of Python packages are fetched from PyPI (a minute more)"

# Below /var/tmp, where an ordinary user gets to; sandboxes take any directory.
work=$(mktemp -d /var/tmp/gpupool-demo.XXXXXX)
chmod 755 "$work"
home=$work/home
pool=$work/pool
made_user=no

clean_up() {
    status=$?
    trap - EXIT INT TERM
    set +e
    if [ "$status" != 0 ]; then
        for log in "$pool"/*/log; do
            [ -s "$log" ] && { echo "--- the end of $log" >&2; tail -n 15 "$log" >&2; }
        done
    fi
    [ ! -e "$pool/sandbox.json" ] || "$work/bin/gadm" sandbox down --dir "$pool" || status=1
    [ "$made_user" = no ] || userdel "$user"
    rm -rf --one-file-system "$work"
    exit "$status"
}
trap clean_up EXIT
trap 'exit 130' INT
trap 'exit 143' TERM

mkdir "$work/bin" "$home"
for program in gpuctld gpud gstepd gcheck gsub grun gq gdel gnodes gacct gadm gslurm nvml-sim libnvidia_ml_sim.so; do
    cp "$programs/$program" "$work/bin/"
done

say "an ordinary system user, $user"
if id "$user" >/dev/null 2>&1; then
    echo "it exists already and stays"
else
    useradd --system --no-create-home --home-dir "$home" --shell /bin/bash "$user"
    made_user=yes
    echo "made for the demo, and removed at its end"
fi
cp etc/examples/* "$home/"
chown -R "$user:" "$home"

# Runs a command as the user, in its home, with an environment as after a login.
as_user() {
    (cd "$home" && runuser -u "$user" -- env -i HOME="$home" USER="$user" LOGNAME="$user" SHELL=/bin/bash LANG=C.UTF-8 \
        PATH="$venv/bin:$work/bin:/usr/bin:/bin" GPUPOOL_CONFIG="$GPUPOOL_CONFIG" GPU_DEVICE_DIR="$pool/%N/dev" "$@")
}

make_venv() {
    /usr/bin/python3 -m venv "$1"
    "$1/bin/pip" install --quiet --disable-pip-version-check 'scikit-learn>=1.3,<2'
}

say "scikit-learn, for the training runs"
venv=$PWD/target/demo/venv
[ -e "$venv/complete" ] || { rm -rf "$venv"; mkdir -p target/demo; make_venv "$venv"; touch "$venv/complete"; }
if ! GPUPOOL_CONFIG='' as_user python3 -c 'import sklearn; print("scikit-learn", sklearn.__version__)' 2>/dev/null; then
    echo "$venv cannot be read by $user; a second copy is made"
    venv=$work/venv
    make_venv "$venv"
    GPUPOOL_CONFIG='' as_user python3 -c 'import sklearn; print("scikit-learn", sklearn.__version__)'
fi

say "gadm sandbox up --nodes 2 --gpus h100:8"
eval "$("$work/bin/gadm" sandbox up --dir "$pool" --nodes 2 --gpus h100:8)"
as_user gnodes
as_user gnodes -p
[ "$(as_user gnodes --json | python3 -c 'import json,sys; print(sum(len(n["gpus"]) for n in json.load(sys.stdin)["nodes"]))')" = 16 ] ||
    fail "there should be 16 GPUs"
right "two nodes, 16 GPUs"

# wait_until SECONDS WHAT COMMAND...: until the command succeeds.
wait_until() {
    local deadline=$((SECONDS + $1)) what=$2
    shift 2
    until "$@"; do
        [ "$SECONDS" -lt "$deadline" ] || { as_user gq || true; fail "waited too long until $what"; }
        sleep 0.2
    done
}
state_is() { [ "$(as_user gq -h -o %T -j "$1" 2>/dev/null | sort -u)" = "$2" ]; }
reason_is() { [ "$(as_user gq -h -o %r -j "$1" 2>/dev/null)" = "$2" ]; }
is_over() { [ -z "$(as_user gq -h -o %i --me)" ]; }
any_running() { as_user gq -h -o %T -j "$1" | grep -q RUNNING; }

say "sixteen training runs, one GPU each: gsub digits-sweep.sh"
array=$(as_user gsub digits-sweep.sh)
echo "$array"
wait_until 60 "the first task runs" any_running "$array"

say "a job that needs all GPUs has to wait: gsub whole-pool.sh"
whole=$(as_user gsub whole-pool.sh)
echo "$whole"
wait_until 30 "the scheduler has said why it waits" reason_is "$whole" Resources
as_user gq
as_user gq --why "$whole"
state_is "$whole" PENDING || fail "job $whole should wait"
right "job $whole waits for resources"

say "two nodes, and a job that opens GPUs it was not given: gsub two-nodes.sh, gsub other-gpu.sh"
ranks=$(as_user gsub two-nodes.sh)
other=$(as_user gsub other-gpu.sh)
echo "$ranks"
echo "$other"

say "waiting until all have ended"
wait_until "$patience_secs" "the queue is empty" is_over
as_user gacct

say "what came out"
cat "$home/two-nodes.out" "$home/whole-pool.out" "$home/other-gpu.out" || fail "an output file is missing"
as_user gacct --json >"$work/runs.json"
python3 - "$home" "$work/runs.json" "$array" "$whole" "$ranks" "$other" <<'PYTHON' || fail "a result is wrong"
import datetime, json, pathlib, re, sys

home, runs_file, array, whole, ranks, other = pathlib.Path(sys.argv[1]), *sys.argv[2:]
runs = json.load(open(runs_file))["runs"]
by_id = {str(run["id"]): run for run in runs}
tasks = [run for run in runs if str(run.get("array_id")) == array]


def check(held, text):
    if not held:
        sys.exit(f"  WRONG: {text}")
    print(f"  right: {text}")


def instant(text):
    return datetime.datetime.fromisoformat(text.replace("Z", "+00:00"))


def ended_well(run):
    return run["state"] == "COMPLETED" and run["exit_code"] in (0, {"code": 0, "signal": 0}, "0:0")


check(len(tasks) == 16 and all(map(ended_well, tasks)), "16 of 16 array tasks ended with exit code 0")
results = [json.loads((home / f"digits-{k}.json").read_text()) for k in range(16)]
check(all(0.9 < result["accuracy"] <= 1 for result in results), "16 models trained, each with an accuracy over 0.9")
best = max(results, key=lambda result: result["accuracy"])
print(f"         best: {best['model']} {best['words']} with {best['accuracy']:.4f}, on {best['node']}")
check(all(len(result["gpus"]) == 1 for result in results), "each had one GPU")
check({result["node"] for result in results} == {"node1", "node2"}, "on both nodes")

held = [(instant(t["start_time"]), instant(t["end_time"]), results[t["array_index"]]["gpus"][0]) for t in tasks]
doubled = [a for i, a in enumerate(held) for b in held[i + 1:] if a[2] == b[2] and a[0] < b[1] and b[0] < a[1]]
check(not doubled, "no GPU had two owners at a time")

said = re.fullmatch(r"pi is 3\.1415926536, from 2 ranks on (node\d) and (node\d)\n", (home / "two-nodes.out").read_text())
check(ended_well(by_id[ranks]) and said and {said[1], said[2]} == {"node1", "node2"}, "two ranks found each other and agree on pi")
check(ended_well(by_id[other]) and "given 1, let through to 1, refused 7" in (home / "other-gpu.out").read_text(),
      "the kernel let the job open its own GPU and refused the seven others")
check(ended_well(by_id[whole]) and "2 nodes (node[1-2]), 8 GPUs" in (home / "whole-pool.out").read_text(), "the large job got all 16 GPUs")
check(instant(by_id[whole]["start_time"]) >= max(instant(t["end_time"]) for t in tasks), "and started when the array had ended")
PYTHON
checks=$((checks + 9))

say "the month's report: gacct report --by user,gpu-type"
# Reports go up to the present second; the last job may have ended within it.
jobs_reported() {
    as_user gacct report --by user,gpu-type --json >"$work/report.json"
    [ "$(python3 -c 'import json,sys; print(sum(row["jobs"] for row in json.load(open(sys.argv[1]))["rows"]))' "$work/report.json")" = "$1" ]
}
wait_until 10 "19 jobs are in the report" jobs_reported 19
as_user gacct report --by user,gpu-type
python3 - "$work/report.json" "$work/runs.json" "$user" <<'PYTHON' || fail "the report is wrong"
import json, sys

rows, runs, user = json.load(open(sys.argv[1]))["rows"], json.load(open(sys.argv[2]))["runs"], sys.argv[3]
reported = 3600 * sum(row["gpu_hours"] for row in rows if row["group"] == [user, "h100"])
held = sum(run["gpu_count"] * run["elapsed_secs"] for run in runs)
# Listings show whole seconds, rounded down; the report counts milliseconds.
slack = sum(run["gpu_count"] for run in runs)
good = len(runs) == 19 and 0 < held <= reported <= held + slack
print(f"  {'right' if good else 'WRONG'}: {reported:.0f} GPU-seconds of {len(runs)} jobs are reported, {held:.0f} and fractions by the listing")
sys.exit(not good)
PYTHON
checks=$((checks + 1))

say "a shell on two GPUs, typed at a terminal of script(1): grun --gpus 2 --pty bash"
typed='echo "terminal $(tty), GPUs $(tr , "\n" <<<"$GSUB_GPU_UUIDS" | grep -c GPU-)"; exit 7'
code=0
shell=$(as_user script -qec "grun --gpus 2 --pty bash --norc" /dev/null <<<"$typed") || code=$?
echo "$shell"
[[ $shell == *"terminal /dev/pts/"*", GPUs 2"* ]] || fail "the shell should have a terminal and two GPUs"
[ "$code" = 7 ] || fail "grun should end with the shell's code, 7, and not $code"
right "a shell with a terminal on two GPUs, and its exit code"

say "an image, made here by umoci and busybox, and a step in it: grun --gpus 1 --container-image=oci:$home/image:demo sh"
make_image() {
    mkdir -p "$home/files/bin" "$home/files/etc"
    cp "$(command -v busybox)" "$home/files/bin/busybox"
    for word in sh cat id ls grep mknod; do ln -s busybox "$home/files/bin/$word"; done
    echo "files of the image" >"$home/files/etc/made-by"
    umoci init --layout "$home/image"
    umoci new --image "$home/image:demo"
    umoci insert --image "$home/image:demo" "$home/files" /
    chown -R "$user:" "$home/image"
}
make_image >"$work/umoci.out" 2>&1 || { cat "$work/umoci.out" >&2; fail "umoci should make an image"; }
inside='cat /etc/made-by; echo "user $(id -u), GPUs $(ls /dev | grep -c "nvidia[0-9]")"; ls -d /home /usr; mknod /gpu c 195 7; exit 5'
code=0
container=$(as_user grun --gpus 1 "--container-image=oci:$home/image:demo" sh -c "$inside" 2>&1) || code=$?
echo "$container"
[[ $container == "files of the image"*"user $(id -u "$user"), GPUs 1"* ]] || fail "the container should have the image's files, the user and one GPU"
[[ $container == *"/home: No such file"*"mknod: /gpu: Operation not permitted"* ]] || fail "the container should have nothing else of the node, and make no device"
[ "$code" = 5 ] || fail "grun should end with the code of the container's program, 5, and not $code"
right "a container with its own files, the job's user and its one GPU, and nothing else of the node"

say "gadm sandbox down"
tag=$(python3 -c 'import json,sys; print(json.load(open(sys.argv[1]))["tag"])' "$pool/sandbox.json")
"$work/bin/gadm" sandbox down --dir "$pool"
! pgrep -u "$user" >/dev/null || fail "processes of $user are left"
! pgrep -f "$work/bin/" >/dev/null || fail "daemons are left"
[ -z "$(find /sys/fs/cgroup -maxdepth 4 -type d -name "gpupool-$tag" 2>/dev/null)" ] || fail "cgroups are left"
! grep -q "$work" /proc/mounts || fail "mounts are left"
[ ! -e "/run/gpupool/$tag" ] || fail "sockets are left"
right "no process, cgroup, mount or socket is left"

say "demo: all $((checks)) checks were right"
