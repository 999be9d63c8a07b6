//! Fault scripts: what happens to which host, and when. All of a script follows from its seed; only the hosts that its roles stand
//! for are found when it runs.

use std::fmt;

/// The host that a fault is about.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum HostRole {
    /// The one that owns the first volume when the fault begins.
    Owner,
    /// One that has an in-sync copy of it and does not own it; any other than the owner if there is none.
    Member,
    /// One that has no in-sync copy of it; any other than the owner if there is none.
    Other,
}

/// A fault. Its end undoes it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Fault {
    /// Packets between two hosts are lost, in both directions.
    Cut(HostRole, HostRole),
    /// Packets from the first to the second are lost.
    OneWay(HostRole, HostRole),
    /// Packets between one host and all others are lost.
    Isolate(HostRole),
    /// All that one host sends is lost.
    Mute(HostRole),
    /// Two hosts refuse to send to each other: the host is unreachable.
    Refuse(HostRole, HostRole),
    /// The interface of the first to the second is down.
    Down(HostRole, HostRole),
    /// Packets between two hosts are lost and pass in turns, so many milliseconds each.
    Flap(HostRole, HostRole, Vec<u64>),
    /// No node can use the store.
    Store,
    /// Packets between one host and the store's hosts are lost: its node reaches all others, and not the store. Only of an etcd, as are
    /// the next two.
    OffStore(HostRole),
    /// The member of the etcd that leads loses all packets of the other members, and still gets those of the nodes.
    StoreLeader,
    /// SIGKILL of the member of the etcd that leads; the end starts it again.
    StoreMember,
    /// All interfaces of a host are down, those to the store's hosts too: the host is gone whole.
    Gone(HostRole),
    /// SIGKILL; the end starts the node again.
    Kill(HostRole),
    /// SIGTERM; the end starts the node again.
    Term(HostRole),
    /// SIGSTOP; the end sends SIGCONT.
    Freeze(HostRole),
    /// A configuration from before a member missed writes is put back under stopped nodes, and later the newest one.
    Restore,
    /// The device of a host is replaced by a copy from before it missed writes and got them; the host is then started alone first, or
    /// with the others.
    RollBack(HostRole, bool),
}

/// The main faults, in the order in which seeds have them.
pub(crate) const KINDS: [&str; 16] = [
    "cut",
    "one way",
    "isolate",
    "mute",
    "refuse",
    "flap",
    "store",
    "kill",
    "term",
    "freeze",
    "restore",
    "roll back",
    "off store",
    "store leader",
    "store member",
    "gone",
];

impl Fault {
    /// Its name in tables.
    pub(crate) fn kind(&self) -> &'static str {
        match self {
            Fault::Cut(..) => "cut",
            Fault::OneWay(..) => "one way",
            Fault::Isolate(_) => "isolate",
            Fault::Mute(_) => "mute",
            Fault::Refuse(..) => "refuse",
            Fault::Down(..) => "down",
            Fault::Flap(..) => "flap",
            Fault::Store => "store",
            Fault::OffStore(_) => "off store",
            Fault::StoreLeader => "store leader",
            Fault::StoreMember => "store member",
            Fault::Gone(_) => "gone",
            Fault::Kill(_) => "kill",
            Fault::Term(_) => "term",
            Fault::Freeze(_) => "freeze",
            Fault::Restore => "restore",
            Fault::RollBack(..) => "roll back",
        }
    }
}

/// Those of an etcd, or of a host that is gone whole: they come alone.
const OF_ETCD: [&str; 4] = ["off store", "store leader", "store member", "gone"];

/// A volume of a script.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Volume {
    pub(crate) name: String,
    pub(crate) copies: usize,
    pub(crate) stripes: usize,
    pub(crate) mib: usize,
}

/// What a step does.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Act {
    /// The fault of this number begins.
    Begin(usize),
    /// It ends.
    End(usize),
    /// The first volume is attached at a host.
    Attach(HostRole),
}

/// A step, and how long nothing happens after it, milliseconds.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Step {
    pub(crate) act: Act,
    pub(crate) then_ms: u64,
}

/// A script.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Script {
    pub(crate) seed: u64,
    /// The store is an etcd on hosts of its own; otherwise a file.
    pub(crate) etcd: bool,
    /// Clients stay connected for as long as they can, and wait for every answer: what they see is the service of requests, and not
    /// that of new connections.
    pub(crate) steady: bool,
    pub(crate) nodes: usize,
    pub(crate) volumes: Vec<Volume>,
    pub(crate) faults: Vec<Fault>,
    pub(crate) steps: Vec<Step>,
}

/// How long nothing happens before the service is judged, milliseconds: a little more than what it may take.
pub(crate) const QUIET_MS: u64 = 5_400;
/// Scripts begin no further fault after so many milliseconds.
const LONG_ENOUGH_MS: u64 = 13_000;

