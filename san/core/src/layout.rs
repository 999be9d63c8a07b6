//! Where a block of a volume is: which group, and where in it.
//!
//! ```text
//! volume  │ unit 0 │ unit 1 │ unit 2 │ unit 3 │ …        a span: as many groups as there are stripes
//!             ▼        ▼        ▼        ▼
//! group   │   0    │   1    │   0    │   1    │          two stripes: units are dealt in turn
//! ```
//!
//! Groups have a greatest size; after a span of full groups the next one begins. So the place of a block depends on
//! nothing that ever changes, and a volume that grows only adds to its last groups and gets new ones.

use std::ops::Range;

use thiserror::Error;

/// Bytes in a block.
pub const BLOCK: u64 = 4096;
/// The most stripes of a volume.
pub const MOST_STRIPES: u32 = 12;
/// The most blocks of a piece, and so of an entry: 32 MiB.
pub const MOST_TOGETHER: u64 = 8192;
/// The most blocks of a volume: 64 PiB, far from overflowing a byte's address.
pub const MOST_BLOCKS: u64 = 1 << 44;

/// Which group of a volume, counted from 0.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct GroupIndex(pub u32);

/// How a volume's blocks are dealt to its groups. Fixed when the volume is made.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Layout {
    stripes: u32,
    unit: u64,
    group: u64,
}

/// Why there is no such layout.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
pub enum LayoutError {
    /// The number of stripes.
    #[error("{0} stripes: a volume has 1 to {MOST_STRIPES}")]
    Stripes(u32),
    /// The stripe unit, or the greatest size of a group.
    #[error(
        "a stripe unit of {unit} blocks and groups of {group}: a unit has at least one block, and a group is a \
         multiple of it, at most {MOST_BLOCKS} blocks"
    )]
    Sizes {
        /// Blocks of a stripe unit.
        unit: u64,
        /// Blocks of a group at the most.
        group: u64,
    },
    /// So large a volume would have more groups than can be counted.
    #[error("{0} blocks: a volume has at most {MOST_BLOCKS}, in at most {groups} groups", groups = u32::MAX)]
    Size(u64),
}

/// Consecutive blocks of one group, which are consecutive in the volume too.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Piece {
    /// The group.
    pub group: GroupIndex,
    /// The first block, in the group.
    pub block: u64,
    /// The number of blocks.
    pub blocks: u64,
}

impl Layout {
    /// So many stripes, with units of so many blocks, in groups of at most so many.
    pub fn new(stripes: u32, unit: u64, group: u64) -> Result<Layout, LayoutError> {
        if !(1..=MOST_STRIPES).contains(&stripes) {
            return Err(LayoutError::Stripes(stripes));
        }
        if unit == 0 || group == 0 || !group.is_multiple_of(unit) || group > MOST_BLOCKS {
            return Err(LayoutError::Sizes { unit, group });
        }
        // One stripe is dealt nothing: its units are its groups.
        Ok(Layout { stripes, unit: if stripes == 1 { group } else { unit }, group })
    }

    /// The number of stripes.
    pub fn stripes(&self) -> u32 {
        self.stripes
    }

    /// Blocks of a stripe unit; with one stripe, of a group.
    pub fn unit(&self) -> u64 {
        self.unit
    }

    /// Blocks of a group at the most.
    pub fn group(&self) -> u64 {
        self.group
    }

    /// Blocks of a span.
    fn span(&self) -> u64 {
        self.group * u64::from(self.stripes)
    }

    /// How many groups a volume of so many blocks has. Of its last span it has all, so that what comes when it grows
    /// finds its group.
    pub fn groups(&self, volume: u64) -> Result<u32, LayoutError> {
        if volume > MOST_BLOCKS {
            return Err(LayoutError::Size(volume));
        }
        let groups = volume.div_ceil(self.span()) * u64::from(self.stripes);
        u32::try_from(groups).map_err(|_| LayoutError::Size(volume))
    }

    /// How many blocks of a volume of so many are in this group.
    pub fn blocks_in(&self, group: GroupIndex, volume: u64) -> u64 {
        let (span, column) = (u64::from(group.0 / self.stripes), u64::from(group.0 % self.stripes));
        let left = volume.saturating_sub(span.saturating_mul(self.span())).min(self.span());
        let row = self.unit * u64::from(self.stripes);
        left / row * self.unit + (left % row).saturating_sub(column * self.unit).min(self.unit)
    }

    /// Where a block of the volume is.
    pub fn locate(&self, block: u64) -> (GroupIndex, u64) {
        let (span, within) = (block / self.span(), block % self.span());
        let (unit, offset) = (within / self.unit, within % self.unit);
        let stripes = u64::from(self.stripes);
        let group = span * stripes + unit % stripes;
        // A volume's groups were counted when it was made (see `groups`).
        let group = u32::try_from(group).expect("a block of a volume");
        (GroupIndex(group), unit / stripes * self.unit + offset)
    }

