//! Every collective against a naive reference on 1, 2 and 3 ranks, as threads and under a real `mpirun`, with equal
//! bits; and what becomes of the peers of a rank that fails. The ranks of `mpirun` are this binary, started again.
#![allow(clippy::unwrap_used)]
#![expect(clippy::print_stdout, clippy::exit, reason = "a rank reports to the test that started it")]

use std::process::{Command, Output, Stdio};
use std::time::{Duration, Instant};

use half::bf16;
use slime_comm::{Collectives, Communicator, Dtype, Element, Op, Single, Threads, even_counts, world};
use xxhash_rust::xxh3::Xxh3;

/// Pseudo-random values of a rank, spread over magnitudes so that the order of a sum shows in its bits.
fn values(rank: usize, len: usize) -> Vec<f64> {
    let mut state = 0x9e37_79b9_7f4a_7c15u64.wrapping_mul(rank as u64 + 1);
    let mut next = || {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 33) as f64 / f64::from(1u32 << 31)
    };
    (0..len).map(|i| (next() - 0.5) * 10f64.powi(i as i32 % 7 - 3)).collect()
}

/// The naive reduction: one element after the other, ranks in order, independent of the crate's own.
fn naive<A: Copy>(all: &[Vec<A>], combine: impl Fn(A, A) -> A) -> Vec<A> {
    (0..all[0].len()).map(|i| all[1..].iter().fold(all[0][i], |acc, rank| combine(acc, rank[i]))).collect()
}

fn bytes<T: Element>(values: &[T]) -> &[u8] {
    bytemuck::cast_slice(values)
}

/// Every collective of one element type; returns nothing, feeds the results' bits to `hash`.
fn check_type<T: Element + PartialEq + std::fmt::Debug>(
    comm: &dyn Communicator,
    hash: &mut Xxh3,
    make: impl Fn(f64) -> T,
    combine: impl Fn(Op, T::Accumulator, T::Accumulator) -> T::Accumulator,
) {
    let (rank, size) = (comm.rank(), comm.size());
    for len in [0, 1, 2, 7, 1000, 10_007] {
        let all: Vec<Vec<T>> = (0..size).map(|r| values(r, len).into_iter().map(&make).collect()).collect();
        let wide: Vec<Vec<T::Accumulator>> =
            all.iter().map(|v| v.iter().map(|x| x.widen()).collect()).collect();
        for op in [Op::Sum, Op::Min, Op::Max] {
            let want: Vec<T> = naive(&wide, |a, b| combine(op, a, b)).into_iter().map(T::narrow).collect();
            let mut got = all[rank].clone();
            comm.all_reduce(&mut got, op).unwrap();
            assert_eq!(bytes(&got), bytes(&want), "all_reduce {:?} {op:?} {len} on {size}", T::DTYPE);
            hash.update(bytes(&got));

            let mut got = all[rank].clone();
            comm.all_reduce_bytes(bytemuck::cast_slice_mut(&mut got), T::DTYPE, op).unwrap();
            assert_eq!(bytes(&got), bytes(&want), "all_reduce_bytes");

            let counts = even_counts(len, size);
            let first: usize = counts[..rank].iter().sum();
            let mut part = vec![T::zeroed(); counts[rank]];
            comm.reduce_scatter(&all[rank], &counts, &mut part, op).unwrap();
            assert_eq!(bytes(&part), bytes(&want[first..first + counts[rank]]), "reduce_scatter");
        }
        for root in 0..size {
            let mut got = all[rank].clone();
            comm.broadcast(&mut got, root).unwrap();
            assert_eq!(got, all[root], "broadcast from {root} of {size}");
        }
        let mut got = vec![T::zeroed(); len * size];
        comm.all_gather(&all[rank], &mut got).unwrap();
        assert_eq!(got, all.concat(), "all_gather");
        check_uneven(comm, &all, len);
    }
}

