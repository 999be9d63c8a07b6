//! The judge of service: whether a volume that can be served is served within [`SERVES`] of the last change, whether an operation
//! takes longer than [`HANGS`], whether a client sees an error, and whether a write is acknowledged on fewer copies than it must
//! have. It is a pure function of what was changed when, what the configuration said, and what the clients have logged.

use std::collections::BTreeSet;

use super::clients::{Action, Micros, Op, Outcome};
use super::cluster::Sample;
use super::judge::{name, seconds};
use super::script::Volume;

/// Within what time of the last change a volume that has an in-sync copy with access to the store serves again.
pub(crate) const SERVES: Micros = 5_000_000;
/// How long an operation may take while its volume can be served.
pub(crate) const HANGS: Micros = 6_000_000;

/// What works.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct World {
    /// Nodes whose process runs and is not stopped.
    pub(crate) runs: Vec<bool>,
    /// Whether packets from the first host arrive at the second.
    pub(crate) open: Vec<Vec<bool>>,
    pub(crate) store: bool,
    /// Nodes that do not reach the store, though it works.
    pub(crate) off_store: BTreeSet<usize>,
    /// Hosts that reach neither another host nor the store. The nodes on them cannot learn which node serves a volume.
    pub(crate) gone: BTreeSet<usize>,
    /// Nodes whose copies went back in time: what the configuration says of them does not hold.
    pub(crate) rolled_back: BTreeSet<usize>,
    /// The configuration went back in time: nothing may be served.
    pub(crate) restored: bool,
}

impl World {
    pub(crate) fn whole(hosts: usize) -> World {
        World {
            runs: vec![true; hosts],
            open: vec![vec![true; hosts]; hosts],
            store: true,
            off_store: BTreeSet::new(),
            gone: BTreeSet::new(),
            rolled_back: BTreeSet::new(),
            restored: false,
        }
    }

    fn linked(&self, a: usize, b: usize) -> bool {
        a == b || (self.open[a][b] && self.open[b][a])
    }

    fn hosts(&self) -> impl Iterator<Item = usize> + '_ {
        (0..self.runs.len()).filter(|host| self.runs[*host])
    }

    /// Nothing is wrong but, perhaps, that the store is away.
    fn only_the_store(&self) -> bool {
        let all = 0..self.runs.len();
        self.rolled_back.is_empty()
            && self.runs.iter().all(|runs| *runs)
            && all.clone().all(|a| all.clone().all(|b| self.open[a][b]))
    }

    /// Hosts whose nodes a message from this one can reach over any number of nodes, in whatever direction links are open.
    fn around(&self, host: usize) -> BTreeSet<usize> {
        let mut reached = BTreeSet::from([host]);
        loop {
            let more: Vec<usize> = self
                .hosts()
                .filter(|to| {
                    !reached.contains(to)
                        && reached.iter().any(|from| self.open[*from][*to] || self.open[*to][*from])
                })
                .collect();
            if more.is_empty() {
                return reached;
            }
            reached.extend(more);
        }
    }
}

/// A change, and the quiet time after it.
#[derive(Debug, Clone)]
pub(crate) struct Moment {
    pub(crate) what: String,
    /// In tables.
    pub(crate) kind: &'static str,
    /// When the change began, and when it was made.
    pub(crate) begun: Micros,
    pub(crate) done: Micros,
    /// What works since.
    pub(crate) world: World,
    /// What the configuration said of each volume just before.
    pub(crate) before: Option<Vec<Sample>>,
    /// What the configuration says of each volume, [`SERVES`] later; nothing if something else has changed before, or the store is
    /// away.
    pub(crate) samples: Option<Vec<Sample>>,
}

/// What must be served.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Expected {
    /// To clients of at least one of these hosts.
    pub(crate) at: BTreeSet<usize>,
    /// Writes too.
    pub(crate) writes: bool,
}

