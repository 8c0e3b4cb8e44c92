//! The kernel against its reference, and the reference against dense attention. `SLIME_REQUIRE_CUDA=1` makes a missing
//! GPU a failure; without it those tests say so and check nothing.
#![allow(clippy::unwrap_used, reason = "a test")]

#[path = "../../../tests/gpu/gate.rs"]
mod gate;

use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;
use slime_kernel::kv_fp8::encode;
use slime_kernel::paged_attention::{Items, reference, serve};
use tch::{Device, Kind, Tensor};

const BLOCK_SIZE: usize = 16;

/// Queries, cache and items of sequences of these lengths, whose blocks lie in no order.
struct Case {
    q: Tensor,
    keys: Tensor,
    values: Tensor,
    items: Items,
}

fn case(lens: &[usize], heads: i64, kv_heads: i64, dim: i64, kind: Kind, device: Device) -> Case {
    let mut random = ChaCha8Rng::seed_from_u64(7);
    let blocks_of = |len: &usize| len.div_ceil(BLOCK_SIZE);
    let num_blocks: usize = lens.iter().map(blocks_of).sum();
    let mut free: Vec<i32> = (0..num_blocks as i32).collect();
    for i in (1..free.len()).rev() {
        free.swap(i, random.random_range(0..=i));
    }
    let width = lens.iter().map(blocks_of).max().unwrap();
    let mut tables = Vec::new();
    for len in lens {
        let mut table: Vec<i32> = free.split_off(free.len() - blocks_of(len));
        table.resize(width, 0);
        tables.extend(table);
    }
    let mut normal = |size: [i64; 3]| {
        let values: Vec<f32> = (0..size.iter().product::<i64>())
            .map(|_| (0..12).map(|_| random.random::<f32>()).sum::<f32>() - 6.0)
            .collect();
        Tensor::from_slice(&values).view(size).to_kind(kind).to_device(device)
    };
    // One row more than there are items: rows that nobody asked for stay as they are.
    let q = normal([lens.len() as i64 + 1, heads, dim]);
    let slots = (num_blocks * BLOCK_SIZE) as i64;
    let (keys, values) = (normal([slots, kv_heads, dim]), normal([slots, kv_heads, dim]));
    let int = |values: &[i32]| Tensor::from_slice(values).to_device(device);
    let count = lens.len() as i32;
    let items = Items {
        rows_n: int(&(0..count).map(|i| count - i).collect::<Vec<_>>()),
        seqs_n: int(&(0..count).collect::<Vec<_>>()),
        visible_n: int(&lens.iter().map(|len| *len as i32).collect::<Vec<_>>()),
        tables_sb: int(&tables).view((lens.len() as i64, width as i64)),
        max_visible: lens.iter().copied().max().unwrap(),
        block_size: BLOCK_SIZE,
        partials: None,
    };
    Case { q, keys, values, items }
}

fn distance(got: &Tensor, expected: &Tensor) -> f64 {
    let wide = |x: &Tensor| x.to_kind(Kind::Double).to_device(Device::Cpu);
    let (got, expected) = (wide(got), wide(expected));
    (&got - &expected).norm().double_value(&[]) / expected.norm().double_value(&[])
}

#[test]
fn reference_is_dense_attention_of_the_gathered_positions() {
    let case = case(&[5, 40], 6, 2, 8, Kind::Double, Device::Cpu);
    let got = reference(&case.q, (&case.keys, &case.values), &case.items).unwrap();
    for (i, len) in [5i64, 40].into_iter().enumerate() {
        let table = Vec::<i64>::try_from(case.items.tables_sb.get(i as i64).to_kind(Kind::Int64)).unwrap();
        let size = BLOCK_SIZE as i64;
        let slots: Vec<i64> = (0..len).map(|at| table[(at / size) as usize] * size + at % size).collect();
        let slots = Tensor::from_slice(&slots);
        let heads = |cache: &Tensor| {
            cache.index_select(0, &slots).repeat_interleave_self_int(3, 1, 6).permute([1, 0, 2])
        };
        let query = case.q.get(2 - i as i64).unsqueeze(1);
        let (keys, values) = (heads(&case.keys), heads(&case.values));
        let expected = Tensor::scaled_dot_product_attention(
            &query,
            &keys,
            &values,
            None::<Tensor>,
            0.0,
            false,
            None,
            false,
        );
        assert!(distance(&got.get(i as i64), &expected.squeeze_dim(1)) < 1e-12);
    }
}

