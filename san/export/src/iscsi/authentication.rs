//! Which initiators are let in, and how they prove their names: by CHAP (RFC 7143, 12.1).

use loadline_base::chap;
use loadline_base::iscsi::add_key;
use ring::rand::{SecureRandom, SystemRandom};

use crate::login::{Export, Initiator};

/// Bytes of a challenge.
const CHALLENGE: usize = 16;

/// Whether an initiator is let in to a volume.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Rule<'e> {
    /// It is not.
    Refused,
    /// Without a proof.
    Open,
    /// If it proves its name.
    Proof(&'e Initiator),
}

/// The rule for an initiator. It is named in upper or lower case.
pub(super) fn rule<'e>(export: &'e Export, initiator: &str, is_local: bool) -> Rule<'e> {
    match export.initiators.iter().find(|known| known.name.eq_ignore_ascii_case(initiator)) {
        Some(known) if known.chap.is_some() => Rule::Proof(known),
        Some(_) => Rule::Open,
        None if is_local => Rule::Open,
        None => Rule::Refused,
    }
}

#[derive(Debug, PartialEq, Eq)]
enum State {
    /// The method is not chosen.
    Begins,
    /// CHAP is.
    Chosen,
    /// The initiator has this to answer.
    Challenged { id: u8, challenge: [u8; CHALLENGE] },
    /// Nothing is left to be proved.
    Done,
}

/// The security stage of a login.
#[derive(Debug)]
pub(super) struct Authentication {
    /// The initiator gets nowhere without a proof.
    must_prove: bool,
    /// What it may prove its name by.
    known: Vec<Initiator>,
    state: State,
}

impl Authentication {
    /// For an initiator that need not prove its name, and may by any of these.
    pub(super) fn may(known: Vec<Initiator>) -> Authentication {
        Authentication { must_prove: false, known, state: State::Begins }
    }

    /// For an initiator that must prove its name.
    pub(super) fn must(known: Initiator) -> Authentication {
        Authentication { must_prove: true, known: vec![known], state: State::Begins }
    }

    /// Whether the initiator may go on to the next stage.
    pub(super) fn is_done(&self) -> bool {
        match self.state {
            State::Begins => !self.must_prove,
            State::Chosen | State::Challenged { .. } => false,
            State::Done => true,
        }
    }

    /// Whether the initiator has begun to prove its name.
    pub(super) fn has_begun(&self) -> bool {
        self.state != State::Begins
    }

