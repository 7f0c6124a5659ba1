//! The catalogue of signs as this site wants it: gpupool's own, changed by the file that `gpu_signs` of gpud.toml names. The file
//! is read again when it changes; with a mistake in it the catalogue before stays in force, and every mistake is shown in place.

use crate::config::{ConfigError, complaint};
use gmodel::gpu_health::{
    Action, Catalogue, CatalogueError, CatalogueOverrides, Severity, SignOverride,
};
use gmodel::suggest::did_you_mean;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::SystemTime;
use toml::Spanned;
use toml::de::{DeTable, DeValue};

/// Keys of a `[sign.NAME]` table, for "did you mean".
const SIGN_KEYS: [&str; 10] = [
    "off",
    "evidence",
    "severity",
    "action",
    "let_finish",
    "threshold",
    "window_secs",
    "holds_secs",
    "clears_secs",
    "meaning",
];

const SEVERITIES: [(&str, Severity); 4] = [
    ("info", Severity::Info),
    ("warning", Severity::Warning),
    ("critical", Severity::Critical),
    ("fatal", Severity::Fatal),
];

const ACTIONS: [(&str, Action); 6] = [
    ("note", Action::Note),
    ("quarantine", Action::Quarantine),
    ("end_job", Action::EndJob),
    ("reset", Action::Reset),
    ("reboot", Action::Reboot),
    ("replace", Action::Replace),
];

/// The catalogue in force, and the file that it follows.
#[derive(Debug)]
pub struct SiteCatalogue {
    path: Option<PathBuf>,
    /// When the file was last changed, as far as it was read.
    seen: Option<SystemTime>,
    current: Arc<Catalogue>,
}

impl SiteCatalogue {
    /// Reads the file; a mistake in it is the caller's to refuse.
    pub fn open(path: Option<&Path>) -> Result<Self, ConfigError> {
        let current = path.map_or_else(|| Ok(Catalogue::built_in()), read)?;
        let seen = path.and_then(modified);
        Ok(Self {
            path: path.map(Path::to_owned),
            seen,
            current: Arc::new(current),
        })
    }

    pub fn current(&self) -> Arc<Catalogue> {
        Arc::clone(&self.current)
    }

    /// Reads the file again where it changed.
    pub fn refresh(&mut self) {
        let Some(path) = &self.path else { return };
        let now = modified(path);
        if now == self.seen {
            return;
        }
        self.seen = now;
        match read(path) {
            Ok(catalogue) => {
                tracing::info!(
                    "{}: {} signs of sick GPUs are in force",
                    path.display(),
                    catalogue.signs.len()
                );
                self.current = Arc::new(catalogue);
            }
            Err(e) => tracing::error!("the signs of sick GPUs stay as they were:\n{e}"),
        }
    }
}

fn modified(path: &Path) -> Option<SystemTime> {
    std::fs::metadata(path).ok()?.modified().ok()
}

fn read(path: &Path) -> Result<Catalogue, ConfigError> {
    let name = path.display().to_string();
    let text = gsys::small_file::read_text(path, crate::config::MAX_FILE_BYTES)
        .map_err(|e| ConfigError(format!("gpud: gpu_signs: {name}: {e}")))?;
    parse(&text, &name)
}

/// `name` of the file is for messages only.
fn parse(text: &str, name: &str) -> Result<Catalogue, ConfigError> {
    let mut file = SignFile {
        problems: Vec::new(),
    };
    let (table, broken) = DeTable::parse_recoverable(text);
    for error in broken {
        file.problems.push((
            error.span().map_or(0, |span| span.start),
            error.message().to_owned(),
        ));
    }
    let (overrides, places) = file.read(table.get_ref());
    let catalogue = Catalogue::with(&overrides);
    for error in catalogue.as_ref().err().into_iter().flatten() {
        // What is of the wrong type was left out, and is not missing too.
        let at = places.of(error);
        if file.problems.iter().all(|(known, _)| *known != at) {
            file.problems.push((at, error.to_string()));
        }
    }
    file.problems.sort_by_key(|(at, _)| *at);
    match catalogue {
        Ok(catalogue) if file.problems.is_empty() => Ok(catalogue),
        _ => Err(ConfigError(
            file.problems
                .iter()
                .map(|(at, problem)| complaint(text, name, *at, problem))
                .collect::<Vec<_>>()
                .join("\n"),
        )),
    }
}

/// The place of each sign in the file, and the values of its keys.
#[derive(Default)]
struct Places(BTreeMap<String, (usize, BTreeMap<String, usize>)>);

impl Places {
    /// The value of the key where it is there, else the sign's table.
    fn of(&self, error: &CatalogueError) -> usize {
        self.0.get(&error.sign).map_or(0, |(table, keys)| {
            keys.get(error.key).copied().unwrap_or(*table)
        })
    }
}

/// A file being read: complaints gather, each with its place.
struct SignFile {
    problems: Vec<(usize, String)>,
}

