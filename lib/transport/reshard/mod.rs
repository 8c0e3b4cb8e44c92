//! The reshard plan: which trainer rank sends which box of which tensor to which engine rank.
//!
//! It follows from the two layouts alone, so every rank makes the same plan by itself. Nothing is gathered: a box goes
//! straight from a rank that holds it into the storage of the rank that wants it.

mod side;
mod traffic;
mod wire;

#[cfg(test)]
mod tests;

use slime_config::{HfConfig, TensorBox};
use slime_weights::{PlanLayout, storages};

pub use side::PlannedTensor;
use side::{Held, Tensors, held_by_rank};
pub use traffic::{Hosts, Rates, Traffic, Way};
pub use wire::{Target, Wire};

use crate::{Error, Result};

/// Largest transfer: what is larger is cut by rows, so that several holders can share the sending.
const MAX_TRANSFER_BYTES: u64 = 64 << 20;

/// A box that a rank of every replica gets.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Transfer {
    /// The rank within its replica.
    pub receiver: usize,
    /// Which of the plan's tensors.
    pub tensor: usize,
    /// The box of it.
    pub part: TensorBox,
    /// The form on the way.
    pub wire: Wire,
    /// Bytes on the way.
    pub num_bytes: u64,
    /// Which of the receiver's boxes it is a part of.
    held: usize,
}

/// What a plan is made from.
#[derive(Debug, Clone, Copy)]
pub struct Request<'a> {
    /// The model.
    pub config: &'a HfConfig,
    /// The ranks that send.
    pub trainer: PlanLayout,
    /// The ranks of one replica.
    pub engine: PlanLayout,
    /// How many replicas there are.
    pub num_replicas: usize,
    /// The form the engines want.
    pub target: Target,
    /// Where both run.
    pub hosts: Hosts,
}

/// Who sends what to whom.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ReshardPlan {
    /// The tensors of the model.
    pub tensors: Vec<PlannedTensor>,
    /// What the ranks of a replica get, by rank and in the order of their storages.
    pub transfers: Vec<Transfer>,
    /// How many replicas there are.
    pub num_replicas: usize,
    /// Trainer ranks.
    pub num_senders: usize,
    /// Ranks of a replica.
    pub num_receivers: usize,
    /// Where both run.
    pub hosts: Hosts,
    /// The sending rank of each transfer to each replica.
    senders: Vec<usize>,
}

/// A box that some ranks of the trainer hold, all of it.
struct Source {
    part: TensorBox,
    ranks: Vec<usize>,
}

impl ReshardPlan {
    /// The plan for `request`, checked: every element of every storage of the engines comes exactly once.
    ///
    /// # Errors
    /// An engine's box cuts through blocks of its quantised form, or the layouts do not fit each other.
    pub fn new(request: &Request<'_>) -> Result<Self> {
        let tensors = Tensors::of(&storages(request.config));
        let senders = held_by_rank(request.config, &tensors, request.trainer)?;
        let receivers = held_by_rank(request.config, &tensors, request.engine)?;
        let sources = sources(&senders, tensors.list.len());
        let mut plan = Self {
            tensors: tensors.list,
            transfers: Vec::new(),
            num_replicas: request.num_replicas,
            num_senders: senders.len(),
            num_receivers: receivers.len(),
            hosts: request.hosts,
            senders: Vec::new(),
        };
        let mut source_of = Vec::new();
        for (receiver, boxes) in receivers.iter().enumerate() {
            for (held, wanted) in boxes.iter().enumerate() {
                plan.add(&sources[wanted.tensor], (receiver, held), wanted, request.target, &mut source_of)?;
            }
        }
        plan.check(&receivers)?;
        plan.choose_senders(&sources, &source_of);
        Ok(plan)
    }

    /// The rank that sends transfer `index` to `replica`.
    pub fn sender(&self, index: usize, replica: usize) -> usize {
        self.senders[index * self.num_replicas + replica]
    }

    /// The GPU of a rank of a replica; trainer rank `i` has GPU `i`.
    pub fn gpu(&self, replica: usize, receiver: usize) -> usize {
        let first = if self.hosts.is_colocated { 0 } else { self.num_senders };
        first + replica * self.num_receivers + receiver
    }

    /// What the plan asks of the links.
    pub fn traffic(&self) -> Traffic {
        Traffic::of(self)
    }

