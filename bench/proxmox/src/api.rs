//! Calls of the API: what is sent, and what an answer means.

use std::time::Duration;

use serde_json::Value;

use crate::error::ProxmoxError;
use crate::http::{Answer, Endpoint, NoAnswer, exchange};
use crate::options::Proxmox;
use crate::stop::Stop;
use crate::tls::{Fingerprint, Tls};
use crate::token::Token;

/// How long a call may take. What takes longer is a task, and answers at once.
const CALL_LIMIT: Duration = Duration::from_secs(45);
/// So often a question is asked again that got no answer. What changes something is never sent twice.
const ATTEMPTS: u32 = 3;
/// The pause before a question is asked again.
const PAUSE: Duration = Duration::from_secs(1);

/// A call that did not succeed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct CallError {
    /// The status of the answer; `None`: there was none that is whole.
    pub(crate) status: Option<u16>,
    /// What Proxmox VE says, or why there is no answer.
    pub(crate) reason: String,
    /// Whether the API's certificate was refused: nothing was sent.
    is_untrusted: bool,
    /// The call, in words, and which API.
    what: String,
    /// What the call needs, if the answer does not say what is missing.
    needs: &'static str,
}

impl CallError {
    /// Whether the machine that the call is about is not there.
    pub(crate) fn is_absent(&self) -> bool {
        self.reason.contains("does not exist")
            || self.reason.contains("no such VM")
            || self.status == Some(404)
    }

    /// Whether the VMID that the call wanted for a new machine is taken.
    pub(crate) fn is_taken(&self) -> bool {
        is_taken(&self.reason)
    }

    /// Whether the token may not do it, or see it.
    pub(crate) fn is_forbidden(&self) -> bool {
        self.status == Some(403)
    }

    /// Whether the call may have been carried out all the same: there is no answer of the node.
    pub(crate) fn is_unanswered(&self) -> bool {
        self.is_passing() && self.status != Some(429)
    }

    /// Whether the same question may have an answer a moment later: the network, a busy node, a proxy.
    pub(crate) fn is_passing(&self) -> bool {
        // 595 to 599 are of the proxy between the nodes: it does not reach the node, or not in time.
        matches!(self.status, None | Some(429 | 502..=504 | 595..=599)) && !self.is_untrusted
    }

    /// Why the privilege is missing that the answer names: `Permission check failed (/vms/100, VM.Clone)`.
    fn missing(&self) -> Option<(&str, String)> {
        let (_, inner) = self.reason.split_once("Permission check failed (")?;
        let (path, privileges) = inner.split_once(')')?.0.split_once(", ")?;
        Some((path, privileges.replace('|', " or ")))
    }
}

/// Whether Proxmox VE says that a VMID is taken: as it finds it itself, as its file system finds it if another node was faster, or as the log of
/// a task has it. A disk that exists already is something else.
pub(crate) fn is_taken(reason: &str) -> bool {
    let words: Vec<&str> = reason.split_whitespace().collect();
    let is_machine = |four: &[&str]| matches!(four, ["VM" | "CT", id, "already", "exists"] if id.chars().all(|c| c.is_ascii_digit()));
    reason.contains("config file already exists")
        || reason.contains("ID already in use")
        || (reason.contains(".conf") && reason.contains("File exists"))
        || words.windows(4).any(is_machine)
}

impl From<CallError> for ProxmoxError {
    fn from(error: CallError) -> ProxmoxError {
        let CallError { status, reason, what, needs, .. } = &error;
        let failed = |advice: &str| ProxmoxError::failed(format!("{what}: {reason}{advice}"));
        match status {
            Some(401) => ProxmoxError::usage(format!(
                "{what}: 401 {reason}: the token is not accepted. Check the token (USER@REALM!TOKENID=UUID), and with 'pveum user token list \
                 USER@REALM' whether it exists and has not expired"
            )),
            Some(403) => match error.missing() {
                Some((path, privileges)) => ProxmoxError::usage(format!(
                    "{what}: the token lacks the privilege {privileges} on {path}: give its role the privilege ('pveum role modify'), and the \
                     token the role on that path or above it ('pveum acl modify'). A token with privilege separation needs the role itself"
                )),
                None => ProxmoxError::usage(format!(
                    "{what}: 403 {reason}: the token lacks a privilege, and the answer does not say which. This call needs {needs}"
                )),
            },
            Some(status @ 400) => ProxmoxError::usage(format!("{what}: {status} {reason}")),
            Some(595..=599) => failed(
                ": the node that the API should pass this on to does not answer. Check that it is up (pvecm status)",
            ),
            Some(status) => ProxmoxError::failed(format!("{what}: {status} {reason}")),
            None if error.is_untrusted => ProxmoxError::usage(format!("{what}: {reason}")),
            None => failed(""),
        }
    }
}

