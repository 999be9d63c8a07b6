//! What is known of a cluster, and what becomes of it each second: a function of what nodes sent and of the last status.

mod causes;
mod devices;

use std::collections::{BTreeMap, VecDeque};
use std::time::{Duration, Instant};

use causes::{Causes, Part};
use devices::Devices;
use loadline_san_node::node::manage::{Followed, Hello, Sample, StatusView};
use loadline_san_node::recent::LogLine;

use crate::figures::{Done, Rates};
use crate::follower::News;
use crate::view::{
    EventRow, MOST_RESYNCS, MOST_VOLUMES, NodeRow, Now, Overall, Reports, ResyncRow, VolumeRow,
};

/// A node sends a sample each second. Without one for so long its figures are unknown.
const MISSING: Duration = Duration::from_millis(2500);
/// Samples that may wait for their second. If there are more, because a node was late, all but one belong to this second.
const AHEAD: usize = 3;
/// A status that is older is not how things are now.
const STATUS: Duration = Duration::from_secs(8);
/// The time over which the rate of a resync is taken.
const RESYNC: usize = 10;
/// Events that are kept.
const EVENTS: usize = 5000;

/// A node, as its stream reports it.
#[derive(Debug, Default)]
struct NodeState {
    hello: Option<Hello>,
    /// Samples that were received and belong to seconds that are not shown yet.
    waiting: VecDeque<Sample>,
    /// One sample at least waits for its second all the time, so that one that comes a moment late is not missing.
    has_spare: bool,
    /// When the last one came, also by the console's clock: milliseconds since 1970.
    last: Option<(Instant, u64)>,
    /// Since when it does not answer, and why.
    silent: Option<(u64, String)>,
    /// It has sent a sample so far.
    was_reached: bool,
    /// The console's clock minus the node's, milliseconds, at the last sample.
    clock_off_ms: i64,
}

/// What is known of a cluster.
#[derive(Debug, Default)]
pub struct Cluster {
    nodes: BTreeMap<String, NodeState>,
    status: Option<(Instant, StatusView)>,
    /// Why there is no newer status.
    no_status: Option<String>,
    bounds_ns: Vec<u64>,
    events: VecDeque<EventRow>,
    last_event: u64,
    /// Events before this number were shown.
    shown: u64,
    /// Bytes that were copied in each of the last seconds.
    resynced: VecDeque<f64>,
    /// The largest share of each resync that was shown, by the id of the replica that gets the data.
    progress: BTreeMap<u64, f64>,
    /// What each volume did in the last second, by name.
    volumes: BTreeMap<String, (Rates, usize)>,
    devices: Devices,
}

impl Cluster {
    /// A node reports, or does not. `wall_ms` is the console's clock: milliseconds since 1970.
    pub fn learn(&mut self, node: &str, news: News, now: Instant, wall_ms: u64) {
        // A node that was removed may still say something.
        let Some(state) = self.nodes.get_mut(node) else { return };
        match news {
            News::Silent(why) => {
                // A stream that ends after its ten minutes, and goes on, is no event: it is one once figures are missing.
                state.silent.get_or_insert((wall_ms, why));
            }
            News::Followed(Followed::Hello(hello)) => {
                let begins = state.hello.as_ref().is_some_and(|of| of.incarnation != hello.incarnation);
                self.bounds_ns.clone_from(&hello.bounds_ns);
                state.hello = Some(hello);
                state.silent = None;
                if begins {
                    self.add_event(wall_ms, "warning", format!("node {node} was started again"), node);
                }
            }
            News::Followed(Followed::Sample(sample)) => {
                state.silent = None;
                (state.last, state.was_reached) = (Some((now, wall_ms)), true);
                state.clock_off_ms = wall_ms as i64 - sample.at_ms as i64;
                state.waiting.push_back(*sample);
            }
            News::Followed(Followed::Log(line)) => {
                self.last_event += 1;
                // By the console's clock, as everything that it shows.
                let at = (line.at_ms as i64 + state.clock_off_ms).max(0) as u64 / 1000;
                let LogLine { level, message, volume, device, node: about, .. } = line;
                let (number, from) = (self.last_event, Some(node.to_owned()));
                self.events.push_back(EventRow {
                    number,
                    at,
                    from,
                    level,
                    message,
                    volume,
                    device,
                    node: about,
                });
            }
        }
        while self.events.len() > EVENTS {
            self.events.pop_front();
        }
    }

