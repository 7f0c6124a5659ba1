#!/bin/bash
# PMI-2 as Slurm's own client library speaks it, on two nodes by grun --mpi=pmi2.
# Installs: libpmi2-0 of Debian (1 MB).
source "$(dirname "$0")/party.bash" "$@"
debian libpmi2-0
pool_up --nodes 2 --gpus none

cat >rank.py <<'PY'
import ctypes, os, sys
pmi = ctypes.CDLL("libpmi2.so.0")
spawned, size, rank, appnum, found, length = (ctypes.c_int() for _ in range(6))
text = ctypes.create_string_buffer(1024)
def done(what, code):
    if code:
        sys.exit(f"{what}: {code}")
done("init", pmi.PMI2_Init(ctypes.byref(spawned), ctypes.byref(size), ctypes.byref(rank), ctypes.byref(appnum)))
done("id", pmi.PMI2_Job_GetId(text, 1024))
job = text.value
done("put", pmi.PMI2_KVS_Put(b"P%d" % rank.value, b"a;b=%d" % rank.value))
done("fence", pmi.PMI2_KVS_Fence())
heard = []
for other in range(size.value):
    done("get", pmi.PMI2_KVS_Get(job, other, b"P%d" % other, text, 1024, ctypes.byref(length)))
    heard.append(text.value.decode())
done("attribute", pmi.PMI2_Info_GetJobAttr(b"PMI_process_mapping", text, 1024, ctypes.byref(found)))
mapping = text.value.decode()
if os.environ["SLURM_LOCALID"] == "0":
    done("put of node", pmi.PMI2_Info_PutNodeAttr(b"shm", os.environ["SLURMD_NODENAME"].encode()))
done("get of node", pmi.PMI2_Info_GetNodeAttr(b"shm", text, 1024, ctypes.byref(found), 1))
print("rank", rank.value, "of", size.value, *heard, mapping, text.value.decode(), flush=True)
done("fence", pmi.PMI2_KVS_Fence())
done("finalize", pmi.PMI2_Finalize())
PY
all='a;b=0 a;b=1 a;b=2 a;b=3 (vector,(0,2,2))'
wanted=$(printf "rank %s of 4 $all %s\n" 0 node1 1 node1 2 node2 3 node2)
seen=$(timeout 60 grun -N2 --ntasks-per-node=2 --mpi=pmi2 /usr/bin/python3 rank.py 2>errors | sort) || cat errors
same 'keys, attributes of job and node over two nodes' "$wanted" "$seen"
pass 'PMI-2 of libpmi2 on two nodes'
