//! How fast a device makes a block durable: so a log device that is slower than the capacity devices it serves is named.

use std::ops::Range;
use std::time::{Duration, Instant};

use loadline_base::device_model::DeviceModel;
use loadline_san_core::layout::BLOCK;
use loadline_san_core::lease::Moment;
use loadline_san_device::file::Devices;
use loadline_san_device::model::{ModelledDevice, Work};
use loadline_san_protocol::device::DeviceId;
use loadline_san_protocol::log::SECTOR;
use loadline_san_store::io::{Area, Disk, Sector};

use crate::config::catalog::{Catalog, Role};

/// Writes of which the median counts.
const WRITES: u64 = 64;
/// No more are made after this time: a device as slow as that is slow enough to know.
const LONGEST: Duration = Duration::from_millis(500);
/// Two devices of one kind differ by up to so much from one measurement to the next, beside other load.
const ALIKE: f64 = 2.0;

/// Measures how long a device takes to make a block durable: the median, microseconds, at least 1. It writes into these bytes, one block after
/// the other.
pub(super) fn measured_us(devices: &mut Devices, bytes: Range<u64>) -> Result<u64, String> {
    let block = Sector::zeroes(BLOCK as usize / SECTOR);
    let begun = Instant::now();
    let mut took = Vec::new();
    for at in bytes.step_by(BLOCK as usize).take(WRITES as usize) {
        let from = Instant::now();
        devices.write(Area::Log, at, &block).map_err(|why| why.to_string())?;
        took.push(from.elapsed().as_micros() as u64);
        if begun.elapsed() > LONGEST {
            break;
        }
    }
    Ok(median(took))
}

/// The same of a device that behaves as a model says.
pub(super) fn modelled_us(model: DeviceModel) -> u64 {
    let device = ModelledDevice::new(model, DeviceId(0));
    let mut now = Moment(0);
    let took = (0..WRITES).map(|_| {
        let begun = now;
        now = device.begin(begun, Work::Write { bytes: BLOCK, durable: true });
        now.since(begun) / 1000
    });
    median(took.collect())
}

fn median(mut took: Vec<u64>) -> u64 {
    took.sort_unstable();
    took.get(took.len() / 2).copied().unwrap_or(0).max(1)
}

/// What a person should change about a device: there is no log device for its data, or it is too slow to have logs.
pub(super) fn advice(catalog: &Catalog, id: u32) -> Option<String> {
    let (device, _) = catalog.devices.get(&id)?;
    let others =
        catalog.devices.iter().filter(|(_, (other, _))| other.node == device.node && !other.draining);
    match device.role {
        Role::Both => None,
        Role::Capacity => {
            let mut logs = others.filter(|(_, (other, _))| other.role == Role::Log);
            let why = "it gets no copies, since its node has no log device: add one ('loadline device add --role log')";
            logs.next().is_none().then(|| why.into())
        }
        Role::Log => {
            let capacity = others.filter(|(_, (other, _))| other.role == Role::Capacity);
            let fastest = capacity.map(|(id, (other, _))| (id, other.write_us)).min_by_key(|of| of.1);
            let Some((id, fastest)) = fastest else {
                let why = "it gets no logs, since its node has no capacity device: add one ('loadline device add --role capacity')";
                return Some(why.into());
            };
            let is_slower = device.write_us as f64 > fastest.max(1) as f64 * ALIKE;
            is_slower.then(|| {
                format!(
                    "it is slower than capacity device {id}: a durable write of 4 KiB took {} us, and {fastest} us there. Such a log makes \
                     writes slower than without it: replace it by a faster device",
                    device.write_us
                )
            })
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_median_of_none_is_the_least() {
        assert_eq!(median(Vec::new()), 1);
        assert_eq!(median(vec![5, 1, 900]), 5);
    }
}