    /// The console has found something about a node.
    fn add_event(&mut self, wall_ms: u64, level: &str, message: String, node: &str) {
        self.last_event += 1;
        self.events.push_back(EventRow {
            number: self.last_event,
            at: wall_ms / 1000,
            from: None,
            level: level.into(),
            message,
            volume: None,
            device: None,
            node: Some(node.into()),
        });
    }

    /// A person changed a volume or a node by the console: it becomes an event.
    pub fn add_done(
        &mut self,
        wall_ms: u64,
        level: &str,
        message: String,
        (volume, node): (Option<String>, Option<String>),
    ) {
        self.add_event(wall_ms, level, message, "");
        if let Some(event) = self.events.back_mut() {
            (event.volume, event.node) = (volume, node);
        }
    }

    /// A status has come, or why none has.
    pub fn learn_status(&mut self, status: Result<StatusView, String>, now: Instant) {
        match status {
            Ok(status) => {
                let names: Vec<&str> = status.nodes.iter().map(|node| node.name.as_str()).collect();
                self.nodes.retain(|name, _| names.contains(&name.as_str()));
                for name in names {
                    self.nodes.entry(name.into()).or_default();
                }
                self.devices.learn(&status);
                (self.status, self.no_status) = (Some((now, status)), None);
            }
            Err(why) => self.no_status = Some(why),
        }
    }

    /// The last status, if there was one.
    pub fn status(&self) -> Option<&StatusView> {
        self.status.as_ref().map(|(_, status)| status)
    }

    /// The status of this moment. The error says that there is none: an old one is not how things are.
    pub(crate) fn status_of(&self, now: Instant) -> Result<&StatusView, String> {
        match &self.status {
            Some((at, status)) if now.duration_since(*at) <= STATUS => Ok(status),
            Some(_) => Err(self.no_status.clone().unwrap_or_else(|| "no node answers".into())),
            None => Err("no node of the cluster has answered yet".into()),
        }
    }

    /// What each volume did in the last second, if its owner reports it; by name.
    pub fn volume_rates(&self) -> impl Iterator<Item = (&str, Option<&Rates>)> {
        let volumes = self.status().map(|status| status.volumes.as_slice()).unwrap_or_default();
        volumes.iter().map(|of| (of.name.as_str(), self.volumes.get(&of.name).map(|(rates, _)| rates)))
    }

    /// The last events, the newest first: at most so many.
    pub fn last_events(&self, most: usize) -> Vec<EventRow> {
        let mut last: Vec<EventRow> = self.events.iter().rev().take(most).cloned().collect();
        // Nodes send the lines that they keep one node after the other.
        last.sort_by_key(|event| std::cmp::Reverse((event.at, event.number)));
        last
    }

