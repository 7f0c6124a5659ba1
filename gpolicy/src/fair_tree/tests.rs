use super::*;
use expect_test::{Expect, expect};
use gmodel::Timestamp;
use gmodel::policy::{Account, AccountUser};
use proptest::prelude::*;
use std::collections::{BTreeMap, BTreeSet};

/// `account lab shares=2 [under=x]`, `user ann in lab shares=1 used=30`, one a line.
fn policy_and_use(text: &str) -> (Policy, Vec<(String, String, u64)>) {
    let (mut policy, mut used) = (Policy::default(), Vec::new());
    for line in text.lines().map(str::trim).filter(|line| !line.is_empty()) {
        let words: Vec<&str> = line.split_whitespace().collect();
        let named = |name: &str| {
            words
                .iter()
                .find_map(|word| word.strip_prefix(name)?.strip_prefix('='))
        };
        let shares = named("shares").map_or(1, |n| n.parse().unwrap());
        if words[0] == "account" {
            let parent = named("under").map(str::to_owned);
            let account = Account {
                name: words[1].into(),
                parent,
                shares,
                ..Account::default()
            };
            policy.accounts.insert(words[1].into(), account);
        } else {
            let account = policy.accounts.get_mut(words[3]).unwrap();
            account.users.insert(
                words[1].into(),
                AccountUser {
                    shares,
                    ..AccountUser::default()
                },
            );
            used.push((
                words[3].to_owned(),
                words[1].to_owned(),
                named("used").map_or(0, |n| n.parse().unwrap()),
            ));
        }
    }
    (policy, used)
}

fn tree<'a>(policy: &'a Policy, used: &'a [(String, String, u64)]) -> FairTree<'a> {
    FairTree::new(
        policy,
        used.iter()
            .map(|(account, user, used)| (&**account, &**user, *used)),
    )
}

fn check(text: &str, want: Expect) {
    let (policy, used) = policy_and_use(text);
    let lines = tree(&policy, &used);
    let lines = lines.lines().into_iter().map(|(depth, node)| {
        let level = node.level_fs.ppm().map_or("inf".to_owned(), |ppm| {
            format!("{}.{:03}", ppm / 1_000_000, ppm / 1000 % 1000)
        });
        let factor = if node.user.is_some() {
            format!(" {}", node.factor)
        } else {
            String::new()
        };
        format!(
            "{}{} {} {}{factor}\n",
            " ".repeat(depth),
            node.user.unwrap_or(node.account),
            node.usage,
            level
        )
    });
    want.assert_eq(&lines.collect::<String>());
}

