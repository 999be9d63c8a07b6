//! Loads by the names that people know: `4k-randread`, `8k-70-30`, `oltp`, and the workloads of VMFleet and HCIBench.
//!
//! Sources:
//! - VMFleet: `Frameworks/VMFleet/Profile.psm1` of github.com/microsoft/diskspd, which gives each workload as DISKSPD's
//!   XML and as the command line from which the XML is derived. Its General and Peak have no block size and no share of
//!   writes of their own; here they have those of the derived command line (4 KiB, reads only). Its VDI and SQL are two
//!   loads at once. A rate there is for each thread; here it is the sum.
//! - HCIBench: `easy-run.rb`, the four workloads of "Easy Run" (`4k70r`, `4k100r`, `8k50r`, `256k0r`) on machines of 8
//!   disks, with 32 I/Os outstanding in each machine; a quarter of that for 256 KiB.
//! - `oltp`: 8 KiB, 70 % reads, random is what the published study of Azure Stack HCI (4 nodes) took for transactions.
//! - `sql` and `vdi`: VMFleet's in one load without a limit on the rate, on the whole disk.

use loadline_base::nearest::nearest;
use loadline_base::units::{ByteSize, Rate};

use crate::{Arrival, Extent, HotSpot, Invocation, OfferedRate, Pattern, Profile, ProfileError};

/// A load with a name that people know.
#[derive(Debug, Clone, Copy)]
pub struct KnownProfile {
    /// The name, in lower case.
    pub name: &'static str,
    /// Other names of the same load, in lower case.
    pub aliases: &'static [&'static str],
    /// What it is, in one line.
    pub what: &'static str,
    load: Load,
}