#[test]
fn kernel_reads_a_cache_in_e4m3() {
    if !gate::has_gpu() {
        return;
    }
    let device = Device::Cuda(0);
    let lens: [&[usize]; 3] = [&[1], &[17, 511, 512, 513], &[1, 2, 3, 64, 1500]];
    for (heads, kv_heads, dim) in
        [(9, 3, 64), (32, 8, 128), (28, 4, 128), (16, 16, 256), (4, 2, 8), (11, 1, 32)]
    {
        for (kind, tolerance) in [(Kind::Float, 1e-5), (Kind::BFloat16, 4e-3)] {
            for lens in lens {
                let case = case(lens, heads, kv_heads, dim, kind, device);
                // Subnormal and large ones too.
                let codes = |x: &Tensor| encode(&(x * x.abs().pow_tensor_scalar(3))).unwrap();
                let cache = (&codes(&case.keys), &codes(&case.values));
                let (q, out) = (&case.q * 0.02, case.q.zeros_like());
                serve(&out, &q, cache, &case.items).unwrap();
                let got = out.index_select(0, &case.items.rows_n.to_kind(Kind::Int64));
                let error = distance(&got, &reference(&q, cache, &case.items).unwrap());
                assert!(
                    error < tolerance,
                    "{heads}/{kv_heads} heads of {dim}, {kind:?}, {lens:?}: {error:e}"
                );
            }
        }
    }
}

#[test]
fn kernel_equals_its_reference_whatever_the_shape_and_the_batch() {
    if !gate::has_gpu() {
        return;
    }
    let device = Device::Cuda(0);
    let shapes = [(9, 3, 64), (32, 8, 128), (28, 4, 128), (16, 16, 256), (12, 1, 64), (4, 2, 8), (11, 1, 32)];
    let lens: [&[usize]; 4] = [&[1], &[17, 511, 512, 513], &[1, 2, 3, 16, 64, 100, 1500], &[4000, 7]];
    for (heads, kv_heads, dim) in shapes {
        for (kind, tolerance) in [(Kind::Float, 1e-5), (Kind::BFloat16, 4e-3)] {
            for lens in lens {
                let case = case(lens, heads, kv_heads, dim, kind, device);
                let cache = (&case.keys, &case.values);
                let out = case.q.full_like(f64::NAN);
                serve(&out, &case.q, cache, &case.items).unwrap();
                let rows = case.items.rows_n.to_kind(Kind::Int64);
                let got = out.index_select(0, &rows);
                let error = distance(&got, &reference(&case.q, cache, &case.items).unwrap());
                assert!(
                    error < tolerance,
                    "{heads}/{kv_heads} heads of {dim}, {kind:?}, {lens:?}: {error:e}"
                );
                assert!(
                    bool::try_from(out.get(0).isnan().all()).unwrap(),
                    "a row nobody asked for was written"
                );
                // An item alone gives the bits it gives in a batch.
                let single = Items {
                    rows_n: case.items.rows_n.narrow(0, 0, 1),
                    seqs_n: case.items.seqs_n.narrow(0, 0, 1),
                    visible_n: case.items.visible_n.narrow(0, 0, 1),
                    tables_sb: case.items.tables_sb.shallow_clone(),
                    max_visible: lens[0],
                    block_size: BLOCK_SIZE,
                    partials: None,
                };
                let alone = case.q.full_like(f64::NAN);
                serve(&alone, &case.q, cache, &single).unwrap();
                let first = rows.narrow(0, 0, 1);
                assert!(alone.index_select(0, &first).equal(&out.index_select(0, &first)), "{lens:?}");
            }
        }
    }
    eprintln!("kernel checked on {} shapes", shapes.len());
}
