//! `sreport job SizesByAccount`: what was used by jobs of which size, with the figures of `gacct report`.
//!
//! A job's size is what it held of what is counted, on all its nodes. Source: sreport(1), and what sreport 22.05.8 printed.

use super::source::{AccountTree, Source, Span, among, names};
use super::tres::{RULE, TimeUnit, Tres, TresChoice};
use crate::ruled_table::{self, TableArgs};
use gcli::table::stdout;
use gcli::{ClusterChoice, Failure, Outcome};
use gmodel::Timestamp;
use gmodel::policy::Account;
use gwire::api::ReportRow;
use std::collections::BTreeMap;
use std::io::Write;

const KNOWN: &str = "start=, end=, accounts=, users=, partitions=, grouping=, flatview, acctasparent and printjobcount";

/// The accounts for which sizes are summed up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum AccountView {
    /// All together, or with `accounts=` each of these with all below it.
    Whole,
    /// Each account for itself.
    Flat,
    /// Each account at the top of the tree with all below it.
    Top,
}

/// What was asked for.
#[derive(Debug)]
pub(crate) struct SizesRequest {
    span: Span,
    accounts: Vec<String>,
    users: Vec<String>,
    partitions: Vec<String>,
    /// Least sizes of all groups but the first; `None`: each size for itself.
    grouping: Option<Vec<u64>>,
    view: AccountView,
    /// Jobs instead of time.
    counts: bool,
}

/// The words behind the report's name, if it is this one. Beginnings of its names are enough.
pub(crate) fn words(words: &[String]) -> Option<&[String]> {
    let [about, report, rest @ ..] = words else {
        return None;
    };
    let begins =
        |whole: &str, word: &str| !word.is_empty() && whole.starts_with(&word.to_ascii_lowercase());
    // What is common with sizesbyaccountandwckey and sizesbywckey means this one.
    (begins("job", about) && begins("sizesbyaccount", report)).then_some(rest)
}

impl SizesRequest {
    /// # Errors
    /// A word that chooses nothing, or times that cannot be read.
    pub(crate) fn of(words: &[String], now: Timestamp) -> Result<Self, Failure> {
        let (mut accounts, mut users, mut partitions) = (Vec::new(), Vec::new(), Vec::new());
        let mut bounds = Some(vec![50, 250, 500, 1000]);
        let (mut view, mut counts) = (AccountView::Whole, false);
        let span = Span::read(words, now, KNOWN, |key, value| {
            match key {
                "accounts" | "account" | "acct" => accounts.extend(names(value)),
                "users" | "user" => users.extend(names(value)),
                "partitions" | "partition" => partitions.extend(names(value)),
                "grouping" => bounds = grouping(value)?,
                "flatview" => view = AccountView::Flat,
                "acctasparent" => view = AccountView::Top,
                "printjobcount" => counts = true,
                _ => return Ok(false),
            }
            Ok(true)
        })?;
        if view == AccountView::Top && !accounts.is_empty() {
            return Err(Failure::usage(
                "acctasparent lists the accounts at the top of the tree: leave accounts= out, or acctasparent",
            ));
        }
        Ok(Self {
            span,
            accounts,
            users,
            partitions,
            grouping: bounds,
            view,
            counts,
        })
    }

    fn print_header(
        &self,
        out: &mut impl Write,
        unit: TimeUnit,
        named: Option<Tres>,
    ) -> std::io::Result<()> {
        let (span, secs) = (self.span, self.span.secs());
        writeln!(out, "{RULE}\nJob Sizes {span} ({secs} secs)")?;
        if let Some(tres) = named {
            writeln!(out, "TRES type is {}", tres.name())?;
        }
        let reported = if self.counts {
            "Units are in number of jobs ran".to_owned()
        } else {
            format!("Time reported in {}", unit.name)
        };
        writeln!(out, "{reported}\n{RULE}")
    }

