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
    /// The text that HCIBench writes beside a result's directory.
    HciBench,
    /// A table.
    Csv,
}

/// Lines at the beginning that are looked at: fio's warnings fit, and a table's header is far before it.
const LOOKED_AT: usize = 2_000;

/// The format of a text; `None` if it is none that is understood.
pub fn format(text: &str) -> Option<Format> {
    let lines = text.lines().map(str::trim).filter(|line| !line.is_empty());
    let first = lines.clone().next()?;
    if first.starts_with('<') {
        // fio in client mode begins each of its messages with the server's name: "<vm-1> Starting 4 processes".
        let known = ["<?xml", "<!", "<Results", "<Profile"].iter().any(|tag| first.starts_with(tag));
        let client = !known && lines.take(LOOKED_AT).any(|line| line.starts_with('{'));
        return Some(if client { Format::Json } else { Format::Xml });
    }
    if first.starts_with('{') {
        return Some(Format::Json);
    }
    // A table's own header decides before anything in its cells does.
    if crate::csv::is_header(first) {
        return Some(Format::Csv);
    }
    let seen: Vec<&str> = lines.take(LOOKED_AT).collect();
    if crate::hcibench::is_result(&seen) {
        return Some(Format::HciBench);
    }
    if seen.iter().any(|line| line.starts_with('{')) {
        return Some(Format::Json);
    }
    // A table with columns that cannot be used is still a table, and its reader says which they are.
    let fields = |line: &str, separator: char| line.matches(separator).count();
    let table = |separator: &char| {
        let next = seen.get(1).map_or(fields(first, *separator), |line| fields(line, *separator));
        fields(first, *separator) > 0 && fields(first, *separator) == next
    };
    [',', ';', '\t'].iter().any(table).then_some(Format::Csv)
}

/// What is said of a file that is nothing of that.
pub(crate) fn unknown(file: &str, text: &str) -> ImportError {
    let problem = match text.lines().map(str::trim).find(|line| !line.is_empty()) {
        Some(line) => format!("a file that begins \"{}\" is of no known format", shown(line)),
        None => "it is empty".to_string(),
    };
    ImportError::new(
        file,
        problem,
        "give CSV with columns such as workers, profile, iops, latency_us; fio's --output-format=json or json+; \
         DISKSPD's -Rxml or an XML profile; or HCIBench's …-res.txt",
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
        assert!(unknown("f", "").to_string().contains("json+"));
    }
}
