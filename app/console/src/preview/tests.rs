use loadline_san_node::config::catalog::{Reserve, Role};
use loadline_san_node::node::manage::{DeviceView, Health, LimitVolume, PathsView};

use super::*;

fn copy(id: u64, node: &str, state: &str) -> ReplicaView {
    ReplicaView {
        id,
        group: 0,
        node: node.into(),
        device: 1,
        log_device: 1,
        state: state.into(),
        epoch: None,
        left_bytes: None,
        copied_bytes: None,
        full_resync: None,
        leaving: false,
        note: None,
    }
}

fn volume_of(name: &str, attached: Option<&str>, replicas: Vec<ReplicaView>) -> VolumeView {
    VolumeView {
        name: name.into(),
        bytes: 10 << 30,
        copies: 2,
        least: 1,
        stripes: 1,
        lease_ms: 600,
        requires_tls: false,
        initiators: Vec::new(),
        paths: PathsView::default(),
        reservations: None,
        cache_bytes: 0,
        limit: None,
        health: Some(Health::Healthy),
        in_sync: 2,
        attached: attached.map(Into::into),
        attach_key: None,
        owner: attached.map(Into::into),
        epoch: 1,
        replicas,
        note: None,
    }
}

fn node_of(name: &str, alive: bool, draining: bool) -> NodeView {
    NodeView {
        name: name.into(),
        alive,
        api: "127.0.0.1:7400".into(),
        endpoints: BTreeMap::new(),
        draining,
        maintenance: false,
        stopping: false,
        incarnation: 1,
        devices: 1,
        replicas: 1,
        fault: None,
    }
}

pub(crate) fn device_of(node: &str, room: u64) -> DeviceView {
    DeviceView {
        id: 1,
        node: node.into(),
        path: "/dev/x".into(),
        bytes: 2 * room,
        role: Role::Both,
        promised: room,
        taken: None,
        room,
        replicas: 1,
        draining: false,
        replaced_by: None,
        advice: None,
        model: None,
        keeps_up: None,
        fault: None,
    }
}

/// Nodes `a`, `b`, `c`, and `d`, which does not answer; `used` attached at `a` with copies at `a` and `b`; `rest`, which is not.
pub(crate) fn status() -> StatusView {
    let copies = |from: u64, second: &str| vec![copy(from, "a", "in sync"), copy(from + 1, "b", second)];
    StatusView {
        cluster: "1234".into(),
        asked: "a".into(),
        store_fault: None,
        reserve: Reserve::default(),
        store: Vec::new(),
        nodes: vec![
            node_of("a", true, false),
            node_of("b", true, false),
            node_of("c", true, false),
            node_of("d", false, false),
        ],
        devices: vec![],
        volumes: vec![
            volume_of("used", Some("a"), copies(1, "in sync")),
            volume_of("rest", None, copies(3, "away")),
        ],
    }
}

fn of(action: &Action) -> Preview {
    preview(&status(), action)
}

fn refused(action: &Action) -> String {
    of(action).refused.unwrap_or_else(|| panic!("{action:?} is possible"))
}

fn text(action: &Action) -> String {
    let preview = of(action);
    assert_eq!(preview.refused, None, "{action:?}");
    preview.effects.join(" ")
}

pub(crate) fn new(name: &str, copies: u32) -> CreateVolume {
    let (least, at, log_bytes) = (None, None, None);
    CreateVolume {
        name: name.into(),
        bytes: 1 << 30,
        copies,
        least,
        stripes: 1,
        at,
        log_bytes,
        requires_tls: false,
    }
}

