//! Names of the volumes that only fill a device.

/// What the names of such volumes begin with; behind it are a number and the node.
pub(crate) const PREFIX: &str = "loadline-filler-";

/// Whether a volume only fills a device: it holds no data, and its copies are not missed.
pub(crate) fn is_filler(volume: &str) -> bool {
    volume.starts_with(PREFIX)
}

/// The node that such a volume fills.
pub(crate) fn filled_node(volume: &str) -> Option<&str> {
    volume.strip_prefix(PREFIX)?.split_once('-').map(|(_, node)| node)
}
