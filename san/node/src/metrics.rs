//! What a node counts, as Prometheus reads it: version 0.0.4 of its text format.

mod inventory;
mod page;

use loadline_san_core::layout::BLOCK;
use loadline_san_device::model::Lateness;
use loadline_san_protocol::record;

use crate::event_loop::command::LoopState;
use crate::node::Node;
use crate::node::manage::ManageError;
use page::Page;

impl Node {
    /// The page.
    pub(crate) async fn metrics(&self) -> Result<String, ManageError> {
        // What is not reported in time keeps its last value.
        self.refresh_loops().await;
        let loops: Vec<LoopState> = self.state().loops.clone();
        let mut page = Page(String::with_capacity(64 << 10));
        self.of_inventory(&loops, &mut page);
        self.of_volumes(&loops, &mut page);
        self.of_replicas(&loops, &mut page);
        page.metric(
            "loadline_refused_connections_total",
            "counter",
            "Connections that were refused because the other side did not prove that it may connect.",
        );
        page.value("loadline_refused_connections_total", &[], self.state().refused_connections as f64);
        page.metric(
            "loadline_clock_refusals_total",
            "counter",
            "Connections that were refused because the clocks of two hosts disagree on the validity of a certificate.",
        );
        page.value("loadline_clock_refusals_total", &[], self.state().clock_refusals.count as f64);
        let clients: usize = loops.iter().map(|of| of.clients).sum();
        page.metric("loadline_clients", "gauge", "Connections of clients, of all protocols.");
        page.value("loadline_clients", &[], clients as f64);
        self.of_devices(&mut page);
        of_process(&mut page);
        Ok(page.0)
    }

    /// How well the machine keeps up with the models of devices; nothing if none has one.
    fn of_devices(&self, page: &mut Page) {
        let state = self.state();
        let modelled = state.modelled().map(|(id, of)| (id.to_string(), &of.model().name, of.lateness()));
        let modelled: Vec<_> = modelled.collect();
        if modelled.is_empty() {
            return;
        }
        type Counter = (&'static str, &'static str, fn(&Lateness) -> f64);
        let counters: [Counter; 3] = [
            ("loadline_model_ios_total", "I/Os of a device that behaves as a model says.", |of| {
                of.ios as f64
            }),
            ("loadline_model_seconds_total", "How long these I/Os take by the model.", |of| {
                of.modelled_ns as f64 / 1e9
            }),
            (
                "loadline_model_late_seconds_total",
                "How much longer they took, since the machine is slower.",
                |of| of.late_ns as f64 / 1e9,
            ),
        ];
        for (name, help, value) in counters {
            page.metric(name, "counter", help);
            for (id, model, lateness) in &modelled {
                page.value(name, &[("device", id), ("model", model)], value(lateness));
            }
        }
    }

