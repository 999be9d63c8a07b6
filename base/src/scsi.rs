//! What SCSI calls its parts, for both ends: operation codes, statuses, sense data. Everything is big-endian.
//!
//! The standards are SAM-5 (statuses), SPC-4 (commands of every device, sense data) and SBC-3 (commands of disks) of INCITS T10.

/// Operation codes of commands.
#[allow(missing_docs, reason = "each is called as in the standard")]
pub mod operation {
    pub const TEST_UNIT_READY: u8 = 0x00;
    pub const REQUEST_SENSE: u8 = 0x03;
    pub const READ_6: u8 = 0x08;
    pub const WRITE_6: u8 = 0x0a;
    pub const INQUIRY: u8 = 0x12;
    pub const MODE_SELECT_6: u8 = 0x15;
    pub const RESERVE_6: u8 = 0x16;
    pub const RELEASE_6: u8 = 0x17;
    pub const MODE_SENSE_6: u8 = 0x1a;
    pub const START_STOP_UNIT: u8 = 0x1b;
    pub const PREVENT_ALLOW_MEDIUM_REMOVAL: u8 = 0x1e;
    pub const READ_CAPACITY_10: u8 = 0x25;
    pub const READ_10: u8 = 0x28;
    pub const WRITE_10: u8 = 0x2a;
    pub const WRITE_AND_VERIFY_10: u8 = 0x2e;
    pub const VERIFY_10: u8 = 0x2f;
    pub const PREFETCH_10: u8 = 0x34;
    pub const SYNCHRONIZE_CACHE_10: u8 = 0x35;
    pub const WRITE_SAME_10: u8 = 0x41;
    pub const UNMAP: u8 = 0x42;
    pub const MODE_SELECT_10: u8 = 0x55;
    pub const MODE_SENSE_10: u8 = 0x5a;
    pub const PERSISTENT_RESERVE_IN: u8 = 0x5e;
    pub const PERSISTENT_RESERVE_OUT: u8 = 0x5f;
    pub const READ_16: u8 = 0x88;
    pub const COMPARE_AND_WRITE: u8 = 0x89;
    pub const WRITE_16: u8 = 0x8a;
    pub const WRITE_AND_VERIFY_16: u8 = 0x8e;
    pub const VERIFY_16: u8 = 0x8f;
    pub const PREFETCH_16: u8 = 0x90;
    pub const SYNCHRONIZE_CACHE_16: u8 = 0x91;
    pub const WRITE_SAME_16: u8 = 0x93;
    /// With a service action: READ CAPACITY(16), GET LBA STATUS.
    pub const SERVICE_ACTION_IN_16: u8 = 0x9e;
    pub const REPORT_LUNS: u8 = 0xa0;
    /// With a service action: REPORT TARGET PORT GROUPS, REPORT SUPPORTED OPERATION CODES and others.
    pub const MAINTENANCE_IN: u8 = 0xa3;
    /// With a service action: SET TARGET PORT GROUPS.
    pub const MAINTENANCE_OUT: u8 = 0xa4;
    pub const READ_12: u8 = 0xa8;
    pub const WRITE_12: u8 = 0xaa;
    pub const WRITE_AND_VERIFY_12: u8 = 0xae;
    pub const VERIFY_12: u8 = 0xaf;
}

/// Service actions: the low five bits of byte 1 of commands that have one.
#[allow(missing_docs, reason = "each is called as in the standard")]
pub mod service_action {
    /// Of [`SERVICE_ACTION_IN_16`](super::operation::SERVICE_ACTION_IN_16).
    pub const READ_CAPACITY_16: u8 = 0x10;
    /// Of [`SERVICE_ACTION_IN_16`](super::operation::SERVICE_ACTION_IN_16).
    pub const GET_LBA_STATUS: u8 = 0x12;
    /// Of [`MAINTENANCE_IN`](super::operation::MAINTENANCE_IN).
    pub const REPORT_TARGET_PORT_GROUPS: u8 = 0x0a;
    /// Of [`MAINTENANCE_IN`](super::operation::MAINTENANCE_IN).
    pub const REPORT_SUPPORTED_OPERATION_CODES: u8 = 0x0c;
    /// Of [`MAINTENANCE_IN`](super::operation::MAINTENANCE_IN).
    pub const REPORT_SUPPORTED_TASK_MANAGEMENT_FUNCTIONS: u8 = 0x0d;
    /// Of [`MAINTENANCE_OUT`](super::operation::MAINTENANCE_OUT).
    pub const SET_TARGET_PORT_GROUPS: u8 = 0x0a;
}

/// How a command ended (SAM-5, 5.3.1).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub enum Status {
    /// It was carried out.
    Good = 0x00,
    /// Sense data say what there is.
    CheckCondition = 0x02,
    /// It is to be sent again later.
    Busy = 0x08,
    /// A reservation of another initiator does not let it.
    ReservationConflict = 0x18,
    /// There are too many commands.
    TaskSetFull = 0x28,
    /// It was aborted by a command of another initiator.
    TaskAborted = 0x40,
}

impl Status {
    /// The status of this number.
    pub fn of_number(number: u8) -> Option<Status> {
        use Status::*;
        [Good, CheckCondition, Busy, ReservationConflict, TaskSetFull, TaskAborted]
            .into_iter()
            .find(|status| *status as u8 == number)
    }
}

/// Sense keys (SPC-4, 4.5.6).
#[allow(missing_docs, reason = "each is called as in the standard")]
pub mod key {
    pub const NO_SENSE: u8 = 0x0;
    pub const NOT_READY: u8 = 0x2;
    pub const MEDIUM_ERROR: u8 = 0x3;
    pub const HARDWARE_ERROR: u8 = 0x4;
    pub const ILLEGAL_REQUEST: u8 = 0x5;
    pub const UNIT_ATTENTION: u8 = 0x6;
    pub const DATA_PROTECT: u8 = 0x7;
    pub const ABORTED_COMMAND: u8 = 0xb;
    pub const MISCOMPARE: u8 = 0xe;
}

