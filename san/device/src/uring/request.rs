//! One ask on its way: what it owns, the entries of the ring that it is made of, and how far they are.

use std::io;
use std::ops::Range;

use loadline_base::ring::{opcode, squeue, types};
use loadline_san_protocol::log::SECTOR;
use loadline_san_store::io::{Area, Done, IoFault, IoRequest, MOST_BETWEEN, Reading, Sector, Token, Writing};
use nix::libc::{self, iovec};

use crate::pool::{BLOCK_BYTES, Blocks, BlocksMut, Pool};
use crate::vectors::{MOST_TRIES, MOST_VECTORS, advance, buffer_for, failed, gather};

/// Room for so many pieces and vectors is there from the beginning; more make it grow, once.
const ROOM: usize = 64;
/// The kernel moves at most this much at once (`MAX_RW_COUNT`, rounded down).
const MOST_AT_ONCE: usize = 1 << 30;

/// What is to be done after a completion.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Next {
    /// The entry is over, well or not.
    Over,
    /// It is to be issued again: for the rest of it.
    Again,
}

/// What is being done. All memory that the kernel gets is in here, or in the request's vectors.
#[derive(Debug)]
enum Work {
    Nothing,
    Read(Reading, BlocksMut),
    /// `at`: where the rest of it goes. `first`: the vector that the rest begins with.
    Write {
        writing: Writing<Blocks>,
        at: u64,
        first: usize,
    },
    Sync(Area),
}

/// How far an entry is.
#[derive(Debug, Clone, Default)]
struct Progress {
    /// Bytes that are read. (What is written is taken away from the vectors.)
    done: usize,
    /// How often it was to be tried again.
    tries: u32,
    /// Of a read: the pieces that it reads; and if these are several, the vectors for what of them and between them is left.
    pieces: Range<usize>,
    vectors: Range<usize>,
    /// The end of the pieces that it is to read. It goes on with those that are left one by one, after they could not be read together.
    until: usize,
}

impl Progress {
    /// It reads this piece now, and no other with it.
    fn read_one(&mut self, piece: usize) {
        *self = Progress { pieces: piece..piece + 1, until: self.until, ..Progress::default() };
    }
}

/// One ask on its way. It is used again for another when it is done.
#[derive(Debug)]
pub(super) struct Request {
    store: u32,
    token: Token,
    work: Work,
    /// Entries that the kernel has, or will have.
    flying: u32,
    /// The first error, which is what the ask ends with.
    fault: Option<IoFault>,
    progress: Vec<Progress>,
    /// Where the bytes of a write are, which the kernel reads until the entry completes; or where those of a read go that has pieces
    /// with something between.
    vectors: Vec<iovec>,
    /// What is between the pieces of reads goes here. It is not looked at. Made when it is first needed, and kept.
    between: Box<[Sector]>,
}

/// An ask that cannot even begin.
pub(super) fn faulty(io_request: IoRequest<Blocks>, fault: impl FnOnce() -> IoFault) -> Done<Blocks> {
    match io_request {
        IoRequest::Read(reading) => Done::Read(reading, Err(fault())),
        IoRequest::Write(writing) => Done::Wrote(writing, Err(fault())),
        IoRequest::Sync(area) => Done::Synced(area, Err(fault())),
    }
}

impl Request {
    pub(super) fn new() -> Request {
        Request {
            store: 0,
            token: Token(0),
            work: Work::Nothing,
            flying: 0,
            fault: None,
            progress: Vec::with_capacity(ROOM),
            vectors: Vec::with_capacity(ROOM),
            between: Box::default(),
        }
    }

    /// Becomes this request, and returns how many entries it has. An ask that cannot begin comes back.
    pub(super) fn begin(
        &mut self,
        store: u32,
        token: Token,
        io_request: IoRequest<Blocks>,
        pool: &Pool,
    ) -> Result<u32, Done<Blocks>> {
        self.progress.clear();
        let (work, entries) = match io_request {
            IoRequest::Read(reading) => match buffer_for(&reading, pool) {
                Err(fault) => return Err(Done::Read(reading, Err(fault))),
                Ok(mut buffer) => {
                    self.lay_out(&reading, &mut buffer);
                    (Work::Read(reading, buffer), self.progress.len())
                }
            },
            IoRequest::Write(writing) => match gather(&writing, &mut self.vectors) {
                Err(fault) => return Err(Done::Wrote(writing, Err(fault))),
                Ok(()) => {
                    let at = writing.at;
                    (Work::Write { writing, at, first: 0 }, 1)
                }
            },
            IoRequest::Sync(area) => (Work::Sync(area), 1),
        };
        (self.store, self.token, self.work) = (store, token, work);
        self.progress.resize(entries, Progress::default());
        // No more than blocks of its buffer, of which there are fewer than 2^32.
        Ok(entries as u32)
    }

