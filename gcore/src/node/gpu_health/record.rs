//! The record of one GPU: its standing signs, the stage of its repair, and the step that waits. Takes the steps that need no
//! permission, and names the others: a run that has to end, a step that the controller's breaker has to allow, a program of the
//! site. The next step is `repair`.

use super::HealthAction;
use super::repair::{Repair, RepairContext, RepairOutcome, RepairPolicy, RepairStep};
use super::watch::{GpuWatch, HealthVerdict, Sign, SignChange, verdict};
use gmodel::gpu_health::{Action, Catalogue, GpuHealthStatus, GpuReading, RepairStage, Severity};
use gmodel::{RunId, Timestamp};
use serde::{Deserialize, Serialize};
use std::collections::BTreeSet;

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct GpuRecord {
    /// As last seen, for people.
    pub index: u32,
    pub gpu_type: String,
    pub watch: GpuWatch,
    pub repair: Repair,
    /// Why it is out of service, as the pool shows it; empty while it is in service.
    pub reason: String,
    /// The sign that `reason` is about, and what was seen when it was raised.
    sign: String,
    evidence: String,
    /// Why the newest reset or boot was none.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    failure: String,
    /// What a run left on it. Over when it is seen clean.
    pub unclean: String,
    /// When that was last seen: only what is seen later says that it is gone.
    pub unclean_at: Timestamp,
    /// Its memory was to be overwritten and is not known to be. Then it is not clean either.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub unscrubbed: bool,
    /// The controller's newest order that was carried out: it is not carried out again.
    pub obeyed: Option<AnsweredOrder>,
    /// Discovery does not see it: the controller is not told of it, and allows nothing.
    #[serde(skip)]
    pub absent: bool,
    /// The newest reading that was one.
    #[serde(skip)]
    pub reading: Option<GpuReading>,
    /// The step that waits for the controller's word.
    #[serde(skip)]
    pub wants: Option<RepairStep>,
    /// What comes next, for people.
    #[serde(skip)]
    next: String,
    /// Signs that stand beside the one it is out for, each as it was when it was raised.
    #[serde(skip)]
    notes: Vec<(String, String)>,
}

/// An order of the controller, carried out. Numbers begin anew with each incarnation.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct AnsweredOrder {
    pub incarnation: u64,
    pub number: u64,
    pub error: String,
}

/// What a GPU's next step depends on besides itself.
#[derive(Clone, Copy, Debug)]
pub(super) struct StepConditions<'a> {
    /// The runs that hold the GPU, or slices of it.
    pub held: Option<&'a BTreeSet<RunId>>,
    pub node_empty: bool,
    /// No program of the site decides whether it is well.
    pub by_look: bool,
    /// A step is under way on another GPU of the node.
    pub other_under_way: bool,
}

impl GpuRecord {
    /// Why no job gets it; empty when it is in service.
    pub fn fault(&self) -> String {
        match (self.repair.in_service(), self.unclean.is_empty()) {
            (true, true) => String::new(),
            (true, false) => format!("not clean: {}", self.unclean),
            (false, _) => self.out_for(),
        }
    }

    /// The sign, whether what was tried against it could be done at all, and what is left.
    fn out_for(&self) -> String {
        let marked = if self.repair.stage == RepairStage::Marked {
            "to be replaced"
        } else {
            ""
        };
        let words = [self.reason.as_str(), self.failure.as_str(), marked];
        words
            .into_iter()
            .filter(|words| !words.is_empty())
            .collect::<Vec<_>>()
            .join("; ")
    }

