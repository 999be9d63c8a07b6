//! A file's bytes as text, and text as it is shown in messages.

use crate::ImportError;

/// The text of a file: UTF-8, or UTF-16, which is what a redirect in Windows PowerShell and "Unicode text" of a spreadsheet
/// are; with a byte order mark or without.
pub(crate) fn decode(file: &str, bytes: &[u8]) -> Result<String, ImportError> {
    let wide = |bytes: &[u8], unit: fn([u8; 2]) -> u16| -> Result<String, ImportError> {
        let pairs = bytes.chunks_exact(2);
        let cut = !pairs.remainder().is_empty();
        let units = pairs.filter_map(|pair| <[u8; 2]>::try_from(pair).ok()).map(unit);
        let text: Result<String, _> = char::decode_utf16(units).collect();
        text.ok().filter(|_| !cut).ok_or_else(|| {
            ImportError::new(file, "it begins as UTF-16 and is not", "save it as UTF-8, or copy it anew")
        })
    };
    let refuse = |problem: &str, advice: &str| Err(ImportError::new(file, problem, advice));
    match bytes {
        [0x1f, 0x8b, ..] | [0x28, 0xb5, 0x2f, 0xfd, ..] => {
            return refuse("it is compressed (gzip or zstd)", "unpack it first");
        }
        [b'P', b'K', 3, 4, ..] => {
            return refuse(
                "it is a ZIP archive, or a workbook such as .xlsx",
                "unpack it, or save the sheet as CSV with decimals with a point",
            );
        }
        [0xff, 0xfe, 0, 0, ..] | [0, 0, 0xfe, 0xff, ..] => {
            return refuse("it is text in UTF-32", "save it as UTF-8");
        }
        _ => {}
    }
    match bytes {
        // Of a file of figures the first characters are ASCII, so that every other byte is 0.
        [1..=127, 0, 1..=127, 0, ..] => wide(bytes, u16::from_le_bytes),
        [0, 1..=127, 0, 1..=127, ..] => wide(bytes, u16::from_be_bytes),
        [0xff, 0xfe, rest @ ..] => wide(rest, u16::from_le_bytes),
        [0xfe, 0xff, rest @ ..] => wide(rest, u16::from_be_bytes),
        _ => {
            let bytes = bytes.strip_prefix(b"\xef\xbb\xbf").unwrap_or(bytes);
            let text = std::str::from_utf8(bytes).map_err(|error| {
                let line = bytes.iter().take(error.valid_up_to()).filter(|byte| **byte == b'\n').count() + 1;
                ImportError::new(
                    format!("{file}, line {line}"),
                    "this is no text in UTF-8",
                    "give a result file as the tool wrote it; save text from Windows as UTF-8",
                )
            })?;
            Ok(text.to_string())
        }
    }
}

/// Foreign text for a message: at most 60 characters, and nothing that steers a terminal.
pub(crate) fn shown(text: &str) -> String {
    printable(text, 60)
}

/// Foreign text that stays in a point, such as a load's name: long enough to distinguish two.
pub(crate) fn kept(text: &str) -> String {
    printable(text, 400)
}

/// A number and what it counts: `1 state`, `2 states`.
pub(crate) fn counted(count: usize, one: &str, several: &str) -> String {
    format!("{count} {}", if count == 1 { one } else { several })
}

fn printable(text: &str, most: usize) -> String {
    let mut shown: String = text.chars().take(most).map(|c| if c.is_control() { '?' } else { c }).collect();
    if text.chars().nth(most).is_some() {
        shown.push('…');
    }
    shown
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_of_windows_is_read_in_either_byte_order() {
        for (mark, unit) in [
            (0xfeff_u16.to_le_bytes(), u16::to_le_bytes as fn(u16) -> [u8; 2]),
            ([0xfe, 0xff], u16::to_be_bytes),
        ] {
            let mut bytes = mark.to_vec();
            "a,µ\r\n😀".encode_utf16().for_each(|u| bytes.extend(unit(u)));
            assert_eq!(decode("f", &bytes).unwrap(), "a,µ\r\n😀");
            bytes.pop();
            assert!(decode("f", &bytes).is_err());
        }
        assert_eq!(decode("f", b"\xef\xbb\xbfiops").unwrap(), "iops");
    }

    #[test]
    fn text_in_utf_16_without_a_mark_is_read_too() {
        for unit in [u16::to_le_bytes as fn(u16) -> [u8; 2], u16::to_be_bytes] {
            let bytes: Vec<u8> = "vms;iops\r\n1;µ\r\n".encode_utf16().flat_map(unit).collect();
            assert_eq!(decode("f", &bytes).unwrap(), "vms;iops\r\n1;µ\r\n");
        }
    }

    #[test]
    fn what_is_packed_is_refused_by_name() {
        for (bytes, what) in [
            (b"\x1f\x8b\x08\0".as_slice(), "compressed"),
            (b"PK\x03\x04xlsx", ".xlsx"),
            (b"\xff\xfe\0\0a\0\0\0", "UTF-32"),
        ] {
            assert!(decode("f", bytes).unwrap_err().problem.contains(what));
        }
    }

    #[test]
    fn bytes_that_are_no_text_are_refused_with_their_line() {
        assert_eq!(decode("f", b"a\nb\xff").unwrap_err().place, "f, line 2");
    }

    #[test]
    fn foreign_text_cannot_steer_a_terminal() {
        assert_eq!(shown("a\x1b[2Jb"), "a?[2Jb");
        assert_eq!(shown(&"x".repeat(99)).chars().count(), 61);
    }
}
