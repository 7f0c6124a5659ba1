//! The catalogue of health signs: evidence, meaning and action of each, with a site's overrides. Data only, read by
//! [`super::GpuWatch`] and by the listing of the catalogue. Each entry names its source.

use std::collections::BTreeMap;
use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};
use thiserror::Error;

use super::built_in;
use crate::suggest;

/// Rises when an entry is added or changes its meaning; kept beside each sign in a GPU's history.
pub const CATALOGUE_VERSION: u32 = 1;

/// All signs in force, by name.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Catalogue {
    pub version: u32,
    pub signs: BTreeMap<String, SignKind>,
}

/// One kind of sign.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SignKind {
    pub evidence: Evidence,
    pub severity: Severity,
    pub action: Action,
    /// The job that holds the GPU may finish before the action is taken; else it is ended at once and requeued elsewhere.
    pub let_finish: bool,
    /// Evidence that comes in numbers must come to so many within `window_secs`.
    pub threshold: u64,
    pub window_secs: u64,
    /// Evidence that is a state must last so long.
    pub holds_secs: u64,
    /// After so long without evidence the sign is over; 0: it stands until the GPU is returned to service.
    pub clears_secs: u64,
    pub meaning: String,
    pub source: String,
}

/// How bad a sign is; listings are in this order.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Severity {
    Info,
    Warning,
    /// Results or jobs are at risk.
    Critical,
    /// The GPU is of no use as it is.
    Fatal,
}

/// What is done, mildest first. All but `note` take the one GPU out of service until it has passed a burn-in.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Action {
    /// Into the history of the GPU.
    Note,
    /// No new job gets it.
    Quarantine,
    /// And the job that holds it is ended.
    EndJob,
    /// And the GPU is reset when nothing runs on it.
    Reset,
    /// And the GPU stays out until the node has booted, which is done when nothing runs there any more.
    Reboot,
    /// Marked for replacement: no reset brings it back into service.
    Replace,
}

/// What raises a sign.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub enum Evidence {
    /// One of these Xids; counted.
    Xid(Vec<u64>),
    /// An Xid that no other entry names; counted.
    OtherXid,
    Counter(SignCounter),
    State(SignState),
}

macro_rules! words {
    ($(#[$meta:meta])* $name:ident { $($(#[$note:meta])* $variant:ident = $word:literal),* $(,)? }) => {
        $(#[$meta])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub enum $name { $($(#[$note])* $variant),* }

        impl $name {
            /// All of them with their words.
            pub const ALL: &'static [($name, &'static str)] = &[$(($name::$variant, $word)),*];

            /// As it is written.
            pub fn word(self) -> &'static str {
                match self { $($name::$variant => $word),* }
            }
        }
    };
}

words! {
    /// Counters whose rise is evidence.
    SignCounter {
        /// Uncorrected ECC errors, by event or by counter.
        EccUncorrected = "ecc-uncorrected",
        EccCorrected = "ecc-corrected",
        NvlinkErrors = "nvlink-errors",
        PcieReplays = "pcie-replays",
        /// Milliseconds.
        HeatSlowed = "heat-slowed",
        /// Milliseconds.
        PowerSlowed = "power-slowed",
        RowsRemapped = "rows-remapped",
    }
}

words! {
    /// States that are evidence as long as they last.
    SignState {
        Lost = "lost",
        Hangs = "hangs",
        Missing = "missing",
        Error = "error",
        SramWorn = "sram-worn",
        RemapPending = "remap-pending",
        RemapFailed = "remap-failed",
        RetirementPending = "retirement-pending",
        /// So many pages that the board is to be replaced: the threshold.
        PagesRetired = "pages-retired",
        NvlinkDown = "nvlink-down",
        PcieWidth = "pcie-width",
        /// Under load only: idle boards rest their link.
        PcieGeneration = "pcie-generation",
        Hot = "hot",
        MemoryHot = "memory-hot",
        PowerBrake = "power-brake",
        FabricNotReady = "fabric-not-ready",
        FabricFailed = "fabric-failed",
        FabricUnhealthy = "fabric-unhealthy",
        AdviceReset = "advice-reset",
        AdviceReboot = "advice-reboot",
        AdviceDrain = "advice-drain",
        AdviceDrainAndReset = "advice-drain-and-reset",
        /// Fewer GPUs than the configuration says; of the node, not of one GPU.
        CountMismatch = "count-mismatch",
        /// Another driver than the configuration says; of the node.
        DriverMismatch = "driver-mismatch",
    }
}

/// What a site's TOML says of the catalogue: `[sign.NAME]` tables. Keys that are left out stay as they are; a name that the
/// catalogue does not have makes a new sign, which needs `evidence` and `action`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct CatalogueOverrides {
    pub sign: BTreeMap<String, SignOverride>,
}

/// One `[sign.NAME]` table.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct SignOverride {
    /// The sign is not looked for.
    pub off: bool,
    pub evidence: Option<Evidence>,
    pub severity: Option<Severity>,
    pub action: Option<Action>,
    pub let_finish: Option<bool>,
    pub threshold: Option<u64>,
    pub window_secs: Option<u64>,
    pub holds_secs: Option<u64>,
    pub clears_secs: Option<u64>,
    pub meaning: Option<String>,
}

