//! Calls the site's `fence_program` for each lost node that the core wants powered off, and tells the core how it ended.
//!
//! Decides nothing: which node, when, and when again is in the state ([`gcore::ctl::fence_orders`]); when it is called,
//! [`crate::site_orders`] says.

use crate::config::settings::{Config, SiteProgram};
use crate::site_orders::SiteOrder;
use crate::site_program;
use gcore::ctl::{FenceOrder, Input, State, fence_orders};

impl SiteOrder for FenceOrder {
    // A rack that lost its power is many nodes.
    const AT_ONCE: usize = 32;

    fn program(config: &Config) -> Option<&SiteProgram> {
        config.fence.as_ref()
    }

    fn due(state: &State) -> Vec<Self> {
        fence_orders(state)
    }

    fn number(&self) -> u64 {
        self.number
    }

    async fn carry_out(self, program: SiteProgram) -> Input {
        let Self {
            node,
            number,
            ref name,
            attempt,
            ..
        } = self;
        tracing::warn!(node = name, attempt, program = %program.program.display(), "powering off a lost node: {}", self.lost);
        let failure = power_off(&program, &self).await.err();
        match &failure {
            None => tracing::warn!(node = name, attempt, "powered off"),
            Some(why) => tracing::error!(
                node = name,
                attempt,
                "it is not powered off, and its jobs wait: {why}"
            ),
        }
        Input::Fenced {
            node,
            number,
            failure,
        }
    }
}

/// # Errors
/// How it failed, in one sentence with the program's last words.
async fn power_off(program: &SiteProgram, order: &FenceOrder) -> Result<(), String> {
    let environment = [
        ("GPUPOOL_NODE", order.name.clone()),
        ("GPUPOOL_REASON", order.lost.clone()),
        ("GPUPOOL_ATTEMPT", order.attempt.to_string()),
    ];
    site_program::call("fence_program", program, &order.name, &environment).await
}

#[cfg(test)]
mod tests {
    use super::*;
    use gmodel::NodeId;

    #[tokio::test]
    async fn it_is_told_the_node_the_reason_and_the_attempt_and_its_end_counts() {
        let dir = tempfile::tempdir().unwrap();
        let order = FenceOrder {
            node: NodeId(1),
            name: "n1".into(),
            number: 7,
            attempt: 2,
            lost: "silent".into(),
        };
        let told = site_program::script(
            &dir,
            "[ \"$1 $GPUPOOL_NODE $GPUPOOL_REASON $GPUPOOL_ATTEMPT\" = 'n1 n1 silent 2' ]",
        );
        assert_eq!(power_off(&told, &order).await, Ok(()));
        let failed =
            site_program::script(&dir, "echo trying; echo no route to 10.0.0.7 >&2; exit 3");
        assert_eq!(
            power_off(&failed, &order).await,
            Err("fence_program ended with 3: no route to 10.0.0.7".into())
        );
    }
}
