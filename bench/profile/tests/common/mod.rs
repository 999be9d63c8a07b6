//! Profiles at random, as every notation's round trip needs them.

use loadline_base::units::{ByteSize, Rate};
use loadline_profile::{Arrival, Data, Extent, HotSpot, OfferedRate, Pattern, Profile};
use proptest::prelude::*;

/// What a name can say: block size in sectors, threads, outstanding, writes, pattern.
pub(crate) fn named() -> impl Strategy<Value = Profile> {
    let pattern =
        prop_oneof![Just(Pattern::Random), Just(Pattern::Sequential), Just(Pattern::SequentialInterleaved)];
    (1u64..=256, 1u32..=64, 1u32..=256, 0u8..=100, pattern).prop_map(
        |(sectors, threads, outstanding, write_percent, pattern)| Profile {
            block_size: ByteSize(sectors * 512),
            threads,
            outstanding,
            write_percent,
            pattern,
            ..Profile::default()
        },
    )
}

/// Hot spots that leave room for the rest, in whole percents or in sizes of a working set of 64 GiB and more.
fn hot_spots() -> impl Strategy<Value = Vec<HotSpot>> {
    let percents = prop::collection::vec((1u8..=20, 1u8..=20), 1..=4).prop_map(|pairs| {
        pairs
            .into_iter()
            .map(|(io_percent, share)| HotSpot { io_percent, extent: Extent::Percent(share.into()) })
            .collect()
    });
    let sizes = prop::collection::vec((1u8..=20, 1u64..=16), 1..=4).prop_map(|pairs| {
        pairs
            .into_iter()
            .map(|(io_percent, gib)| HotSpot { io_percent, extent: Extent::Bytes(ByteSize(gib << 30)) })
            .collect()
    });
    prop_oneof![Just(Vec::new()), percents, sizes]
}

/// Anything sound whose rate is whole for every thread and direction, and whose sizes are stated in bytes.
pub(crate) fn any_profile() -> impl Strategy<Value = Profile> {
    let pattern = prop_oneof![
        Just(None),
        Just(None),
        (1u8..=99).prop_map(|random_percent| Some(Pattern::Mixed { random_percent }))
    ];
    let place = (prop::option::of(2u64..=64), 0u64..=1024, prop::option::of(65u64..=4096));
    let data = prop_oneof![
        Just(Data::Random),
        Just(Data::Zeros),
        Just(Data::CountingBytes),
        (1u8..=95).prop_map(|percent| Data::Compressible { ratio: 100.0 / (100.0 - f64::from(percent)) })
    ];
    let rate = prop::option::of((any::<bool>(), any::<bool>(), 1u32..=1000));
    let ways = (any::<bool>(), any::<bool>(), prop::option::of(1u32..=100));
    (named(), pattern, place, hot_spots(), data, rate, ways).prop_map(
        |(mut profile, pattern, place, hot_spots, data, rate, ways)| {
            profile.pattern = pattern.unwrap_or(profile.pattern);
            let (steps, offset, gib) = place;
            profile.alignment = steps.map(|steps| ByteSize(profile.block_size.bytes() * steps));
            profile.base_offset = ByteSize(offset * 512);
            profile.working_set = gib.map(|gib| Extent::Bytes(ByteSize(gib << 30)));
            if matches!(profile.pattern, Pattern::Random | Pattern::Mixed { .. }) {
                profile.hot_spots = hot_spots;
            }
            profile.data = data;
            profile.rate = rate.map(|(poisson, in_iops, whole)| {
                // A multiple of 100 for each thread: every percentage of it is whole.
                let total = f64::from(whole) * 100.0 * f64::from(profile.threads);
                OfferedRate {
                    rate: if in_iops { Rate::Iops(total) } else { Rate::BytesPerSecond(total * 1000.0) },
                    arrival: if poisson { Arrival::Poisson } else { Arrival::Uniform },
                }
            });
            (profile.direct, profile.write_through, profile.flush_every) = ways;
            profile
        },
    )
}
