//! The console's API as OpenAPI 3.1 describes it, made of the types. The page's types are made of what is published (`web/scripts`).

use loadline_san_node::openapi::{Route, describe, of};
use serde_json::Value;

use crate::server::{ClusterRow, Fault, Message, VolumesView};

const ROUTES: [Route; 3] = [
    ("get", "/api/clusters", "The clusters that are followed", None, of::<Vec<ClusterRow>>),
    (
        "get",
        "/api/clusters/{name}/stream",
        "Watch a cluster: server-sent events, each with one of these as its name and content. The query has `past`, the seconds of the past \
         that are wanted. The header Last-Event-ID has the last second that was received",
        None,
        of::<Message>,
    ),
    (
        "get",
        "/api/clusters/{name}/volumes",
        "Volumes: those that are not healthy first, then by latency. The query has `search`, a part of the name, `from` and `count`",
        None,
        of::<VolumesView>,
    ),
];

/// The description.
fn document() -> Value {
    describe::<Fault>(("Loadline console", "What the page of the console asks for."), &ROUTES)
}

#[test]
fn the_published_description_of_the_console_is_current() {
    let (file, current) = ("../../docs/reference/console.openapi.json", format!("{:#}\n", document()));
    assert_eq!(loadline_packed::is_current(env!("CARGO_MANIFEST_DIR"), file, &current), Ok(()));
}
