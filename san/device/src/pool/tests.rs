use loadline_san_core::ids::VolumeId;
use loadline_san_core::layout::GroupIndex;

use super::*;

fn pool() -> Pool {
    Pool::new(&[Class { blocks: 4, buffers: 2 }, Class { blocks: 1, buffers: 3 }]).unwrap()
}

fn free(pool: &Pool) -> Vec<usize> {
    pool.free().map(|(_, free)| free).collect()
}

fn at(block: u64) -> Address {
    Address { volume: VolumeId(7), group: GroupIndex(2), block }
}

#[test]
fn the_last_handle_gives_a_buffer_back() {
    let pool = pool();
    assert_eq!(free(&pool), [3, 2], "from the smallest class on");
    let taken = pool.take(3).unwrap();
    assert_eq!(free(&pool), [3, 1]);
    let first = taken.freeze_without();
    let second = first.clone();
    assert_eq!((first.handles(), second.as_ptr()), (2, first.as_ptr()));
    drop(first);
    assert_eq!(free(&pool), [3, 1]);
    drop(second);
    assert_eq!(free(&pool), [3, 2]);
    drop(pool.take(1).unwrap());
    assert_eq!(free(&pool), [3, 2], "one that was never frozen comes back too");
}

#[test]
fn live_buffers_share_nothing() {
    let pool = pool();
    let fill = |value: u8, blocks: u32| {
        pool.take_filled(&vec![value; blocks as usize * BLOCK_BYTES]).unwrap().freeze(|i| at(u64::from(i)))
    };
    // More than the pool has of either class: some are on their own.
    let all: Vec<(u8, Blocks)> = (0..12).map(|n| (n, fill(n, [1, 3, 4, 9][n as usize % 4]))).collect();
    assert!(pool.statistics().on_their_own >= 3 && free(&pool) == [0, 0], "{:?}", pool.statistics());
    for (value, blocks) in &all {
        assert!(blocks.bytes().iter().all(|byte| byte == value));
        for (index, crc) in (0..).zip(blocks.checksums()) {
            assert_eq!(crc, block_crc(VolumeId(7), GroupIndex(2), index, &[*value; BLOCK_BYTES]));
        }
    }
    let mut ranges: Vec<_> = all.iter().map(|(_, b)| b.bytes().as_ptr_range()).collect();
    ranges.sort_by_key(|range| range.start);
    assert!(ranges.windows(2).all(|two| two[0].end <= two[1].start));
    drop(all);
    assert_eq!(free(&pool), [3, 2]);
}

#[test]
fn what_was_given_back_is_used_again() {
    let pool = pool();
    let first = pool.take_filled(&[1; BLOCK_BYTES]).unwrap().freeze_without();
    let place = first.as_ptr();
    drop(first);
    let again = pool.take(1).unwrap();
    assert_eq!(again.0.as_ptr(), place);
    assert_eq!(again.bytes()[0], 1, "it is not zeroed: the code that takes it fills it");
}

#[test]
fn too_many_or_too_large_are_on_their_own() {
    let pool = pool();
    let large = pool.take(5).unwrap();
    assert_eq!(pool.statistics(), Statistics { taken: 1, on_their_own: 1 });
    assert_eq!(large.bytes().len(), 5 * BLOCK_BYTES);
    let small: Vec<_> = (0..4).map(|_| pool.take(1).unwrap()).collect();
    assert_eq!(pool.statistics(), Statistics { taken: 5, on_their_own: 2 });
    assert_eq!(free(&pool), [0, 2], "a larger class is not used up by small ones");
    let inside = |b: &BlocksMut| pool.region_of(b.0.as_ptr(), b.bytes().len());
    assert_eq!(small.iter().map(inside).collect::<Vec<_>>(), [Some(0), Some(0), Some(0), None]);
    assert_eq!((inside(&large), inside(&pool.take(4).unwrap())), (None, Some(1)));
    let own = large.freeze_without();
    let other = own.clone();
    assert_eq!((other.handles(), other.as_ptr()), (2, own.as_ptr()));
    drop(other);
    assert_eq!(own.handles(), 1);
}

#[test]
fn handles_outlive_the_pool() {
    let pool = pool();
    let blocks = pool.take_filled(&[9; 2 * BLOCK_BYTES]).unwrap().freeze(|_| at(0));
    drop(pool);
    assert_eq!(blocks.block(1), [9; BLOCK_BYTES]);
}