/// Counts that differ by rank, some of them zero.
fn check_uneven<T: Element + PartialEq + std::fmt::Debug>(
    comm: &dyn Communicator,
    all: &[Vec<T>],
    len: usize,
) {
    let (rank, size) = (comm.rank(), comm.size());
    let counts: Vec<usize> = (0..size).map(|r| len * r / size).collect();
    let mut got = vec![T::zeroed(); counts.iter().sum()];
    comm.all_gather_v(&all[rank][..counts[rank]], &counts, &mut got).unwrap();
    let want: Vec<T> = (0..size).flat_map(|r| all[r][..counts[r]].to_vec()).collect();
    assert_eq!(got, want, "all_gather_v");

    // Rank a sends (a + 2b) % 4 elements to rank b, the first of its values.
    let count = |from: usize, to: usize| ((from + 2 * to) % 4).min(len);
    let out: Vec<usize> = (0..size).map(|to| count(rank, to)).collect();
    let into: Vec<usize> = (0..size).map(|from| count(from, rank)).collect();
    let input: Vec<T> = out.iter().flat_map(|&n| all[rank][..n].to_vec()).collect();
    let mut got = vec![T::zeroed(); into.iter().sum()];
    comm.all_to_all_v(&input, &out, &mut got, &into).unwrap();
    let want: Vec<T> = (0..size).flat_map(|from| all[from][..into[from]].to_vec()).collect();
    assert_eq!(got, want, "all_to_all_v");
}

/// All cases on one communicator; the hash of every reduction's bits.
fn check_all(comm: &dyn Communicator) -> u64 {
    let mut hash = Xxh3::new();
    check_type::<f32>(comm, &mut hash, |x| x as f32, float32);
    check_type::<bf16>(comm, &mut hash, bf16::from_f64, float32);
    check_type::<f64>(
        comm,
        &mut hash,
        |x| x,
        |op, a, b| match op {
            Op::Sum => a + b,
            Op::Min => a.min(b),
            Op::Max => a.max(b),
        },
    );
    check_type::<u8>(
        comm,
        &mut hash,
        |x| (x * 1e4) as u8,
        |op, a, b| match op {
            Op::Sum => a.wrapping_add(b),
            Op::Min => a.min(b),
            Op::Max => a.max(b),
        },
    );
    check_type::<u64>(
        comm,
        &mut hash,
        |x| (x.abs() * 1e9) as u64,
        |op, a, b| match op {
            Op::Sum => a.wrapping_add(b),
            Op::Min => a.min(b),
            Op::Max => a.max(b),
        },
    );
    check_point_to_point(comm);
    check_posts(comm);
    check_split(comm);
    comm.barrier().unwrap();
    hash.digest()
}

fn float32(op: Op, a: f32, b: f32) -> f32 {
    match op {
        Op::Sum => a + b,
        Op::Min => a.min(b),
        Op::Max => a.max(b),
    }
}

/// A ring; messages of one tag keep their order, another tag overtakes. The largest is beyond eager sizes.
fn check_point_to_point(comm: &dyn Communicator) {
    let (rank, size) = (comm.rank(), comm.size());
    if size == 1 {
        return;
    }
    let (next, previous) = ((rank + 1) % size, (rank + size - 1) % size);
    let large = vec![rank as u64; 200_000];
    let mut got = vec![0u64; large.len()];
    if rank % 2 == 0 {
        comm.send(&large, next, 0).unwrap();
        comm.recv(&mut got, previous, 0).unwrap();
    } else {
        comm.recv(&mut got, previous, 0).unwrap();
        comm.send(&large, next, 0).unwrap();
    }
    assert_eq!(got, vec![previous as u64; got.len()]);
    for value in [1u8, 2] {
        comm.send(&[value], next, 7).unwrap();
    }
    comm.send(&[3u8], next, 255).unwrap();
    let mut one = [0u8];
    for (tag, want) in [(255, 3), (7, 1), (7, 2)] {
        comm.recv(&mut one, previous, tag).unwrap();
        assert_eq!(one[0], want);
    }
}

/// Every rank sends before any receives, messages of all sizes, from memory that it uses for something else at once.
fn check_posts(comm: &dyn Communicator) {
    let (rank, size) = (comm.rank(), comm.size());
    if size == 1 {
        return;
    }
    let (next, previous) = ((rank + 1) % size, (rank + size - 1) % size);
    let lens = [0, 1, 5000, 700_000, 3];
    let mut buffer = Vec::new();
    for (at, len) in lens.into_iter().enumerate() {
        buffer.clear();
        buffer.resize(len, (10 * rank + at) as u64);
        comm.send_later(&buffer, next, 3).unwrap();
        buffer.fill(u64::MAX);
    }
    // Other messages go between them.
    let mut sum = [1u64];
    comm.all_reduce(&mut sum, Op::Sum).unwrap();
    assert_eq!(sum[0], size as u64);
    for (at, len) in lens.into_iter().enumerate() {
        let mut got = vec![0u64; len];
        comm.recv(&mut got, previous, 3).unwrap();
        assert_eq!(got, vec![(10 * previous + at) as u64; len]);
    }
    assert!(comm.send_later(&[1u8], size, 3).is_err(), "there is no such rank");
}