/// In-sync copies that a node reaches, of the group that has the fewest.
fn members(world: &World, sample: &Sample, host: usize) -> usize {
    let counts = |member: &&usize| {
        world.runs[**member] && !world.rolled_back.contains(member) && world.linked(host, **member)
    };
    sample.in_sync.iter().map(|group| group.iter().filter(counts).count()).min().unwrap_or(0)
}

/// Whether a volume can be attached at a host: its node is on a side that can serve it, and reaches a copy of each group.
pub(crate) fn can_attach(world: &World, sample: &Sample, copies: usize, host: usize) -> bool {
    let serves = expected(world, sample, copies)
        .is_some_and(|expected| expected.writes && expected.at.contains(&host));
    serves && world.runs[host] && members(world, sample, host) > 0
}

/// Whether the owner does not reach this host, and reaches as many copies: then the store decides which of them goes on.
pub(crate) fn store_decides(world: &World, sample: &Sample, host: usize) -> bool {
    let owner = sample.owner;
    world.runs[owner]
        && !world.linked(owner, host)
        && members(world, sample, owner) >= members(world, sample, host)
}

/// What must be served of a volume, if anything.
pub(crate) fn expected(world: &World, sample: &Sample, copies: usize) -> Option<Expected> {
    let all_use_the_store = world.store && world.off_store.is_empty();
    if world.restored || (!all_use_the_store && !world.only_the_store()) {
        return None;
    }
    let members = |host: usize| members(world, sample, host);
    let most = world.hosts().map(members).max().filter(|most| *most > 0)?;
    let cliques = world.hosts().all(|a| {
        world
            .hosts()
            .all(|b| world.hosts().all(|c| !world.linked(a, b) || !world.linked(b, c) || world.linked(a, c)))
    });
    let best: BTreeSet<usize> = world.hosts().filter(|host| members(*host) == most).collect();
    let one_side = best.iter().all(|a| best.iter().all(|b| world.linked(*a, *b)));
    // Where links are cut so that no two sides are there, or both have as many copies, any node may be the one.
    let at = if cliques && one_side { best } else { world.hosts().collect() };
    Some(Expected { at, writes: most >= sample.least.max(must_have(copies)) })
}

/// In-sync copies that a write must have, unless a volume's policy says otherwise.
fn must_have(copies: usize) -> usize {
    if copies > 2 { 2 } else { 1 }
}

/// Something that clients should not have seen.
#[derive(Debug, Clone)]
pub(crate) struct Fault {
    /// In tables.
    pub(crate) kind: &'static str,
    pub(crate) volume: usize,
    pub(crate) at: Micros,
    pub(crate) text: String,
}

/// Everything that is wrong with the service.
pub(crate) fn judge(moments: &[Moment], volumes: &[Volume], ops: &[Op], end: Micros) -> Vec<Fault> {
    let mut found = Vec::new();
    for (number, volume) in volumes.iter().enumerate() {
        let ops: Vec<&Op> = ops.iter().filter(|op| op.volume == number).collect();
        let expectations: Vec<Option<Expected>> =
            (0..moments.len()).map(|index| expectation(moments, index, number, volume)).collect();
        for (index, moment) in moments.iter().enumerate() {
            let until = moments.get(index + 1).map_or(end, |next| next.begun);
            served(moment, expectations[index].as_ref(), number, &ops, &mut found);
            refused(moment, until, number, &ops, &mut found);
        }
        hangs(moments, &expectations, end, number, &ops, &mut found);
        alone(moments, number, volume, &ops, end, &mut found);
        // One of each kind is enough to report.
        let errors = ops.iter().filter(|op| matches!(op.outcome, Outcome::Error(_)));
        let count = errors.clone().count();
        if let Some(op) = errors.min_by_key(|op| op.ended) {
            let text = format!("{count} operations were answered with an error; the first: {}", shown(op));
            found.push(Fault { kind: "error", volume: number, at: op.ended, text });
        }
    }
    found.sort_by_key(|fault| fault.at);
    found
}

