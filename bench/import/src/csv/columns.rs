//! What a column's name means.

/// What a column states.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum Column {
    Workers,
    Nodes,
    Profile,
    Condition,
    Repeat,
    /// Bytes in one of its unit.
    Block(f64),
    Threads,
    Outstanding,
    OutstandingPerThread,
    IoDepth,
    OutstandingPerWorker,
    ReadPercent,
    WritePercent,
    Seconds,
    RateIops,
    Iops,
    /// The unit as it is written, and the bytes in it.
    Throughput {
        unit: &'static str,
        bytes: f64,
    },
    /// What of the latencies, and the microseconds in one of its unit.
    Latency(Of, f64),
    LatencyOf,
    Errors,
    LostWorkers,
    CeilingIops,
    /// Bytes in one of its unit.
    CeilingThroughput(f64),
    StatedPercent,
    /// Known, distinguishes rows, and is needed for nothing else.
    Pattern,
    /// Known, distinguishes rows, and is needed for nothing else.
    Copies,
    Unknown(String),
}

/// Which figure of the latencies.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) enum Of {
    Mean,
    Min,
    Max,
    Percentile(f64),
}

impl Column {
    /// Whether both state the same thing, in whatever unit.
    pub(super) fn same_as(&self, other: &Column) -> bool {
        match (self, other) {
            (Column::Latency(a, _), Column::Latency(b, _)) => a == b,
            // A table may give throughput in more than one unit no more than IOPS twice.
            (Column::Unknown(a), Column::Unknown(b)) => a == b && !a.is_empty(),
            _ => std::mem::discriminant(self) == std::mem::discriminant(other),
        }
    }

    /// How it distinguishes rows, if that is not kept in their points.
    pub(super) fn apart(&self) -> Option<Apart> {
        match self {
            Column::Pattern | Column::Copies => Some(Apart::Always),
            Column::Nodes
            | Column::Threads
            | Column::Outstanding
            | Column::OutstandingPerThread
            | Column::IoDepth
            | Column::OutstandingPerWorker => Some(Apart::Alike),
            Column::Unknown(_) => Some(Apart::Unknown),
            _ => None,
        }
    }
}

/// How a column distinguishes rows whose points do not keep what it states. In the order in which they are checked.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Apart {
    /// Wherever rows of a load differ in it, they are different loads.
    Always,
    /// Only if without it they would be repeats: else it goes with what is kept, as nodes do with workers.
    Alike,
    /// The same, and it may as well be a result.
    Unknown,
}

/// A column's name that is refused: what is wrong with it, and what to do.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Refused {
    pub(super) problem: &'static str,
    pub(super) advice: String,
}

const NO_UNIT: &str = "does not say its unit";

const UNITS: [(&str, &str, f64); 7] = [
    ("bytes", "B/s", 1.0),
    ("kb", "KB/s", 1e3),
    ("kib", "KiB/s", 1024.0),
    ("mb", "MB/s", 1e6),
    ("mib", "MiB/s", 1048576.0),
    ("gb", "GB/s", 1e9),
    ("gib", "GiB/s", 1073741824.0),
];

/// What a column of this name states. A column that is needed and does not say its unit is an error: how to name it.
pub(super) fn column(name: &str) -> Result<Column, Refused> {
    let bits = has_bits(name);
    let name = plain(name);
    Ok(match name.as_str() {
        "workers" | "vms" | "vms_total" | "vm_count" => Column::Workers,
        "nodes" | "nodes_up" => Column::Nodes,
        "profile" | "load" | "workload" => Column::Profile,
        "condition" => Column::Condition,
        "repeat" => Column::Repeat,
        "block_kib" => Column::Block(1024.0),
        "block_bytes" => Column::Block(1.0),
        "threads" => Column::Threads,
        "outstanding" => Column::Outstanding,
        "outstanding_per_thread" => Column::OutstandingPerThread,
        "iodepth" => Column::IoDepth,
        "outstanding_per_worker" => Column::OutstandingPerWorker,
        "read_pct" | "read_percent" => Column::ReadPercent,
        "write_pct" | "write_percent" => Column::WritePercent,
        "seconds" => Column::Seconds,
        "rate_iops" => Column::RateIops,
        "iops" => Column::Iops,
        "latency_of" => Column::LatencyOf,
        "errors" => Column::Errors,
        "lost_workers" => Column::LostWorkers,
        "theoretical_iops" | "ceiling_iops" => Column::CeilingIops,
        "stated_percent" => Column::StatedPercent,
        "pattern" => Column::Pattern,
        "copies" => Column::Copies,
        _ => {
            let ceiling = name.strip_prefix("theoretical_").or_else(|| name.strip_prefix("ceiling_"));
            let bare = ceiling.unwrap_or(&name);
            let bare = bare.strip_prefix("throughput_").unwrap_or(bare);
            match throughput(bare)? {
                Some((unit, _)) if bits => {
                    let unit = unit.to_lowercase().replace("/s", "_per_s");
                    let advice = format!(
                        "are bits or bytes meant? Name it {unit} if its figures are bytes; divide bits by 8 first"
                    );
                    return Err(Refused { problem: "may be in bits or in bytes", advice });
                }
                Some((_, bytes)) if ceiling.is_some() => Column::CeilingThroughput(bytes),
                Some((unit, bytes)) => Column::Throughput { unit, bytes },
                None => match latency(&name)? {
                    Some((of, us)) => Column::Latency(of, us),
                    None => Column::Unknown(name),
                },
            }
        }
    })
}

