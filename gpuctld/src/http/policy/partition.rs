//! Partitions over the API: made, changed and removed at run time, beside those of the files.
//!
//! Lists are the affair of `http/node/list.rs`.

use crate::config::RecordKind;
use crate::group_members;
use crate::http::app::ApiContext;
use crate::http::error::ApiError;
use crate::http::existence::exists;
use crate::http::node::list::{PartitionList, partition_rows};
use crate::http::permission::Caller;
use crate::http::policy::edit::{
    EditAnswer, EditBody, check_presence, from_outside, send, send_noting,
};
use crate::http::policy::{check, record};
use axum::Json;
use axum::extract::{Path, State as Shared};
use gcore::ctl::{PolicyChange, State};
use gmodel::RefusalKind;
use gmodel::config::Partition;
use gmodel::partition::MadePartition;
use gwire::api::SCHEMA;

pub(crate) async fn partition(
    _: Caller,
    Shared(site): Shared<ApiContext>,
    Path(name): Path<String>,
) -> Result<Json<PartitionList>, ApiError> {
    let state = site.core.view().await;
    exists("partition", &name, names(&state))?;
    let mut rows = partition_rows(&state);
    rows.retain(|row| row.name == name);
    Ok(Json(PartitionList {
        schema: SCHEMA,
        partitions: rows,
    }))
}

fn names(state: &State) -> impl Iterator<Item = &String> + Clone {
    state.config.partitions.iter().map(|one| &one.name)
}

pub(crate) async fn edit_partition(
    caller: Caller,
    Shared(site): Shared<ApiContext>,
    Path(name): Path<String>,
    body: EditBody,
) -> EditAnswer {
    let Json(edit) = body?;
    caller.must_administer("editing partitions")?;
    from_outside(&caller)?;
    let _turn = site.app.policy_turn().await;
    let state = site.core.view().await;
    let old = state.config.partition(&name);
    check_presence("partition", &name, edit.create, names(&state))?;
    let partition = record::partition(&name, old, &edit)?;
    check::partition(&state, &partition)?;
    let added = partition
        .allow_groups
        .iter()
        .filter(|group| old.is_none_or(|old| !old.allow_groups.contains(group)));
    let unknown = group_members::unknown(added.cloned().collect()).await;
    let notes = unknown.into_iter().map(|group| {
        format!("group {group}: this host does not know such a name, so it lets nobody in")
    });
    let notes = notes.collect();
    let made = MadePartition {
        partition,
        file: state.config.file_partition(&name).cloned().map(Box::new),
        by: caller.actor.user.clone(),
    };
    let is_as_written = |file: &Partition| made.set_keys(file, true).is_empty();
    let change = match made.file.as_deref().is_some_and(is_as_written) {
        true => PolicyChange::PartitionRemoved { name: name.clone() },
        false => PolicyChange::Partition {
            made: Box::new(made),
        },
    };
    // All of it is as its file has it, and was so.
    if matches!(change, PolicyChange::PartitionRemoved { .. })
        && !state.own_policy.partitions.contains_key(&name)
    {
        return Ok(Json(gwire::api::ChangeReply {
            schema: SCHEMA,
            notes: Vec::new(),
        }));
    }
    send_noting(&site, caller, change, notes).await
}

pub(crate) async fn remove_partition(
    caller: Caller,
    Shared(site): Shared<ApiContext>,
    Path(name): Path<String>,
    _: EditBody,
) -> EditAnswer {
    caller.must_administer("editing partitions")?;
    from_outside(&caller)?;
    let _turn = site.app.policy_turn().await;
    let state = site.core.view().await;
    exists("partition", &name, names(&state))?;
    if state.config.file_partition(&name).is_some() {
        let config = site.app.config();
        let place = config.places.get(&(RecordKind::Partition, name.clone()));
        let text = match place {
            Some(place) => {
                format!("partition {name} is written in {place}. Remove it there, then gadm reload")
            }
            None => format!(
                "partition {name} is there since no file has one. Write another in partitions.d"
            ),
        };
        return Err(ApiError::conflict(text).about(RefusalKind::NotSupported, &name));
    }
    send(&site, caller, PolicyChange::PartitionRemoved { name }).await
}