/// What must be served from a change on: what had to be by what the configuration said just before it, and still has to be by what it
/// says later. An owner that excludes the others in between does not become the one that is right.
fn expectation(moments: &[Moment], index: usize, number: usize, volume: &Volume) -> Option<Expected> {
    let moment = &moments[index];
    // A store that went away in the middle of something else may be missed.
    if !moment.world.store && index > 0 && moments[index - 1].samples.is_none() {
        return None;
    }
    let before = moments[..=index].iter().rev().find_map(|moment| moment.before.as_ref());
    let later = |moment: &Moment| moment.samples.clone().or(moment.before.clone());
    let after = moment.samples.clone().or_else(|| moments[index + 1..].iter().find_map(later));
    let by = |samples: Option<&Vec<Sample>>| match samples {
        Some(samples) => expected(&moment.world, &samples[number], volume.copies).map(Some),
        None => Some(None),
    };
    match (by(before)?, by(after.as_ref())?) {
        (Some(before), Some(after)) => {
            let both: BTreeSet<usize> = before.at.intersection(&after.at).copied().collect();
            let at = if both.is_empty() { before.at } else { both };
            Some(Expected { at, writes: before.writes && after.writes })
        }
        (one, other) => one.or(other),
    }
}

/// Whether a volume is served in time after a change, if nothing else changes before.
fn served(moment: &Moment, expected: Option<&Expected>, volume: usize, ops: &[&Op], found: &mut Vec<Fault>) {
    // The store is asked nothing while it is away, and the time was as long.
    let Some(expected) = expected.filter(|_| moment.samples.is_some()) else { return };
    let by = moment.done + SERVES;
    let done = |writes: bool| {
        ops.iter().any(|op| {
            expected.at.contains(&op.node)
                && matches!(op.action, Action::Write(_)) == writes
                && op.outcome == Outcome::Done
                && op.invoked >= moment.done
                && op.ended <= by
        })
    };
    let missing = match (done(false), !expected.writes || done(true)) {
        (true, true) => return,
        (false, _) => "read",
        (true, false) => "write",
    };
    let text = format!(
        "no {missing} of a client on host {:?} was answered within {} s of \"{}\" at {}; the configuration says {:?}",
        expected.at,
        SERVES / 1_000_000,
        moment.what,
        seconds(moment.done),
        moment.samples.as_ref().map(|samples| &samples[volume]),
    );
    found.push(Fault { kind: "not served", volume, at: by, text });
}

/// Whether nothing is served after the configuration went back.
fn refused(moment: &Moment, until: Micros, volume: usize, ops: &[&Op], found: &mut Vec<Fault>) {
    if !moment.world.restored {
        return;
    }
    let within = |op: &&&Op| op.invoked >= moment.done && op.ended < until && op.outcome == Outcome::Done;
    if let Some(op) = ops.iter().find(within) {
        let text = format!("served though the configuration went back in time: {}", shown(op));
        found.push(Fault { kind: "served", volume, at: op.ended, text });
    }
}

/// The operation that took longest while it should have been answered, if that is too long.
fn hangs(
    moments: &[Moment],
    expectations: &[Option<Expected>],
    end: Micros,
    volume: usize,
    ops: &[&Op],
    found: &mut Vec<Fault>,
) {
    let mut worst: Option<(Micros, &Op)> = None;
    let mut count = 0;
    // The kernel of a remote client may wait for long for a host that is cut off.
    for op in ops.iter().filter(|op| op.node == op.host && op.ended - op.invoked > HANGS) {
        let (mut longest, mut so_far) = (0, 0);
        for (index, moment) in moments.iter().enumerate() {
            let next = moments.get(index + 1).map_or(end, |next| next.done);
            // A write waits for as long as fewer copies are in sync than the policy asks for.
            let writes = matches!(op.action, Action::Write(_));
            let must = expectations[index].as_ref().is_some_and(|expected| expected.writes || !writes);
            if !must || !moment.world.runs[op.host] || moment.world.gone.contains(&op.host) {
                so_far = 0;
                continue;
            }
            so_far += op.ended.min(next).saturating_sub(op.invoked.max(moment.done));
            longest = longest.max(so_far);
        }
        if longest > HANGS {
            count += 1;
            if worst.is_none_or(|(most, _)| longest > most) {
                worst = Some((longest, op));
            }
        }
    }
    if let Some((took, op)) = worst {
        let took = seconds(took);
        let text =
            format!("{count} operations had no answer for too long; the longest, {took}: {}", shown(op));
        found.push(Fault { kind: "hang", volume, at: op.invoked, text });
    }
}

