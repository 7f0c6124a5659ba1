//! The lines of a story: each is an input, or prints a table.

use crate::ctl::state::JoinToken;
use crate::ctl::tests::words::{
    Words, actor, inventory, phase, policy_change, request_change, set_config, set_partition, spec,
    target, user_token,
};
use crate::ctl::tests::world::World;
use crate::ctl::*;
use gmodel::array_spec::ArraySpec;
use gmodel::checkpoint::CheckpointMark;
use gmodel::gpu_request::GpuRequest;
use gmodel::idle::IdleReport;
use gmodel::image_pull::{PullProgress, PullReport};
use gmodel::node::Role;
use gmodel::policy::{Account, Policy, PreemptMode};
use gmodel::run::{RunPhase, RunReport, RunTarget, StopCause};
use gmodel::step_share::{GpuCountUnit, StepGpus, StepShareRequest};
use gmodel::{Fence, JobId, NodeId, NodeLife, RunId, Seq};
use gsched::{Plan, Preempt};
use std::collections::BTreeMap;
use std::fmt::Write;

impl World {
    pub fn line(&mut self, line: &str) {
        let words = Words::of(line);
        match words.verb {
            "config" => {
                set_config(&mut self.config, &words);
                self.configure();
            }
            "partition" => {
                set_partition(&mut self.config, &words);
                self.configure();
            }
            "reload" => self.reload(),
            "licence" => {
                let licences = words
                    .options
                    .iter()
                    .filter_map(|(name, count)| Some((name.to_string(), count.parse().ok()?)));
                self.config.scheduler.licences = licences.collect();
                self.configure();
            }
            "account" | "qos" | "user" | "reservation" | "made" => {
                let change = policy_change(&words, &self.state.config, self.now);
                self.command_by(
                    words.get("by").unwrap_or("root"),
                    Command::Policy { change },
                );
            }
            "import" => {
                let reservations = line
                    .trim_start_matches("import")
                    .split('|')
                    .map(str::trim)
                    .filter(|part| !part.is_empty());
                let mut policy = Policy {
                    reservations: BTreeMap::new(),
                    ..self.state.own_policy.clone()
                };
                for part in reservations {
                    let PolicyChange::Reservation { reservation } = policy_change(
                        &Words::of(&format!("reservation {part}")),
                        &self.state.config,
                        self.now,
                    ) else {
                        panic!("{line}")
                    };
                    policy
                        .reservations
                        .insert(reservation.name.clone(), *reservation);
                }
                self.command_by(
                    "root",
                    Command::Policy {
                        change: PolicyChange::All {
                            policy: Box::new(policy),
                        },
                    },
                );
            }
            "file" => {
                let account = Account {
                    name: words.args[0].into(),
                    ..Account::default()
                };
                self.config
                    .policy
                    .accounts
                    .insert(account.name.clone(), account);
                self.configure();
            }
            "policy" => {
                let text = self.policy_table();
                self.out.push_str(&text);
            }
            "node" => self.new_node(&words),
            "submit" => {
                let spec = Box::new(spec(&words, self.now));
                let client_key = words.get("key").map(str::to_owned);
                self.command(&words, self.knowing(Command::Submit { spec, client_key }));
            }
            "gang" => {
                // A component for each part of the line between colons.
                let parts = line.split(" : ").enumerate();
                let parts = parts.map(|(at, part)| match at {
                    0 => spec(&Words::of(part), self.now),
                    _ => spec(&Words::of(&format!("gang {part}")), self.now),
                });
                let specs = parts.collect();
                let client_key = words.get("key").map(str::to_owned);
                let parts = Command::SubmitParts { specs, client_key };
                self.command(&words, self.knowing(parts));
            }
            "plan" => {
                self.plan();
            }
            "wait" => self.wait(words.args[0].parse().unwrap()),
            "show" => {
                let text = self.queue();
                self.out.push_str(&text);
            }
            "channels" => {
                let held = self
                    .state
                    .runs
                    .values()
                    .filter_map(|run| Some(format!("{} has {}\n", run.id, run.imex_channel?)));
                let text: String = held.collect();
                self.out.push_str(&text);
            }
            "nodes" => {
                let text = self.node_table();
                self.out.push_str(&text);
            }
            "past" => {
                let id = JobId(words.args[0].parse().unwrap());
                let state = words
                    .args
                    .get(1)
                    .and_then(|text| gmodel::JobState::parse(text))
                    .unwrap();
                let tasks = words
                    .get("tasks")
                    .map(|text| ArraySpec::parse(text).unwrap());
                let well = words
                    .get("well")
                    .map_or_else(Default::default, |text| text.parse().unwrap());
                self.past.push(ForgottenJob {
                    id,
                    state,
                    began: self.now,
                    tasks,
                    well,
                });
            }
            "preempt" => {
                let for_job = JobId(words.parse("for").unwrap());
                let mode = match words.get("mode") {
                    Some("cancel") => PreemptMode::Cancel,
                    Some("suspend") => PreemptMode::Suspend,
                    _ => PreemptMode::Requeue,
                };
                let heirs: Vec<RunId> = words
                    .get("heirs")
                    .iter()
                    .flat_map(|list| list.split(','))
                    .map(|run| run.parse().unwrap())
                    .collect();
                let preempts = words.args.iter().map(|run| Preempt {
                    heirs: heirs.clone(),
                    run: run.parse().unwrap(),
                    for_job,
                    mode,
                    lost_gpu_secs: 60,
                    why: "its guarantee".into(),
                    for_borrower: false,
                });
                let made_from = words.parse("from").map_or(self.state.seq, Seq);
                let plan = Plan {
                    made_from,
                    preempts: preempts.collect(),
                    ..Plan::default()
                };
                self.feed(Input::Plan { plan }).unwrap();
            }
            "classes" => {
                let of = |run: &crate::ctl::state::Run| {
                    format!(
                        "{} {}",
                        run.id,
                        run.class
                            .map_or("none".into(), |class| format!("{class:?}"))
                    )
                };
                let all: Vec<String> = self.state.runs.values().map(of).collect();
                writeln!(self.out, "{}", all.join(", ")).unwrap();
            }
            "idle" => {
                let text = self.idle_table();
                self.out.push_str(&text);
            }
            // The newest call of the idle program for a run: `told 1-1`, `told 1-1 no mail today`, `told 1-1 number=3`
            "told" => {
                let run: RunId = words.args[0].parse().unwrap();
                let order = idle_orders(&self.state)
                    .into_iter()
                    .find(|order| order.run == run);
                let number = words
                    .parse("number")
                    .or(order.map(|order| order.number))
                    .expect("its idle program was called");
                let failure = (words.args.len() > 1).then(|| words.args[1..].join(" "));
                self.feed(Input::IdleTold {
                    run,
                    number,
                    failure,
                })
                .unwrap();
            }
            "restart" => self.restart(self.state.rows()),
            "backup" => self.backup = Some(self.state.rows()),
            "restore" => {
                let rows = self.backup.clone().expect("a backup was made");
                self.restart(rows);
                self.command(
                    &words,
                    Command::Restore {
                        incarnation: 0,
                        next_job: 0,
                    },
                );
            }
            verb if self.state.node_by_name(verb).is_some() => self.node_line(verb, &words),
            _ => self.job_line(&words),
        }
    }