#[test]
fn checksums_are_given_or_taken() {
    let pool = pool();
    let take = || pool.take_filled(&[5; 2 * BLOCK_BYTES]).unwrap();
    let given = take().freeze_with([11, 12]).unwrap();
    assert_eq!((given.checksum(0, at(0)), given.checksum(1, at(1))), (11, 12));
    drop(given);
    for given in [1, 3] {
        let wrong = take().freeze_with(vec![0; given as usize]).unwrap_err();
        assert_eq!(wrong, WrongCount { blocks: 2, given });
    }
    let mut read = take().freeze_without();
    assert_eq!(read.checksums().collect::<Vec<_>>(), [0, 0], "not those of a buffer before it");
    let right = block_crc(VolumeId(7), GroupIndex(2), 40, &[5; BLOCK_BYTES]);
    assert_eq!((read.take_checksum(1, at(40)), read.checksum(1, at(40))), (right, right));
    assert_eq!(read.checksum(0, at(0)), 0);
}

#[test]
fn what_cannot_be_is_refused() {
    assert!(Pool::new(&[Class { blocks: 1, buffers: 0 }]).is_err());
    assert!(Pool::new(&[Class { blocks: u32::MAX, buffers: u32::MAX }]).is_err());
    let none = Pool::new(&[]).unwrap();
    assert!(none.take(0).is_err() && none.take(1).is_ok() && none.take_filled(&[0; 100]).is_err());
}

#[test]
fn a_spare_region_helps_a_class_out_and_goes_back_to_the_system_when_it_is_not_used() {
    let classes = [Class { blocks: 4, buffers: 2 }, Class { blocks: 1, buffers: 4 }];
    let pool = Pool::with_spare(&classes, Class { blocks: 1, buffers: 4 }).unwrap();
    let is_registered = |blocks: &Blocks| pool.region_of(blocks.as_ptr(), BLOCK_BYTES).is_some();
    let taken: Vec<Blocks> =
        (1..=8).map(|n| pool.take_filled(&[n; BLOCK_BYTES]).unwrap().freeze_without()).collect();
    assert_eq!(pool.statistics().on_their_own, 0);
    assert!(taken[..4].iter().all(is_registered) && !taken[4..].iter().any(is_registered));
    assert!((1..).zip(&taken).all(|(n, blocks)| blocks.bytes().iter().all(|byte| *byte == n)));
    assert!(pool.is_short());
    drop(pool.take(1).unwrap());
    assert_eq!(pool.statistics().on_their_own, 1, "it is all taken too");

    let last = taken.last().unwrap().clone();
    drop(taken);
    assert!(!pool.is_short(), "seven of eight are free");
    (0..3).for_each(|_| pool.let_go());
    assert!(last.bytes().iter().all(|byte| *byte == 8), "what is in use stays");
    let place = last.as_ptr();
    drop(last);
    pool.let_go();
    // The next use gets what the system gave: zeroes.
    let all: Vec<BlocksMut> = (0..8).map(|_| pool.take(1).unwrap()).collect();
    let again = all.iter().find(|blocks| blocks.0.as_ptr() == place).expect("it is used again");
    assert!(again.0.bytes().iter().all(|byte| *byte == 0));
}

#[test]
fn a_spare_region_that_was_used_just_now_stays() {
    let class = Class { blocks: 1, buffers: 1 };
    let pool = Pool::with_spare(&[class], class).unwrap();
    let _first = pool.take(1).unwrap();
    drop(pool.take_filled(&[7; BLOCK_BYTES]).unwrap());
    let holds = |pool: &Pool| pool.take(1).unwrap().0.bytes()[0];
    pool.let_go();
    assert_eq!(holds(&pool), 7, "that was a use");
    pool.let_go();
    pool.let_go();
    assert_eq!(holds(&pool), 0);
}

#[test]
fn a_pool_is_short_while_much_has_memory_of_its_own() {
    let pool = pool();
    let large: Vec<BlocksMut> = (0..4).map(|_| pool.take(2048).unwrap()).collect();
    assert!(pool.is_short(), "32 MiB");
    let mut large = large.into_iter().map(BlocksMut::freeze_without);
    let first = large.next().unwrap();
    let again = first.clone();
    assert!(pool.is_short());
    drop(first);
    assert!(pool.is_short(), "there is another handle");
    drop(again);
    assert!(!pool.is_short());
    drop(large);
    assert_eq!(pool.0.own.get(), 0);
}
