//! `GET /v1/events`: what happened, as lines of JSON or as server-sent events, once or as it comes.
//!
//! Owns what of it a reader may see, where a reader begins, and when one is cut off: with its token, when it is too far behind, and when we stop.
//! Events and their texts are the feed's; a reader that takes nothing loses its connection to the least data rate.

use crate::core_thread::now;
use crate::event_feed::{
    Audience, Cursor, EventForm, EventPage, GivenCursor, Interest, ToldEvent, WantedJob,
    cursor_text, kinds_of,
};
use crate::http::app::ApiContext;
use crate::http::error::ApiError;
use crate::http::job::name::{JobName, job_name};
use crate::http::permission::{Caller, Visibility};
use crate::http::query::{QueryPairs, list, words};
use crate::store::ReadError;
use crate::store::reader::EventBounds;
use axum::body::Body;
use axum::extract::State as Shared;
use axum::http::HeaderMap;
use axum::http::header::{ACCEPT, CACHE_CONTROL, CONTENT_TYPE};
use axum::response::{IntoResponse, Response};
use gcore::ctl::State;
use gmodel::TokenId;
use gmodel::suggest::did_you_mean;
use gwire::api::{EVENT_STREAM, EventKind, JSON_LINES, MAX_EVENTS};
use gwire::permits::{NoPermit, Permit};
use hyper::body::{Bytes, Frame};
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;
use tokio::sync::mpsc;
use tokio::time::Instant;

const KEYS: [&str; 7] = [
    "after", "since", "kinds", "account", "job", "follow", "limit",
];
/// Where a reader that begins anew says how far it was.
const LAST_EVENT_ID: &str = "last-event-id";
const DEFAULT_LIMIT: u32 = 1_000;
/// A reader hears something at least so often, and its token is looked at.
const HEARTBEAT: Duration = Duration::from_secs(15);
/// An answer that is not followed looks for events so long at most; the next one goes on.
const LOOK: Duration = Duration::from_secs(5);

/// A reader: its place, and what it gets.
struct Reading {
    site: ApiContext,
    caller: Caller,
    token: Option<TokenId>,
    sees: Visibility,
    interest: Interest,
    form: EventForm,
    follow: bool,
    limit: usize,
    incarnation: u64,
    cursor: Cursor,
    out: mpsc::Sender<Bytes>,
}

pub(crate) async fn events(
    caller: Caller,
    Shared(site): Shared<ApiContext>,
    headers: HeaderMap,
    pairs: QueryPairs,
) -> Result<Response, ApiError> {
    let pairs = pairs.only(&KEYS)?;
    let form = form_of(&headers);
    let follow = match pairs.text("follow") {
        "" => form == EventForm::ServerSent,
        _ => pairs.flag("follow")?,
    };
    let interest = interest_of(&pairs)?;
    let limit = limit_of(&pairs)?;
    let permit = permit_of(&site, &caller)?;
    let bounds = site.core.reader().event_bounds().await?;
    let cursor = start_of(&pairs, &headers, &bounds, &site).await?;
    let state = site.core.view().await;
    let (out, pieces) = mpsc::channel(1);
    let reading = Reading {
        token: caller.token(),
        sees: Visibility::of(&caller, &state),
        caller,
        interest,
        form,
        follow,
        limit,
        incarnation: bounds.incarnation,
        cursor,
        out,
        site,
    };
    tokio::spawn(reading.run());
    let kind = match form {
        EventForm::ServerSent => EVENT_STREAM,
        EventForm::JsonLines => JSON_LINES,
    };
    let headers = [(CONTENT_TYPE, kind), (CACHE_CONTROL, "no-store")];
    let body = Body::new(PieceBody {
        pieces,
        _permit: permit,
    });
    Ok((headers, body).into_response())
}

fn form_of(headers: &HeaderMap) -> EventForm {
    let accepts = headers
        .get_all(ACCEPT)
        .iter()
        .filter_map(|value| value.to_str().ok());
    match accepts
        .into_iter()
        .any(|value| value.contains(EVENT_STREAM))
    {
        true => EventForm::ServerSent,
        false => EventForm::JsonLines,
    }
}

