//! The tables of a study that depend on where the storage is and on the effort.

use loadline_fleet::NodeSpec;

use super::{gives_up_disks, has_conditions, kills};
use crate::question::Question;
use crate::resolved::Resolved;
use crate::sheet::{Sheet, list, quoted};
use crate::storage::Storage;

/// `[target]`: the storage.
pub(super) fn target(of: &Resolved, sheet: &mut Sheet) {
    // Each copy is on another node.
    let copies = of.storage.places().min(2);
    let log = of.effort.log;
    match &of.storage {
        Storage::Cluster { .. } => {
            sheet.table("[target]");
            sheet.comment(
                "The run starts the cluster on this machine and removes it at its end. All nodes share the processors and the disk of \
                 this machine, so its figures are not those of a cluster of hosts.",
            );
            sheet.key("san", format!("{{ copies = {copies}, log = \"{log}\" }}"));
        }
        Storage::Running { api, access_file, .. } => {
            sheet.table("[target.san]");
            sheet.comment("The run makes volumes of its own in this cluster, and removes them at its end.");
            sheet.key("api", quoted(api));
            if let Some(file) = access_file {
                sheet.key("access_file", quoted(file));
            }
            sheet.key("copies", copies);
            sheet.key("log", quoted(&log.to_string()));
            if kills(of) {
                sheet.table("[target.san.commands]");
                sheet.comment(
                    "How a node that systemd runs is killed and started again, on its host. Without the stop, systemd starts it again at once. \
                     The run carries out these commands only with --run-commands.",
                );
                let kill =
                    "systemctl kill --signal=KILL loadline-node@$NODE; systemctl stop loadline-node@$NODE";
                sheet.key("kill", quoted(kill));
                sheet.key("return", quoted("systemctl start loadline-node@$NODE"));
            }
        }
        Storage::Folder { folder, members } => {
            sheet.table("[target]");
            sheet.comment("The run makes a file here for each machine, and removes the files at its end.");
            sheet.key("folder", quoted(folder));
            external(of, members, sheet);
        }
        Storage::Devices { disks, members } => {
            sheet.table("[target]");
            sheet.comment(match gives_up_disks(of) {
                true => {
                    "One disk for each machine. THE RUN WRITES TO THESE DISKS, AND ALL DATA ON THEM IS LOST: it starts only with \
                     --destroy-data."
                }
                false => "One disk for each machine.",
            });
            let disks: Vec<String> = disks.iter().map(ToString::to_string).collect();
            sheet.key("devices", list(&disks));
            external(of, members, sheet);
        }
    }
}

/// `[target.external]`: a person kills a node of other storage.
fn external(of: &Resolved, members: &[String], sheet: &mut Sheet) {
    if !kills(of) {
        return;
    }
    sheet.table("[target.external]");
    sheet.comment(
        "The nodes of the storage. The run asks you at the terminal to stop and to start one. Commands can do it instead: see \
         docs/how-to/run-a-study.md.",
    );
    sheet.key("nodes", list(members));
    sheet.key("prompt", true);
}

/// `[fleet]`: the machines.
pub(super) fn fleet(of: &Resolved, sheet: &mut Sheet) {
    sheet.table("[fleet]");
    if let Storage::Cluster { nodes } = &of.storage {
        sheet.key("nodes", nodes);
    }
    let is_most = of.question == Question::Capacity && !matches!(of.storage, Storage::Devices { .. });
    sheet.comment(match is_most {
        true => "Each worker is one machine with one disk. This is the most that the search tries.",
        false => "Each worker is one machine with one disk.",
    });
    sheet.key("workers_per_node", of.machines);
    if !matches!(of.storage, Storage::Devices { .. }) {
        sheet.key("disk_size", quoted(&of.disk.to_string()));
    }
    if let Storage::Running { hosts, .. } = &of.storage {
        hosts.iter().for_each(|host| node(host, sheet));
    }
}

fn node(host: &NodeSpec, sheet: &mut Sheet) {
    sheet.table("[[fleet.node]]");
    sheet.key("name", quoted(&host.name));
    if let Some(ssh) = &host.ssh {
        sheet.key("ssh", quoted(ssh));
    }
}

/// `[phases]`: how long each part of a step is.
pub(super) fn phases(of: &Resolved, sheet: &mut Sheet) {
    let effort = &of.effort;
    let has_faults = of.question == Question::NodeDown && !has_conditions(of);
    sheet.table("[phases]");
    if gives_up_disks(of) {
        sheet.comment("A block that was never written costs nothing to read, so all blocks are written once before the first step.");
        sheet.key("fill", true);
    }
    if let Some((limit, round)) = effort.steady {
        sheet.comment("The load runs until its IOPS are steady, at most this long.");
        sheet.key("steady", format!("{{ limit = \"{limit}\", round = \"{round}\" }}"));
    }
    if has_faults {
        sheet.comment("The window has time before the fault, with the node down, and after its return.");
    }
    let measure = if has_faults { effort.fault[0] } else { effort.measure };
    sheet.key("warm_up", quoted(&effort.warm_up.to_string()));
    sheet.key("measure", quoted(&measure.to_string()));
    sheet.key("cool_down", quoted(&effort.cool_down.to_string()));
}

/// `[[condition]]`: healthy, with a node down, and after its return.
pub(super) fn conditions(of: &Resolved, sheet: &mut Sheet) {
    let Some(node) = of.storage.nodes().pop() else { return };
    let action = |what: &str| format!("[{{ do = \"{what}\", node = {} }}]", quoted(&node));
    let wait = match of.effort.repeats {
        1 => "2m",
        _ => "1h",
    };
    sheet.gap();
    sheet.comment("Every load is measured in each condition. Machines of the node that is down continue on another node.");
    sheet.table_here("[[condition]]");
    sheet.key("name", quoted("healthy"));
    sheet.table("[[condition]]");
    sheet.key("name", quoted("node-down"));
    sheet.key("do", action("kill"));
    sheet.table("[[condition]]");
    sheet.key("name", quoted("recovered"));
    sheet.key("do", action("return"));
    sheet.comment("The loads are measured when every copy is in sync, and at the latest after this time.");
    sheet.key("wait_redundant", quoted(wait));
}

/// `[run]`: repeats and checks.
pub(super) fn run(of: &Resolved, sheet: &mut Sheet) {
    sheet.table("[run]");
    match of.question {
        Question::Slower => {
            sheet.comment(
                "A comparison takes four repeats of each run; more repeats find smaller differences.",
            );
            sheet.key("repeats", of.effort.compared);
        }
        _ => {
            sheet.comment(
                "How often each load is measured. With six repeats the report states a confidence level.",
            );
            sheet.key("repeats", of.effort.repeats);
        }
    }
    let is_filled = !matches!(of.storage, Storage::Devices { .. }) || of.machine.writes;
    if kills(of) && is_filled {
        sheet.comment(
            "Every block that is read is checked, and all blocks are checked after each step that writes.",
        );
        sheet.key("verify", true);
    }
}
