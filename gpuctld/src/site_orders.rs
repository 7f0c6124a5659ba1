//! Carries out what the state orders of a site's programs: looks for the calls that are due, makes them a few at once, and hands in
//! what each came to. Decides nothing. A controller that was killed in the middle of a call makes it again, so the programs have to
//! bear being called twice.

use crate::config::settings::{Config, SiteProgram};
use crate::core_thread::CoreHandle;
use crate::http::App;
use gcore::ctl::{Input, State};
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::watch;
use tokio::task::JoinSet;

/// Between two looks at the state: small beside any time after which a call becomes due.
const LOOK: Duration = Duration::from_millis(500);

/// A call of one of the site's programs that is due.
pub trait SiteOrder: Send + Sized + 'static {
    /// Calls at once.
    const AT_ONCE: usize;

    /// The program, where the site has one.
    fn program(config: &Config) -> Option<&SiteProgram>;

    fn due(state: &State) -> Vec<Self>;

    /// The same for an order until the core has heard of its end, and never given again.
    fn number(&self) -> u64;

    /// Makes the call. What the core is to hear of it.
    fn carry_out(self, program: SiteProgram) -> impl Future<Output = Input> + Send;
}

/// Runs until we stop; calls under way are ended then, and made again by the next controller.
pub async fn run<O: SiteOrder>(core: CoreHandle, app: Arc<App>, mut stop: watch::Receiver<bool>) {
    let mut calls = JoinSet::new();
    let mut under_way: Vec<u64> = Vec::new();
    let mut seen = None;
    while !*stop.borrow() {
        tokio::select! {
            () = tokio::time::sleep(LOOK) => {}
            Some(Ok((number, end))) = calls.join_next() => {
                // Refused when we are stopping or swamped: the order stands, and is carried out once more.
                let _ = core.site_program_ended(end).await;
                under_way.retain(|one| *one != number);
                seen = None;
            }
            _ = stop.changed() => continue, // asked to stop, or the sender is gone
        }
        let Some(program) = O::program(&app.config()).cloned() else {
            continue;
        };
        let version = core.version();
        if seen == Some(version) {
            continue;
        }
        seen = Some(version);
        for order in O::due(&*core.view().await) {
            if under_way.len() >= O::AT_ONCE {
                break;
            }
            let number = order.number();
            if !under_way.contains(&number) {
                under_way.push(number);
                let call = order.carry_out(program.clone());
                calls.spawn(async move { (number, call.await) });
            }
        }
    }
}
