//! `[scheduler]` and its neighbours in the main file: order, backfill, placement, weights, preemption, licences, prices.
//!
//! Owns their keys, defaults and bounds; what they do is gsched's affair. Words of slurm.conf(5) where it has one.

use crate::error::Errors;
use crate::section::Section;
use gmodel::checkpoint::CheckpointSpec;
use gmodel::licence;
use gmodel::policy::{
    Backfill, FairShare, JobOrder, Placement, PreemptConfig, PriorityWeights, SchedulerConfig,
};
use std::collections::BTreeMap;

/// Of `[scheduler]`.
pub const SCHEDULER_KEYS: [&str; 4] = ["order", "backfill", "placement", "consolidate"];
const PRIORITY_KEYS: [&str; 8] = [
    "age",
    "fair_share",
    "qos",
    "partition",
    "size",
    "site",
    "max_age",
    "favor_small",
];
const FAIR_SHARE_KEYS: [&str; 4] = ["half_life", "gpu_weights", "cpu_weight", "mem_gib_weight"];
const PREEMPT_KEYS: [&str; 4] = [
    "max_protected_loss",
    "min_run",
    "default_checkpoint",
    "max_grace",
];

/// Words of `order`.
pub const ORDERS: [(&str, JobOrder); 3] = [
    ("multifactor", JobOrder::Multifactor),
    ("fifo", JobOrder::Fifo),
    ("sjf", JobOrder::Sjf),
];
const BACKFILLS: [(&str, Backfill); 3] = [
    ("off", Backfill::Off),
    ("easy", Backfill::EASY),
    ("conservative", Backfill::All),
];
const MAX_WEIGHT: u32 = 1_000_000_000;
const YEAR_SECS: u32 = 366 * 86_400;

/// The scheduler's part of the main file; the topology has a file of its own.
pub fn read(main: &Section, errors: &mut Errors) -> SchedulerConfig {
    let default = SchedulerConfig::default();
    let mut config = SchedulerConfig {
        priority: priority(main, errors),
        fair_share: fair_share(main, errors),
        preempt: preempt(main, errors),
        licences: licences(main, errors),
        money: crate::price::read(main, errors),
        ..default
    };
    let Some(table) = main.table("scheduler", errors) else {
        return config;
    };
    let section = Section::open(main.source, table, &SCHEDULER_KEYS, "[scheduler]", errors);
    read_words(&section, &mut config, errors);
    config
}

/// The words of `[scheduler]`, as far as they are in a table.
pub fn read_words(section: &Section, config: &mut SchedulerConfig, errors: &mut Errors) {
    config.order = section
        .word("order", &ORDERS, errors)
        .unwrap_or(config.order);
    config.backfill = backfill(section, errors).unwrap_or(config.backfill);
    config.placement = section
        .word("placement", Placement::ALL, errors)
        .unwrap_or(config.placement);
    config.consolidate = section
        .boolean("consolidate", errors)
        .unwrap_or(config.consolidate);
}

/// A word, or how many of the first jobs get a reservation.
fn backfill(section: &Section, errors: &mut Errors) -> Option<Backfill> {
    if section.is_number("backfill") {
        return section
            .number("backfill", 1..=1_000_000, errors)
            .map(Backfill::First);
    }
    section.word("backfill", &BACKFILLS, errors)
}

fn priority(main: &Section, errors: &mut Errors) -> PriorityWeights {
    let default = PriorityWeights::default();
    let Some(table) = main.table("priority", errors) else {
        return default;
    };
    let section = Section::open(main.source, table, &PRIORITY_KEYS, "[priority]", errors);
    let mut weight = |key, default| {
        section
            .number(key, 0..=MAX_WEIGHT, errors)
            .unwrap_or(default)
    };
    PriorityWeights {
        age: weight("age", default.age),
        fair_share: weight("fair_share", default.fair_share),
        qos: weight("qos", default.qos),
        partition: weight("partition", default.partition),
        size: weight("size", default.size),
        site: weight("site", default.site),
        max_age_secs: section
            .secs("max_age", 60..=YEAR_SECS, errors)
            .unwrap_or(default.max_age_secs),
        favor_small: section
            .boolean("favor_small", errors)
            .unwrap_or(default.favor_small),
    }
}

