//! Measures what the ranks' network brings: a checked sum, the bandwidth to both neighbours, that of an all-reduce.

use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};
use slime_cli::{Failure, report};
use slime_comm::{Collectives, Communicator, Incoming, Op, Outgoing, Placement, world};

use super::args::Link;
use super::check::Check;
use super::judge_links::{Links, judge};
use super::line::{Reporter, now, place, text, write};
use super::roll_call::RollCall;

/// Bytes of a message; the larger ones only where they fit into the time.
const SIZES: [usize; 4] = [1 << 20, 4 << 20, 16 << 20, 64 << 20];
/// Tag of the messages between neighbours.
const TAG: u16 = 64;
/// Numbers of the checked sum.
const SUM_LEN: usize = 1000;

/// The result of a collective.
type Result<T, E = slime_comm::Error> = std::result::Result<T, E>;

/// What a rank found out.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
struct Measured {
    node: String,
    host: String,
    /// Its clock when all ranks had come.
    unix_s: f64,
    /// The checked sum.
    sum: Check,
    /// Bandwidth to the rank before and after, bytes per second; none in a world of one.
    links: Option<(f64, f64)>,
    /// Bandwidth of an all-reduce, bytes per second.
    all_reduce: Option<f64>,
}

/// Measures, and prints the lines of all ranks on rank 0.
///
/// # Errors
/// The launcher or MPI does not work. What is wrong with a link is in the lines.
pub fn run(args: &Link) -> Result<(), Failure> {
    let placement = Placement::detect().map_err(failure)?;
    let (node, host) = place();
    let roll_call = RollCall::start(&node, &placement, args.deadline_s)?;
    let world = world().map_err(failure)?;
    roll_call.joined(&world);
    let told = measure(&*world, (node, host), args.measure_s, &roll_call)
        .map_err(failure)
        .and_then(|all| if world.rank() == 0 { write(&lines(&all, args.min_share)?) } else { Ok(()) });
    match told {
        Ok(()) => {
            roll_call.ending();
            let finished = world.finish().map_err(failure);
            roll_call.ended();
            finished
        }
        Err(failure) if world.size() == 1 => Err(failure),
        Err(failure) => {
            Placement::let_rank_0_speak();
            report("slime-sync", &failure);
            world.abort(failure.code)
        }
    }
}

#[expect(clippy::needless_pass_by_value, reason = "map_err hands the error over")]
fn failure(error: slime_comm::Error) -> Failure {
    let failure = Failure::from_error(error.exit_code(), &error);
    error.hint().map_or(failure.clone(), |hint| failure.with_hint(hint))
}

/// Collective: what every rank found out, the same on all ranks.
fn measure(
    world: &dyn Communicator,
    (node, host): (String, String),
    budget: Duration,
    roll_call: &RollCall,
) -> Result<Vec<Measured>> {
    roll_call.enter("the list of nodes");
    roll_call.learned(gather(world, &(node.clone(), host.clone()))?);
    roll_call.enter("the checked sum");
    let mut data: Vec<f64> = (1..=SUM_LEN).map(|i| ((world.rank() + 1) * i) as f64).collect();
    world.all_reduce(&mut data, Op::Sum)?;
    let sum = judge_sum(&data, world.size());
    // Nodes start at different times, but leave a barrier within milliseconds.
    world.barrier()?;
    let unix_s = now();
    let (mut links, mut all_reduce) = (None, None);
    if world.size() > 1 {
        roll_call.enter("the bandwidth between neighbours");
        links = Some(neighbours(world, budget)?);
        roll_call.enter("the bandwidth of an all-reduce");
        all_reduce = Some(all_reduce_rate(world, budget)?);
    }
    roll_call.enter("the exchange of results");
    gather(world, &Measured { node, host, unix_s, sum, links, all_reduce })
}

/// Every rank's value on all ranks, in rank order.
fn gather<T: Serialize + for<'de> Deserialize<'de>>(world: &dyn Communicator, value: &T) -> Result<Vec<T>> {
    let mine = serde_json::to_vec(value).expect("names and numbers are JSON");
    let mut lens = vec![0_u64; world.size()];
    world.all_gather(&[mine.len() as u64], &mut lens)?;
    let counts: Vec<usize> = lens.iter().map(|&len| len as usize).collect();
    let mut all = vec![0_u8; counts.iter().sum()];
    world.all_gather_v(&mine, &counts, &mut all)?;
    let mut rest = all.as_slice();
    let read = |count: &usize| {
        let (text, after) = rest.split_at(*count);
        rest = after;
        serde_json::from_slice(text).expect("what the same program wrote")
    };
    Ok(counts.iter().map(read).collect())
}