impl SignFile {
    fn read(&mut self, file: &DeTable<'_>) -> (CatalogueOverrides, Places) {
        let (mut overrides, mut places) = (CatalogueOverrides::default(), Places::default());
        for (key, value) in file.iter() {
            let word: &str = key.get_ref();
            if word != "sign" {
                self.complain(key.span().start, format!("there is no setting {word:?} here: each sign is a table, as [sign.xid-63].{}", did_you_mean(word, ["sign"])));
                continue;
            }
            let Some(signs) = self.table(value, "sign") else {
                continue;
            };
            for (name, value) in signs.iter() {
                let sign: &str = name.get_ref();
                let Some(table) = self.table(value, &format!("sign.{sign}")) else {
                    continue;
                };
                overrides
                    .sign
                    .insert(sign.to_owned(), self.sign(sign, table));
                let keys = table
                    .iter()
                    .map(|(key, value)| (key.get_ref().to_string(), value.span().start));
                places
                    .0
                    .insert(sign.to_owned(), (name.span().start, keys.collect()));
            }
        }
        (overrides, places)
    }

    fn table<'a>(
        &mut self,
        value: &'a Spanned<DeValue<'a>>,
        name: &str,
    ) -> Option<&'a DeTable<'a>> {
        let table = value.get_ref().as_table();
        if table.is_none() {
            self.complain(
                value.span().start,
                format!(
                    "{name}: a table is needed, as [sign.xid-63], not {}",
                    written(value)
                ),
            );
        }
        table
    }

    fn sign(&mut self, name: &str, table: &DeTable<'_>) -> SignOverride {
        let mut sign = SignOverride::default();
        for (key, value) in table.iter() {
            let known: &str = key.get_ref();
            let what = format!("[sign.{name}] {known}");
            match known {
                "off" => sign.off = self.flag(&what, value).unwrap_or_default(),
                "let_finish" => sign.let_finish = self.flag(&what, value),
                "threshold" => sign.threshold = self.number(&what, value),
                "window_secs" => sign.window_secs = self.number(&what, value),
                "holds_secs" => sign.holds_secs = self.number(&what, value),
                "clears_secs" => sign.clears_secs = self.number(&what, value),
                "severity" => sign.severity = self.word(&what, value, &SEVERITIES),
                "action" => sign.action = self.word(&what, value, &ACTIONS),
                "meaning" => sign.meaning = self.text(&what, value).map(str::to_owned),
                "evidence" => {
                    let read = self.text(&what, value).map(str::parse);
                    sign.evidence = read.and_then(|read| {
                        read.map_err(|e: String| {
                            self.complain(value.span().start, format!("{what}: {e}"))
                        })
                        .ok()
                    });
                }
                other => {
                    let guess = did_you_mean(other, SIGN_KEYS);
                    self.complain(
                        key.span().start,
                        format!(
                            "there is no setting {other:?} in [sign.{name}].{guess} There are: {}",
                            SIGN_KEYS.join(", ")
                        ),
                    );
                }
            }
        }
        sign
    }

    fn flag(&mut self, what: &str, value: &Spanned<DeValue<'_>>) -> Option<bool> {
        let read = value.get_ref().as_bool();
        self.typed(what, value, read, "true or false")
    }

    fn number(&mut self, what: &str, value: &Spanned<DeValue<'_>>) -> Option<u64> {
        let digits = value.get_ref().as_integer();
        let read = digits.and_then(|digits| {
            u64::from_str_radix(&digits.as_str().replace('_', ""), digits.radix()).ok()
        });
        self.typed(what, value, read, "a whole number that is not negative")
    }

    fn text<'a>(&mut self, what: &str, value: &'a Spanned<DeValue<'_>>) -> Option<&'a str> {
        self.typed(what, value, value.get_ref().as_str(), "a text in quotes")
    }

    fn word<T: Copy>(
        &mut self,
        what: &str,
        value: &Spanned<DeValue<'_>>,
        words: &[(&'static str, T)],
    ) -> Option<T> {
        let text = self.text(what, value)?;
        let found = words
            .iter()
            .find(|(word, _)| *word == text)
            .map(|(_, meant)| *meant);
        if found.is_none() {
            let words: Vec<&str> = words.iter().map(|(word, _)| *word).collect();
            let guess = did_you_mean(text, words.iter().copied());
            self.complain(
                value.span().start,
                format!("{what}: {text:?} is none of {}.{guess}", words.join(", ")),
            );
        }
        found
    }

    fn typed<T>(
        &mut self,
        what: &str,
        value: &Spanned<DeValue<'_>>,
        read: Option<T>,
        wanted: &str,
    ) -> Option<T> {
        if read.is_none() {
            self.complain(
                value.span().start,
                format!("{what}: {wanted} is needed, not {}", written(value)),
            );
        }
        read
    }

    fn complain(&mut self, at: usize, problem: String) {
        self.problems.push((at, problem));
    }
}

/// A value of the wrong type, for the message about it.
fn written(value: &Spanned<DeValue<'_>>) -> String {
    match value.get_ref() {
        DeValue::String(text) => format!("{text:?}"),
        DeValue::Integer(digits) => digits.as_str().to_owned(),
        DeValue::Boolean(flag) => flag.to_string(),
        other => format!("a value of type {}", other.type_str()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_site_changes_what_a_sign_calls_for() {
        let catalogue = parse(
            "[sign.xid-94]\naction = \"quarantine\"\n[sign.hot]\noff = true\n",
            "signs.toml",
        )
        .unwrap();
        assert_eq!(catalogue.signs["xid-94"].action, Action::Quarantine);
        assert!(!catalogue.signs.contains_key("hot"));
    }

    #[test]
    fn mistakes_are_shown_in_their_places() {
        let mistakes = parse(
            "[sign.xid-94]\naction = \"note\"\n[sign.hott]\nthreshold = 0\naction = \"note\"\n",
            "signs.toml",
        );
        let text = mistakes.unwrap_err().to_string();
        for words in [
            "signs.toml:3:7: [sign.hott] evidence",
            "did you mean \"hot\"?",
            "signs.toml:4:13: [sign.hott] threshold",
            "  threshold = 0\n",
        ] {
            assert!(text.contains(words), "{words}: {text}");
        }
        let text = parse("[sign.hot]\nactoin = \"note\"\n", "signs.toml")
            .unwrap_err()
            .to_string();
        assert!(text.starts_with("signs.toml:2:1: there is no setting \"actoin\" in [sign.hot]. Did you mean \"action\"?"), "{text}");
    }

    #[test]
    fn mistakes_of_type_are_shown_all_at_once_with_a_guess() {
        let text = "\
[sign.hot]
action = \"quarantin\"
severity = 3
threshold = -1
[sign.our-faults]
evidence = \"xid thirty\"
action = \"end-job\"
let_finish = \"yes\"
window_secs = \"600\"
[sing.cold]
off = true
";
        let expected = "\
signs.toml:2:10: [sign.hot] action: \"quarantin\" is none of note, quarantine, end_job, reset, reboot, replace. Did you mean \"quarantine\"?
  action = \"quarantin\"
           ^
signs.toml:3:12: [sign.hot] severity: a text in quotes is needed, not 3
  severity = 3
             ^
signs.toml:4:13: [sign.hot] threshold: a whole number that is not negative is needed, not -1
  threshold = -1
              ^
signs.toml:6:12: [sign.our-faults] evidence: \"xid thirty\": Xids are numbers, as in xid 79 or xid 144,145
  evidence = \"xid thirty\"
             ^
signs.toml:7:10: [sign.our-faults] action: \"end-job\" is none of note, quarantine, end_job, reset, reboot, replace. Did you mean \"end_job\"?
  action = \"end-job\"
           ^
signs.toml:8:14: [sign.our-faults] let_finish: true or false is needed, not \"yes\"
  let_finish = \"yes\"
               ^
signs.toml:9:15: [sign.our-faults] window_secs: a whole number that is not negative is needed, not \"600\"
  window_secs = \"600\"
                ^
signs.toml:10:2: there is no setting \"sing\" here: each sign is a table, as [sign.xid-63]. Did you mean \"sign\"?
  [sing.cold]
   ^";
        assert_eq!(parse(text, "signs.toml").unwrap_err().to_string(), expected);
        let broken = parse(
            "[sign.hot]\naction = note\nthreshold = \"9\"\n[sign]\ncold = 1\n",
            "signs.toml",
        )
        .unwrap_err()
        .to_string();
        assert!(
            broken.contains("signs.toml:2:10: ")
                && broken.contains("signs.toml:3:13: ")
                && broken.contains("signs.toml:5:8: sign.cold: a table is needed"),
            "{broken}"
        );
    }

    #[test]
    fn a_file_that_goes_wrong_leaves_the_catalogue_before_in_force() {
        let dir = std::env::temp_dir().join(format!("gpud-signs-{}", std::process::id()));
        std::fs::create_dir_all(&dir).unwrap();
        let path = dir.join("signs.toml");
        std::fs::write(&path, "[sign.xid-94]\naction = \"note\"\n").unwrap();
        let mut site = SiteCatalogue::open(Some(&path)).unwrap();
        let change = |site: &mut SiteCatalogue, text: &str, secs: u64| {
            std::fs::write(&path, text).unwrap();
            let file = std::fs::File::options().write(true).open(&path).unwrap();
            file.set_modified(SystemTime::UNIX_EPOCH + std::time::Duration::from_secs(secs))
                .unwrap();
            site.refresh();
            site.current().signs["xid-94"].action
        };
        assert_eq!(
            change(
                &mut site,
                "[sign.xid-94]\naction = \"nonsense\"\n",
                1_000_000
            ),
            Action::Note
        );
        assert_eq!(
            change(
                &mut site,
                "[sign.xid-94]\naction = \"replace\"\n",
                2_000_000
            ),
            Action::Replace
        );
        assert!(SiteCatalogue::open(Some(&dir.join("none"))).is_err());
        std::fs::remove_dir_all(&dir).unwrap();
    }
}