    pub(super) fn knowing(&self, command: Command) -> Command {
        match &self.past[..] {
            [] => command,
            past => Command::Knowing {
                past: past.to_vec(),
                asked: Box::new(command),
            },
        }
    }

    pub(super) fn job_line(&mut self, words: &Words) {
        let node = || {
            self.state
                .node_by_name(words.args[0])
                .map_or(NodeId(99), |node| node.id)
        };
        let reason = || words.args[1..].join(" ");
        let targets: Vec<Target> = words.args.iter().filter_map(|word| target(word)).collect();
        let command = match words.verb {
            "revoke" => Command::Token {
                change: TokenChange::Revoke(gmodel::TokenId(words.args[0].parse().unwrap())),
            },
            "used" => Command::Token {
                change: TokenChange::NoteUse {
                    tokens: vec![gmodel::TokenId(words.args[0].parse().unwrap())],
                    day: self.now,
                },
            },
            "make-token" => Command::Token {
                change: TokenChange::Make(Box::new(user_token(words, self.now))),
            },
            "cancel" => Command::Cancel {
                targets,
                signal: None,
            },
            "signal" => {
                let signal = words.get("signal").unwrap().parse().unwrap();
                Command::Cancel {
                    targets,
                    signal: Some(CancelSignal {
                        signal,
                        batch_only: false,
                        full: words.has("full"),
                    }),
                }
            }
            "hold" => Command::Hold {
                targets,
                reason: words.get("reason").unwrap_or("because").into(),
                for_owner: words.has("for_owner"),
            },
            "release" => Command::Release { targets },
            "suspend" => Command::Suspend { targets },
            "go-on" => Command::Resume { targets },
            "requeue" => Command::Requeue {
                targets,
                hold: words.has("held"),
            },
            "end" => Command::EndAllocation {
                target: targets[0].clone(),
                end: match words.parse("exit") {
                    Some(code) => AllocationEnd::Done(gmodel::ExitCode::exited(code)),
                    None => AllocationEnd::ClientGone,
                },
            },
            "step" => Command::StartStep {
                parts: targets
                    .into_iter()
                    .map(|target| StepPart {
                        target,
                        ask: step_ask(words),
                    })
                    .collect(),
            },
            "step-ends" => {
                let step = words.get("n").map_or(0, |n| n.parse().unwrap());
                Command::EndStep {
                    target: targets[0].clone(),
                    step,
                    exit: gmodel::ExitCode::default(),
                    used: None,
                }
            }
            "update" => {
                let number = |key: &str| words.get(key).map(|n| n.parse().unwrap());
                let change = JobChange {
                    limit_secs: number("time").map(Some),
                    nice: words.get("nice").map(|n| n.parse().unwrap()),
                    partition: words.get("partition").map(str::to_owned),
                    max_running: number("max"),
                    dependency: words
                        .get("dep")
                        .map(|text| (text != "none").then(|| text.parse().unwrap())),
                    name: words.get("name").map(str::to_owned),
                    account: words.get("account").map(str::to_owned),
                    qos: words.get("qos").map(str::to_owned),
                    reservation: words
                        .get("reservation")
                        .map(|name| if name == "none" { "" } else { name }.into()),
                    licences: words
                        .get("licences")
                        .map(|text| gmodel::licence::parse(text).unwrap()),
                    priority: words.parse("priority").map(Some),
                    borrow: words.get("borrow").map(|word| word == "yes"),
                    idle_exempt: words.get("exempt").map(|word| word == "yes"),
                    requeue: words.get("requeue").map(|word| word == "yes"),
                    deadline: words
                        .parse::<i64>("deadline")
                        .map(|secs| Some(self.now.plus_secs(secs))),
                    time_min_secs: words.parse("time_min").map(Some),
                    request: request_change(words),
                    ..JobChange::default()
                };
                self.knowing(Command::Update {
                    target: targets[0].clone(),
                    change,
                })
            }
            "drain" => match words.parse::<i64>("by") {
                Some(secs) => {
                    let deadline = self.now.plus_secs(secs);
                    Command::NodeDrainBy {
                        node: node(),
                        reason: reason(),
                        deadline,
                    }
                }
                None => Command::NodeDrain {
                    node: node(),
                    reason: reason(),
                },
            },
            "features" => {
                let list = |key| words.get(key);
                let list =
                    |key| list(key).map(|list: &str| list.split(',').map(str::to_owned).collect());
                Command::NodeFeatures {
                    node: node(),
                    available: list("available"),
                    active: list("active"),
                }
            }
            "resume" => Command::NodeResume { node: node() },
            "down" => Command::NodeDown {
                node: node(),
                reason: reason(),
                fenced: words.get("fenced").is_some(),
            },
            "remove" => Command::NodeRemove { node: node() },
            "token" => Command::MintToken {
                token: self.token(words),
            },
            "join" => {
                let (token_hash, name) = (words.args[0].to_owned(), words.args[1].to_owned());
                Command::Join { token_hash, name }
            }
            "RESTORE" => Command::Restore {
                incarnation: 0,
                next_job: 0,
            },
            verb => panic!("no verb {verb:?}"),
        };
        self.command(words, command);
    }