fn fair_share(main: &Section, errors: &mut Errors) -> FairShare {
    let default = FairShare::default();
    let Some(table) = main.table("fair_share", errors) else {
        return default;
    };
    let section = Section::open(main.source, table, &FAIR_SHARE_KEYS, "[fair_share]", errors);
    let weight = |key, errors: &mut Errors| {
        section
            .milli(key, 0..=1_000_000, errors)
            .and_then(|milli| u32::try_from(milli).ok())
    };
    FairShare {
        half_life_secs: section
            .secs("half_life", 60..=10 * YEAR_SECS, errors)
            .unwrap_or(default.half_life_secs),
        gpu_weights_milli: gpu_weights(&section, errors),
        cpu_weight_milli: weight("cpu_weight", errors).unwrap_or(default.cpu_weight_milli),
        mem_gib_weight_milli: weight("mem_gib_weight", errors)
            .unwrap_or(default.mem_gib_weight_milli),
    }
}

fn gpu_weights(section: &Section, errors: &mut Errors) -> BTreeMap<String, u32> {
    if section.is_number("gpu_weights") {
        let hint = "by type, as { h100 = 1.0, a100 = 0.5 }";
        errors.add(
            section.source,
            section.span("gpu_weights"),
            "gpu_weights is a single number",
            hint,
        );
        return BTreeMap::new();
    }
    let amounts = section.amounts("gpu_weights", errors).unwrap_or_default();
    amounts
        .0
        .into_iter()
        .map(|(gpu_type, milli)| (gpu_type, u32::try_from(milli).unwrap_or(u32::MAX)))
        .collect()
}

fn preempt(main: &Section, errors: &mut Errors) -> PreemptConfig {
    let default = PreemptConfig::default();
    let Some(table) = main.table("preempt", errors) else {
        return default;
    };
    let section = Section::open(main.source, table, &PREEMPT_KEYS, "[preempt]", errors);
    let mut secs = |key, default| section.secs(key, 0..=7 * 86_400, errors).unwrap_or(default);
    PreemptConfig {
        max_protected_loss_secs: secs("max_protected_loss", default.max_protected_loss_secs),
        min_run_secs: secs("min_run", default.min_run_secs),
        max_grace_secs: secs("max_grace", default.max_grace_secs),
        default_checkpoint: default_checkpoint(&section, errors),
    }
}

fn default_checkpoint(section: &Section, errors: &mut Errors) -> Option<CheckpointSpec> {
    let text = section.text("default_checkpoint", errors)?;
    if text.is_empty() {
        return None;
    }
    match CheckpointSpec::parse(&text) {
        Ok(spec) => Some(spec),
        Err(error) => {
            let text = format!("default_checkpoint = {text:?}: {}", error.why);
            errors.add(
                section.source,
                section.span("default_checkpoint"),
                text,
                "as \"USR1@120\" or \"/path/save.sh@120\"",
            );
            None
        }
    }
}

fn licences(main: &Section, errors: &mut Errors) -> BTreeMap<String, u32> {
    let Some(table) = main.table("licences", errors) else {
        return BTreeMap::new();
    };
    let names: Vec<&str> = table.keys().map(|key| &**key.get_ref()).collect();
    let section = Section::open(main.source, table, &names, "[licences]", errors);
    let mut counts = BTreeMap::new();
    for key in table.keys() {
        let name: &str = key.get_ref();
        if licence::parse(name).is_ok_and(|read| read.len() == 1 && read.contains_key(name)) {
            let count = section.number(name, 0..=licence::MAX_COUNT, errors);
            counts.extend(count.map(|count| (name.to_owned(), count)));
        } else {
            let hint = "use letters, digits and _-.@/";
            errors.add(
                main.source,
                key.span(),
                format!("{name:?} is no name of a licence"),
                hint,
            );
        }
    }
    counts
}