    /// An entry for each I/O of a read. `buffer_for` has seen that its pieces are in the buffer, in order, and apart.
    fn lay_out(&mut self, reading: &Reading, buffer: &mut BlocksMut) {
        self.vectors.clear();
        let start = buffer.as_mut_ptr();
        let mut first = 0;
        for pieces in reading.ios() {
            let from = self.vectors.len();
            if pieces.len() > 1 {
                if self.between.is_empty() {
                    self.between = Sector::zeroes(MOST_BETWEEN as usize / SECTOR).into();
                }
                let between = self.between.as_mut_ptr().cast::<libc::c_void>();
                let mut at = pieces[0].at;
                for piece in pieces {
                    if piece.at > at {
                        self.vectors.push(iovec { iov_base: between, iov_len: (piece.at - at) as usize });
                    }
                    let into = start.wrapping_add(piece.first as usize * BLOCK_BYTES);
                    let iov_len = piece.blocks as usize * BLOCK_BYTES;
                    self.vectors.push(iovec { iov_base: into.cast(), iov_len });
                    at = piece.end();
                }
            }
            let (pieces, vectors) = (first..first + pieces.len(), from..self.vectors.len());
            first = pieces.end;
            self.progress.push(Progress { done: 0, tries: 0, until: first, pieces, vectors });
        }
    }

    /// Whether this store asked for it.
    pub(super) fn is_of(&self, store: u32) -> bool {
        self.store == store && !matches!(self.work, Work::Nothing)
    }

    /// None of its entries is with the kernel.
    pub(super) fn is_over(&self) -> bool {
        self.flying == 0
    }

    /// One more of its entries is with the kernel.
    pub(super) fn count_one(&mut self) {
        self.flying += 1;
    }

    /// The entry, for what of it is left. With a pool it is one whose memory is registered.
    pub(super) fn entry(&mut self, entry: u32, pool: Option<&Pool>) -> squeue::Entry {
        let region = |start, length| pool.and_then(|pool| pool.region_of(start, length));
        let file = |store: u32, area| types::Fixed(store * 2 + u32::from(area == Area::Capacity));
        match &mut self.work {
            Work::Nothing => opcode::Nop::new().build(),
            Work::Sync(area) => {
                opcode::Fsync::new(file(self.store, *area)).flags(types::FsyncFlags::DATASYNC).build()
            }
            Work::Read(reading, buffer) => {
                let Progress { done, pieces, vectors, .. } = &self.progress[entry as usize];
                let (piece, done) = (&reading.pieces[pieces.start], *done);
                if pieces.len() > 1 {
                    let left = &self.vectors[vectors.clone()];
                    let count = left.len().min(MOST_VECTORS) as u32;
                    let (file, at) = (file(self.store, piece.area), piece.at.wrapping_add(done as u64));
                    return opcode::Readv::new(file, left.as_ptr(), count).offset(at).build();
                }
                let length = (piece.blocks as usize * BLOCK_BYTES - done).min(MOST_AT_ONCE);
                // Only the pointer is taken: other pieces of this buffer may be with the kernel. `buffer_for` has seen that
                // the piece is within it.
                let start = buffer.as_mut_ptr().wrapping_add(piece.first as usize * BLOCK_BYTES + done);
                let (file, at) = (file(self.store, piece.area), piece.at.wrapping_add(done as u64));
                match region(start, length) {
                    Some(region) => {
                        opcode::ReadFixed::new(file, start, length as u32, region).offset(at).build()
                    }
                    None => opcode::Read::new(file, start, length as u32).offset(at).build(),
                }
            }
            Work::Write { writing, at, first } => {
                let file = file(self.store, writing.area);
                let flags = if writing.durable { libc::RWF_DSYNC } else { 0 };
                let left = &self.vectors[*first..];
                if let [one] = left {
                    let (start, length) =
                        (one.iov_base.cast_const().cast::<u8>(), one.iov_len.min(MOST_AT_ONCE));
                    return match region(start, length) {
                        Some(region) => opcode::WriteFixed::new(file, start, length as u32, region)
                            .offset(*at)
                            .rw_flags(flags)
                            .build(),
                        None => {
                            opcode::Write::new(file, start, length as u32).offset(*at).rw_flags(flags).build()
                        }
                    };
                }
                let count = left.len().min(MOST_VECTORS) as u32;
                opcode::Writev::new(file, left.as_ptr(), count).offset(*at).rw_flags(flags).build()
            }
        }
    }

