#!/bin/busybox sh
# shellcheck shell=dash
# The iSCSI target of Linux itself, LIO: a disk in memory, which says that it is a volume of Loadline, with ALUA. It has two portals, each
# of a target port group of its own. Only the target changes their states (implicit ALUA).
#
#   lio start ADDRESS ADDRESS     sets it up at these addresses: group 1 is active/optimised, group 2 is standby
#   lio state GROUP STATE         makes this the state of a group: 0 is active/optimised, 2 is standby
#   lio states                    prints the states of both groups
#   lio close GROUP               ends all sessions of a group's portal, and lets none in
#   lio open GROUP                lets them in again
set -eu
target=/sys/kernel/config/target
disk=$target/core/rd_mcp_0/disk
portals=$target/iscsi/iqn.2026-01.org.example:lio

case $1 in
start)
    for module in /target-modules/*; do
        insmod "$module" 2>/dev/null || true
    done
    mount -t configfs configfs /sys/kernel/config
    # Where it keeps reservations. Without this folder, it refuses to make any.
    mkdir -p "$disk" "$target/iscsi" /var/target/pr
    echo rd_pages=24576 >"$disk/control"
    echo LOADLINE >"$disk/wwn/vendor_id"
    echo VOLUME >"$disk/wwn/product_id"
    echo 1 >"$disk/enable"
    echo 7c0ffee5-0001 >"$disk/wwn/vpd_unit_serial"
    shift
    group=0
    for address in "$@"; do
        group=$((group + 1))
        states=$disk/alua/group$group portal=$portals/tpgt_$group
        mkdir "$states"
        echo $group >"$states/tg_pt_gp_id"
        # Implicit.
        echo 1 >"$states/alua_access_type"
        mkdir -p "$portal/lun/lun_0" "$portal/np/$address:3260"
        ln -s "$disk" "$portal/lun/lun_0/port"
        echo group$group >"$portal/lun/lun_0/alua_tg_pt_gp"
        echo 0 >"$portal/attrib/authentication"
        echo 1 >"$portal/attrib/generate_node_acls"
        echo 1 >"$portal/attrib/cache_dynamic_acls"
        echo 0 >"$portal/attrib/demo_mode_write_protect"
        echo 1 >"$portal/enable"
    done
    echo 2 >"$disk/alua/group2/alua_access_state"
    ;;
state) echo "$3" >"$disk/alua/group$2/alua_access_state" ;;
states) cat "$disk/alua/group1/alua_access_state" "$disk/alua/group2/alua_access_state" ;;
close) echo 0 >"$portals/tpgt_$2/enable" ;;
open) echo 1 >"$portals/tpgt_$2/enable" ;;
esac
