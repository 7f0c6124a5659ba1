//! gpud.toml: where the controller is, where things lie, what this machine declares of itself.
//!
//! Every mistake is shown at once, with file, line and the nearest key that exists. Discovery is the truth: nothing
//! here can name a GPU into being.

use gmodel::parallel::PortRange;
use gmodel::suggest::did_you_mean;
use gsys::device_fence::DeviceRule;
use std::collections::BTreeMap;
use std::fmt::Write;
use std::path::{Path, PathBuf};
use toml::{Spanned, Value};

/// Where gpud looks without `--config`.
pub const DEFAULT_FILE: &str = "/etc/gpupool/gpud.toml";
pub const DEFAULT_STATE_DIR: &str = "/var/lib/gpupool/gpud";

/// The daemon's configuration, defaults filled in.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Config {
    /// `HOST:PORT` of the controller's node port.
    pub controller: String,
    /// Key, certificate, CA.
    pub state_dir: PathBuf,
    /// Runs with their records and logs: survives reboots.
    pub spool_dir: PathBuf,
    /// `gpud.sock` for local users.
    pub run_dir: PathBuf,
    /// Must be the certificate's, when given.
    pub name: Option<String>,
    pub features: Vec<String>,
    pub isolation: Isolation,
    /// Path of this daemon's subtree in the cgroup trees.
    pub cgroup_tag: String,
    /// `None`: the driver's.
    pub nvml_lib: Option<PathBuf>,
    /// Where the device files of GPUs are.
    pub dev_dir: PathBuf,
    /// Where specs of devices for containers lie; a later directory comes before an earlier one.
    pub cdi_dirs: Vec<String>,
    pub gpus: GpuDiscovery,
    /// Changes of the catalogue of signs of sick GPUs; `None`: gpupool's own.
    pub gpu_signs: Option<PathBuf>,
    /// Run on a GPU before it goes back into service; `None`: that it answers and shows no sign is enough.
    pub gpu_burn_in: Option<PathBuf>,
    /// Resets a GPU, and has the machine boot; `None`: that is people's affair.
    pub gpu_reset: Option<PathBuf>,
    pub node_reboot: Option<PathBuf>,
    /// NVIDIA's program that shares a GPU among the processes of a user.
    pub mps_control: PathBuf,
    /// gpupool's own program that checks a GPU.
    pub gcheck: PathBuf,
    /// The CUDA driver's library, for it; `None`: the driver's.
    pub cuda_lib: Option<PathBuf>,
    pub gpu_check_size: CheckSize,
    /// Between a first and a second step of a GPU's repair; doubled each time.
    pub gpu_repair_pause_secs: u32,
    /// Seconds between two looks at all GPUs.
    pub gpu_watch_secs: u32,
    /// Where dcgm-exporter and jobstats read which job has which GPU; `None`: it is not told.
    pub dcgm_job_dir: Option<PathBuf>,
    pub jobstats_dir: Option<PathBuf>,
    /// Links of Slurm's names, last in the PATH of jobs where the directory is there.
    pub slurm_names: PathBuf,
    /// The kernel log that is read for Xids besides NVML; `None` where `nvml_lib` names a library.
    pub kernel_log: Option<PathBuf>,
    /// Declared, not found: counted by the scheduler and enforced as weights only.
    pub cpus: Option<u32>,
    pub mem_bytes: Option<u64>,
    /// Whether a run has CPUs of its own.
    pub cpu_binding: CpuBindingMode,
    /// Where the kernel tells of CPUs and memory nodes.
    pub cpu_dir: PathBuf,
    /// Most processes and threads of one run.
    pub pids_max: u64,
    /// Most that images of one user take here, those in use aside.
    pub image_cache_bytes: u64,
    /// For a registry that sends nothing.
    pub registry_timeout_secs: u32,
    pub gstepd: PathBuf,
    /// Seconds between two looks at the fences of live runs.
    pub fence_audit_secs: u32,
    /// `NAME=value` for every job of this node.
    pub environment: Vec<String>,
    /// The PAM service of the session that each run opens; empty for none.
    pub pam_service: String,
    /// Each step and each batch script gets one of them for itself.
    pub rendezvous_ports: PortRange,
    pub devices: DevicePolicy,
}

/// How jobs are kept apart.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Isolation {
    /// Cgroups and the device fence; needs root.
    #[default]
    Fence,
    /// No isolation, for a private workstation. Each listing shows it.
    None,
}

impl Isolation {
    pub fn name(self) -> &'static str {
        match self {
            Self::Fence => "fence",
            Self::None => "none",
        }
    }
}

