//! The fence on pure v1: `devices.deny` and `devices.allow`. A v1 list cannot say "this major but for one minor" by
//! denying, so everything is denied first and what the rules permit is allowed, major by major. Readable back, so auditable.

use std::collections::BTreeSet;
use std::fs;
use std::io::Write;
use std::path::Path;

use super::fence::{Fence, FenceError, FenceTag};
use super::rules::{DeviceNumber, FenceRules};

/// Character majors end here in all kernels (CHRDEV_MAJOR_MAX); above it no driver has a device.
const MAJORS: u32 = 512;
/// Of a major in which single minors are denied, minors up to here are allowed one by one; none above. DRI and misc, the
/// majors this happens to, stay below it (misc by 1024 dynamic minors at most).
const MINORS: u32 = 1024;

/// Writes the fence of a fresh cgroup.
pub(super) fn write(dir: &Path, rules: &FenceRules) -> Result<Fence, FenceError> {
    let lines = lines(rules);
    put(dir, "devices.deny", &["a".to_owned()])?;
    put(dir, "devices.allow", &lines)?;
    checked(dir, &lines)
}

/// Changes the list to that of new rules; what both have is never missing in between.
pub(super) fn rewrite(dir: &Path, rules: &FenceRules) -> Result<Fence, FenceError> {
    let (old, new) = (list(dir)?, lines(rules));
    let wanted: BTreeSet<&String> = new.iter().collect();
    let had: BTreeSet<&String> = old.iter().collect();
    put(dir, "devices.deny", had.difference(&wanted).copied())?;
    put(dir, "devices.allow", wanted.difference(&had).copied())?;
    checked(dir, &new)
}

pub(super) fn read(dir: &Path) -> Result<Fence, FenceError> {
    Ok(Fence {
        program_id: 0,
        tag: tag(&list(dir)?),
    })
}

/// A hash (FNV-1a) of the list, whatever its order.
pub(super) fn tag(lines: &[String]) -> FenceTag {
    let sorted: BTreeSet<&String> = lines.iter().collect();
    let bytes = sorted
        .into_iter()
        .flat_map(|line| line.bytes().chain([b'\n']));
    let hash = bytes.fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x100_0000_01b3)
    });
    FenceTag(hash.to_be_bytes())
}

/// What is allowed, in the kernel's own spelling.
pub(super) fn lines(rules: &FenceRules) -> Vec<String> {
    let mut lines = Vec::new();
    if !rules.default_deny {
        lines.push("b *:* rwm".to_owned());
    }
    let named: BTreeSet<u32> = rules
        .allow
        .iter()
        .chain(&rules.deny)
        .map(|rule| rule.major)
        .collect();
    for major in 0..MAJORS {
        let denied = rules
            .deny
            .iter()
            .any(|rule| rule.major == major && rule.minor.is_none())
            || rules.default_deny;
        let allowed = rules
            .allow
            .iter()
            .any(|rule| rule.major == major && rule.minor.is_none());
        let some_denied = rules.deny.iter().any(|rule| rule.major == major);
        if allowed || (!denied && !some_denied) {
            lines.push(format!("c {major}:* rwm"));
        } else if named.contains(&major) {
            let permitted = (0..MINORS).filter(|minor| {
                rules.permits(DeviceNumber {
                    major,
                    minor: *minor,
                })
            });
            lines.extend(permitted.map(|minor| format!("c {major}:{minor} rwm")));
            let above = rules.allow.iter().filter(|rule| rule.major == major);
            let above = above
                .filter_map(|rule| rule.minor)
                .filter(|minor| *minor >= MINORS);
            lines.extend(above.map(|minor| format!("c {major}:{minor} rwm")));
        }
    }
    lines
}

fn checked(dir: &Path, lines: &[String]) -> Result<Fence, FenceError> {
    let fence = read(dir)?;
    match fence.tag == tag(lines) {
        true => Ok(fence),
        false => Err(FenceError::Changed {
            path: dir.to_owned(),
            found: 0,
        }),
    }
}

fn list(dir: &Path) -> Result<Vec<String>, FenceError> {
    let path = dir.join("devices.list");
    let text = fs::read_to_string(&path).map_err(|e| FenceError::at("reading", &path, e))?;
    Ok(text.lines().map(str::to_owned).collect())
}

/// One write per line: the kernel takes one rule at a time.
fn put<'a>(
    dir: &Path,
    file: &str,
    lines: impl IntoIterator<Item = &'a String>,
) -> Result<(), FenceError> {
    let path = dir.join(file);
    let mut opened = fs::OpenOptions::new()
        .write(true)
        .open(&path)
        .map_err(|e| FenceError::at("opening", &path, e))?;
    for line in lines {
        opened
            .write_all(line.as_bytes())
            .map_err(|e| FenceError::at("writing", &path, e))?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::device_fence::DeviceRule;

    #[test]
    fn one_minor_of_a_denied_major_is_allowed_and_the_rest_is_not() {
        let rules = FenceRules {
            allow: vec![
                DeviceRule {
                    major: 195,
                    minor: Some(2),
                },
                DeviceRule {
                    major: 510,
                    minor: Some(5000),
                },
            ],
            deny: vec![
                DeviceRule {
                    major: 195,
                    minor: None,
                },
                DeviceRule {
                    major: 510,
                    minor: None,
                },
                DeviceRule {
                    major: 226,
                    minor: Some(129),
                },
            ],
            default_deny: false,
        };
        let lines = lines(&rules);
        let has = |line: &str| lines.iter().any(|l| l == line);
        assert!(has("c 195:2 rwm") && !has("c 195:1 rwm") && !has("c 195:* rwm"));
        assert!(has("c 510:5000 rwm") && !has("c 510:* rwm"));
        assert!(has("c 226:128 rwm") && !has("c 226:129 rwm") && !has("c 226:* rwm"));
        assert!(has("c 1:* rwm") && has("b *:* rwm"));
    }

    #[test]
    fn the_tag_is_of_the_set_of_lines() {
        let (a, b) = ("c 1:3 rwm".to_owned(), "c 1:5 rwm".to_owned());
        assert_eq!(tag(&[a.clone(), b.clone()]), tag(&[b.clone(), a.clone()]));
        assert_ne!(tag(&[b]), tag(&[a]));
    }
}
