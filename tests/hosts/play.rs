//! Plays a script on a cluster, under clients, and judges what they saw.

use std::path::PathBuf;
use std::time::{Duration, Instant};

use super::clients::{Action, BLOCKS, Clients, Clock, Connection, Micros, Op, Outcome};
use super::cluster::{Cluster, Sample, name};
use super::judge::{self, Fence, GRACE};
use super::netns::Passage;
use super::script::{Act, Fault, HostRole, QUIET_MS, Script, Step, Volume};
use super::service::{self, Moment, SERVES, World};

/// How long copies may take to be in sync when everything works again.
const IN_SYNC: Duration = Duration::from_secs(30);
/// How long a final read of one block may take.
const FINAL_READ: Duration = Duration::from_secs(10);
/// How long clients use the volumes before anything happens.
const BEFORE: Duration = Duration::from_millis(800);

/// What a script came to.
pub(crate) struct Played {
    pub(crate) script: Script,
    pub(crate) moments: Vec<Moment>,
    pub(crate) ops: Vec<Op>,
    /// When clients stopped.
    pub(crate) end: Micros,
    /// What is wrong: its kind, the volume and block it is about, when, and the text.
    pub(crate) wrong: Vec<Finding>,
    /// What each node has printed.
    pub(crate) printed: Vec<String>,
    pub(crate) took: Duration,
}

/// Something that is wrong.
#[derive(Debug, Clone)]
pub(crate) struct Finding {
    pub(crate) kind: String,
    pub(crate) at: Micros,
    pub(crate) about: Option<(usize, u64)>,
    pub(crate) text: String,
}

/// A script in progress.
struct Play {
    clock: Clock,
    script: Script,
    cluster: Cluster,
    world: World,
    moments: Vec<Moment>,
    fences: Vec<Fence>,
    wrong: Vec<Finding>,
    /// Per fault, the hosts that its roles stand for.
    hosts: Vec<Vec<usize>>,
}

/// Plays a script in a network of this number. What it finds is judged.
pub(crate) fn play(script: Script, number: usize) -> Played {
    let begun = Instant::now();
    let cluster = Cluster::start(number, &script);
    let clock = Clock::start();
    let mut clients = Clients::start(&cluster.network, &script, clock);
    let world = World::whole(script.nodes);
    let hosts = vec![Vec::new(); script.faults.len()];
    let (moments, fences, wrong) = (Vec::new(), Vec::new(), Vec::new());
    let mut play = Play { clock, script, cluster, world, moments, fences, wrong, hosts };
    play.change("start", "start".into(), |_| {});
    play.wait(BEFORE);
    play.sample();
    for step in play.script.steps.clone() {
        play.step(&step);
    }
    if let Err(why) = play.cluster.wait_in_sync(&play.script.volumes, IN_SYNC) {
        play.find("not in sync", why);
    }
    clients.stop();
    let end = clock.now();
    let mut ops = std::mem::take(&mut *clients.log.lock().expect("no client panics with it"));
    // Whatever had no answer has its time.
    std::thread::sleep(Duration::from_micros(GRACE));
    ops.extend(play.read_all());
    for crash in std::mem::take(&mut play.cluster.crashes) {
        play.find("crash", crash);
    }
    let Play { script, cluster, moments, fences, mut wrong, .. } = play;
    wrong.extend(judge::judge(&ops, &fences).into_iter().map(|violation| Finding {
        kind: format!("{:?}", violation.wrong).to_lowercase(),
        at: violation.at,
        about: Some((violation.volume, violation.block)),
        text: violation.text,
    }));
    let service = service::judge(&moments, &script.volumes, &ops, end);
    wrong.extend(service.into_iter().map(|fault| Finding {
        kind: fault.kind.into(),
        at: fault.at,
        about: None,
        text: format!("volume {}: {}", fault.volume + 1, fault.text),
    }));
    wrong.sort_by_key(|finding| finding.at);
    let printed = (0..script.nodes).map(|host| cluster.printed(host)).collect();
    Played { script, moments, ops, end, wrong, printed, took: begun.elapsed() }
}

impl Play {
    fn find(&mut self, kind: &str, text: String) {
        self.wrong.push(Finding { kind: kind.into(), at: self.clock.now(), about: None, text });
    }

    /// Makes a change, and notes it with what works since.
    fn change(&mut self, kind: &'static str, what: String, make: impl FnOnce(&mut Play)) {
        let before = self.cluster.sample(&self.script.volumes);
        let begun = self.clock.now();
        make(self);
        let (done, world) = (self.clock.now(), self.world.clone());
        self.moments.push(Moment { what, kind, begun, done, world, before, samples: None });
    }

