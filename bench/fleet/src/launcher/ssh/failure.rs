//! What the words of `ssh` mean, and what to do about it.

/// Why `ssh` did not get to a host, in words that say what to do; `said` are the lines that it printed, the last ones last.
pub(crate) fn meaning(destination: &str, said: &[String]) -> String {
    let has = |part: &str| said.iter().any(|line| line.contains(part));
    let advice = if has("REMOTE HOST IDENTIFICATION HAS CHANGED") {
        format!(
            "the key of the host is not the one that is known: either the host was installed anew, or another machine answers in \
             its place. If it was, remove the old key with ssh-keygen -R, and connect once by hand: ssh {destination}"
        )
    } else if has("Host key verification failed") {
        format!(
            "the key of the host is not known yet: check the key and accept it once by hand: ssh {destination}"
        )
    } else if has("Permission denied") || has("Too many authentication failures") {
        format!(
            "the host accepts none of your keys, or has no such user, and Loadline answers no question for a password. Set up a \
             key (ssh-copy-id {destination}), or load it into the agent (ssh-add). This must work without a question: ssh -o \
             BatchMode=yes {destination} true"
        )
    } else if has("Could not resolve hostname") {
        "there is no host of this name: check the name, or add it to ssh_config".into()
    } else if has("Connection refused") {
        "no SSH server listens there: check the port, and that sshd runs".into()
    } else if has("timed out") || has("No route to host") || has("Network is unreachable") {
        "the host does not answer: check that it runs, its address, and the firewall".into()
    } else if has("port forwarding failed") || has("administratively prohibited") {
        "the SSH server forwards no ports (AllowTcpForwarding): allow it, or have workers connect directly with [fleet] listen = \
         \"IP:PORT\""
            .into()
    } else if has("identity file") && has("not accessible") {
        "the private key cannot be read: check ssh_key".into()
    } else {
        format!("this must work without a question: ssh -o BatchMode=yes {destination} true")
    };
    match last_of(said) {
        None => advice,
        Some(last) => format!("{last}: {advice}"),
    }
}

/// The last lines that say anything, as one.
pub(crate) fn last_of(said: &[String]) -> Option<String> {
    let lines = said.iter().map(|line| line.trim()).filter(|line| !line.is_empty());
    // Lines of a frame around a warning, and what ssh says of the port, say nothing of the cause.
    let lines: Vec<&str> =
        lines.filter(|line| !line.starts_with('@') && !line.starts_with("Allocated port")).collect();
    let last = lines[lines.len().saturating_sub(2)..].join(" | ");
    (!last.is_empty()).then(|| last.escape_debug().to_string().trim_end_matches('.').to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_failure_of_ssh_says_what_to_do() {
        for (said, part) in [
            ("u@h: Permission denied (publickey,password).", "ssh-copy-id u@h"),
            ("Host key verification failed.", "accept it once by hand: ssh u@h"),
            ("@ WARNING: REMOTE HOST IDENTIFICATION HAS CHANGED! @", "ssh-keygen -R"),
            ("ssh: Could not resolve hostname h: Name or service not known", "check the name"),
            ("ssh: connect to host h port 22: Connection refused", "check the port"),
            ("ssh: connect to host h port 22: Connection timed out", "does not answer"),
            ("Error: remote port forwarding failed for listen port 0", "listen ="),
            ("something new", "BatchMode=yes u@h true"),
        ] {
            let words = meaning("u@h", &["a banner".into(), said.to_string()]);
            assert!(words.contains(part), "{words}");
        }
        assert_eq!(last_of(&["".into(), "@@@@".into()]), None);
    }
}