    /// A second is over.
    pub fn tick(&mut self, now: Instant, wall_ms: u64) -> Now {
        let mut total = Done::default();
        let (mut rows, mut missing, mut cpu) = (Vec::new(), Vec::new(), 0.0);
        self.volumes.clear();
        self.devices.begin_second();
        let (mut rates, mut lost) = (Rates::default(), Vec::new());
        for (name, state) in &mut self.nodes {
            let taken = state.take();
            let mut row = NodeRow::unreported(name, Reports::NotYet);
            row.clock_off = (state.clock_off_ms.abs() > 1000).then(|| state.clock_off_ms as f64 / -1000.0);
            if let Some(samples) = taken {
                let seconds = samples.iter().map(|of| of.covers_us).sum::<u64>().max(1) as f64 / 1e6;
                let mut done = Done::default();
                samples.iter().for_each(|sample| done.merge(&Done::of_node(sample)));
                let of_node = done.rates(seconds, &self.bounds_ns);
                add_up(&mut rates, &of_node);
                total.merge(&done);
                let last = samples.last().expect("there is one");
                row.reports = Reports::Now;
                row.rates = Some(of_node);
                let used = samples.iter().map(|of| of.cpu_us).sum::<u64>() as f64 / 1e6 / seconds;
                (row.cpu, row.memory) = (Some(used), Some(last.memory));
                cpu += used;
                (row.clients, row.volumes) = (Some(last.clients), Some(last.volumes.len()));
                let fills = last.replicas.iter().map(|of| of.log_used as f64 / of.log.max(1) as f64);
                row.log_fill = Some(fills.fold(0.0, f64::max));
                row.slowed = Some(last.replicas.iter().filter(|of| of.slowed).count());
                let mut volumes: BTreeMap<&str, Done> = BTreeMap::new();
                for volume in samples.iter().flat_map(|sample| &sample.volumes) {
                    volumes.entry(&volume.name).or_default().merge(&Done::of_volume(volume));
                }
                for volume in &last.volumes {
                    let rates = volumes[&*volume.name].rates(seconds, &self.bounds_ns);
                    self.volumes.insert(volume.name.clone(), (rates, volume.unanswered));
                }
                samples.iter().for_each(|sample| self.devices.add(name, sample));
            } else {
                missing.push(name.clone());
                if state.last.is_some_and(|(last, _)| now.duration_since(last) < MISSING) {
                    row.reports = Reports::Late;
                } else if state.last.is_some() || state.silent.is_some() {
                    let (at_ms, why) =
                        state.silent.get_or_insert_with(|| (wall_ms, "it sends nothing".into()));
                    if let Some((_, last)) = state.last.take() {
                        // Of what came after its last sample nothing is known.
                        *at_ms = last;
                        state.has_spare = false;
                        lost.push((name.clone(), why.clone()));
                    }
                    let (at_ms, why) = (*at_ms, why.clone());
                    row.reports = match state.was_reached {
                        true => Reports::UnknownSince { at_ms, why },
                        false => Reports::NeverReached { since_ms: at_ms, why },
                    };
                }
            }
            rows.push(row);
        }
        for (name, why) in lost {
            let message = format!("node {name} does not report any more: {why}");
            self.add_event(wall_ms, "error", message, &name);
        }
        // Percentiles are of all requests together; everything else is the sum of what the nodes did each second.
        let all = total.rates(1.0, &self.bounds_ns);
        (rates.read_latency, rates.write_latency, rates.read_here) =
            (all.read_latency, all.write_latency, all.read_here);
        self.resynced.push_back(rates.resync_bytes);
        while self.resynced.len() > RESYNC {
            self.resynced.pop_front();
        }
        // Of a second for which no node has reported nothing is known: it is not 0.
        let known = (rows.len() > missing.len()).then_some((rates, cpu));
        self.view(now, wall_ms, known.unzip(), rows, missing)
    }