/// How much gpupool's own checks compute, and how much memory is tested.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum CheckSize {
    /// For a GPU.
    #[default]
    Full,
    /// For a simulated one.
    Small,
}

impl CheckSize {
    pub fn name(self) -> &'static str {
        match self {
            Self::Full => "full",
            Self::Small => "small",
        }
    }
}

/// How the CPUs of a node are divided.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum CpuBindingMode {
    /// Each run may use all CPUs, and gets its part when the CPUs are busy.
    #[default]
    Weight,
    /// Each run has its own, and no others.
    Cpuset,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum GpuDiscovery {
    #[default]
    Auto,
    /// A CPU node whatever is in it.
    None,
}

/// `[devices]`: what a site adds to the fence of every run.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DevicePolicy {
    pub default_deny: bool,
    pub deny_extra: Vec<DeviceRule>,
}

/// All mistakes of a file, one a line.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct ConfigError(pub String);

const KEYS: [&str; 39] = [
    "controller",
    "state_dir",
    "spool_dir",
    "run_dir",
    "name",
    "features",
    "isolation",
    "cgroup_tag",
    "nvml_lib",
    "dev_dir",
    "cdi_dirs",
    "gpus",
    "cpus",
    "mem_bytes",
    "pids_max",
    "image_cache_bytes",
    "registry_timeout_secs",
    "gstepd",
    "fence_audit_secs",
    "environment",
    "pam_service",
    "devices",
    "gpu_signs",
    "gpu_burn_in",
    "gpu_reset",
    "node_reboot",
    "gpu_repair_pause_secs",
    "dcgm_job_dir",
    "jobstats_dir",
    "gpu_watch_secs",
    "kernel_log",
    "slurm_names",
    "mps_control",
    "gcheck",
    "cuda_lib",
    "gpu_check_size",
    "cpu_binding",
    "cpu_dir",
    "rendezvous_ports",
];
const DEVICE_KEYS: [&str; 2] = ["default", "deny_extra"];

/// Of the configuration.
pub const MAX_FILE_BYTES: u64 = 4 << 20;

impl Config {
    /// The directory of the sockets on which jobs set checkpoint marks.
    pub fn marks_dir(&self) -> PathBuf {
        self.run_dir.join("marks")
    }

    /// Reads and checks a file.
    pub fn load(path: &Path) -> Result<Self, ConfigError> {
        let text = gsys::small_file::read_text(path, MAX_FILE_BYTES).map_err(|e| {
            ConfigError(format!(
                "gpud: {}: {e}. Name the configuration with --config FILE",
                path.display()
            ))
        })?;
        Self::parse(&text, &path.display().to_string())
    }

    /// `name` of the file is for messages only.
    pub fn parse(text: &str, name: &str) -> Result<Self, ConfigError> {
        let entries: BTreeMap<Spanned<String>, Spanned<Value>> = match toml::from_str(text) {
            Ok(entries) => entries,
            Err(e) => {
                let at = e.span().map_or(0, |span| span.start);
                return Err(ConfigError(complaint(text, name, at, e.message())));
            }
        };
        let mut file = File {
            text,
            name,
            entries,
            problems: Vec::new(),
        };
        file.refuse_unknown(&KEYS);
        let config = file.read_keys();
        match file.problems.is_empty() {
            true => Ok(config),
            false => Err(ConfigError(file.problems.join("\n"))),
        }
    }
}

/// A file being read: keys are taken out of it, complaints gather.
struct File<'a> {
    text: &'a str,
    name: &'a str,
    entries: BTreeMap<Spanned<String>, Spanned<Value>>,
    problems: Vec<String>,
}