#[test]
fn a_volume_is_made_if_there_are_nodes_for_its_copies() {
    let said = text(&Action::CreateVolume(CreateVolume { at: Some("c".into()), ..new("vm", 3) }));
    assert!(
        said.contains("A volume of 1GiB with 3 copies") && said.contains("first copy is at node c"),
        "{said}"
    );
    // Three copies, and three logs of 256 MiB.
    assert!(said.contains("About 3.75GiB are reserved"), "{said}");
    assert!(text(&Action::CreateVolume(new("vm", 1))).contains("If the node of the copy is lost"));
    for (wanted, says) in [
        (new("used", 2), "choose another name"),
        (new("", 2), "cannot be a name"),
        (new("../../etc", 2), "cannot be a name"),
        (new("<img src=x onerror=alert(1)>", 2), "cannot be a name"),
        (new("a\u{1b}[2J", 2), "cannot be a name"),
        (new("vm", 4), "1 to 3 copies"),
        (new("vm", 0), "1 to 3 copies"),
        (CreateVolume { bytes: 40, ..new("vm", 2) }, "at least 1MiB"),
        (CreateVolume { least: Some(3), ..new("vm", 2) }, "must be in sync"),
        (CreateVolume { stripes: 13, ..new("vm", 2) }, "12 stripes"),
        (CreateVolume { at: Some("d".into()), ..new("vm", 2) }, "takes no new copies"),
        (CreateVolume { at: Some("x".into()), ..new("vm", 2) }, "there is no node 'x'"),
    ] {
        let why = refused(&Action::CreateVolume(wanted));
        assert!(why.contains(says) && !why.contains('\u{1b}'), "{why}");
    }
    let mut status = status();
    status.nodes[2].draining = true;
    let preview = preview(&status, &Action::CreateVolume(new("vm", 3)));
    assert_eq!(
        preview.refused.as_deref(),
        Some("3 copies need as many nodes that take new copies, and there are 2")
    );
}

#[test]
fn a_volume_only_grows_and_only_while_a_node_owns_it() {
    let to = |volume: &str, gib: u64| {
        Action::ResizeVolume(ResizeVolume { volume: volume.into(), bytes: gib << 30 })
    };
    let preview = of(&to("used", 12));
    assert!(preview.effects[0].contains("grows by 2GiB, from 10GiB to 12GiB"), "{preview:?}");
    assert!(preview.effects[1].contains("Another 4GiB") && preview.lasting.is_some(), "{preview:?}");
    assert!(refused(&to("used", 10)).contains("only grows"));
    assert!(refused(&to("rest", 12)).contains("attach the volume first"));
    assert!(refused(&to("none", 12)).contains("there is no volume 'none'"));
}

#[test]
fn a_limit_says_what_was_before() {
    let to = |iops, bytes_per_s| {
        let limit = LimitVolume { iops, bytes_per_s, burst_ms: None };
        Action::LimitVolume(LimitOf { volume: "used".into(), limit })
    };
    let said = text(&to(Some(500), Some(2_000_000)));
    assert!(
        said.contains("at most 500 requests a second and 2 MB/s") && said.contains("there was no limit"),
        "{said}"
    );
    assert!(refused(&to(Some(0), None)).contains("at least 1"));
    let mut status = status();
    status.volumes[0].limit = Some(LimitVolume { iops: Some(9), bytes_per_s: None, burst_ms: Some(100) });
    let said = preview(&status, &to(None, None)).effects.join(" ");
    assert!(said.contains("no limit any more") && said.contains("a limit of 9 requests a second"), "{said}");
}

#[test]
fn a_move_says_how_much_is_copied_and_that_no_client_is_disconnected() {
    let to = |volume: &str, from: &str, to: &str| {
        Action::MoveVolume(MoveVolume { volume: volume.into(), from: from.into(), to: to.into() })
    };
    let said = text(&to("used", "b", "c"));
    assert!(said.contains("1 copy of volume used is made anew at node c, beside that at node b"), "{said}");
    assert!(said.contains("At most 10GiB are copied") && said.contains("none is disconnected"), "{said}");
    assert!(said.contains("Node a stays the owner"), "{said}");
    assert!(text(&to("rest", "a", "c")).contains("nothing is copied before it is"));
    assert!(text(&to("used", "a", "d")).contains("Node d does not answer"));
    // A copy that is no good is made anew where it is.
    assert!(
        text(&to("rest", "b", "b")).contains("1 copy of volume rest that is not in sync is made anew there")
    );
    assert!(refused(&to("used", "a", "a")).contains("is in sync"));
    assert!(refused(&to("used", "a", "b")).contains("already has a copy"));
    assert!(
        refused(&to("used", "c", "d")).contains("node c has no copy of volume used: its copies are at a, b")
    );
    assert!(refused(&to("used", "a", "x")).contains("there is no node"));
    // Of a volume with two groups, one node has a half.
    let mut status = status();
    status.volumes[0].replicas[1].group = 1;
    let said = preview(&status, &to("used", "b", "c")).effects.join(" ");
    assert!(said.contains("At most 5GiB"), "{said}");
    status.nodes[2].draining = true;
    assert!(preview(&status, &to("used", "b", "c")).refused.is_some_and(|why| why.contains("being drained")));
}

