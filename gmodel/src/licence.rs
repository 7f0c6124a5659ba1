//! `--licenses`: counted things of the whole cluster that a job holds while it runs, as in `matlab:2,ansys`.
//!
//! Owns the grammar of sbatch(1); how many there are is policy.

use std::collections::BTreeMap;

/// Most licences a job may name, and the largest count of one.
pub const MAX_NAMES: usize = 32;
pub const MAX_COUNT: u32 = 1_000_000;

/// What is wrong with a list of licences.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("--licenses {text:?}: {why}. Write name:count with commas between, as in matlab:2,ansys")]
pub struct LicenceError {
    pub text: String,
    pub why: String,
}

/// `matlab:2,ansys:1`.
pub fn text(licences: &BTreeMap<String, u32>) -> String {
    let parts = licences
        .iter()
        .map(|(name, count)| format!("{name}:{count}"));
    parts.collect::<Vec<_>>().join(",")
}

/// Reads `name[:count][,name[:count]...]`; a name that comes twice counts twice.
pub fn parse(text: &str) -> Result<BTreeMap<String, u32>, LicenceError> {
    let wrong = |why: String| LicenceError {
        text: text.chars().take(60).collect(),
        why,
    };
    let mut licences: BTreeMap<String, u32> = BTreeMap::new();
    if text.len() > 4096 {
        return Err(wrong(format!(
            "it has {} bytes and 4096 are the most",
            text.len()
        )));
    }
    if text.contains(['|', ';']) {
        return Err(wrong(
            "alternatives are not offered, all of the licences are held".into(),
        ));
    }
    for part in text.split(',').map(str::trim) {
        let (name, count) = match part.rsplit_once([':', '=', '*']) {
            Some((name, count)) => {
                let count = count
                    .parse()
                    .ok()
                    .filter(|count| (1..=MAX_COUNT).contains(count));
                (
                    name,
                    count.ok_or_else(|| wrong(format!("counts go from 1 to {MAX_COUNT}")))?,
                )
            }
            None => (part, 1),
        };
        let is_name = (1..=64).contains(&name.len())
            && name
                .bytes()
                .all(|b| b.is_ascii_alphanumeric() || b"_-.@/".contains(&b));
        if !is_name {
            return Err(wrong(format!("{name:?} is no name of a licence")));
        }
        let held = licences.entry(name.to_owned()).or_default();
        *held = held.saturating_add(count).min(MAX_COUNT);
    }
    if licences.len() > MAX_NAMES {
        return Err(wrong(format!("a job may name {MAX_NAMES} licences")));
    }
    Ok(licences)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_counts_and_refuses_the_rest() {
        let read = parse("matlab:2, ansys,matlab").unwrap();
        assert_eq!(
            read,
            BTreeMap::from([("ansys".into(), 1), ("matlab".into(), 3)])
        );
        for bad in ["", "a:0", "a:x", "a|b", "a b", "a,,b"] {
            assert!(parse(bad).is_err(), "{bad:?}");
        }
    }
}