    fn view(
        &mut self,
        now: Instant,
        wall_ms: u64,
        (total, cpu): (Option<Rates>, Option<f64>),
        mut nodes: Vec<NodeRow>,
        missing: Vec<String>,
    ) -> Now {
        let known = self.status.is_some();
        let mut view = Now { known, total, missing, cpu, ..Now::empty(wall_ms / 1000, self.id()) };
        let mut causes = Causes::default();
        if let Some((at, status)) = &self.status {
            for row in &mut nodes {
                if let Some(of) = status.nodes.iter().find(|node| node.name == row.name) {
                    (row.draining, row.maintenance, row.stopping) =
                        (of.draining, of.maintenance, of.stopping);
                    row.fault.clone_from(&of.fault);
                }
            }
            self.add_volumes(status, &mut view, &mut causes);
            let is_new = now.duration_since(*at) < STATUS;
            self.devices.show(status, is_new.then_some(wall_ms / 1000), &mut view, &mut causes);
        }
        if let Some(status) = self.status.as_ref().map(|(_, status)| status.clone()) {
            self.add_resyncs(&status, &mut view);
            if let Some(why) = &status.store_fault {
                let why = format!(" does not use the configuration store: {why}");
                causes.add(Part::Node, Overall::Unknown, &status.asked, &why);
            }
        }
        for member in self.status().into_iter().flat_map(|status| &status.store) {
            let alarms = member.alarms.iter().map(|alarm| format!("alarm {alarm}"));
            for why in member.fault.iter().cloned().chain(alarms) {
                let why = format!(" of the configuration store: {why}");
                causes.add(Part::Store, Overall::Degraded, &member.address, &why);
            }
        }
        for row in &nodes {
            match &row.reports {
                Reports::UnknownSince { why, .. } | Reports::NeverReached { why, .. } => {
                    let says = ["does not report", "do not report"].map(|of| format!(" {of}: {why}"));
                    causes.add_both(Part::Node, Overall::Degraded, &row.name, [&says[0], &says[1]]);
                }
                Reports::NotYet => {
                    let says = [" has not reported yet", " have not reported yet"];
                    causes.add_both(Part::Node, Overall::Unknown, &row.name, says);
                }
                Reports::Now | Reports::Late => {
                    if let Some(fault) = &row.fault {
                        causes.add(Part::Node, Overall::Degraded, &row.name, &format!(": {fault}"));
                    }
                }
            }
        }
        let reports = nodes.iter().any(|row| matches!(row.reports, Reports::Now | Reports::Late));
        let old = self.why_old(now, reports);
        if let Some(why) = &old {
            causes.add(Part::Status, Overall::Unknown, "", why);
        }
        causes.show(old.is_none(), &mut view);
        view.nodes = nodes;
        view.events = self.new_events();
        view
    }

    /// Why nothing is known of how things are now, if that is so: there is no status, the last one is old, or no node answers any more.
    fn why_old(&self, now: Instant, reports: bool) -> Option<String> {
        let why = |none: &str| self.no_status.clone().unwrap_or_else(|| none.into());
        let Some((at, _)) = &self.status else { return Some(why("no node has answered yet")) };
        let age = now.duration_since(*at);
        let is_old = age > STATUS || (self.no_status.is_some() && !reports);
        is_old.then(|| format!("the last status is {} s old: {}", age.as_secs(), why("no node answers")))
    }

    /// The cluster was stopped, as was intended: the second `at` (since 1970), which is the last one. `why` is a sentence for people.
    pub fn end(&mut self, at: u64, why: &str) -> Now {
        self.add_done(at * 1000, "info", why.to_owned(), (None, None));
        let mut view = Now::empty(at, self.id());
        (view.overall, view.why, view.why_total) = (Overall::Ended, vec![why.to_owned()], 1);
        view.events = self.new_events();
        view
    }

    /// The id of the cluster, if a node has reported it.
    fn id(&self) -> Option<String> {
        self.nodes.values().find_map(|node| Some(node.hello.as_ref()?.cluster.clone()))
    }

    /// The events since the second before.
    fn new_events(&mut self) -> Vec<EventRow> {
        let events = self.events.iter().filter(|event| event.number > self.shown).cloned().collect();
        self.shown = self.last_event;
        events
    }

    fn add_volumes(&self, status: &StatusView, view: &mut Now, causes: &mut Causes) {
        let mut rows = self.volume_rows(status);
        for row in &rows {
            if let Some(health) = row.health.filter(|health| *health != Overall::Healthy) {
                let reason = row.reason.as_deref().unwrap_or("see the volume");
                causes.add(Part::Volume, health, &row.name, &format!(": {reason}"));
            }
        }
        view.volumes_total = rows.len();
        view.volume_bytes = rows.iter().map(|row| row.bytes).sum();
        rows.truncate(MOST_VOLUMES);
        view.volumes = rows;
    }

