//! The catalogue: its entries, the page about them, and what a site changes of it.

use super::*;

#[test]
fn the_catalogue_names_sources_and_each_xid_once() {
    let catalogue = Catalogue::built_in();
    assert_eq!(
        Catalogue::with(&CatalogueOverrides::default()),
        Ok(catalogue.clone())
    );
    for (name, kind) in &catalogue.signs {
        assert!(
            !kind.source.is_empty() && !kind.meaning.is_empty(),
            "{name}"
        );
        assert_eq!(
            kind.evidence.to_string().parse(),
            Ok(kind.evidence.clone()),
            "{name}"
        );
        assert!(
            kind.action > Action::Note || kind.clears_secs > 0,
            "{name}: a note must end by itself"
        );
        let ends = !kind.let_finish && kind.action > Action::Note;
        assert!(
            !ends || kind.action >= Action::EndJob,
            "{name}: its job is to end and its action does not say so"
        );
    }
    let (name, kind) = catalogue.by_xid(79).unwrap();
    assert_eq!((name, kind.action), ("xid-79", Action::Reboot));
    assert_eq!(catalogue.by_xid(120).unwrap().0, "xid-119");
    assert_eq!(catalogue.by_xid(4711).unwrap().0, "xid-other");
    for (state, word) in SignState::ALL {
        let named = catalogue
            .signs
            .values()
            .any(|kind| kind.evidence == Evidence::State(*state));
        assert!(named, "no sign has {word} as evidence");
    }
}

/// The page for administrators is written from the data: `UPDATE_EXPECT=1 cargo test -p gmodel the_page` writes it anew.
#[test]
fn the_page_of_signs_is_the_catalogue() {
    let catalogue = Catalogue::built_in();
    let mut page = format!(
        "{HEAD}\nCatalogue version {CATALOGUE_VERSION}, {} signs.\n\n",
        catalogue.signs.len()
    );
    page +=
        "| sign | raised by | severity | action | meaning | source |\n|---|---|---|---|---|---|\n";
    for (name, kind) in &catalogue.signs {
        page += &format!(
            "| `{name}` | {} | {} | {} | {} | {} |\n",
            raised_by(kind),
            kind.severity,
            action_text(kind),
            kind.meaning,
            kind.source
        );
    }
    expect_test::expect_file!["../../../docs/gpu-health.md"].assert_eq(&page);
}

fn raised_by(kind: &SignKind) -> String {
    let lasting = if kind.holds_secs > 0 {
        format!(" for {} s", kind.holds_secs)
    } else {
        String::new()
    };
    match &kind.evidence {
        Evidence::Counter(SignCounter::HeatSlowed | SignCounter::PowerSlowed) => {
            format!(
                "{}, {} s within {} s",
                kind.evidence,
                kind.threshold / 1000,
                kind.window_secs
            )
        }
        Evidence::Counter(_) => format!(
            "{}, {} within {} s",
            kind.evidence, kind.threshold, kind.window_secs
        ),
        Evidence::State(SignState::PagesRetired) => {
            format!("{}, {} or more", kind.evidence, kind.threshold)
        }
        evidence => format!("{}{lasting}", evidence.to_string().replace(',', ", ")),
    }
}

fn action_text(kind: &SignKind) -> String {
    match kind.action {
        Action::Note => "note".to_owned(),
        action if kind.let_finish => format!("{action}; its job may finish"),
        action => format!("{action}; its job is ended"),
    }
}

const HEAD: &str = "# Signs of sick GPUs

What gpupool looks for, and what it does about one GPU that shows it; the others on the node go on working. Signs come from NVML's event set, from
readings of every GPU, and from the kernel log. `gnodes --health` shows how each GPU stands, why, and what comes next; `gadm gpu history UUID` what
became of it, in whichever node it was. A GPU that was out of service when it left one node is out of service in the next. What shows no sign, wrong
results and slow links, is looked for in idle gaps: `docs/gpu-checks.md`.

What is certainly sick (a sign of severity `critical` or `fatal`) leaves the pool at once: no job is given a GPU that may compute wrong results,
whatever else is going on. Everything else that happens by itself waits for the controller's word: the quarantine for a milder sign (state `suspect`;
jobs may get the GPU meanwhile), a reset, a boot. In a healthy pool that word comes within milliseconds. It does not come while the pool's one breaker
is open: nothing automatic takes more than a node or a tenth of a partition within an hour, whatever the causes, a GPU counting as its part of its
node, and GPUs that went at once count as well. Then `gnodes --health`, `gadm diag`, the log and `/metrics` (`gpupool_breaker_open`) say so; an hour after
something went, more may. What people order is not counted and not held back.

