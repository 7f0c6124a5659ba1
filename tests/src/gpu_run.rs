//! What `make test-gpu` does with the GPUs of a machine, through a pool of one node: what is found, what the fence lets through, what
//! is sampled, whether the checks pass, whether a part is held to its part. The same steps run on simulated GPUs in a test. Never
//! touches MIG, clocks or resets; sets a compute mode only where it is told that it may.

use crate::pool::{CommandOutput, Pool};
use gwire::api::{GpuRow, RunRow};
use serde_json::Value;
use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// A board draws no less when it computes, and none draws more.
const PLAUSIBLE_WATTS: (f64, f64) = (15.0, 1500.0);
/// Of the multiprocessors' time, while one program computes without a pause.
const BUSY_PERCENT: f64 = 50.0;
/// From the submission of a job to its start, with a check under way.
const GIVES_WAY_WITHIN: Duration = Duration::from_secs(15);
const PROC_GPUS: &str = "/proc/driver/nvidia/gpus";

/// Where the GPUs under test come from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum GpuSource {
    Real,
    Simulated,
}

/// What a run may do besides looking, allocating and computing.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Permissions {
    /// Sets a GPU to EXCLUSIVE_PROCESS for the time of a job, and starts NVIDIA's MPS daemon.
    pub mps: bool,
}

impl Permissions {
    /// `mps`, or nothing.
    ///
    /// # Errors
    /// Another word, with those there are.
    pub fn read(words: &str) -> Result<Self, String> {
        let mut may = Self::default();
        for word in words.split([',', ' ']).filter(|word| !word.is_empty()) {
            match word {
                "mps" => may.mps = true,
                _ => {
                    return Err(format!(
                        "GPUPOOL_TEST_GPU_MAY: {word:?} is none of mps. No step touches MIG, clocks or resets, so none can be allowed"
                    ));
                }
            }
        }
        Ok(may)
    }
}

/// How one step ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Outcome {
    Passed(String),
    Failed(String),
    NotRun(String),
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Step {
    pub name: &'static str,
    pub outcome: Outcome,
}

type Finding = Result<String, String>;

/// An error that begins so says why a step cannot be run on this machine: what it lacks is no fault of a GPU or of gpupool.
const NOT_HERE: &str = "not here: ";

/// A pool on the GPUs under test.
pub struct GpuRun<'a> {
    pool: &'a Pool,
    kind: GpuSource,
    may: Permissions,
    /// Why runs are not kept apart: containers often may not make cgroups or load device programs. Empty where they are.
    unfenced: String,
}

impl<'a> GpuRun<'a> {
    /// Sets up the pool for the steps: looks each second, and checks only when it is told to. Where runs cannot be fenced in, they go without,
    /// and the steps about the fence are not run.
    pub fn new(pool: &'a Pool, kind: GpuSource, may: Permissions) -> Self {
        let path = pool.config("gpuctld");
        let text = fs::read_to_string(&path).unwrap();
        fs::write(
            &path,
            format!("{text}\n[diagnostics]\nprogram = \"builtin\"\nidle_after = \"7-0\"\n"),
        )
        .unwrap();
        assert_eq!(pool.run("gadm", &["reload"]).code, 0);
        pool.reconfigure("node1", "gpu_watch_secs = 1\n");
        pool.wait_until("node1 reports", || {
            pool.node("node1").state == "IDLE" || !pool.node("node1").unfit.is_empty()
        });
        let unfenced = pool.node("node1").unfit;
        if !unfenced.is_empty() {
            let path = pool.config("node1");
            let text = fs::read_to_string(&path).unwrap();
            fs::write(
                &path,
                text.replace("isolation = \"fence\"", "isolation = \"none\""),
            )
            .unwrap();
            pool.reconfigure("node1", "");
        }
        pool.wait_until(&format!("node1 is idle (it was not: {unfenced})"), || {
            pool.node("node1").state == "IDLE"
        });
        Self {
            pool,
            kind,
            may,
            unfenced,
        }
    }