/// The API of a cluster. Several threads may use it at the same time.
#[derive(Clone)]
pub struct Api {
    endpoint: Endpoint,
    tls: Tls,
    token: Token,
    stop: Stop,
}

impl std::fmt::Debug for Api {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Api({}, {:?})", self.endpoint, self.token)
    }
}

/// Parameters of a call.
pub(crate) type Parameters<'a> = &'a [(&'a str, String)];

impl Api {
    /// The API that the options name. Reads the token. Sends nothing. Waits of its calls end when `stop` says so.
    pub fn new(options: &Proxmox, stop: Stop) -> Result<Api, ProxmoxError> {
        options.check()?;
        let usage = |why: String| ProxmoxError::usage(format!("[fleet.proxmox] {why}"));
        let pinned = options.fingerprint.as_deref().map(Fingerprint::parse).transpose().map_err(usage)?;
        Ok(Api {
            endpoint: Endpoint::parse(&options.api).map_err(usage)?,
            tls: Tls::new(pinned)?,
            token: Token::find(options.token_file.as_deref())?,
            stop,
        })
    }

    /// The same API, without a request to stop: what is deleted at the end is deleted after Ctrl-C too.
    pub(crate) fn to_clean(&self) -> Api {
        Api { stop: Stop::default(), ..self.clone() }
    }

    pub(crate) fn stop(&self) -> &Stop {
        &self.stop
    }

    /// Asks a question. It is asked again if there is no answer.
    pub(crate) fn get(
        &self,
        path: &str,
        query: Parameters<'_>,
        needs: &'static str,
    ) -> Result<Value, CallError> {
        let mut attempt = 1;
        loop {
            let result = self.call("GET", path, query, needs);
            match &result {
                Err(error) if error.is_passing() && attempt < ATTEMPTS && !self.stop.wait(PAUSE) => {
                    attempt += 1
                }
                _ => return result,
            }
        }
    }

    /// Has something done. The answer is mostly the name of a task.
    pub(crate) fn post(
        &self,
        path: &str,
        form: Parameters<'_>,
        needs: &'static str,
    ) -> Result<Value, CallError> {
        self.call("POST", path, form, needs)
    }

    /// Has something deleted. The answer is mostly the name of a task.
    pub(crate) fn delete(
        &self,
        path: &str,
        query: Parameters<'_>,
        needs: &'static str,
    ) -> Result<Value, CallError> {
        self.call("DELETE", path, query, needs)
    }

    fn call(
        &self,
        method: &str,
        path: &str,
        parameters: Parameters<'_>,
        needs: &'static str,
    ) -> Result<Value, CallError> {
        let encoded: Vec<String> =
            parameters.iter().map(|(name, value)| format!("{name}={}", encoded(value))).collect();
        let encoded = encoded.join("&");
        let (query, body) = match method {
            "POST" => (String::new(), encoded.as_str()),
            _ if encoded.is_empty() => (String::new(), ""),
            _ => (format!("?{encoded}"), ""),
        };
        let form = match method {
            "POST" => "Content-Type: application/x-www-form-urlencoded\r\n",
            _ => "",
        };
        let head = format!(
            "{method} /api2/json{path}{query} HTTP/1.1\r\n{form}Authorization: {}\r\n",
            self.token.header()
        );
        let error = |status, reason: String| CallError {
            status,
            reason,
            is_untrusted: false,
            what: format!("Proxmox VE at {}: {method} {path}", self.endpoint),
            needs,
        };
        let answer =
            exchange(&self.endpoint, &self.tls, &head, body, CALL_LIMIT).map_err(|none| match none {
                NoAnswer::Unreachable(why) => error(
                    None,
                    format!(
                        "the API cannot be reached: {why}. Check api in [fleet.proxmox], and the firewall"
                    ),
                ),
                NoAnswer::Untrusted(why) => CallError { is_untrusted: true, ..error(None, why) },
                NoAnswer::Broken(why) => error(None, why),
            })?;
        let document: Option<Value> = serde_json::from_slice(&answer.body).ok();
        if !(200..300).contains(&answer.status) {
            return Err(error(Some(answer.status), reason(&answer, document.as_ref())));
        }
        let data = document.and_then(|mut document| document.as_object_mut()?.remove("data"));
        data.ok_or_else(|| {
            let begin: String = String::from_utf8_lossy(&answer.body).chars().take(80).collect();
            error(None, format!("the answer is not that of Proxmox VE, JSON with data: {begin:?}. Check api in [fleet.proxmox]"))
        })
    }
}

/// Why a call failed: what the body says, the status line otherwise, and which parameters are wrong.
fn reason(answer: &Answer, document: Option<&Value>) -> String {
    let message = document.and_then(|document| document["message"].as_str()).map(str::trim);
    let mut reason = message.filter(|message| !message.is_empty()).unwrap_or(&answer.reason).to_string();
    let errors = document.and_then(|document| document["errors"].as_object());
    for (parameter, why) in errors.into_iter().flatten() {
        let why = why.as_str().map_or_else(|| why.to_string(), |why| why.trim().to_string());
        reason = format!("{reason} {parameter}: {why}");
    }
    if reason.is_empty() { "without a reason".into() } else { reason.replace('\n', " | ") }
}

/// A text as a part of a query, a form or a path.
pub(crate) fn encoded(text: &str) -> String {
    let plain = |c: u8| c.is_ascii_alphanumeric() || b"-_.~".contains(&c);
    text.bytes().map(|c| if plain(c) { char::from(c).to_string() } else { format!("%{c:02X}") }).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn failed(status: Option<u16>, reason: &str) -> CallError {
        let (what, needs) = ("POST /x".into(), "VM.Clone on the template");
        CallError {
            status,
            reason: reason.into(),
            is_untrusted: reason.starts_with("its certificate"),
            what,
            needs,
        }
    }

    #[test]
    fn a_missing_privilege_is_named_with_its_path() {
        let words = |reason: &str| ProxmoxError::from(failed(Some(403), reason)).message;
        let one = words("Permission check failed (/vms/9000, VM.Clone)");
        assert!(one.contains("lacks the privilege VM.Clone on /vms/9000"), "{one}");
        let either =
            words("Permission check failed (/vms/101, VM.GuestAgent.Audit|VM.GuestAgent.Unrestricted)");
        assert!(either.contains("VM.GuestAgent.Audit or VM.GuestAgent.Unrestricted on /vms/101"), "{either}");
        let none = words("Permission check failed");
        assert!(none.contains("This call needs VM.Clone on the template"), "{none}");
    }

    #[test]
    fn an_answer_says_why_in_its_body_or_else_in_its_status_line() {
        let answer = |reason: &str| Answer { status: 500, reason: reason.into(), body: Vec::new() };
        let document = serde_json::json!({"data": null, "message": "QEMU guest agent is not running\n"});
        assert_eq!(
            reason(&answer("Internal Server Error"), Some(&document)),
            "QEMU guest agent is not running"
        );
        let old = serde_json::json!({"data": null});
        assert_eq!(reason(&answer("VM 101 is locked (clone)"), Some(&old)), "VM 101 is locked (clone)");
        let wrong = serde_json::json!({"data": null, "errors": {"newid": "type check failed\n"}});
        assert_eq!(
            reason(&answer("Parameter verification failed."), Some(&wrong)),
            "Parameter verification failed. newid: type check failed"
        );
        assert_eq!(reason(&answer(""), None), "without a reason");
    }

    #[test]
    fn a_vmid_is_taken_by_a_machine_and_not_by_a_disk() {
        for taken in [
            "unable to create VM 101: config file already exists",
            "Parameter verification failed. vmid: VM 101 already exists",
            "CT 101 already exists on node 'pve2'",
            "clone failed: unable to open file '/etc/pve/nodes/pve2/qemu-server/101.conf.tmp.7' - File exists",
        ] {
            assert!(is_taken(taken), "{taken}");
        }
        for other in [
            "clone failed: volume 'ceph:vm-101-disk-0' already exists",
            "clone failed: rbd error: File exists",
        ] {
            assert!(!is_taken(other), "{other}");
        }
    }

    #[test]
    fn only_what_may_pass_is_asked_again() {
        assert!(failed(None, "the answer is not whole").is_passing());
        assert!(failed(Some(596), "Connection timed out").is_passing());
        for (status, reason) in
            [(Some(403), ""), (Some(500), ""), (Some(401), ""), (None, "its certificate has")]
        {
            assert!(!failed(status, reason).is_passing(), "{status:?}");
        }
    }

    #[test]
    fn a_token_user_in_the_name_of_a_task_is_encoded() {
        assert_eq!(encoded("UPID:pve1:a@pve!t:"), "UPID%3Apve1%3Aa%40pve%21t%3A");
    }
}
