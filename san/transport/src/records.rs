//! Both directions of a connection, as records of TLS 1.3 (RFC 8446, 5). No I/O: bytes in, bytes out.
//!
//! A record has a head of five bytes, at most 16 KiB of data, a byte that says of which kind they are, and a tag. Keys are changed
//! (RFC 8446, 4.6.3) long before the number of records that AES-GCM bears (5.5).

use std::io::IoSlice;
use std::ops::Range;

use rustls::kernel::KernelConnection;
use rustls::{ConnectionTrafficSecrets, ExtractedSecrets};
use thiserror::Error;

use crate::keys::{Forged, Keys, Protection, TAG};

/// Bytes of the head of a record.
const HEAD: usize = 5;
/// Bytes of data in a record at most.
const MOST: usize = 1 << 14;
/// Bytes behind the head at most.
const MOST_SEALED: usize = MOST + 256;
/// Records that are sealed with one key. AES-GCM bears 2^24.5 full ones.
const RECORDS_OF_A_KEY: u64 = 1 << 23;
/// Memory for what is received.
const STAGE: usize = 128 << 10;

/// Records in a row that have no data, at most: rustls bears as many.
const MOST_WITHOUT_DATA: u32 = 32;

const ALERT: u8 = 21;
const HANDSHAKE: u8 = 22;
const DATA: u8 = 23;
/// The message of a handshake that changes a key: its kind, and its length.
const KEY_UPDATE: [u8; 4] = [24, 0, 0, 1];
const CLOSE_NOTIFY: u8 = 0;

/// Why nothing more is received.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum RecordError {
    /// A record is not what was sent.
    #[error(transparent)]
    Forged(#[from] Forged),
    /// A record that TLS 1.3 does not have here.
    #[error("the other side does not follow TLS 1.3: {0}")]
    Protocol(&'static str),
    /// The other side has ended the connection with an alert of this number (RFC 8446, 6).
    #[error("the other side has ended the connection: {}", alert(*.0))]
    Alert(u8),
}

/// What an alert means.
pub(crate) fn alert(number: u8) -> String {
    let why = match number {
        20 | 51 => "it received data that was changed on the way",
        42 | 43 | 46 => "it does not take this node's certificate",
        44 => "this node's certificate is revoked",
        45 => {
            "by its clock this node's certificate has expired, or is not valid yet: check the clocks of both hosts"
        }
        48 => "this node's certificate is of another cluster",
        70 => "it does not speak TLS 1.3",
        71 => "it does not take the algorithms that this node offers",
        112 => "it has another name than this node calls it by",
        116 => "it wants a certificate",
        120 => "it speaks another protocol than this node, or protects its connections in another way",
        _ => return format!("alert {number} of TLS"),
    };
    why.into()
}

/// New keys for a connection whose keys have been used for long.
pub(crate) enum Renewal {
    Client(KernelConnection<rustls::client::ClientConnectionData>),
    Server(KernelConnection<rustls::server::ServerConnectionData>),
}

impl std::fmt::Debug for Renewal {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Renewal::Client(_) => "Client",
            Renewal::Server(_) => "Server",
        })
    }
}

type Secrets = Result<(u64, ConnectionTrafficSecrets), rustls::Error>;

impl Renewal {
    fn next_to_send(&mut self) -> Secrets {
        match self {
            Renewal::Client(connection) => connection.update_tx_secret(),
            Renewal::Server(connection) => connection.update_tx_secret(),
        }
    }

    fn next_to_receive(&mut self) -> Secrets {
        match self {
            Renewal::Client(connection) => connection.update_rx_secret(),
            Renewal::Server(connection) => connection.update_rx_secret(),
        }
    }
}

/// A connection's records: what is to be sent is sealed, and what was received is opened.
#[derive(Debug)]
pub struct Records {
    sealing: Keys,
    opening: Keys,
    renewal: Renewal,
    /// Records that are sealed with one key.
    records_of_a_key: u64,
    /// Sealed records, of which the first bytes are sent.
    sealed: Vec<u8>,
    sent: usize,
    /// What was received: data that were opened, and behind them what was not.
    stage: Box<[u8]>,
    opened: Range<usize>,
    unopened: Range<usize>,
    /// The other side has said that nothing more comes.
    is_closed: bool,
    /// Why nothing more is opened: after a record that is refused, the numbers of those behind it prove nothing.
    refused: Option<RecordError>,
    /// Records in a row that had no data.
    without_data: u32,
    /// The other side has asked for another key, which is owed with the next data. However often it asks, it gets one.
    owes_key: bool,
    /// It was said here that nothing more comes.
    has_closed: bool,
}

