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
# The units and the daemons make these directories too; in a root without /proc it makes none.
! command -v systemd-tmpfiles >/dev/null || systemd-tmpfiles --create gpupool-@daemon@.conf || true
[ -d /run/systemd/system ] || exit 0
systemctl daemon-reload
# Only where it runs: an installation starts nothing. Jobs run on. With a configuration that the new one refuses, the former daemon goes on.
[ -n "$before" ] && systemctl --quiet is-active gpupool-@daemon@.service || exit 0
if ! /usr/sbin/@daemon@ check >/dev/null; then
    echo "gpupool-@package@: the former @daemon@ runs on; mend its configuration, then: systemctl restart gpupool-@daemon@" >&2
elif ! systemctl restart gpupool-@daemon@.service; then
    echo "gpupool-@package@: @daemon@ did not start again: journalctl -u gpupool-@daemon@" >&2
fi
