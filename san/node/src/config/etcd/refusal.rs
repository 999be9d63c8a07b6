//! What an error of etcd says: that a member did not answer, or that etcd answered and refuses.

use std::fmt;

use etcd_client::Error;
use tonic::{Code, Status};

use crate::config::ConfigError;

/// Why a request to a member failed.
#[derive(Debug)]
pub(super) struct Fault {
    /// What is wrong, and for a refusal what to do.
    pub(super) text: String,
    /// Etcd has answered, and refuses: all members would.
    pub(super) is_refusal: bool,
}

impl From<String> for Fault {
    /// Of a member that did not answer.
    fn from(text: String) -> Fault {
        Fault { text, is_refusal: false }
    }
}

impl From<Error> for Fault {
    fn from(error: Error) -> Fault {
        match &error {
            Error::GRpcStatus(status) if let Some(text) = refusal(status) => Fault { text, is_refusal: true },
            _ => why(&error).into(),
        }
    }
}

impl From<Fault> for ConfigError {
    fn from(fault: Fault) -> ConfigError {
        match fault.is_refusal {
            true => ConfigError::Refused(fault.text),
            false => ConfigError::Unavailable(fault.text),
        }
    }
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

/// An error with what has caused it: `tonic` states the cause only there.
pub(super) fn why(error: &(dyn std::error::Error + 'static)) -> String {
    if let Some(Error::GRpcStatus(status)) = error.downcast_ref::<Error>()
        && !matches!(status.code(), Code::Unknown)
        && !status.message().is_empty()
    {
        return status.message().to_owned();
    }
    // The innermost cause has the words that mean something; the others have those of the libraries.
    let mut cause: &dyn std::error::Error = match error.downcast_ref::<Error>() {
        Some(Error::GRpcStatus(status)) => status,
        _ => error,
    };
    while let Some(inner) = cause.source() {
        cause = inner;
    }
    cause.to_string()
}

/// Why etcd refuses a request, and what to do. `None` if the status says nothing like that: a member without a leader, one that is overloaded, or
/// one that is only a learner has not answered for etcd, and may answer later.
pub(super) fn refusal(status: &Status) -> Option<String> {
    let reason = status.message();
    // A status that this process has made itself, such as one of a connection that was lost, has a cause.
    if std::error::Error::source(status).is_some() {
        return None;
    }
    let is_about = |words: &[&str]| words.iter().any(|word| reason.contains(word));
    Some(match status.code() {
        Code::ResourceExhausted if is_about(&["space"]) => format!(
            "etcd refuses all changes, because the database of a member has reached its quota ({reason}). Compact and defragment etcd, then \
             clear the alarm: etcdctl compact REVISION; etcdctl defrag --cluster; etcdctl alarm disarm. If \
             that frees too little, raise --quota-backend-bytes of each member"
        ),
        Code::PermissionDenied => format!(
            "etcd does not let this user read or change the configuration ({reason}). Grant a role of the user read and write permission for \
             the prefix that the store's URL names"
        ),
        Code::Unauthenticated | Code::InvalidArgument | Code::FailedPrecondition
            if is_about(&["auth", "user", "password", "token"]) =>
        {
            format!(
                "etcd does not accept the user of this node ({reason}). Check user and password-file in the store's URL, and whether \
                 authentication is enabled in etcd"
            )
        }
        Code::Unauthenticated => {
            format!(
                "etcd does not accept the user of this node ({reason}). Check user and password-file in the store's URL"
            )
        }
        Code::DataLoss => format!(
            "etcd found that its members have different data ({reason}). Replace the wrong members, or restore etcd from a backup: \
             'etcdctl alarm list' names members"
        ),
        Code::InvalidArgument => {
            format!("etcd cannot carry the request out ({reason}). Check the limits in etcd's settings")
        }
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What etcd answers, by the list of its errors, and whether that is a refusal.
    #[test]
    fn answers_that_refuse_are_told_from_members_that_cannot_answer() {
        for (code, message, named) in [
            (
                Code::ResourceExhausted,
                "etcdserver: mvcc: database space exceeded",
                Some("etcdctl alarm disarm"),
            ),
            (Code::PermissionDenied, "etcdserver: permission denied", Some("Grant a role of the user")),
            (Code::Unauthenticated, "etcdserver: invalid auth token", Some("user and password-file")),
            (Code::InvalidArgument, "etcdserver: user name is empty", Some("user and password-file")),
            (
                Code::InvalidArgument,
                "etcdserver: authentication failed, invalid user ID or password",
                Some("user and password-file"),
            ),
            (
                Code::FailedPrecondition,
                "etcdserver: authentication is not enabled",
                Some("whether authentication is enabled"),
            ),
            (Code::InvalidArgument, "etcdserver: request is too large", Some("limits")),
            (Code::DataLoss, "etcdserver: corrupt cluster", Some("etcdctl alarm list")),
            (Code::ResourceExhausted, "etcdserver: too many requests", None),
            (Code::FailedPrecondition, "etcdserver: rpc not supported for learner", None),
            (Code::Unavailable, "etcdserver: no leader", None),
            (Code::Unavailable, "etcdserver: request timed out", None),
            (Code::DeadlineExceeded, "context deadline exceeded", None),
            (Code::Unknown, "transport error", None),
            (Code::Internal, "stream closed", None),
        ] {
            let fault = Fault::from(Error::GRpcStatus(Status::new(code, message)));
            assert_eq!(fault.is_refusal, named.is_some(), "{message}: {fault}");
            assert!(
                fault.text.contains(message) && fault.text.contains(named.unwrap_or_default()),
                "{fault}"
            );
        }
    }
}
