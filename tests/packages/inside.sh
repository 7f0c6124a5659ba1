#!/bin/bash
# What `make packages-test` does inside of a fresh root: FORMAT is deb or rpm, TAG names this run's cgroups. Packages are in
# /opt/packages, those of a higher version in /opt/next.
set -euo pipefail
patience_secs=60

fail() {
    echo "packages-test ($FORMAT): FAILED: $*" >&2
    gnodes >&2 || true
    tail -n 15 /run/systemctl/*.log >&2 || true
    exit 1
}
right() { echo "  right: $*"; }

# wait_until WHAT COMMAND...
wait_until() {
    local deadline=$((SECONDS + patience_secs)) what=$1
    shift
    until "$@"; do
        [ "$SECONDS" -lt "$deadline" ] || fail "waited too long until $what"
        sleep 0.1
    done
}

put() {
    case $FORMAT in
    deb) dpkg -i "$1"/*.deb >/run/put.log 2>&1 ;;
    rpm) rpm -U --nodeps --force-debian "$1"/*.rpm >/run/put.log 2>&1 ;;
    esac || { cat /run/put.log; fail "the packages of $1 cannot be installed"; }
}
names=(gpupool-slurm gpupool-sandbox gpupool-controller gpupool-node gpupool-client)
take_away() {
    case $FORMAT in
    deb) dpkg -r "${names[@]}" >/run/take.log 2>&1 ;;
    rpm) rpm -e "${names[@]}" >/run/take.log 2>&1 ;;
    esac || { cat /run/take.log; fail "the packages cannot be removed"; }
}
version() {
    case $FORMAT in
    deb) dpkg-query -W -f '${Version}' gpupool-node ;;
    rpm) rpm -q --qf '%{VERSION}' gpupool-node ;;
    esac
}

# Files that are there, without what every installation writes.
files() {
    find / -xdev \( -path /proc -o -path /sys -o -path /run -o -path /dev -o -path /opt -o -path /tmp -o -path /home -o -path /var/lib/dpkg -o -path /var/lib/rpm \
        -o -path /var/lib/systemd -o -path /var/log -o -path /var/cache -o -path '/etc/*-' \) -prune -o -print | sort
}
as_ada() { runuser -u ada -- env -i HOME=/home/ada PATH=/usr/bin:/bin LANG=C.UTF-8 "$@"; }
state_is() { [ "$(as_ada gacct -n -X -j "$1" -o State 2>/dev/null | tr -d ' ')" = "$2" ]; }
node_idle() { gnodes 2>/dev/null | grep -q '^gpu01 *idle'; }
alive() { [ -e "/proc/$1" ] && ! grep -q '^State:.Z' "/proc/$1/status"; }
pid_of() { cat "/run/systemctl/gpupool-$1.pid"; }

# In the place of systemd's own: rpm's scripts have a PATH of their own.
install -m 755 /opt/test/systemctl /usr/bin/systemctl
mkdir -p /run/systemd/system
useradd -m ada
files >/run/before

put /opt/packages
[ ! -e /run/systemctl/gpupool-gpuctld.pid ] && [ ! -e /run/systemctl/gpupool-gpud.pid ] || fail "the installation started a daemon"
id gpupool-hook >/dev/null || fail "the user of the submission hook is missing"
[ "$(stat -c '%a %U' /var/lib/gpupool /var/spool/gpupool | tr '\n' ' ')" = "700 root 711 root " ] || fail "directories have other modes"
gpuctld check >/run/check.log || fail "the sample configuration of gpuctld is refused"
! gpud check 2>/run/check.log || fail "gpud should miss its controller"
grep -q 'controller = "HOST:PORT" is missing' /run/check.log || fail "gpud should say what is missing"
sed 's/^#\(controller = \)/\1/' /etc/gpupool/gpud.toml >/run/gpud.toml
gpud check --config /run/gpud.toml >/dev/null || fail "the sample configuration of gpud is refused"
right "installed, nothing was started, and gpud says what it needs"

[ "$(readlink -f /usr/bin/squeue)" = /usr/bin/gslurm ] || fail "squeue should lead to gslurm"
squeue --version | grep -q gpupool || fail "squeue should be ours"
for page in man1/gsub.1 man8/gpuctld.8 man8/gpud.8 man5/gpud.toml.5; do
    zcat "/usr/share/man/$page.gz" | grep -q '^\.[TD][Ht]' || fail "$page should be a manual page"
done
bash -c '. /usr/share/bash-completion/completions/gsub; complete -p gsub' >/dev/null || fail "completions of gsub"
right "Slurm's names, manual pages and completions"

# The administrator's part, as in docs/install.md.
cat >/etc/gpupool/gpuctld.toml <<'END'
cluster = "lab"
advertise = "127.0.0.1:7117"
min_free = "16M"
END
gpuctld new >/dev/null
systemctl enable --now gpupool-gpuctld
wait_until "the controller answers" gnodes -h >/dev/null 2>&1
wait_until "the controller lists its nodes" eval 'gnodes >/dev/null 2>&1'

simulate_gpus() {
    local major minor gpus=/srv/gpus
    mkdir -p "$gpus/dev/nvidia-caps"
    cp /usr/lib/gpupool/sandbox/libnvidia_ml_sim.so "$gpus/"
    /usr/lib/gpupool/sandbox/nvml-sim init --dir "$gpus" --gpus h100:2 --seed packages >/dev/null
    major=$(for n in $(seq 511 -1 384); do grep -q "^ *$n " /proc/devices || { echo "$n"; break; }; done)
    for minor in 0 1; do mknod -m 666 "$gpus/dev/nvidia$minor" c "$major" "$minor"; done
    mknod -m 666 "$gpus/dev/nvidiactl" c "$major" 255
    mknod -m 666 "$gpus/dev/nvidia-uvm" c "$major" 256
    : >"$gpus/kmsg"
    cat >/etc/gpupool/gpud.toml <<END
controller = "127.0.0.1:7117"
cgroup_tag = "$TAG"
dev_dir = "$gpus/dev"
nvml_lib = "$gpus/libnvidia_ml_sim.so"
cuda_lib = "$gpus/libnvidia_ml_sim.so"
kernel_log = "$gpus/kmsg"
gpu_check_size = "small"
END
}
simulate_gpus
token=$(gadm token node --role compute --name gpu01 | tail -n 1)
gpud join --controller 127.0.0.1:7117 --token "$token" >/dev/null
systemctl enable --now gpupool-gpud
wait_until "the node takes work" node_idle
right "a pool of one node with two GPUs"

# A job that lasts until the file NAME is there, writes its process id and its GPU.
long_job() {
    as_ada gsub --gpus 1 --mem 64M --output "/home/ada/$1.out" --chdir /home/ada \
        --wrap "echo \$\$ \$GSUB_GPU_UUIDS >$1.began; while [ ! -e $1 ]; do sleep 0.1; done; ls /srv/gpus/dev >/dev/null; echo ended"
}
ended_well() {
    as_ada touch "/home/ada/$1"
    wait_until "job $2 has ended well" state_is "$2" COMPLETED
    [ "$(cat "/home/ada/$1.out")" = ended ] || fail "job $2 should have written its last line"
}

job=$(long_job first)
wait_until "the job runs" test -s /home/ada/first.began
read -r job_pid gpu </home/ada/first.began
[[ $gpu == GPU-* ]] || fail "the job should have a GPU, and not '$gpu'"
before="$(pid_of gpuctld) $(pid_of gpud)"
supervisor=$(sed -n 's,^PPid:\s*,,p' "/proc/$job_pid/status")
[ "$(cat "/proc/$supervisor/comm")" = gstepd ] || fail "the job should be the child of its supervisor"
sum=$(cat /etc/gpupool/*.toml | sha256sum)
put /opt/next
[[ $(version) == *+next ]] || fail "the upgrade should have another version"
[ "$(cat /etc/gpupool/*.toml | sha256sum)" = "$sum" ] || fail "the upgrade should keep the configuration"
[ "$(pid_of gpuctld)" != "${before% *}" ] && [ "$(pid_of gpud)" != "${before#* }" ] || fail "the upgrade should restart both daemons"
alive "$job_pid" && alive "$supervisor" || fail "the job and its supervisor should live through the upgrade"
wait_until "the controller answers" eval 'gnodes >/dev/null 2>&1'
ended_well first "$job"
right "a job with a GPU lived through the upgrade, and both daemons are new"

if [ "$FORMAT" = deb ]; then
    before=$(pid_of gpuctld)
    echo 'nonsense = 1' >>/etc/gpupool/gpuctld.toml
    dpkg -i /opt/next/gpupool-controller_*.deb >/run/put.log 2>&1 || fail "an upgrade should not fail for a mistake in the configuration"
    grep -q 'the former gpuctld runs on' /run/put.log && alive "$before" || fail "the former controller should run on, and the upgrade say so"
    sed -i '$d' /etc/gpupool/gpuctld.toml
    right "a configuration with a mistake stops no daemon in an upgrade"
fi

job=$(long_job second)
wait_until "the second job runs" test -s /home/ada/second.began
read -r job_pid _ </home/ada/second.began
take_away
! alive "$(cat /run/systemctl/*.pid 2>/dev/null || echo 0)" || fail "removing should end the daemons"
! pgrep -x 'gpuctld|gpud' >/dev/null || fail "removing should end the daemons"
alive "$job_pid" || fail "the job should live when the packages are removed"
as_ada touch /home/ada/second
wait_until "the second job has ended" eval '! alive "$job_pid"'
[ ! -e /usr/sbin/gpud ] && [ ! -e /usr/bin/squeue ] || fail "programs should be removed"
right "removed: the daemons ended, the job ran to its end"

put /opt/next
for daemon in gpuctld gpud; do
    # rpm keeps an edited file aside, dpkg in its place.
    [ ! -e "/etc/gpupool/$daemon.toml.rpmsave" ] || mv "/etc/gpupool/$daemon.toml.rpmsave" "/etc/gpupool/$daemon.toml"
    systemctl enable --now "gpupool-$daemon"
done
wait_until "the end of the second job is known" state_is "$job" COMPLETED
right "installed again: the end of that job is in accounting"

eval "$(gadm sandbox up --dir /srv/pool --nodes 1 --gpus h100:2 2>/run/sandbox.log)" || { cat /run/sandbox.log; fail "gadm sandbox up"; }
[ "$(gsub --wait --gpus 2 --output /srv/pool.out --wrap 'echo $GSUB_GPU_UUIDS' >/dev/null && tr ',' '\n' </srv/pool.out | grep -c GPU-)" = 2 ] ||
    fail "the sandbox should run a job on two GPUs"
gadm sandbox down --dir /srv/pool 2>/dev/null
unset GPUPOOL_CONFIG
rm -rf /srv/pool /srv/pool.out
right "gadm sandbox by the packages"

take_away
if [ "$FORMAT" = deb ]; then
    mkdir -p /var/spool/gpupool/runs/9-1
    dpkg -P gpupool-node >/run/purge.log 2>&1
    grep -q 'runs of jobs have not ended' /run/purge.log && [ -d /var/spool/gpupool/runs/9-1 ] || fail "an open run should be kept, and named"
    rmdir /var/spool/gpupool/runs/9-1
    put /opt/next
    take_away
    dpkg -P "${names[@]}" >/run/purge.log 2>&1
    grep -q 'rm -r /var/lib/gpupool deletes them' /run/purge.log || fail "the purge should say what stays"
    [ -s /var/lib/gpupool/gpupool.db ] || fail "the purge should leave accounting"
    rm -rf /srv/gpus
    files >/run/after
    left=$(diff /run/before /run/after | grep '^[<>]' | grep -v '^> /var/lib/gpupool' || true)
    [ -z "$left" ] || fail "the purge left, or took: $left"
    [ -z "$(ls -A /run/gpupool 2>/dev/null)" ] || fail "the purge left $(ls -A /run/gpupool)"
    right "purged: accounting is there, nothing else"
fi