/// A mistake in the overrides; the caller finds the place by sign and key. The catalogue before stays in force.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("[sign.{sign}] {key}: {problem}")]
pub struct CatalogueError {
    pub sign: String,
    pub key: &'static str,
    pub problem: String,
}

/// Longest window, hold and clearing time: counters are kept for so long.
const MAX_SECS: u64 = 30 * 86_400;
/// Xids one sign may name.
const MAX_XIDS: usize = 64;

impl Catalogue {
    /// The entries that gpupool brings.
    pub fn built_in() -> Catalogue {
        Catalogue {
            version: CATALOGUE_VERSION,
            signs: built_in::signs(),
        }
    }

    /// The built-in entries as a site wants them; all mistakes at once.
    pub fn with(overrides: &CatalogueOverrides) -> Result<Catalogue, Vec<CatalogueError>> {
        let mut catalogue = Catalogue::built_in();
        let mut errors = Vec::new();
        for (name, wanted) in &overrides.sign {
            let before = catalogue.signs.remove(name);
            match overridden(name, before.as_ref(), wanted, &catalogue.signs) {
                Ok(Some(sign)) => drop(catalogue.signs.insert(name.clone(), sign)),
                Ok(None) => {}
                Err(found) => errors.extend(found),
            }
        }
        let own = |name: &str| {
            overrides
                .sign
                .get(name)
                .is_some_and(|wanted| wanted.evidence.is_some())
        };
        give_way(&mut catalogue.signs, own);
        errors.extend(doubled_xids(&catalogue.signs));
        if errors.is_empty() {
            Ok(catalogue)
        } else {
            Err(errors)
        }
    }

    /// The sign that an Xid is evidence of: the one that names it, else the one for others.
    pub fn by_xid(&self, number: u64) -> Option<(&str, &SignKind)> {
        let named = self.find(
            |evidence| matches!(evidence, Evidence::Xid(numbers) if numbers.contains(&number)),
        );
        named.or_else(|| self.find(|evidence| *evidence == Evidence::OtherXid))
    }

    fn find(&self, wanted: impl Fn(&Evidence) -> bool) -> Option<(&str, &SignKind)> {
        let mut signs = self.signs.iter();
        signs
            .find(|(_, kind)| wanted(&kind.evidence))
            .map(|(name, kind)| (name.as_str(), kind))
    }
}

/// An entry with a site's override; `None`: switched off.
fn overridden(
    name: &str,
    before: Option<&SignKind>,
    wanted: &SignOverride,
    others: &BTreeMap<String, SignKind>,
) -> Result<Option<SignKind>, Vec<CatalogueError>> {
    let errors = override_errors(name, before.is_none(), wanted, others);
    if !errors.is_empty() {
        return Err(errors);
    }
    if wanted.off {
        return Ok(None);
    }
    let base = before.cloned().unwrap_or_else(|| SignKind {
        evidence: wanted.evidence.clone().unwrap_or(Evidence::OtherXid),
        severity: Severity::Warning,
        action: Action::Note,
        let_finish: true,
        threshold: 1,
        window_secs: 3600,
        holds_secs: 0,
        clears_secs: 0,
        meaning: "a sign of this site's own".to_owned(),
        source: "the site's configuration".to_owned(),
    });
    Ok(Some(SignKind {
        evidence: wanted.evidence.clone().unwrap_or(base.evidence),
        severity: wanted.severity.unwrap_or(base.severity),
        action: wanted.action.unwrap_or(base.action),
        let_finish: wanted.let_finish.unwrap_or(base.let_finish),
        threshold: wanted.threshold.unwrap_or(base.threshold),
        window_secs: wanted.window_secs.unwrap_or(base.window_secs),
        holds_secs: wanted.holds_secs.unwrap_or(base.holds_secs),
        clears_secs: wanted.clears_secs.unwrap_or(base.clears_secs),
        meaning: wanted.meaning.clone().unwrap_or(base.meaning),
        source: base.source,
    }))
}

/// All that is wrong with an override.
fn override_errors(
    name: &str,
    is_new: bool,
    wanted: &SignOverride,
    others: &BTreeMap<String, SignKind>,
) -> Vec<CatalogueError> {
    let mut errors = Vec::new();
    let mut wrong = |key, problem: String| {
        errors.push(CatalogueError {
            sign: name.to_owned(),
            key,
            problem,
        });
    };
    if is_new && (wanted.evidence.is_none() || wanted.action.is_none()) {
        let known = suggest::closest(name, others.keys().map(String::as_str));
        let hint = known.map(|known| format!("; did you mean {known:?}?"));
        let missing = if wanted.evidence.is_none() {
            "evidence"
        } else {
            "action"
        };
        wrong(
            missing,
            format!(
                "the catalogue has no sign of this name, and a new one needs evidence and action{}",
                hint.unwrap_or_default()
            ),
        );
    }
    if !name_is_plain(name) {
        wrong(
            "name",
            "a name is made of small letters, digits and -, at most 64".to_owned(),
        );
    }
    for (key, secs) in [
        ("window_secs", wanted.window_secs),
        ("holds_secs", wanted.holds_secs),
        ("clears_secs", wanted.clears_secs),
    ] {
        if secs.is_some_and(|secs| secs > MAX_SECS) {
            wrong(key, format!("at most {MAX_SECS} (30 days)"));
        }
    }
    if wanted.threshold == Some(0) {
        wrong(
            "threshold",
            "at least 1; to look for it no more, write off = true".to_owned(),
        );
    }
    if wanted.window_secs == Some(0) {
        wrong("window_secs", "at least 1".to_owned());
    }
    errors
}

