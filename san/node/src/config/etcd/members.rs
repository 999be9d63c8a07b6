//! The members of an etcd: which of them is used, and what is asked of it.
//!
//! Reads are repeated at the next member when one fails. **A commit is sent once**: if its answer is lost, whether it was made is not
//! known, and only the node that proposed it can find out (rules P1 and P2 of `docs/explanation/san-rules.md`).
//!
//! A proxy on the way to etcd may send a commit again after it has lost an answer (etcd#14890). Then the first transaction makes the changes,
//! and the answer to the second one is that the keys are not as expected. So each transaction also writes a number that no other has under a
//! key of this client, and one that fails reads that key: if it has the number of this commit, the commit was made.

use std::sync::LazyLock;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use etcd_client::{
    Certificate, Channel, Client, Compare, CompareOp, ConnectOptions, Error, GetOptions, GetResponse,
    Identity, KeyValue, ResponseHeader, SortOrder, SortTarget, TlsOptions, Txn, TxnOp, TxnOpResponse,
    TxnResponse,
};
use tokio::time::timeout;
use tonic::transport::Endpoint;

use super::super::{Change, ConfigError, Stored};
use super::address::EtcdAddress;
use super::refusal::{Fault, refusal, why};

/// How long a connection to a member may take.
const CONNECTS: Duration = Duration::from_secs(1);
/// How long a connection and the proof of a user may take: etcd writes each proof to its log, as it does a commit.
const AUTHENTICATES: Duration = Duration::from_secs(5);
/// How long the answer to a read is waited for before the next member is asked.
const READS: Duration = Duration::from_secs(2);
/// How long the answer to a commit is waited for. An etcd on a slow disk takes a second or more.
const COMMITS: Duration = Duration::from_secs(5);
/// A connection that has answered so recently carries a commit without being tried first.
const FRESH: Duration = Duration::from_millis(500);
/// Keys for the last commits of clients. Clients that share one have more commits of unknown outcome.
const CLIENTS: u64 = 4096;
/// Keys in one answer: values are small, and an answer may have a few MiB.
const PAGE: i64 = 500;
/// Bytes of an answer, at most.
const ANSWER: usize = 64 << 20;

/// Connects to a member. The error states why it is not possible.
pub(super) async fn connect(address: &EtcdAddress, member: &str) -> Result<Client, Fault> {
    let connected = timeout(AUTHENTICATES, async {
        let scheme = if address.ca().is_some() { "https" } else { "http" };
        let endpoint = Endpoint::from_shared(format!("{scheme}://{member}")).map_err(|error| why(&error))?;
        // No pings: etcd disconnects a client that sends them more often than every five seconds, or while it asks for nothing.
        let mut endpoint = endpoint.connect_timeout(CONNECTS);
        if let Some(ca) = address.ca() {
            let read = |path: &std::path::Path| {
                std::fs::read(path).map_err(|error| format!("{} cannot be read: {error}", path.display()))
            };
            let mut tls = TlsOptions::new().ca_certificate(Certificate::from_pem(read(ca)?));
            if let Some((cert, key)) = address.identity() {
                tls = tls.identity(Identity::from_pem(read(cert)?, read(key)?));
            }
            endpoint = endpoint.tls_config(tls).map_err(|error| why(&error))?;
        }
        let channel = timeout(CONNECTS, endpoint.connect()).await;
        let channel = channel.map_err(|_| format!("no connection within {} s", CONNECTS.as_secs()))?;
        let channel = channel.map_err(|error| why(&error))?;
        let mut options = ConnectOptions::new().with_require_leader(true).with_auto_token_refresh(true);
        if let Some((name, password)) = address.user().map_err(|why| why.to_string())? {
            options = options.with_user(name, password);
        }
        Ok(Client::from_channel(Channel::Tonic(channel), Some(options)).await?)
    });
    connected
        .await
        .unwrap_or_else(|_| Err(format!("no proof of the user within {} s", AUTHENTICATES.as_secs()).into()))
}