#[test]
fn attaching_says_who_is_disconnected() {
    let at = |volume: &str, node: Option<&str>| {
        Action::AttachVolume(AttachVolume { volume: volume.into(), node: node.map(Into::into) })
    };
    let said = text(&at("used", Some("b")));
    assert!(
        said.contains("which node a gives up") && said.contains("All clients of the volume are disconnected"),
        "{said}"
    );
    assert!(text(&at("used", Some("a"))).contains("All clients of the volume are disconnected"));
    let said = text(&at("rest", None));
    assert!(said.contains("most copies in sync") && !said.contains("disconnected"), "{said}");
    assert!(refused(&at("rest", Some("d"))).contains("does not answer"));
}

#[test]
fn detaching_disconnects_clients_only_by_force_and_deleting_wants_the_name_and_no_attachment() {
    let detach = |volume: &str, force| Action::DetachVolume(DetachVolume { volume: volume.into(), force });
    assert!(text(&detach("used", false)).contains("the cluster refuses this"));
    assert!(text(&detach("used", true)).contains("All clients of the volume are disconnected"));
    assert!(refused(&detach("rest", true)).contains("is not attached"));
    let delete = |volume: &str, confirm: &str| {
        Action::DeleteVolume(DeleteVolume { volume: volume.into(), confirm: confirm.into() })
    };
    assert!(refused(&delete("used", "used")).contains("detach it first"));
    let preview = of(&delete("rest", ""));
    assert_eq!((preview.type_name.as_deref(), preview.refused.as_deref()), (Some("rest"), None));
    assert!(preview.lasting.is_some() && preview.effects[0].contains("2 copies at a, b"), "{preview:?}");
    let refusal = |confirm: &str| refusal(&status(), &delete("rest", confirm), None);
    assert_eq!(refusal("rest"), None);
    for wrong in ["", "Rest", "rest "] {
        assert!(refusal(wrong).is_some_and(|why| why.contains("nothing is deleted")), "{wrong:?}");
    }
}

#[test]
fn what_was_shown_is_done_and_nothing_else() {
    let delete =
        |confirm: &str| Action::DeleteVolume(DeleteVolume { volume: "rest".into(), confirm: confirm.into() });
    let shown = of(&delete("")).shown;
    let refusal = |status: &StatusView| refusal(status, &delete("rest"), Some(&shown));
    assert_eq!(refusal(&status()), None);
    // Another user deleted it, and made it again under the same name, with the same size and the same nodes.
    let mut anew = status();
    anew.volumes[1].replicas.iter_mut().for_each(|replica| replica.id += 10);
    assert!(refusal(&anew).is_some_and(|why| why.contains("look at it again")));
    let mut larger = status();
    larger.volumes[1].bytes *= 2;
    assert!(refusal(&larger).is_some());
    // What is possible no more says so.
    let mut attached = status();
    attached.volumes[1].attached = Some("a".into());
    assert!(refusal(&attached).is_some_and(|why| why.contains("detach it first")));
}

#[test]
fn a_scrub_checks_the_copies_in_sync_at_nodes_that_answer() {
    let of = |volume: &str| Action::ScrubVolume(ScrubVolume { volume: volume.into() });
    let said = text(&of("used"));
    assert!(said.contains("Every block of 2 copies") && said.contains("at most 20GiB are read"), "{said}");
    let said = text(&of("rest"));
    assert!(said.contains("1 copy is skipped") && said.contains("only counted"), "{said}");
    let mut status = status();
    status.nodes[0].alive = false;
    assert!(preview(&status, &of("rest")).refused.is_some_and(|why| why.contains("none is in sync")));
}