    /// Waits, while nodes that end by themselves are started again.
    fn wait(&mut self, time: Duration) {
        let begun = Instant::now();
        while let Some(left) = time.checked_sub(begun.elapsed()).filter(|left| !left.is_zero()) {
            self.cluster.supervise();
            std::thread::sleep(left.min(Duration::from_millis(50)));
        }
    }

    fn sample(&mut self) {
        let samples = self.cluster.sample(&self.script.volumes);
        self.moments.last_mut().expect("the first is the start").samples = samples;
    }

    /// Waits so long after a change; long enough to be judged, what is to be expected is noted.
    fn quiet(&mut self, ms: u64) {
        let serves = SERVES / 1_000;
        if ms < serves {
            return self.wait(Duration::from_millis(ms));
        }
        self.wait(Duration::from_millis(serves));
        self.sample();
        self.wait(Duration::from_millis(ms - serves));
    }

    fn step(&mut self, step: &Step) {
        match step.act {
            Act::Begin(number) => {
                let fault = self.script.faults[number].clone();
                self.hosts[number] = self.resolve(&fault);
                self.begin(&fault, &self.hosts[number].clone());
            }
            Act::End(number) => {
                let fault = self.script.faults[number].clone();
                self.end(&fault, &self.hosts[number].clone());
            }
            Act::Attach(role) => {
                let host = self.host(role, &[]);
                self.attach(host);
            }
        }
        self.quiet(step.then_ms);
    }

    fn resolve(&self, fault: &Fault) -> Vec<usize> {
        let roles = match fault {
            Fault::Cut(a, b)
            | Fault::OneWay(a, b)
            | Fault::Refuse(a, b)
            | Fault::Down(a, b)
            | Fault::Flap(a, b, _) => vec![*a, *b],
            Fault::Isolate(role)
            | Fault::Mute(role)
            | Fault::Kill(role)
            | Fault::Term(role)
            | Fault::Freeze(role)
            | Fault::OffStore(role)
            | Fault::Gone(role)
            | Fault::RollBack(role, _) => vec![*role],
            Fault::Store | Fault::StoreLeader | Fault::StoreMember => vec![],
            Fault::Restore => vec![HostRole::Member],
        };
        let mut hosts = Vec::new();
        for role in roles {
            hosts.push(self.host(role, &hosts));
        }
        hosts
    }

    /// The host that a role stands for now: one whose node runs, and none of `but`, if there is one.
    fn host(&self, role: HostRole, but: &[usize]) -> usize {
        let sample = self.cluster.sample(&self.script.volumes).and_then(|samples| samples.into_iter().next());
        let sample = sample.or_else(|| {
            let mut earlier = self.moments.iter().rev().filter_map(|moment| moment.samples.as_ref());
            earlier.next().map(|samples| samples[0].clone())
        });
        let owner = sample.as_ref().map_or(0, |sample| sample.owner);
        let member = |host: &usize| sample.as_ref().is_some_and(|sample| sample.in_sync[0].contains(host));
        let able = |host: &usize| !but.contains(host) && self.world.runs[*host];
        let all = || 0..self.script.nodes;
        let found = match role {
            HostRole::Owner => Some(owner).filter(|host| !but.contains(host)),
            HostRole::Member => all().find(|host| *host != owner && member(host) && able(host)),
            HostRole::Other => all().rev().find(|host| *host != owner && !member(host) && able(host)),
        };
        found
            .or_else(|| all().find(|host| *host != owner && able(host)))
            .or_else(|| all().find(|host| !but.contains(host)))
            .expect("there are three hosts")
    }

    fn link(&mut self, from: usize, to: usize, passage: Passage) {
        self.cluster.network.set(from, to, passage);
        self.world.open[from][to] = passage == Passage::Open;
    }

    /// Both directions.
    fn links(&mut self, a: usize, b: usize, passage: Passage) {
        self.link(a, b, passage);
        self.link(b, a, passage);
    }

    /// Both directions between a host and those of the store, if that is an etcd.
    fn links_to_store(&mut self, host: usize, passage: Passage) {
        let Some(etcd) = &self.cluster.etcd else { return };
        for store in etcd.hosts() {
            self.cluster.network.set(host, store, passage);
            // An interface that is down receives nothing either.
            if passage != Passage::Down {
                self.cluster.network.set(store, host, passage);
            }
        }
    }

