#!/usr/bin/env bash
# A libvirt of a test's own: in a mount namespace in which the folders of the system's libvirt are others, and in a process namespace that
# ends with this script, with all machines. It is the first process there, and waits for those that have no parent any more.
#
#   unshare --mount --pid --fork --kill-child --mount-proc tests/machines_libvirt/daemon.sh FOLDER
#
# FOLDER/socket/libvirt-sock is the daemon's socket, and FOLDER/libvirtd.log its log.
set -euo pipefail
folder=$1

mkdir -p "$folder/socket" /run/libvirt /var/lib/libvirt /var/log/libvirt /var/cache/libvirt /etc/libvirt
chmod 755 "$folder" "$folder/socket"
for place in /run/libvirt /var/lib/libvirt /var/log/libvirt /var/cache/libvirt /etc/libvirt; do
    mount -t tmpfs -o mode=755 none "$place"
done
# The user of its QEMU, which comes with a package that starts services.
for file in passwd group; do
    { grep -v '^libvirt-qemu:' "/etc/$file" || true; } >"$folder/$file"
done
echo 'libvirt-qemu:x:64055:64055::/var/lib/libvirt:/usr/sbin/nologin' >>"$folder/passwd"
echo 'libvirt-qemu:x:64055:' >>"$folder/group"
mount --bind "$folder/passwd" /etc/passwd
mount --bind "$folder/group" /etc/group
# Where /dev/kvm is there and does not run machines, libvirt asks QEMU what it can before each machine.
if [[ -e /dev/kvm ]]; then
    (umask 077 && touch "$folder/kvm")
    mount --bind "$folder/kvm" /dev/kvm
fi
cat >/etc/libvirt/qemu.conf <<'CONF'
user = "libvirt-qemu"
group = "libvirt-qemu"
security_driver = "none"
cgroup_controllers = []
namespaces = []
stdio_handler = "file"
CONF
cat >"$folder/libvirtd.conf" <<CONF
unix_sock_dir = "$folder/socket"
auth_unix_ro = "none"
auth_unix_rw = "none"
log_outputs = "2:file:$folder/libvirtd.log"
CONF
# A daemon that a test has ended comes again when the test wants it to.
while :; do
    libvirtd --config "$folder/libvirtd.conf" --pid-file "$folder/pid" &
    wait $! || true
    until [[ -e $folder/again ]]; do sleep 0.05; done
    rm "$folder/again"
done
