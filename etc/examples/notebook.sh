#!/bin/bash
#GSUB --job-name notebook --gpus 1 --time 4:00:00
# A notebook on a GPU, reached without an open port: gq --output JOB prints the command that brings it to your machine.
# Needs JupyterLab: python3 -m venv ~/lab && ~/lab/bin/pip install jupyterlab, then PATH=~/lab/bin:$PATH gsub notebook.sh
set -euo pipefail
command -v jupyter-lab >/dev/null || { echo "jupyter-lab is not in PATH: see the head of this script" >&2; exit 1; }

# The token below is for its owner alone.
chmod go= /proc/self/fd/1
port=$(python3 -c 'import socket; s = socket.socket(); s.bind(("127.0.0.1", 0)); print(s.getsockname()[1])')
JUPYTER_TOKEN=$(python3 -c 'import secrets; print(secrets.token_hex(24))')
export JUPYTER_TOKEN
echo "On your machine:  grun --jobid $GSUB_JOB_ID --forward 8888:127.0.0.1:$port"
echo "Then open:        http://localhost:8888/lab?token=$JUPYTER_TOKEN"
# Other programs on the node reach the port, and without the token no further.
exec jupyter-lab --no-browser --ip=127.0.0.1 --port="$port" --ServerApp.port_retries=0