impl Records {
    /// From the secrets of a handshake. `received`: data that came with its end, and behind them bytes that were not opened.
    ///
    /// # Panics
    /// If more was received than a handshake reads ahead.
    pub(crate) fn new(
        secrets: ExtractedSecrets,
        renewal: Renewal,
        protection: Protection,
        (data, unopened): (&[u8], &[u8]),
    ) -> Records {
        let mut stage = vec![0; STAGE].into_boxed_slice();
        let opened = 0..data.len();
        let unopened_range = data.len()..data.len() + unopened.len();
        stage[opened.clone()].copy_from_slice(data);
        stage[unopened_range.clone()].copy_from_slice(unopened);
        Records {
            sealing: Keys::new(secrets.tx, protection),
            opening: Keys::new(secrets.rx, protection),
            renewal,
            records_of_a_key: RECORDS_OF_A_KEY,
            sealed: Vec::new(),
            sent: 0,
            stage,
            opened,
            unopened: unopened_range,
            is_closed: false,
            refused: None,
            without_data: 0,
            owes_key: false,
            has_closed: false,
        }
    }

    /// How they are protected.
    pub fn protection(&self) -> Protection {
        self.sealing.protection()
    }

    // ---- sending ---------------------------------------------------------------------------------------

    /// Seals bytes: they are to be sent next.
    pub fn seal(&mut self, slices: &[IoSlice<'_>]) {
        if std::mem::take(&mut self.owes_key) {
            self.change_sealing_key(false);
        }
        let mut record = None;
        for slice in slices {
            let mut rest: &[u8] = slice;
            while !rest.is_empty() {
                let from = *record.get_or_insert_with(|| self.begin_record());
                let room = MOST - (self.sealed.len() - from - HEAD);
                let (some, more) = rest.split_at(rest.len().min(room));
                self.sealed.extend_from_slice(some);
                rest = more;
                if some.len() == room {
                    self.end_record(from, DATA);
                    record = None;
                }
            }
        }
        if let Some(from) = record {
            self.end_record(from, DATA);
        }
    }

    fn begin_record(&mut self) -> usize {
        let from = self.sealed.len();
        self.sealed.extend_from_slice(&[DATA, 3, 3, 0, 0]);
        from
    }

    fn end_record(&mut self, from: usize, kind: u8) {
        self.sealed.push(kind);
        let length = (self.sealed.len() - from - HEAD + TAG) as u16;
        self.sealed[from + 3..from + HEAD].copy_from_slice(&length.to_be_bytes());
        self.sealing.seal(&mut self.sealed, from, HEAD);
        if kind != HANDSHAKE && self.sealing.number() >= self.records_of_a_key {
            self.change_sealing_key(false);
        }
    }

    fn seal_record(&mut self, kind: u8, data: &[u8]) {
        let from = self.begin_record();
        self.sealed.extend_from_slice(data);
        self.end_record(from, kind);
    }

    /// Seals from now on with another key, and says so. `asks`: the other side is to do the same.
    fn change_sealing_key(&mut self, asks: bool) {
        let mut message = KEY_UPDATE.to_vec();
        message.push(asks.into());
        self.seal_record(HANDSHAKE, &message);
        let next = self.renewal.next_to_send().expect("a connection of TLS 1.3 has more keys");
        self.sealing = Keys::new(next, self.protection());
    }

    /// Says that nothing more comes.
    pub fn close(&mut self) {
        if !std::mem::replace(&mut self.has_closed, true) {
            self.seal_record(ALERT, &[1, CLOSE_NOTIFY]);
        }
    }

    /// Sealed bytes that are to be sent next.
    pub fn unsent(&self) -> &[u8] {
        &self.sealed[self.sent..]
    }

    /// So many of them were sent.
    ///
    /// # Panics
    /// If there were not so many.
    pub fn sent(&mut self, bytes: usize) {
        self.sent += bytes;
        assert!(self.sent <= self.sealed.len(), "no more is sent than there is");
        if self.sent == self.sealed.len() {
            self.sealed.clear();
            self.sent = 0;
        }
    }

    // ---- receiving -------------------------------------------------------------------------------------

    /// Where bytes are received to. There is room for a whole record, unless data wait to be [read](Self::read).
    pub fn space(&mut self) -> &mut [u8] {
        if self.opened.is_empty()
            && self.unopened.start > 0
            && self.stage.len() - self.unopened.end < HEAD + MOST_SEALED
        {
            let length = self.unopened.len();
            self.stage.copy_within(self.unopened.clone(), 0);
            (self.opened, self.unopened) = (0..0, 0..length);
        }
        &mut self.stage[self.unopened.end..]
    }

    /// So many bytes were received to [`Self::space`].
    ///
    /// # Panics
    /// If there was no room for them.
    pub fn received(&mut self, bytes: usize) {
        self.unopened.end += bytes;
        assert!(self.unopened.end <= self.stage.len(), "no more is received than there is room for");
    }

    /// Whether data can be [read](Self::read) without receiving more, or the end was received, or a record was refused.
    pub fn has_data(&self) -> bool {
        !self.opened.is_empty()
            || self.is_closed
            || self.refused.is_some()
            || self.next_length().is_some_and(|length| length <= self.unopened.len())
    }

    /// Whether the other side has said that nothing more comes.
    pub fn is_closed(&self) -> bool {
        self.is_closed && self.opened.is_empty()
    }

    /// Bytes of the next record with its head, once its head is there.
    fn next_length(&self) -> Option<usize> {
        let head = self.stage[self.unopened.clone()].get(3..HEAD)?;
        Some(HEAD + usize::from(u16::from_be_bytes([head[0], head[1]])))
    }

    /// Reads data: as much as there is room for, and as was received. How many bytes: 0 if more has to be received, or if the
    /// connection [is closed](Self::is_closed).
    pub fn read(&mut self, into: &mut [u8]) -> Result<usize, RecordError> {
        if let Some(why) = &self.refused {
            return Err(why.clone());
        }
        let mut done = 0;
        while done < into.len() {
            if self.opened.is_empty() {
                match self.open_next() {
                    Ok(true) => {}
                    Ok(false) => break,
                    Err(why) => {
                        self.refused = Some(why.clone());
                        // What came before it is good.
                        return if done > 0 { Ok(done) } else { Err(why) };
                    }
                }
            }
            let some = self.opened.len().min(into.len() - done);
            let from = self.opened.start;
            into[done..done + some].copy_from_slice(&self.stage[from..from + some]);
            self.opened.start += some;
            done += some;
        }
        Ok(done)
    }

    /// Opens the next record, if all of it is there. Whether it did.
    fn open_next(&mut self) -> Result<bool, RecordError> {
        if self.is_closed {
            return Ok(false);
        }
        let Some(length) = self.next_length() else { return Ok(false) };
        if length > HEAD + MOST_SEALED {
            return Err(RecordError::Protocol("a record is too long"));
        }
        if self.unopened.len() < length {
            return Ok(false);
        }
        let from = self.unopened.start;
        let record = &mut self.stage[from..from + length];
        if record[0] != DATA {
            return Err(RecordError::Protocol("a record is not protected"));
        }
        self.unopened.start += length;
        let inner = self.opening.open(record, HEAD)?;
        // Zeroes behind the kind only hide the length.
        let kind_at = inner.iter().rposition(|byte| *byte != 0);
        let kind_at = kind_at.ok_or(RecordError::Protocol("a record is of no kind"))?;
        if kind_at > MOST {
            return Err(RecordError::Protocol("a record is too long"));
        }
        let (data, kind) = (from + HEAD..from + HEAD + kind_at, inner[kind_at]);
        // Each costs some computing, and a stranger can send them without end.
        self.without_data = if kind == DATA && !data.is_empty() { 0 } else { self.without_data + 1 };
        if self.without_data > MOST_WITHOUT_DATA {
            return Err(RecordError::Protocol("too many records in a row have no data"));
        }
        match kind {
            DATA => self.opened = data,
            ALERT => match self.stage[data] {
                [_, CLOSE_NOTIFY] => self.is_closed = true,
                [_, number] => return Err(RecordError::Alert(number)),
                _ => return Err(RecordError::Protocol("an alert does not have two bytes")),
            },
            HANDSHAKE => match self.stage[data] {
                [a, b, c, d, asks @ (0 | 1)] if [a, b, c, d] == KEY_UPDATE => {
                    self.change_opening_key(asks == 1)?
                }
                _ => return Err(RecordError::Protocol("a message of a handshake comes after its end")),
            },
            _ => return Err(RecordError::Protocol("a record is of an unknown kind")),
        }
        Ok(true)
    }

    fn change_opening_key(&mut self, asks: bool) -> Result<(), RecordError> {
        let next =
            self.renewal.next_to_receive().map_err(|_| RecordError::Protocol("a key cannot be changed"))?;
        self.opening = Keys::new(next, self.protection());
        self.owes_key |= asks;
        Ok(())
    }

    /// Changes the key, and asks the other side to do the same.
    #[cfg(test)]
    pub(crate) fn ask_for_a_key(&mut self) {
        self.change_sealing_key(true);
    }

    /// Changes keys after so many records, so that a test need not send millions.
    #[cfg(test)]
    pub(crate) fn change_keys_after(&mut self, records: u64) {
        self.records_of_a_key = records;
    }
}