    /// Takes the keys of a request in the security stage, and adds the answers to them. The error is why the login fails.
    pub(super) fn negotiate(
        &mut self,
        keys: &[(&str, &str)],
        answer: &mut Vec<u8>,
    ) -> Result<(), &'static str> {
        let value = |wanted: &str| keys.iter().find(|(key, _)| *key == wanted).map(|(_, value)| *value);
        if let Some(methods) = value("AuthMethod") {
            self.choose(methods, answer)?;
        }
        if let Some(algorithms) = value("CHAP_A") {
            self.challenge(algorithms, answer)?;
        }
        if let Some(response) = value("CHAP_R") {
            let user = value("CHAP_N").ok_or("its proof names no user")?;
            let challenge = value("CHAP_I").zip(value("CHAP_C"));
            self.prove(user, response, challenge, answer)?;
        }
        Ok(())
    }

    fn choose(&mut self, methods: &str, answer: &mut Vec<u8>) -> Result<(), &'static str> {
        if self.state != State::Begins {
            return Err("it chooses how to prove its name twice");
        }
        let offers = |method| methods.split(',').any(|offered| offered == method);
        let method = if !self.must_prove && offers("None") {
            "None"
        } else if !self.known.is_empty() && offers("CHAP") {
            "CHAP"
        } else if self.must_prove {
            return Err("it must prove its name by CHAP, and does not offer that");
        } else {
            return Err("it offers no login without CHAP, and has no secret here");
        };
        self.state = if method == "None" { State::Done } else { State::Chosen };
        add_key(answer, "AuthMethod", method);
        Ok(())
    }

    fn challenge(&mut self, algorithms: &str, answer: &mut Vec<u8>) -> Result<(), &'static str> {
        if self.state != State::Chosen {
            return Err("it offers algorithms of CHAP out of turn");
        }
        if !algorithms.split(',').any(|algorithm| algorithm == chap::MD5) {
            return Err("it does not offer the algorithm of CHAP that this target has: MD5, number 5");
        }
        let mut bytes = [0; CHALLENGE + 1];
        SystemRandom::new().fill(&mut bytes).map_err(|_| "the system has no random bytes")?;
        let [id, challenge @ ..] = bytes;
        add_key(answer, "CHAP_A", chap::MD5);
        add_key(answer, "CHAP_I", &id.to_string());
        add_key(answer, "CHAP_C", &chap::encode_binary(&challenge));
        self.state = State::Challenged { id, challenge };
        Ok(())
    }

    /// Checks the proof of the initiator, and gives that of the target if the initiator challenges it.
    fn prove(
        &mut self,
        user: &str,
        response: &str,
        challenged: Option<(&str, &str)>,
        answer: &mut Vec<u8>,
    ) -> Result<(), &'static str> {
        let State::Challenged { id, challenge } = &self.state else {
            return Err("it proves its name out of turn");
        };
        let response = chap::decode_binary(response, 16).ok_or("its proof is no number of 16 bytes")?;
        let proves = |known: &&Initiator| {
            known.chap.as_ref().is_some_and(|chap| {
                chap.user == user
                    && is_same(&chap::response(*id, chap.secret.as_bytes(), challenge), &response)
            })
        };
        let proved = self.known.iter().find(proves).ok_or("its user or its secret is wrong")?;
        if let Some((its_id, its_challenge)) = challenged {
            let its_id: u8 = its_id.parse().map_err(|_| "the number of its challenge is none below 256")?;
            let its_challenge = chap::decode_binary(its_challenge, chap::MOST_BYTES)
                .filter(|bytes| !bytes.is_empty())
                .ok_or("its challenge is no number, or has more than 1024 bytes")?;
            // Who sends a challenge back wants the target to answer it in its own place.
            if its_challenge == challenge {
                return Err("it sends the challenge back that it was sent");
            }
            let mutual = proved.mutual.as_ref();
            let mutual = mutual.ok_or("it wants a proof of the target (mutual CHAP), which has no secret for it (--mutual and --mutual-secret-file)")?;
            let response = chap::response(its_id, mutual.secret.as_bytes(), &its_challenge);
            add_key(answer, "CHAP_N", &mutual.user);
            add_key(answer, "CHAP_R", &chap::encode_binary(&response));
        }
        self.state = State::Done;
        Ok(())
    }
}

/// Compares all bytes, so that the time says nothing of how many are right.
fn is_same(one: &[u8; 16], other: &[u8]) -> bool {
    other.len() == 16 && one.iter().zip(other).fold(0, |differ, (one, other)| differ | (one ^ other)) == 0
}

#[cfg(test)]
mod tests {
    use loadline_base::iscsi::keys;

    use super::*;
    use crate::login::Credential;

    fn credential(user: &str, secret: &str) -> Option<Credential> {
        Some(Credential { user: user.into(), secret: secret.into() })
    }

    fn known() -> Initiator {
        Initiator {
            name: "iqn.2003-01.org.example:a".into(),
            chap: credential("user", "a secret of the initiator"),
            mutual: credential("volume", "a secret of the target"),
            naming: 0,
        }
    }