    /// The block of the volume that is at this place.
    pub fn block_at(&self, group: GroupIndex, block: u64) -> u64 {
        let (span, column) = (u64::from(group.0 / self.stripes), u64::from(group.0 % self.stripes));
        let (row, offset) = (block / self.unit, block % self.unit);
        span * self.span() + (row * u64::from(self.stripes) + column) * self.unit + offset
    }

    /// How many blocks of a group, from this one on, are consecutive in the volume too, and not too many for one piece.
    pub fn together(&self, block: u64) -> u64 {
        (self.unit - block % self.unit).min(MOST_TOGETHER)
    }

    /// The places of consecutive blocks, in their order: as few pieces as there can be.
    pub fn pieces(self, blocks: Range<u64>) -> impl Iterator<Item = Piece> {
        let mut next = blocks.start;
        std::iter::from_fn(move || {
            if next >= blocks.end {
                return None;
            }
            let (group, block) = self.locate(next);
            let count = self.together(block).min(blocks.end - next);
            next += count;
            Some(Piece { group, block, blocks: count })
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn units_are_dealt_to_the_stripes_in_turn() {
        let layout = Layout::new(2, 4, 8).unwrap();
        let groups: Vec<(u32, u64)> = (0..20).map(|b| layout.locate(b)).map(|(g, b)| (g.0, b)).collect();
        assert_eq!(groups[..5], [(0, 0), (0, 1), (0, 2), (0, 3), (1, 0)]);
        assert_eq!(groups[8], (0, 4));
        assert_eq!(groups[16], (2, 0), "the first span is full");
        assert_eq!(layout.groups(17), Ok(4));
    }

    #[test]
    fn what_cannot_be_laid_out_is_refused() {
        assert_eq!(Layout::new(0, 1, 1), Err(LayoutError::Stripes(0)));
        assert_eq!(Layout::new(13, 1, 1), Err(LayoutError::Stripes(13)));
        for (unit, group) in [(0, 8), (4, 0), (4, 6), (1, MOST_BLOCKS + 1)] {
            assert_eq!(Layout::new(1, unit, group), Err(LayoutError::Sizes { unit, group }));
        }
        let small = Layout::new(1, 1, 1).unwrap();
        assert_eq!(small.groups(MOST_BLOCKS), Err(LayoutError::Size(MOST_BLOCKS)));
        let large = Layout::new(12, 256, 1 << 20).unwrap();
        assert_eq!(large.groups(u64::MAX), Err(LayoutError::Size(u64::MAX)));
        let narrow = Layout::new(12, 1, 1).unwrap();
        assert_eq!(narrow.groups(u64::MAX), Err(LayoutError::Size(u64::MAX)));
        assert_eq!(large.blocks_in(GroupIndex(u32::MAX), 100), 0, "the volume has no such group");
    }

    proptest! {
        #[test]
        fn every_block_has_one_place_and_every_place_one_block(
            stripes in 1..=MOST_STRIPES, unit in 1..9u64, units in 1..9u64, volume in 1..500u64,
        ) {
            let layout = Layout::new(stripes, unit, unit * units).unwrap();
            let groups = layout.groups(volume).unwrap();
            let mut count = vec![0u64; groups as usize];
            for block in 0..volume {
                let (group, at) = layout.locate(block);
                prop_assert_eq!(layout.block_at(group, at), block);
                prop_assert_eq!(count[group.0 as usize], at, "a group fills from its beginning, without a gap");
                count[group.0 as usize] += 1;
            }
            for (group, count) in (0..groups).zip(count) {
                prop_assert_eq!(layout.blocks_in(GroupIndex(group), volume), count);
            }
        }

        #[test]
        fn pieces_are_the_blocks_in_their_order(
            stripes in 1..=MOST_STRIPES, unit in 1..9u64, units in 1..9u64, start in 0..300u64, length in 0..300u64,
        ) {
            let layout = Layout::new(stripes, unit, unit * units).unwrap();
            let one_by_one: Vec<_> = (start..start + length).map(|b| layout.locate(b)).collect();
            let pieces: Vec<Piece> = layout.pieces(start..start + length).collect();
            let expanded: Vec<_> =
                pieces.iter().flat_map(|p| (0..p.blocks).map(|i| (p.group, p.block + i))).collect();
            prop_assert_eq!(expanded, one_by_one);
            for pair in pieces.windows(2) {
                let joins = pair[0].group == pair[1].group && pair[0].block + pair[0].blocks == pair[1].block;
                prop_assert!(!joins, "two pieces could be one: {:?}", pair);
            }
        }
    }
}