    fn begin(&mut self, fault: &Fault, hosts: &[usize]) {
        let (kind, at) = (fault.kind(), hosts.to_vec());
        let what = format!("{kind} {hosts:?}");
        let peers = |host: usize, nodes: usize| (0..nodes).filter(move |peer| *peer != host);
        let nodes = self.script.nodes;
        match fault {
            Fault::Cut(..) => self.change(kind, what, |play| play.links(at[0], at[1], Passage::Silent)),
            Fault::OneWay(..) => self.change(kind, what, |play| play.link(at[0], at[1], Passage::Silent)),
            Fault::Refuse(..) => self.change(kind, what, |play| play.links(at[0], at[1], Passage::Refused)),
            Fault::Down(..) => self.change(kind, what, |play| {
                play.link(at[0], at[1], Passage::Down);
                play.world.open[at[1]][at[0]] = false;
            }),
            Fault::Isolate(_) => self.change(kind, what, |play| {
                peers(at[0], nodes).for_each(|peer| play.links(at[0], peer, Passage::Silent));
            }),
            Fault::Mute(_) => self.change(kind, what, |play| {
                peers(at[0], nodes).for_each(|peer| play.link(at[0], peer, Passage::Silent));
            }),
            Fault::Flap(_, _, turns) => {
                for (number, ms) in turns.iter().enumerate() {
                    let passage = if number % 2 == 0 { Passage::Silent } else { Passage::Open };
                    let at = at.clone();
                    let what = format!("{what} {passage:?}");
                    self.change(kind, what, move |play| play.links(at[0], at[1], passage));
                    self.wait(Duration::from_millis(*ms));
                }
            }
            Fault::Store => self.change(kind, what, |play| {
                play.cluster.lock_store();
                play.world.store = false;
            }),
            Fault::OffStore(_) => self.change(kind, what, |play| {
                play.links_to_store(at[0], Passage::Silent);
                play.world.off_store.insert(at[0]);
            }),
            Fault::Gone(_) => self.change(kind, what, |play| {
                peers(at[0], nodes).for_each(|peer| {
                    play.link(at[0], peer, Passage::Down);
                    play.world.open[peer][at[0]] = false;
                });
                play.links_to_store(at[0], Passage::Down);
                play.world.gone.insert(at[0]);
            }),
            Fault::StoreLeader => self.change(kind, what, |play| {
                let Cluster { etcd, network, .. } = &mut play.cluster;
                let etcd = etcd.as_ref().expect("the script has one");
                let leader = etcd.leader(network).expect("nothing else is wrong");
                etcd.cut_member(network, leader, Passage::Silent);
            }),
            Fault::StoreMember => self.change(kind, what, |play| {
                let Cluster { etcd, network, .. } = &mut play.cluster;
                let etcd = etcd.as_mut().expect("the script has one");
                let leader = etcd.leader(network).expect("nothing else is wrong");
                etcd.kill(leader);
            }),
            Fault::Kill(_) => self.change(kind, what, |play| {
                play.cluster.kill(at[0]);
                play.world.runs[at[0]] = false;
            }),
            Fault::Term(_) => {
                let mut ended = true;
                self.change(kind, what, |play| {
                    ended = play.cluster.terminate(at[0]);
                    play.world.runs[at[0]] = false;
                });
                if !ended {
                    self.find("does not end", format!("node {} did not end after SIGTERM", at[0]));
                }
            }
            Fault::Freeze(_) => self.change(kind, what, |play| {
                play.cluster.freeze(at[0]);
                play.world.runs[at[0]] = false;
            }),
            Fault::Restore => self.restore(at[0]),
            Fault::RollBack(_, alone) => self.roll_back(at[0], *alone),
        }
    }

    fn end(&mut self, fault: &Fault, hosts: &[usize]) {
        let (kind, at) = (fault.kind(), hosts.to_vec());
        let what = format!("end of {kind} {hosts:?}");
        let nodes = self.script.nodes;
        self.change("end", what, |play| match fault {
            Fault::Cut(..) | Fault::OneWay(..) | Fault::Refuse(..) | Fault::Down(..) | Fault::Flap(..) => {
                play.links(at[0], at[1], Passage::Open)
            }
            Fault::Isolate(_) | Fault::Mute(_) => {
                (0..nodes)
                    .filter(|peer| *peer != at[0])
                    .for_each(|peer| play.links(at[0], peer, Passage::Open));
            }
            Fault::Store => {
                play.cluster.unlock_store();
                play.cluster.await_leader();
                play.world.store = true;
            }
            Fault::OffStore(_) => {
                play.links_to_store(at[0], Passage::Open);
                play.world.off_store.remove(&at[0]);
            }
            Fault::Gone(_) => {
                (0..nodes)
                    .filter(|peer| *peer != at[0])
                    .for_each(|peer| play.links(at[0], peer, Passage::Open));
                play.links_to_store(at[0], Passage::Open);
                play.world.gone.remove(&at[0]);
            }
            Fault::StoreLeader => {
                let Cluster { etcd, network, .. } = &mut play.cluster;
                let etcd = etcd.as_ref().expect("the script has one");
                (0..etcd.hosts().len()).for_each(|member| etcd.cut_member(network, member, Passage::Open));
            }
            Fault::StoreMember => {
                let Cluster { etcd, network, .. } = &mut play.cluster;
                etcd.as_mut().expect("the script has one").start_again(network);
            }
            Fault::Kill(_) | Fault::Term(_) => play.start(at[0]),
            Fault::Freeze(_) => {
                play.cluster.signal(at[0], "CONT");
                play.world.runs[at[0]] = true;
            }
            Fault::Restore | Fault::RollBack(..) => {}
        });
    }

