//! What a worker shows to be let in.

use std::fmt::Write;
use std::fs::File;
use std::hint::black_box;
use std::io::Read;

use crate::error::FleetError;

/// Random bytes in a token: nobody guesses 16.
const RANDOM_BYTES: usize = 16;

/// A token that nobody can guess.
pub fn random_token() -> Result<String, FleetError> {
    let mut bytes = [0; RANDOM_BYTES];
    File::open("/dev/urandom").and_then(|mut source| source.read_exact(&mut bytes)).map_err(|e| {
        FleetError::failed(format!("cannot read /dev/urandom for a token: {e}; give one with --token"))
    })?;
    let mut token = String::new();
    for byte in bytes {
        write!(token, "{byte:02x}").expect("writing to memory");
    }
    Ok(token)
}

/// Whether the two are the same, in a time that tells nothing but their lengths.
pub(crate) fn is_same(shown: &str, right: &str) -> bool {
    let differing = shown.bytes().zip(right.bytes()).fold(0, |acc, (a, b)| black_box(acc | (a ^ b)));
    differing == 0 && shown.len() == right.len()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_whole_token_is_the_token() {
        assert!(is_same("secret", "secret"));
        for wrong in ["", "secre", "secrets", "Secret", "secreT"] {
            assert!(!is_same(wrong, "secret") && !is_same("secret", wrong), "{wrong}");
        }
    }

    #[test]
    fn two_random_tokens_differ() {
        let (a, b) = (random_token().unwrap(), random_token().unwrap());
        assert!(a != b && a.len() == 2 * RANDOM_BYTES);
    }
}
