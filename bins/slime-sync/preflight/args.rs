//! The command line of `slime-sync preflight`.

use std::path::PathBuf;
use std::time::Duration;

use clap::Subcommand;

/// The parts of the preflight.
#[derive(Debug, Subcommand)]
pub enum Preflight {
    /// Checks this node alone; one rank a node, no MPI
    #[command(after_help = "\
Reads:   this node: run directory, limits, network, GPUs (nvidia-smi), libraries
Writes:  the checks of this node on stdout as JSON lines of at most 1000 bytes, which srun
         does not mix with those of other nodes
Example: srun --ntasks-per-node=1 slime-sync preflight node --run runs/x --gpus 8 >node.jsonl
Exit:    0 when the lines are out, whatever they say (verdict judges them), 64 usage, 74 I/O")]
    Node(Node),
    /// Measures the links between the ranks; under srun --mpi=pmix or mpirun, one rank a node
    #[command(after_help = "\
Reads:   nothing
Writes:  the checks of every rank on rank 0's stdout as JSON lines: a sum over all ranks,
         the bandwidth to both neighbours on the ring of ranks and that of an all-reduce
Example: srun --mpi=pmix -K --ntasks-per-node=1 slime-sync preflight link >link.jsonl
Exit:    0 when the lines are out, whatever they say, 64 usage, 69 a rank did not answer or
         there is no MPI, 74 I/O, 78 launcher")]
    Link(Link),
    /// Judges the lines of node and link: which nodes are fit for the job
    #[command(after_help = "\
Reads:   the lines of node and link; other lines are skipped
Writes:  the names of bad nodes on stdout, separated by commas, for sbatch --exclude;
         with --output the verdict as JSON: schema, verdict, exclude, everywhere,
         nodes: [{node, verdict, checks: [{name, verdict, got, expected, hint}]}]
Example: slime-sync preflight verdict --input node.jsonl --expect-nodes n1,n2 --output v.json
Exit:    0 no node is bad (warnings are on stderr), 65 broken lines, 66 no input,
         69 a node is bad, 73 cannot create, 74 I/O

A check that is bad on all of several nodes that answered (a full run directory) is no
node's fault: it fails the verdict and excludes nobody.")]
    Verdict(Verdict),
}

/// `slime-sync preflight node`.
#[derive(Debug, clap::Args)]
pub struct Node {
    /// Run directory: it has to be writable here, with free space
    #[arg(long, value_name = "RUN")]
    pub run: Option<PathBuf>,
    /// What --canary-file has to hold: shows that this node sees what the others write
    #[arg(long, value_name = "TOKEN", requires = "canary_file")]
    pub canary: Option<String>,
    /// File that the job script wrote, such as RUN/attempt-0/canary
    #[arg(long, value_name = "FILE", requires = "canary")]
    pub canary_file: Option<PathBuf>,
    /// Longest time the file systems may take to answer, the canary to be seen
    #[arg(long, value_name = "SECONDS", default_value = "30", value_parser = seconds)]
    pub deadline_s: Duration,
    /// Free space the run directory has to have; less than twice as much is a warning
    #[arg(long, value_name = "GB", default_value_t = 10.0)]
    pub min_free_gb: f64,
    /// GPUs this node has to show
    #[arg(long, value_name = "N")]
    pub gpus: Option<usize>,
    /// Network interface, as `NCCL_SOCKET_IFNAME` names it: prefixes, =exact, ^not [default: that variable, else the
    /// first that leads out of this host]
    #[arg(long, value_name = "NAME")]
    pub interface: Option<String>,
    /// Scratch folder [default: `SLURM_TMPDIR`, `TMPDIR`, /tmp]
    #[arg(long, value_name = "DIR")]
    pub scratch: Option<PathBuf>,
    /// A tool of the job has several ranks: without the MPI plug-in the node is bad
    #[arg(long)]
    pub mpi: bool,
}

/// `slime-sync preflight link`.
#[derive(Debug, clap::Args)]
pub struct Link {
    /// The whole of it takes no longer: then the ranks that do not answer are named
    #[arg(long, value_name = "SECONDS", default_value = "60", value_parser = seconds)]
    pub deadline_s: Duration,
    /// Time each of the (at most four) measurements takes
    #[arg(long, value_name = "SECONDS", default_value = "0.2", value_parser = seconds)]
    pub measure_s: Duration,
    /// A link below this share of the median of all is slow; 0 judges no speed
    #[arg(long, value_name = "SHARE", default_value = "0.5", value_parser = share)]
    pub min_share: f64,
}

/// `slime-sync preflight verdict`.
#[derive(Debug, clap::Args)]
pub struct Verdict {
    /// The lines
    #[arg(long, value_name = "FILE|-", default_value = "-")]
    pub input: String,
    /// The nodes of the job, separated by commas (as scontrol show hostnames lists them); one without a line is bad
    #[arg(long, value_name = "NODES", value_delimiter = ',')]
    pub expect_nodes: Vec<String>,
    /// Lines of link are expected too: a node without one is bad
    #[arg(long)]
    pub expect_links: bool,
    /// Where the verdict goes as JSON; with - the names of bad nodes are there only
    #[arg(long, value_name = "FILE|-")]
    pub output: Option<String>,
    /// Largest distance of a node's clock from the median of all nodes
    #[arg(long, value_name = "SECONDS", default_value = "5", value_parser = seconds)]
    pub max_skew_s: Duration,
}

/// A number from 0 to 1.
fn share(text: &str) -> Result<f64, String> {
    let share: Option<f64> = text.parse().ok();
    share
        .filter(|share| (0.0..=1.0).contains(share))
        .ok_or_else(|| "expected a number from 0 to 1".to_owned())
}

/// A positive time in seconds.
fn seconds(text: &str) -> Result<Duration, String> {
    let seconds: f64 = text.parse().map_err(|_| "expected seconds".to_owned())?;
    let limit = Duration::from_secs(24 * 3600);
    let time = Duration::try_from_secs_f64(seconds).ok().filter(|time| !time.is_zero() && *time <= limit);
    time.ok_or_else(|| "expected more than 0 and at most 86400 seconds".to_owned())
}
