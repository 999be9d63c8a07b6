//! The API as OpenAPI 3.1 describes it, made of the types: what is published, and served, is kept to it.

use schemars::generate::{SchemaGenerator, SchemaSettings};
use schemars::{JsonSchema, Schema};
use serde_json::{Map, Value, json};

/// The schema of a type.
pub type Made = fn(&mut SchemaGenerator) -> Schema;

/// What can be asked: method, path, what for, what is sent, what is answered. A path that ends with `/stream` answers with server-sent
/// events.
pub type Route = (&'static str, &'static str, &'static str, Option<Made>, Made);

/// The schema of this type, among those that a generator makes.
pub fn of<T: JsonSchema>(generator: &mut SchemaGenerator) -> Schema {
    generator.subschema_for::<T>()
}

/// The description of an API with this title and description, which answers `F` if something is not done.
pub fn describe<F: JsonSchema>((title, what): (&str, &str), routes: &[Route]) -> Value {
    let settings = SchemaSettings::draft2020_12().with(|s| s.definitions_path = "/components/schemas".into());
    let mut generator = settings.into_generator();
    let mut paths = Map::new();
    for (method, path, summary, body, answer) in routes.iter().copied() {
        let kind = if path.ends_with("/stream") { "text/event-stream" } else { "application/json" };
        let answers = |schema: Value, what: &str, kind: &str| json!({ "description": what, "content": { kind: { "schema": schema } } });
        let answer = serde_json::to_value(answer(&mut generator)).expect("a schema is JSON");
        let fault = serde_json::to_value(of::<F>(&mut generator)).expect("a schema is JSON");
        let mut operation = json!({
            "summary": summary,
            "responses": { "200": answers(answer, "Done", kind), "default": answers(fault, "Not done, and why", "application/json") },
        });
        if let Some(body) = body {
            let body = serde_json::to_value(body(&mut generator)).expect("a schema is JSON");
            operation["requestBody"] =
                json!({ "required": true, "content": { "application/json": { "schema": body } } });
        }
        let parameters: Vec<Value> = path
            .split('{')
            .skip(1)
            .map(|rest| {
                let name = rest.split_once('}').map_or(rest, |(name, _)| name);
                let kind = if name == "id" { "integer" } else { "string" };
                json!({ "name": name, "in": "path", "required": true, "schema": { "type": kind } })
            })
            .collect();
        if !parameters.is_empty() {
            operation["parameters"] = parameters.into();
        }
        let of_path = paths.entry(path).or_insert_with(|| json!({}));
        of_path[method] = operation;
    }
    json!({
        "openapi": "3.1.0",
        "info": {
            "title": title,
            "version": env!("CARGO_PKG_VERSION"),
            "description": what,
        },
        "paths": paths,
        "components": { "schemas": generator.take_definitions(true) },
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::api::{Attach, Detach, Fault};
    use crate::config::catalog::Reserve;
    use crate::node::manage::{
        AddDevice, CacheVolume, ClientsView, CreateVolume, CreateVolumes, Drain, EndInitiator, Followed,
        InitiatorLetIn, LetInitiator, LimitVolume, LocalView, MadeVolume, Maintain, Move, Recover,
        RequireTls, Resize, ScrubView, StatusView, SupportView, TestFault, TraceRequests, TraceView, Use,
        VolumeView,
    };

    /// All of the API that speaks JSON.
    const ROUTES: [Route; 32] = [
        ("get", "/v1/status", "How everything is", None, of::<StatusView>),
        (
            "get",
            "/v1/local",
            "What this node reports of itself; other nodes ask for it",
            None,
            of::<LocalView>,
        ),
        (
            "get",
            "/v1/stream",
            "Follow this node: server-sent events, each with one of these as its name and content, until the connection ends after ten minutes at \
             most. The header Last-Event-ID names the line of the log after which lines are sent",
            None,
            of::<Followed>,
        ),
        (
            "get",
            "/v1/support",
            "What a support archive has of this node: no key, token or password",
            None,
            of::<SupportView>,
        ),
        (
            "post",
            "/v1/volumes",
            "Make a volume. If the client disconnects before the answer, a volume that is not ready yet is removed",
            Some(of::<CreateVolume>),
            of::<()>,
        ),
        (
            "post",
            "/v1/volume-batch",
            "Make volumes that differ in their names only: all of them or none; and attach them, if that is wanted. If the client disconnects \
             before the answer, volumes that are not ready yet are removed",
            Some(of::<CreateVolumes>),
            of::<Vec<MadeVolume>>,
        ),
        ("get", "/v1/volumes/{name}", "How a volume is", None, of::<VolumeView>),
        ("delete", "/v1/volumes/{name}", "Delete a volume that is not attached", None, of::<()>),
        (
            "post",
            "/v1/volumes/{name}/attach",
            "Attach a volume: make a node its owner, disconnect its present clients, and accept new ones",
            Some(of::<Attach>),
            of::<Use>,
        ),
        (
            "post",
            "/v1/volumes/{name}/detach",
            "Detach a volume: afterwards no node serves it. The answer has the clients that were disconnected",
            Some(of::<Detach>),
            of::<ClientsView>,
        ),
        (
            "post",
            "/v1/volumes/{name}/resize",
            "Make it larger. If the client disconnects before the answer, the size may stay as it is",
            Some(of::<Resize>),
            of::<()>,
        ),
        (
            "post",
            "/v1/volumes/{name}/recover",
            "Continue a volume with the copies of one node, even if those copies lack writes",
            Some(of::<Recover>),
            of::<()>,
        ),
        ("post", "/v1/volumes/{name}/move", "Move its copies to another node", Some(of::<Move>), of::<()>),
        (
            "post",
            "/v1/volumes/{name}/scrub",
            "Start a scrub of the volume's copies on this node",
            None,
            of::<()>,
        ),
        ("get", "/v1/volumes/{name}/scrub", "Show the progress of the scrub", None, of::<Vec<ScrubView>>),
        (
            "post",
            "/v1/volumes/{name}/tls",
            "Decide whether its clients must come by TLS",
            Some(of::<RequireTls>),
            of::<()>,
        ),
        (
            "post",
            "/v1/volumes/{name}/initiators",
            "Let an iSCSI initiator use it from anywhere",
            Some(of::<LetInitiator>),
            of::<InitiatorLetIn>,
        ),
        (
            "post",
            "/v1/volumes/{name}/initiators/end",
            "End the access of an iSCSI initiator",
            Some(of::<EndInitiator>),
            of::<()>,
        ),
        (
            "post",
            "/v1/volumes/{name}/cache",
            "Give its copies a read cache",
            Some(of::<CacheVolume>),
            of::<()>,
        ),
        (
            "post",
            "/v1/volumes/{name}/limit",
            "Limit what its clients do a second",
            Some(of::<LimitVolume>),
            of::<()>,
        ),
        (
            "post",
            "/v1/volumes/{name}/trace",
            "Follow single requests of its clients",
            Some(of::<TraceRequests>),
            of::<TraceView>,
        ),
        (
            "post",
            "/v1/devices",
            "Give a device of this node to the cluster",
            Some(of::<AddDevice>),
            of::<u32>,
        ),
        (
            "post",
            "/v1/devices/{id}/replace",
            "Replace a device by another device of the same node",
            Some(of::<AddDevice>),
            of::<u32>,
        ),
        ("post", "/v1/nodes/{name}/drain", "Empty a node", Some(of::<Drain>), of::<()>),
        (
            "post",
            "/v1/nodes/{name}/maintenance",
            "Have other nodes serve the volumes of a node that is to be stopped, or end that",
            Some(of::<Maintain>),
            of::<()>,
        ),
        (
            "post",
            "/v1/nodes/{name}/restart",
            "Hand the volumes of this node over and restart its process; the incarnation of the process that ends",
            None,
            of::<u64>,
        ),
        ("post", "/v1/nodes/{name}/renew", "Renew the certificate of this node", None, of::<()>),
        ("delete", "/v1/nodes/{name}", "Remove a node that is empty", None, of::<()>),
        (
            "post",
            "/v1/reserve",
            "Choose what resyncs and scrubs get at the least",
            Some(of::<Reserve>),
            of::<()>,
        ),
        (
            "post",
            "/v1/test-faults",
            "Start a test fault, in a cluster for development",
            Some(of::<TestFault>),
            of::<()>,
        ),
        ("delete", "/v1/test-faults", "End all test faults of this node", None, of::<()>),
        ("get", "/v1/openapi.json", "This", None, of::<Value>),
    ];

    /// The description.
    fn document() -> Value {
        let what = "A client may send a request to any node. A node that cannot carry out the request answers 421 and names the node that can.";
        describe::<Fault>(("Loadline SAN", what), &ROUTES)
    }

    #[test]
    fn the_published_description_of_the_api_is_current() {
        let (file, current) = ("../../docs/reference/api.openapi.json", format!("{:#}\n", document()));
        assert_eq!(loadline_packed::is_current(env!("CARGO_MANIFEST_DIR"), file, &current), Ok(()));
    }

    #[test]
    fn every_reference_leads_somewhere() {
        let document = document();
        let text = document.to_string();
        let parts = text.split("\"$ref\":\"#").skip(1).filter_map(|rest| rest.split('"').next());
        let mut seen = 0;
        for reference in parts {
            assert!(document.pointer(reference).is_some(), "{reference}");
            seen += 1;
        }
        assert!(seen > 20, "{seen}");
        assert_eq!(document["paths"]["/v1/volumes/{name}"]["get"]["parameters"][0]["name"], "name");
    }
}