/// Sense data: what a command that ended with [`Status::CheckCondition`] says.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Sense {
    /// One of [`key`].
    pub key: u8,
    /// The additional sense code, and its qualifier.
    pub code: (u8, u8),
    /// The INFORMATION field: such as the offset of the first byte that differs, or the address of the first block that failed.
    pub information: Option<u64>,
    /// Which byte of the command or of its parameters is wrong.
    pub pointer: Option<FieldPointer>,
}

/// A byte that is wrong (SPC-4, 4.5.2.4.2).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FieldPointer {
    /// In the command, and not in its parameters.
    pub is_in_command: bool,
    /// The number of the byte.
    pub byte: u16,
}

/// Bytes of sense data of fixed format as they are made here.
pub const FIXED_SENSE: usize = 18;

impl Sense {
    /// Without further details.
    pub const fn new(key: u8, code: u8, qualifier: u8) -> Sense {
        Sense { key, code: (code, qualifier), information: None, pointer: None }
    }

    /// With the INFORMATION field.
    #[must_use]
    pub const fn with_information(self, information: u64) -> Sense {
        Sense { information: Some(information), ..self }
    }

    /// A field of the command is wrong: INVALID FIELD IN CDB, at this byte.
    pub const fn in_command(byte: u16) -> Sense {
        let pointer = Some(FieldPointer { is_in_command: true, byte });
        Sense { pointer, ..Sense::new(key::ILLEGAL_REQUEST, 0x24, 0x00) }
    }

    /// A field of the parameters is wrong: INVALID FIELD IN PARAMETER LIST, at this byte.
    pub const fn in_parameters(byte: u16) -> Sense {
        let pointer = Some(FieldPointer { is_in_command: false, byte });
        Sense { pointer, ..Sense::new(key::ILLEGAL_REQUEST, 0x26, 0x00) }
    }

    /// As descriptors (SPC-4, 4.5.2) if `descriptors`, or in the fixed format (4.5.3). In the fixed format an INFORMATION of more than
    /// 32 bits is left out.
    pub fn encode(&self, descriptors: bool) -> Vec<u8> {
        let pointer = self.pointer.map(|pointer| {
            let [high, low] = pointer.byte.to_be_bytes();
            [0x80 | if pointer.is_in_command { 0x40 } else { 0 }, high, low]
        });
        if descriptors {
            let mut sense = vec![0x72, self.key, self.code.0, self.code.1, 0, 0, 0, 0];
            if let Some(information) = self.information {
                sense.extend([0x00, 0x0a, 0x80, 0x00]);
                sense.extend(information.to_be_bytes());
            }
            if let Some([flags, high, low]) = pointer {
                sense.extend([0x02, 0x06, 0, 0, flags, high, low, 0]);
            }
            sense[7] = (sense.len() - 8) as u8;
            return sense;
        }
        let mut sense = vec![0; FIXED_SENSE];
        (sense[0], sense[2], sense[7]) = (0x70, self.key, (FIXED_SENSE - 8) as u8);
        if let Some(information) = self.information.and_then(|information| u32::try_from(information).ok()) {
            sense[0] |= 0x80;
            sense[3..7].copy_from_slice(&information.to_be_bytes());
        }
        (sense[12], sense[13]) = self.code;
        if let Some(pointer) = pointer {
            sense[15..18].copy_from_slice(&pointer);
        }
        sense
    }

    /// From sense data of either format; `None` if they are neither, or too short. What they have beside the fields here is left out.
    pub fn decode(bytes: &[u8]) -> Option<Sense> {
        let format = bytes.first()? & 0x7f;
        match format {
            0x70 | 0x71 => {
                let has_information = bytes[0] & 0x80 != 0;
                let information = has_information.then(|| bytes.get(3..7)).flatten();
                let information =
                    information.and_then(|four| Some(u32::from_be_bytes(four.try_into().ok()?).into()));
                let code = (bytes.get(12).copied().unwrap_or(0), bytes.get(13).copied().unwrap_or(0));
                Some(Sense { key: bytes.get(2)? & 0x0f, code, information, pointer: None })
            }
            0x72 | 0x73 => {
                let mut sense = Sense::new(bytes.get(1)? & 0x0f, *bytes.get(2)?, *bytes.get(3)?);
                let mut rest = bytes.get(8..).unwrap_or_default();
                while let [kind, length, ..] = rest {
                    let all = 2 + usize::from(*length);
                    if *kind == 0 && all >= 12 && rest.len() >= 12 {
                        sense.information =
                            Some(u64::from_be_bytes(rest[4..12].try_into().expect("eight bytes")));
                    }
                    rest = rest.get(all..).unwrap_or_default();
                }
                Some(sense)
            }
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sense_data_of_both_formats_say_the_same() {
        let miscompare = Sense::new(key::MISCOMPARE, 0x1d, 0x00).with_information(7);
        let wrong = Sense::in_command(8);
        for sense in [miscompare, wrong, Sense::new(key::UNIT_ATTENTION, 0x29, 0x00)] {
            for descriptors in [false, true] {
                let bytes = sense.encode(descriptors);
                assert_eq!(Sense::decode(&bytes), Some(Sense { pointer: None, ..sense }), "{bytes:02x?}");
                for length in 0..bytes.len() {
                    let _ = Sense::decode(&bytes[..length]);
                }
            }
        }
        assert_eq!(wrong.encode(false)[15..], [0xc0, 0, 8]);
        assert_eq!(Sense::decode(&[0x7f; 18]), None);
    }
}