    pub(super) fn token(&self, words: &Words) -> JoinToken {
        JoinToken {
            hash: words.args[0].into(),
            role: if words.has("login") {
                Role::Login
            } else {
                Role::Compute
            },
            name: words.get("name").map(str::to_owned),
            expires: self.now.plus_secs(60),
            minted_by: "root".into(),
            admin: words.has("admin"),
        }
    }

    /// `node n1 h100:8 64c 512G feature=ib`
    pub(super) fn new_node(&mut self, words: &Words) {
        let name = words.args[0];
        let hash = format!("token of {name}");
        let token = JoinToken {
            hash: hash.clone(),
            role: Role::Compute,
            name: Some(name.into()),
            expires: self.now.plus_secs(60),
            minted_by: "root".into(),
            admin: false,
        };
        let root = || actor("root");
        self.feed(Input::Command {
            actor: root(),
            command: Command::MintToken { token },
        })
        .unwrap();
        let join = Command::Join {
            token_hash: hash,
            name: name.into(),
        };
        let Ok(Reply::Joined { node, .. }) = self.feed(Input::Command {
            actor: root(),
            command: join,
        }) else {
            panic!("{name} did not join");
        };
        self.lives.insert(
            node,
            NodeLife {
                boot: "b1".into(),
                spool: "s1".into(),
            },
        );
        self.inventories.insert(node, inventory(name, words));
        if !words.has("absent") {
            self.hello(node, Fence::default(), Vec::new());
        }
    }