fn interest_of(pairs: &QueryPairs) -> Result<Interest, ApiError> {
    let kinds = kinds_of(pairs.text("kinds")).map_err(|word| {
        let names: Vec<&str> = EventKind::told().map(EventKind::name).collect();
        let guess = did_you_mean(&word, names.iter().copied());
        let text = format!(
            "{word:?} is no kind of event.{guess} Kinds: {}; and job, array, node, gpu, reservation, policy, cluster for all of one",
            list(&names)
        );
        ApiError::invalid(text)
    })?;
    let job = match pairs.text("job") {
        "" => None,
        text => Some(wanted_job(text)?),
    };
    Ok(Interest {
        kinds,
        accounts: words(pairs.text("account")).into_iter().collect(),
        job,
    })
}

fn wanted_job(text: &str) -> Result<WantedJob, ApiError> {
    let one = |id, index| Ok(WantedJob { id, index });
    match job_name(text)? {
        JobName::Job(id) => one(id, None),
        JobName::Part { leader, offset } => {
            one(gmodel::JobId(leader.0.saturating_add(offset.into())), None)
        }
        JobName::Tasks { array, indices } => match (indices.len(), indices.iter().next()) {
            (1, Some(index)) => one(array, Some(index)),
            _ => Err(ApiError::invalid(
                "events are of one job, one array or one task: 17, 98 or 98_5",
            )),
        },
    }
}

fn limit_of(pairs: &QueryPairs) -> Result<usize, ApiError> {
    let limit = pairs.number("limit")?.unwrap_or(DEFAULT_LIMIT);
    if !(1..=MAX_EVENTS).contains(&limit) {
        let text = format!("limit = {limit}: an answer has 1 to {MAX_EVENTS} events");
        return Err(ApiError::invalid(text));
    }
    Ok(limit as usize)
}

fn permit_of(site: &ApiContext, caller: &Caller) -> Result<Permit<u32>, ApiError> {
    let privileged = caller.actor.operator && caller.token().is_none();
    let permit = site
        .app
        .events
        .readers
        .take(caller.actor.uid, privileged, 1);
    permit.map_err(|none| {
        ApiError::limit(match none {
            NoPermit::PerClient(most) => format!(
                "you have {most} readers of events, as many as one user may. End one: a single reader may ask for several kinds"
            ),
            NoPermit::All(most) => {
                format!("there are {most} readers of events already. Try again in a moment")
            }
        })
    })
}

/// The place from which a reader goes on.
async fn start_of(
    pairs: &QueryPairs,
    headers: &HeaderMap,
    bounds: &EventBounds,
    site: &ApiContext,
) -> Result<Cursor, ApiError> {
    // A browser that connects again repeats the query, and its header is newer.
    let header = headers.get(LAST_EVENT_ID);
    let header = header.and_then(|value| value.to_str().ok());
    let after = header.unwrap_or(pairs.text("after"));
    if let Some(since) = pairs.instant("since")? {
        if !after.is_empty() {
            return Err(ApiError::invalid(
                "after and since both say where to begin. Leave one out",
            ));
        }
        let first = site.core.reader().first_event_at(since).await?;
        return Ok(Cursor::whole(first.max(bounds.oldest).saturating_sub(1)));
    }
    if after.is_empty() {
        return Ok(Cursor::whole(bounds.newest));
    }
    let given: GivenCursor = after.parse().map_err(|why| {
        ApiError::invalid(format!(
            "after = {after:?} is no place in the events: {why}"
        ))
    })?;
    within(given, bounds)
}

/// A place that is there, or what became of it.
fn within(given: GivenCursor, bounds: &EventBounds) -> Result<Cursor, ApiError> {
    let oldest = Cursor::whole(bounds.oldest.saturating_sub(1));
    let is_of_now = given
        .incarnation
        .is_none_or(|own| own == bounds.incarnation);
    if given.at == Cursor::whole(0) && is_of_now {
        return Ok(oldest);
    }
    let gone = |text: String| {
        let id = oldest.id(bounds.incarnation);
        Err(ApiError::gone(format!(
            "{text}. The oldest event is number {}: begin with after={id}, and look at what is now (gq, gnodes)",
            bounds.oldest
        ))
        .about(gmodel::RefusalKind::Other, id))
    };
    if !is_of_now {
        return gone(format!(
            "event {} is of before a backup was restored, and numbers were given anew since",
            given.at.seq
        ));
    }
    if given.at.done() > bounds.newest {
        return gone(format!(
            "there is no event {} yet, the newest is {}",
            given.at.seq, bounds.newest
        ));
    }
    if given.at.done() + 1 < bounds.oldest {
        return gone(format!(
            "what followed event {} is past its time here (keep_jobs_days)",
            given.at.seq
        ));
    }
    Ok(given.at)
}