    /// The kernel's result of an entry: a number of bytes, or an error as a negative number.
    pub(super) fn completed(&mut self, entry: u32, result: i32) -> Next {
        self.flying = self.flying.saturating_sub(1);
        let progress = &mut self.progress[entry as usize];
        let Ok(bytes) = usize::try_from(result) else {
            let passing = matches!(-result, libc::EINTR | libc::EAGAIN);
            progress.tries += 1;
            if passing && progress.tries < MOST_TRIES && self.fault.is_none() {
                return Next::Again;
            }
            if progress.pieces.len() > 1 && self.fault.is_none() {
                // What cannot be read may be between them, where nothing is needed.
                progress.read_one(progress.pieces.start);
                return Next::Again;
            }
            self.fail(entry, io::Error::from_raw_os_error(-result));
            return Next::Over;
        };
        match &mut self.work {
            Work::Nothing | Work::Sync(_) => return Next::Over,
            Work::Read(reading, _) => {
                let pieces = &reading.pieces[progress.pieces.clone()];
                let piece = &pieces[0];
                progress.done += bytes;
                let vectors = &mut self.vectors[progress.vectors.clone()];
                progress.vectors.start += advance(vectors, 0, bytes);
                if progress.done as u64 >= pieces[pieces.len() - 1].end() - piece.at {
                    if progress.pieces.end == progress.until || self.fault.is_some() {
                        return Next::Over;
                    }
                    progress.read_one(progress.pieces.end);
                    return Next::Again;
                }
                if bytes == 0 {
                    let at = piece.at.saturating_add(progress.done as u64);
                    self.fault.get_or_insert(IoFault::Short { area: piece.area, at });
                }
            }
            Work::Write { at, first, .. } => {
                *first = advance(&mut self.vectors, *first, bytes);
                *at += bytes as u64;
                if *first >= self.vectors.len() {
                    return Next::Over;
                }
                if bytes == 0 {
                    self.fail(entry, io::ErrorKind::WriteZero.into());
                }
            }
        }
        // After an error the rest is not needed.
        if self.fault.is_some() { Next::Over } else { Next::Again }
    }

    /// Notes why it fails; the first reason stays.
    pub(super) fn fail(&mut self, entry: u32, error: io::Error) {
        let (area, at) = match &self.work {
            Work::Nothing => (Area::Log, 0),
            Work::Sync(area) => (*area, 0),
            Work::Read(reading, _) => {
                let Progress { done, pieces, .. } = &self.progress[entry as usize];
                let piece = &reading.pieces[pieces.start];
                (piece.area, piece.at.saturating_add(*done as u64))
            }
            Work::Write { writing, at, .. } => (writing.area, *at),
        };
        self.fault.get_or_insert_with(|| failed(area, at, error));
    }