/// Numbers that look random, and are the same for the same seed (splitmix64).
pub(crate) struct Random(u64);

impl Random {
    pub(crate) fn new(seed: u64) -> Random {
        Random(seed.wrapping_mul(0xD1B5_4A32_D192_ED03) ^ 0x8CB9_2BA7_2F3D_8DD7)
    }

    pub(crate) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        mixed ^ (mixed >> 31)
    }

    /// From `low` to `high`, both included.
    pub(crate) fn within(&mut self, low: u64, high: u64) -> u64 {
        low + self.next() % (high - low + 1)
    }

    /// Whether something happens that does so once in `of` times.
    pub(crate) fn one_in(&mut self, of: u64) -> bool {
        self.next().is_multiple_of(of)
    }

    fn pick<T: Copy>(&mut self, of: &[T]) -> T {
        of[self.within(0, of.len() as u64 - 1) as usize]
    }
}

impl Script {
    /// The script of a seed. Sixteen seeds in a row have every kind of main fault once, and half of them an etcd.
    pub(crate) fn of(seed: u64) -> Script {
        let mut random = Random::new(seed);
        let kind = KINDS[(seed % KINDS.len() as u64) as usize];
        let nodes = if random.one_in(4) { 4 } else { 3 };
        // If the device of a single copy goes back in time, no other copy can show it.
        let least = if matches!(kind, "restore" | "roll back") { 2 } else { 1 };
        let copies =
            |random: &mut Random| if random.one_in(10) { least } else { random.within(2, 3) as usize };
        let volume = |number: usize, random: &mut Random| Volume {
            name: format!("disk-{number}"),
            copies: copies(random),
            stripes: if random.one_in(4) { 2 } else { 1 },
            mib: 16 << random.within(0, 2),
        };
        // Of a configuration that goes back, every volume must have missed something.
        let volumes = if kind == "restore" { 1 } else { random.within(1, 2) as usize };
        let volumes = (1..=volumes).map(|number| volume(number, &mut random)).collect();
        // A configuration that is put back is one of a file.
        let etcd = kind != "restore" && (seed.is_multiple_of(2) || OF_ETCD.contains(&kind));
        let (faults, steps) = (Vec::new(), Vec::new());
        let mut script = Script { seed, etcd, steady: false, nodes, volumes, faults, steps };
        let main = fault(kind, &mut random);
        script.main(main, &mut random);
        while script.length() < LONG_ENOUGH_MS {
            let kind = random.pick(&KINDS[..10]);
            let further = fault(kind, &mut random);
            script.main(further, &mut random);
        }
        script
    }

    /// Each half of a volume of one copy is at a host of its own, and these two do not reach each other. The third reaches both.
    pub(crate) fn halves_apart() -> Script {
        let volume = Volume { name: "halves".into(), copies: 1, stripes: 2, mib: 16 };
        let mut script = Script {
            seed: 0,
            etcd: false,
            steady: false,
            nodes: 3,
            volumes: vec![volume],
            faults: Vec::new(),
            steps: Vec::new(),
        };
        let cut = script.begin(Fault::Cut(HostRole::Owner, HostRole::Member), QUIET_MS);
        script.add(Act::End(cut), QUIET_MS);
        script
    }

    fn length(&self) -> u64 {
        self.steps.iter().map(|step| step.then_ms).sum()
    }

    fn add(&mut self, act: Act, then_ms: u64) {
        self.steps.push(Step { act, then_ms });
    }

    fn begin(&mut self, fault: Fault, then_ms: u64) -> usize {
        self.faults.push(fault);
        self.add(Act::Begin(self.faults.len() - 1), then_ms);
        self.faults.len() - 1
    }