/// The members of an etcd, one of which is used until it fails.
#[derive(Debug)]
pub(super) struct Members {
    address: EtcdAddress,
    /// The member that is used, or is tried next.
    at: usize,
    connection: Option<Connection>,
    /// The id of the etcd that answered first. A restored backup has another one, unless it was restored with the same token and addresses.
    cluster: Option<u64>,
    /// The highest revision of an answer. Each answer is of the newest state, so a lower one is of an older copy.
    highest: u64,
    /// The revision that was seen, and the one that was there, when an older copy was found.
    older: Option<(u64, u64)>,
    /// What was seen last of the keys of the configuration.
    seen: Option<Seen>,
    /// The number of the key that has this client's last commit.
    client: u64,
    /// Distinguishes this client's commits from those of all others.
    life: u64,
    /// Commits that were sent.
    commits: u64,
    /// The version of the key of this client's last commit (0: there is none). `None` if it is not known, since an answer was lost.
    last: Option<u64>,
}

/// The keys of the configuration at a revision of etcd. As long as `newest` and `count` are the same, so are all keys and values: each put raises
/// `newest`, and a deletion without one lowers `count`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Seen {
    /// The revision of etcd.
    at: u64,
    /// The revision of etcd when a change of the keys was seen last: the revision of the configuration.
    revision: u64,
    /// The highest `mod_revision` of a key, or 0.
    newest: u64,
    /// How many keys there are.
    count: i64,
}

/// The number of the key of the next client of this process. Processes begin at different ones, and no two clients of one process have the
/// same one.
static NEXT_CLIENT: LazyLock<AtomicU64> =
    LazyLock::new(|| AtomicU64::new(u64::from_ne_bytes(crate::identity::random_bytes())));

struct Connection {
    client: Client,
    answered: Instant,
}

impl std::fmt::Debug for Connection {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Connection").field("answered", &self.answered).finish_non_exhaustive()
    }
}

impl Members {
    /// Nothing is connected before the first request.
    pub(super) fn new(address: EtcdAddress) -> Members {
        // Each process begins at another member, so that not all use the same one.
        let at = std::process::id() as usize % address.endpoints().len();
        Members {
            address,
            at,
            connection: None,
            cluster: None,
            highest: 0,
            older: None,
            seen: None,
            client: NEXT_CLIENT.fetch_add(1, Ordering::Relaxed) % CLIENTS,
            life: u64::from_ne_bytes(crate::identity::random_bytes()),
            commits: 0,
            last: None,
        }
    }

    /// The number of the member that is used.
    pub(super) fn used(&self) -> usize {
        self.at
    }

    /// Where the members are.
    pub(super) fn address(&self) -> &EtcdAddress {
        &self.address
    }

    fn member(&self) -> &str {
        &self.address.endpoints()[self.at]
    }

    /// The connection of the member that is used.
    async fn client(&mut self) -> Result<Client, Fault> {
        if let Some(connection) = &self.connection {
            return Ok(connection.client.clone());
        }
        let client = connect(&self.address, self.member()).await?;
        self.connection = Some(Connection { client: client.clone(), answered: Instant::now() });
        Ok(client)
    }

    /// The member that was used does not answer, or not rightly: the next one is.
    fn next_member(&mut self) {
        self.connection = None;
        self.at = (self.at + 1) % self.address.endpoints().len();
    }

    /// An answer has come, of the etcd that is used. Fails if it is another one.
    fn answered(&mut self, header: Option<&ResponseHeader>) -> Result<u64, ConfigError> {
        let header =
            header.ok_or_else(|| ConfigError::Unavailable("an answer of etcd has no header".into()))?;
        let is = header.cluster_id();
        let was = *self.cluster.get_or_insert(is);
        if was != is {
            let member = self.member().to_owned();
            self.next_member();
            return Err(ConfigError::OtherEtcd { member, was, is });
        }
        let (was, is) = (self.highest, header.revision() as u64);
        if is < was {
            return Err(self.went_back(was, is));
        }
        if let Some((was, is)) = self.older {
            return Err(ConfigError::WentBack { was, is });
        }
        self.highest = is;
        if let Some(connection) = &mut self.connection {
            connection.answered = Instant::now();
        }
        Ok(is)
    }