    fn start(&mut self, host: usize) {
        self.cluster.start_node(host);
        self.world.runs[host] = true;
    }

    fn stop(&mut self, host: usize) {
        self.cluster.kill(host);
        self.world.runs[host] = false;
    }

    /// Stops nodes at once: if an owner saw others end first, it would exclude their copies.
    fn stop_together(&mut self, hosts: &[usize]) {
        self.cluster.kill_together(hosts);
        hosts.iter().for_each(|host| self.world.runs[*host] = false);
    }

    /// Attaches the first volume at a host. It must succeed where the node can have it.
    fn attach(&mut self, host: usize) {
        let volume = self.script.volumes[0].clone();
        let begun = self.clock.now();
        let mut said = (0, String::new());
        self.change("attach", format!("attach {} at host {host}", volume.name), |play| {
            said = play.cluster.command(host, &["volume", "attach", &volume.name, "--node", &name(host)]);
        });
        if said.0 == 0 {
            self.fences.push(Fence { volume: 0, begun, done: self.clock.now() });
            return;
        }
        let moment = self.moments.last().expect("it is the attachment");
        let can = |sample: &Sample| service::can_attach(&self.world, sample, volume.copies, host);
        let Some(before) = moment.before.as_ref().filter(|before| can(&before[0])) else { return };
        // The owner may just have excluded the copy there: the first change counts.
        let lost_a_tie = service::store_decides(&self.world, &before[0], host)
            && self.cluster.sample(&self.script.volumes).is_some_and(|now| !can(&now[0]));
        if !lost_a_tie {
            self.find("attach", format!("{} at host {host}: exit code {}, {}", volume.name, said.0, said.1));
        }
    }

    /// A member misses writes and gets them; then an older configuration, which does not know of that, is put back.
    fn restore(&mut self, member: usize) {
        let all: Vec<usize> = (0..self.script.nodes).collect();
        let (older, newest) = (self.cluster.folder.join("older.db"), self.cluster.folder.join("newest.db"));
        self.cluster.back_up_store(&older);
        self.miss_writes(member);
        self.change("restore", "an older configuration is put back".into(), |play| {
            play.stop_together(&all);
            play.cluster.back_up_store(&newest);
            play.cluster.restore_store(&older);
            play.world.restored = true;
            all.iter().for_each(|host| play.start(*host));
        });
        self.quiet(QUIET_MS + 1_000);
        // It is said.
        let (code, status) = self.cluster.command(0, &["san", "status"]);
        let (_, shown) = self.cluster.command(0, &["volume", "show", &self.script.volumes[0].name]);
        if code != 1 {
            let text = format!("'san status' ends with {code} after the configuration went back:\n{status}");
            self.find("not said", text);
        }
        if !shown.contains("back") && !shown.contains("older") && !shown.contains("blocked") {
            self.find(
                "not said",
                format!("'volume show' does not say that it is blocked, and why:\n{shown}"),
            );
        }
        self.change("restore", "the newest configuration is put back".into(), |play| {
            play.stop_together(&all);
            play.cluster.restore_store(&newest);
            play.world.restored = false;
            all.iter().for_each(|host| play.start(*host));
        });
    }

    /// Kills a node, lets clients write, and starts it again until its copies are in sync.
    fn miss_writes(&mut self, host: usize) {
        self.change("kill", format!("kill [{host}]"), |play| play.stop(host));
        self.quiet(1_500);
        self.change("end", format!("end of kill [{host}]"), |play| play.start(host));
        if let Err(why) = self.cluster.wait_in_sync(&self.script.volumes.clone(), IN_SYNC) {
            self.find("not in sync", why);
        }
        self.quiet(500);
    }

