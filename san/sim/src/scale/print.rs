//! What was measured, as tables.

use std::fmt::Write;

use super::figures::{Fault, Measured, Phase, Role, Store};

/// Rows of cells as lines, each column as wide as its widest cell.
fn lines(rows: &[Vec<String>]) -> String {
    let columns = rows.iter().map(Vec::len).max().unwrap_or(0);
    let width =
        |column: usize| rows.iter().filter_map(move |row| row.get(column)).map(|cell| cell.chars().count());
    let widths: Vec<usize> = (0..columns).map(|column| width(column).max().unwrap_or(0)).collect();
    let mut text = String::new();
    for row in rows {
        let mut line = String::new();
        for (cell, width) in row.iter().zip(&widths) {
            let is_first = line.is_empty();
            _ = match is_first {
                true => write!(line, "  {cell:<width$}"),
                false => write!(line, "  {cell:>width$}"),
            };
        }
        text.push_str(line.trim_end());
        text.push('\n');
    }
    text
}

fn cells(cells: &[&str]) -> Vec<String> {
    cells.iter().map(|cell| (*cell).to_owned()).collect()
}

fn role(role: Role) -> &'static str {
    match role {
        Role::Owner => "owned",
        Role::Copy => "copy",
        Role::Other => "other",
    }
}

/// A figure in seconds.
fn time(seconds: f64) -> String {
    format!("{seconds:.2}")
}

/// Bytes in MB.
fn mb(bytes: u64) -> String {
    format!("{:.1}", bytes as f64 / 1e6)
}

/// What came of the volumes of each fault.
fn volumes(faults: &[Fault]) -> String {
    let mut rows = vec![cells(&[
        "fault, and what a volume has to do with it",
        "volumes",
        "writes",
        "most",
        "stall",
        "most",
        "after: writes",
        "most",
        "stall most",
        "redundant",
        "most",
    ])];
    for fault in faults {
        for during in &fault.during.volumes {
            let after = fault.after.volumes.iter().find(|after| after.role == during.role);
            let after = after.unwrap_or(during);
            let redundant = |time_s: Option<f64>| time_s.map_or("-".to_owned(), time);
            rows.push(vec![
                format!("{}: {}", fault.name, role(during.role)),
                during.count.to_string(),
                during.writes.to_string(),
                during.writes_most.to_string(),
                time(during.stall_median_s),
                time(during.stall_most_s),
                after.writes.to_string(),
                after.writes_most.to_string(),
                time(after.stall_most_s),
                redundant(after.redundant_median_s),
                redundant(after.redundant_most_s),
            ]);
        }
    }
    lines(&rows)
}

/// What the configuration store was asked for.
fn store(faults: &[Fault]) -> String {
    let mut rows = vec![cells(&[
        "asked of the store",
        "records",
        "questions",
        "catalog",
        "most/s",
        "reads",
        "most/s",
        "whole reads",
        "MB",
        "most MB/s",
    ])];
    for fault in faults {
        for (when, Phase { store, .. }) in [("", &fault.during), (", after", &fault.after)] {
            let Store { record_commits, question_commits, catalog_commits, reads, whole_reads, .. } = store;
            rows.push(vec![
                format!("{}{when}", fault.name),
                record_commits.to_string(),
                question_commits.to_string(),
                catalog_commits.to_string(),
                store.commits_a_second_most.to_string(),
                reads.to_string(),
                store.reads_a_second_most.to_string(),
                whole_reads.to_string(),
                mb(store.whole_bytes),
                mb(store.bytes_a_second_most),
            ]);
        }
    }
    lines(&rows)
}

/// One cluster. Times are simulated seconds.
pub fn cluster(measured: &Measured) -> String {
    let Measured { cluster, attach, steady, faults, violations } = measured;
    let mut text = format!(
        "{} nodes, {} volumes, {} copies, seed {}\n  attached at once: all served after {} s, {} writes\n  steady: {} writes \
         and {:.0} reads a second of the store; messages a second of a node {:.0} (most {:.0}), {:.1} KB/s\n  the \
         configuration has {:.0} KB\n",
        cluster.nodes,
        cluster.volumes,
        cluster.copies,
        cluster.seed,
        time(attach.served_s),
        attach.writes,
        steady.commits,
        steady.reads_a_second,
        steady.messages_a_second,
        steady.messages_a_second_most,
        steady.bytes_a_second / 1e3,
        steady.configuration_bytes as f64 / 1e3,
    );
    text.push_str(&volumes(faults));
    text.push_str(&store(faults));
    for violation in violations {
        text.push_str("  VIOLATION ");
        text.push_str(violation);
        text.push('\n');
    }
    text
}

/// How the figures grow from cluster to cluster: a line each.
pub fn growth(all: &[Measured]) -> String {
    let mut rows = vec![cells(&[
        "nodes, volumes, copies",
        "messages/s",
        "reads/s",
        "host lost: writes",
        "owned stall",
        "copy stall",
        "redundant",
        "store MB/s",
        "process ends: owned stall",
        "replaced: writes",
        "redundant",
    ])];
    for Measured { cluster, steady, faults, .. } in all {
        let fault = |name: &str| faults.iter().find(|fault| fault.name == name);
        let writes = |fault: Option<&Fault>| {
            let both = |fault: &Fault| fault.during.store.record_commits + fault.after.store.record_commits;
            fault.map_or("-".to_owned(), |fault| both(fault).to_string())
        };
        let stall = |fault: Option<&Fault>, role: Role| {
            let of = fault.and_then(|fault| fault.during.volumes.iter().find(|of| of.role == role));
            of.map_or("-".to_owned(), |of| time(of.stall_most_s))
        };
        let redundant = |fault: Option<&Fault>| {
            fault.and_then(|fault| fault.after.redundant_s).map_or("-".to_owned(), time)
        };
        let most = |fault: &Fault| {
            let Fault { during, after, .. } = fault;
            during.store.bytes_a_second_most.max(after.store.bytes_a_second_most)
        };
        let (host, process, replaced) = (fault("host lost"), fault("process ends"), fault("host replaced"));
        rows.push(vec![
            format!("{}, {}, {}", cluster.nodes, cluster.volumes, cluster.copies),
            format!("{:.0}", steady.messages_a_second),
            format!("{:.0}", steady.reads_a_second),
            writes(host),
            stall(host, Role::Owner),
            stall(host, Role::Copy),
            redundant(host),
            host.map_or("-".to_owned(), |host| mb(most(host))),
            stall(process, Role::Owner),
            writes(replaced),
            redundant(replaced),
        ]);
    }
    lines(&rows)
}