#[test]
fn all_of_a_better_served_account_come_after_all_of_the_other() {
    // As Slurm's page says: where two lines part, the level fair share there decides.
    check(
        "account acct1
         account acct12 under=acct1
         account acct16 under=acct1
         user usera in acct12 used=10
         user other in acct12 used=50
         user userb in acct16 used=40",
        expect![[r#"
            root 100 inf
             acct1 100 1.000
              acct12 60 0.833
               other 50 0.600 333333
               usera 10 3.000 666666
              acct16 40 1.250
               userb 40 1.000 1000000
        "#]],
    );
}

#[test]
fn shares_weigh_use() {
    check(
        "account a shares=3
         account b shares=1
         user ann in a used=60
         user bob in b used=40",
        expect![[r#"
            root 100 inf
             a 60 1.250
              ann 60 1.000 1000000
             b 40 0.625
              bob 40 1.000 500000
        "#]],
    );
}

#[test]
fn tied_users_share_the_rank_and_the_next_one_has_its_own() {
    check(
        "account a
         user ann in a used=10
         user bob in a used=10
         user cat in a used=20
         user dan in a",
        expect![[r#"
            root 40 inf
             a 40 1.000
              ann 10 1.000 750000
              bob 10 1.000 750000
              cat 20 0.500 250000
              dan 0 inf 1000000
        "#]],
    );
}

#[test]
fn tied_accounts_are_one_list_and_a_tied_user_ranks_with_their_best() {
    check(
        "account top
         account a under=top
         account b under=top
         user me in top used=10
         user ann in a used=8
         user bob in a used=2
         user cat in b used=5
         user dan in b used=5",
        expect![[r#"
            root 30 inf
             top 30 1.000
              me 10 1.000 1000000
              a 10 1.000
               ann 8 0.625 200000
               bob 2 2.500 1000000
              b 10 1.000
               cat 5 1.000 600000
               dan 5 1.000 600000
        "#]],
    );
}

#[test]
fn a_new_cluster_has_everybody_first() {
    check(
        "account a
         account b shares=0
         user ann in a
         user bob in a
         user cat in b",
        expect![[r#"
            root 0 inf
             a 0 inf
              ann 0 inf 1000000
              bob 0 inf 1000000
             b 0 0.000
              cat 0 inf 333333
        "#]],
    );
}

#[test]
fn resting_mends_a_standing_step_by_step() {
    let (policy, used) = policy_and_use(
        "account a
         user ann in a used=800
         user bob in a used=300
         user cat in a used=150",
    );
    let tree = tree(&policy, &used);
    assert_eq!(tree.factor("a", "ann"), 333_333);
    let outlook = tree.outlook("a", "ann");
    let shown: Vec<(u32, u64, u32)> = outlook
        .iter()
        .map(|later| (later.after_half_lives_milli, later.usage, later.factor))
        .collect();
    assert_eq!(
        shown,
        [
            (500, 565, 333_333),
            (1000, 400, 333_333),
            (2000, 200, 666_666),
            (4000, 50, 1_000_000)
        ]
    );
    assert_eq!(tree.outlook("a", "nobody"), []);
}

/// The same by the page's recipe, as plainly as can be: exact fractions, a list of groups, no ranks kept in passing.
fn by_the_book(policy: &Policy, used: &[(String, String, u64)]) -> BTreeMap<(String, String), u64> {
    #[derive(Clone)]
    struct One {
        account: String,
        user: Option<String>,
        shares: u64,
        used: u128,
        // Shares and use of all siblings.
        all: (u64, u128),
    }
    fn total(policy: &Policy, used: &[(String, String, u64)], account: &str) -> u128 {
        let own: u128 = used
            .iter()
            .filter(|(of, ..)| of == account)
            .map(|(.., used)| u128::from(*used))
            .sum();
        let below = policy
            .accounts
            .values()
            .filter(|one| one.parent.as_deref() == Some(account));
        own + below
            .map(|one| total(policy, used, &one.name))
            .sum::<u128>()
    }
    fn children(policy: &Policy, used: &[(String, String, u64)], of: Option<&str>) -> Vec<One> {
        let accounts = policy
            .accounts
            .values()
            .filter(|one| one.parent.as_deref() == of)
            .map(|one| One {
                account: one.name.clone(),
                user: None,
                shares: u64::from(one.shares),
                used: total(policy, used, &one.name),
                all: (0, 0),
            });
        let users = used
            .iter()
            .filter(|(account, ..)| Some(&**account) == of)
            .map(|(account, user, used)| One {
                account: account.clone(),
                user: Some(user.clone()),
                shares: u64::from(policy.accounts[account].users[user].shares),
                used: u128::from(*used),
                all: (0, 0),
            });
        let mut all: Vec<One> = accounts.chain(users).collect();
        let sum = (
            all.iter().map(|one| one.shares).sum(),
            all.iter().map(|one| one.used).sum(),
        );
        all.iter_mut().for_each(|one| one.all = sum);
        all
    }
    // S / U as a fraction: (shares * all use) over (all shares * use); more is better.
    fn level(one: &One) -> (u128, u128) {
        match (one.shares, one.used) {
            (0, _) => (0, 1),
            (_, 0) => (1, 0),
            _ => (
                u128::from(one.shares) * one.all.1,
                u128::from(one.all.0) * one.used,
            ),
        }
    }
    /// Users in the order of their ranks, tied ones together.
    fn groups(
        policy: &Policy,
        used: &[(String, String, u64)],
        mut list: Vec<One>,
    ) -> Vec<Vec<One>> {
        let mut ranked: Vec<Vec<One>> = Vec::new();
        while !list.is_empty() {
            let better = |a: &One, b: &One| {
                let ((an, ad), (bn, bd)) = (level(a), level(b));
                an * bd > bn * ad || (ad == 0 && bd != 0)
            };
            let best = list
                .iter()
                .find(|one| !list.iter().any(|other| better(other, one)))
                .unwrap()
                .clone();
            let (equal, rest): (Vec<One>, Vec<One>) =
                list.into_iter().partition(|one| !better(&best, one));
            list = rest;
            let (users, accounts): (Vec<One>, Vec<One>) =
                equal.into_iter().partition(|one| one.user.is_some());
            let below: Vec<One> = accounts
                .iter()
                .flat_map(|one| children(policy, used, Some(&one.account)))
                .collect();
            let mut below = groups(policy, used, below);
            if !users.is_empty() {
                if below.is_empty() {
                    below.push(Vec::new());
                }
                below[0].extend(users);
            }
            ranked.extend(below);
        }
        ranked
    }
    let mut rank = used.len() as u64;
    let mut factors = BTreeMap::new();
    for group in groups(policy, used, children(policy, used, None)) {
        for one in &group {
            factors.insert(
                (one.account.clone(), one.user.clone().unwrap()),
                rank * PPM / used.len() as u64,
            );
        }
        rank -= group.len() as u64;
    }
    factors
}

fn trees() -> impl Strategy<Value = String> {
    let account = (0..4u32, 0..6usize);
    let user = (
        0..3u32,
        prop::sample::select(vec![0u64, 0, 10, 10, 20, 30, 70, 1000]),
        0..6usize,
    );
    (
        prop::collection::vec(account, 1..6),
        prop::collection::vec(user, 1..12),
    )
        .prop_map(|(accounts, users)| {
            let mut text = String::new();
            for (at, (shares, parent)) in accounts.iter().enumerate() {
                let under = if *parent < at {
                    format!("under=a{parent}")
                } else {
                    String::new()
                };
                text += &format!("account a{at} shares={shares} {under}\n");
            }
            for (at, (shares, used, account)) in users.iter().enumerate() {
                text += &format!(
                    "user u{at} in a{} shares={shares} used={used}\n",
                    account % accounts.len()
                );
            }
            text
        })
}

proptest! {
    #[test]
    fn the_tree_ranks_as_the_recipe_does(text in trees()) {
        let (policy, used) = policy_and_use(&text);
        let tree = tree(&policy, &used);
        for ((account, user), factor) in by_the_book(&policy, &used) {
            prop_assert_eq!(u64::from(tree.factor(&account, &user)), factor, "{} in {}\n{}", user, account, text);
        }
    }
}

/// A job of one of a few users. The policy lacks some of their accounts.
fn spec_of(who: u8) -> Arc<JobSpec> {
    let mut spec = JobSpec::from(gmodel::CommonSpec {
        account: format!("a{}", who % 4),
        ..Default::default()
    });
    spec.user.name = format!("u{}", who / 2);
    Arc::new(spec)
}

fn waits(at: usize, who: u8) -> PendingJob {
    let now = Timestamp::default();
    let (reason, particulars) = Default::default();
    PendingJob {
        id: gmodel::JobId(at as u64),
        spec: spec_of(who),
        submitted: now,
        eligible: now,
        nice: 0,
        limit_secs: None,
        reason,
        particulars,
    }
}

fn runs(job: u64, who: u8, cpus: u32, started: Option<Timestamp>) -> RunningRun {
    let share = gmodel::run::NodeShare {
        node: NodeId(1),
        cpus,
        mem_bytes: 0,
        gpus: Default::default(),
        tasks: 1,
    };
    let run = RunningRun::new(
        gmodel::RunId::new(gmodel::JobId(job), 1),
        spec_of(who),
        vec![share],
        None,
    );
    RunningRun { started, ..run }
}

/// What the tree is made of, to be changed step by step.
#[derive(Default)]
struct Picture {
    now: Timestamp,
    config: Arc<ClusterConfig>,
    policy: Arc<Policy>,
    pending: Vec<PendingJob>,
    running: Vec<RunningRun>,
    usage: Arc<UsageBook>,
}

impl Picture {
    fn input(&self) -> UsageInput<'_> {
        UsageInput {
            now: self.now,
            config: &self.config,
            policy: &self.policy,
            nodes: &[],
            running: &self.running,
            book: &self.usage,
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    /// Runs come, go and are charged; users get and lose pending jobs. The kept tree gives the factors of a new one each time.
    #[test]
    fn a_kept_tree_says_what_a_new_one_says(
        steps in prop::collection::vec((0u8..11, 0u8..12, 1u32..9, 0i64..200_000, any::<bool>()), 1..60),
    ) {
        let (policy, _) = policy_and_use("account a0 shares=2\naccount a1 shares=1 under=a0\nuser u0 in a0 shares=3");
        let mut picture = Picture { policy: Arc::new(policy), ..Picture::default() };
        Arc::make_mut(&mut picture.config).scheduler.fair_share.cpu_weight_milli = 1000;
        let mut half_life = picture.config.scheduler.fair_share.half_life_secs;
        let mut kept = Standings::default();
        let (mut changed, mut all_changed) = (BTreeSet::new(), false);
        let mut numbers = BTreeMap::new();
        for (at, (what, who, amount, secs, looks)) in steps.into_iter().enumerate() {
            picture.now = picture.now.plus_secs(secs);
            let last = picture.running.len().checked_sub(1);
            match (what, last) {
                (0, _) => picture.pending.push(waits(at, who)),
                (1, _) => drop(picture.pending.pop()),
                (2, Some(last)) => {
                    let run = &mut picture.running[usize::from(who) % (last + 1)];
                    // By the clock of its node, which may be ahead.
                    run.started = run.started.or(Some(picture.now.plus_secs(i64::from(amount) * 1000 - 4000)));
                    run.shares[0].cpus = amount;
                    changed.insert(run.run);
                }
                (3, Some(last)) => {
                    let run = picture.running.remove(usize::from(who) % (last + 1));
                    let rate = crate::usage::Rate { weighted_micro: u64::from(amount) * 1000, ..Default::default() };
                    let book = Arc::make_mut(&mut picture.usage);
                    let from = run.started.unwrap_or(picture.now);
                    book.charge(&run.spec.account, &run.spec.user.name, &rate, from, picture.now, half_life);
                    changed.insert(run.run);
                }
                (5, Some(last)) => {
                    let run = &mut picture.running[last];
                    run.charged = true;
                    changed.insert(run.run);
                }
                (6, _) => picture.now = picture.now.plus_secs(-2 * secs),
                (7, _) if who == 0 => picture.usage = Arc::default(),
                (8, _) if who == 0 => {
                    half_life = if amount == 1 { 0 } else { 100_000 * amount };
                    Arc::make_mut(&mut picture.config).scheduler.fair_share.half_life_secs = half_life;
                }
                (9, _) if who == 0 => all_changed = true,
                _ => {
                    let run = runs(at as u64, who, amount, Some(picture.now).filter(|_| what == 4));
                    changed.insert(run.run);
                    picture.running.push(run);
                }
            }
            if !looks {
                continue;
            }
            let changed = std::mem::take(&mut changed);
            kept.note(Some(&changed).filter(|_| !std::mem::take(&mut all_changed)));
            let new = FairTree::of(picture.input(), &picture.pending);
            for job in &picture.pending {
                let next = numbers.len();
                numbers.entry((job.spec.account.clone(), job.spec.user.name.clone())).or_insert(next);
            }
            let number = |job: &PendingJob| numbers[&(job.spec.account.clone(), job.spec.user.name.clone())];
            let waiting = picture.pending.iter().map(|job| (number(job), job.spec.account.as_str(), job.spec.user.name.as_str()));
            let found = kept.factors(picture.input(), 1, waiting.clone());
            for (number, account, user) in waiting {
                prop_assert_eq!(found[number], new.factor(account, user), "{} in {}", user, account);
            }
        }
    }
}