#[derive(Debug, Clone, Copy)]
enum Load {
    One(fn() -> Profile),
    /// Two loads at once, by their names.
    Together([&'static str; 2]),
}

/// How a name of the form `4k-randread` is made, in one line each: the form, and what it means.
pub const FORMS: [(&str, &str); 3] = [
    (
        "<SIZE>-randread, -randwrite",
        "random reads or writes of that size, 32 outstanding in one thread: 4k-randread",
    ),
    ("<SIZE>-read, -write", "sequential ones (or -seqread, -seqwrite): 256k-write, 1m-read"),
    ("<SIZE>-<READS>-<WRITES>", "random, so many percent reads and writes: 8k-70-30, 4k-50-50"),
];

/// Every known profile, in the order in which a person should see them.
pub fn known() -> &'static [KnownProfile] {
    &KNOWN
}

const KNOWN: [KnownProfile; 15] = [
    KnownProfile {
        name: "oltp",
        aliases: &[],
        what: "transactions: 8 KiB random, 70 % reads, 32 outstanding",
        load: Load::One(|| load(8, 1, 32, 30)),
    },
    KnownProfile {
        name: "sql",
        aliases: &[],
        what: "VMFleet's SQL without its log, as fast as it goes: 8 KiB random with hot spots, 70 % reads, durable writes",
        load: Load::One(|| hot(durable(load(8, 4, 32, 30)))),
    },
    KnownProfile {
        name: "vdi",
        aliases: &[],
        what: "VMFleet's VDI in one load: 20 KiB (mean of 8 and 32), half reads, half random with hot spots, durable writes",
        load: Load::One(|| hot(mixed(50, durable(load(20, 2, 8, 50))))),
    },
    KnownProfile {
        name: "vmfleet-general",
        aliases: &["general"],
        what: "4 KiB random reads, 95 % of them on 5 % of the disk, 4 % on the next 10 %, 32 outstanding",
        load: Load::One(|| hot(durable(load(4, 1, 32, 0)))),
    },
    KnownProfile {
        name: "vmfleet-peak",
        aliases: &["peak"],
        what: "4 KiB random reads all over the disk, 32 outstanding",
        load: Load::One(|| durable(load(4, 1, 32, 0))),
    },
    KnownProfile {
        name: "vmfleet-vdi",
        aliases: &[],
        what: "desktops, two loads at once: vmfleet-vdi-read and vmfleet-vdi-write",
        load: Load::Together(["vmfleet-vdi-read", "vmfleet-vdi-write"]),
    },
    KnownProfile {
        name: "vmfleet-vdi-read",
        aliases: &[],
        what: "8 KiB reads, 80 % random with hot spots, 6 IOPS, on the first 8 GiB",
        load: Load::One(|| {
            paced(6, hot(mixed(80, Profile { working_set: gib(8), ..durable(load(8, 1, 8, 0)) })))
        }),
    },
    KnownProfile {
        name: "vmfleet-vdi-write",
        aliases: &[],
        what: "32 KiB durable writes, 20 % random with hot spots, 6 IOPS, on the first 10 GiB",
        load: Load::One(|| {
            paced(6, hot(mixed(20, Profile { working_set: gib(10), ..durable(load(32, 1, 8, 100)) })))
        }),
    },
    KnownProfile {
        name: "vmfleet-sql",
        aliases: &[],
        what: "a database, two loads at once: vmfleet-sql-oltp and vmfleet-sql-log",
        load: Load::Together(["vmfleet-sql-oltp", "vmfleet-sql-log"]),
    },
    KnownProfile {
        name: "vmfleet-sql-oltp",
        aliases: &[],
        what: "8 KiB random with hot spots, 70 % reads, durable writes, 6000 IOPS, from 5 GiB on",
        load: Load::One(|| {
            paced(6000, hot(Profile { base_offset: ByteSize(5 << 30), ..durable(load(8, 4, 32, 30)) }))
        }),
    },
    KnownProfile {
        name: "vmfleet-sql-log",
        aliases: &[],
        what: "32 KiB sequential durable writes, one at a time, 300 IOPS, on the first 5 GiB",
        load: Load::One(|| {
            paced(300, Profile { working_set: gib(5), ..durable(sequential(load(32, 1, 1, 100))) })
        }),
    },
    KnownProfile {
        name: "hcibench-4k70r",
        aliases: &["4k70r"],
        what: "4 KiB random, 70 % reads, 4 outstanding on each disk",
        load: Load::One(|| load(4, 1, 4, 30)),
    },
    KnownProfile {
        name: "hcibench-4k100r",
        aliases: &["4k100r"],
        what: "4 KiB random reads, 4 outstanding on each disk",
        load: Load::One(|| load(4, 1, 4, 0)),
    },
    KnownProfile {
        name: "hcibench-8k50r",
        aliases: &["8k50r"],
        what: "8 KiB random, 50 % reads, 4 outstanding on each disk",
        load: Load::One(|| load(8, 1, 4, 50)),
    },
    KnownProfile {
        name: "hcibench-256k0r",
        aliases: &["256k0r"],
        what: "256 KiB sequential writes, one at a time on each disk",
        load: Load::One(|| sequential(load(256, 1, 1, 100))),
    },
];

fn load(kib: u64, threads: u32, outstanding: u32, write_percent: u8) -> Profile {
    Profile { block_size: ByteSize::kib(kib), threads, outstanding, write_percent, ..Profile::default() }
}

fn durable(profile: Profile) -> Profile {
    Profile { write_through: true, ..profile }
}

fn sequential(profile: Profile) -> Profile {
    Profile { pattern: Pattern::Sequential, ..profile }
}

fn mixed(random_percent: u8, profile: Profile) -> Profile {
    Profile { pattern: Pattern::Mixed { random_percent }, ..profile }
}

/// VMFleet's distribution: `-rdpct95/5:4/10`.
fn hot(profile: Profile) -> Profile {
    let spot = |io_percent, percent| HotSpot { io_percent, extent: Extent::Percent(percent) };
    Profile { hot_spots: vec![spot(95, 5.0), spot(4, 10.0)], ..profile }
}

fn paced(iops: u32, profile: Profile) -> Profile {
    let rate = OfferedRate { rate: Rate::Iops(iops.into()), arrival: Arrival::Uniform };
    Profile { rate: Some(rate), ..profile }
}

fn gib(number: u64) -> Option<Extent> {
    Some(Extent::Bytes(ByteSize(number << 30)))
}

/// Whether a name is one of those that people know, and not one of letters such as `B4-T2-O32-W0-PR`.
pub fn is_known(name: &str) -> bool {
    profile(name).is_some()
}

fn find(name: &str) -> Option<&'static KnownProfile> {
    let is = |known: &str| known.eq_ignore_ascii_case(name);
    KNOWN.iter().find(|known| is(known.name) || known.aliases.iter().any(|alias| is(alias)))
}

