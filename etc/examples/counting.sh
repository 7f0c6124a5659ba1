#!/bin/bash
# Counts to 3000, ten steps a second, and loses nothing when it must make room for somebody else: it is told by SIGUSR1, writes down how
# far it is, and says so with a mark. Then it is ended, and started again later; the next attempt goes on from there.
#
#   gsub counting.sh
#   gq 17               shows its attempts and its last mark
#
# The same from Python, where the signal's handler sets a flag that the training loop looks at:
#
#   s = socket.socket(socket.AF_UNIX); s.connect(os.environ["GSUB_MARK_SOCKET"]); s.sendall(b"epoch 40\n"); print(s.recv(200))
#GSUB --job-name counting
#GSUB --gpus 1
#GSUB --mem 1G
#GSUB --time 1:00:00
#GSUB --checkpoint USR1@60
#GSUB --output counting.out

set -eu
state=counting-$GSUB_JOB_ID.state
n=0
if [ -n "${GSUB_LAST_MARK:-}" ]; then
    n=$(cat "$state")
    echo "attempt $GSUB_ATTEMPT goes on from $n, after mark $GSUB_LAST_MARK"
fi

# Whole or not at all, on the disk before the mark.
save() {
    echo "$n" >"$state.new"
    sync "$state.new"
    mv "$state.new" "$state"
    gsub --mark "at $n"
}
trap save USR1

echo "counts from $n"
while [ "$n" -lt "${COUNT_TO:-3000}" ]; do
    sleep 0.1
    n=$((n + 1))
done
echo "counted to $n"
rm -f "$state"