    fn of_volumes(&self, loops: &[LoopState], page: &mut Page) {
        let catalog = self.state().catalog.clone();
        let name = |id: u64| catalog.volumes.get(&id).map(|(volume, _)| volume.name.clone());
        let volumes: Vec<_> =
            loops.iter().flat_map(|of| &of.volumes).filter_map(|of| Some((name(of.id.0)?, of))).collect();
        let mut ios = Vec::new();
        for (name, of) in &volumes {
            let front = &of.front_end;
            for (op, count) in [
                ("read", front.read),
                ("block_status", front.map),
                ("write", front.write),
                ("write_zeroes", front.zero),
                ("trim", front.trim),
                ("flush", front.flush),
            ] {
                ios.push((vec![("volume", name.as_str()), ("op", op)], count));
            }
        }
        page.ios("frontend", "client requests to volumes that this node owns", &ios);
        page.metric(
            "loadline_volume_read_bytes_total",
            "counter",
            "Bytes that volumes owned by this node read from the copy on this node (here) and from copies on other nodes \
             (elsewhere).",
        );
        for (name, of) in &volumes {
            let front = &of.front_end;
            for (from, bytes) in [("here", front.read_here), ("elsewhere", front.read_elsewhere)] {
                let labels = [("volume", name.as_str()), ("from", from)];
                page.value("loadline_volume_read_bytes_total", &labels, bytes as f64);
            }
        }
        page.metric("loadline_volume_unanswered", "gauge", "Requests of clients that are not answered.");
        for (name, of) in &volumes {
            page.value("loadline_volume_unanswered", &[("volume", name)], of.unanswered as f64);
        }
        page.metric(
            "loadline_resync_left_bytes",
            "gauge",
            "Bytes that are to be copied to a replica that comes back.",
        );
        for (name, of) in &volumes {
            for returning in &of.returning {
                let labels = [("volume", name.as_str()), ("replica", &returning.replica.0.to_string())];
                page.value("loadline_resync_left_bytes", &labels, (returning.left * BLOCK) as f64);
            }
        }
        page.metric(
            "loadline_resync_bytes_total",
            "counter",
            "Bytes of copies to replicas that come back, since this node serves the volume.",
        );
        for (name, of) in &volumes {
            page.value("loadline_resync_bytes_total", &[("volume", name)], (of.copied * BLOCK) as f64);
        }
        let records: Vec<_> = catalog
            .records
            .iter()
            .filter_map(|(id, stored)| Some((name(*id)?, record::decode(&stored.value).ok()?)))
            .collect();
        page.metric(
            "loadline_volume_epoch",
            "counter",
            "Epoch of a volume's record; it grows with each change of the owner or of an in-sync set.",
        );
        for (name, record) in &records {
            page.value("loadline_volume_epoch", &[("volume", name)], record.epoch.0 as f64);
        }
        page.metric("loadline_volume_in_sync", "gauge", "Copies in sync, of the group that has the fewest.");
        for (name, record) in &records {
            let fewest = record.groups.iter().map(|group| group.in_sync.len()).min().unwrap_or(0);
            page.value("loadline_volume_in_sync", &[("volume", name)], fewest as f64);
        }
    }

