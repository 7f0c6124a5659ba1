#!/bin/bash
# Opens every GPU of its node, though it was given one. The kernel refuses the others with EPERM, whatever the permissions of the
# files say: no job can use, slow down or crash a GPU that is not its own.
#
#   gsub other-gpu.sh
#
# GPU_DEVICE_DIR is /dev, but for a sandbox, where each node has a directory of its own; %N stands for the node's name.
#GSUB --job-name other-gpu
#GSUB --gpus 1
#GSUB --mem 1G
#GSUB --time 5:00
#GSUB --output other-gpu.out

set -eu
directory=${GPU_DEVICE_DIR:-/dev}
exec python3 - "${directory//%N/$SLURMD_NODENAME}" <<'PYTHON'
import errno, glob, os, sys

given = len(os.environ["CUDA_VISIBLE_DEVICES"].split(","))
opened, refused = [], []
for path in sorted(glob.glob(sys.argv[1] + "/nvidia[0-9]*")):
    try:
        os.close(os.open(path, os.O_RDWR))
        opened.append(path)
    except OSError as error:
        if error.errno == errno.EPERM:
            refused.append(path)
        elif error.errno in (errno.ENXIO, errno.ENODEV):
            # Let through; a simulated GPU has no driver behind its file.
            opened.append(path)
        else:
            raise
        print(f"{path}: {error.strerror}")
print(f"given {given}, let through to {len(opened)}, refused {len(refused)}")
sys.exit(0 if len(opened) == given else "the fence has a hole")
PYTHON