    /// `n1 running 1-1`, `n1 exits 1-1 3`, `n1 hello boot=b2 1-1=running`, `n1 gone`, `n1 gpus 7`, `n1 told`
    pub(super) fn node_line(&mut self, name: &str, words: &Words) {
        let node = self.state.node_by_name(name).unwrap().id;
        let verb = words.args[0];
        let args = &words.args[1..];
        match verb {
            "gone" => {
                self.feed(Input::Node {
                    node,
                    report: NodeReport::Gone,
                })
                .unwrap();
            }
            "told" => {
                let told: Vec<String> = desired(&self.state, node)
                    .runs
                    .iter()
                    .map(|told| match &told.want {
                        RunTarget::Stop { why, .. } => {
                            let stop = self.state.run(told.run).and_then(|run| run.stop.as_ref());
                            let leaves =
                                stop.map_or(0, |stop| stop.leaves_by().since_secs(self.now));
                            let leaves =
                                if *why == StopCause::Preempted || *why == StopCause::Drained {
                                    format!(", gone in {leaves} s")
                                } else {
                                    String::new()
                                };
                            format!("{} stop ({why:?}{leaves})", told.run)
                        }
                        want => {
                            let sent = told
                                .signals
                                .iter()
                                .map(|s| format!(" signal {}: {}", s.number, s.signal));
                            let still = if told.suspended { " suspended" } else { "" };
                            format!("{} {want:?}{still}{}", told.run, sent.collect::<String>())
                        }
                    })
                    .collect();
                self.say(format_args!("{name} is told: {}", told.join(", ")));
            }
            "hello" => {
                let life = self.lives.get_mut(&node).unwrap();
                if let Some(boot) = words.get("boot") {
                    life.boot = boot.into();
                }
                if let Some(spool) = words.get("spool") {
                    life.spool = spool.into();
                }
                let fence = words.get("fence").map_or(Fence::default(), |text| {
                    let (incarnation, generation) = text.split_once('/').unwrap();
                    let number = |text: &str| text.parse().unwrap();
                    Fence {
                        incarnation: number(incarnation),
                        generation: number(generation),
                    }
                });
                let known = words.options.iter().filter_map(|(key, value)| {
                    Some(RunReport::new(
                        key.parse().ok()?,
                        phase(value, "", self.now),
                    ))
                });
                let runs = known.collect();
                self.hello(node, fence, runs);
            }
            "orders" => {
                let orders: Vec<String> = desired(&self.state, node)
                    .gpus
                    .iter()
                    .map(|order| format!("{} {:?}", order.uuid, order.what))
                    .collect();
                self.say(format_args!("{name} is ordered: {}", orders.join(", ")));
            }
            // All that it was ordered so far.
            "obeys" => {
                let fence = desired(&self.state, node).fence;
                self.feed(Input::Node {
                    node,
                    report: NodeReport::Obeyed { fence },
                })
                .unwrap();
            }
            // Its file is another, and its gpud was started anew.
            "has" => {
                self.inventories.insert(node, inventory(name, words));
                self.hello(node, Fence::default(), Vec::new());
            }
            "mark" => {
                let run: RunId = args[0].parse().unwrap();
                let number = args[1].parse().unwrap();
                let ago: i64 = words.parse("ago").unwrap_or(0);
                let mark = Some(CheckpointMark {
                    number,
                    at: self.now.plus_secs(-ago),
                    note: args[2..].join(" "),
                });
                let phase = RunPhase::Running { started: self.now };
                let runs = vec![RunReport {
                    run,
                    phase,
                    mark,
                    sent: None,
                }];
                self.feed(Input::Node {
                    node,
                    report: NodeReport::Runs { runs },
                })
                .unwrap();
            }
            // Watched for so long, and how long its idle GPUs have been that: `n1 idle 1-1 500 300,300`
            "idle" => {
                let idle_secs = args
                    .get(2)
                    .iter()
                    .flat_map(|list| list.split(','))
                    .map(|secs| secs.parse().unwrap())
                    .collect();
                let report = IdleReport {
                    run: args[0].parse().unwrap(),
                    watched_secs: args[1].parse().unwrap(),
                    idle_secs,
                };
                self.feed(Input::Node {
                    node,
                    report: NodeReport::Idle { runs: vec![report] },
                })
                .unwrap();
            }
            // Bytes of the run's image that are here, of all: `n1 pulls 1-1 620 1000`
            "pulls" => {
                let run = args[0].parse().unwrap();
                let report = PullReport {
                    run,
                    progress: PullProgress {
                        done_bytes: args[1].parse().unwrap(),
                        all_bytes: args[2].parse().unwrap(),
                        unpacks: false,
                    },
                };
                self.feed(Input::Node {
                    node,
                    report: NodeReport::Pulls { runs: vec![report] },
                })
                .unwrap();
                let pull = slowest_pull(&self.state, run);
                let text = pull.map_or("no pull".into(), |(node, pull)| {
                    format!("{} on {node}", pull.progress)
                });
                self.say(&text);
            }
            // The newest call of the fence program for it: `n1 fenced`, `n1 fenced no route to the BMC`, `n1 fenced number=3`
            "fenced" => {
                let order = fence_orders(&self.state)
                    .into_iter()
                    .find(|order| order.node == node);
                let number = words
                    .parse("number")
                    .or(order.map(|order| order.number))
                    .expect("its fence program was called");
                let failure = (!args.is_empty()).then(|| args.join(" "));
                self.feed(Input::Fenced {
                    node,
                    number,
                    failure,
                })
                .unwrap();
            }
            "gpus" => {
                let left: usize = args[0].parse().unwrap();
                self.inventories.get_mut(&node).unwrap().gpus.truncate(left);
                let inventory = self.inventories[&node].clone();
                self.feed(Input::Node {
                    node,
                    report: NodeReport::Inventory { inventory },
                })
                .unwrap();
            }
            verb => {
                let run: RunId = args[0].parse().unwrap();
                let phase = phase(verb, args.get(1).copied().unwrap_or(""), self.now);
                let runs = vec![RunReport::new(run, phase)];
                self.feed(Input::Node {
                    node,
                    report: NodeReport::Runs { runs },
                })
                .unwrap();
            }
        }
    }
}

