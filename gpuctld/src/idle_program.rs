//! Calls the site's `idle_program` for each run with a warning for idle GPUs, so that its owner hears of it: by mail, or
//! however the site likes. Decides nothing: the warnings are in the state ([`gcore::ctl::idle_orders`]). A call that failed is not
//! repeated, and noted in the job's record.

use crate::config::settings::{Config, SiteProgram};
use crate::site_orders::SiteOrder;
use crate::site_program;
use gcore::ctl::{IdleOrder, Input, State, idle_orders};
use gmodel::hostlist;

/// An order with what the program may tell.
pub struct Warning {
    order: IdleOrder,
    environment: Vec<(&'static str, String)>,
}

impl SiteOrder for Warning {
    const AT_ONCE: usize = 8;

    fn program(config: &Config) -> Option<&SiteProgram> {
        config.idle.as_ref()
    }

    fn due(state: &State) -> Vec<Self> {
        let orders = idle_orders(state).into_iter();
        orders
            .filter_map(|order| {
                Some(Self {
                    environment: environment(state, &order)?,
                    order,
                })
            })
            .collect()
    }

    fn number(&self) -> u64 {
        self.order.number
    }

    async fn carry_out(self, program: SiteProgram) -> Input {
        let IdleOrder { run, number, .. } = self.order;
        let failure = site_program::call(
            "idle_program",
            &program,
            &run.job.to_string(),
            &self.environment,
        )
        .await
        .err();
        if let Some(why) = &failure {
            tracing::warn!(%run, "its owner may not know that its GPUs stand idle: {why}");
        }
        Input::IdleTold {
            run,
            number,
            failure,
        }
    }
}

fn environment(state: &State, order: &IdleOrder) -> Option<Vec<(&'static str, String)>> {
    let (job, run) = (state.jobs.get(order.run.job)?, state.runs.get(order.run)?);
    let spec = &job.spec;
    let gpus: usize = run.allocation.iter().map(|share| share.gpus.0.len()).sum();
    let names = run
        .allocation
        .iter()
        .filter_map(|share| Some(state.nodes.get(share.node)?.name.as_str()));
    let (action, secs) = order
        .next
        .map_or(("warn", String::new()), |(action, secs)| {
            (action.word(), secs.to_string())
        });
    let mail_user = spec
        .launch
        .mail_user
        .clone()
        .unwrap_or_else(|| spec.user.name.clone());
    Some(vec![
        ("GPUPOOL_JOB_ID", job.shown_id()),
        ("GPUPOOL_JOB_NAME", spec.name.clone()),
        ("GPUPOOL_USER", spec.user.name.clone()),
        ("GPUPOOL_ACCOUNT", spec.account.clone()),
        ("GPUPOOL_PARTITION", spec.partition.clone()),
        ("GPUPOOL_QOS", spec.qos.clone()),
        ("GPUPOOL_NODES", hostlist::compress(names)),
        ("GPUPOOL_GPUS", gpus.to_string()),
        ("GPUPOOL_IDLE_SECS", order.idle_secs.to_string()),
        ("GPUPOOL_ACTION", action.to_owned()),
        ("GPUPOOL_ACTION_SECS", secs),
        // As the job asked for with --mail-type and --mail-user: whether to mail is the program's affair.
        (
            "GPUPOOL_MAIL_TYPE",
            spec.launch.mail_type.clone().unwrap_or_default(),
        ),
        ("GPUPOOL_MAIL_USER", mail_user),
    ])
}
