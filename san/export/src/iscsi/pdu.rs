//! PDUs without digests in plain bytes, as they are before a session begins.

use loadline_base::iscsi::{HEADER, Header, padding};

/// Takes the first PDU from these bytes, if all of it is there: its header and its data. Additional header segments are dropped. The error is
/// how much data it has, if that is more than `most`.
pub(super) fn take(bytes: &mut Vec<u8>, most: usize) -> Result<Option<(Header, Vec<u8>)>, usize> {
    let Some(header) = bytes.first_chunk().map(|header| Header(*header)) else { return Ok(None) };
    let (from, length) = (HEADER + header.additional_bytes(), header.data_bytes());
    if length > most {
        return Err(length);
    }
    let end = from + length + padding(length);
    if bytes.len() < end {
        return Ok(None);
    }
    let data = bytes[from..from + length].to_vec();
    bytes.drain(..end);
    Ok(Some((header, data)))
}

/// Adds a PDU to bytes that are sent. Sets the length of the data in its header.
pub(super) fn put(into: &mut Vec<u8>, mut header: Header, data: &[u8]) {
    header.set_data_bytes(data.len());
    into.extend(header.0);
    into.extend_from_slice(data);
    into.resize(into.len() + padding(data.len()), 0);
}

#[cfg(test)]
mod tests {
    use loadline_base::iscsi::opcode;

    use super::*;

    #[test]
    fn a_pdu_is_taken_when_all_of_it_is_there() {
        let mut all = Vec::new();
        put(&mut all, Header::new(opcode::TEXT, 0x80), b"a=b\0c");
        assert_eq!(all.len(), HEADER + 8);
        put(&mut all, Header::new(opcode::NOP_OUT, 0x80), b"");
        let mut bytes = Vec::new();
        for (sent, byte) in (1..).zip(&all) {
            bytes.push(*byte);
            match take(&mut bytes, 5).unwrap() {
                Some((header, data)) if header.opcode() == opcode::TEXT => {
                    assert_eq!((sent, &data[..]), (HEADER + 8, &b"a=b\0c"[..]));
                }
                Some(_) => assert_eq!(sent, all.len()),
                None => assert!(sent != HEADER + 8 && sent != all.len()),
            }
        }
        assert_eq!(take(&mut all, 4), Err(5));
    }
}