    /// Adds a fault with its end, and sometimes another one or an attachment within it.
    fn main(&mut self, fault: Fault, random: &mut Random) {
        let hold = if random.one_in(3) { random.within(300, 4_000) } else { random.within(QUIET_MS, 7_500) };
        match fault {
            Fault::Restore | Fault::RollBack(..) => {
                self.begin(fault, QUIET_MS);
            }
            Fault::Store => {
                let store = self.begin(fault, random.within(100, 1_000));
                let other = match random.within(0, 3) {
                    0 | 1 => Fault::Kill(random.pick(&[HostRole::Owner, HostRole::Member])),
                    2 => Fault::Isolate(random.pick(&[HostRole::Owner, HostRole::Member])),
                    _ => Fault::Freeze(HostRole::Member),
                };
                let other = self.begin(other, random.within(1_500, 5_000));
                self.add(Act::End(store), QUIET_MS);
                self.add(Act::End(other), QUIET_MS);
            }
            fault => {
                let link = !matches!(fault, Fault::Kill(_) | Fault::Term(_) | Fault::Freeze(_));
                // What is to be expected where a part of the etcd fails and something else too is not said.
                let alone = OF_ETCD.contains(&fault.kind());
                let both = !alone && random.one_in(4);
                let attach = link && !alone && random.one_in(3);
                let first = self.begin(fault, if both || attach { random.within(200, 2_500) } else { hold });
                if attach {
                    self.add(
                        Act::Attach(random.pick(&[HostRole::Owner, HostRole::Member, HostRole::Member])),
                        hold,
                    );
                }
                if both {
                    let second = match (link, random.within(0, 2)) {
                        (true, 0) => Fault::Kill(HostRole::Other),
                        (true, 1) => Fault::Freeze(HostRole::Member),
                        (true, _) => Fault::Store,
                        (false, 0) => Fault::Store,
                        (false, _) => Fault::Cut(HostRole::Owner, HostRole::Member),
                    };
                    let second = self.begin(second, hold);
                    let (one, other) = if random.one_in(2) { (first, second) } else { (second, first) };
                    self.add(Act::End(one), random.within(100, 3_000));
                    self.add(Act::End(other), QUIET_MS);
                } else {
                    let rest = if !alone && random.one_in(3) { random.within(100, 2_000) } else { QUIET_MS };
                    self.add(Act::End(first), rest);
                }
            }
        }
    }
}

fn fault(kind: &str, random: &mut Random) -> Fault {
    let anyone = [HostRole::Owner, HostRole::Owner, HostRole::Member, HostRole::Other];
    let pairs = [
        (HostRole::Owner, HostRole::Member),
        (HostRole::Owner, HostRole::Other),
        (HostRole::Owner, HostRole::Other),
        (HostRole::Member, HostRole::Owner),
        (HostRole::Other, HostRole::Owner),
        (HostRole::Member, HostRole::Other),
    ];
    let (a, b) = random.pick(&pairs);
    match kind {
        "cut" => Fault::Cut(a, b),
        "one way" => Fault::OneWay(a, b),
        "isolate" => Fault::Isolate(random.pick(&anyone)),
        "mute" => Fault::Mute(random.pick(&anyone)),
        "refuse" if random.one_in(2) => Fault::Refuse(a, b),
        "refuse" => Fault::Down(a, b),
        "flap" => {
            let turns = 2 * random.within(2, 5);
            Fault::Flap(a, b, (0..turns).map(|_| random.within(100, 1_800)).collect())
        }
        "store" => Fault::Store,
        "kill" => Fault::Kill(random.pick(&anyone)),
        "term" => Fault::Term(random.pick(&anyone)),
        "freeze" => Fault::Freeze(random.pick(&anyone)),
        "restore" => Fault::Restore,
        "off store" => Fault::OffStore(random.pick(&anyone)),
        "store leader" => Fault::StoreLeader,
        "store member" => Fault::StoreMember,
        "gone" => Fault::Gone(random.pick(&anyone)),
        _ => Fault::RollBack(random.pick(&[HostRole::Owner, HostRole::Member]), random.one_in(2)),
    }
}

impl fmt::Display for Script {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let store = if self.etcd { "an etcd" } else { "a file" };
        writeln!(f, "seed {}: {} nodes, the store is {store}", self.seed, self.nodes)?;
        for Volume { name, copies, stripes, mib } in &self.volumes {
            writeln!(f, "  {name}: {copies} copies, {stripes} stripes, {mib} MiB")?;
        }
        for Step { act, then_ms } in &self.steps {
            match act {
                Act::Begin(number) => write!(f, "  begin {:?}", self.faults[*number])?,
                Act::End(number) => write!(f, "  end {:?}", self.faults[*number])?,
                Act::Attach(role) => write!(f, "  attach disk-1 at {role:?}")?,
            }
            writeln!(f, ", then {:.1} s", *then_ms as f64 / 1e3)?;
        }
        Ok(())
    }
}

#[test]
fn a_seed_has_one_script_and_sixteen_have_all_kinds() {
    for seed in 0..500 {
        let script = Script::of(seed);
        assert_eq!(script, Script::of(seed));
        assert_eq!(
            script.faults[0].kind(),
            match KINDS[seed as usize % KINDS.len()] {
                "refuse" if matches!(script.faults[0], Fault::Down(..)) => "down",
                kind => kind,
            }
        );
        // Every fault ends, once and after it begins.
        for number in 0..script.faults.len() {
            let at = |act: Act| script.steps.iter().position(|step| step.act == act);
            let (begin, end) = (at(Act::Begin(number)), at(Act::End(number)));
            let alone = matches!(script.faults[number], Fault::Restore | Fault::RollBack(..));
            assert!(begin.is_some() && if alone { end.is_none() } else { end > begin }, "{script}");
        }
        assert!(script.length() < 40_000, "{script}");
    }
}
