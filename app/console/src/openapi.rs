//! The console's API as OpenAPI 3.1 describes it, made of the types. The page's types are made of what is published (`web/scripts`).

use loadline_question::Form;
use loadline_san_node::openapi::{Route, describe, of};
use serde_json::Value;

use crate::action::Action;
use crate::carry_out::Done;
use crate::past::PastView;
use crate::preview::Preview;
use crate::runs::row::{ComparisonView, Notes, RunDetail, RunsView, TrendView};
use crate::server::Fault;
use crate::server::clusters::{ClusterRow, ConsoleView, Message, VolumesView};
use crate::server::session::{SessionView, SignIn, SignedIn};
use crate::studies::draft::{DraftView, StartStudy};
use crate::studies::{Begun, StartedView};

pub(crate) const ROUTES: [Route; 23] = [
    ("get", "/api/console", "What the console has pages of", None, of::<ConsoleView>),
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
    (
        "post",
        "/api/clusters/{name}/actions/preview",
        "What an action will do, and whether it is possible now",
        Some(of::<Action>),
        of::<Preview>,
    ),
    (
        "post",
        "/api/clusters/{name}/actions",
        "Carry out an action. 409: it is not possible, and nothing has changed. 503: no node answers, and nothing has changed. 504: it is not \
         known whether it was done",
        Some(of::<Action>),
        of::<Done>,
    ),
    ("get", "/api/session", "Who sends this, and how one can sign in", None, of::<SessionView>),
    (
        "post",
        "/api/session",
        "Sign in: the answer has the cookie of a session. Every request but a GET needs this cookie and the header X-Loadline-CSRF, or a key as \
         Authorization: Bearer KEY; and the header Content-Type: application/json. After many wrong keys: 429, with Retry-After",
        Some(of::<SignIn>),
        of::<SignedIn>,
    ),
    ("post", "/api/session/end", "Sign out", None, of::<()>),
    (
        "get",
        "/api/runs",
        "Runs, the latest first. The query has `search`, words that all must be found, `tag`, `study`, `from` and `count`, 200 at most",
        None,
        of::<RunsView>,
    ),
    ("get", "/api/runs/{run}", "A run, with its figures", None, of::<RunDetail>),
    (
        "put",
        "/api/runs/{run}/notes",
        "Replace the tags and the note of a run. They are in `notes.json` in its folder",
        Some(of::<Notes>),
        of::<RunDetail>,
    ),
    (
        "get",
        "/api/compare",
        "Compare two runs as `loadline compare` does. The query has their ids: `base`, and `new`",
        None,
        of::<ComparisonView>,
    ),
    (
        "get",
        "/api/trend",
        "A figure of a load over the runs of a study, each beside the noise of the runs before it. The query has `study`, `load`, `condition` \
         and `figure`: `iops`, `mean_us` or `p99_us`. Without `load`, of the first load",
        None,
        of::<TrendView>,
    ),
    (
        "get",
        "/api/runs/{run}/stream",
        "Watch a run, finished or not: server-sent events without a name, each with one message of the page of a report \
         (report-page.schema.json) as its data; and events named console, each with what GET /api/console answers. The header Last-Event-ID has the number of steps that were received",
        None,
        of::<()>,
    ),
    (
        "post",
        "/api/runs/{run}/stop",
        "Ask a run to end within seconds, as Ctrl-C does. It can be resumed. The answer has no content",
        None,
        of::<()>,
    ),
    (
        "get",
        "/api/questions",
        "The fields of the form for a new study, and when each is shown",
        None,
        of::<Form>,
    ),
    (
        "post",
        "/api/studies/draft",
        "The study that answers make, with its plan and what a start needs; or what is wrong with the answers. The content is that of POST /api/studies. \
         Nothing is written",
        Some(of::<StartStudy>),
        of::<DraftView>,
    ),
    (
        "post",
        "/api/studies",
        "Start the study that answers make. 403: the role is not enough. 409: it is not started, or it has ended before it began to measure; the message says why. \
         422: the answers make no study. 504: the run is still checking its hosts or its storage: ask GET /api/studies",
        Some(of::<StartStudy>),
        of::<Begun>,
    ),
    (
        "get",
        "/api/studies",
        "The run that this console started last, or null",
        None,
        of::<Option<StartedView>>,
    ),
    (
        "get",
        "/api/clusters/{name}/past",
        "What the cluster did. The query has `seconds` (900), `from`, the first of them (seconds since 1970; by default the last second is the last one \
         that is kept), and `step`, the seconds of a row at least",
        None,
        of::<PastView>,
    ),
    (
        "get",
        "/api/clusters/{name}/nodes/{node}/past",
        "What a node did: each second of 24 hours. The query is that of the cluster's past",
        None,
        of::<PastView>,
    ),
    (
        "get",
        "/api/clusters/{name}/volumes/{volume}/past",
        "What a volume did: each second of the last 15 minutes, and each ten seconds of 24 hours. The query is that of the cluster's past",
        None,
        of::<PastView>,
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
