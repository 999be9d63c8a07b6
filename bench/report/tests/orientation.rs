//! `docs/explanation/orientation.md` lists what `known.toml` has, entry by entry.

use std::fs;
use std::path::PathBuf;

use loadline_base::figures::thousands;
use loadline_report::orientation::CAVEAT;
use loadline_report::orientation::known::{AccessPattern, Figure, Known, Source, known};

const BEGIN: &str =
    "<!-- The tables are made of known.toml by a test: bench/report/tests/orientation.rs -->\n";
const END: &str = "<!-- End of the tables -->\n";

fn sources(sources: &[Source]) -> String {
    let one = |source: &Source| match source.address.strip_prefix("docs/explanation/") {
        Some(page) => format!("[{}]({page})", source.title),
        None if source.address.starts_with("https://") => format!("[{}]({})", source.title, source.address),
        None => format!("{} ({})", source.title, source.address),
    };
    sources.iter().map(one).collect::<Vec<_>>().join("; ")
}

fn load(figure: &Figure) -> String {
    let block = figure.block.map(|block| format!("{block} ")).unwrap_or_default();
    let order = if figure.pattern == AccessPattern::Random { "random" } else { "sequential" };
    let mix = match figure.write_percent {
        0 => "reads".into(),
        100 => "writes".into(),
        percent => format!("{}/{percent}", 100 - percent),
    };
    format!("{block}{order} {mix}")
}

fn figure(figure: &Figure) -> String {
    let mut text = match (figure.iops, figure.mb_per_s) {
        (Some(iops), _) => format!("{} IOPS", thousands(iops)),
        (_, Some(mb)) => format!("{} MB/s", thousands(mb)),
        _ => String::new(),
    };
    if let Some(ms) = figure.mean_ms {
        text.push_str(&format!(", mean {ms} ms"));
    }
    if let Some(ms) = figure.within_ms {
        text.push_str(&format!(" within {ms} ms"));
    }
    text
}

fn figures(all: &[Figure]) -> String {
    all.iter().map(|one| format!("{}: {}", load(one), figure(one))).collect::<Vec<_>>().join("<br>")
}

fn tables(known: &Known) -> String {
    let mut text = String::from(
        "\n### Drives\n\n| drive | figures | conditions | source |\n| --- | --- | --- | --- |\n",
    );
    for drive in &known.drive {
        let row = (figures(&drive.load), sources(&drive.sources));
        text.push_str(&format!("| {} | {} | {} | {} |\n", drive.name, row.0, drive.conditions, row.1));
    }
    text.push_str("\n### Clusters\n\n| cluster | nodes | figures of all nodes | conditions | source |\n");
    text.push_str("| --- | ---: | --- | --- | --- |\n");
    for cluster in &known.cluster {
        let row = (figures(&cluster.load), sources(&cluster.sources));
        let (name, nodes, conditions) = (&cluster.name, cluster.nodes, &cluster.conditions);
        text.push_str(&format!("| {name} | {nodes} | {} | {conditions} | {} |\n", row.0, row.1));
    }
    text.push_str(
        "\n### Machines\n\n| kind | one of them | conditions | source |\n| --- | --- | --- | --- |\n",
    );
    for machine in &known.machine {
        let one = match (&machine.needs, machine.given) {
            (Some(needs), _) => format!("needs {} of {}", figure(needs), load(needs)),
            (_, Some(given)) => {
                format!("is given {} IOPS and {} MB/s", thousands(given.iops), thousands(given.mb_per_s))
            }
            _ => String::new(),
        };
        let row = (&machine.name, one, &machine.conditions, sources(&machine.sources));
        text.push_str(&format!("| {} | {} | {} | {} |\n", row.0, row.1, row.2, row.3));
    }
    text.push('\n');
    text
}

/// To bring the page up to date: run this test with `UPDATE_DOCS=1` in the environment.
#[test]
fn the_page_lists_every_published_figure() {
    let path = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../docs/explanation/orientation.md");
    let page = fs::read_to_string(&path).unwrap();
    let (before, rest) = page.split_once(BEGIN).expect("where the tables begin");
    let (there, after) = rest.split_once(END).expect("where the tables end");
    let tables = tables(known());
    if std::env::var_os("UPDATE_DOCS").is_some() {
        fs::write(&path, format!("{before}{BEGIN}{tables}{END}{after}")).unwrap();
        return;
    }
    assert!(
        there == tables,
        "docs/explanation/orientation.md is out of date: run this test with UPDATE_DOCS=1"
    );
    assert!(
        CAVEAT.contains("docs/explanation/orientation.md"),
        "the page is named where figures are compared"
    );
}