#[test]
fn a_drain_names_what_moves_what_stays_and_what_stays_attached() {
    let of = |node: &str, stop| Action::DrainNode(DrainNode { node: node.into(), stop });
    let said = text(&of("a", false));
    assert!(
        said.contains("Node a has 2 copies of 2 volumes (rest, used). They move to other nodes"),
        "{said}"
    );
    assert!(
        said.contains("At most 20GiB are copied") && said.contains("stay attached there: used"),
        "{said}"
    );
    assert!(!said.contains("too few other nodes"), "{said}");
    assert!(text(&of("c", false)).contains("has no copies"));
    assert!(text(&of("d", false)).contains("does not answer"));
    assert!(refused(&of("a", true)).contains("is not being drained"));
    let mut status = status();
    (status.nodes[0].draining, status.nodes[2].draining) = (true, true);
    assert!(preview(&status, &of("a", false)).refused.is_some_and(|why| why.contains("already")));
    assert_eq!(preview(&status, &of("a", true)).refused, None);
    // One other node is left, and two copies.
    status.nodes[0].draining = false;
    let said = preview(&status, &of("b", false)).effects.join(" ");
    assert!(said.contains("too few other nodes for the copies of used, rest"), "{said}");
}

#[test]
fn a_node_in_maintenance_gives_its_volumes_away_and_gets_nothing() {
    let of = |node: &str, stop, force| Action::MaintainNode(MaintainNode { node: node.into(), stop, force });
    let said = text(&of("c", false, false));
    assert!(said.contains("owns no volume") && said.contains("its copies stay"), "{said}");
    let said = text(&of("a", false, false));
    assert!(said.contains("Another node becomes the owner of volume used"), "{said}");
    assert!(refused(&of("a", true, false)).contains("is not in maintenance"));
    // The other copy is not in sync.
    let mut status = status();
    status.volumes[0].replicas[1].state = "returning".into();
    let why = preview(&status, &of("a", false, false)).refused.expect("it is refused");
    assert!(why.contains("would wait") && why.contains("used"), "{why}");
    let said = preview(&status, &of("a", false, true)).effects.join(" ");
    assert!(
        said.contains("clients of these volumes wait: used") && said.contains("owns no volume"),
        "{said}"
    );
    // Or its node is in maintenance too.
    let mut status = super::tests::status();
    status.nodes[1].maintenance = true;
    assert!(preview(&status, &of("a", false, false)).refused.is_some_and(|why| why.contains("would wait")));
    assert!(preview(&status, &of("b", false, false)).refused.is_some_and(|why| why.contains("already")));
    assert_eq!(preview(&status, &of("b", true, false)).refused, None);
    let attach = Action::AttachVolume(AttachVolume { volume: "used".into(), node: Some("b".into()) });
    assert!(preview(&status, &attach).refused.is_some_and(|why| why.contains("is in maintenance")));
    let to = MoveVolume { volume: "used".into(), from: "a".into(), to: "c".into() };
    status.nodes[2].maintenance = true;
    assert!(
        preview(&status, &Action::MoveVolume(to))
            .refused
            .is_some_and(|why| why.contains("is in maintenance"))
    );
}

#[test]
fn nothing_is_possible_without_the_store_or_of_a_volume_that_is_being_made() {
    let limit = LimitVolume { iops: Some(1), bytes_per_s: None, burst_ms: None };
    let action = Action::LimitVolume(LimitOf { volume: "used".into(), limit });
    let mut status = status();
    status.store_fault = Some("it is locked".into());
    let why = preview(&status, &action).refused.expect("it is refused");
    assert!(why.contains("node a does not use the configuration store: it is locked"), "{why}");
    (status.store_fault, status.volumes[0].health) = (None, None);
    assert!(preview(&status, &action).refused.is_some_and(|why| why.contains("being made or removed")));
}