/// The one load that a known name says; `None` if the name has none of the known forms.
pub(crate) fn profile(name: &str) -> Option<Result<Profile, ProfileError>> {
    match find(name).map(|known| known.load) {
        Some(Load::One(load)) => Some(Ok(load())),
        Some(Load::Together([first, second])) => Some(Err(ProfileError::unsupported(
            format!("profile name \"{}\"", name.escape_debug()),
            "it is two loads at once",
            format!("give one of them, {first} or {second}, or run both at the same time"),
        ))),
        None => of_a_form(name),
    }
}

/// The loads that a known name says, one or two, each with its name; `None` if the name has none of the known forms.
pub(crate) fn invocations(name: &str) -> Option<Result<Vec<Invocation>, ProfileError>> {
    let called =
        |profile: Profile, name: &str| Invocation { name: Some(name.into()), ..Invocation::of(profile) };
    match find(name) {
        Some(KnownProfile { load: Load::Together(names), .. }) => {
            let both = names.iter().filter_map(|name| profile(name).map(|load| Ok(called(load?, name))));
            Some(both.collect())
        }
        Some(known) => profile(name).map(|load| Ok(vec![called(load?, known.name)])),
        None => of_a_form(name).map(|load| Ok(vec![called(load?, &name.to_ascii_lowercase())])),
    }
}

/// `4k-randread`, `1m-write` or `8k-70-30`.
fn of_a_form(name: &str) -> Option<Result<Profile, ProfileError>> {
    let name = name.to_ascii_lowercase();
    let (size, rest) = name.split_once('-')?;
    let digits = size.strip_suffix(['k', 'm'])?;
    let unit = if size.ends_with('k') { ByteSize::KIB } else { ByteSize::MIB };
    if digits.is_empty() || !digits.bytes().all(|c| c.is_ascii_digit()) {
        return None;
    }
    let fault = |problem: &str, advice: &str| {
        Some(Err(ProfileError::syntax(format!("profile name \"{name}\""), problem, advice)))
    };
    let bytes = digits.parse::<u64>().ok().and_then(|number| number.checked_mul(unit.bytes()));
    let Some(bytes) = bytes else {
        return fault("the block size is too large", "give at most 64m");
    };
    let (pattern, write_percent) = match rest {
        "randread" => (Pattern::Random, 0),
        "randwrite" => (Pattern::Random, 100),
        "read" | "seqread" => (Pattern::Sequential, 0),
        "write" | "seqwrite" => (Pattern::Sequential, 100),
        _ => {
            let shares = rest
                .split_once('-')
                .and_then(|(reads, writes)| Some((reads.parse::<u8>().ok()?, writes.parse::<u8>().ok()?)));
            match shares {
                Some((reads, writes)) if u16::from(reads) + u16::from(writes) == 100 => {
                    (Pattern::Random, writes)
                }
                Some(_) => {
                    let advice = "give percents of reads and of writes that make 100, such as 8k-70-30";
                    return fault("reads and writes do not make 100 %", advice);
                }
                None => {
                    let problem = format!("\"{}\" is no direction", rest.escape_debug());
                    let advice =
                        "write randread, randwrite, read, write, or shares such as 70-30 after the size";
                    return fault(&problem, advice);
                }
            }
        }
    };
    let profile = Profile { block_size: ByteSize(bytes), write_percent, pattern, ..Profile::default() };
    Some(profile.validate().map(|()| profile))
}

/// That nothing is called so, with the name that was probably meant.
pub(crate) fn unknown(name: &str) -> ProfileError {
    let names = KNOWN.iter().flat_map(|known| known.aliases.iter().chain([&known.name])).copied();
    let meant = match nearest(name, names) {
        Some(meant) => format!("did you mean {meant}? "),
        None => String::new(),
    };
    let shown: String = name.chars().take(40).collect();
    ProfileError::syntax(
        format!("profile name \"{}\"", shown.escape_debug()),
        "there is no such profile",
        format!("{meant}`loadline profile list` shows the names; {}", crate::grammar::GRAMMAR),
    )
}
