//! Which rank this process is, from the variables of mpirun, PMI, `PMIx` or a Slurm step.

use crate::{Error, Result};

/// Who said so.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Source {
    /// Nobody: one rank.
    None,
    /// Open MPI's `mpirun`.
    OpenMpi,
    /// MPICH, Intel MPI, Cray: PMI.
    Pmi,
    /// A Slurm step (`srun`).
    Slurm,
}

/// This process among the ranks of its world and of its host.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Placement {
    /// Rank in the world.
    pub rank: usize,
    /// Ranks in the world.
    pub size: usize,
    /// Rank among those on this host: the device's number where each rank has one.
    pub local_rank: usize,
    /// Ranks on this host, where the launcher says it.
    pub local_size: Option<usize>,
    /// Which launcher.
    pub source: Source,
}

/// Slurm numbers the batch script, the interactive shell and the allocation itself from here: no ranks in them.
const FIRST_SPECIAL_STEP: u64 = 0xffff_fff0;

/// How long a failing rank leaves the word to rank 0.
const RANK_0_SPEAKS: std::time::Duration = std::time::Duration::from_secs(1);

impl Placement {
    /// For a rank that is about to report a failure: what every rank finds out, rank 0 alone tells. The others wait
    /// until it has had the time to end the world; one that is still there afterwards has something of its own to say.
    pub fn let_rank_0_speak() {
        if Self::detect().is_ok_and(|placement| placement.rank > 0) {
            std::thread::sleep(RANK_0_SPEAKS);
        }
    }

    /// From this process's environment.
    pub fn detect() -> Result<Self> {
        Self::detect_in(&|name| std::env::var(name).ok())
    }

    /// From `variable`; what is said there and does not parse is an error, never one rank.
    pub fn detect_in(variable: &dyn Fn(&str) -> Option<String>) -> Result<Self> {
        let number = |name: &str| number(variable, name);
        if let Some(size) = number("OMPI_COMM_WORLD_SIZE")? {
            return Self {
                rank: required(number("OMPI_COMM_WORLD_RANK")?, "OMPI_COMM_WORLD_RANK")?,
                size,
                local_rank: number("OMPI_COMM_WORLD_LOCAL_RANK")?.unwrap_or(0),
                local_size: number("OMPI_COMM_WORLD_LOCAL_SIZE")?,
                source: Source::OpenMpi,
            }
            .checked();
        }
        if let Some(size) = number("PMI_SIZE")? {
            return Self {
                rank: required(number("PMI_RANK")?, "PMI_RANK")?,
                size,
                local_rank: number("MPI_LOCALRANKID")?.or(number("SLURM_LOCALID")?).unwrap_or(0),
                local_size: number("MPI_LOCALNRANKS")?,
                source: Source::Pmi,
            }
            .checked();
        }
        // The batch script carries SLURM_PROCID=0 and the job's task count too; only a numbered step has ranks.
        let in_step = number("SLURM_STEP_ID")?.is_some_and(|id| (id as u64) < FIRST_SPECIAL_STEP);
        if let Some(size) = number("SLURM_STEP_NUM_TASKS")?.filter(|_| in_step) {
            let pmix = number("PMIX_RANK")?;
            return Self {
                rank: required(pmix.or(number("SLURM_PROCID")?), "SLURM_PROCID")?,
                size,
                local_rank: number("SLURM_LOCALID")?.unwrap_or(0),
                local_size: None,
                source: Source::Slurm,
            }
            .checked();
        }
        Ok(Self { rank: 0, size: 1, local_rank: 0, local_size: Some(1), source: Source::None })
    }

    fn checked(self) -> Result<Self> {
        if self.rank < self.size {
            return Ok(self);
        }
        let reason = format!("not below the world's size {}", self.size);
        Err(Error::Launcher {
            name: format!("rank ({:?})", self.source),
            value: self.rank.to_string(),
            reason,
        })
    }
}

fn number(variable: &dyn Fn(&str) -> Option<String>, name: &str) -> Result<Option<usize>> {
    let Some(value) = variable(name) else { return Ok(None) };
    match value.trim().parse() {
        Ok(n) => Ok(Some(n)),
        Err(_) => Err(Error::Launcher { name: name.into(), value, reason: "expected a number".into() }),
    }
}

fn required(value: Option<usize>, name: &str) -> Result<usize> {
    let missing = || Error::Launcher {
        name: name.into(),
        value: String::new(),
        reason: "missing beside the world's size".into(),
    };
    value.ok_or_else(missing)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn detect(variables: &[(&str, &str)]) -> Result<Placement> {
        Placement::detect_in(&|name| {
            variables.iter().find(|(n, _)| *n == name).map(|(_, v)| (*v).to_string())
        })
    }

    #[test]
    fn a_bare_shell_is_one_rank() {
        let placement = detect(&[]).unwrap();
        assert_eq!((placement.rank, placement.size, placement.source), (0, 1, Source::None));
    }

    #[test]
    fn a_batch_script_is_one_rank_though_it_has_procid() {
        let batch = [("SLURM_PROCID", "0"), ("SLURM_NTASKS", "8"), ("SLURM_STEP_NUM_TASKS", "8")];
        assert_eq!(detect(&batch).unwrap().size, 1);
        for special in ["4294967291", "4294967290"] {
            let mut shell = batch.to_vec();
            shell.push(("SLURM_STEP_ID", special));
            assert_eq!(detect(&shell).unwrap().size, 1);
        }
    }

    #[test]
    fn a_real_step_has_ranks() {
        let step = [
            ("SLURM_STEP_ID", "3"),
            ("SLURM_PROCID", "5"),
            ("SLURM_STEP_NUM_TASKS", "8"),
            ("SLURM_LOCALID", "1"),
        ];
        let placement = detect(&step).unwrap();
        assert_eq!((placement.rank, placement.size, placement.local_rank), (5, 8, 1));
        assert_eq!(placement.source, Source::Slurm);
    }

    #[test]
    fn mpirun_inside_a_step_wins() {
        let both = [
            ("SLURM_STEP_ID", "0"),
            ("SLURM_PROCID", "0"),
            ("SLURM_STEP_NUM_TASKS", "1"),
            ("OMPI_COMM_WORLD_SIZE", "4"),
            ("OMPI_COMM_WORLD_RANK", "2"),
            ("OMPI_COMM_WORLD_LOCAL_SIZE", "2"),
        ];
        let placement = detect(&both).unwrap();
        assert_eq!((placement.rank, placement.size, placement.local_size), (2, 4, Some(2)));
    }

    #[test]
    fn nonsense_is_an_error_and_not_one_rank() {
        assert!(detect(&[("OMPI_COMM_WORLD_SIZE", "many")]).is_err());
        assert!(detect(&[("PMI_SIZE", "4")]).is_err());
        let error = detect(&[("PMI_SIZE", "4"), ("PMI_RANK", "4")]).unwrap_err();
        assert_eq!(error.exit_code(), 78);
    }
}