/// Whether element i, to which rank r gave (r + 1) (i + 1), is what it has to be; exact in f64.
fn judge_sum(data: &[f64], size: usize) -> Check {
    const NAME: &str = "all_reduce_sum";
    let expected = |at: usize| (size * (size + 1) / 2 * (at + 1)) as f64;
    match (0..data.len()).find(|&at| data[at].to_bits() != expected(at).to_bits()) {
        None => Check::ok(NAME, format!("right over {size} ranks")),
        Some(at) => {
            let hint = "the network or the memory of a node alters data: look for errors on its links";
            Check::bad(NAME, format!("{} at {at}", data[at]), expected(at), hint)
        }
    }
}

/// The links of a ring of `size` ranks, link i between i and i + 1, in rounds in which no rank has two.
fn rounds(size: usize) -> Vec<Vec<usize>> {
    if size == 2 {
        return vec![vec![0]];
    }
    let mut rounds: Vec<Vec<usize>> =
        vec![(0..size - 1).step_by(2).collect(), (1..size).step_by(2).collect()];
    if size % 2 == 1 {
        rounds.push(vec![size - 1]);
    }
    rounds
}

/// Bandwidth to the rank before and the rank after, each with both directions in use.
fn neighbours(world: &dyn Communicator, budget: Duration) -> Result<(f64, f64)> {
    let (rank, size) = (world.rank(), world.size());
    let (mut left, mut right) = (0.0, 0.0);
    for round in rounds(size) {
        world.barrier()?;
        for link in round {
            let after = (link + 1) % size;
            if rank == link {
                right = rate_between(world, after, budget)?;
            } else if rank == after {
                left = rate_between(world, link, budget)?;
            }
        }
    }
    // Two ranks have one link, which is measured once.
    if size == 2 {
        (left, right) = (left.max(right), left.max(right));
    }
    Ok((left, right))
}

fn rate_between(world: &dyn Communicator, peer: usize, budget: Duration) -> Result<f64> {
    let out = vec![1_u8; SIZES[SIZES.len() - 1]];
    let mut into = vec![0_u8; out.len()];
    let swap = |out: &[u8], into: &mut [u8]| {
        world.exchange(TAG, &[Outgoing { to: peer, data: out }], &mut [Incoming { from: peer, data: into }])
    };
    best_rate(budget, |bytes| {
        let started = Instant::now();
        swap(&out[..bytes], &mut into[..bytes])?;
        let mine = started.elapsed().as_secs_f64();
        let mut theirs = [0; 8];
        swap(&mine.to_le_bytes(), &mut theirs)?;
        Ok(mine.max(f64::from_le_bytes(theirs)))
    })
}

/// Bandwidth of an all-reduce as the bytes each rank has to send at least: 2 (n - 1) / n of the buffer.
fn all_reduce_rate(world: &dyn Communicator, budget: Duration) -> Result<f64> {
    let mut data = vec![0_f32; SIZES[SIZES.len() - 1] / size_of::<f32>()];
    let rate = best_rate(budget, |bytes| {
        world.barrier()?;
        let started = Instant::now();
        world.all_reduce(&mut data[..bytes / size_of::<f32>()], Op::Sum)?;
        let mut slowest = [started.elapsed().as_secs_f64()];
        world.all_reduce(&mut slowest, Op::Max)?;
        Ok(slowest[0])
    })?;
    let size = world.size() as f64;
    Ok(rate * 2.0 * (size - 1.0) / size)
}

/// The best rate within `budget`, in bytes per second. `round` moves so many bytes and returns the seconds on which
/// all that take part agree, so all of them make the same choices here.
fn best_rate(budget: Duration, mut round: impl FnMut(usize) -> Result<f64>) -> Result<f64> {
    let budget = budget.as_secs_f64();
    // The first message makes the connection.
    round(SIZES[0])?;
    let (mut best, mut spent, mut at) = (0.0_f64, 0.0, 0);
    while spent < budget {
        let bytes = SIZES[at];
        let seconds = round(bytes)?.max(1e-9);
        best = best.max(bytes as f64 / seconds);
        spent += seconds;
        let next = SIZES.get(at + 1).map(|next| seconds * (next / bytes) as f64);
        if next.is_some_and(|next| spent + next <= budget) {
            at += 1;
        }
    }
    Ok(best)
}