    /// The answers to keys.
    fn ask(of: &mut Authentication, ask: &[(&str, &str)]) -> Result<Vec<(String, String)>, &'static str> {
        let mut answer = Vec::new();
        of.negotiate(ask, &mut answer)?;
        let keys = keys(&answer).unwrap();
        Ok(keys.iter().map(|(key, value)| (key.to_string(), value.to_string())).collect())
    }

    /// Up to the challenge: its number and its bytes.
    fn challenged(of: &mut Authentication) -> (u8, Vec<u8>, String) {
        assert_eq!(ask(of, &[("AuthMethod", "CHAP,None")]).unwrap()[0].1, "CHAP");
        assert!(!of.is_done());
        let answer = ask(of, &[("CHAP_A", "7,5")]).unwrap();
        assert_eq!(answer[0], ("CHAP_A".into(), "5".into()));
        let challenge = chap::decode_binary(&answer[2].1, 1024).unwrap();
        (answer[1].1.parse().unwrap(), challenge, answer[2].1.clone())
    }

    #[test]
    fn the_rule_is_that_of_the_export() {
        let open = Initiator { chap: None, ..known() };
        let export = |initiators: Vec<Initiator>| Export { initiators, ..Export::default() };
        assert_eq!(rule(&export(vec![]), "iqn.x", true), Rule::Open);
        assert_eq!(rule(&export(vec![]), "iqn.x", false), Rule::Refused);
        assert_eq!(rule(&export(vec![open.clone()]), "IQN.2003-01.org.example:A", false), Rule::Open);
        assert_eq!(rule(&export(vec![open]), "iqn.2003-01.org.example:ab", false), Rule::Refused);
        assert_eq!(rule(&export(vec![known()]), "iqn.2003-01.org.example:a", true), Rule::Proof(&known()));
    }

    #[test]
    fn an_initiator_proves_its_name_and_the_target_its_own() {
        let mut of = Authentication::must(known());
        assert!(!of.is_done());
        let (id, challenge, _) = challenged(&mut of);
        let response = chap::encode_binary(&chap::response(id, b"a secret of the initiator", &challenge));
        let proof = [("CHAP_N", "user"), ("CHAP_R", &response), ("CHAP_I", "9"), ("CHAP_C", "0bAQIDBAU=")];
        let answer = ask(&mut of, &proof).unwrap();
        let expected = chap::encode_binary(&chap::response(9, b"a secret of the target", &[1, 2, 3, 4, 5]));
        assert_eq!(answer, [("CHAP_N".into(), "volume".into()), ("CHAP_R".into(), expected)]);
        assert!(of.is_done());
    }

    #[test]
    fn a_wrong_proof_fails() {
        let proofs: [(&str, &[u8]); 3] = [
            ("user", b"another secret"),
            ("someone", b"a secret of the initiator"),
            ("volume", b"a secret of the target"),
        ];
        for (user, secret) in proofs {
            let mut of = Authentication::must(known());
            let (id, challenge, _) = challenged(&mut of);
            let response = chap::encode_binary(&chap::response(id, secret, &challenge));
            assert!(ask(&mut of, &[("CHAP_N", user), ("CHAP_R", &response)]).is_err());
            assert!(!of.is_done());
        }
        for wrong in ["", "0x", "0x00", "none", "0b"] {
            let mut of = Authentication::must(known());
            challenged(&mut of);
            assert!(ask(&mut of, &[("CHAP_N", "user"), ("CHAP_R", wrong)]).is_err());
        }
    }

    #[test]
    fn a_challenge_that_is_sent_back_or_too_long_fails() {
        let long = chap::encode_binary(&[1; 1025]);
        for wrong in [None, Some(&long[..]), Some("0x"), Some("1234")] {
            let mut of = Authentication::must(known());
            let (id, challenge, text) = challenged(&mut of);
            let response = chap::encode_binary(&chap::response(id, b"a secret of the initiator", &challenge));
            let theirs = wrong.unwrap_or(&text);
            let proof = [("CHAP_N", "user"), ("CHAP_R", &response), ("CHAP_I", "1"), ("CHAP_C", theirs)];
            assert!(ask(&mut of, &proof).is_err(), "{theirs}");
            assert!(!of.is_done());
        }
    }

    #[test]
    fn steps_out_of_turn_fail() {
        let mut of = Authentication::must(known());
        assert!(ask(&mut of, &[("CHAP_A", "5")]).is_err());
        assert!(ask(&mut of, &[("CHAP_N", "user"), ("CHAP_R", "0x00")]).is_err());
        assert!(ask(&mut of, &[("AuthMethod", "None")]).is_err(), "it must prove its name");
        assert!(ask(&mut of, &[("AuthMethod", "KRB5,SRP")]).is_err());
        challenged(&mut of);
        assert!(ask(&mut of, &[("AuthMethod", "CHAP")]).is_err());
        let mut open = Authentication::may(Vec::new());
        assert!(open.is_done());
        assert!(ask(&mut open, &[("AuthMethod", "CHAP")]).is_err(), "there is nothing to prove");
        assert_eq!(ask(&mut open, &[("AuthMethod", "CHAP,None")]).unwrap()[0].1, "None");
    }
}
