#!/bin/sh
# The kernels through NVIDIA's own assembler, for each generation it knows. Says NOT RUN where it is not found. It comes with the
# CUDA toolkit, and alone in the package nvidia-cuda-nvcc of PyPI: PTXAS=PATH names one that is not in PATH.
set -eu
cd "$(dirname "$0")/.."
text=gsys/src/cuda/checks.ptx
ptxas=${PTXAS:-$(command -v ptxas || true)}
if [ -z "$ptxas" ]; then
    echo "NOT RUN: ptx-check: there is no ptxas; try PTXAS=PATH make ptx-check"
    exit 0
fi
known=$("$ptxas" --help | grep -o "'sm_[0-9]*'" | tr -d "'" | sort -u)
[ -n "$known" ] || { echo "ptx-check: $ptxas names no generation that it knows"; exit 1; }
for generation in $known; do
    "$ptxas" --warning-as-error --gpu-name "$generation" --output-file /dev/null "$text"
done
echo "ptx-check: $text is taken for" $known
