//! What a volume or a node can be called.

/// Characters of a name at most.
const MOST: usize = 64;

/// Why a text is no name of a volume or a node. A name is part of paths, URLs and command lines: so it does not begin with `-`
/// or `.`, and `..` is none.
pub fn check(name: &str) -> Result<(), String> {
    let fine = |c: char| c.is_ascii_alphanumeric() || "-_.".contains(c);
    let begins = name.starts_with(|c: char| c.is_ascii_alphanumeric() || c == '_');
    if begins && name.len() <= MOST && name.chars().all(fine) {
        return Ok(());
    }
    Err(format!(
        "'{}' cannot be a name: a name has 1 to {MOST} letters, digits, '-', '_' and '.', and does not begin with '-' or '.'",
        name.escape_debug()
    ))
}

#[cfg(test)]
mod tests {
    use super::check;

    #[test]
    fn what_is_an_option_or_a_path_is_no_name() {
        for name in ["a", "vm-7", "_x", "9.raw", &"x".repeat(64)] {
            assert_eq!(check(name), Ok(()), "{name}");
        }
        for name in ["", ".", "..", ".x", "-", "-x", "--help", "a/b", "a b", "ä", "a\n", &"x".repeat(65)] {
            assert!(check(name).is_err(), "{name}");
        }
    }
}