impl File<'_> {
    fn read_keys(&mut self) -> Config {
        let controller = self.string("controller").unwrap_or_else(|| {
            let text = "controller = \"HOST:PORT\" is missing: where gpuctld listens for nodes";
            self.problems.push(complaint(self.text, self.name, 0, text));
            String::new()
        });
        if !controller.is_empty()
            && controller
                .rsplit_once(':')
                .is_none_or(|(_, port)| port.parse::<u16>().is_err())
        {
            self.complain("controller", &format!("{controller:?} is not HOST:PORT"));
        }
        let isolation = match self.word("isolation", &["fence", "none"]) {
            Some("none") => Isolation::None,
            _ => Isolation::Fence,
        };
        let cpu_binding = match self.word("cpu_binding", &["weight", "cpuset"]) {
            Some("cpuset") => CpuBindingMode::Cpuset,
            _ => CpuBindingMode::Weight,
        };
        if cpu_binding == CpuBindingMode::Cpuset && isolation == Isolation::None {
            self.complain(
                "cpu_binding",
                "\"cpuset\" needs cgroups, and isolation = \"none\" makes none",
            );
        }
        let gpus = match self.word("gpus", &["auto", "none"]) {
            Some("none") => GpuDiscovery::None,
            _ => GpuDiscovery::Auto,
        };
        let gpu_check_size = match self.word("gpu_check_size", &["full", "small"]) {
            Some("small") => CheckSize::Small,
            _ => CheckSize::Full,
        };
        // A configured library is a simulated driver, which writes nothing to the machine's log.
        let machines = self
            .value("nvml_lib")
            .is_none()
            .then(|| PathBuf::from("/dev/kmsg"));
        let kernel_log = self.string("kernel_log").map(PathBuf::from).or(machines);
        Config {
            controller,
            state_dir: self.path("state_dir", DEFAULT_STATE_DIR),
            spool_dir: self.path("spool_dir", "/var/spool/gpupool"),
            run_dir: self.path("run_dir", "/run/gpupool"),
            name: self.string("name"),
            features: self.strings("features"),
            isolation,
            cgroup_tag: self
                .string("cgroup_tag")
                .unwrap_or_else(|| "gpupool".into()),
            nvml_lib: self.string("nvml_lib").map(PathBuf::from),
            dev_dir: self.path("dev_dir", "/dev"),
            cdi_dirs: match self.value("cdi_dirs") {
                None => ["/etc/cdi", "/var/run/cdi"].map(str::to_owned).to_vec(),
                Some(_) => self.strings("cdi_dirs"),
            },
            gpus,
            gpu_signs: self.string("gpu_signs").map(PathBuf::from),
            gpu_burn_in: self.string("gpu_burn_in").map(PathBuf::from),
            gpu_reset: self.string("gpu_reset").map(PathBuf::from),
            node_reboot: self.string("node_reboot").map(PathBuf::from),
            mps_control: self.path("mps_control", "/usr/bin/nvidia-cuda-mps-control"),
            gcheck: self
                .string("gcheck")
                .map_or_else(|| beside_ourselves("gcheck"), PathBuf::from),
            cuda_lib: self.string("cuda_lib").map(PathBuf::from),
            gpu_check_size,
            gpu_repair_pause_secs: self
                .number("gpu_repair_pause_secs", 86_400)
                .map_or(60, |n| n as u32),
            gpu_watch_secs: self.number("gpu_watch_secs", 60).map_or(10, |n| n as u32),
            dcgm_job_dir: self.some_path("dcgm_job_dir"),
            jobstats_dir: self.some_path("jobstats_dir"),
            kernel_log,
            slurm_names: self.path("slurm_names", "/usr/lib/gpupool/slurm-names"),
            cpus: self.number("cpus", u64::from(u32::MAX)).map(|n| n as u32),
            mem_bytes: self.number("mem_bytes", i64::MAX as u64),
            cpu_binding,
            cpu_dir: self.path("cpu_dir", gsys::cpu::SYSTEM),
            pids_max: self.number("pids_max", 4 << 20).unwrap_or(32_768),
            image_cache_bytes: self
                .number("image_cache_bytes", i64::MAX as u64)
                .unwrap_or(200 << 30),
            registry_timeout_secs: self
                .number("registry_timeout_secs", 3600)
                .map_or(60, |secs| secs as u32),
            gstepd: self
                .string("gstepd")
                .map_or_else(|| beside_ourselves("gstepd"), PathBuf::from),
            fence_audit_secs: self
                .number("fence_audit_secs", 86_400)
                .map_or(30, |n| n as u32),
            environment: self.environment(),
            pam_service: self.pam_service(),
            rendezvous_ports: self.rendezvous_ports(),
            devices: self.devices(),
        }
    }

    fn refuse_unknown(&mut self, known: &[&str]) {
        for key in self.entries.keys() {
            let word = key.get_ref().as_str();
            if !known.contains(&word) {
                let hint = did_you_mean(word, known.iter().copied());
                let text = format!("there is no setting {word:?}.{hint}");
                self.problems
                    .push(complaint(self.text, self.name, key.span().start, &text));
            }
        }
    }

    fn value(&self, key: &str) -> Option<(Value, usize)> {
        let (_, value) = self
            .entries
            .iter()
            .find(|(name, _)| name.get_ref() == key)?;
        Some((value.get_ref().clone(), value.span().start))
    }

    fn complain(&mut self, key: &str, text: &str) {
        let at = self.value(key).map_or(0, |(_, at)| at);
        self.problems.push(complaint(
            self.text,
            self.name,
            at,
            &format!("{key}: {text}"),
        ));
    }

    fn string(&mut self, key: &str) -> Option<String> {
        match self.value(key)?.0 {
            Value::String(text) => Some(text),
            other => {
                self.complain(key, &format!("a text in quotes is needed, not {other}"));
                None
            }
        }
    }

    fn path(&mut self, key: &str, default: &str) -> PathBuf {
        self.some_path(key).unwrap_or_else(|| default.into())
    }

    fn some_path(&mut self, key: &str) -> Option<PathBuf> {
        let path = PathBuf::from(self.string(key)?);
        if !path.is_absolute() {
            self.complain(key, &format!("{} is not an absolute path", path.display()));
        }
        Some(path)
    }

    fn word(&mut self, key: &str, words: &[&'static str]) -> Option<&'static str> {
        let text = self.string(key)?;
        let found = words.iter().copied().find(|word| *word == text);
        if found.is_none() {
            let hint = did_you_mean(&text, words.iter().copied());
            self.complain(
                key,
                &format!("{text:?} is none of {}.{hint}", words.join(", ")),
            );
        }
        found
    }

    fn number(&mut self, key: &str, max: u64) -> Option<u64> {
        let value = self.value(key)?.0;
        match value
            .as_integer()
            .and_then(|n| u64::try_from(n).ok())
            .filter(|n| (1..=max).contains(n))
        {
            Some(n) => Some(n),
            None => {
                self.complain(
                    key,
                    &format!("a whole number from 1 to {max} is needed, not {value}"),
                );
                None
            }
        }
    }

    fn strings(&mut self, key: &str) -> Vec<String> {
        let Some((value, _)) = self.value(key) else {
            return Vec::new();
        };
        let texts = value
            .as_array()
            .and_then(|all| all.iter().map(|v| v.as_str().map(str::to_owned)).collect());
        texts.unwrap_or_else(|| {
            self.complain(
                key,
                &format!("a list of texts is needed, [\"one\", \"two\"], not {value}"),
            );
            Vec::new()
        })
    }

    fn environment(&mut self) -> Vec<String> {
        let lines = self.strings("environment");
        if let Some(bad) = lines
            .iter()
            .find(|line| line.starts_with('=') || !line.contains('=') || line.contains('\0'))
        {
            self.complain("environment", &format!("{bad:?} is not NAME=value"));
        }
        lines
    }

    /// It becomes the name of a file in /etc/pam.d.
    fn pam_service(&mut self) -> String {
        let name = self.string("pam_service").unwrap_or_default();
        if !name
            .bytes()
            .all(|b| b.is_ascii_alphanumeric() || matches!(b, b'_' | b'-'))
        {
            let text = format!(
                "{name:?} is not the name of a PAM service: letters, digits, - and _, as in /etc/pam.d"
            );
            self.complain("pam_service", &text);
        }
        name
    }

    fn rendezvous_ports(&mut self) -> PortRange {
        let text = self.string("rendezvous_ports");
        match text.map(|text| PortRange::parse(&text)).transpose() {
            Ok(range) => range.unwrap_or_default(),
            Err(why) => {
                self.complain("rendezvous_ports", &why);
                PortRange::default()
            }
        }
    }

    fn devices(&mut self) -> DevicePolicy {
        let Some((value, at)) = self.value("devices") else {
            return DevicePolicy::default();
        };
        let Value::Table(table) = &value else {
            self.complain("devices", "a table is needed: [devices]");
            return DevicePolicy::default();
        };
        let mut policy = DevicePolicy::default();
        for (key, value) in table {
            let wrong = match (key.as_str(), value) {
                ("default", Value::String(word)) if word == "deny" || word == "allow" => {
                    policy.default_deny = word == "deny";
                    None
                }
                ("default", other) => Some(format!(
                    "devices.default: \"allow\" or \"deny\" is needed, not {other}"
                )),
                ("deny_extra", Value::Array(rules)) => {
                    let parsed = rules
                        .iter()
                        .map(|rule| rule.as_str().and_then(device_rule))
                        .collect::<Option<Vec<_>>>();
                    let wrong = parsed.is_none();
                    policy.deny_extra = parsed.unwrap_or_default();
                    wrong.then(|| {
                        "devices.deny_extra: each is \"MAJOR:MINOR\" or \"MAJOR:*\"".to_owned()
                    })
                }
                ("deny_extra", other) => {
                    Some(format!("devices.deny_extra: a list is needed, not {other}"))
                }
                (other, _) => Some(format!(
                    "there is no setting {other:?} in [devices].{}",
                    did_you_mean(other, DEVICE_KEYS)
                )),
            };
            self.problems
                .extend(wrong.map(|text| complaint(self.text, self.name, at, &text)));
        }
        policy
    }
}

/// `195:3`, `231:*`.
fn device_rule(text: &str) -> Option<DeviceRule> {
    let (major, minor) = text.split_once(':')?;
    let minor = match minor {
        "*" => None,
        number => Some(number.parse().ok()?),
    };
    Some(DeviceRule {
        major: major.parse().ok()?,
        minor,
    })
}

fn beside_ourselves(program: &str) -> PathBuf {
    let own = std::env::current_exe().unwrap_or_else(|_| PathBuf::from("/usr/sbin/gpud"));
    own.with_file_name(program)
}

/// `FILE:LINE:COLUMN: text`, the line, and a caret under the place.
pub fn complaint(text: &str, name: &str, at: usize, message: &str) -> String {
    let before = text.get(..at).unwrap_or(text);
    let line_number = before.matches('\n').count() + 1;
    let column = before.rsplit('\n').next().unwrap_or("").chars().count() + 1;
    let line = text.lines().nth(line_number - 1).unwrap_or("");
    let mut out = format!("{name}:{line_number}:{column}: {message}");
    if !line.trim().is_empty() {
        let _ = write!(out, "\n  {line}\n  {:>column$}", "^");
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    fn errors(text: &str) -> String {
        Config::parse(text, "gpud.toml").unwrap_err().to_string()
    }

    #[test]
    fn a_controller_is_all_that_must_be_said() {
        let config = Config::parse("controller = \"ctl:6820\"\n", "gpud.toml").unwrap();
        assert_eq!(config.controller, "ctl:6820");
        assert_eq!(config.spool_dir, Path::new("/var/spool/gpupool"));
        assert_eq!(
            (config.isolation, config.gpus),
            (Isolation::Fence, GpuDiscovery::Auto)
        );
    }

    #[test]
    fn every_mistake_is_shown_at_once_with_its_line_and_a_guess() {
        let text = "controler = \"ctl:6820\"\ncpus = -3\nisolation = \"fense\"\n";
        let expected = "\
gpud.toml:1:1: there is no setting \"controler\". Did you mean \"controller\"?
  controler = \"ctl:6820\"
  ^
gpud.toml:1:1: controller = \"HOST:PORT\" is missing: where gpuctld listens for nodes
  controler = \"ctl:6820\"
  ^
gpud.toml:3:13: isolation: \"fense\" is none of fence, none. Did you mean \"fence\"?
  isolation = \"fense\"
              ^
gpud.toml:2:8: cpus: a whole number from 1 to 4294967295 is needed, not -3
  cpus = -3
         ^";
        assert_eq!(errors(text), expected);
    }

    #[test]
    fn broken_toml_names_its_line() {
        assert!(errors("controller = \"ctl:1\"\nname = \n").starts_with("gpud.toml:2:"));
    }

    #[test]
    fn a_pam_service_is_a_name_and_no_path() {
        let config = |line: &str| Config::parse(&format!("controller = \"c:1\"\n{line}"), "f");
        assert_eq!(config("").unwrap().pam_service, "");
        assert_eq!(
            config("pam_service = \"gpupool-job_1\"\n")
                .unwrap()
                .pam_service,
            "gpupool-job_1"
        );
        for bad in ["../su", "a b", "x\\u0000"] {
            let text = config(&format!("pam_service = \"{bad}\"\n"))
                .unwrap_err()
                .to_string();
            assert!(
                text.contains("f:2:15: pam_service: ") && text.contains("/etc/pam.d"),
                "{text}"
            );
        }
    }

    #[test]
    fn site_devices_are_read() {
        let text = "controller = \"c:1\"\n[devices]\ndefault = \"deny\"\ndeny_extra = [\"231:*\", \"10:229\"]\n";
        let devices = Config::parse(text, "f").unwrap().devices;
        assert!(devices.default_deny);
        let rules = [
            DeviceRule {
                major: 231,
                minor: None,
            },
            DeviceRule {
                major: 10,
                minor: Some(229),
            },
        ];
        assert_eq!(devices.deny_extra, rules);
        assert!(
            errors("controller = \"c:1\"\n[devices]\ndeny_extra = [\"x\"]\n")
                .contains("MAJOR:MINOR")
        );
    }
}