    /// An older copy of etcd was put back. It is used no more, also when its revision has grown again since.
    fn went_back(&mut self, was: u64, is: u64) -> ConfigError {
        self.next_member();
        self.older = Some((was, is));
        ConfigError::WentBack { was, is }
    }

    /// Asks every member which etcd it belongs to. Fails if they do not agree: a member that was restored, or was set up anew, would
    /// be believed by the node that asks it first. Members that do not answer are passed over.
    pub(super) async fn agree(&mut self) -> Result<(), ConfigError> {
        let ask = |member: &String| {
            let (address, member) = (self.address.clone(), member.clone());
            tokio::spawn(async move {
                let client = connect(&address, &member).await.ok()?;
                let options = GetOptions::new().with_count_only();
                let mut client = client.kv_client();
                let answer =
                    timeout(READS, client.get(address.format_key(), Some(options))).await.ok()?.ok()?;
                Some((member, answer.header()?.cluster_id()))
            })
        };
        let answers: Vec<_> = self.address.endpoints().iter().map(ask).collect();
        let mut found: Option<u64> = self.cluster;
        for answer in answers {
            let Ok(Some((member, is))) = answer.await else { continue };
            let was = *found.get_or_insert(is);
            if was != is {
                return Err(ConfigError::OtherEtcd { member, was, is });
            }
        }
        Ok(())
    }

    /// Reads a key, or all keys that begin so, at a revision (0: the newest), and sends that to one member after the other until one
    /// answers. What is read of the newest revision is never older than what was committed before.
    async fn range(
        &mut self,
        key: &str,
        options: &GetOptions,
    ) -> Result<(u64, Vec<KeyValue>, bool), ConfigError> {
        let (revision, mut answer) = self.answer(key, options).await?;
        Ok((revision, answer.take_kvs(), answer.more()))
    }

    /// The whole answer, and the revision of etcd. An older copy of etcd is reported as that at once; so is another etcd, if no member of the
    /// right one answers.
    async fn answer(&mut self, key: &str, options: &GetOptions) -> Result<(u64, GetResponse), ConfigError> {
        let (mut faults, mut other, mut is_refused) = (Vec::new(), None, false);
        for _ in 0..self.address.endpoints().len() {
            let read = async {
                let client = self.client().await?;
                let mut client = client.kv_client().max_decoding_message_size(ANSWER);
                let answer = timeout(READS, client.get(key, Some(options.clone()))).await;
                Ok::<_, Fault>(answer.map_err(|_| format!("no answer within {} s", READS.as_secs()))??)
            };
            let fault = match read.await {
                Ok(answer) => match self.answered(answer.header()) {
                    Ok(revision) => return Ok((revision, answer)),
                    Err(why @ ConfigError::WentBack { .. }) => return Err(why),
                    Err(why) => {
                        let fault = why.to_string();
                        other =
                            Some(why).filter(|why| matches!(why, ConfigError::OtherEtcd { .. })).or(other);
                        fault
                    }
                },
                Err(why) => {
                    let fault = format!("{}: {why}", self.member());
                    is_refused |= why.is_refusal;
                    self.next_member();
                    fault
                }
            };
            faults.push(fault);
        }
        // What a member with TLS does with a client without.
        let is_cut = |fault: &String| {
            ["broken pipe", "connection closed", "reset"].iter().any(|word| fault.contains(word))
        };
        let help = match !self.address.uses_tls() && faults.iter().all(is_cut) {
            true => ". If this etcd uses TLS, add ?ca=FILE&cert=FILE&key=FILE to its URL",
            false => "",
        };
        let failed = || match is_refused {
            true => ConfigError::Refused(faults.join("; ")),
            false => {
                ConfigError::Unavailable(format!("no member of etcd answers ({}){help}", faults.join("; ")))
            }
        };
        Err(other.unwrap_or_else(failed))
    }

    /// What is kept under a key of etcd.
    pub(super) async fn get(&mut self, key: &str) -> Result<Option<Stored>, ConfigError> {
        let (_, found, _) = self.range(key, &GetOptions::new()).await?;
        Ok(found.first().map(stored))
    }