/// Even and odd ranks apart, in reversed order; a collective of the parts does not mix with the whole.
fn check_split(comm: &dyn Communicator) {
    let (rank, size) = (comm.rank(), comm.size());
    let part = comm.split(rank as u32 % 2, (size - rank) as u32).unwrap();
    let want: Vec<u64> = (0..size).rev().filter(|r| r % 2 == rank % 2).map(|r| r as u64).collect();
    let mut got = vec![0u64; part.size()];
    part.all_gather(&[rank as u64], &mut got).unwrap();
    assert_eq!(got, want);
    assert_eq!(want[part.rank()], rank as u64);
    let mut sum = [1u64];
    comm.all_reduce(&mut sum, Op::Sum).unwrap();
    assert_eq!(sum[0], size as u64);
}

#[test]
fn collectives_match_the_naive_reference_on_threads() {
    for size in 1..=3 {
        let hashes = Threads::spawn(size, |comm| check_all(&comm)).unwrap();
        assert!(hashes.iter().all(|h| *h == hashes[0]), "all ranks have the same bits");
    }
    assert_eq!(check_all(&Single), Threads::spawn(1, |comm| check_all(&comm)).unwrap()[0]);
}

#[test]
fn mpi_gives_the_bits_of_threads() {
    for size in 1..=3 {
        let Some(out) = mpirun(size, "check") else { return };
        assert!(out.status.success(), "{}", text(&out));
        let want = Threads::spawn(size, |comm| check_all(&comm)).unwrap()[0];
        let printed = format!("bits {want:016x}");
        assert_eq!(
            text(&out).matches(&printed).count(),
            size,
            "expected {printed} of {size} ranks: {}",
            text(&out)
        );
    }
}

#[test]
fn a_failing_mpi_rank_ends_its_waiting_peers_with_its_code() {
    let Some(out) = mpirun(3, "abort") else { return };
    assert_eq!(out.status.code(), Some(65), "{}", text(&out));
}

#[test]
fn an_mpi_rank_that_only_exits_still_ends_its_peers() {
    let Some(out) = mpirun(2, "exit") else { return };
    assert_eq!(out.status.code(), Some(66), "{}", text(&out));
}

#[test]
fn an_mpi_message_of_another_size_is_an_error() {
    let Some(out) = mpirun(2, "short") else { return };
    assert!(text(&out).contains("shorter than the buffer"), "{}", text(&out));
    assert!(out.status.success(), "{}", text(&out));
}

#[test]
fn waiting_in_a_barrier_takes_no_processor_time() {
    let Some(out) = mpirun(2, "wait") else { return };
    assert!(out.status.success(), "{}", text(&out));
    let used: u64 = text(&out)
        .split("waited with ticks ")
        .nth(1)
        .unwrap()
        .split_whitespace()
        .next()
        .unwrap()
        .parse()
        .unwrap();
    assert!(used <= 40, "2 s of waiting used {used} ticks of 10 ms");
}

#[test]
fn a_missing_plugin_says_where_it_was_looked_for() {
    let out = rank_command("check")
        .env("OMPI_COMM_WORLD_SIZE", "2")
        .env("OMPI_COMM_WORLD_RANK", "0")
        .env("SLIME_MPI_PLUGIN", "/nowhere/libslime_mpi.so")
        .output()
        .unwrap();
    assert!(!out.status.success());
    assert!(text(&out).contains("/nowhere/libslime_mpi.so"), "{}", text(&out));
}

#[test]
fn a_failing_thread_rank_wakes_its_peers() {
    let waiting = std::sync::Mutex::new(Vec::new());
    let error = Threads::spawn(3, |comm| {
        if comm.rank() == 1 {
            comm.abort(65);
        }
        waiting.lock().unwrap().push(comm.barrier().unwrap_err().exit_code());
    })
    .unwrap_err();
    assert_eq!((error.exit_code(), error.to_string().as_str()), (65, "rank 1 aborted with code 65"));
    assert_eq!(*waiting.lock().unwrap(), [65, 65]);

    let left = Threads::spawn(2, |comm| if comm.rank() == 0 { comm.barrier() } else { Ok(()) }).unwrap();
    assert_eq!(left[0].as_ref().unwrap_err().to_string(), "rank 1 ended while rank 0 waited for it");
}

