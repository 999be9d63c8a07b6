//! DISKSPD's results: XML (`-Rxml`) here, text (`-Rtext`, what it prints unless told otherwise) in [`text`].
//!
//! A result in XML has its profile in it, and after it one `TimeSpan` of results for each of the profile's. Bytes and I/Os
//! are counted for each thread and target and add up; latencies, percentiles and the series are over all of them.
//! Percentile 0 is the smallest latency and 100 the largest. A profile alone, as `-X` takes it, holds no results and is
//! refused.
//!
//! Source: DISKSPD's own `XmlResultParser.cpp`, `Common.cpp` and `diskspd.xsd`, versions 2.0 to 2.2.

mod load;
pub mod text;

use loadline_measure::audit::{Finding, FindingKind};
use loadline_measure::point::{LatencyOf, Point, SeriesPoint, Stated, Throughput};
use roxmltree::Node;

use crate::curves::Alike;
use crate::numbers::{deep_enough, is_figure, number, parse, shallow};
use crate::text::{counted, shown};
use crate::xml::{child, children, missing, number_in, place, text_in, whole_in};
use crate::{ImportError, Imported, xml};

/// More time spans than one run measures.
const MOST_SPANS: usize = 1_000;

/// Reads a result.
pub(crate) fn read(file: &str, text: &str) -> Result<Imported, ImportError> {
    let document = xml::parse(file, text)?;
    let root = document.root_element();
    let spans_in_all = root.descendants().filter(|node| node.has_tag_name("TimeSpan")).count();
    if spans_in_all > 2 * MOST_SPANS {
        let problem = format!("more than {MOST_SPANS} time spans");
        return Err(ImportError::new(file, problem, "give one run of DISKSPD in each file"));
    }
    let mut findings = Vec::new();
    match root.tag_name().name() {
        "Results" => {}
        "Profile" => {
            return Err(ImportError::new(
                file,
                "this is an XML profile: what DISKSPD is given to run (-X), with no results in it",
                "run it with diskspd -X and -Rxml, and give what that prints",
            ));
        }
        other => {
            let problem = format!("<{}> is no result of DISKSPD, which begins with <Results>", shown(other));
            return Err(ImportError::new(file, problem, "give the output of DISKSPD with -Rxml"));
        }
    }
    let (points, alike) = results(file, root, &mut findings)?.into_iter().unzip();
    let imported = Imported { format: "DISKSPD XML", points, alike, findings };
    if imported.points.is_empty() {
        let advice = "give a complete result of DISKSPD with -Rxml";
        return Err(ImportError::new(file, "it has no <TimeSpan>", advice));
    }
    Ok(imported)
}

/// The time spans of a profile.
fn spans<'a, 'input>(profile: Option<Node<'a, 'input>>) -> Vec<Node<'a, 'input>> {
    let spans = profile.and_then(|profile| child(profile, "TimeSpans"));
    spans.into_iter().flat_map(|spans| children(spans, "TimeSpan")).collect()
}

/// The points of a result, and what each shares with others of its curve.
fn results(
    file: &str,
    root: Node,
    findings: &mut Vec<Finding>,
) -> Result<Vec<(Point, Option<Alike>)>, ImportError> {
    let declared = spans(child(root, "Profile"));
    let measured: Vec<Node> = children(root, "TimeSpan").collect();
    let computer =
        child(root, "System").and_then(|system| text_in(system, "ComputerName")).unwrap_or_default();
    if !declared.is_empty() && declared.len() != measured.len() {
        findings.push(Finding::doubt(
            FindingKind::MissingIntervals,
            format!("results of the {} of the profile", counted(declared.len(), "time span", "time spans")),
            format!("{} of them", measured.len()),
            "DISKSPD was stopped, or the file was cut. Results and loads are put together in their order.",
        ));
    }
    let mut points = Vec::new();
    let mut dropped = 0;
    for (at, span) in measured.into_iter().enumerate() {
        let (mut point, alike) = match declared.get(at) {
            Some(span) => load::point(&load::span(file, *span)?, &place(file, *span), findings),
            None => (Point { workers: Some(1), ..Point::default() }, None),
        };
        point.place = format!("{}, time span {}", place(file, span), at + 1);
        dropped += measure(file, span, &mut point, findings)?;
        let alike = alike.map(|alike| Alike { key: format!("{computer} {}", alike.key), ..alike });
        points.push((point, alike));
    }
    findings.extend(shallow(dropped));
    Ok(points)
}

