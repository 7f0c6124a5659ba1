//! What forms do: cancel, hold, release, requeue a job, log out. The routes of `/v1` carry it out, or refuse it, as for a command.

use super::job::v1_path;
use super::page::Visitor;
use crate::http::token::way_in::same;
use axum::extract::{Form, Path, State as Shared};
use axum::http::StatusCode;
use axum::http::header::SET_COOKIE;
use axum::response::{IntoResponse, Redirect, Response};
use gwire::api::{CancelRequest, EachResult, JobRow, TargetsRequest};
use serde::Deserialize;

use super::page::Web;
use super::session::FormResult;

/// What every form says.
#[derive(Deserialize)]
pub(super) struct Word {
    word: String,
}

/// # Errors
/// The form is not of this session's pages.
fn own_form(visitor: &Visitor, form: &Word) -> Result<(), Box<Response>> {
    if same(&visitor.session.form_word, &form.word) {
        return Ok(());
    }
    let text = "this form is of another session. Load the page again, and send it from there";
    let content = gweb::refusal(text);
    Err(Box::new(visitor.page(
        StatusCode::FORBIDDEN,
        "Not done",
        gweb::Place::Elsewhere,
        &content,
    )))
}

pub(super) async fn act(
    visitor: Visitor,
    Path((id, act)): Path<(String, String)>,
    Form(form): Form<Word>,
) -> Response {
    if let Err(refused) = own_form(&visitor, &form) {
        return *refused;
    }
    let (path, done) = match act.as_str() {
        "cancel" => ("/v1/jobs/cancel", "is cancelled"),
        "hold" => ("/v1/jobs/hold", "is held: it waits until it is released"),
        "release" => ("/v1/jobs/release", "is released"),
        "requeue" => ("/v1/jobs/requeue", "goes back to the queue"),
        _ => {
            let content = gweb::refusal("jobs are cancelled, held, released and requeued here");
            let place = gweb::Place::Elsewhere;
            return visitor.page(StatusCode::NOT_FOUND, "Not done", place, &content);
        }
    };
    let jobs = vec![id.clone()];
    let inside = visitor.inside();
    let answer = match act.as_str() {
        "cancel" => {
            let body = CancelRequest {
                jobs,
                ..CancelRequest::default()
            };
            inside.post::<EachResult>(path, &body).await
        }
        _ => {
            let body = TargetsRequest {
                jobs,
                ..TargetsRequest::default()
            };
            inside.post::<EachResult>(path, &body).await
        }
    };
    visitor.session.say(match answer {
        Err(error) => not_done(error.said.error),
        Ok(answer) => match answer.results.into_iter().find(|one| !one.ok) {
            Some(refused) => not_done(refused.error),
            None => FormResult {
                ok: true,
                text: format!("Job {id} {done}."),
            },
        },
    });
    // A job that may not be seen any more has no page.
    let seen = inside.list::<JobRow>(&v1_path(&id, ""), "jobs").await;
    Redirect::to(&match seen {
        Ok(_) => format!("/job/{}", gweb::percent_encoded(&id)),
        Err(_) => "/".to_owned(),
    })
    .into_response()
}

fn not_done(text: String) -> FormResult {
    FormResult { ok: false, text }
}

pub(super) async fn log_out(
    Shared(web): Shared<Web>,
    visitor: Visitor,
    Form(form): Form<Word>,
) -> Response {
    if let Err(refused) = own_form(&visitor, &form) {
        return *refused;
    }
    web.site.app.entrances.web.end(&visitor.session);
    let cookie = visitor.door.set_cookie("", 0);
    ([(SET_COOKIE, cookie)], Redirect::to("/")).into_response()
}