    /// Every step, each told as soon as it is done.
    #[allow(clippy::type_complexity)]
    pub fn run(&self, told: &mut dyn FnMut(&Step)) -> Vec<Step> {
        let steps: [(&'static str, &dyn Fn(&Self) -> Finding); 8] = [
            ("discovery", &Self::discovery),
            ("device numbers", &Self::device_numbers),
            ("fence of device files", &Self::device_fence),
            ("fence seen from CUDA", &Self::cuda_fence),
            ("numbers of GPUs", &Self::numbers),
            ("use under load, energy", &Self::load),
            ("diagnostics", &Self::diagnostics),
            ("a check gives way", &Self::gives_way),
        ];
        let mut done = Vec::new();
        let mut add = |name, outcome| {
            let step = Step { name, outcome };
            told(&step);
            done.push(step);
        };
        for (name, step) in steps {
            add(name, self.outcome(step));
        }
        let mps = match self.may.mps {
            true => self.outcome(&Self::mps),
            false => Outcome::NotRun(
                "it sets the GPU's compute mode: allow it with GPUPOOL_TEST_GPU_MAY=mps".into(),
            ),
        };
        add("MPS cap", mps);
        done
    }

    /// The pool's own waits panic.
    fn outcome(&self, step: &dyn Fn(&Self) -> Finding) -> Outcome {
        match catch_unwind(AssertUnwindSafe(|| step(self))) {
            Ok(Ok(text)) => Outcome::Passed(text),
            Ok(Err(text)) => match text.strip_prefix(NOT_HERE) {
                Some(why) => Outcome::NotRun(why.to_owned()),
                None => Outcome::Failed(text),
            },
            Err(panic) => {
                let text = panic
                    .downcast_ref::<String>()
                    .cloned()
                    .or_else(|| panic.downcast_ref::<&str>().map(|text| (*text).to_owned()));
                Outcome::Failed(text.unwrap_or_else(|| "it panicked".into()))
            }
        }
    }

    // ---- steps ----

    fn discovery(&self) -> Finding {
        let found: BTreeSet<String> = self.gpus().into_iter().map(|gpu| gpu.uuid).collect();
        let cuda = uuids(&self.gcheck(&["list"]).out);
        let driver: BTreeSet<String> = self.minors().into_keys().collect();
        let wanted = format!("gpud {found:?}, CUDA {cuda:?}, driver {driver:?}");
        // A container sees all GPUs of its host in /proc, or none, and has some of them.
        ensure(
            !found.is_empty() && found == cuda && (driver.is_empty() || found.is_subset(&driver)),
            || wanted,
        )?;
        let faults: Vec<String> = self
            .gpus()
            .into_iter()
            .filter(|gpu| !gpu.fault.is_empty())
            .map(|gpu| format!("{} {}", gpu.uuid, gpu.fault))
            .collect();
        ensure(faults.is_empty(), || format!("out of service: {faults:?}"))?;
        let also = match driver.len() {
            0 => format!("; {PROC_GPUS} is not here to compare with"),
            all if all > found.len() => format!(
                "; the driver has {} more that this machine was not given",
                all - found.len()
            ),
            _ => String::new(),
        };
        Ok(format!(
            "{} GPUs, by gpud, CUDA and the driver alike: {}{also}",
            found.len(),
            self.types()
        ))
    }

    fn device_numbers(&self) -> Finding {
        let minors = self.minors();
        ensure(!minors.is_empty(), || {
            format!("{NOT_HERE}{PROC_GPUS} does not show the driver's minors")
        })?;
        for gpu in self.gpus() {
            let path = self.dev_dir().join(format!("nvidia{}", gpu.minor));
            ensure(minors.get(&gpu.uuid) == Some(&gpu.minor), || {
                format!(
                    "{} has minor {} by gpud, {:?} by the driver",
                    gpu.uuid,
                    gpu.minor,
                    minors.get(&gpu.uuid)
                )
            })?;
            ensure(path.exists(), || format!("{} is not there", path.display()))?;
        }
        Ok(format!("minors {:?}", minors.values().collect::<Vec<_>>()))
    }

    /// A job opens every device file of a GPU: its own it may.
    fn device_fence(&self) -> Finding {
        self.has_fence()?;
        // Those that have a file here: opening another would make one.
        let mut all: Vec<u32> = self
            .gpus()
            .iter()
            .map(|gpu| gpu.minor)
            .chain(self.minors().into_values())
            .collect();
        all.sort_unstable();
        all.dedup();
        all.retain(|minor| self.dev_dir().join(format!("nvidia{minor}")).exists());
        let words: Vec<String> = all.iter().map(u32::to_string).collect();
        // A simulated device has no driver: the kernel's answer for it says nothing about the fence.
        let look = format!(
            "for m in {}; do e=$( (exec 3<>{}/nvidia$m) 2>&1 ); case \"$e\" in *'not permitted'*) ;; *) echo open $m;; esac; done",
            words.join(" "),
            self.dev_dir().display()
        );
        for (gpus, job) in [(0, self.job("0", &look)?), (1, self.job("1", &look)?)] {
            let open: Vec<&str> = job
                .lines()
                .filter_map(|line| line.strip_prefix("open "))
                .collect();
            ensure(open.len() == gpus, || {
                format!("a job with {gpus} GPUs opens those with minors {open:?} of {all:?}")
            })?;
        }
        Ok(format!(
            "of {} a job with one GPU opens one, a job without none",
            all.len()
        ))
    }

    /// A CUDA program that does not heed `CUDA_VISIBLE_DEVICES` finds its own GPU and no other.
    fn cuda_fence(&self) -> Finding {
        self.has_fence()?;
        let list = format!(
            "echo own $GSUB_GPU_UUIDS; unset CUDA_VISIBLE_DEVICES; {}",
            self.command(&["list"])
        );
        let none = self.job("0", &format!("{list} || echo ended with $?"))?;
        ensure(
            uuids(&none).is_empty() && none.contains("ended with"),
            || format!("a job without GPUs: {none:?}"),
        )?;
        let one = self.job("1", &list)?;
        let own = one
            .lines()
            .find_map(|line| line.strip_prefix("own "))
            .unwrap_or_default()
            .to_owned();
        ensure(uuids(&one) == BTreeSet::from([own.clone()]), || {
            format!("its own is {own}, it finds {:?}", uuids(&one))
        })?;
        let Some(other) = self.gpus().into_iter().find(|gpu| gpu.uuid != own) else {
            return Ok("a job without GPUs finds none; this machine has no second GPU".into());
        };
        // It may name another one, and does not get it.
        let other = format!("o={own}; [ $GSUB_GPU_UUIDS = $o ] && o={}", other.uuid);
        let named = self.job(
            "1",
            &format!(
                "{other}; CUDA_VISIBLE_DEVICES=$o {} || echo refused",
                self.command(&["list"])
            ),
        )?;
        ensure(
            uuids(&named).is_empty() && named.contains("refused"),
            || format!("it asks for another and finds {named:?}"),
        )?;
        Ok("a job finds its own GPU and no other, also when it names one".into())
    }

    /// CUDA finds under the numbers that a job is given the GPUs that it was given: each GPU alone, and a task bound to the last of all.
    fn numbers(&self) -> Finding {
        self.has_fence()?;
        let gpus = self.gpus();
        let (all, list) = (gpus.len().to_string(), self.command(&["list"]));
        let script = format!(
            "echo $GSUB_GPU_UUIDS $CUDA_VISIBLE_DEVICES; {list}; until [ -e numbers.stop ]; do sleep 0.1; done"
        );
        let alone: Vec<u64> = gpus.iter().map(|_| self.submit("1", &script)).collect();
        alone
            .iter()
            .for_each(|id| drop(self.pool.wait_state(*id, gmodel::JobState::Running)));
        self.pool.write("numbers.stop", "");
        for id in alone {
            self.ended_well(id)?;
            let said = self.pool.file(&format!("{id}.txt"));
            let told = said.lines().next().unwrap_or_default();
            let found: Vec<String> = uuids(&said).into_iter().collect();
            ensure(told == format!("{} 0", found.join(",")), || {
                format!("a job with one GPU is told {told:?}, and CUDA finds {found:?}")
            })?;
        }
        let grun = crate::pool::programs().join("grun").display().to_string();
        let bound = format!(
            "echo $GSUB_GPU_UUIDS $CUDA_VISIBLE_DEVICES; {grun} -n1 --gpu-bind=map_gpu:{} {list}",
            gpus.len() - 1
        );
        let said = self.job(&all, &bound)?;
        let (own, numbers) = said
            .lines()
            .next()
            .and_then(|line| line.split_once(' '))
            .unwrap_or_default();
        let found: Vec<String> = uuids(&said).into_iter().collect();
        ensure(
            own.split(',').next_back() == found.first().map(String::as_str) && found.len() == 1,
            || format!("a task bound to the last of {own} finds {found:?}"),
        )?;
        Ok(format!(
            "each of {all} is number 0 to a job of its own; of all, {numbers}, a bound task finds the last"
        ))
    }

    fn load(&self) -> Finding {
        let secs = if self.kind == GpuSource::Real { 30 } else { 6 };
        if self.kind == GpuSource::Simulated {
            self.simulate("util=96 power=450");
        }
        let begun = Instant::now();
        let id = self.submit("1", &self.command(&["load", "--secs", &secs.to_string()]));
        self.ended_well(id)?;
        let took = begun.elapsed().as_secs_f64();
        if self.kind == GpuSource::Simulated {
            self.simulate("util=0 power=70");
        }
        let run = self.attempt(id)?;
        let used = run.gpu_use.ok_or("its use was not sampled")?;
        let busy = used.busy_percent.ok_or("nobody told how busy it was")?;
        ensure(busy >= BUSY_PERCENT, || {
            format!("busy {busy:.0}% of the time, and it computed without a pause")
        })?;
        let (joules, sampled) = (used.energy_joules as f64, used.sampled_secs as f64);
        let (least, most) = (
            PLAUSIBLE_WATTS.0 * (sampled - 2.0).max(1.0),
            PLAUSIBLE_WATTS.1 * (took + 2.0),
        );
        ensure((least..=most).contains(&joules), || {
            format!("{joules} J in {sampled} s")
        })?;
        Ok(format!(
            "{secs} s of arithmetic: {busy:.0}% busy, {:.0} W at most, {joules} J, {} s sampled",
            used.power_peak_watts, used.sampled_secs
        ))
    }

    fn diagnostics(&self) -> Finding {
        let mut words = Vec::new();
        for gpu in self.gpus() {
            let said = self
                .pool
                .run("gadm", &["gpu", "check", &format!("node1:{}", gpu.index)]);
            let clean = said.code == 0
                && !said.out.contains("failed")
                && said.out.contains("arith.int")
                && said.out.contains("memory passed");
            ensure(clean, || {
                format!("GPU {}: {} {}", gpu.index, said.out.trim(), said.err.trim())
            })?;
            words.push(said.out.trim().replace('\n', " "));
        }
        Ok(words.join(" | "))
    }

    /// How long a job waits for a GPU that is under check.
    fn gives_way(&self) -> Finding {
        if self.kind == GpuSource::Simulated {
            self.simulate("fault check-takes 600000");
        }
        // Late enough that it has the memory of a real one; a fast board has done before, and is asked sooner.
        let waits: &[u64] = if self.kind == GpuSource::Real {
            &[8, 4, 2, 0]
        } else {
            &[0]
        };
        let at_it = waits
            .iter()
            .any(|secs| self.check_is_under_way_after(*secs));
        ensure(at_it, || {
            format!("{NOT_HERE}a check of this GPU ends before a job can come")
        })?;
        let begun = Instant::now();
        let id = self.submit(&self.gpus().len().to_string(), "true");
        self.pool
            .wait_until("the job started", || self.pool.job(id).start_time.is_some());
        let waited = begun.elapsed();
        if self.kind == GpuSource::Simulated {
            self.simulate("fault check-takes 0");
        }
        self.ended_well(id)?;
        ensure(waited <= GIVES_WAY_WITHIN, || {
            format!("the job waited {} ms", waited.as_millis())
        })?;
        Ok(format!(
            "a job on all GPUs started {} ms after it was submitted",
            waited.as_millis()
        ))
    }

    fn check_is_under_way_after(&self, secs: u64) -> bool {
        self.pool.wait_idle("node1");
        self.pool
            .wait_until("the check before has ended", || !self.is_under_check());
        if self
            .pool
            .run("gadm", &["gpu", "check", "node1:0", "--no-wait"])
            .code
            != 0
        {
            return false;
        }
        std::thread::sleep(Duration::from_secs(secs));
        self.pool.wait_until("the check begins or has ended", || {
            self.is_under_check() || secs > 0
        });
        self.is_under_check()
    }

    fn mps(&self) -> Finding {
        let shared = self.gpus().into_iter().find(|gpu| gpu.mps);
        let gpu = shared.ok_or_else(|| {
            format!(
                "{NOT_HERE}no GPU can be shared by MPS: {}",
                self.pool.node("node1").no_mps
            )
        })?;
        self.partition("gpu_sharing = \"mps\"\n");
        let (little, much) = (256.min(gpu.memory_mib / 8), gpu.memory_mib * 3 / 4);
        let hold = |mib: u64| self.command(&["hold", "--mib", &mib.to_string()]);
        let said = self.job(
            "0.5",
            &format!(
                "{}; {}; echo; unset CUDA_MPS_PIPE_DIRECTORY; {} && echo got round it; true",
                hold(little),
                hold(much),
                hold(little)
            ),
        );
        self.partition("");
        let said = said?;
        ensure(said.contains(&format!("\"held_mib\":{little}")), || {
            format!("{little} MiB of its half are not given: {said:?}")
        })?;
        ensure(said.contains(&format!("\"refused_mib\":{much}")), || {
            format!("{much} MiB are not refused to a half: {said:?}")
        })?;
        ensure(!said.contains("got round it"), || {
            format!("a process without the server has a context: {said:?}")
        })?;
        Ok(format!(
            "half of a GPU gets {little} MiB and not {much}; nobody gets round the server"
        ))
    }

    // ---- what they use ----

    fn has_fence(&self) -> Result<(), String> {
        ensure(self.unfenced.is_empty(), || {
            format!("{NOT_HERE}runs cannot be fenced in: {}", self.unfenced)
        })
    }

    fn gpus(&self) -> Vec<GpuRow> {
        self.pool.node("node1").gpus
    }

    /// `h100 x8`
    pub fn types(&self) -> String {
        let mut counts: BTreeMap<String, u32> = BTreeMap::new();
        self.gpus()
            .into_iter()
            .for_each(|gpu| *counts.entry(gpu.gpu_type).or_default() += 1);
        counts
            .into_iter()
            .map(|(kind, count)| format!("{kind} x{count}"))
            .collect::<Vec<_>>()
            .join(", ")
    }

    /// Versions of the driver and of its CUDA, for the record.
    pub fn versions(&self) -> String {
        let list = self.gcheck(&["list"]).out;
        let cuda = list
            .lines()
            .find_map(|line| {
                Some(
                    serde_json::from_str::<Value>(line).ok()?["cuda"]
                        .as_str()?
                        .to_owned(),
                )
            })
            .unwrap_or_default();
        let driver = fs::read_to_string("/proc/driver/nvidia/version")
            .ok()
            .filter(|_| self.kind == GpuSource::Real);
        let driver = driver.and_then(|text| {
            text.split_whitespace()
                .find(|word| word.contains('.') && word.starts_with(|c: char| c.is_ascii_digit()))
                .map(str::to_owned)
        });
        format!("{} / {cuda}", driver.unwrap_or_else(|| "simulated".into()))
    }

    /// Minors by UUID, as the driver has them, which is not asked through NVML.
    fn minors(&self) -> BTreeMap<String, u32> {
        match self.kind {
            GpuSource::Real => driver_minors(Path::new(PROC_GPUS)),
            GpuSource::Simulated => {
                let text = fs::read(self.pool.dir.join("node1/nvml/state.json")).unwrap();
                let state: Value = serde_json::from_slice(&text).unwrap();
                let gpus = state["gpus"].as_array().unwrap();
                gpus.iter()
                    .map(|gpu| {
                        (
                            gpu["uuid"].as_str().unwrap().to_owned(),
                            gpu["minor"].as_u64().unwrap() as u32,
                        )
                    })
                    .collect()
            }
        }
    }

    fn dev_dir(&self) -> PathBuf {
        match self.kind {
            GpuSource::Real => "/dev".into(),
            GpuSource::Simulated => self.pool.dir.join("node1/dev"),
        }
    }

    /// gcheck as a job calls it.
    fn command(&self, words: &[&str]) -> String {
        let program = crate::pool::programs().join("gcheck");
        let mut line = vec![program.display().to_string()];
        line.extend(words.iter().map(|word| (*word).to_owned()));
        if self.kind == GpuSource::Simulated {
            line.extend([
                "--size".into(),
                "small".into(),
                "--library".into(),
                self.pool
                    .dir
                    .join("node1/nvml/libnvidia_ml_sim.so")
                    .display()
                    .to_string(),
            ]);
        }
        line.join(" ")
    }

    /// gcheck outside of any fence.
    fn gcheck(&self, words: &[&str]) -> CommandOutput {
        self.pool.run_shell(&self.command(words))
    }

    fn submit(&self, gpus: &str, script: &str) -> u64 {
        let mut words = vec!["-o", "%j.txt", "--time", "10"];
        if gpus != "0" {
            words.extend(["--gpus", gpus]);
        }
        words.extend(["--wrap", script]);
        self.pool.gsub(&words)
    }

    /// Runs a script as a job, and answers what it wrote.
    fn job(&self, gpus: &str, script: &str) -> Finding {
        let id = self.submit(gpus, script);
        self.ended_well(id)?;
        Ok(self.pool.file(&format!("{id}.txt")))
    }

    fn ended_well(&self, id: u64) -> Result<(), String> {
        let end = Instant::now() + Duration::from_secs(300);
        while !self.pool.job(id).state.is_final() {
            ensure(Instant::now() < end, || {
                format!("job {id} does not end: {:?}", self.pool.job(id))
            })?;
            std::thread::sleep(Duration::from_millis(50));
        }
        let job = self.pool.job(id);
        self.pool.wait_idle("node1");
        ensure(job.state == gmodel::JobState::Completed, || {
            format!(
                "job {id} is {:?}: {}",
                job.state,
                self.pool.file(&format!("{id}.txt"))
            )
        })
    }

    fn attempt(&self, id: u64) -> Result<RunRow, String> {
        self.pool
            .attempts(id)
            .pop()
            .ok_or_else(|| format!("job {id} has no run on record"))
    }

    fn is_under_check(&self) -> bool {
        let said = self.pool.run("gnodes", &["--health", "--json"]);
        serde_json::from_str::<Value>(&said.out).is_ok_and(|list| {
            list["gpus"]
                .as_array()
                .into_iter()
                .flatten()
                .any(|gpu| gpu["ordered"] == "check")
        })
    }

    /// Lines more for the one partition.
    fn partition(&self, lines: &str) {
        let path = self.pool.dir.join("gpuctld/partitions.d/main.toml");
        let text = fs::read_to_string(&path).unwrap();
        let own: String = text
            .lines()
            .filter(|line| !line.starts_with("gpu_sharing"))
            .map(|line| format!("{line}\n"))
            .collect();
        fs::write(&path, format!("{own}{lines}")).unwrap();
        assert_eq!(self.pool.run("gadm", &["reload"]).code, 0);
    }

    /// A fault or readings of every simulated GPU.
    fn simulate(&self, words: &str) {
        for slot in 0..self.gpus().len() {
            let gpu = format!("gpu{slot}");
            let words: Vec<&str> = match words.strip_prefix("fault ") {
                Some(fault) => fault.split(' ').collect(),
                None => ["set"].into_iter().chain(words.split(' ')).collect(),
            };
            let said = self
                .pool
                .sandbox(&[&["fault", "node1", gpu.as_str()], &words[..]].concat());
            assert_eq!(said.code, 0, "{said:?}");
        }
    }
}

/// The lines for docs/gpu-runs.md.
pub fn record(kind: GpuSource, types: &str, versions: &str, date: &str, steps: &[Step]) -> String {
    let mut text = format!(
        "### {date}, {types}{}\n\nDriver and CUDA {versions}.\n\n| step | outcome |\n|---|---|\n",
        if kind == GpuSource::Simulated {
            " (simulated)"
        } else {
            ""
        }
    );
    for Step { name, outcome } in steps {
        let shown = match outcome {
            Outcome::Passed(words) => format!("passed: {words}"),
            Outcome::Failed(words) => format!("**failed**: {words}"),
            Outcome::NotRun(words) => format!("not run: {words}"),
        };
        text += &format!(
            "| {name} | {} |\n",
            shown.replace('|', "\\|").replace('\n', " ")
        );
    }
    text
}

/// `Device Minor` and `GPU UUID` of each `information` file the driver shows.
pub fn driver_minors(gpus: &Path) -> BTreeMap<String, u32> {
    let files = fs::read_dir(gpus)
        .into_iter()
        .flatten()
        .flatten()
        .map(|entry| entry.path().join("information"));
    let field = |text: &str, name: &str| {
        text.lines().find_map(|line| {
            Some(
                line.split_once(':')
                    .filter(|(key, _)| key.trim() == name)?
                    .1
                    .trim()
                    .to_owned(),
            )
        })
    };
    files
        .filter_map(|file| fs::read_to_string(file).ok())
        .filter_map(|text| {
            Some((
                field(&text, "GPU UUID")?,
                field(&text, "Device Minor")?.parse().ok()?,
            ))
        })
        .collect()
}

fn uuids(lines: &str) -> BTreeSet<String> {
    lines
        .lines()
        .filter_map(|line| {
            Some(
                serde_json::from_str::<Value>(line).ok()?["uuid"]
                    .as_str()?
                    .to_owned(),
            )
        })
        .collect()
}

fn ensure(holds: bool, words: impl FnOnce() -> String) -> Result<(), String> {
    if holds { Ok(()) } else { Err(words()) }
}