/// What a time span measured; returns how many percentiles were left out.
fn measure(
    file: &str,
    span: Node,
    point: &mut Point,
    findings: &mut Vec<Finding>,
) -> Result<usize, ImportError> {
    point.window_s = None;
    if let Some(error) = text_in(span, "Error") {
        point.lost_workers = 1;
        findings.push(Finding::doubt(
            FindingKind::LostWorkers,
            "a measurement",
            format!("in {} DISKSPD reports: {}", point.place, shown(error)),
            "It was stopped before its measurement began. Run it again.",
        ));
        return Ok(0);
    }
    let time = text_in(span, "TestTimeSeconds").and_then(|text| parse(text, 1.0));
    let time = time.filter(|time| time.value > 0.0).ok_or_else(|| missing(file, span, "TestTimeSeconds"))?;
    point.window_s = Some(time.value);
    let (mut ios, mut bytes, mut idle, mut threads) = (0_u64, 0_u64, 0_usize, 0_usize);
    for thread in children(span, "Thread") {
        let mut of_thread = 0_u64;
        for target in children(thread, "Target") {
            let either = |whole: &str, parts: [&str; 2]| -> Result<u64, ImportError> {
                match whole_in(file, target, whole)? {
                    Some(count) => Ok(count),
                    None => {
                        let [reads, writes] =
                            [whole_in(file, target, parts[0])?, whole_in(file, target, parts[1])?];
                        let sum = reads.unwrap_or(0).checked_add(writes.unwrap_or(0));
                        let stated = reads.is_some() || writes.is_some();
                        sum.filter(|_| stated).ok_or_else(|| missing(file, target, whole))
                    }
                }
            };
            of_thread = of_thread.saturating_add(either("IOCount", ["ReadCount", "WriteCount"])?);
            bytes = bytes.saturating_add(either("BytesCount", ["ReadBytes", "WriteBytes"])?);
        }
        threads += 1;
        idle += usize::from(of_thread == 0);
        ios = ios.saturating_add(of_thread);
    }
    if threads == 0 {
        return Err(missing(file, span, "Thread"));
    }
    if idle > 0 {
        point.lost_workers = u32::from(idle == threads);
        findings.push(Finding::doubt(
            FindingKind::LostWorkers,
            format!("I/O of {}", counted(threads, "thread", "threads")),
            format!("{idle} did none in {}", point.place),
            "They could not open their target, failed, or were held back. See DISKSPD's messages.",
        ));
    }
    let rate = |count: u64| -> Result<Stated, ImportError> {
        let value = count as f64 / time.value;
        // The counts are exact; the time is rounded to hundredths of a second.
        let stated = Stated { value, half_digit: value * time.rounding() };
        Some(stated).filter(|stated| is_figure(stated.value)).ok_or_else(|| {
            ImportError::new(
                place(file, span),
                "its counts are out of bounds",
                "give the XML as DISKSPD wrote it",
            )
        })
    };
    point.iops = Some(rate(ios)?);
    let bytes_per_s = rate(bytes)?;
    point.throughput = Some(Throughput { bytes_per_s, unit: "bytes/s".into(), unit_bytes: 1.0 });
    point.samples = Some(ios);
    if let Some(iops) = child(span, "Iops") {
        point.series = series(iops);
    }
    match child(span, "Latency") {
        Some(latency) => latencies(file, latency, point),
        None => Ok(0),
    }
}

/// Mean, extremes and percentiles; of all I/Os, or of the only kind that is stated.
fn latencies(file: &str, latency: Node, point: &mut Point) -> Result<usize, ImportError> {
    let of = [("Total", LatencyOf::All), ("Read", LatencyOf::Read), ("Write", LatencyOf::Write)];
    let stated = |kind: &str| text_in(latency, &format!("Average{kind}Milliseconds")).is_some();
    let Some((kind, of)) = of.into_iter().find(|(kind, _)| stated(kind)) else { return Ok(0) };
    let us = |node: Node, name: &str| -> Result<Option<Stated>, ImportError> {
        number_in(file, node, name)?;
        Ok(text_in(node, name).and_then(|text| parse(text, 1e3)))
    };
    point.latency_of = of;
    point.mean_us = us(latency, &format!("Average{kind}Milliseconds"))?;
    if of != LatencyOf::All {
        // How many of the I/Os they are of is not kept apart.
        point.samples = None;
    }
    let mut dropped = 0;
    for bucket in children(latency, "Bucket") {
        let percent = number_in(file, bucket, "Percentile")?.filter(|percent| *percent <= 100.0);
        let value = us(bucket, &format!("{kind}Milliseconds"))?;
        let (Some(percent), Some(value)) = (percent, value) else { continue };
        if percent == 0.0 {
            point.min_us = Some(value);
        } else if percent == 100.0 {
            point.max_us = Some(value);
        } else if point.samples.is_some_and(|samples| deep_enough(samples, percent)) {
            point.percentiles_us.push((percent, value));
        } else {
            dropped += 1;
        }
    }
    point.percentiles_us.sort_by(|a, b| a.0.total_cmp(&b.0));
    Ok(dropped)
}

/// The series over all targets. A part that cannot be read ends it: what follows would stand at the wrong time.
fn series(iops: Node) -> Vec<SeriesPoint> {
    let part = |bucket: Node| {
        let of = |name: &str| bucket.attribute(name).and_then(number);
        let (reads, writes) = (of("Read")?, of("Write")?);
        let total = reads + writes;
        let mean_us = match (of("ReadAvgLatencyMilliseconds"), of("WriteAvgLatencyMilliseconds")) {
            (Some(read), Some(write)) if total > 0.0 && (read > 0.0 || write > 0.0) => {
                Some(1e3 * (read * reads + write * writes) / total)
            }
            _ => None,
        };
        let at_s = of("SampleMillisecond")? / 1e3;
        Some(SeriesPoint { at_s, iops: total, mean_us: mean_us.filter(|mean| is_figure(*mean)) })
    };
    let mut last = 0.0;
    let parts = children(iops, "Bucket").map_while(part);
    parts.take_while(|part| part.at_s > std::mem::replace(&mut last, part.at_s)).collect()
}
