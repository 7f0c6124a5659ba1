# What the parties of `make clients` share; each begins with `source "$(dirname "$0")/party.bash" "$@"`.
# Owns the working directory, the pool, the packages and their removal at the end.
set -euo pipefail
programs=${1:?the directory of programs}
here=$(realpath "$(dirname "$0")")
work=$(mktemp -d /var/tmp/gpupool-client.XXXXXX)
chmod 755 "$work"
pool=$work/pool
verdict='FAIL: the party ended early'
new_packages=()
# Another apt-get may be at work.
apt=(apt-get -y -q -o DPkg::Lock::Timeout=300)

not_run() { verdict="NOT RUN: $*"; exit 0; }
fail() { verdict="FAIL: $*"; exit 1; }
pass() { verdict="PASS: $*"; exit 0; }
# right WHAT COMMAND...: one expectation.
right() {
    local what=$1
    shift
    "$@" || fail "$what"
    echo "right: $what"
}
# same WHAT WANTED SEEN
same() {
    [ "$2" = "$3" ] || { printf 'wanted:\n%s\nseen:\n%s\n' "$2" "$3"; fail "$1"; }
    echo "right: $1"
}

# What a party makes outside of its directory goes by one of its own.
undo() { :; }
clean_up() {
    status=$?
    trap - EXIT INT TERM
    set +e
    if [ "$status" != 0 ]; then
        tail -n 15 "$pool"/*/log 2>/dev/null
    fi
    [ ! -e "$pool/sandbox.json" ] || "$work/bin/gadm" sandbox down --dir "$pool" || { status=1 verdict='FAIL: the sandbox did not go down'; }
    undo
    if [ ${#new_packages[@]} != 0 ] && ! "${apt[@]}" purge "${new_packages[@]}" >"$work/apt.log" 2>&1; then
        tail -n 5 "$work/apt.log"
        echo "these packages stay installed: ${new_packages[*]}"
    fi
    rm -rf --one-file-system "$work"
    echo "$verdict"
    exit "$status"
}
trap clean_up EXIT
trap 'exit 130' INT
trap 'exit 143' TERM

[ "$(id -u)" = 0 ] || not_run 'a pool with fences needs root'

# debian PACKAGE...: installs them; what was not there before goes at the end.
debian() {
    command -v apt-get >/dev/null || not_run "apt-get is missing, which installs $*"
    export DEBIAN_FRONTEND=noninteractive
    local plan
    plan=$(apt-get install -s --no-install-recommends "$@" 2>/dev/null) ||
        { apt-get update -q >/dev/null 2>&1; plan=$(apt-get install -s --no-install-recommends "$@" 2>/dev/null); } ||
        not_run "Debian's packages $* cannot be had here"
    mapfile -t -O "${#new_packages[@]}" new_packages < <(sed -n 's/^Inst \([^ ]*\) .*/\1/p' <<<"$plan")
    echo "installing $* (${#new_packages[@]} packages)"
    "${apt[@]}" install --no-install-recommends "$@" >"$work/apt.log" 2>&1 || { tail "$work/apt.log"; not_run "apt-get does not install $*"; }
}

# venv PACKAGE...: a Python environment in $work/venv with these of PyPI, for all users.
venv() {
    # Not one that only root can reach, below its home.
    local python=/usr/bin/python3
    "$python" -c 'import ensurepip, venv' 2>/dev/null || debian python3-venv
    "$python" -m venv "$work/venv"
    echo "installing $* from PyPI"
    "$work/venv/bin/pip" install --quiet --disable-pip-version-check --no-cache-dir "$@" >"$work/pip.log" 2>&1 ||
        { tail "$work/pip.log"; not_run "pip does not install $*"; }
}

# npm_package [OPTION] NAME@VERSION...: its programs are in $work/node_modules/.bin.
npm_package() {
    command -v npm >/dev/null || not_run "npm is missing, which installs $*"
    echo "installing $* from npm"
    npm install --prefix "$work" --no-audit --no-fund --no-update-notifier --cache "$work/npm" "$@" >"$work/npm.log" 2>&1 ||
        { tail "$work/npm.log"; not_run "npm does not install $*"; }
}

free_port() { python3 -c 'import socket; s = socket.socket(); s.bind(("127.0.0.1", 0)); print(s.getsockname()[1])'; }

# pool_up ARGUMENTS-OF-SANDBOX-UP...: a pool, and its commands first in PATH under both their names.
pool_up() {
    mkdir -p "$work/bin" "$work/home"
    chmod 1777 "$work/home"
    for program in gpuctld gpud gstepd gcheck gsub grun gq gdel gnodes gacct gadm gslurm nvml-sim libnvidia_ml_sim.so; do
        cp "$programs/$program" "$work/bin/"
    done
    for name in sacct sacctmgr salloc sbatch scancel scontrol sdiag sinfo sprio squeue srun sshare sstat; do
        ln -s gslurm "$work/bin/$name"
    done
    export PATH=$work/bin:$PATH
    eval "$(gadm sandbox up --dir "$pool" "$@")"
    cd "$work/home"
}
