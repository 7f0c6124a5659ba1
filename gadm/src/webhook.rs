//! `gadm webhook`: how the receivers of events stand, and sending again to one that was given up.

use gcli::local_time::TimeFormat;
use gcli::printable::printable;
use gcli::table::{Column, Screen, TableWriter, stdout};
use gcli::{Outcome, answer};
use gwire::api::{ChangeReply, WebhookResume, WebhookRow};
use gwire::client::Client;

/// What to do with webhooks.
#[derive(clap::Subcommand)]
pub(crate) enum WebhookAct {
    /// List the webhooks of gpuctld.toml, and what stands against deliveries
    List {
        /// One line of JSON
        #[arg(long)]
        json: bool,
    },
    /// Deliver again, now, to one that is parked or waits for its next try
    Resume {
        /// Its name in gpuctld.toml
        #[arg(value_name = "NAME")]
        name: String,
        /// Leave out what waited, and go on with what comes; of one that is parked
        #[arg(long)]
        skip: bool,
    },
}

pub(crate) fn run(client: &mut Client, act: WebhookAct) -> Outcome {
    match act {
        WebhookAct::List { json: true } => answer::print_json(client, "/v1/webhooks"),
        WebhookAct::List { json: false } => list(client),
        WebhookAct::Resume { name, skip } => {
            let path = format!("/v1/webhooks/{name}/resume");
            let reply: ChangeReply = client.post(&path, &WebhookResume { skip })?;
            for note in &reply.notes {
                eprintln!("gadm: {}", printable(note));
            }
            Ok(0)
        }
    }
}

fn list(client: &mut Client) -> Outcome {
    let rows: Vec<WebhookRow> = answer::list(client, "/v1/webhooks")?;
    let columns = vec![
        Column::whole("NAME"),
        Column::text("HOST"),
        Column::whole("STATE"),
        Column::whole("AFTER"),
        Column::number("DELIVERED"),
        Column::number("FAILED"),
        Column::whole("FAILING_SINCE"),
        Column::text("ERROR"),
    ];
    let times = TimeFormat::from_env();
    let mut table = TableWriter::new(stdout()?, columns, Screen::of_stdout(), true);
    for row in &rows {
        let since = row.failing_since.map(|at| times.print(at.0));
        table.row(vec![
            row.name.as_str().into(),
            row.host.as_str().into(),
            row.state.as_str().into(),
            row.after.as_str().into(),
            row.delivered.to_string().into(),
            row.failed_tries.to_string().into(),
            since.unwrap_or_default().into(),
            printable(&row.error).into_owned().into(),
        ])?;
    }
    table.finish()?;
    Ok(0)
}