/// The lines of all ranks.
fn lines(all: &[Measured], min_share: f64) -> Result<String, Failure> {
    let links: Option<Vec<Links>> =
        all.iter().map(|rank| rank.links.map(|(left, right)| Links { left, right })).collect();
    let judged = judge(&links.unwrap_or_default(), min_share);
    let mut lines = String::new();
    for (rank, measured) in all.iter().enumerate() {
        let reporter = Reporter::Link {
            rank,
            size: all.len(),
            unix_s: Some(measured.unix_s),
            left_bytes_per_s: measured.links.map(|(left, _)| left.round()),
            right_bytes_per_s: measured.links.map(|(_, right)| right.round()),
            all_reduce_bytes_per_s: measured.all_reduce.map(f64::round),
        };
        let mut checks = vec![measured.sum.clone()];
        checks.extend(judged.get(rank).cloned());
        lines += &text(&measured.node, &measured.host, &reporter, &checks)?;
    }
    Ok(lines)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use slime_comm::Threads;

    use super::super::check::Verdict;
    use super::*;

    #[test]
    fn every_link_of_the_ring_is_in_one_round_and_no_rank_twice_in_one() {
        for size in 2..9 {
            let rounds = rounds(size);
            let links: BTreeSet<usize> = rounds.iter().flatten().copied().collect();
            assert_eq!(links.len(), if size == 2 { 1 } else { size });
            assert_eq!(rounds.iter().map(Vec::len).sum::<usize>(), links.len());
            for round in rounds {
                let ends: BTreeSet<usize> =
                    round.iter().flat_map(|&link| [link, (link + 1) % size]).collect();
                assert_eq!(ends.len(), 2 * round.len(), "{size}");
            }
        }
    }

    #[test]
    fn ranks_measure_the_same_link_at_both_ends() {
        for size in 1..4 {
            let all = Threads::spawn(size, |world: Threads| {
                let placement = Placement::detect().unwrap();
                let roll_call = RollCall::start("n", &placement, Duration::from_secs(120)).unwrap();
                let place = (format!("n{}", world.rank()), "h".to_owned());
                let all = measure(&world, place, Duration::from_millis(1), &roll_call).unwrap();
                roll_call.ended();
                all
            })
            .unwrap();
            for ranks in &all {
                assert_eq!(ranks, &all[0]);
            }
            assert!(all[0].iter().all(|rank| (rank.unix_s - all[0][0].unix_s).abs() < 60.0));
            for (rank, measured) in all[0].iter().enumerate() {
                assert_eq!(measured.node, format!("n{rank}"));
                assert_eq!(measured.sum.verdict, Verdict::Ok);
                let Some((_, right)) = measured.links else {
                    assert_eq!(size, 1);
                    continue;
                };
                let (left, _) = all[0][(rank + 1) % size].links.unwrap();
                assert!(right > 0.0 && right.to_bits() == left.to_bits());
                assert!(measured.all_reduce.unwrap() > 0.0);
            }
            assert_eq!(lines(&all[0], 0.5).unwrap().lines().count(), size);
        }
    }

    #[test]
    fn wrong_sum_is_bad() {
        let mut data = vec![3.0, 6.0, 9.0];
        assert_eq!(judge_sum(&data, 2).verdict, Verdict::Ok);
        data[1] = 6.5;
        let check = judge_sum(&data, 2);
        assert_eq!((check.verdict, check.got.as_str()), (Verdict::Bad, "6.5 at 1"));
        assert_eq!(check.expected.as_deref(), Some("6"));
    }

    #[test]
    fn larger_messages_are_sent_only_while_they_fit_into_the_time() {
        let mut sent = Vec::new();
        let rate = best_rate(Duration::from_secs(10), |bytes| {
            sent.push(bytes >> 20);
            Ok(bytes as f64 / f64::from(1 << 20))
        });
        assert_eq!(rate.unwrap().to_bits(), f64::from(1 << 20).to_bits());
        assert_eq!(sent, [1, 1, 4, 4, 4]);
    }
}
