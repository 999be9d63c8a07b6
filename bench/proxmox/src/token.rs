//! The token with which the API is used: it is read from a file that only its owner can read, or from the environment, and it is never
//! shown.

use std::fmt;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::sync::OnceLock;

use crate::error::ProxmoxError;

/// The environment variable that has the token if the study names no file.
pub const TOKEN_VARIABLE: &str = "LOADLINE_PROXMOX_TOKEN";

/// What the variable had when [`take_variable`] removed it.
static TAKEN: OnceLock<String> = OnceLock::new();

/// Removes the variable from the environment of this process, which keeps its value: no program that it starts gets the token.
///
/// # Safety
/// There is no other thread in this process yet.
pub unsafe fn take_variable() {
    if let Some(text) = std::env::var_os(TOKEN_VARIABLE) {
        // It is called once, before all else. What is no text is no token either, and is refused as such.
        let _ = TAKEN.set(text.to_string_lossy().into_owned());
        // SAFETY: no other thread reads or changes the environment meanwhile, since there is none: the caller guarantees it.
        unsafe { std::env::remove_var(TOKEN_VARIABLE) };
    }
}

/// The variable and its value, for another process of this program that is to have it: a run that the console starts.
pub fn taken_variable() -> Option<(&'static str, &'static str)> {
    TAKEN.get().map(|text| (TOKEN_VARIABLE, text.as_str()))
}

/// A token beyond this is something else, bytes.
const LONGEST: u64 = 512;
const FORM: &str = "USER@REALM!TOKENID=UUID, as 'pveum user token add' prints the two parts";

/// A token of the API: `USER@REALM!TOKENID=UUID`.
#[derive(Clone, PartialEq, Eq)]
pub struct Token(String);

impl fmt::Debug for Token {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Token({}=...)", self.id())
    }
}

impl Token {
    /// Reads the token from a file, or without one from [`TOKEN_VARIABLE`]. The error is of kind `Usage`.
    pub fn find(file: Option<&Path>) -> Result<Token, ProxmoxError> {
        match file {
            Some(path) => Token::read(path),
            None => match TAKEN.get() {
                Some(text) => Token::parse(text, TOKEN_VARIABLE),
                None => Err(ProxmoxError::usage(format!(
                    "[fleet.proxmox] needs a token of the API: name a file that has it (token_file), or set {TOKEN_VARIABLE}. It has the \
                     form {FORM}"
                ))),
            },
        }
    }

    fn read(path: &Path) -> Result<Token, ProxmoxError> {
        let fault = |what: String| {
            ProxmoxError::usage(format!("[fleet.proxmox] token_file {}: {what}", path.display()))
        };
        let metadata = fs::metadata(path).map_err(|e| fault(format!("it cannot be read: {e}")))?;
        if !metadata.is_file() || metadata.len() > LONGEST {
            return Err(fault(format!("it is no file with a token, {FORM}")));
        }
        let mode = metadata.permissions().mode() & 0o7777;
        if mode & 0o077 != 0 {
            return Err(fault(format!(
                "its mode is {mode:04o}, so that others than its owner can use the token: chmod 600 {}",
                path.display()
            )));
        }
        let text = fs::read_to_string(path).map_err(|e| fault(format!("it cannot be read: {e}")))?;
        Token::parse(&text, &format!("token_file {}", path.display()))
    }

    fn parse(text: &str, origin: &str) -> Result<Token, ProxmoxError> {
        let text = text.trim();
        // A whole header, as some programs write it down.
        let text = text.strip_prefix("PVEAPIToken=").unwrap_or(text);
        let is_word = |part: &str| !part.is_empty() && part.chars().all(|c| c.is_ascii_graphic());
        let parts = text.split_once('!').and_then(|(user, rest)| Some((user, rest.split_once('=')?)));
        let is_token = parts.is_some_and(|(user, (id, secret))| {
            let user = user.rsplit_once('@');
            user.is_some_and(|(name, realm)| is_word(name) && is_word(realm))
                && is_word(id)
                && is_word(secret)
        });
        match is_token {
            true => Ok(Token(text.into())),
            // What it holds may be a secret all the same.
            false => {
                Err(ProxmoxError::usage(format!("{origin} holds no token: it must have the form {FORM}")))
            }
        }
    }

    /// The token's name, `USER@REALM!TOKENID`, which is no secret.
    pub fn id(&self) -> &str {
        self.0.split_once('=').map_or("", |(id, _)| id)
    }

    /// The value of the header `Authorization`.
    pub(crate) fn header(&self) -> String {
        format!("PVEAPIToken={}", self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_token_is_read_from_a_file_of_its_owner_only_and_is_never_shown() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("token");
        fs::write(&path, "bench@pve!load=11111111-2222\n").unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o640)).unwrap();
        let refused = Token::find(Some(&path)).unwrap_err().message;
        assert!(refused.contains("mode is 0640") && refused.contains("chmod 600"), "{refused}");
        fs::set_permissions(&path, fs::Permissions::from_mode(0o600)).unwrap();
        let token = Token::find(Some(&path)).unwrap();
        assert_eq!(token.header(), "PVEAPIToken=bench@pve!load=11111111-2222");
        assert_eq!(format!("{token:?}"), "Token(bench@pve!load=...)");
    }

    #[test]
    fn what_is_no_token_is_refused_without_being_repeated() {
        for text in ["", "secret", "bench@pve=secret", "bench!load=secret", "bench@pve!load", "a@b!c=se cret"]
        {
            let refused = Token::parse(text, "here").unwrap_err().message;
            assert!(refused.starts_with("here holds no token") && !refused.contains("secret"), "{refused}");
        }
        assert!(Token::parse("PVEAPIToken=a@b!c=d", "here").is_ok());
    }
}
