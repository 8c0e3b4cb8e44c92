//! `[cluster]`: what a `--dry-run` takes for granted about the machine. Nothing else reads it.

use serde::{Deserialize, Serialize};

use crate::{Error, Result};

/// `[cluster]`: the machine of a plan. Defaults are those of nodes with eight H100 and a 400 Gb/s card for each.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Cluster {
    /// GPUs of a node, whose links are the fast ones.
    pub gpus_per_node: u32,
    /// Memory of a GPU in GB; where it is given, a plan that does not fit is refused.
    pub gpu_memory_gb: Option<f64>,
    /// Memory of a node in GB; likewise, for what is kept on the host.
    pub host_memory_gb: Option<f64>,
    /// Tera-operations a second that a GPU reaches in training.
    pub tflops: f64,
    /// GB/s at which a GPU sends to others of its node.
    pub gpu_gb_per_s: f64,
    /// GB/s at which a GPU sends to other nodes.
    pub node_gb_per_s: f64,
}

impl Default for Cluster {
    fn default() -> Self {
        Self {
            gpus_per_node: 8,
            gpu_memory_gb: None,
            host_memory_gb: None,
            tflops: 400.0,
            gpu_gb_per_s: 300.0,
            node_gb_per_s: 45.0,
        }
    }
}

impl Cluster {
    /// Checks the numbers by themselves.
    pub(crate) fn check(&self) -> Result<()> {
        let positive = |value: f64| value.is_finite() && value > 0.0;
        let given = [
            ("gpu_memory_gb", self.gpu_memory_gb),
            ("host_memory_gb", self.host_memory_gb),
            ("tflops", Some(self.tflops)),
            ("gpu_gb_per_s", Some(self.gpu_gb_per_s)),
            ("node_gb_per_s", Some(self.node_gb_per_s)),
            ("gpus_per_node", Some(f64::from(self.gpus_per_node))),
        ];
        let wrong =
            given.into_iter().find_map(|(key, value)| Some((key, value.filter(|value| !positive(*value))?)));
        match wrong {
            None => Ok(()),
            Some((key, value)) => {
                Err(Error::Conflict(format!("cluster.{key}: expected a number above 0, got {value}")))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use crate::parse;

    #[test]
    fn numbers_that_are_none_are_named() {
        for (text, part) in [
            ("[cluster]\ntflops = 0.0\n", "cluster.tflops: expected a number above 0, got 0"),
            ("[cluster]\ngpu_memory_gb = -1.0\n", "cluster.gpu_memory_gb"),
            ("[cluster]\ngpus_per_node = 0\n", "cluster.gpus_per_node"),
        ] {
            let error = parse(text, "run.toml", &[]).unwrap_err().to_string();
            assert!(error.contains(part), "{error}");
        }
        parse("[cluster]\ngpu_memory_gb = 80.0\n", "run.toml", &[]).unwrap();
    }
}