    /// A line for each account: what its jobs of each size used, and its share of the whole.
    fn rows(
        &self,
        cluster: &str,
        accounts: &BTreeMap<&str, Vec<&SizeUsage>>,
        sizes: &[SizeRange],
        unit: TimeUnit,
    ) -> Vec<Vec<String>> {
        let amount = |one: &SizeUsage| match self.counts {
            true => one.jobs as f64,
            false => one.hours * unit.per_hour,
        };
        let sum = |of: &[&SizeUsage], sizes: Option<&SizeRange>| {
            let of = of
                .iter()
                .filter(|one| sizes.is_none_or(|sizes| sizes.holds(one.size)));
            of.fold(0.0, |sum, one| sum + amount(one))
        };
        let whole = accounts
            .values()
            .fold(0.0, |whole, of| whole + sum(of, None));
        let row = |(account, of): (&&str, &Vec<&SizeUsage>)| {
            let percent = if whole > 0.0 {
                sum(of, None) / whole * 100.0
            } else {
                0.0
            };
            [cluster.to_owned(), (*account).to_owned()]
                .into_iter()
                .chain(
                    sizes
                        .iter()
                        .map(|sizes| format!("{:.0}", sum(of, Some(sizes)))),
                )
                .chain([format!("{percent:.2}%")])
                .collect()
        };
        accounts.iter().map(row).collect()
    }
}

/// `50,250`: where groups begin; `individual`: none.
fn grouping(value: &str) -> Result<Option<Vec<u64>>, Failure> {
    if value.eq_ignore_ascii_case("individual") {
        return Ok(None);
    }
    let bounds: Result<Vec<u64>, _> = value.split(',').map(|word| word.trim().parse()).collect();
    match bounds {
        Ok(bounds)
            if bounds.is_sorted_by(|a, b| a < b)
                && bounds.first().is_some_and(|first| *first > 0) =>
        {
            Ok(Some(bounds))
        }
        _ => Err(Failure::usage(format_args!(
            "grouping={value}: write where groups begin, smaller ones first: 50,250; or individual"
        ))),
    }
}

/// A group of sizes: from one up to below another.
#[derive(Clone, Copy, Debug, PartialEq)]
struct SizeRange {
    least: f64,
    below: Option<f64>,
    /// One size, not a range.
    single: bool,
}

impl SizeRange {
    fn holds(self, size: f64) -> bool {
        size >= self.least && self.below.is_none_or(|below| size < below)
    }

    fn title(self, counted: &str) -> String {
        let least = self.least;
        match self.below {
            _ if self.single => format!("{least} {counted}"),
            Some(below) => format!("{least}-{} {counted}", below - 1.0),
            None => format!(">= {least} {counted}"),
        }
    }
}

/// # Errors
/// What stood in the way.
pub(crate) fn print(
    asked: &SizesRequest,
    choice: &ClusterChoice,
    unit: TimeUnit,
    TresChoice { is_named, list }: &TresChoice,
    table: TableArgs,
) -> Outcome {
    let [tres] = list.as_slice() else {
        return Err(Failure::usage(
            "sizes are of one thing: ask for each with a --tres of its own",
        ));
    };
    let mut source = Source::open(choice)?;
    let by = match tres {
        Tres::Cpu => "account,user,partition,cpus",
        Tres::Gpu => "account,user,partition,gpus",
    };
    let mut used: Vec<SizeUsage> = source
        .used(by, asked.span)?
        .iter()
        .map(|row| SizeUsage::of(row, *tres))
        .collect();
    used.retain(|one| among(&asked.users, &one.user) && among(&asked.partitions, &one.partition));
    let known = source.accounts()?;
    let sizes = groups_of(asked, &used);
    let counted = match (*is_named, tres) {
        (true, Tres::Gpu) => "TRES",
        _ => "CPUs",
    };
    let titles: Vec<(String, usize)> = [("Cluster".to_owned(), 9), ("Account".to_owned(), 9)]
        .into_iter()
        .chain(sizes.iter().map(|sizes| (sizes.title(counted), 13)))
        .chain([("% of cluster".to_owned(), 12)])
        .collect();
    let rows = asked.rows(
        &source.cluster,
        &by_account(asked, &used, &known),
        &sizes,
        unit,
    );
    let mut out = stdout()?;
    if !table.no_header {
        asked.print_header(&mut out, unit, is_named.then_some(*tres))?;
    }
    ruled_table::print_texts(&mut out, &titles, &rows, table)?;
    out.flush()?;
    Ok(0)
}

/// What jobs of one size used.
struct SizeUsage {
    account: String,
    user: String,
    partition: String,
    size: f64,
    hours: f64,
    jobs: u64,
}

