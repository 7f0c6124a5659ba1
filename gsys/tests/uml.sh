#!/bin/sh
# The kernel tests of gsys on pure cgroup v2 and on pure v1, under user-mode Linux: a kernel as an ordinary process, with
# this machine's files as its root. Usage: gsys/tests/uml.sh [compiled test program]. Prints NOT RUN and ends 0 where that cannot be done.
# LINUX_UML names the kernel; otherwise linux.uml from the PATH, otherwise Debian's package is fetched and unpacked aside.
set -eu

not_run() { echo "NOT RUN: gsys/tests/uml.sh: $1" >&2; exit 0; }

cache="${XDG_CACHE_HOME:-/var/tmp}/gpupool-uml"

# Lists of packages that are older than the archive name a file that it has no more.
download() { apt-get download user-mode-linux; }

find_kernel() {
    if [ -n "${LINUX_UML:-}" ]; then echo "$LINUX_UML"; return; fi
    command -v linux.uml && return
    if [ ! -x "$cache/usr/bin/linux.uml" ]; then
        command -v apt-get >/dev/null && command -v dpkg >/dev/null || return 0
        mkdir -p "$cache"
        (cd "$cache" && { download || { apt-get update && download; }; } >/dev/null 2>&1 && dpkg -x user-mode-linux_*.deb . && rm -f ./*.deb) || return 0
    fi
    echo "$cache/usr/bin/linux.uml"
}

test_program() {
    cargo test -p gsys --test kernel --no-run --message-format=json 2>/dev/null |
        sed -n 's/.*"name":"kernel".*"executable":"\([^"]*\)".*/\1/p' | tail -n 1
}

[ "$(id -u)" = 0 ] || not_run "needs root, so that the files of this machine are readable to the guest's root"
kernel=$(find_kernel)
[ -x "$kernel" ] || not_run "no user-mode Linux kernel: apt-get download user-mode-linux has failed"
program=${1:-$(cd "$(dirname "$0")/../.." && test_program)}
[ -x "$program" ] || { echo "gsys/tests/uml.sh: the test program did not compile" >&2; exit 1; }
program=$(realpath "$program")

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

# What the guest's first process does, for cgroup trees of one shape.
write_init() {
    cat >"$work/init" <<EOF
#!/bin/sh
export PATH=/usr/sbin:/usr/bin:/sbin:/bin
mount -t proc proc /proc
mount -t sysfs sysfs /sys
[ -c /dev/null ] && [ -d /dev/pts ] || mount -t devtmpfs dev /dev
mkdir -p /dev/pts /dev/shm
mount -t devpts devpts /dev/pts
mount -t tmpfs tmpfs /dev/shm
# The program may lie below /tmp or /var/tmp, which the next mounts cover.
mkdir /dev/shm/program
mount --bind "$(dirname "$program")" /dev/shm/program
mount -t tmpfs tmpfs /tmp
mount -t tmpfs tmpfs /var/tmp
case $1 in
v2)
    mount -t cgroup2 cgroup2 /sys/fs/cgroup
    ;;
v1)
    mount -t tmpfs tmpfs /sys/fs/cgroup
    for tree in cpu,cpuacct memory pids freezer devices; do
        mkdir /sys/fs/cgroup/\$tree
        mount -t cgroup -o \$tree cgroup /sys/fs/cgroup/\$tree
    done
    ;;
esac
cd /tmp
echo "guest: \$(uname -r), cgroup $1"
"/dev/shm/program/$(basename "$program")" --test-threads=1 --color=never </dev/null 2>&1
echo "guest: tests ended with \$?"
echo o > /proc/sysrq-trigger
sleep 60
EOF
    chmod +x "$work/init"
}

failed=0
for shape in v2 v1; do
    write_init "$shape"
    # The console goes to a file, not to this terminal, whose settings the guest would change.
    timeout 240 "$kernel" mem=512M root=/dev/root rootfstype=hostfs rootflags=/ rw quiet init="$work/init" \
        con=null con0=null,fd:1 umid="gpupool$$" uml_dir="$work/uml/" </dev/null >"$work/console" 2>&1 || true
    tr -d '\r' <"$work/console" | grep -E '^guest:|NOT RUN|FAILED|panicked|^test result' || true
    if ! grep -q 'guest: tests ended with 0' "$work/console"; then
        failed=1
        tail -n 60 "$work/console"
        echo "gsys/tests/uml.sh: the kernel tests under cgroup $shape failed" >&2
    fi
done
exit "$failed"
