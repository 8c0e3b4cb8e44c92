//! Collectives of tensors on GPUs against their definition, in a world of as many ranks as the launcher started, each
//! with a GPU of its own: `mpirun -n 2 nccl`. `SLIME_REQUIRE_CUDA=1` makes a missing GPU a failure; without it the test
//! says so and checks nothing.
#![allow(clippy::unwrap_used, reason = "a test")]

#[path = "../../../tests/gpu/gate.rs"]
mod gate;

use std::time::Instant;

use slime_comm::{Nccl, Op, Placement, world};
use slime_torch::device_collectives::{all_gather, all_reduce, broadcast, reduce_scatter};
use tch::{Cuda, Device, Kind, Tensor};

/// Elements of the timed all-reduce: 512 MB of f32.
const TIMED_LEN: i64 = 128 << 20;
const CALLS: usize = 10;

/// A tensor that differs by rank, in whole numbers that every dtype adds exactly.
fn of_rank(rank: usize, rows: i64, kind: Kind, device: Device) -> Tensor {
    (Tensor::arange(rows * 3, (Kind::Int64, device)).remainder(7) + rank as i64 * 8)
        .to_kind(kind)
        .view((rows, 3))
}

#[test]
fn collectives_on_gpus_are_those_of_their_definition() {
    if !gate::has_gpu() {
        return;
    }
    let host = world().unwrap();
    let (rank, size) = (host.rank(), host.size());
    let number = Placement::detect().unwrap().local_rank;
    let nccl = Nccl::meet(&*host, number).unwrap().expect("a GPU for each rank");
    assert_eq!(nccl.size(), size);
    let device = Device::Cuda(number);
    for kind in [Kind::Float, Kind::Double, Kind::BFloat16, Kind::Uint8] {
        let make = |rank: usize, rows: i64| of_rank(rank, rows, kind, device);
        for rows in [1, 5, 1000] {
            let total = |rows: i64| {
                (1..size).fold(make(0, rows).to_kind(Kind::Double), |sum, r| {
                    sum + make(r, rows).to_kind(Kind::Double)
                })
            };
            let same = |got: &Tensor, expected: &Tensor, what: &str| {
                assert!(got.equal(&expected.to_kind(kind)), "{what}, {kind:?}, {rows} rows on {size} ranks");
            };
            let mut got = make(rank, rows);
            all_reduce(&mut got, &nccl, Op::Sum).unwrap();
            same(&got, &total(rows), "all_reduce");
            let mut got = make(rank, rows);
            all_reduce(&mut got, &nccl, Op::Max).unwrap();
            same(&got, &make(size - 1, rows), "maximum");
            for root in 0..size {
                let mut got = make(rank, rows);
                broadcast(&mut got, &nccl, root).unwrap();
                same(&got, &make(root, rows), "broadcast");
            }
            let every: Vec<Tensor> = (0..size).map(|r| make(r, rows)).collect();
            same(&all_gather(&make(rank, rows), &nccl).unwrap(), &Tensor::stack(&every, 0), "all_gather");
            let parts = make(rank, rows * size as i64).view((size as i64, rows, 3));
            let expected = total(rows * size as i64).view((size as i64, rows, 3)).get(rank as i64);
            same(&reduce_scatter(&parts, &nccl, Op::Sum).unwrap(), &expected, "reduce_scatter");
        }
    }
    let wrong = reduce_scatter(&of_rank(rank, size as i64 + 1, Kind::Float, device), &nccl, Op::Sum);
    assert!(wrong.unwrap_err().to_string().contains("rows"));
    let mut transposed = of_rank(rank, 4, Kind::Float, device).tr();
    assert!(all_reduce(&mut transposed, &nccl, Op::Sum).is_err());

    let mut large = Tensor::ones(TIMED_LEN, (Kind::Float, device));
    all_reduce(&mut large, &nccl, Op::Sum).unwrap();
    Cuda::synchronize(number as i64);
    host.barrier().unwrap();
    let started = Instant::now();
    for _ in 0..CALLS {
        all_reduce(&mut large, &nccl, Op::Max).unwrap();
    }
    Cuda::synchronize(number as i64);
    let seconds = started.elapsed().as_secs_f64() / CALLS as f64;
    if rank == 0 {
        eprintln!("{size} ranks: all-reduce of 512 MB at {:.0} GB/s", 4.0 * TIMED_LEN as f64 / seconds / 1e9);
    }
    drop(nccl);
    host.finish().unwrap();
}
