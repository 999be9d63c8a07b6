//! How many machines a host has memory for.

use loadline_base::units::ByteSize;

use crate::error::GuestError;

/// What QEMU needs for itself beside the memory of its machine: 97 MiB with one disk and software emulation (`./dev bench machines`),
/// rounded up.
const OVERHEAD: u64 = 104 << 20;

/// Refuses machines that do not fit into this much free memory, and says how many would.
pub fn check(machines: u32, memory: ByteSize, free: ByteSize) -> Result<(), GuestError> {
    let each = memory.0.saturating_add(OVERHEAD);
    let needed = each.saturating_mul(machines.into());
    if needed <= free.0 {
        return Ok(());
    }
    let fit = free.0 / each;
    Err(GuestError::usage(format!(
        "{machines} virtual machines of {memory} need {} MiB of memory with what QEMU itself needs, and {} MiB are free: {} would fit",
        needed >> 20,
        free.0 >> 20,
        if fit == 0 { "none".to_string() } else { fit.to_string() }
    )))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn machines_that_do_not_fit_are_refused_with_how_many_would() {
        let (memory, gib) = (ByteSize(128 << 20), ByteSize(1 << 30));
        assert_eq!(check(4, memory, gib), Ok(()));
        let error = check(8, memory, gib).unwrap_err().message;
        assert!(error.contains("need 1856 MiB") && error.ends_with("4 would fit"), "{error}");
        assert!(check(1, ByteSize(2 << 30), gib).unwrap_err().message.ends_with("none would fit"));
        assert!(check(u32::MAX, ByteSize(u64::MAX), gib).is_err());
    }
}
