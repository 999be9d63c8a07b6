//! Names of targets: each volume is a target of its own, whose name says which volume it is.

use loadline_base::iscsi::LONGEST_NAME;

/// What the name of each target begins with.
pub const PREFIX: &str = "iqn.2026-01.org.loadline:";

/// The name of the target of a volume. Two volumes never have the same: characters that names of iSCSI cannot have, upper case among
/// them, become `:` and the two digits of their byte.
pub fn name_of(volume: &str) -> String {
    let mut name = PREFIX.to_string();
    for byte in volume.bytes() {
        match byte {
            b'a'..=b'z' | b'0'..=b'9' | b'-' | b'.' => name.push(byte.into()),
            other => name.push_str(&format!(":{other:02x}")),
        }
    }
    name
}

/// The volume whose target has this name, in upper or lower case; `None` if no volume can have it.
pub fn volume_of(name: &str) -> Option<String> {
    if name.len() > LONGEST_NAME {
        return None;
    }
    let name = name.to_ascii_lowercase();
    let (mut volume, mut rest) = (Vec::new(), name.strip_prefix(PREFIX)?.as_bytes());
    while let [first, behind @ ..] = rest {
        rest = behind;
        volume.push(match first {
            b':' => {
                let digits = std::str::from_utf8(rest.get(..2)?).ok()?;
                rest = &rest[2..];
                u8::from_str_radix(digits, 16).ok()?
            }
            other => *other,
        });
    }
    let volume = String::from_utf8(volume).ok().filter(|volume| !volume.is_empty())?;
    // Each volume has one name only.
    (name_of(&volume) == name).then_some(volume)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_target_is_named_by_its_volume() {
        assert_eq!(name_of("vm-7.disk"), "iqn.2026-01.org.loadline:vm-7.disk");
        assert_eq!(name_of("Vm_1"), "iqn.2026-01.org.loadline::56m:5f1");
        for volume in ["a", "A", "a_b", "_", "9.raw", &"x".repeat(64), &"X".repeat(64)] {
            let name = name_of(volume);
            assert!(name.len() <= LONGEST_NAME, "{name}");
            assert_eq!(volume_of(&name).as_deref(), Some(volume));
            assert_eq!(volume_of(&name.to_ascii_uppercase()).as_deref(), Some(volume));
        }
    }

    #[test]
    fn what_no_volume_is_named_by_is_the_name_of_none() {
        for name in ["", "a", PREFIX, "iqn.2026-01.org.loadline", "iqn.2026-01.org.example:a"] {
            assert_eq!(volume_of(name), None, "{name}");
        }
        for behind in [":", ":5", ":xx", ":61", "a_b", "a b", ":+5", ":ff", ":é", &"x".repeat(300)] {
            assert_eq!(volume_of(&format!("{PREFIX}{behind}")), None, "{behind}");
        }
    }
}
