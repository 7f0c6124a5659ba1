//! What is counted (`sacctmgr show tres`), in sacctmgr's columns.

use crate::ruled_table::Column;
use gcli::Failure;
use gcli::answer::list;
use gslurm_json::tres::{CountedTres, counted};
use gwire::api::NodeRow;
use gwire::client::Client;

pub(super) const COLUMNS: &[Column<CountedTres>] = &[
    Column::right("type", "Type", 8, |row| row.kind.to_owned()),
    Column::right("name", "Name", 15, |row| row.name.clone()),
    Column::right("id", "ID", 6, |row| row.id.to_string()),
];

pub(super) fn rows(client: &mut Client) -> Result<Vec<CountedTres>, Failure> {
    Ok(counted(&list::<NodeRow>(client, "/v1/nodes")?))
}
