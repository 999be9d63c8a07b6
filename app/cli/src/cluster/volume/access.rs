//! `loadline volume access`: which initiators of iSCSI may use a volume.

use std::fs;
use std::path::{Path, PathBuf};

use loadline_san_node::node::manage::{
    ChapSecret, EndInitiator, InitiatorLetIn, InitiatorView, LetInitiator, VolumeView,
};

use crate::cluster::client::{Api, Failed, escaped, print_json, table};
use crate::output::{print_error, print_line, write};
use crate::process::exit::Exit;

/// Show which iSCSI initiators may use a volume, let one use it, or end its access.
///
/// Without a name here, an initiator reaches the volume only on the machine of a node. A named one reaches it from anywhere, at every node.
/// A name is no proof: give --chap too, unless only machines that you trust reach the nodes. iSCSI is not encrypted.
///
/// What is given here holds for sessions that begin after it.
#[derive(clap::Args)]
#[command(after_help = "Examples:\n  loadline volume access vm-7\n  \
                  loadline volume access vm-7 --initiator iqn.1993-08.org.debian:01:4f2a --chap vm-host-1 --secret-file secret\n  \
                  loadline volume access vm-7 --remove iqn.1993-08.org.debian:01:4f2a")]
pub(super) struct Access {
    /// The name of the volume.
    name: String,
    /// Let the initiator of this name use the volume. On Linux the name is in /etc/iscsi/initiatorname.iscsi. One that is named already
    /// has what is given now: without --chap it needs no secret.
    #[arg(long, value_name = "IQN", conflicts_with = "remove")]
    initiator: Option<String>,
    /// The user as whom the initiator proves who it is (CHAP).
    #[arg(long, value_name = "USER", requires = "initiator", requires = "secret_file")]
    chap: Option<String>,
    /// A file with the secret of that user: 12 to 255 bytes, with Windows 12 to 16. A line break at its end does not count.
    #[arg(long, value_name = "FILE", requires = "chap")]
    secret_file: Option<PathBuf>,
    /// The user as whom the node proves to the initiator that it is the target (mutual CHAP).
    #[arg(long, value_name = "USER", requires = "chap", requires = "mutual_secret_file")]
    mutual: Option<String>,
    /// A file with the secret of that user, another one than the initiator's.
    #[arg(long, value_name = "FILE", requires = "mutual")]
    mutual_secret_file: Option<PathBuf>,
    /// End the access of the initiator of this name, and its sessions. A node on the initiator's own machine still lets it in.
    #[arg(long, value_name = "IQN")]
    remove: Option<String>,
    #[command(flatten)]
    api: Api,
}

/// What it means that an initiator is let in. Nothing yet, if the volume requires TLS.
fn words(name: &str, InitiatorLetIn { now, before }: &InitiatorLetIn, requires_tls: bool) -> String {
    let had = before.as_ref().and_then(|of| of.chap_user.as_ref());
    let proves = match (&now.chap_user, &now.mutual_user, had) {
        (None, _, Some(user)) => {
            format!(", and needs no secret from now on: before, it had to prove who it is by CHAP as {user}")
        }
        (None, _, None) => String::new(),
        (Some(_), None, _) => ", and proves who it is by CHAP".into(),
        (Some(_), Some(_), _) => ", and proves who it is by CHAP, as the node does (mutual CHAP)".into(),
    };
    let refused = match requires_tls {
        true => format!(
            "; but the volume requires TLS, which iSCSI does not have, and so refuses it: 'loadline volume tls {name} optional' ends that"
        ),
        false => String::new(),
    };
    format!("initiator {} may use volume {name}{proves}{refused}", now.name)
}

/// The secret in a file.
fn secret_in(file: &Path) -> Result<String, String> {
    let text = fs::read_to_string(file)
        .map_err(|error| format!("the file of a secret, {}, cannot be read: {error}", file.display()))?;
    let secret =
        text.strip_suffix('\n').map_or(text.as_str(), |text| text.strip_suffix('\r').unwrap_or(text));
    match secret.contains(['\n', '\r']) {
        true => Err(format!("{} has several lines: a file of a secret has one", file.display())),
        false => Ok(secret.into()),
    }
}

fn chap(user: Option<&String>, file: Option<&PathBuf>) -> Result<Option<ChapSecret>, String> {
    let Some((user, file)) = user.zip(file) else { return Ok(None) };
    Ok(Some(ChapSecret { user: user.clone(), secret: secret_in(file)? }))
}

pub(super) fn run(args: &Access) -> Result<Exit, Failed> {
    let Access { name, api, .. } = args;
    if let Some(initiator) = &args.initiator {
        let secrets = chap(args.chap.as_ref(), args.secret_file.as_ref())
            .and_then(|own| Ok((own, chap(args.mutual.as_ref(), args.mutual_secret_file.as_ref())?)));
        let (own, mutual) = match secrets {
            Ok(secrets) => secrets,
            Err(why) => return Ok(print_error(Exit::Usage, &why)),
        };
        let wanted = LetInitiator { name: initiator.clone(), chap: own, mutual };
        let let_in: InitiatorLetIn =
            api.post(&format!("/v1/volumes/{}/initiators", escaped(name)), wanted)?;
        let volume = api.get::<VolumeView>(&format!("/v1/volumes/{}", escaped(name)));
        let requires_tls = volume.is_ok_and(|volume| volume.requires_tls);
        return Ok(api.done(&words(name, &let_in, requires_tls)));
    }
    if let Some(initiator) = &args.remove {
        let ends = EndInitiator { name: initiator.clone() };
        let (): () = api.post(&format!("/v1/volumes/{}/initiators/end", escaped(name)), ends)?;
        return Ok(api.done(&format!(
            "volume {name} does not name initiator {initiator} any more: only a node on the initiator's own machine lets it in, and its other sessions end"
        )));
    }
    let volume: VolumeView = api.get(&format!("/v1/volumes/{}", escaped(name)))?;
    Ok(match api.json {
        true => print_json(&volume.initiators),
        false => show(name, &volume.initiators, volume.requires_tls),
    })
}

fn show(name: &str, initiators: &[InitiatorView], requires_tls: bool) -> Exit {
    if requires_tls {
        print_line!(
            "volume {name} requires TLS, so no initiator of iSCSI reaches it: 'loadline volume tls {name} optional' ends that"
        );
        if initiators.is_empty() {
            return Exit::Done;
        }
    } else if initiators.is_empty() {
        print_line!(
            "volume {name} names no initiator: by iSCSI it is reached only from the machine of each node"
        );
        return Exit::Done;
    }
    let user = |user: &Option<String>| user.clone().unwrap_or_else(|| "-".into());
    let rows: Vec<Vec<String>> = initiators
        .iter()
        .map(|of| vec![of.name.clone(), user(&of.chap_user), user(&of.mutual_user)])
        .collect();
    write(table(&["initiator", "chap user", "mutual user"], &rows).as_bytes());
    if !requires_tls {
        print_line!("From the machine of a node, other initiators reach it without a secret.");
    }
    Exit::Done
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_initiator_of_a_volume_that_requires_tls_is_not_said_to_reach_it() {
        let now = InitiatorView { name: "iqn.a".into(), chap_user: None, mutual_user: None };
        let let_in = InitiatorLetIn { now, before: None };
        assert_eq!(words("db", &let_in, false), "initiator iqn.a may use volume db");
        let refused = words("db", &let_in, true);
        assert!(
            refused.contains("requires TLS") && refused.contains("loadline volume tls db optional"),
            "{refused}"
        );
    }
}