impl SizeUsage {
    fn of(row: &ReportRow, tres: Tres) -> Self {
        let word = |at: usize| row.group.get(at).cloned().unwrap_or_default();
        Self {
            account: word(0),
            user: word(1),
            partition: word(2),
            size: word(3).parse().unwrap_or(0.0),
            hours: tres.hours(row),
            jobs: row.jobs,
        }
    }
}

fn groups_of(asked: &SizesRequest, used: &[SizeUsage]) -> Vec<SizeRange> {
    let bounds: Vec<f64> = match &asked.grouping {
        Some(bounds) => [0]
            .iter()
            .chain(bounds)
            .map(|bound| *bound as f64)
            .collect(),
        None => {
            let mut sizes: Vec<f64> = used.iter().map(|one| one.size).collect();
            sizes.sort_by(f64::total_cmp);
            sizes.dedup();
            sizes
        }
    };
    let next = bounds.iter().skip(1).copied().map(Some).chain([None]);
    let ranges = bounds.iter().zip(next).map(|(least, below)| SizeRange {
        least: *least,
        below,
        single: asked.grouping.is_none(),
    });
    ranges.collect()
}

/// The accounts that are listed, each with what counts for it.
fn by_account<'a>(
    asked: &'a SizesRequest,
    used: &'a [SizeUsage],
    known: &'a [Account],
) -> BTreeMap<&'a str, Vec<&'a SizeUsage>> {
    let parents = AccountTree::of(known);
    let mut found: BTreeMap<&str, Vec<&SizeUsage>> = BTreeMap::new();
    for one in used {
        let is_asked = |name: &str| asked.accounts.iter().any(|asked| asked == name);
        let under: Vec<&str> = match asked.view {
            AccountView::Whole if asked.accounts.is_empty() => vec!["root"],
            // Slurm's name of the tree itself.
            AccountView::Whole => parents
                .line(&one.account)
                .into_iter()
                .chain(["root"])
                .filter(|name| is_asked(name))
                .collect(),
            AccountView::Flat => [one.account.as_str()]
                .into_iter()
                .filter(|name| asked.accounts.is_empty() || is_asked(name))
                .collect(),
            AccountView::Top => parents.line(&one.account).pop().into_iter().collect(),
        };
        under
            .into_iter()
            .for_each(|name| found.entry(name).or_default().push(one));
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn groups_of_sizes_are_titled_as_in_slurm() {
        let titles = |grouping: &str| {
            let asked = SizesRequest::of(
                &[format!("grouping={grouping}")],
                Timestamp::from_secs(1_795_277_177),
            )
            .unwrap();
            let used = [16.0, 0.5, 16.0].map(|size| SizeUsage {
                account: String::new(),
                user: String::new(),
                partition: String::new(),
                size,
                hours: 1.0,
                jobs: 1,
            });
            groups_of(&asked, &used)
                .iter()
                .map(|sizes| sizes.title("CPUs"))
                .collect::<Vec<_>>()
                .join("|")
        };
        assert_eq!(titles("50,250"), "0-49 CPUs|50-249 CPUs|>= 250 CPUs");
        assert_eq!(titles("individual"), "0.5 CPUs|16 CPUs");
        let refused = |words: &[&str]| {
            SizesRequest::of(
                &words
                    .iter()
                    .map(|word| (*word).to_owned())
                    .collect::<Vec<_>>(),
                Timestamp::from_secs(1_795_277_177),
            )
            .unwrap_err()
            .text
        };
        for grouping in ["grouping=", "grouping=0,5", "grouping=50,10", "grouping=x"] {
            assert!(
                refused(&[grouping]).contains("write where groups begin"),
                "{grouping}"
            );
        }
        assert!(
            refused(&["gid=0"]).contains("chooses nothing here")
                && refused(&["accounts=a", "acctasparent"]).contains("leave accounts= out")
        );
    }

    #[test]
    fn the_reports_name_may_be_begun() {
        let is =
            |text: &str| words(&text.split(' ').map(str::to_owned).collect::<Vec<_>>()).is_some();
        assert!(
            is("job SizesByAccount")
                && is("j siz flatview")
                && !is("job sizesbywckey")
                && !is("job SizesByAccountAndWckey")
                && !is("user top")
        );
    }
}