/// A name with case, blanks and brackets evened out.
fn plain(name: &str) -> String {
    let name = name.trim().to_lowercase().replace("/sec", "/s").replace("/s", "_per_s");
    let name: String = name
        .chars()
        .filter(|c| !matches!(c, '(' | ')' | '[' | ']'))
        .map(|c| match c {
            ' ' | '-' => '_',
            // Both signs for micro.
            'µ' | 'μ' => 'u',
            other => other,
        })
        .collect();
    name.split('_').filter(|word| !word.is_empty()).collect::<Vec<_>>().join("_")
}

/// Whether it has a unit such as `Mb`, which are megabits to the letter and often megabytes.
fn has_bits(name: &str) -> bool {
    name.split(|c: char| !c.is_alphanumeric()).any(|word| matches!(word, "Kb" | "Mb" | "Gb"))
}

fn throughput(name: &str) -> Result<Option<(&'static str, f64)>, Refused> {
    for (unit, written, bytes) in UNITS {
        if name.strip_prefix(unit) == Some("_per_s") {
            return Ok(Some((written, bytes)));
        }
    }
    let bare = ["throughput", "bandwidth", "bw", "mbps", "gbps", "kbps", "mibps", "gibps"].contains(&name)
        || UNITS.iter().any(|(unit, _, _)| *unit == name);
    match bare {
        true => {
            let advice = "name it mb_per_s (10^6 bytes), mib_per_s (2^20 bytes), gb_per_s, gib_per_s, kb_per_s, \
                          kib_per_s or bytes_per_s";
            Err(Refused { problem: NO_UNIT, advice: advice.into() })
        }
        false => Ok(None),
    }
}

fn latency(name: &str) -> Result<Option<(Of, f64)>, Refused> {
    let mut words: Vec<&str> = name.split('_').collect();
    let unit = match words.last() {
        Some(&"ns") => Some(1e-3),
        Some(&"us") => Some(1.0),
        Some(&"ms") => Some(1e3),
        Some(&"s") => Some(1e6),
        _ => None,
    };
    if unit.is_some() {
        words.pop();
    }
    let count = words.len();
    words.retain(|word| !matches!(*word, "latency" | "lat"));
    let of = match words.as_slice() {
        [] if count == 1 => Of::Mean,
        ["mean" | "avg" | "average"] => Of::Mean,
        ["min"] => Of::Min,
        ["max"] => Of::Max,
        [one] => match percent(one, None) {
            Some(percent) => Of::Percentile(percent),
            None => return Ok(None),
        },
        [one, decimals] => match percent(one, Some(decimals)) {
            Some(percent) => Of::Percentile(percent),
            None => return Ok(None),
        },
        _ => return Ok(None),
    };
    match unit {
        Some(us) => Ok(Some((of, us))),
        None => {
            let advice = format!("name it {name}_us, {name}_ms, {name}_ns or {name}_s");
            Err(Refused { problem: NO_UNIT, advice })
        }
    }
}

/// `p99`, `p99.9`, or `p99` and `9`.
fn percent(word: &str, decimals: Option<&str>) -> Option<f64> {
    let digits = word.strip_prefix('p')?;
    let text = match decimals {
        Some(decimals) if decimals.bytes().all(|b| b.is_ascii_digit()) && !digits.contains('.') => {
            format!("{digits}.{decimals}")
        }
        Some(_) => return None,
        None => digits.to_string(),
    };
    crate::numbers::number(&text).filter(|percent| *percent > 0.0 && *percent < 100.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_carry_their_unit() {
        for (name, expected) in [
            ("VMs", Column::Workers),
            ("Throughput (MB/s)", Column::Throughput { unit: "MB/s", bytes: 1e6 }),
            ("gib_per_s", Column::Throughput { unit: "GiB/s", bytes: 1073741824.0 }),
            ("theoretical_throughput_gb_per_s", Column::CeilingThroughput(1e9)),
            ("Latency (µs)", Column::Latency(Of::Mean, 1.0)),
            ("mean_latency_ms", Column::Latency(Of::Mean, 1e3)),
            ("p99_9_us", Column::Latency(Of::Percentile(99.9), 1.0)),
            ("p99.99_ms", Column::Latency(Of::Percentile(99.99), 1e3)),
            ("max_ns", Column::Latency(Of::Max, 1e-3)),
            ("p100_us", Column::Unknown("p100_us".into())),
            ("remark", Column::Unknown("remark".into())),
        ] {
            assert_eq!(column(name), Ok(expected), "{name}");
        }
    }

    #[test]
    fn a_column_without_its_unit_is_refused() {
        for name in ["latency", "p99", "Mean", "lat", "throughput", "MB", "bandwidth", "mbps", "ceiling_gb"] {
            assert!(column(name).is_err(), "{name}: {:?}", column(name));
        }
        assert!(column("p99").unwrap_err().advice.contains("p99_us"));
    }

    #[test]
    fn units_that_are_bits_to_the_letter_are_refused() {
        for (name, bytes) in [
            ("throughput (Mb/s)", "mb_per_s"),
            ("Kb/s", "kb_per_s"),
            ("Gb/sec", "gb_per_s"),
            ("theoretical_Gb/s", "gb_per_s"),
        ] {
            let refused = column(name).unwrap_err();
            assert!(refused.problem.contains("bits"), "{name}: {refused:?}");
            assert!(refused.advice.contains(&format!("Name it {bytes} if")), "{name}: {refused:?}");
        }
        for name in ["MB/s", "mb/s", "mb_per_s", "throughput (GB/s)"] {
            assert!(matches!(column(name), Ok(Column::Throughput { .. })), "{name}");
        }
    }
}