    /// All volumes: those that are not healthy first, then by latency, the worst first.
    pub fn volume_rows(&self, status: &StatusView) -> Vec<VolumeRow> {
        let mut rows: Vec<VolumeRow> = status
            .volumes
            .iter()
            .map(|of| {
                let done = self.volumes.get(&of.name);
                VolumeRow {
                    name: of.name.clone(),
                    health: of.health.map(Overall::from),
                    bytes: of.bytes,
                    copies: of.copies,
                    in_sync: of.in_sync,
                    stripes: of.stripes,
                    owner: of.owner.clone(),
                    attached: of.attached.clone(),
                    rates: done.map(|(rates, _)| *rates),
                    unanswered: done.map(|(_, unanswered)| *unanswered),
                    limited: of.limit.is_some(),
                    reason: of.note.as_deref().map(causes::short),
                    note: of.note.clone(),
                }
            })
            .collect();
        let latency = |row: &VolumeRow| row.rates.map_or(0.0, |rates| rates.worst_p99());
        let ill = |row: &VolumeRow| row.health.unwrap_or(Overall::Healthy);
        rows.sort_by(|a, b| {
            ill(b).cmp(&ill(a)).then(latency(b).total_cmp(&latency(a))).then_with(|| a.name.cmp(&b.name))
        });
        rows
    }

    fn add_resyncs(&mut self, status: &StatusView, view: &mut Now) {
        let mut before = std::mem::take(&mut self.progress);
        for volume in &status.volumes {
            for replica in &volume.replicas {
                let Some(left) = replica.left_bytes else { continue };
                let copied = replica.copied_bytes.unwrap_or(0);
                let done = if left + copied == 0 { 0.0 } else { copied as f64 / (left + copied) as f64 };
                // New writes add to what is left: what was done stays done.
                let done = before.remove(&replica.id).unwrap_or(0.0).max(done);
                self.progress.insert(replica.id, done);
                view.resyncs.push(ResyncRow {
                    volume: volume.name.clone(),
                    node: replica.node.clone(),
                    full: replica.full_resync,
                    left,
                    done,
                });
            }
        }
        view.resyncs_total = view.resyncs.len();
        view.resync_left = view.resyncs.iter().map(|row| row.left).sum();
        let rate = self.resynced.iter().sum::<f64>() / self.resynced.len().max(1) as f64;
        view.resync_seconds = (view.resync_left > 0 && rate > 0.0).then(|| view.resync_left as f64 / rate);
        view.resyncs.sort_by_key(|row| std::cmp::Reverse(row.left));
        view.resyncs.truncate(MOST_RESYNCS);
    }
}

impl NodeState {
    /// What belongs to this second of what has come: nothing if it is late, or the first sample waits for the second one.
    fn take(&mut self) -> Option<Vec<Sample>> {
        self.has_spare |= self.waiting.len() > 1;
        let count = match self.waiting.len() {
            more if more > AHEAD => more - 1,
            some => usize::from(some > 0 && self.has_spare),
        };
        (count > 0).then(|| self.waiting.drain(..count).collect())
    }
}

/// Adds what a node did each second; not its latencies, which do not add up.
fn add_up(to: &mut Rates, more: &Rates) {
    to.reads += more.reads;
    to.writes += more.writes;
    to.read_bytes += more.read_bytes;
    to.write_bytes += more.write_bytes;
    to.others += more.others;
    to.errors += more.errors;
    to.log_bytes += more.log_bytes;
    to.destage_bytes += more.destage_bytes;
    to.data_read_bytes += more.data_read_bytes;
    to.resync_bytes += more.resync_bytes;
    to.scrub_bytes += more.scrub_bytes;
}

#[cfg(test)]
mod tests;
