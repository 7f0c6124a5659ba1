#!/bin/bash
# What `make packages-test` does with the role of Ansible inside of a fresh root that is controller, node and where Ansible runs.
set -euo pipefail
fail() { echo "packages-test (ansible): FAILED: $*" >&2; exit 1; }
right() { echo "  right: $*"; }

install -m 755 /opt/test/systemctl /usr/bin/systemctl
mkdir -p /run/systemd/system /root/play
cp -r /opt/ansible/. /root/play
cd /root/play
mkdir -p site/partitions.d
cat >inventory <<'END'
[gpupool_controller]
gpu01 ansible_connection=local
[gpupool_nodes]
gpu01 ansible_connection=local
[all:vars]
gpupool_address=127.0.0.1:7117
gpupool_packages=/opt/packages
END
printf 'cluster = "lab"\nadvertise = "127.0.0.1:7117"\nmin_free = "16M"\n' >site/gpuctld.toml
printf '[partition.main]\ndefault = true\nnodes = "ALL"\n' >site/partitions.d/main.toml
printf '[partition.old]\nnodes = "ALL"\n' >site/partitions.d/old.toml
mkdir -p host_vars
printf 'gpupool_gpud: {cgroup_tag: "%s", gpus: none, features: [nvlink]}\n' "$TAG" >host_vars/gpu01.yml

# play NAME: its summary is checked, its text kept.
play() { ansible-playbook -i inventory pool.yml >"/run/$1.log" 2>&1; }
changed() { sed -n 's/^gpu01 .*changed=\([0-9]*\).*/\1/p' "/run/$1.log"; }
node_is() { timeout 60 bash -c "until gnodes 2>/dev/null | grep -q '^gpu01 *$1'; do sleep 0.2; done" || { gnodes; fail "gpu01 should be $1"; }; }

play first || { tail -n 30 /run/first.log; fail "the first run"; }
node_is idle
[ -L /usr/bin/squeue ] || fail "Slurm's names should be there"
gnodes gpu01 | grep -q nvlink || fail "keys of gpupool_gpud should be in gpud.toml"
right "one play: a controller, a node that joined, $(changed first) changes"

play second || { tail -n 30 /run/second.log; fail "the second run"; }
[ "$(changed second)" = 0 ] || { grep -B3 '^changed' /run/second.log; fail "the second run should change nothing"; }
right "a second run changes nothing"

rm site/partitions.d/old.toml
pid=$(cat /run/systemctl/gpupool-gpuctld.pid)
play third || { tail -n 30 /run/third.log; fail "the third run"; }
! sinfo -h -o %R | grep -q old || fail "the partition of a removed file should be gone"
[ "$(cat /run/systemctl/gpupool-gpuctld.pid)" = "$pid" ] || fail "the controller should not be started again for it"
right "a file that the site removed is gone after a reload"

echo 'max_tme = "1:00"' >>site/partitions.d/main.toml
! play fourth || fail "a mistake should end the play"
grep -q 'max_time' /run/fourth.log || fail "the play should show the mistake"
! grep -q max_tme /etc/gpupool/partitions.d/main.toml || fail "a file with a mistake should not take effect"
right "a mistake ends the play before it takes effect"

systemctl disable --now gpupool-gpud
systemctl disable --now gpupool-gpuctld
