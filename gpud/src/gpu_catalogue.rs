//! The catalogue of signs as this site wants it: gpupool's own, changed by the file that `gpu_signs` of gpud.toml names. The file
//! is read again when it changes; with a mistake in it the catalogue before stays in force, and every mistake is shown in place.

use crate::config::{ConfigError, complaint};
use gmodel::gpu_health::{Catalogue, CatalogueError, CatalogueOverrides};
use gmodel::suggest::did_you_mean;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::SystemTime;
use toml::{Spanned, Value};

/// Keys of a `[sign.NAME]` table, for "did you mean".
const SIGN_KEYS: [&str; 9] =
    ["off", "evidence", "severity", "action", "let_finish", "threshold", "window_secs", "holds_secs", "clears_secs"];

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
        Ok(Self { path: path.map(Path::to_owned), seen, current: Arc::new(current) })
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
                tracing::info!("{}: {} signs of sick GPUs are in force", path.display(), catalogue.signs.len());
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
    let text = std::fs::read_to_string(path).map_err(|e| ConfigError(format!("gpud: gpu_signs: {name}: {e}")))?;
    parse(&text, &name)
}

/// `name` of the file is for messages only.
fn parse(text: &str, name: &str) -> Result<Catalogue, ConfigError> {
    let overrides: CatalogueOverrides = toml::from_str(text).map_err(|e| {
        let at = e.span().map_or(0, |span| span.start);
        // The message goes on with all the keys there are; the nearest one is of more use.
        let message = e.message();
        let wrong = message.strip_prefix("unknown field `").and_then(|rest| rest.split('`').next());
        let message = wrong.map_or_else(
            || message.to_owned(),
            |wrong| format!("there is no setting {wrong:?} here.{}", did_you_mean(wrong, SIGN_KEYS.iter().copied().chain(["sign"]))),
        );
        ConfigError(complaint(text, name, at, &message))
    })?;
    Catalogue::with(&overrides).map_err(|errors| {
        let places = Places::of(text);
        let lines = errors.iter().map(|e| complaint(text, name, places.of_error(e), &e.to_string()));
        ConfigError(lines.collect::<Vec<_>>().join("\n"))
    })
}

type SignPlaces = BTreeMap<Spanned<String>, BTreeMap<Spanned<String>, Spanned<Value>>>;

/// Where signs and their keys stand in the file.
#[derive(Default, serde::Deserialize)]
struct Places {
    #[serde(default)]
    sign: SignPlaces,
}

impl Places {
    fn of(text: &str) -> Self {
        toml::from_str(text).unwrap_or_default()
    }

    /// The value of the key where it is there, else the sign's table.
    fn of_error(&self, error: &CatalogueError) -> usize {
        let Some((name, keys)) = self.sign.iter().find(|(name, _)| *name.get_ref() == error.sign) else { return 0 };
        let value = keys.iter().find(|(key, _)| key.get_ref() == error.key);
        value.map_or(name.span().start, |(_, value)| value.span().start)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use gmodel::gpu_health::Action;

    #[test]
    fn a_site_changes_what_a_sign_calls_for() {
        let catalogue = parse("[sign.xid-94]\naction = \"quarantine\"\n[sign.hot]\noff = true\n", "signs.toml").unwrap();
        assert_eq!(catalogue.signs["xid-94"].action, Action::Quarantine);
        assert!(!catalogue.signs.contains_key("hot"));
    }

    #[test]
    fn mistakes_are_shown_in_their_places() {
        let mistakes = parse("[sign.xid-94]\naction = \"note\"\n[sign.hott]\nthreshold = 0\naction = \"note\"\n", "signs.toml");
        let text = mistakes.unwrap_err().to_string();
        for words in ["signs.toml:3:7: [sign.hott] evidence", "did you mean \"hot\"?", "signs.toml:4:13: [sign.hott] threshold", "  threshold = 0\n"] {
            assert!(text.contains(words), "{words}: {text}");
        }
        let text = parse("[sign.hot]\nactoin = \"note\"\n", "signs.toml").unwrap_err().to_string();
        assert!(text.starts_with("signs.toml:2:1: there is no setting \"actoin\" here. Did you mean \"action\"?"), "{text}");
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
            file.set_modified(SystemTime::UNIX_EPOCH + std::time::Duration::from_secs(secs)).unwrap();
            site.refresh();
            site.current().signs["xid-94"].action
        };
        assert_eq!(change(&mut site, "[sign.xid-94]\naction = \"nonsense\"\n", 1_000_000), Action::Note);
        assert_eq!(change(&mut site, "[sign.xid-94]\naction = \"replace\"\n", 2_000_000), Action::Replace);
        assert!(SiteCatalogue::open(Some(&dir.join("none"))).is_err());
        std::fs::remove_dir_all(&dir).unwrap();
    }
}
