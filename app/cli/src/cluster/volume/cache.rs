//! `loadline volume cache`: how much of their log devices the copies of a volume use to answer reads.

use loadline_base::units::ByteSize;
use loadline_san_node::node::manage::CacheVolume;

use super::{alike, escaped, expanded, many};
use crate::cluster::client::{Api, Failed};
use crate::process::exit::Exit;

pub(super) fn run(names: &[String], size: Option<ByteSize>, api: &Api) -> Result<Exit, Failed> {
    let Some(names) = expanded(names) else { return Ok(Exit::Usage) };
    if size == Some(ByteSize(0)) {
        return Err(Failed::new(Exit::Usage, "a cache of 0 bytes is none: give --none".into(), true));
    }
    let wanted = CacheVolume { bytes: size.map_or(0, ByteSize::bytes) };
    many::each(&names, "given a cache", |name| -> Result<(), Failed> {
        api.post(&format!("/v1/volumes/{}/cache", escaped(name)), wanted)
    })?;
    let what = match names.as_slice() {
        [name] => format!("volume {name} has"),
        all => format!("{} have", alike::volumes(all)),
    };
    Ok(api.done(&match size {
        None => format!("{what} no read cache"),
        Some(size) => format!("{what} a read cache of {size} for each copy with a log device"),
    }))
}
