//! Studies that the console starts: what is asked, what the answers make, and the start.

use axum::extract::{Extension, State};
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use axum::{Json, Router};
use loadline_question::{Answers, Draft, Fault, questions};

use super::said::Said;
use super::{Console, fault};
use crate::access::Caller;
use crate::studies::NotStarted;
use crate::studies::draft::{DraftView, Need, Permission, StartStudy, StudyView, drafted};

/// The routes of studies.
pub(super) fn routes() -> Router<Console> {
    Router::new()
        .route("/api/questions", get(async || Json(questions())))
        .route("/api/studies/draft", post(draft))
        .route("/api/studies", get(last).post(start))
}

async fn last(State(console): State<Console>) -> Response {
    Json(console.studies.view()).into_response()
}

/// The draft of what [`start`] would start: the content is the same, and what it permits does not matter.
async fn draft(Said(StartStudy { answers, .. }): Said<StartStudy>) -> Response {
    let view = |made| match made {
        Ok((_, study)) => DraftView { faults: Vec::new(), study: Some(study) },
        Err(faults) => DraftView { faults, study: None },
    };
    match made(answers).await {
        Some(made) => Json(view(made)).into_response(),
        None => fault(StatusCode::INTERNAL_SERVER_ERROR, "the console failed: it made no study"),
    }
}

/// What [`drafted`] makes, in a thread of its own: it looks for the folder of the study. `None` if that has failed.
async fn made(answers: Answers) -> Option<Result<(Draft, StudyView), Vec<Fault>>> {
    tokio::task::spawn_blocking(move || drafted(&answers)).await.ok()
}

/// Starts a study. The start goes on if the one who sent the request is gone.
async fn start(
    State(console): State<Console>,
    Extension(caller): Extension<Caller>,
    Said(StartStudy { answers, permits }): Said<StartStudy>,
) -> Response {
    let (draft, study) = match made(answers).await {
        Some(Ok(made)) => made,
        Some(Err(faults)) => return fault(StatusCode::UNPROCESSABLE_ENTITY, &in_words(&faults)),
        None => {
            let why = "the console failed: it made no study, and nothing is started";
            return fault(StatusCode::INTERNAL_SERVER_ERROR, why);
        }
    };
    let (holder, least) = (caller.holder, study.role);
    if holder.role < least {
        let role = holder.role;
        return fault(
            StatusCode::FORBIDDEN,
            &format!("a {role} may not start this study: it needs the role {least}"),
        );
    }
    if let Some(why) = study.refused {
        return fault(StatusCode::CONFLICT, &why);
    }
    if let Some(missing) = study.needs.iter().find(|need| !permits.contains(&need.permission)) {
        return fault(StatusCode::CONFLICT, &unpermitted(missing));
    }
    let by = format!("{} ({})", holder.name, holder.role);
    let studies = console.studies;
    match tokio::task::spawn_blocking(move || studies.start(&draft, &by)).await {
        Ok(Ok(begun)) => Json(begun).into_response(),
        Ok(Err(not)) => {
            let status = match not {
                NotStarted::Refused(_) | NotStarted::Ended(_) => StatusCode::CONFLICT,
                NotStarted::Late(_) => StatusCode::GATEWAY_TIMEOUT,
                NotStarted::Failed(_) => StatusCode::INTERNAL_SERVER_ERROR,
            };
            fault(status, not.why())
        }
        Err(_) => fault(
            StatusCode::INTERNAL_SERVER_ERROR,
            "the console failed: it is not known whether the study was started",
        ),
    }
}

fn in_words(faults: &[Fault]) -> String {
    let each = faults.iter().map(|fault| format!("{}: {}", fault.field, fault.message));
    each.collect::<Vec<_>>().join("; ")
}

/// That a permission is missing.
fn unpermitted(need: &Need) -> String {
    let name = match need.permission {
        Permission::DestroyData => "destroy_data",
        Permission::RunCommands => "run_commands",
        Permission::UseHosts => "use_hosts",
    };
    format!("{}. The start needs the permission {name}", need.effect)
}
