#!/bin/bash
# Makes the images of packaging/oci from the debs in target/packages, and tries them where containers can be started.
# Usage: packaging/images.sh; ENGINE=docker takes docker for podman, BASE=IMAGE another Debian for docker.io's.
set -euo pipefail
cd "$(dirname "$0")/.."
engine=${ENGINE:-podman}
version=$(sed -n '/^\[workspace.package\]/,/^\[/s/^version = "\(.*\)"/\1/p' Cargo.toml)

fail() { echo "images: $*" >&2; exit 1; }
command -v "$engine" >/dev/null || fail "$engine is missing. Install it, or say ENGINE=docker"
[ -e "target/packages/gpupool-sandbox_${version}_$(dpkg --print-architecture).deb" ] || fail "no debs of $version in target/packages: make packages"

for image in controller sandbox; do
    echo "images: gpupool-$image:$version"
    "$engine" build --quiet --network host ${BASE:+--build-arg "BASE=$BASE"} --label "org.opencontainers.image.version=$version" \
        --target "$image" --tag "gpupool-$image:$version" --tag "gpupool-$image:latest" --file packaging/oci/Containerfile . ||
        fail "gpupool-$image was not made. Without a registry: mmdebstrap --variant=minbase bookworm - | $engine import - localhost/debian:bookworm, then BASE=localhost/debian:bookworm make images"
done

# RUN_OPTIONS: what a machine needs besides, as --cgroups=disabled.
# shellcheck disable=SC2086
run() { "$engine" run --rm --network none ${RUN_OPTIONS:-} "$@"; }
if ! why=$(run --entrypoint /bin/true gpupool-sandbox 2>&1); then
    echo "images: made, and NOT TRIED: $engine starts no container here: $why"
    exit 0
fi
try='[ "$(gsub --wait --gpus 2 --output out --wrap "echo \$GSUB_GPU_UUIDS" >/dev/null && tr , "\n" <out | grep -c GPU-)" = 2 ]'
run gpupool-sandbox bash -c "$try" || fail "a pool in the sandbox's image should run a job on two GPUs"
run gpupool-controller check >/dev/null || fail "gpuctld in its image should take its sample configuration"
echo "images: both were tried: $engine run -it --rm gpupool-sandbox"