    /// Gives away what became of it, once. Only to be called when it is over.
    pub(super) fn finish(&mut self) -> Option<(u32, Token, Done<Blocks>)> {
        let fault = self.fault.take();
        let done = match std::mem::replace(&mut self.work, Work::Nothing) {
            Work::Nothing => return None,
            Work::Read(reading, buffer) => {
                let result = fault.map_or_else(|| Ok(buffer.freeze_without()), Err);
                Done::Read(reading, result)
            }
            Work::Write { writing, .. } => Done::Wrote(writing, fault.map_or(Ok(()), Err)),
            Work::Sync(area) => Done::Synced(area, fault.map_or(Ok(()), Err)),
        };
        Some((self.store, self.token, done))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pool::Class;
    use loadline_san_store::io::{Part, Piece, Sector};

    fn begun(io_request: IoRequest<Blocks>) -> Request {
        let pool = Pool::new(&[Class { blocks: 4, buffers: 1 }]).unwrap();
        let mut request = Request::new();
        assert_eq!(request.begin(1, Token(5), io_request, &pool).unwrap(), 1);
        request.count_one();
        request
    }

    /// It is issued again, and completes so.
    fn again(request: &mut Request, result: i32) -> Next {
        request.entry(0, None);
        request.count_one();
        request.completed(0, result)
    }

    fn reading() -> Request {
        let piece = Piece { area: Area::Capacity, at: 8192, first: 1, blocks: 2 };
        begun(IoRequest::Read(Reading { blocks: 4, pieces: vec![piece] }))
    }

    fn writing() -> Request {
        let bytes = Sector::zeroes(3);
        let parts = vec![Part::Bytes(3)];
        begun(IoRequest::Write(Writing { area: Area::Log, at: 512, bytes, parts, durable: true }))
    }

    #[test]
    fn a_short_one_goes_on_and_a_passing_error_is_tried_again() {
        let mut read = reading();
        assert_eq!(read.completed(0, 512), Next::Again);
        for (result, next) in [(-libc::EINTR, Next::Again), (4096, Next::Again), (-libc::EAGAIN, Next::Again)]
        {
            assert_eq!(again(&mut read, result), next);
        }
        assert_eq!(again(&mut read, 8192 - 4096 - 512), Next::Over);
        assert!(read.is_over() && read.is_of(1) && !read.is_of(2));
        assert!(matches!(read.finish(), Some((1, Token(5), Done::Read(_, Ok(_))))));
        assert!(read.finish().is_none() && !read.is_of(1));

        let mut write = writing();
        assert_eq!(write.completed(0, 700), Next::Again);
        assert!(matches!(write.work, Work::Write { at: 1212, first: 0, .. }));
        assert_eq!(again(&mut write, 1536 - 700), Next::Over);
        assert!(matches!(write.finish(), Some((_, _, Done::Wrote(_, Ok(()))))));
    }

    /// A record's header lies between two blocks, and the device cannot read it.
    #[test]
    fn pieces_that_cannot_be_read_together_are_read_one_by_one() {
        let piece = |at, first| Piece { area: Area::Log, at, first, blocks: 1 };
        let two = || IoRequest::Read(Reading { blocks: 2, pieces: vec![piece(512, 0), piece(5120, 1)] });
        let mut read = begun(two());
        assert_eq!(read.completed(0, -libc::EIO), Next::Again);
        assert_eq!(again(&mut read, 4096), Next::Again, "the first is there");
        assert_eq!(again(&mut read, 1024), Next::Again, "and a part of the second");
        assert_eq!(again(&mut read, 3072), Next::Over);
        assert!(matches!(read.finish(), Some((_, _, Done::Read(_, Ok(_))))));
        // One that cannot be read alone is an error.
        let mut read = begun(two());
        assert_eq!(read.completed(0, -libc::EIO), Next::Again);
        assert_eq!(again(&mut read, 4096), Next::Again);
        assert_eq!(again(&mut read, -libc::EIO), Next::Over);
        let Some((_, _, Done::Read(_, Err(fault)))) = read.finish() else { panic!() };
        assert!(matches!(fault, IoFault::Failed { area: Area::Log, at: 5120, .. }), "{fault}");
    }

    #[test]
    fn a_read_of_pieces_with_something_between_goes_on_where_it_was_short() {
        let piece = |at, first| Piece { area: Area::Log, at, first, blocks: 1 };
        let mut read =
            begun(IoRequest::Read(Reading { blocks: 2, pieces: vec![piece(512, 0), piece(5120, 1)] }));
        let left = |read: &Request| {
            let vectors = &read.vectors[read.progress[0].vectors.clone()];
            vectors.iter().map(|vector| vector.iov_len).collect::<Vec<_>>()
        };
        assert_eq!(left(&read), [4096, 512, 4096]);
        assert_eq!(read.completed(0, 1024), Next::Again);
        assert_eq!(left(&read), [3072, 512, 4096]);
        assert_eq!(again(&mut read, 3072 + 512), Next::Again);
        assert_eq!(left(&read), [4096]);
        assert_eq!(again(&mut read, 0), Next::Over);
        let Some((_, _, Done::Read(_, Err(fault)))) = read.finish() else { panic!() };
        assert!(matches!(fault, IoFault::Short { area: Area::Log, at: 5120 }), "{fault}");
    }

    #[test]
    fn the_first_error_is_what_it_ends_with() {
        let mut read = reading();
        assert_eq!(read.completed(0, 4096), Next::Again);
        assert_eq!(again(&mut read, 0), Next::Over);
        read.fail(0, io::ErrorKind::Other.into());
        let Some((_, _, Done::Read(_, Err(fault)))) = read.finish() else { panic!() };
        assert!(matches!(fault, IoFault::Short { area: Area::Capacity, at: 12288 }), "{fault}");

        let mut write = writing();
        assert_eq!(write.completed(0, -libc::EIO), Next::Over);
        let Some((_, _, Done::Wrote(_, Err(fault)))) = write.finish() else { panic!() };
        assert!(matches!(fault, IoFault::Failed { area: Area::Log, at: 512, .. }), "{fault}");
        for (results, at) in [(vec![512, 0], 1024), (vec![-libc::EAGAIN; MOST_TRIES as usize], 512)] {
            let mut write = writing();
            let (last, first) = results.split_last().unwrap();
            assert_eq!(write.completed(0, first[0]), Next::Again);
            first[1..].iter().for_each(|result| assert_eq!(again(&mut write, *result), Next::Again));
            assert_eq!(again(&mut write, *last), Next::Over);
            let Some((_, _, Done::Wrote(_, Err(IoFault::Failed { at: is, .. })))) = write.finish() else {
                panic!()
            };
            assert_eq!(is, at);
        }
    }
}