    /// Adds what `wanted` gets from each of `sources`, whose numbers go to `source_of`.
    fn add(
        &mut self,
        sources: &[Source],
        (receiver, held): (usize, usize),
        wanted: &Held,
        target: Target,
        source_of: &mut Vec<usize>,
    ) -> Result<()> {
        let tensor = &self.tensors[wanted.tensor];
        target.check(tensor, &wanted.part)?;
        for (number, source) in sources.iter().enumerate() {
            let Some(shared) = source.part.intersect(&wanted.part) else { continue };
            for part in cut(&shared, target.num_bytes(tensor, &shared), target.row_step(tensor)) {
                let (wire, num_bytes) = (target.wire(tensor, &part), target.num_bytes(tensor, &part));
                let tensor = wanted.tensor;
                self.transfers.push(Transfer { receiver, tensor, part, wire, num_bytes, held });
                source_of.push(number);
            }
        }
        Ok(())
    }

    /// Chooses for each transfer the nearest of those who hold it, of equally near ones who has sent least so far. Boxes with
    /// few holders choose first, large ones before small ones.
    fn choose_senders(&mut self, sources: &[Vec<Source>], source_of: &[usize]) {
        let holders = |index: usize| &sources[self.transfers[index].tensor][source_of[index]].ranks;
        let mut order: Vec<usize> = (0..self.transfers.len()).collect();
        order.sort_by_key(|&index| {
            (holders(index).len(), std::cmp::Reverse(self.transfers[index].num_bytes), index)
        });
        let mut sent = vec![0; self.num_senders];
        let mut senders = vec![0; self.transfers.len() * self.num_replicas];
        for index in order {
            let transfer = &self.transfers[index];
            for replica in 0..self.num_replicas {
                let gpu = self.gpu(replica, transfer.receiver);
                let cost = |rank: &&usize| (self.hosts.way(**rank, gpu), sent[**rank], **rank);
                let chosen = holders(index).iter().min_by_key(cost).copied().unwrap_or_default();
                senders[index * self.num_replicas + replica] = chosen;
                if chosen != gpu {
                    sent[chosen] += transfer.num_bytes;
                }
            }
        }
        self.senders = senders;
    }

    /// Checks that what each rank gets covers each of its boxes, and nothing of it twice.
    fn check(&self, receivers: &[Vec<Held>]) -> Result<()> {
        let mut rest = self.transfers.as_slice();
        for (receiver, boxes) in receivers.iter().enumerate() {
            for (held, wanted) in boxes.iter().enumerate() {
                let num = rest.iter().take_while(|t| (t.receiver, t.held) == (receiver, held)).count();
                let (own, after) = rest.split_at(num);
                rest = after;
                let got: usize = own.iter().map(|transfer| transfer.part.num_elements()).sum();
                let is_inside = |part: &TensorBox| part.intersect(&wanted.part).as_ref() == Some(part);
                let twice = (0..num)
                    .any(|i| own[..i].iter().any(|other| other.part.intersect(&own[i].part).is_some()));
                if twice || got != wanted.part.num_elements() || !own.iter().all(|t| is_inside(&t.part)) {
                    return Err(Error::NotCovered {
                        tensor: self.tensors[wanted.tensor].name.clone(),
                        receiver,
                        expected: wanted.part.num_elements(),
                        got,
                    });
                }
            }
        }
        Ok(())
    }
}

/// The different boxes of each of `num_tensors` tensors and who holds them.
fn sources(senders: &[Vec<Held>], num_tensors: usize) -> Vec<Vec<Source>> {
    let mut sources: Vec<Vec<Source>> = (0..num_tensors).map(|_| Vec::new()).collect();
    for (rank, boxes) in senders.iter().enumerate() {
        for held in boxes {
            let known = &mut sources[held.tensor];
            match known.iter_mut().find(|source| source.part == held.part) {
                Some(source) => source.ranks.push(rank),
                None => known.push(Source { part: held.part.clone(), ranks: vec![rank] }),
            }
        }
    }
    sources
}

/// `part` of `num_bytes` in pieces of whole rows, each a multiple of `step` but the last.
fn cut(part: &TensorBox, num_bytes: u64, step: usize) -> Vec<TensorBox> {
    let num = num_bytes.div_ceil(MAX_TRANSFER_BYTES).max(1) as usize;
    let rows = part.shape[0];
    let each = rows.div_ceil(num).next_multiple_of(step);
    (0..rows).step_by(each).map(|start| part.narrow(0, start..(start + each).min(rows))).collect()
}
