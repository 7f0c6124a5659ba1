//! gcheck: looks whether one GPU computes right, keeps what it is given and moves it as fast as its like, through the CUDA driver.
//! A process of its own, which gpud ends at any moment: it keeps no state and needs no farewell. Writes what it found as JSON lines
//! and judges only what is wrong whatever other GPUs say; what a checksum or a speed means is the controller's affair.

mod arithmetic;
mod bandwidth;
mod finding;
mod memory;

use anyhow::{Context as _, Result, bail};
use clap::{Parser, Subcommand, ValueEnum};
use finding::Finding;
use gsys::cuda::{Context, Cuda, CudaError, DEFAULT_LIBRARY, Gpu};
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::{Duration, Instant};

/// By this exit a program says that it cannot check here, for which the GPU is not to blame; as test programs say it elsewhere.
const CANNOT_CHECK: u8 = 77;
/// What a site may name in `checks`.
const GROUPS: [&str; 3] = ["arith", "memory", "copy"];
/// Of the time it is given, so much in hundredths is used: what is left is for the start and the end.
const USED_PERCENT: u32 = 80;

#[derive(Parser)]
#[command(name = "gcheck", version, about = "Checks one GPU; gpud runs it in idle gaps", long_about = None)]
struct Options {
    #[command(subcommand)]
    command: Option<Action>,
    /// UUID of the GPU [default: $GPUPOOL_GPU, or the only one]
    #[arg(long, value_name = "UUID", global = true)]
    gpu: Option<String>,
    /// The CUDA driver's library [default: $GPUPOOL_CUDA_LIB, or libcuda.so.1]
    #[arg(long, value_name = "PATH", global = true)]
    library: Option<PathBuf>,
    /// How much is computed, and of how much memory [default: $GPUPOOL_CHECK_SIZE, or full]
    #[arg(long, global = true)]
    size: Option<Size>,
}

#[derive(Subcommand)]
enum Action {
    /// Check it, and write what was found as JSON lines. Without a command this is done too
    Run {
        /// arith, memory, copy [default: $GPUPOOL_CHECKS, or all]
        checks: Vec<String>,
        /// Another idle GPU, to measure the way to it [default: $GPUPOOL_PEER]
        #[arg(long, value_name = "UUID")]
        peer: Option<String>,
    },
    /// The GPUs that CUDA lets this process use, one a line
    List,
    /// Write zeros over all memory that is free, and read the zeros back
    Scrub,
    /// Compute without a pause
    Load {
        #[arg(long, value_name = "N")]
        secs: u64,
    },
    /// Take that much memory, say so, and keep it
    Hold {
        #[arg(long, value_name = "N")]
        mib: u64,
        #[arg(long, value_name = "N", default_value_t = 0)]
        secs: u64,
    },
}

/// How large everything is. Results of different sizes are not compared.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Size {
    /// For a GPU: seconds of arithmetic, and all memory that is free.
    Full,
    /// For a simulated one, which computes ten thousand times slower.
    Small,
}

impl Size {
    /// What a result is compared within: changes whenever what is computed does.
    pub fn version(self) -> &'static str {
        match self {
            Self::Full => "1",
            Self::Small => "1-small",
        }
    }
}

fn main() -> ExitCode {
    let options = Options::parse();
    match carry_out(&options) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(e) => {
            eprintln!("gcheck: {e:#}");
            let blamed = e
                .downcast_ref::<CudaError>()
                .is_some_and(CudaError::blames_gpu);
            if blamed {
                ExitCode::FAILURE
            } else {
                ExitCode::from(CANNOT_CHECK)
            }
        }
    }
}

/// Whether nothing was found to be wrong.
fn carry_out(options: &Options) -> Result<bool> {
    let library = options
        .library
        .clone()
        .or_else(|| variable("GPUPOOL_CUDA_LIB").map(PathBuf::from));
    let size = match (options.size, variable("GPUPOOL_CHECK_SIZE")) {
        (Some(size), _) => size,
        (None, Some(word)) => Size::from_str(&word, false)
            .map_err(anyhow::Error::msg)
            .context("GPUPOOL_CHECK_SIZE")?,
        (None, None) => Size::Full,
    };
    // Before a GPU was named none is to blame: a missing device file is an unknown error as well.
    let start = |e: CudaError| anyhow::anyhow!("{e}");
    let cuda = Cuda::load(&library.unwrap_or_else(|| DEFAULT_LIBRARY.into())).map_err(start)?;
    let gpus = cuda.gpus().map_err(start)?;
    if let Some(Action::List) = options.command {
        let version = cuda.driver_version()?;
        let version = format!("{}.{}", version / 1000, version % 1000 / 10);
        gpus.iter().for_each(|gpu| {
            println!(
                "{}",
                serde_json::json!({"uuid": gpu.uuid, "name": gpu.name, "cuda": version})
            )
        });
        return Ok(true);
    }
    let wanted = options.gpu.clone().or_else(|| variable("GPUPOOL_GPU"));
    let context = Context::open(&cuda, find(&gpus, wanted.as_deref())?)?;
    let terms = Terms {
        size,
        deadline: Instant::now() + time_given(),
    };
    match &options.command {
        None => check(&cuda, &gpus, &context, &terms, &[], None),
        Some(Action::Run { checks, peer }) => {
            check(&cuda, &gpus, &context, &terms, checks, peer.as_deref())
        }
        Some(Action::Scrub) => memory::scrub(&context, &terms).map(|finding| finding.tell()),
        Some(Action::Load { secs }) => {
            arithmetic::load(&context, size, Duration::from_secs(*secs)).map(|()| true)
        }
        Some(Action::Hold { mib, secs }) => hold(&context, *mib, *secs),
        Some(Action::List) => Ok(true),
    }
}