/// An Xid that a site's entry names is not evidence of the built-in one any more; one that names none then is gone.
fn give_way(signs: &mut BTreeMap<String, SignKind>, is_own: impl Fn(&str) -> bool) {
    let own = signs.iter().filter(|(name, _)| is_own(name));
    let taken: Vec<u64> = own
        .flat_map(|(_, kind)| match &kind.evidence {
            Evidence::Xid(numbers) => numbers.clone(),
            _ => Vec::new(),
        })
        .collect();
    signs.retain(|name, kind| match &mut kind.evidence {
        Evidence::Xid(numbers) if !is_own(name) => {
            numbers.retain(|number| !taken.contains(number));
            !numbers.is_empty()
        }
        _ => true,
    });
}

/// An Xid in two entries would raise one of them by chance.
fn doubled_xids(signs: &BTreeMap<String, SignKind>) -> Vec<CatalogueError> {
    let mut owners: BTreeMap<u64, &str> = BTreeMap::new();
    let mut errors = Vec::new();
    for (name, kind) in signs {
        let Evidence::Xid(numbers) = &kind.evidence else {
            continue;
        };
        for &number in numbers {
            if let Some(owner) = owners.insert(number, name) {
                errors.push(CatalogueError {
                    sign: name.clone(),
                    key: "evidence",
                    problem: format!(
                        "Xid {number} is evidence of {owner:?} too; leave it in one of them"
                    ),
                });
            }
        }
    }
    errors
}

fn name_is_plain(name: &str) -> bool {
    let plain = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-';
    !name.is_empty() && name.len() <= 64 && name.bytes().all(plain)
}

impl FromStr for Evidence {
    type Err = String;

    /// `xid 79`, `xid 144,145,146`, `xid-other`, or the word of a counter or a state.
    fn from_str(text: &str) -> Result<Evidence, String> {
        let text = text.trim();
        if let Some(numbers) = text.strip_prefix("xid ") {
            let numbers: Result<Vec<u64>, _> =
                numbers.split(',').map(|word| word.trim().parse()).collect();
            let numbers = numbers
                .map_err(|_| format!("{text:?}: Xids are numbers, as in xid 79 or xid 144,145"))?;
            if numbers.len() > MAX_XIDS {
                return Err(format!(
                    "{text:?} names {} Xids; at most {MAX_XIDS}",
                    numbers.len()
                ));
            }
            return Ok(Evidence::Xid(numbers));
        }
        if text == "xid-other" {
            return Ok(Evidence::OtherXid);
        }
        let counted = SignCounter::ALL.iter().find(|(_, word)| *word == text);
        if let Some((counted, _)) = counted {
            return Ok(Evidence::Counter(*counted));
        }
        let state = SignState::ALL.iter().find(|(_, word)| *word == text);
        if let Some((state, _)) = state {
            return Ok(Evidence::State(*state));
        }
        let words = SignCounter::ALL.iter().map(|(_, word)| *word);
        let words = words.chain(SignState::ALL.iter().map(|(_, word)| *word));
        let known = suggest::closest(text, words.chain(["xid-other"]));
        let hint = known.map_or(
            "write xid N or a word of the catalogue".to_owned(),
            |known| format!("did you mean {known:?}?"),
        );
        Err(format!("{text:?} is no evidence; {hint}"))
    }
}

impl TryFrom<String> for Evidence {
    type Error = String;
    fn try_from(text: String) -> Result<Evidence, String> {
        text.parse()
    }
}

impl From<Evidence> for String {
    fn from(evidence: Evidence) -> String {
        evidence.to_string()
    }
}

impl fmt::Display for Evidence {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Evidence::Xid(numbers) => {
                let words: Vec<String> = numbers.iter().map(u64::to_string).collect();
                write!(f, "xid {}", words.join(","))
            }
            Evidence::OtherXid => f.write_str("xid-other"),
            Evidence::Counter(counted) => f.write_str(counted.word()),
            Evidence::State(state) => f.write_str(state.word()),
        }
    }
}

impl fmt::Display for Severity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Severity::Info => "info",
            Severity::Warning => "warning",
            Severity::Critical => "critical",
            Severity::Fatal => "fatal",
        })
    }
}

impl fmt::Display for Action {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Action::Note => "note",
            Action::Quarantine => "quarantine",
            Action::EndJob => "end_job",
            Action::Reset => "reset",
            Action::Reboot => "reboot",
            Action::Replace => "replace",
        })
    }
}
