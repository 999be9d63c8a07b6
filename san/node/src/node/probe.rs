//! What other nodes answer to the certificate of this node: whether it is to be renewed because of clocks, and whether an older one is still
//! needed.

use std::net::SocketAddr;
use std::time::Duration;

use tokio::task::JoinSet;

use super::Node;

/// How long one node may take to answer.
const LIMIT: Duration = Duration::from_secs(5);

/// What another node has answered.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Answer {
    /// Each has accepted the certificate of the other.
    Accepts,
    /// By the clock of one of the two hosts, a certificate of the other is not valid.
    OfClocks,
    /// There is no connection for another reason: it has not read the configuration, perhaps.
    Refuses,
    /// It cannot be reached.
    Silent,
}

/// What all other nodes have answered.
#[derive(Debug)]
pub(super) struct Answers(Vec<Answer>);

impl Answers {
    fn any(&self, which: Answer) -> bool {
        self.0.contains(&which)
    }

    /// Whether a certificate that is not valid yet by the clock of this host keeps it from all nodes. What any node accepts is to be kept:
    /// then the clock of this host is behind, perhaps.
    pub(super) fn keep_all_away(&self) -> bool {
        self.any(Answer::OfClocks) && !self.any(Answer::Accepts)
    }

    /// Whether the certificate that is used is enough, and an older one, by which connections may have been proved, is not needed any more:
    /// each node that answers accepts it, or there is no other node.
    pub(super) fn show_that_one_is_enough(&self) -> bool {
        let accepted = self.any(Answer::Accepts) || self.0.is_empty();
        accepted && !self.any(Answer::OfClocks) && !self.any(Answer::Refuses)
    }
}

impl Node {
    /// Connects to each other node with the certificate that this node uses, and closes the connections. It takes [`LIMIT`] at most.
    pub(super) async fn ask_others_about_certificate(&self) -> Answers {
        let mut others: Vec<_> =
            self.state().catalog.nodes.iter().map(|(id, (node, _))| (*id, node.peer)).collect();
        others.retain(|(id, _)| *id != self.id());
        let mut asked = JoinSet::new();
        for (id, address) in others {
            let this = self.clone();
            asked.spawn(async move { this.ask_about_certificate(id, address).await });
        }
        Answers(asked.join_all().await)
    }

    async fn ask_about_certificate(&self, node: u32, address: SocketAddr) -> Answer {
        let answer = tokio::time::timeout(LIMIT, async {
            let Ok(stream) = self.connect_to(address).await else { return Answer::Silent };
            match self.protect(stream, node).await {
                Ok(_) => Answer::Accepts,
                Err(why) if why.is_of_clocks() => {
                    self.note_clocks(address.ip(), &why);
                    Answer::OfClocks
                }
                Err(_) => Answer::Refuses,
            }
        });
        answer.await.unwrap_or(Answer::Silent)
    }
}

#[cfg(test)]
mod tests {
    use super::Answer::{Accepts, OfClocks, Refuses, Silent};
    use super::*;

    #[test]
    fn a_certificate_is_renewed_for_clocks_only_if_it_keeps_the_node_from_all_others() {
        let of = |answers: &[Answer]| Answers(answers.to_vec()).keep_all_away();
        assert!(of(&[OfClocks]) && of(&[OfClocks, Silent, Refuses]));
        assert!(!of(&[OfClocks, Accepts]), "the certificate is valid, and the clock of this host is wrong");
        assert!(!of(&[]) && !of(&[Silent]) && !of(&[Refuses]), "no node has refused it for clocks");
    }

    #[test]
    fn an_older_certificate_is_named_until_each_node_that_answers_accepts_the_new_one() {
        let of = |answers: &[Answer]| Answers(answers.to_vec()).show_that_one_is_enough();
        assert!(of(&[]) && of(&[Accepts]) && of(&[Accepts, Silent]));
        for needed in [&[Silent][..], &[OfClocks], &[Accepts, OfClocks], &[Accepts, Refuses]] {
            assert!(!of(needed), "{needed:?}");
        }
    }
}