/// Writes that were acknowledged where fewer copies can be reached than a write must have.
fn alone(
    moments: &[Moment],
    number: usize,
    volume: &Volume,
    ops: &[&Op],
    end: Micros,
    found: &mut Vec<Fault>,
) {
    let least = must_have(volume.copies);
    let Some(sample) = moments.iter().find_map(|moment| moment.samples.as_ref()) else { return };
    let homes = &sample[number].homes;
    for (index, moment) in moments.iter().enumerate() {
        let until = moments.get(index + 1).map_or(end, |next| next.begun);
        for host in moment.world.hosts() {
            if moment.world.around(host).intersection(homes).count() >= least {
                continue;
            }
            let acknowledged: Vec<&&Op> = ops
                .iter()
                .filter(|op| {
                    op.node == host
                        && matches!(op.action, Action::Write(_))
                        && op.outcome == Outcome::Done
                        && op.invoked > moment.done
                        && op.ended < until
                })
                .collect();
            if let Some(op) = acknowledged.first() {
                let text = format!(
                    "{} writes were acknowledged where fewer than {least} copies can be reached, after \"{}\"; the first: {}",
                    acknowledged.len(),
                    moment.what,
                    shown(op)
                );
                found.push(Fault { kind: "too few copies", volume: number, at: op.ended, text });
                return;
            }
        }
    }
}

/// The longest time without an acknowledged write after a change, of clients on hosts that must be served, if they were served
/// before the next change.
pub(crate) fn stall(
    moments: &[Moment],
    index: usize,
    number: usize,
    volume: &Volume,
    ops: &[Op],
    end: Micros,
) -> Option<Micros> {
    let at = expectation(moments, index, number, volume)?.at;
    let until = moments.get(index + 1).map_or(end, |next| next.begun);
    let ends = acknowledged(ops, number, |host| at.contains(&host), moments[index].begun, until);
    let first = ends.first()?.saturating_sub(moments[index].begun);
    Some(ends.windows(2).map(|pair| pair[1] - pair[0]).max().unwrap_or(0).max(first))
}

/// When writes of clients on these hosts were acknowledged, in order, within a time.
pub(crate) fn acknowledged(
    ops: &[Op],
    volume: usize,
    at: impl Fn(usize) -> bool,
    from: Micros,
    until: Micros,
) -> Vec<Micros> {
    let is = |op: &&Op| {
        op.volume == volume
            && at(op.node)
            && matches!(op.action, Action::Write(_))
            && op.outcome == Outcome::Done
            && (from..until).contains(&op.ended)
    };
    let mut ends: Vec<Micros> = ops.iter().filter(is).map(|op| op.ended).collect();
    ends.sort_unstable();
    ends
}

/// An operation for people.
pub(crate) fn shown(op: &Op) -> String {
    let what = match (op.action, op.outcome) {
        (Action::Write(value), _) => format!("writes {}", name(value)),
        (Action::Read(value), Outcome::Done) => format!("reads {}", name(value)),
        (Action::Read(_), _) => "reads".into(),
    };
    format!(
        "{} .. {}  client {} on host {}{}, volume {}, block {}: {what}, {:?}",
        seconds(op.invoked),
        seconds(op.ended),
        op.client,
        op.host,
        if op.node == op.host { String::new() } else { format!(" at node {}", op.node) },
        op.volume + 1,
        op.block,
        op.outcome
    )
}
