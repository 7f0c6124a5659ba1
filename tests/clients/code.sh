#!/bin/bash
# VS Code's server (code-server) in a step on a GPU, and its page on this side of grun --forward.
# Installs: code-server of npm, g++ and make of Debian (450 MB).
source "$(dirname "$0")/party.bash" "$@"
[[ $(node --version 2>/dev/null) == v20.* ]] || not_run 'code-server 4.100 needs Node.js 20'
debian g++ make
# Its own script would also fetch ripgrep from GitHub, for a search that is not made here.
npm_package --ignore-scripts code-server@4.100.3
code=$work/node_modules/code-server
npm install --prefix "$code/lib/vscode" --no-audit --no-fund --cache "$work/npm" --ignore-scripts --omit=dev >"$work/npm.log" 2>&1 ||
    { tail "$work/npm.log"; not_run 'npm does not install what code-server needs'; }
npm rebuild --prefix "$work" --build-from-source argon2 >"$work/npm.log" 2>&1 || { tail "$work/npm.log"; not_run 'argon2 does not build'; }
pool_up --nodes 2 --gpus h100:2

port=$(free_port) here_port=$(free_port)
cat >code.slurm <<SLURM
#!/bin/bash
#SBATCH --gres=gpu:1 --time=30 -o code.out
export PATH=$PATH HOME=$work/home
srun node $code/out/node/entry.js --auth none --bind-addr 127.0.0.1:$port --disable-telemetry --user-data-dir $work/home/data
SLURM
job=$(sbatch --parsable code.slurm)
page() { curl -sL --max-time 10 -o page -w '%{http_code}' "http://127.0.0.1:$here_port/"; }
for _ in $(seq 60); do
    ! grep -q 'HTTP server listening' code.out 2>/dev/null || break
    [ -n "$(squeue -h)" ] || { cat code.out; fail 'code-server has ended'; }
    sleep 1
done
grun --jobid "$job" --forward "$here_port:127.0.0.1:$port" >forward.out 2>&1 &
forward=$!
status=000
for _ in $(seq 30); do
    status=$(page) || true
    [ "$status" != 200 ] || break
    sleep 1
done
[ "$status" = 200 ] || { cat code.out forward.out; fail "its page comes with $status"; }
right 'the page is that of the workbench' grep -q 'workbench' page
scancel "$job"
for _ in $(seq 30); do
    [ -n "$(squeue -h)" ] || break
    sleep 1
done
wait "$forward" || true
same 'no server is left after scancel' '' "$(pgrep -f "$code/out/node/entry.js" || true)"
same 'its port here is closed' 000 "$(page || true)"
pass 'the page of code-server in a step, through grun --forward'
