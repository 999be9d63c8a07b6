//! Which format a file has, by its content.

use crate::ImportError;
use crate::text::shown;

/// What a file looks like from its beginning.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Format {
    /// fio's JSON, perhaps after lines of warnings.
    Json,
    /// DISKSPD's XML.
    Xml,
    /// DISKSPD's text.
    DiskspdText,
    /// A page of vdbench, of which `flatfile.html` has the results.
    Vdbench,
    /// elbencho's CSV of results.
    Elbencho,
    /// The text that HCIBench writes beside a result's directory.
    HciBench,
    /// A table.
    Csv,
}

/// Lines at the beginning that are read to detect the format: fio's warnings fit, and a table's header is far before it.
const LOOKED_AT: usize = 2_000;

/// The format of a text; `None` if it is none that is understood.
pub fn format(text: &str) -> Option<Format> {
    let lines = text.lines().map(str::trim).filter(|line| !line.is_empty());
    let first = lines.clone().next()?;
    if crate::vdbench::is_page(first) || lines.clone().take(LOOKED_AT).any(crate::vdbench::is_header) {
        return Some(Format::Vdbench);
    }
    if first.starts_with('<') {
        // fio in client mode begins each of its messages with the server's name: "<vm-1> Starting 4 processes".
        let known = ["<?xml", "<!", "<Results", "<Profile"].iter().any(|tag| first.starts_with(tag));
        let client = !known && lines.take(LOOKED_AT).any(|line| line.starts_with('{'));
        return Some(if client { Format::Json } else { Format::Xml });
    }
    if first.starts_with('{') {
        return Some(Format::Json);
    }
    if crate::elbencho::is_header(first) {
        return Some(Format::Elbencho);
    }
    // A table's own header decides before anything in its cells does.
    let header = lines.clone().nth(usize::from(crate::csv::stated_separator(first).is_some()));
    if header.is_some_and(crate::csv::is_header) {
        return Some(Format::Csv);
    }
    let seen: Vec<&str> = lines.take(LOOKED_AT).collect();
    if crate::hcibench::is_result(&seen) {
        return Some(Format::HciBench);
    }
    if crate::diskspd::text::is_result(&seen) {
        return Some(Format::DiskspdText);
    }
    // fio writes several formats into one file, if an option requests that.
    if seen.iter().any(|line| line.starts_with('{')) {
        return Some(Format::Json);
    }
    if is_terse(first) || is_for_people(&seen) {
        return None;
    }
    // A table with columns that cannot be used is still a table, and its reader names them.
    let fields = |line: &str, separator: char| line.matches(separator).count();
    let table = |separator: &char| {
        let next = seen.get(1).map_or(fields(first, *separator), |line| fields(line, *separator));
        fields(first, *separator) > 0 && fields(first, *separator) == next
    };
    [',', ';', '\t'].iter().any(table).then_some(Format::Csv)
}

/// Whether a line is of fio's terse output: the version of that format, fio's version, the job's name, ...
fn is_terse(line: &str) -> bool {
    let mut fields = line.split(';');
    fields.next().is_some_and(|version| matches!(version, "2" | "3" | "4" | "5"))
        && fields.next().is_some_and(|version| version.starts_with("fio-"))
}

/// Whether lines are of fio's output for people.
fn is_for_people(lines: &[&str]) -> bool {
    lines
        .iter()
        .any(|line| line.contains("(g=0): rw=") || line.contains("(groupid=") && line.contains("err="))
}

/// The error for a file of no known format.
pub(crate) fn unknown(file: &str, text: &str) -> ImportError {
    let mut lines = text.lines().map(str::trim).filter(|line| !line.is_empty());
    let first = lines.clone().next();
    let seen: Vec<&str> = lines.by_ref().take(LOOKED_AT).collect();
    let json = "measure with --output-format=json+ and --lat_percentiles=1, and give that output";
    if first.is_some_and(is_terse) {
        let problem = "this is fio's terse output (--minimal), which does not say depth or block size";
        return ImportError::new(file, problem, json);
    }
    if is_for_people(&seen) {
        return ImportError::new(file, "this is fio's output for people, which rounds its figures", json);
    }
    let problem = match first {
        Some(line) => format!("a file that begins \"{}\" is of no known format", shown(line)),
        None => "it is empty".to_string(),
    };
    ImportError::new(
        file,
        problem,
        "give results of loadline bench --json; fio's --output-format=json or json+; what DISKSPD prints, as XML (-Rxml) \
         or text; elbencho's --csvfile; vdbench's flatfile.html; HCIBench's …-res.txt; or CSV with columns such as \
         workers, profile, iops, latency_us",
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_format_is_known_by_its_beginning() {
        for (text, format_) in [
            ("\n  {\"fio version\": 1}", Some(Format::Json)),
            ("fio: this job has a warning\n{\n}", Some(Format::Json)),
            ("note: a, b\nnote: c\n{", Some(Format::Json)),
            ("<vm> Starting 5 processes\n<vm> \n{", Some(Format::Json)),
            ("<vm> \n{", Some(Format::Json)),
            ("<Results>", Some(Format::Xml)),
            ("<title>Vdbench output/flatfile.html</title><pre>\n*\n", Some(Format::Vdbench)),
            ("  tod  timestamp Run Interval reqrate rate\n", Some(Format::Vdbench)),
            ("ISO date,label,operation,IOPS [last]\n", Some(Format::Elbencho)),
            ("\nCommand Line: diskspd.exe -b4K x\n\nResults for timespan 1:\n", Some(Format::DiskspdText)),
            ("sep=;\nvms;iops\n1;2\n", Some(Format::Csv)),
            ("3;fio-3.33;job;0;0;1;2\n", None),
            ("3;fio-3.33;job;0;0;1;2\n{\n}\n", Some(Format::Json)),
            ("job: (groupid=0, jobs=1): err= 0: pid=1\n{\n}\n", Some(Format::Json)),
            ("<?xml version=\"1.0\"?>", Some(Format::Xml)),
            ("Datastore     = ds\n=====\nVMs\t\t= 8\nIOPS = 3 IO/S\n", Some(Format::HciBench)),
            ("vms,iops\n1,2\n", Some(Format::Csv)),
            ("iops\n2\n", Some(Format::Csv)),
            ("what,is,this\n", Some(Format::Csv)),
            ("what,is,this\n1,2,3\n", Some(Format::Csv)),
            ("job: (g=0): rw=read, bs=4K, ioengine=libaio\nfio-3.33\n", None),
            ("hello", None),
            ("", None),
        ] {
            assert_eq!(format(text), format_, "{text}");
        }
        assert!(unknown("f", "").to_string().contains("it is empty"));
        assert!(unknown("f", "3;fio-3.33;job;0;0;1;2").problem.contains("terse"));
        let people = "job: (g=0): rw=read, bs=4K, ioengine=libaio\nfio-3.33\n";
        assert!(unknown("f", people).problem.contains("for people"));
    }
}