    /// A node's device is replaced by an older copy of it.
    fn roll_back(&mut self, host: usize, alone: bool) {
        let device = self.cluster.device(host);
        let older: PathBuf = self.cluster.folder.join("older.device");
        self.change("kill", format!("kill [{host}]"), |play| {
            play.stop(host);
            play.cluster.copy_device(&device, &older);
        });
        self.quiet(1_500);
        self.change("end", format!("end of kill [{host}]"), |play| play.start(host));
        if let Err(why) = self.cluster.wait_in_sync(&self.script.volumes.clone(), IN_SYNC) {
            self.find("not in sync", why);
        }
        self.quiet(1_000);
        let others: Vec<usize> = (0..self.script.nodes).filter(|other| *other != host).collect();
        self.change("roll back", format!("the device of {host} is rolled back"), |play| {
            play.stop_together(&[&[host][..], &others].concat());
            play.cluster.copy_device(&older, &device);
            play.world.rolled_back.insert(host);
            play.start(host);
            if !alone {
                others.iter().for_each(|other| play.start(*other));
            }
        });
        self.quiet(QUIET_MS);
        if alone {
            self.change("end", "the others start".into(), |play| {
                others.iter().for_each(|other| play.start(*other));
            });
            self.quiet(QUIET_MS);
        }
        self.settle_rolled_back();
    }

    /// The copies of a device that went back are made anew from the others.
    fn settle_rolled_back(&mut self) {
        let volumes = self.script.volumes.clone();
        if let Err(why) = self.cluster.wait_in_sync(&volumes, IN_SYNC) {
            self.find("not in sync", format!("after a device was rolled back: {why}"));
        }
        self.change("end", "all copies are in sync".into(), |play| play.world.rolled_back.clear());
    }

    /// Reads every block of every volume through every node: with the owner that there is, and with each node that has a copy as the
    /// owner.
    fn read_all(&mut self) -> Vec<Op> {
        let mut ops = self.read_through_all_nodes();
        for number in 0..self.script.volumes.len() {
            let volume = self.script.volumes[number].clone();
            let Some(samples) = self.cluster.sample(&self.script.volumes) else { continue };
            for host in samples[number].in_sync[0].clone() {
                let (code, text) =
                    self.cluster.command(host, &["volume", "attach", &volume.name, "--node", &name(host)]);
                if code != 0 {
                    self.find(
                        "attach",
                        format!("{} at host {host}, with nothing wrong: {text}", volume.name),
                    );
                    continue;
                }
                ops.extend(self.read_through(host, number, &volume));
            }
        }
        ops
    }

    fn read_through_all_nodes(&mut self) -> Vec<Op> {
        let mut ops = Vec::new();
        for number in 0..self.script.volumes.len() {
            let volume = self.script.volumes[number].clone();
            for host in 0..self.script.nodes {
                ops.extend(self.read_through(host, number, &volume));
            }
        }
        ops
    }

    fn read_through(&mut self, host: usize, number: usize, volume: &Volume) -> Vec<Op> {
        let (network, clock) = (self.cluster.network.clone(), self.clock);
        let read = || {
            network.enter(host).expect("the namespace is there, and this is root");
            read_blocks(host, number, volume, clock)
        };
        let ops = std::thread::scope(|scope| scope.spawn(read).join().expect("it does not panic"));
        if ops.len() < BLOCKS as usize {
            self.find(
                "not read",
                format!("only {} blocks of {} through host {host}", ops.len(), volume.name),
            );
        }
        ops
    }
}

/// Reads all blocks that clients use, as client 1000 and the number of the host.
fn read_blocks(host: usize, number: usize, volume: &Volume, clock: Clock) -> Vec<Op> {
    let mut ops = Vec::new();
    let mut connection: Option<Connection> = None;
    let mut begun = Instant::now();
    let mut block = 0;
    while block < BLOCKS && begun.elapsed() < FINAL_READ {
        let Some(open) = &mut connection else {
            connection = Connection::open(host, volume, clock).ok();
            std::thread::sleep(Duration::from_millis(if connection.is_some() { 0 } else { 100 }));
            continue;
        };
        let (invoked, connected) = (clock.now(), open.begun);
        match open.read(volume, block, &|| begun.elapsed() < FINAL_READ) {
            Some(value) => {
                let (action, ended, client) = (Action::Read(value), clock.now(), 1000 + host);
                let outcome = Outcome::Done;
                ops.push(Op {
                    client,
                    host,
                    node: host,
                    volume: number,
                    block,
                    action,
                    connected,
                    invoked,
                    ended,
                    outcome,
                });
                (block, begun) = (block + 1, Instant::now());
            }
            None => connection = None,
        }
    }
    ops
}
