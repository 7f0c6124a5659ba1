#!/bin/sh
# The files of gpupool-@package@ are there: postinst of the deb, %post of the rpm.
set -e
# dpkg says "configure" and the version before, rpm how many versions there are now.
case $1 in
configure) before=${2:-} ;;
1) before= ;;
2) before=another ;;
*) exit 0 ;;
esac
[ ! -e /usr/lib/sysusers.d/gpupool.conf ] || ! command -v systemd-sysusers >/dev/null || systemd-sysusers gpupool.conf
! command -v systemd-tmpfiles >/dev/null || systemd-tmpfiles --create gpupool-@daemon@.conf
[ -d /run/systemd/system ] || exit 0
systemctl daemon-reload
# Only where it runs: an installation starts nothing. Jobs run on.
if [ -n "$before" ] && ! systemctl try-restart gpupool-@daemon@.service; then
    echo "gpupool-@package@: @daemon@ did not start again: journalctl -u gpupool-@daemon@" >&2
fi
