//! How loads lie on disks: where a working set ends, in which units it is verified, and whether it fits.

use std::path::Path;

use loadline_base::units::ByteSize;
use loadline_load::Target;
use loadline_profile::{Extent, Profile};

use crate::error::StudyError;

/// Where a study's device is: a relative path is relative to the study file.
pub(crate) fn located(target: &Target, study_folder: &Path) -> Target {
    match target {
        Target::Path(path) => Target::Path(study_folder.join(path)),
        elsewhere => elsewhere.clone(),
    }
}

/// Whether a load can be put on a disk of this size; `source` is where the size comes from.
pub(crate) fn fits(label: &str, profile: &Profile, disk: ByteSize, source: &str) -> Result<(), StudyError> {
    let usage = |message: String| Err(StudyError::usage(format!("profile {label}: {message}")));
    let begin = profile.base_offset;
    let Some(room) = disk.0.checked_sub(begin.0).filter(|room| *room > 0) else {
        return usage(format!(
            "its base_offset of {begin} lies beyond the end of a disk of {disk} ({source}): make it smaller"
        ));
    };
    if let Some(Extent::Bytes(working_set)) = profile.working_set
        && working_set.0 > room
    {
        return usage(format!(
            "its working set of {working_set} is larger than what a disk of {disk} has from {begin} on \
             ({source}): make it smaller, or the disk larger"
        ));
    }
    let used = used(profile, disk).0 - begin.0;
    if profile.block_size.0 > used {
        return usage(format!(
            "its block_size of {} does not fit into the {} that it uses of a disk of {disk} ({source}): make the \
             blocks smaller, or the working set or disk larger",
            profile.block_size,
            ByteSize(used)
        ));
    }
    Ok(())
}

/// The largest unit, up to 4 KiB, of which everything that a load writes or reads is a multiple: what is verified.
pub(crate) fn verified_unit(profile: &Profile) -> u64 {
    let parts = [profile.block_size.0, profile.alignment.map_or(0, |a| a.0), profile.base_offset.0, 4096];
    1 << parts.into_iter().filter(|part| *part > 0).map(u64::trailing_zeros).min().unwrap_or(12)
}

/// Where on a disk of this size a load's working set ends.
pub(crate) fn used(profile: &Profile, disk: ByteSize) -> ByteSize {
    let room = disk.0.saturating_sub(profile.base_offset.0);
    let length = match profile.working_set {
        None => room,
        Some(Extent::Bytes(size)) => size.0.min(room),
        Some(Extent::Percent(percent)) => ((room as f64 * percent / 100.0) as u64).min(room),
    };
    ByteSize(profile.base_offset.0.saturating_add(length).min(disk.0))
}