    /// `quarantine`, `reset`, `boot`; empty: nothing waits for the controller's word.
    pub fn wants(&self) -> &'static str {
        match self.wants {
            Some(RepairStep::Quarantine) => "quarantine",
            Some(RepairStep::Reset) => "reset",
            Some(RepairStep::Boot) => "boot",
            _ => "",
        }
    }

    /// As the controller is told; none for a GPU that is plainly in service.
    pub fn standing(&self) -> Option<Box<GpuHealthStatus>> {
        if self.repair.in_service() && self.wants.is_none() {
            return None;
        }
        Some(Box::new(GpuHealthStatus {
            stage: self.repair.stage,
            since: self.repair.since,
            sign: self.sign.clone(),
            evidence: self.evidence.clone(),
            held: self.repair.held_by_admin.is_some(),
            next: self.next.clone(),
        }))
    }

    /// Signs that are only noted, as sentences.
    pub fn notes(&self) -> Vec<String> {
        self.notes.iter().map(|(_, words)| words.clone()).collect()
    }

    /// Takes the steps that need no permission, one after the other.
    pub(super) fn take_repair_steps(
        &mut self,
        uuid: &str,
        around: StepConditions<'_>,
        policy: &RepairPolicy,
        now: Timestamp,
        out: &mut Vec<HealthAction>,
    ) {
        self.note_signs();
        self.wants = None;
        // From quarantine to the end of its job, or from a look to service, is one walk.
        for _ in 0..4 {
            let signs: Vec<Sign> = self.watch.standing().cloned().collect();
            let verdict = verdict(&signs);
            self.give_reason(verdict);
            let surroundings = RepairContext {
                verdict,
                held: around.held.is_some_and(|runs| !runs.is_empty()),
                node_empty: around.node_empty,
                other_under_way: around.other_under_way,
                breaker_allows: verdict.is_some_and(|verdict| is_certain(&verdict)),
            };
            let step = self.repair.next(&surroundings, policy, now);
            self.next = self.words_for(step, &surroundings);
            match step {
                RepairStep::Quarantine => {
                    let text = format!(" is out of service: {}", self.reason);
                    out.push(self.line(Severity::Critical, uuid, &text));
                    self.repair.begin(step, policy, now);
                }
                RepairStep::StoppedByBreaker => {
                    self.wants = Some(RepairStep::Quarantine);
                    return;
                }
                RepairStep::Reset | RepairStep::Boot => {
                    // What would never be allowed would keep the node's other GPUs waiting.
                    self.wants = Some(step).filter(|_| !self.absent);
                    return;
                }
                RepairStep::EndJob => {
                    let why = format!("GPU {uuid} (index {}): {}", self.index, self.reason);
                    out.extend(
                        around
                            .held
                            .into_iter()
                            .flatten()
                            .map(|run| HealthAction::EndRun {
                                run: *run,
                                why: why.clone(),
                            }),
                    );
                    return;
                }
                // Not before it was looked at anew.
                RepairStep::BurnIn
                    if self.reading.is_none() || (!around.by_look && around.other_under_way) =>
                {
                    return;
                }
                RepairStep::BurnIn => {
                    self.repair.begin(step, policy, now);
                    if !around.by_look {
                        return;
                    }
                    // No sign stands and it answers: that is enough where the site has no program.
                    self.repair.end(RepairOutcome::BurnInPassed, now);
                    out.push(self.back_in_service(uuid));
                }
                RepairStep::MarkForReplacement => {
                    let text = format!(" has to be replaced: {}", self.reason);
                    out.push(self.line(Severity::Critical, uuid, &text));
                    self.repair.begin(step, policy, now);
                }
                RepairStep::GiveUp => {
                    if self.repair.stage == RepairStage::Booting {
                        self.failure = format!(
                            "the node did not boot within {} min",
                            policy.patience_secs / 60
                        );
                    }
                    self.repair.begin(step, policy, now);
                }
                RepairStep::Nothing | RepairStep::WaitForAdmin => return,
            }
        }
    }

    /// The controller allows the step that waits: it is begun. The error says that none waits any more.
    pub(super) fn permitted(
        &mut self,
        uuid: &str,
        policy: &RepairPolicy,
        now: Timestamp,
    ) -> Result<HealthAction, String> {
        let step = self.wants.take();
        let step = step.ok_or("no step of its repair waits for the controller's word any more")?;
        self.repair.begin(step, policy, now);
        self.next = self.words_for(RepairStep::Nothing, &RepairContext::default());
        let text = format!(": the pool's breaker allows: {step:?}");
        Ok(self.line(Severity::Warning, uuid, &text))
    }

    /// How a program of the site ended on it: a reset, the word to boot, or its burn-in.
    pub(super) fn ended(
        &mut self,
        uuid: &str,
        outcome: Result<(), String>,
        now: Timestamp,
    ) -> Option<HealthAction> {
        let stage = self.repair.stage;
        let outcome = match (stage, outcome) {
            (RepairStage::BurningIn, Ok(())) => match verdict(self.watch.standing()) {
                Some(verdict) => Err(format!("during its burn-in: {}", words(verdict.sign))),
                None => Ok(()),
            },
            (_, outcome) => outcome,
        };
        Some(match (stage, outcome) {
            (RepairStage::BurningIn, Ok(())) => {
                self.repair.end(RepairOutcome::BurnInPassed, now);
                self.back_in_service(uuid)
            }
            (RepairStage::BurningIn, Err(why)) => {
                self.repair.end(RepairOutcome::BurnInFailed, now);
                self.sign.clear();
                self.reason = why;
                let text = format!(" stays out of service: {}", self.reason);
                self.line(Severity::Critical, uuid, &text)
            }
            (RepairStage::Resetting, Ok(())) => self.begin_anew(uuid, now),
            // The machine goes down any moment; the next boot says that it is done.
            (RepairStage::Booting, Ok(())) => {
                self.line(Severity::Warning, uuid, ": the node is about to boot")
            }
            (RepairStage::Resetting | RepairStage::Booting, Err(why)) => {
                self.repair.end(RepairOutcome::Failed, now);
                self.failure = why;
                let text = format!(": {}", self.failure);
                self.line(Severity::Critical, uuid, &text)
            }
            _ => return None,
        })
    }

    /// An administrator takes it out.
    pub fn hold(&mut self, why: String, now: Timestamp) {
        self.reason = format!("quarantined: {why}");
        (self.sign, self.evidence) = (String::new(), String::new());
        if self.repair.in_service() {
            self.repair.since = now;
        }
        self.repair.hold(why);
    }

    /// An administrator puts it back: what it showed is forgotten, and it has to look well.
    pub fn release(&mut self, now: Timestamp) {
        self.repair.release(now);
        self.watch = self
            .reading
            .as_ref()
            .map_or_else(GpuWatch::default, GpuWatch::accepting);
        self.unclean.clear();
        self.unscrubbed = false;
        self.failure.clear();
    }

    /// The daemon restarted: a step that was under way ended with the earlier daemon, with an unknown outcome.
    pub(super) fn daemon_began(&mut self, uuid: &str, is_boot: bool, now: Timestamp) {
        match self.repair.stage {
            // A burn-in without a known end is no evidence against the GPU.
            RepairStage::BurningIn => self.repair.stage = RepairStage::Out,
            RepairStage::Resetting => {
                self.repair.end(RepairOutcome::Failed, now);
                self.failure = "gpud ended during its reset".to_owned();
            }
            RepairStage::Booting if is_boot => drop(self.begin_anew(uuid, now)),
            _ => {}
        }
        if is_boot {
            self.booted(now);
        }
    }

    /// What was wrong before a reset or a boot is over, until it is seen again.
    fn begin_anew(&mut self, uuid: &str, now: Timestamp) -> HealthAction {
        self.repair.end(RepairOutcome::Done, now);
        self.failure.clear();
        (self.watch, self.reading) = (GpuWatch::default(), None);
        let text = ": reset or booted; it is looked at anew";
        self.line(Severity::Warning, uuid, text)
    }

    /// What a boot mends is over until it is seen again; a hold and a worn board are not.
    fn booted(&mut self, now: Timestamp) {
        let mended =
            |action: Action| matches!(action, Action::EndJob | Action::Reset | Action::Reboot);
        let signs: Vec<Sign> = self.watch.standing().cloned().collect();
        let out =
            self.repair.held_by_admin.is_none() && self.repair.stage != RepairStage::InService;
        if out && verdict(&signs).is_some_and(|verdict| mended(verdict.action)) {
            self.repair.stage = RepairStage::Out;
            self.repair.since = now;
            self.watch = GpuWatch::default();
        }
    }

    fn back_in_service(&mut self, uuid: &str) -> HealthAction {
        self.reason.clear();
        self.failure.clear();
        (self.sign, self.evidence) = (String::new(), String::new());
        self.line(Severity::Warning, uuid, " is back in service")
    }

    /// A line for the log. `text` follows the GPU's name.
    fn line(&self, severity: Severity, uuid: &str, text: &str) -> HealthAction {
        HealthAction::Log {
            severity,
            text: format!("GPU {uuid} (index {}){text}", self.index),
        }
    }

    /// The line for the log about a change of a sign.
    pub(super) fn sign_line(&self, uuid: &str, change: &SignChange) -> HealthAction {
        let (severity, text) = match change {
            SignChange::Raised(sign) if sign.action > Action::Note => (
                Severity::Critical,
                format!(
                    "{} {}: {}, calls for {}",
                    sign.severity, sign.name, sign.evidence, sign.action
                ),
            ),
            SignChange::Raised(sign) => (
                Severity::Warning,
                format!("{} {}: {}, noted", sign.severity, sign.name, sign.evidence),
            ),
            SignChange::Repeated(sign) => (
                Severity::Warning,
                format!(
                    "{} again: {}, {} times since {}",
                    sign.name, sign.evidence, sign.count, sign.first
                ),
            ),
            SignChange::Over(sign) => (
                Severity::Info,
                format!(
                    "{} is over, {} times since {}",
                    sign.name, sign.count, sign.first
                ),
            ),
        };
        self.line(severity, uuid, &format!(": {text}"))
    }

    fn give_reason(&mut self, verdict: Option<HealthVerdict<'_>>) {
        if verdict.is_none() && self.repair.in_service() {
            (self.sign, self.evidence) = (String::new(), String::new());
        }
        if let Some(HealthVerdict { sign, .. }) = verdict
            .filter(|verdict| self.sign != verdict.sign.name && self.repair.held_by_admin.is_none())
        {
            self.reason = words(sign);
            self.sign.clone_from(&sign.name);
            self.evidence.clone_from(&sign.evidence);
        }
    }

    /// Signs that call for nothing; and of a GPU that is out, those that it is not out for: a second fault is evidence too.
    fn note_signs(&mut self) {
        let is_out = !self.repair.in_service();
        let beside = |sign: &&Sign| sign.action == Action::Note || is_out && sign.name != self.sign;
        let noted: Vec<(String, String)> = self
            .watch
            .standing()
            .filter(beside)
            .map(|sign| (sign.name.clone(), words(sign)))
            .collect();
        if !noted
            .iter()
            .map(|(name, _)| name)
            .eq(self.notes.iter().map(|(name, _)| name))
        {
            self.notes = noted;
        }
    }

    fn words_for(&self, step: RepairStep, around: &RepairContext<'_>) -> String {
        let action = around.verdict.map(|verdict| verdict.action);
        let words = match (self.repair.stage, step) {
            (_, RepairStep::Quarantine | RepairStep::StoppedByBreaker) => "quarantine",
            (_, RepairStep::EndJob) => "its job ends and is requeued elsewhere",
            (_, RepairStep::Reset) => "a reset",
            (_, RepairStep::Boot) => "a boot of the node",
            (_, RepairStep::BurnIn) => "burn-in, then back in service",
            (_, RepairStep::MarkForReplacement) | (RepairStage::Marked, _) => {
                "another board; gadm gpu return takes this one back"
            }
            (RepairStage::Resetting, _) => "a new look when the reset is done",
            (RepairStage::Booting, _) => "a new look when the node has booted",
            (RepairStage::BurningIn, _) => "back in service if it passes",
            (RepairStage::Out, RepairStep::Nothing) if around.held => "its job may finish first",
            // What its node has no program for.
            (RepairStage::Out, RepairStep::WaitForAdmin) if action == Some(Action::Reset) => {
                "reset it, then gadm gpu return; or boot the node"
            }
            (RepairStage::Out, RepairStep::WaitForAdmin) if action == Some(Action::Reboot) => {
                "boot the node; or gadm gpu return when it is mended"
            }
            (RepairStage::Out, RepairStep::WaitForAdmin) => "waits for gadm gpu return",
            (RepairStage::Out, RepairStep::Nothing) if self.repair.held_by_admin.is_some() => {
                "waits for gadm gpu return"
            }
            (RepairStage::Out, RepairStep::Nothing)
                if action >= Some(Action::Reset) && around.other_under_way =>
            {
                "the next step, after that of another GPU of its node"
            }
            (RepairStage::Out, _) if action >= Some(Action::Reset) && !around.node_empty => {
                "the next step, when no run is on the node"
            }
            (RepairStage::Out, _) => "a pause, then the next step",
            (RepairStage::InService, _) => "",
        };
        words.to_owned()
    }
}

/// Results or jobs are at risk: it goes out whatever the breaker says, for no job may get it.
fn is_certain(verdict: &HealthVerdict<'_>) -> bool {
    verdict.severity >= Severity::Critical
}

fn words(sign: &Sign) -> String {
    match sign.name.starts_with("xid") {
        true => format!("{}: {}", sign.evidence, meaning(&sign.name)),
        false => format!("{}: {}", sign.name, sign.evidence),
    }
}

/// What the catalogue that gpupool brings says of a sign; a site's own sign is its name.
fn meaning(name: &str) -> String {
    Catalogue::built_in()
        .signs
        .get(name)
        .map_or_else(|| name.to_owned(), |kind| kind.meaning.clone())
}
