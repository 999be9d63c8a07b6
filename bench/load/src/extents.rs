//! How much of a file was written, not only reserved.

use std::os::fd::AsRawFd;

/// Extents that are requested at once.
const AT_ONCE: usize = 256;
/// The most calls for one file: a file in more pieces is not read to its end.
const MOST_CALLS: usize = 4096;

/// Data on their way to the disk are written first: until then they lie in extents that say nothing was.
const SYNC: u32 = 0x1;
const LAST: u32 = 0x1;
const UNWRITTEN: u32 = 0x800;

/// `struct fiemap_extent`.
#[repr(C)]
#[derive(Clone, Copy, Default)]
struct Extent {
    logical: u64,
    physical: u64,
    length: u64,
    reserved: [u64; 2],
    flags: u32,
    reserved_too: [u32; 3],
}

/// `struct fiemap`, with its extents.
#[repr(C)]
struct Map {
    start: u64,
    length: u64,
    flags: u32,
    mapped: u32,
    count: u32,
    reserved: u32,
    extents: [Extent; AT_ONCE],
}

mod ioctl {
    // The number carries the size of the struct without its extents, so it is given as it is: FS_IOC_FIEMAP.
    nix::ioctl_readwrite_bad!(fiemap, nix::request_code_readwrite!(b'f', 11, 32), super::Map);
}

/// Bytes of a file's first `size` that were written; `None` if its file system does not report it.
pub(crate) fn written(file: &impl AsRawFd, size: u64) -> Option<u64> {
    let (mut start, mut bytes) = (0, 0);
    for _ in 0..MOST_CALLS {
        if start >= size {
            return Some(bytes);
        }
        let mut map = Map {
            start,
            length: size - start,
            flags: SYNC,
            mapped: 0,
            count: AT_ONCE as u32,
            reserved: 0,
            extents: [Extent::default(); AT_ONCE],
        };
        // SAFETY: the request reads the head and writes at most `count` extents behind it, which is what `map` has
        // room for; the descriptor is open.
        unsafe { ioctl::fiemap(file.as_raw_fd(), &mut map) }.ok()?;
        let extents = map.extents.get(..map.mapped as usize)?;
        for extent in extents {
            let end = extent.logical.saturating_add(extent.length).min(size);
            if extent.flags & UNWRITTEN == 0 {
                // An extent may begin before the requested range.
                bytes += end.saturating_sub(extent.logical.max(start));
            }
        }
        let Some(last) = extents.last() else { return Some(bytes) };
        let end = last.logical.saturating_add(last.length);
        if last.flags & LAST != 0 {
            return Some(bytes);
        }
        if end <= start {
            return None;
        }
        start = end;
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::FileExt;

    #[test]
    fn the_kernels_structs_are_as_large_as_it_says() {
        assert_eq!(size_of::<Extent>(), 56);
        assert_eq!(size_of::<Map>(), 32 + AT_ONCE * 56);
    }

    #[test]
    fn a_file_in_many_pieces_is_counted_to_its_end() {
        let file = tempfile::tempfile().unwrap();
        let pieces = 3 * AT_ONCE as u64;
        for piece in 0..pieces {
            file.write_all_at(&[1; 65_536], piece * 2 * 65_536).unwrap();
        }
        let size = pieces * 2 * 65_536;
        file.set_len(size).unwrap();
        file.sync_all().unwrap();
        let Some(written) = written(&file, size) else {
            eprintln!("this file system does not tell what is written: not tested");
            return;
        };
        assert_eq!(written, pieces * 65_536);
    }
}
