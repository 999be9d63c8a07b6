//! Secrets that a command is given. A command line is no place for them: every user of the host can read it.

use std::io::Read;
use std::path::PathBuf;

/// Bytes of a file with a token at most.
const LONGEST: u64 = 4096;

/// A file with a token.
#[derive(Debug, Clone, Default, clap::Args)]
pub(crate) struct TokenFile {
    /// Read the token from this file, or from standard input if FILE is '-', and not from --token or the environment.
    #[arg(long, value_name = "FILE")]
    token_file: Option<PathBuf>,
}

impl TokenFile {
    /// The token in the file, if one is named, otherwise this one. Fails if the file cannot be read or has no token; the error is for
    /// people.
    pub(crate) fn or(&self, token: Option<&str>) -> Result<Option<String>, String> {
        match &self.token_file {
            Some(path) if path.as_os_str() == "-" => {
                read(std::io::stdin().lock(), "standard input").map(Some)
            }
            Some(path) => {
                let name = path.display().to_string();
                let file =
                    std::fs::File::open(path).map_err(|error| format!("--token-file {name}: {error}"))?;
                read(file, &name).map(Some)
            }
            None => Ok(token.map(str::to_owned)),
        }
    }
}

fn read(from: impl Read, name: &str) -> Result<String, String> {
    let failed = |why: &str| format!("--token-file: {name} {why}");
    let mut text = Vec::new();
    from.take(LONGEST + 1)
        .read_to_end(&mut text)
        .map_err(|error| failed(&format!("cannot be read: {error}")))?;
    if text.len() as u64 > LONGEST {
        return Err(failed(&format!("has more than {LONGEST} bytes: name a file that has the token alone")));
    }
    let text = String::from_utf8(text).map_err(|_| failed("has no token: it is not text"))?;
    match text.trim() {
        "" => Err(failed("has no token: it is empty")),
        token if token.contains(char::is_whitespace) => {
            Err(failed("has more than a token: name a file that has the token alone"))
        }
        token => Ok(token.into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_has_a_token_alone() {
        assert_eq!(read(&b"loadline-join-abc\n"[..], "x"), Ok("loadline-join-abc".into()));
        for (text, words) in [
            (&b""[..], "is empty"),
            (b" \n", "is empty"),
            (b"a b\n", "more than a token"),
            (b"\xff\xfe", "not text"),
            (&[b'x'; 5000], "more than 4096 bytes"),
        ] {
            let why = read(text, "x").unwrap_err();
            assert!(why.contains(words) && why.starts_with("--token-file: x "), "{why}");
        }
    }

    #[test]
    fn a_file_comes_before_what_was_given_in_another_way() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("token");
        std::fs::write(&path, "of-the-file\n").unwrap();
        let file = TokenFile { token_file: Some(path.clone()) };
        assert_eq!(file.or(Some("given")), Ok(Some("of-the-file".into())));
        std::fs::remove_file(&path).unwrap();
        assert!(file.or(Some("given")).unwrap_err().contains("token: "), "it names the file");
        assert_eq!(TokenFile::default().or(Some("given")), Ok(Some("given".into())));
        assert_eq!(TokenFile::default().or(None), Ok(None));
    }
}