    /// What is kept under all keys of etcd that begin so, in their order, with the revision of etcd at that moment.
    pub(super) async fn list(&mut self, prefix: &str) -> Result<(u64, Vec<(String, Stored)>), ConfigError> {
        let options = GetOptions::new().with_prefix().with_limit(PAGE);
        let (revision, mut page, mut more) = self.range(prefix, &options).await?;
        let mut listed = Vec::new();
        let end =
            GetOptions::new().with_range(end_of(prefix)).with_limit(PAGE).with_revision(revision as i64);
        loop {
            for entry in &page {
                let key = entry.key_str().map_err(|_| ConfigError::Broken {
                    key: String::from_utf8_lossy(entry.key()).into_owned(),
                    why: "the key is not UTF-8".into(),
                })?;
                listed.push((key.to_owned(), stored(entry)));
            }
            let Some(last) = page.last().filter(|_| more) else { return Ok((revision, listed)) };
            let from = format!("{}\0", last.key_str().unwrap_or_default());
            (_, page, more) = self.range(&from, &end).await?;
        }
    }

    /// The revision of etcd, of which others may use other keys.
    pub(super) async fn revision_of_etcd(&mut self) -> Result<u64, ConfigError> {
        let options = GetOptions::new().with_count_only();
        let key = self.address.format_key();
        Ok(self.range(&key, &options).await?.0)
    }

    /// A number that is higher after every commit that has changed the keys of the configuration, and no other.
    pub(super) async fn revision(&mut self) -> Result<u64, ConfigError> {
        let at = self.revision_of_etcd().await?;
        match self.seen {
            Some(seen) if seen.at == at => Ok(seen.revision),
            _ => self.revision_at(None).await,
        }
    }

    /// The same, as it was at this revision of etcd; now, if none is given. It is not older than any that was asked for before.
    pub(super) async fn revision_at(&mut self, at: Option<u64>) -> Result<u64, ConfigError> {
        if let Some(seen) = self.seen.filter(|seen| Some(seen.at) == at) {
            return Ok(seen.revision);
        }
        let newest = GetOptions::new().with_prefix().with_keys_only().with_limit(1);
        let newest = newest
            .with_sort(SortTarget::Mod, SortOrder::Descend)
            .with_revision(at.unwrap_or_default() as i64);
        let (is_at, found) = self.answer(&self.address.data_key(""), &newest).await?;
        let (at, count) = (at.unwrap_or(is_at), found.count());
        let newest = found.kvs().first().map_or(0, |entry| entry.mod_revision() as u64);
        let revision = match self.seen {
            None => at,
            Some(seen) if (newest, count) == (seen.newest, seen.count) => seen.revision,
            // Without a put since then, keys can only have gone.
            Some(seen) if newest <= seen.at && count >= seen.count => {
                return Err(self.went_back(seen.at, newest));
            }
            Some(_) => at,
        };
        self.seen = Some(Seen { at, revision, newest, count });
        Ok(revision)
    }