#[test]
fn lengths_that_do_not_fit_are_errors() {
    let mut bytes = [0u8; 7];
    assert!(Single.all_reduce_bytes(&mut bytes, Dtype::F32, Op::Sum).is_err());
    assert!(Single.all_gather(&[1u8, 2], &mut bytes).is_err());
    assert!(Single.send(&[1u8], 1, 0).is_err());
    let sizes = Threads::spawn(2, |comm| {
        if comm.rank() == 0 { comm.send(&[1u8; 3], 1, 0) } else { comm.recv(&mut [0u8; 4], 0, 0) }
    })
    .unwrap();
    assert_eq!(sizes[1].as_ref().unwrap_err().to_string(), "message from rank 0: expected 4 bytes, got 3");
}

/// What a rank under `mpirun` does.
#[test]
#[ignore = "the body of one rank; the tests above start it under mpirun"]
fn rank_body() {
    let comm = world().unwrap();
    match std::env::var("SLIME_TEST_CASE").unwrap().as_str() {
        "check" => println!("bits {:016x}", check_all(&*comm)),
        "abort" if comm.rank() == 1 => comm.abort(65),
        "abort" => comm.all_reduce(&mut [1.0f32], Op::Sum).unwrap(),
        "exit" if comm.rank() == 1 => std::process::exit(66),
        "exit" => comm.barrier().unwrap(),
        "short" if comm.rank() == 0 => comm.send(&[1u8; 3], 1, 0).unwrap(),
        "short" => println!("{}", comm.recv(&mut [0u8; 4], 0, 0).unwrap_err()),
        "wait" if comm.rank() == 1 => {
            std::thread::sleep(Duration::from_secs(2));
            comm.barrier().unwrap();
        }
        "wait" => {
            let before = ticks();
            comm.barrier().unwrap();
            println!("waited with ticks {} of the processor", ticks() - before);
        }
        other => panic!("no case {other}"),
    }
    comm.finish().unwrap();
}

/// User and system time of this process in clock ticks.
fn ticks() -> u64 {
    let stat = std::fs::read_to_string("/proc/self/stat").unwrap();
    let fields: Vec<&str> = stat.rsplit(')').next().unwrap().split_whitespace().collect();
    fields[11].parse::<u64>().unwrap() + fields[12].parse::<u64>().unwrap()
}

fn rank_command(case: &str) -> Command {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args(RANK_ARGS).env("SLIME_TEST_CASE", case);
    command
}

const RANK_ARGS: [&str; 5] = ["rank_body", "--exact", "--ignored", "--nocapture", "--test-threads=1"];

/// Runs `case` on `size` ranks; `None`, said loudly, where there is no Open MPI. A hang fails after two minutes.
fn mpirun(size: usize, case: &str) -> Option<Output> {
    // The launcher beside the `mpicc` of the build, or that of the system.
    let beside = std::env::var("SLIME_MPICC").map(|mpicc| mpicc.replace("mpicc", "mpirun"));
    let launcher = beside.unwrap_or_else(|_| "mpirun".to_owned());
    let version = Command::new(&launcher).arg("--version").output();
    if !version.is_ok_and(|v| String::from_utf8_lossy(&v.stdout).contains("Open MPI")) {
        eprintln!("skipped: no mpirun of Open MPI here");
        return None;
    }
    let mut child = Command::new(&launcher)
        .args(["--allow-run-as-root", "--oversubscribe", "-n", &size.to_string()])
        .arg(std::env::current_exe().unwrap())
        .args(RANK_ARGS)
        .env("SLIME_TEST_CASE", case)
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let deadline = Instant::now() + Duration::from_secs(2 * 60);
    while child.try_wait().unwrap().is_none() {
        if Instant::now() > deadline {
            child.kill().unwrap();
            panic!("{case} on {size} ranks hangs");
        }
        std::thread::sleep(Duration::from_millis(20));
    }
    Some(child.wait_with_output().unwrap())
}

fn text(out: &Output) -> String {
    String::from_utf8_lossy(&out.stdout).into_owned() + &String::from_utf8_lossy(&out.stderr)
}
