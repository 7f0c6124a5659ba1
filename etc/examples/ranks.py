"""Ranks of one job find each other over TCP and add up: each integrates its part of 4/(1+x^2) over [0,1], rank 0 prints pi.

Started by `grun`, once on each task; see two-nodes.sh.
"""

import json
import os
import socket
import time

STEPS = 2_000_000
PATIENCE_SECS = 60


def part_of_pi(rank, ranks):
    width = 1.0 / STEPS
    return width * sum(4.0 / (1.0 + ((i + 0.5) * width) ** 2) for i in range(rank, STEPS, ranks))


def address():
    """Where rank 0 listens. Nodes of a sandbox are all this machine, and no name server knows them."""
    host, port = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
    try:
        return socket.getaddrinfo(host, port, socket.AF_INET, socket.SOCK_STREAM)[0][4]
    except socket.gaierror:
        return "127.0.0.1", port


def gather(mine, ranks):
    """Rank 0: its own part and those of the others."""
    found = [mine]
    with socket.create_server(address()) as server:
        server.settimeout(PATIENCE_SECS)
        while len(found) < ranks:
            connection, _ = server.accept()
            with connection, connection.makefile() as lines:
                found.append(json.loads(lines.readline()))
    return found


def send(mine):
    deadline = time.monotonic() + PATIENCE_SECS
    while True:
        try:
            with socket.create_connection(address(), timeout=PATIENCE_SECS) as connection:
                connection.sendall(json.dumps(mine).encode() + b"\n")
                return
        except ConnectionRefusedError:
            # Rank 0 is still adding up.
            if time.monotonic() > deadline:
                raise
            time.sleep(0.05)


def main():
    rank, ranks = int(os.environ["SLURM_PROCID"]), int(os.environ["SLURM_NTASKS"])
    mine = {"rank": rank, "node": os.environ["SLURMD_NODENAME"], "part": part_of_pi(rank, ranks)}
    if rank > 0:
        send(mine)
        return
    found = sorted(gather(mine, ranks), key=lambda one: one["rank"])
    assert [one["rank"] for one in found] == list(range(ranks)), found
    pi = sum(one["part"] for one in found)
    print(f"pi is {pi:.10f}, from {ranks} ranks on {' and '.join(one['node'] for one in found)}", flush=True)


if __name__ == "__main__":
    main()
