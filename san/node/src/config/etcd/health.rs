//! How the members of an etcd are: for people.

use std::sync::Arc;
use std::time::Duration;

use etcd_client::{AlarmAction, AlarmType, Client};
use loadline_san_transport::handshake;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use rustls::version::TLS13;
use rustls::{ClientConfig, RootCertStore};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::time::timeout;

use super::address::EtcdAddress;
use super::members::connect;
use super::refusal::why;
use crate::config::health::StoreMember;

/// How long a member may take to answer.
const ANSWERS: Duration = Duration::from_millis(600);
/// Bytes of its metrics that are read.
const METRICS: u64 = 4 << 20;
/// The histogram of how long it took to write to the log of etcd, in its metrics.
const FSYNC: &str = "etcd_disk_wal_fsync_duration_seconds_bucket{le=\"";

/// How each member is. Members are asked at the same time.
pub(crate) async fn members(address: &EtcdAddress) -> Vec<StoreMember> {
    let asked: Vec<_> = address
        .endpoints()
        .iter()
        .map(|member| {
            let (address, member) = (address.clone(), member.clone());
            tokio::spawn(async move {
                let asked = timeout(ANSWERS, ask(&address, &member)).await;
                let late = || Err(format!("it does not answer within {} ms", ANSWERS.as_millis()));
                let fault = |fault| StoreMember { fault: Some(fault), ..StoreMember::default() };
                let answer = asked.unwrap_or_else(|_| late()).unwrap_or_else(fault);
                StoreMember { address: member, ..answer }
            })
        })
        .collect();
    let mut members = Vec::new();
    for member in asked {
        members.extend(member.await);
    }
    members
}

async fn ask(address: &EtcdAddress, member: &str) -> Result<StoreMember, String> {
    let client: Client = connect(address, member).await.map_err(|fault| fault.text)?;
    let (mut of_status, mut of_alarms) = (client.maintenance_client(), client.maintenance_client());
    let (status, alarms, fsync) = tokio::join!(
        of_status.status(),
        of_alarms.alarm(AlarmAction::Get, AlarmType::None, None),
        fsync_p99(address, member)
    );
    let status = status.map_err(|error| why(&error))?;
    let id = status.header().map_or(0, etcd_client::ResponseHeader::member_id);
    let alarms = alarms.map(|alarms| {
        let own = alarms.alarms().iter().filter(|alarm| alarm.member_id() == id);
        own.map(|alarm| alarm_name(alarm.alarm()).to_owned()).collect()
    });
    Ok(StoreMember {
        address: String::new(),
        fault: None,
        leads: status.leader() == id && id != 0,
        version: status.version().to_owned(),
        database_bytes: Some(status.db_size().max(0) as u64),
        quota_bytes: Some(status.db_size_quota()).filter(|quota| *quota > 0).map(|quota| quota as u64),
        alarms: alarms.unwrap_or_default(),
        // An etcd may serve its metrics elsewhere, or to others only.
        fsync_p99_ms: fsync.ok().flatten(),
    })
}

fn alarm_name(alarm: AlarmType) -> &'static str {
    match alarm {
        AlarmType::None => "none",
        AlarmType::Nospace => "NOSPACE",
        AlarmType::Corrupt => "CORRUPT",
    }
}

/// How long 99 of 100 writes to its log took, since it started: at most so many milliseconds.
async fn fsync_p99(address: &EtcdAddress, member: &str) -> Result<Option<u64>, String> {
    let stream = TcpStream::connect(member).await.map_err(|error| error.to_string())?;
    let page = match address.ca() {
        None => metrics(stream, member).await,
        Some(_) => {
            let host = member.rsplit_once(':').map_or(member, |(host, _)| host).trim_matches(['[', ']']);
            let name = ServerName::try_from(host.to_owned()).map_err(|error| error.to_string())?;
            let connected = handshake::connect(stream, Arc::new(config(address)?), name).await;
            metrics(connected.map_err(|error| error.to_string())?.0, member).await
        }
    };
    Ok(quantile(&page.map_err(|error| error.to_string())?))
}

async fn metrics(mut stream: impl AsyncRead + AsyncWrite + Unpin, member: &str) -> std::io::Result<String> {
    let request = format!("GET /metrics HTTP/1.0\r\nHost: {member}\r\n\r\n");
    stream.write_all(request.as_bytes()).await?;
    stream.flush().await?;
    let mut page = String::new();
    stream.take(METRICS).read_to_string(&mut page).await?;
    Ok(page)
}

/// TLS as the address wants it.
fn config(address: &EtcdAddress) -> Result<ClientConfig, String> {
    let failed = |error: &dyn std::fmt::Display| error.to_string();
    let mut roots = RootCertStore::empty();
    if let Some(path) = address.ca() {
        for certificate in CertificateDer::pem_file_iter(path).map_err(|error| failed(&error))? {
            roots.add(certificate.map_err(|error| failed(&error))?).map_err(|error| failed(&error))?;
        }
    }
    let builder = ClientConfig::builder_with_provider(Arc::new(rustls::crypto::ring::default_provider()))
        .with_protocol_versions(&[&TLS13])
        .map_err(|error| failed(&error))?
        .with_root_certificates(roots);
    let mut config = match address.identity() {
        None => builder.with_no_client_auth(),
        Some((certificate, key)) => {
            let chain = CertificateDer::pem_file_iter(certificate).map_err(|error| failed(&error))?;
            let chain = chain.collect::<Result<Vec<_>, _>>().map_err(|error| failed(&error))?;
            let key = PrivateKeyDer::from_pem_file(key).map_err(|error| failed(&error))?;
            builder.with_client_auth_cert(chain, key).map_err(|error| failed(&error))?
        }
    };
    config.enable_secret_extraction = true;
    Ok(config)
}

/// The bound of the class that has the 99th of 100, in milliseconds; of the last class, which has none, that of the class before it.
/// `None` if nothing was counted.
fn quantile(page: &str) -> Option<u64> {
    let classes: Vec<(f64, f64)> = page
        .lines()
        .filter_map(|line| {
            let (bound, count) = line.strip_prefix(FSYNC)?.split_once("\"} ")?;
            let bound = if bound == "+Inf" { f64::INFINITY } else { bound.parse().ok()? };
            Some((bound, count.trim().parse().ok()?))
        })
        .collect();
    let all = classes.last().map(|(_, count)| *count).filter(|count| *count > 0.0)?;
    let at = classes.iter().position(|(bound, count)| *count >= 0.99 * all || bound.is_infinite())?;
    let finite = classes[..=at].iter().rev().map(|(bound, _)| *bound).find(|bound| bound.is_finite())?;
    Some((finite * 1e3).ceil() as u64)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_quantile_is_the_bound_of_its_class() {
        let page = |counts: [u64; 3]| {
            let lines = ["0.001", "0.128", "+Inf"].iter().zip(counts);
            let lines = lines.map(|(bound, count)| format!("{FSYNC}{bound}\"}} {count}\n"));
            format!("# HELP x\n{}other 7\n", lines.collect::<String>())
        };
        assert_eq!(quantile(&page([0, 0, 0])), None);
        assert_eq!(quantile(&page([99, 100, 100])), Some(1));
        assert_eq!(quantile(&page([98, 100, 100])), Some(128));
        assert_eq!(quantile(&page([0, 0, 5])), Some(128));
        assert_eq!(quantile(""), None);
    }
}
