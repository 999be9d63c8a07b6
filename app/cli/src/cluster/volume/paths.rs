//! How initiators of iSCSI reach a volume, as `volume show` prints it: their paths, and the persistent reservations.

use loadline_san_node::node::manage::{PathState, PathsView, ReservationsView, VolumeView};

use crate::cluster::client::table;
use crate::output::text::counted;
use crate::output::{print_line, write};

/// Prints how many sessions there are, and the reservation if there is one: each as a line of the volume.
pub(super) fn print_lines(volume: &VolumeView) {
    print_line!("target    {}, LUN 0", volume.paths.target);
    print_line!("iscsi     {}", sessions(&volume.paths, volume.requires_tls));
    if let Some(text) = reserved(volume.reservations.as_ref()) {
        print_line!("reserved  {text}");
    }
}

/// Prints the paths and the registrations as tables.
pub(super) fn print_tables(volume: &VolumeView) {
    let paths =
        volume.paths.initiators.iter().flat_map(|of| of.paths.iter().map(|path| (&of.initiator, path)));
    let rows: Vec<Vec<String>> = paths
        .map(|(initiator, path)| {
            let state = match path.state {
                PathState::Active => "active",
                PathState::StandsBy => "stands by",
            };
            let portal = path.portal.clone().unwrap_or("-".into());
            vec![initiator.clone(), path.node.clone(), portal, state.into(), path.sessions.to_string()]
        })
        .collect();
    if !rows.is_empty() {
        print_line!();
        write(table(&["initiator", "node", "portal", "path", "sessions"], &rows).as_bytes());
    }
    let registrations = volume.reservations.iter().flat_map(|of| &of.registrations);
    let rows: Vec<Vec<String>> = registrations
        .map(|of| {
            let node = of.node.clone().unwrap_or("-".into());
            let holds = if of.holds { "holds the reservation" } else { "registered" };
            vec![of.initiator.clone(), of.isid.clone(), node, of.key.clone(), holds.into()]
        })
        .collect();
    if !rows.is_empty() {
        print_line!();
        write(table(&["initiator", "ISID", "node", "key", "state"], &rows).as_bytes());
    }
}

/// How many sessions there are, where that is not known, and that no new one is possible if the volume requires TLS.
fn sessions(paths: &PathsView, requires_tls: bool) -> String {
    let unknown: Vec<String> = paths.unknown.iter().map(|of| format!("{} ({})", of.node, of.why)).collect();
    let known = match (paths.initiators.len(), unknown.is_empty()) {
        (0, true) => "no sessions".into(),
        (0, false) => "no sessions known".into(),
        (initiators, _) => {
            format!(
                "{} of {}",
                counted(paths.sessions() as u64, "session"),
                counted(initiators as u64, "initiator")
            )
        }
    };
    let mut text = known;
    if !unknown.is_empty() {
        text += &format!("; not known at {}", unknown.join(", "));
    }
    if requires_tls {
        text += "; logins are refused, because the volume requires TLS";
    }
    text
}

/// What the reservation is, or that there is none for registrations. Nothing if nothing is registered.
fn reserved(reservations: Option<&ReservationsView>) -> Option<String> {
    let Some(reservations) = reservations else {
        return Some("not known: the configuration store could not be read".into());
    };
    let count = reservations.registrations.len();
    match &reservations.reservation {
        None if count == 0 => None,
        None => Some(format!(
            "no; {} registered",
            if count == 1 { "1 session is".into() } else { format!("{count} sessions are") }
        )),
        Some(of) => {
            let holder = of.holder.as_deref().map_or(String::new(), |name| format!("; held by {name}"));
            Some(format!("{}: {}{holder}", of.kind, of.restricts))
        }
    }
}

#[cfg(test)]
mod tests {
    use loadline_san_node::node::manage::{
        InitiatorPaths, PathView, RegistrationView, ReservationView, UnknownPaths,
    };

    use super::*;

    #[test]
    fn sessions_that_are_not_known_are_not_said_to_be_none() {
        let unknown = || vec![UnknownPaths { node: "node-2".into(), why: "it does not answer".into() }];
        assert_eq!(sessions(&PathsView::default(), false), "no sessions");
        let none = PathsView { unknown: unknown(), ..PathsView::default() };
        assert_eq!(sessions(&none, false), "no sessions known; not known at node-2 (it does not answer)");
        let path = |node: &str, sessions| PathView {
            node: node.into(),
            portal: None,
            state: PathState::Active,
            sessions,
        };
        let initiator =
            InitiatorPaths { initiator: "iqn.a".into(), paths: vec![path("node-1", 2), path("node-3", 1)] };
        let some = PathsView { initiators: vec![initiator], unknown: unknown(), ..PathsView::default() };
        assert_eq!(
            sessions(&some, false),
            "3 sessions of 1 initiator; not known at node-2 (it does not answer)"
        );
    }

    #[test]
    fn a_volume_that_requires_tls_is_said_to_refuse_logins() {
        let refused = "no sessions; logins are refused, because the volume requires TLS";
        assert_eq!(sessions(&PathsView::default(), true), refused);
    }

    #[test]
    fn a_reservation_is_said_in_words_and_one_that_was_not_read_is_unknown() {
        assert_eq!(reserved(None).unwrap(), "not known: the configuration store could not be read");
        let mut all = ReservationsView::default();
        assert_eq!(reserved(Some(&all)), None);
        all.registrations.push(RegistrationView {
            initiator: "iqn.a".into(),
            isid: "400000013700".into(),
            node: None,
            key: "0x1".into(),
            holds: false,
        });
        assert_eq!(reserved(Some(&all)).unwrap(), "no; 1 session is registered");
        all.reservation = Some(ReservationView {
            kind: "write exclusive".into(),
            restricts: "only the holder writes".into(),
            holder: Some("iqn.a".into()),
        });
        assert_eq!(reserved(Some(&all)).unwrap(), "write exclusive: only the holder writes; held by iqn.a");
    }
}