    fn of_replicas(&self, loops: &[LoopState], page: &mut Page) {
        let catalog = self.state().catalog.clone();
        let named: Vec<_> = loops
            .iter()
            .flat_map(|of| &of.replicas)
            .map(|of| {
                let replica = catalog.replicas.get(&of.id.0).map(|(replica, _)| replica);
                let volume =
                    replica.and_then(|r| catalog.volumes.get(&r.volume)).map(|(v, _)| v.name.clone());
                let devices = replica
                    .map_or_else(Default::default, |r| [r.log_device, r.device].map(|id| id.to_string()));
                (of.id.0.to_string(), volume.unwrap_or_default(), devices, of)
            })
            .collect();
        let mut ios = Vec::new();
        for (id, volume, devices, of) in &named {
            let areas = [("log", &of.log, &devices[0]), ("capacity", &of.capacity, &devices[1])];
            for (area, back, device) in areas {
                for (op, count) in [("read", back.read), ("write", back.write), ("sync", back.sync)] {
                    let labels = [("volume", volume), ("replica", id), ("device", device)];
                    let mut labels: Vec<(&str, &str)> =
                        labels.map(|(name, value)| (name, value.as_str())).to_vec();
                    labels.extend([("area", area), ("op", op)]);
                    ios.push((labels, count));
                }
            }
        }
        page.ios(
            "backend",
            "I/Os of replicas on devices (writes with area=capacity are destaged data)",
            &ios,
        );
        type Gauge =
            (&'static str, &'static str, &'static str, fn(&crate::event_loop::command::ReplicaState) -> f64);
        let gauges: [Gauge; 15] = [
            ("loadline_log_bytes", "gauge", "Room for the log of a replica.", |of| of.log_bytes as f64),
            ("loadline_log_used_bytes", "gauge", "Part of the log that is not destaged.", |of| {
                of.log_used as f64
            }),
            (
                "loadline_log_destaged_bytes_total",
                "counter",
                "Bytes of the log that were destaged and freed.",
                |of| of.destaged as f64,
            ),
            (
                "loadline_log_slows_writes",
                "gauge",
                "1 if the log fills up, so that writes get the speed of the capacity device.",
                |of| f64::from(of.slowed),
            ),
            (
                "loadline_log_wait_seconds_total",
                "counter",
                "Time in which at least one write waited because the log filled up.",
                |of| of.log_wait_ns as f64 / 1e9,
            ),
            ("loadline_extents", "gauge", "Extents that have a place.", |of| of.extents as f64),
            ("loadline_replica_full", "gauge", "1 if its device has no more room.", |of| f64::from(of.full)),
            ("loadline_replica_failed", "gauge", "1 if it does nothing any more.", |of| f64::from(of.failed)),
            ("loadline_replica_damaged", "gauge", "1 if its start found it damaged.", |of| {
                f64::from(of.damaged)
            }),
            ("loadline_scrubbed_bytes_total", "counter", "Bytes that were checked.", |of| of.scrubbed as f64),
            (
                "loadline_corrupt_blocks_total",
                "counter",
                "Blocks that did not match their checksums.",
                |of| of.corrupt as f64,
            ),
            ("loadline_cache_bytes", "gauge", "Room in the read cache of a replica.", |of| {
                (of.cache.blocks * BLOCK) as f64
            }),
            ("loadline_cache_hits_total", "counter", "Blocks that were read from the read cache.", |of| {
                of.cache.hits as f64
            }),
            (
                "loadline_cache_misses_total",
                "counter",
                "Blocks that were read from the capacity device, beside a read cache.",
                |of| of.cache.misses as f64,
            ),
            ("loadline_cache_taken_total", "counter", "Blocks that were written to the read cache.", |of| {
                of.cache.taken as f64
            }),
        ];
        for (name, kind, help, value) in gauges {
            page.metric(name, kind, help);
            for (id, volume, _, of) in &named {
                page.value(name, &[("volume", volume), ("replica", id)], value(of));
            }
        }
        let name = "loadline_repaired_slots_total";
        page.metric(name, "counter", "Slots that were not as they should be, and were written again.");
        for (id, volume, _, of) in &named {
            page.value(name, &[("volume", volume), ("replica", id)], of.repaired as f64);
        }
    }
}

/// CPU by part, and memory, as the kernel counts them.
fn of_process(page: &mut Page) {
    let name = "loadline_cpu_seconds_total";
    page.metric(
        name,
        "counter",
        "CPU time by part: threads of the data path (loop-N), of the configuration, and all other.",
    );
    let mut rest = cpu_seconds();
    for task in std::fs::read_dir("/proc/self/task").into_iter().flatten().flatten() {
        let Ok(thread) = std::fs::read_to_string(task.path().join("comm")) else { continue };
        let thread = thread.trim();
        // Threads that end would take their time with them: it is in the rest.
        if thread.starts_with("loop-") || thread == "config" {
            let seconds = cpu_of(task.path().join("stat")).unwrap_or_default();
            page.value(name, &[("part", thread)], seconds);
            rest -= seconds;
        }
    }
    page.value(name, &[("part", "other")], rest.max(0.0));
    page.metric("process_resident_memory_bytes", "gauge", "Memory of the process.");
    page.value("process_resident_memory_bytes", &[], resident_bytes() as f64);
    let name = "process_start_time_seconds";
    page.metric(name, "gauge", "When the process has started, seconds since 1970.");
    if let Some(started) = inventory::process_started() {
        page.value(name, &[], started);
    }
}

/// User and system time of this process, seconds; 0 if the kernel does not tell.
pub(crate) fn cpu_seconds() -> f64 {
    cpu_of("/proc/self/stat").unwrap_or_default()
}

/// Resident memory of this process, bytes; 0 if the kernel does not tell.
pub(crate) fn resident_bytes() -> u64 {
    let statm = std::fs::read_to_string("/proc/self/statm").unwrap_or_default();
    let pages = statm.split_whitespace().nth(1).and_then(|pages| pages.parse::<u64>().ok());
    pages.unwrap_or(0) * 4096
}

/// User and system time of a process or thread, seconds.
fn cpu_of(stat: impl AsRef<std::path::Path>) -> Option<f64> {
    let stat = std::fs::read_to_string(stat).ok()?;
    let fields: Vec<&str> = stat.rsplit_once(')')?.1.split_whitespace().collect();
    Some((fields.get(11)?.parse::<f64>().ok()? + fields.get(12)?.parse::<f64>().ok()?) / 100.0)
}
