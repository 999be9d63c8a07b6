//! `loadline san reserve`: what resyncs and scrubs get at the least, whatever clients do.

use loadline_base::units::ByteSize;
use loadline_san_node::config::catalog::Reserve;

use crate::cluster::client::Api;
use crate::process::exit::Exit;

/// Reserve a part of the cluster's performance for resyncs and scrubs, so that clients cannot delay them for long. It holds within a
/// second, at every node. What is not given is as in a new cluster.
///
/// A resync copies 256 KiB at a time to each returning copy, or more if that is needed for its share: of what a volume has in flight, so many
/// per cent are then copies. A scrub reads the data of all extents in turn, to find corrupt blocks before a client needs them.
#[derive(clap::Args)]
#[command(after_help = "Examples:\n  loadline san reserve --resync 30%\n  \
    loadline san reserve --resync 30% --scrub 20MiB\n  loadline san reserve --none")]
pub(crate) struct Reserving {
    /// The share of resyncs in what a volume has in flight: 0% to 90%. [default: 0%]
    #[arg(long, value_name = "PERCENT", value_parser = percent, required_unless_present_any = ["scrub", "none"])]
    resync: Option<u32>,
    /// How much each node scrubs in a second. [default: 2MiB for each thread of the data path]
    #[arg(long, value_name = "SIZE")]
    scrub: Option<ByteSize>,
    /// Reserve nothing: as in a new cluster.
    #[arg(long, conflicts_with_all = ["resync", "scrub"])]
    none: bool,
    #[command(flatten)]
    api: Api,
}

fn percent(text: &str) -> Result<u32, String> {
    let number = text.strip_suffix('%').unwrap_or(text).trim();
    match number.parse() {
        Ok(percent) if percent <= 90 => Ok(percent),
        Ok(percent) => {
            Err(format!("{percent} % is too much, since clients need a part too: give at most 90%"))
        }
        Err(_) => Err("give a number with a percent sign, as 30%".into()),
    }
}

pub(crate) fn reserve(args: &Reserving) -> Exit {
    let wanted = Reserve {
        resync_percent: args.resync.unwrap_or(0),
        scrub_bytes_per_s: args.scrub.map(ByteSize::bytes),
    };
    let done = args.api.post("/v1/reserve", wanted).map(|()| match args.none {
        true => args.api.done("nothing is reserved for resyncs and scrubs"),
        false => args.api.done(&format!("reserved: {}", words(&wanted))),
    });
    done.unwrap_or_else(|why| why.print_error())
}

/// What is reserved, for people.
pub(crate) fn words(of: &Reserve) -> String {
    let resync =
        (of.resync_percent > 0).then(|| format!("{} % of what is in flight for resyncs", of.resync_percent));
    let scrub =
        of.scrub_bytes_per_s.map(|bytes| format!("{} a second of each node for scrubs", ByteSize(bytes)));
    let all: Vec<String> = resync.into_iter().chain(scrub).collect();
    if all.is_empty() { "nothing".into() } else { all.join(", ") }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_share_is_a_number_with_or_without_a_percent_sign() {
        assert_eq!([percent("30%"), percent("0"), percent("90 %")], [Ok(30), Ok(0), Ok(90)]);
        assert!(percent("91%").unwrap_err().contains("at most 90%"));
        assert!(percent("a third").unwrap_err().contains("as 30%"));
        assert!(percent("-1").is_err());
    }
}
