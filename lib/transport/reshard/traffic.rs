//! What a plan asks of the links between GPUs, and how long that takes at given rates.

use std::collections::BTreeMap;

use super::ReshardPlan;

/// Where trainer and engines run: GPUs are numbered over the nodes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Hosts {
    /// GPUs of a node.
    pub gpus_per_node: usize,
    /// Whether the engines run on the trainer's GPUs, the first replica on the first of them, or on others behind them.
    pub is_colocated: bool,
}

/// What lies between two GPUs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Way {
    /// Nothing.
    SameGpu,
    /// The links of a node.
    SameNode,
    /// The network.
    Network,
}

impl Hosts {
    /// The way between two GPUs.
    pub fn way(&self, from: usize, to: usize) -> Way {
        match () {
            () if from == to => Way::SameGpu,
            () if from / self.gpus_per_node == to / self.gpus_per_node => Way::SameNode,
            () => Way::Network,
        }
    }
}

/// Bytes a second out of a GPU, and as many into it.
#[derive(Debug, Clone, Copy)]
pub struct Rates {
    /// To the GPUs of its node.
    pub node: f64,
    /// To others.
    pub network: f64,
}

/// The bytes of a plan.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Traffic {
    /// By sending and receiving GPU.
    pub links: BTreeMap<(usize, usize), u64>,
    hosts: Hosts,
    num_senders: usize,
}

impl Traffic {
    pub(super) fn of(plan: &ReshardPlan) -> Self {
        let mut links = BTreeMap::new();
        for (index, transfer) in plan.transfers.iter().enumerate() {
            for replica in 0..plan.num_replicas {
                let link = (plan.sender(index, replica), plan.gpu(replica, transfer.receiver));
                *links.entry(link).or_default() += transfer.num_bytes;
            }
        }
        Self { links, hosts: plan.hosts, num_senders: plan.num_senders }
    }

    /// All bytes over `way`.
    pub fn bytes_over(&self, way: Way) -> u64 {
        let over = self.links.iter().filter(|((from, to), _)| self.hosts.way(*from, *to) == way);
        over.map(|(_, bytes)| bytes).sum()
    }

    /// Bytes that each trainer rank sends away from its GPU.
    pub fn sent(&self) -> Vec<u64> {
        let mut sent = vec![0; self.num_senders];
        for ((from, to), bytes) in &self.links {
            if from != to {
                sent[*from] += bytes;
            }
        }
        sent
    }

    /// Seconds that the busiest GPU sends or receives, the ways beside each other; copies within a GPU are not counted.
    pub fn seconds(&self, rates: Rates) -> f64 {
        let mut busy: BTreeMap<(usize, bool, Way), f64> = BTreeMap::new();
        for ((from, to), bytes) in &self.links {
            let way = self.hosts.way(*from, *to);
            let rate = match way {
                Way::SameGpu => f64::INFINITY,
                Way::SameNode => rates.node,
                Way::Network => rates.network,
            };
            for key in [(*from, true, way), (*to, false, way)] {
                *busy.entry(key).or_default() += *bytes as f64 / rate;
            }
        }
        busy.into_values().fold(0.0, f64::max)
    }
}
