#!/bin/sh
# Before the files of gpupool-@package@ go: prerm of the deb, %preun of the rpm. The daemon ends, jobs do not.
set -e
[ "$1" = remove ] || [ "$1" = 0 ] || exit 0
[ -d /run/systemd/system ] || exit 0
systemctl --no-reload disable --now gpupool-@daemon@.service
