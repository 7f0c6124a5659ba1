#!/bin/bash
# What building, testing and the demo need of this machine: looks, installs what Debian or Ubuntu packages it can, says
# what and why. Usage: tests/setup.sh [build] [test] [demo] [packages] [packages-test] [images]
set -eu

rust_wanted=1.95
missing_packages=()

say() { echo "setup: $*"; }
fail() { echo "setup: $*" >&2; exit 1; }

# need COMMAND PACKAGE WHY
need() {
    command -v "$1" >/dev/null 2>&1 && return
    say "$1 is missing: $3 (package $2)"
    missing_packages+=("$2")
}

for_build() {
    # rustup, where it is used, fetches the version of rust-toolchain.toml by itself here.
    local version
    version=$(cargo --version 2>/dev/null | cut -d' ' -f2) || true
    [ -n "$version" ] || fail "cargo is missing. Install Rust $rust_wanted or newer, for instance from https://rustup.rs, and come again"
    printf '%s\n%s\n' "$rust_wanted" "$version" | sort -V -C || fail "cargo is $version, and Rust $rust_wanted or newer is needed: rustup update"
    need cc gcc "SQLite and the TLS library are C"
    [ -e /usr/include/stdlib.h ] || { say "C headers are missing (package libc6-dev)"; missing_packages+=(libc6-dev); }
}

for_test() {
    command -v cargo-nextest >/dev/null 2>&1 || say "cargo-nextest is not here: plain cargo test is used, which is slower and fine"
    need ssh openssh-client "jobs are reached by ssh"
    need rsync rsync "files go to a job by ssh"
    need curl curl "the node daemon's socket is asked by hand"
    need python3 python3 "the Python package is tested, and programs of jobs are written in it"
    install_sshd
    # Kernel tests on pure cgroup v2: gsys/tests/uml.sh fetches the kernel (40 MB) and unpacks it aside; nothing is installed.
    need crun crun "containers of jobs are made by it"
    need umoci umoci "images are unpacked by it, and made for tests"
    need skopeo skopeo "images are pulled by it"
    need mksquashfs squashfs-tools "images may be squashfs files"
    need busybox busybox-static "an image needs a program that needs nothing else"
    if [ "$(id -u)" != 0 ]; then
        say "not root: tests of cgroups, device fence and other users will say NOT RUN"
    elif ! command -v linux.uml >/dev/null 2>&1 && [ ! -x "${XDG_CACHE_HOME:-/var/tmp}/gpupool-uml/usr/bin/linux.uml" ]; then
        say "tests on pure cgroup v2 download Debian's user-mode-linux (40 MB) to ${XDG_CACHE_HOME:-/var/tmp}/gpupool-uml"
    fi
}

# Debian's packages start their daemon when they are installed; a policy of ours says no, and goes again.
install_sshd() {
    [ -x /usr/sbin/sshd ] && return
    local policy=/usr/sbin/policy-rc.d
    [ -e "$policy" ] || { printf '#!/bin/sh\nexit 101\n' >"$policy"; chmod 755 "$policy"; trap "rm -f $policy" EXIT; }
    say "sshd is missing: jobs are reached by ssh in the tests (package openssh-server; no daemon is started)"
    missing_packages+=(openssh-server)
}

for_demo() {
    need useradd passwd "the demo's jobs run as an ordinary user"
    need runuser util-linux "the demo's commands run as that user"
    need pgrep procps "the demo looks for processes that are left"
    need crun crun "the demo's container is made by it"
    need umoci umoci "the demo's image is made and unpacked by it"
    need busybox busybox-static "the demo's image holds this one program"
    if ! /usr/bin/python3 -c 'import ensurepip, venv' >/dev/null 2>&1; then
        say "Python's venv is missing: the demo trains models of scikit-learn (package python3-venv)"
        missing_packages+=(python3-venv)
    fi
}

for_packages() {
    need dpkg-deb dpkg "debs are made by it"
    need rpmbuild rpm "rpms are made by it"
    need strip binutils "programs are packed without what only debuggers read"
    need git git "the time of the last commit is the packages' time"
}

for_images() {
    [ -n "${ENGINE:-}" ] || need podman podman "images are made by it; ENGINE=docker takes docker"
}

for_packages-test() {
    need lintian lintian "it reads packages as Debian's reviewers do"
    need mmdebstrap mmdebstrap "fresh Debian roots are made by it"
    need ip iproute2 "a fresh root has a network of its own"
    need systemd-analyze systemd "it tells how exposed a unit is"
}

install_missing() {
    [ ${#missing_packages[@]} -gt 0 ] || { say "nothing to install"; return 0; }
    command -v apt-get >/dev/null 2>&1 || fail "install ${missing_packages[*]} (their names on Debian) and come again"
    [ "$(id -u)" = 0 ] || fail "as root: apt-get install ${missing_packages[*]}; then come again"
    say "installing ${missing_packages[*]} with apt-get (a minute)"
    export DEBIAN_FRONTEND=noninteractive
    apt-get install -y -q --no-install-recommends "${missing_packages[@]}" >/dev/null 2>&1 ||
        { apt-get update -q >/dev/null && apt-get install -y -q --no-install-recommends "${missing_packages[@]}" >/dev/null; }
}

for what in "$@"; do
    case $what in
    build | test | demo | packages | packages-test | images) "for_$what" ;;
    *) fail "nothing is known about '$what'; say build, test, demo, packages, packages-test or images" ;;
    esac
done
install_missing