    /// Makes all of these changes if every key of etcd is as expected; otherwise none. Whether it did. Nor does it if this client has committed
    /// anything since: a copy of the transaction that a proxy delivers late changes nothing, also where a key is again as it was.
    pub(super) async fn commit(&mut self, changes: &[Change]) -> Result<bool, ConfigError> {
        if let Some((was, is)) = self.older {
            return Err(ConfigError::WentBack { was, is });
        }
        // A commit to a member that is gone would have to be given up with an unknown outcome: it is tried with a read first.
        if self.connection.as_ref().is_none_or(|connection| connection.answered.elapsed() > FRESH) {
            self.revision_of_etcd().await?;
        }
        let key = self.address.commit_key(self.client);
        let version = match self.last.take() {
            Some(version) => version,
            None => self.get(&key).await?.map_or(0, |stored| stored.version),
        };
        let before = self.highest;
        self.commits += 1;
        let number = format!("{:016x}/{}", self.life, self.commits);
        let transaction = transaction(changes, &key, version, &number);
        let mut client = self.client().await?.kv_client();
        match timeout(COMMITS, client.txn(transaction)).await {
            Ok(Ok(answer)) => {
                let revision = self.answered(answer.header())?;
                if answer.succeeded() {
                    self.last = Some(revision);
                    return Ok(true);
                }
                self.last = last_version(&answer);
                match made_before(&answer, &number, before) {
                    Some(made) => Ok(made),
                    None => {
                        Err(self.unknown("the transaction was refused, and may have been made before that"))
                    }
                }
            }
            Ok(Err(Error::GRpcStatus(status))) if let Some(refused) = refusal(&status) => {
                // The change that fills an etcd is made, and answered with the error of a full one (quotaApplierV3 of etcd).
                match self.get(&key).await {
                    Ok(Some(stored)) if stored.value == number.as_bytes() => {
                        self.last = Some(stored.version);
                        Ok(true)
                    }
                    // An etcd that refuses to be read, too, has made nothing: this user may not use it.
                    Ok(_) | Err(ConfigError::Refused(_)) => Err(ConfigError::Refused(refused)),
                    Err(why) => Err(self.unknown(&format!("{refused}; and it cannot be read: {why}"))),
                }
            }
            Ok(Err(error)) => Err(self.unknown(&why(&error))),
            Err(_) => Err(self.unknown(&format!("no answer within {} s", COMMITS.as_secs()))),
        }
    }

    /// The answer to a commit is lost.
    fn unknown(&mut self, why: &str) -> ConfigError {
        let member = self.member().to_owned();
        self.next_member();
        ConfigError::Unavailable(format!("{member}: {why}. Whether the change was made is not known yet"))
    }
}

/// The transaction that makes these changes, if all keys are as expected and the `key` of the client's last commit has this version. It writes
/// the number there.
pub(super) fn transaction(changes: &[Change], key: &str, version: u64, number: &str) -> Txn {
    let expected = |change: &Change| change.expected.unwrap_or(0) as i64;
    let compare = |key: &str, version| Compare::mod_revision(key, CompareOp::Equal, version);
    let mut compares: Vec<Compare> =
        changes.iter().map(|change| compare(change.key.as_str(), expected(change))).collect();
    compares.push(compare(key, version as i64));
    let mut operations: Vec<TxnOp> = changes
        .iter()
        .map(|Change { key, value, .. }| match value {
            Some(value) => TxnOp::put(key.as_str(), value.as_slice(), None),
            None => TxnOp::delete(key.as_str(), None),
        })
        .collect();
    operations.push(TxnOp::put(key, number, None));
    Txn::new().when(compares).and_then(operations).or_else(vec![TxnOp::get(key, None)])
}

/// The version of the key of the client's last commit, as the answer to a transaction that was refused has it.
fn last_version(answer: &TxnResponse) -> Option<u64> {
    match answer.op_responses().first() {
        Some(TxnOpResponse::Get(last)) => {
            Some(last.kvs().first().map_or(0, |last| last.mod_revision() as u64))
        }
        _ => None,
    }
}

/// Whether a transaction that was refused had been made by an earlier execution of the same commit, which has this number. `None` if that is
/// not known: a commit with another number was made after the revision `before`, at which this one had not been sent.
fn made_before(answer: &TxnResponse, number: &str, before: u64) -> Option<bool> {
    let responses = answer.op_responses();
    let Some(TxnOpResponse::Get(last)) = responses.first() else { return None };
    match last.kvs().first() {
        Some(last) if last.value() == number.as_bytes() => Some(true),
        Some(last) if last.mod_revision() as u64 > before => None,
        _ => Some(false),
    }
}

fn stored(entry: &KeyValue) -> Stored {
    Stored { value: entry.value().to_vec(), version: entry.mod_revision() as u64 }
}

/// The first key after all those that begin so.
fn end_of(prefix: &str) -> Vec<u8> {
    let mut end = prefix.as_bytes().to_vec();
    // UTF-8 has no byte 0xff, so the last byte can always be raised.
    if let Some(last) = end.last_mut() {
        *last += 1;
    }
    end
}