/// `n`, `N`, `each` and `overlap=yes` as grun has them; `cpus`, `mem` in GiB, `gpus=Step:2` what the step is to have for itself.
fn step_ask(words: &Words) -> StepAsk {
    let number = |key: &str| words.get(key).map(|n| n.parse().unwrap());
    let gpus = words.get("gpus").map(|text| {
        let (per, ask) = text.split_once(':').unwrap();
        let per = match per {
            "Step" => GpuCountUnit::Step,
            "Node" => GpuCountUnit::Node,
            _ => GpuCountUnit::Task,
        };
        StepGpus::of(per, &GpuRequest::parse(ask).unwrap()).unwrap()
    });
    let share = StepShareRequest {
        cpus_per_task: number("cpus").unwrap_or(0),
        mem_bytes: words
            .get("mem")
            .map_or(0, |n| n.parse::<u64>().unwrap() << 30),
        mem_per_gpu_bytes: words
            .get("mem-per-gpu")
            .map_or(0, |n| n.parse::<u64>().unwrap() << 30),
        gpus,
        overlap: words.get("overlap").is_some(),
        ..StepShareRequest::default()
    };
    StepAsk {
        name: "hostname".into(),
        nodes: number("N"),
        ntasks: number("n"),
        ntasks_per_node: number("each"),
        share: (share != StepShareRequest::default()).then_some(share),
        connect: "grun".into(),
        ..StepAsk::default()
    }
}
