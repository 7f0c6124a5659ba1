#!/bin/sh
# The files of gpupool-@package@ are gone: postrm of the deb, %postun of the rpm.
set -e
[ ! -d /run/systemd/system ] || systemctl daemon-reload
[ "$1" = purge ] || exit 0
