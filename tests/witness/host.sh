#!/usr/bin/env bash
# host.sh FOLDER NAME ETCD LOADLINE: the first process of a host of a test, in namespaces of its own. What a how-to changes is private
# to the host: /etc, /usr/bin, /var/lib, /root, /srv and /dev, all kept below FOLDER, so that they are there again after a restart.
# Then it runs each script that standard input names, one after the other, as one shell would, and prints the exit code of each.
set -euo pipefail
folder=$1 name=$2 etcd=$3 loadline=$4 here=$(dirname "${BASH_SOURCE[0]}")

# private PATH: what is changed below PATH is kept in FOLDER, over what this machine has there.
private() {
    mkdir -p "$folder/over$1" "$folder/work$1"
    mount -t overlay overlay -o "lowerdir=$1,upperdir=$folder/over$1,workdir=$folder/work$1" "$1"
}
# bind SOURCE TARGET: the file, at another path.
bind() { touch "$2" && mount --bind "$1" "$2"; }

private /usr/bin
for shim in systemctl apt-get scp; do
    rm -f "/usr/bin/$shim"
    cp "$here/$shim.sh" "/usr/bin/$shim"
    chmod 755 "/usr/bin/$shim"
done
# The hosts' folders are named for their addresses.
mkdir -p "$folder/log" && chmod 755 "$folder" "$folder/log"
mount -t tmpfs tmpfs /run
mkdir /run/hosts /run/programs /run/dev
bind "$etcd/etcd" /run/programs/etcd
bind "$etcd/etcdctl" /run/programs/etcdctl
bind "$loadline" /run/programs/loadline
mount --bind "$(dirname "$folder")" /run/hosts
ln -s "/run/hosts/$(basename "$folder")" /run/host

mount -t tmpfs tmpfs /run/dev
for device in null zero full random urandom tty; do
    bind "/dev/$device" "/run/dev/$device"
done
for link in fd:fd stdin:fd/0 stdout:fd/1 stderr:fd/2; do
    ln -s "/proc/self/${link#*:}" "/run/dev/${link%:*}"
done
mkdir /run/dev/shm
new=
[[ -e $folder/nvme1n1 ]] || { new=1 && truncate -s 64G "$folder/nvme1n1"; }
bind "$folder/nvme1n1" /run/dev/nvme1n1

private /etc
private /var/lib
# A new host has no services, whatever this machine has.
if [[ $new ]]; then
    rm -rf /etc/systemd /etc/etcd /var/lib/etcd
    mkdir -p /etc/systemd/system /etc/profile.d
fi
for path in /root /srv; do
    mkdir -p "$folder$path"
    mount --bind "$folder$path" "$path"
done
mount --move /run/dev /dev
hostname "$name"
cd /root
export HOME=/root USER=root
unset "${!LOADLINE_@}" "${!ETCD@}"
set +euo pipefail
# As a person who logs in.
# shellcheck source=/dev/null
. /etc/profile
systemctl boot
echo ready
while read -r script; do
    # shellcheck source=/dev/null
    . "$script" </dev/null >"$script.out" 2>&1
    echo "$?"
done