impl Reading {
    async fn run(self) {
        let follow = self.follow;
        let ended = match follow {
            true => self.follow().await,
            false => self.once().await,
        };
        if let Err(error) = ended {
            // The reader comes back with its last id.
            let error = anyhow::Error::from(error);
            tracing::warn!("a reader of events was cut off: {error:#}");
        }
    }

    async fn follow(mut self) -> Result<(), ReadError> {
        let site = self.site.clone();
        let _follower = site.app.events.follow();
        let mut tip = site.app.events.tip();
        let mut heartbeat = Instant::now() + HEARTBEAT;
        // So that the place is known before anything happens.
        if !self.say_cursor(false).await {
            return Ok(());
        }
        let mut was_up_to_date = false;
        loop {
            if tip.borrow_and_update().is_closing {
                return Ok(());
            }
            if heartbeat <= Instant::now() {
                heartbeat = Instant::now() + HEARTBEAT;
                if !self.may_go_on().await || !self.say_cursor(false).await {
                    return Ok(());
                }
            }
            match site.app.events.next(&site.core, self.cursor.done()).await? {
                // As far behind as memory goes.
                Some(next) if next.is_late && was_up_to_date => return Ok(()),
                Some(next) => {
                    if !self.tell(&next.page, next.upto, usize::MAX).await {
                        return Ok(());
                    }
                }
                None => {
                    was_up_to_date = true;
                    tokio::select! {
                        _ = tip.changed() => {}
                        () = tokio::time::sleep_until(heartbeat) => {}
                        () = self.out.closed() => return Ok(()),
                    }
                }
            }
        }
    }

    async fn once(mut self) -> Result<(), ReadError> {
        let site = self.site.clone();
        let until = Instant::now() + LOOK;
        let mut more = false;
        while let Some(next) = site.app.events.next(&site.core, self.cursor.done()).await? {
            if !self.tell(&next.page, next.upto, self.limit).await {
                return Ok(());
            }
            if self.limit == 0 || Instant::now() > until {
                more = true;
                break;
            }
        }
        self.say_cursor(more).await;
        Ok(())
    }

    /// Writes what of a page is for this reader; false when it is gone.
    async fn tell(&mut self, page: &EventPage, upto: u64, most: usize) -> bool {
        self.incarnation = page.incarnation;
        let (text, count, last) = page.take(self.form, self.cursor, most, |told| {
            self.interest.has(told) && self.is_visible(told)
        });
        self.cursor = match last {
            Some(last) if count == most => last,
            _ => Cursor::whole(upto),
        };
        self.limit = self.limit.saturating_sub(count);
        text.is_empty() || self.out.send(text).await.is_ok()
    }

    fn is_visible(&self, told: &ToldEvent) -> bool {
        match &told.audience {
            Audience::All => true,
            Audience::Operators => self.caller.actor.operator,
            Audience::Job {
                user,
                account,
                partition,
            } => self.sees.sees_job(user, account, partition),
        }
    }

    async fn say_cursor(&self, more: bool) -> bool {
        let id = self.cursor.id(self.incarnation);
        let text = cursor_text(self.form, id, self.cursor.seq, now(), more);
        self.out.send(text).await.is_ok()
    }

    /// Whether the token still holds; what is visible may be other than before.
    async fn may_go_on(&mut self) -> bool {
        let state = self.site.core.view().await;
        self.sees = Visibility::of(&self.caller, &state);
        self.token.is_none_or(|token| is_live(&state, token))
    }
}

fn is_live(state: &State, token: TokenId) -> bool {
    let token = state.tokens.users.get(&token);
    token.is_some_and(|token| token.is_live(now()))
}

/// Pieces as they come, until the reading task is done.
struct PieceBody {
    pieces: mpsc::Receiver<Bytes>,
    _permit: Permit<u32>,
}

impl hyper::body::Body for PieceBody {
    type Data = Bytes;
    type Error = std::convert::Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Self::Error>>> {
        let piece = self.pieces.poll_recv(cx);
        piece.map(|piece| piece.map(|bytes| Ok(Frame::data(bytes))))
    }
}