/// What every check is told.
#[derive(Clone, Copy, Debug)]
pub struct Terms {
    pub size: Size,
    /// What can be cut short ends by then, and says how far it came.
    pub deadline: Instant,
}

/// The groups of the command line, else of `GPUPOOL_CHECKS`; empty: all.
fn named_groups(checks: &[String]) -> Result<Vec<String>> {
    let named: Vec<String> = match checks {
        [] => variable("GPUPOOL_CHECKS")
            .unwrap_or_default()
            .split_whitespace()
            .map(str::to_owned)
            .collect(),
        words => words.to_vec(),
    };
    if let Some(word) = named.iter().find(|word| !GROUPS.contains(&word.as_str())) {
        bail!(
            "there is no check {word:?}; there are {}",
            GROUPS.join(", ")
        );
    }
    Ok(named)
}

fn check(
    cuda: &Cuda,
    gpus: &[Gpu],
    context: &Context,
    terms: &Terms,
    checks: &[String],
    peer: Option<&str>,
) -> Result<bool> {
    let named = named_groups(checks)?;
    let wanted = |group: &str| named.is_empty() || named.iter().any(|name| name == group);
    let mut sound = true;
    for group in GROUPS.into_iter().filter(|group| wanted(group)) {
        // Told one by one: what was found before a GPU stops to answer is known.
        let mut told = |finding: Finding| sound &= finding.tell();
        let outcome = match group {
            "arith" => arithmetic::check(context, terms, &mut told),
            "memory" => memory::check(context, terms).map(&mut told),
            _ => bandwidth::check(context, terms, &mut told),
        };
        if let Err(e) = outcome {
            let Some(error) = e
                .downcast_ref::<CudaError>()
                .filter(|error| error.blames_gpu())
            else {
                return Err(e);
            };
            // No context outlives such an error.
            Finding::failed(group, terms.size, error.to_string()).tell();
            return Ok(false);
        }
    }
    let way = |uuid: &str| {
        bandwidth::way(
            context,
            &Context::open(cuda, find(gpus, Some(uuid))?)?,
            uuid,
            terms,
        )
    };
    match (peer, variable("GPUPOOL_PEER")) {
        _ if !wanted("copy") => {}
        (Some(uuid), _) => way(uuid)?,
        // Either of the two may be to blame: nothing is held against this one.
        (None, Some(uuid)) => way(&uuid)
            .unwrap_or_else(|e| eprintln!("gcheck: the way to {uuid} was not measured: {e:#}")),
        (None, None) => {}
    }
    Ok(sound)
}

fn hold(context: &Context, mib: u64, secs: u64) -> Result<bool> {
    let bytes = usize::try_from(mib << 20)?;
    let (free, total) = context.memory_info()?;
    match context.alloc(bytes) {
        Ok(_memory) => {
            println!(
                "{}",
                serde_json::json!({"held_mib": mib, "free_mib": free >> 20, "total_mib": total >> 20})
            );
            std::thread::sleep(Duration::from_secs(secs));
            Ok(true)
        }
        Err(e) if e.is_out_of_memory() => {
            println!(
                "{}",
                serde_json::json!({"refused_mib": mib, "free_mib": free >> 20, "total_mib": total >> 20, "words": e.to_string()})
            );
            Ok(false)
        }
        Err(e) => Err(e.into()),
    }
}

fn find<'a>(gpus: &'a [Gpu], wanted: Option<&str>) -> Result<&'a Gpu> {
    let there = || {
        gpus.iter()
            .map(|gpu| gpu.uuid.as_str())
            .collect::<Vec<_>>()
            .join(", ")
    };
    match (wanted, gpus) {
        (Some(uuid), _) => gpus
            .iter()
            .find(|gpu| gpu.uuid == uuid)
            .with_context(|| format!("CUDA lets this process use no GPU {uuid}, but: {}", there())),
        (None, [only]) => Ok(only),
        (None, []) => bail!("CUDA lets this process use no GPU"),
        (None, _) => bail!("which GPU? --gpu takes one of {}", there()),
    }
}

fn time_given() -> Duration {
    let secs = variable("GPUPOOL_TIMEOUT_SECS")
        .and_then(|text| text.parse().ok())
        .unwrap_or(600);
    Duration::from_secs(secs) * USED_PERCENT / 100
}

fn variable(name: &str) -> Option<String> {
    std::env::var(name).ok().filter(|value| !value.is_empty())
}