`gpu_reset` and `node_reboot` in gpud.toml name the programs that do it; without them a GPU that calls for it waits for `gadm gpu return`. A node boots
only when no run is on it, and takes no work from the moment it may. Each step is written down before it is begun: a gpud that is killed during one
does not take it twice.

Actions, mildest first: `note` into the GPU's history; `quarantine`: no new job gets it; `end_job`: and the job that holds it is ended and requeued
elsewhere; `reset`: and the GPU is reset when nothing runs on it; `reboot`: and it stays out until the node has booted, which is done when nothing
runs there; `replace`: it is marked, and no reset brings it back. A GPU comes back into service only after a burn-in. Steps are taken one at a time
on a node, each pause twice as long as the one before; what two resets in a day (or a boot, where the site allows boots) do not mend is marked.
A reset or boot that could not be done, since its program failed, marks nothing: the GPU waits for an administrator, with the program's words as its reason. A GPU
that is missing keeps none of the others waiting; it is booted for by hand, or `gadm gpu forget` says that it is gone for good.

A site changes an entry, adds one, or switches one off in TOML; what is not named stays:

    [sign.xid-63]
    action = \"quarantine\"        # note quarantine end_job reset reboot replace
    let_finish = true            # its job may finish first

    [sign.our-page-faults]       # a new one needs evidence and action
    evidence = \"xid 31\"
    action = \"quarantine\"
    threshold = 50               # so many
    window_secs = 600            # within this time
    # states: holds_secs = how long it must last, clears_secs = over after so long without it (0: stands until returned)

    [sign.pcie-width]
    off = true

An Xid that an entry of the site's own names is evidence of that one only.
An Xid that comes by the event set and in the kernel log counts once. A storm raises a count: a sign that stands is told again after 1, 2, 4
and so on up to 60 minutes.
A sensor that lies drains nothing: a counter that falls is believed after 60 readings, the highest number of a counter is no value, and so are temperatures above
150 C and limits of 0. What has to last begins anew where there was no reading for ten minutes or the clock was set.
";

const SITE: &str = r#"
[sign.xid-63]
severity = "warning"

[sign.xid-79]
action = "replace"
let_finish = true

[sign.pcie-width]
off = true

[sign.our-page-faults]
evidence = "xid 31"
action = "quarantine"
threshold = 50
window_secs = 600
meaning = "so many page faults are no single program's"
"#;

#[test]
fn a_site_changes_adds_and_switches_off_signs_in_toml() {
    let overrides: CatalogueOverrides = toml::from_str(SITE).unwrap();
    let catalogue = Catalogue::with(&overrides).unwrap();
    assert_eq!(catalogue.signs["xid-63"].severity, Severity::Warning);
    assert_eq!(
        catalogue.signs["xid-63"].action,
        Action::Note,
        "what is not named stays"
    );
    assert_eq!(
        (
            catalogue.signs["xid-79"].action,
            catalogue.signs["xid-79"].let_finish
        ),
        (Action::Replace, true)
    );
    assert!(!catalogue.signs.contains_key("pcie-width"));
    assert_eq!(
        (
            catalogue.by_xid(31).unwrap().0,
            catalogue.by_xid(13).unwrap().0
        ),
        ("our-page-faults", "xid-application")
    );
}

#[test]
fn mistakes_in_the_overrides_are_all_told_with_sign_and_key() {
    let wrong = r#"
[sign.xid-97]
action = "reset"

[sign.hot]
threshold = 0
holds_secs = 99999999

[sign.mine]
evidence = "xid 48"
action = "note"

[sign.mine-too]
evidence = "xid 48"
action = "reset"
"#;
    let errors = Catalogue::with(&toml::from_str(wrong).unwrap()).unwrap_err();
    let told: Vec<(&str, &str)> = errors
        .iter()
        .map(|error| (error.sign.as_str(), error.key))
        .collect();
    assert_eq!(
        told,
        [
            ("hot", "holds_secs"),
            ("hot", "threshold"),
            ("xid-97", "evidence"),
            ("mine-too", "evidence")
        ]
    );
    assert!(
        errors[2].to_string().contains("did you mean \"xid-79\"?"),
        "{}",
        errors[2]
    );
    assert!(errors[3].problem.contains("\"mine\""), "{}", errors[3]);
    let unknown = |text: &str| {
        toml::from_str::<CatalogueOverrides>(text)
            .unwrap_err()
            .to_string()
    };
    assert!(unknown("[sign.hot]\nevidence = \"hoot\"").contains("did you mean \"hot\"?"));
    assert!(unknown("[sign.hot]\nacton = \"note\"").contains("unknown field `acton`"));
    assert!(unknown("[sign.hot]\naction = \"explode\"").contains("unknown variant `explode`"));
}
