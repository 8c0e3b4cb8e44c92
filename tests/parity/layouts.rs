//! Packed, with shared prompts, in pages, in bf16: the same numbers.

use slime_config::KvCacheDtype;
use slime_model::{Context, KvCache, Model, Segment};
use tch::{Device, Kind, Tensor};

use crate::{FAMILIES, grads, group, ids, load, loss, max_diff, replaying};

#[test]
fn packed_sequences_do_not_see_each_other() {
    for name in FAMILIES {
        packed_alone(name);
    }
}

fn packed_alone(name: &str) {
    let model = load(name, Kind::Float);
    let lens = [400i64, 7, 30];
    let parts: Vec<Tensor> = lens.iter().enumerate().map(|(i, len)| ids(*len, i as i64)).collect();
    let mut start = 0;
    let segments = lens.map(|len| {
        start += len as usize;
        Segment::alone(start - len as usize, len as usize)
    });
    let mut context = Context::packed(&segments, Kind::Float, Device::Cpu).unwrap();
    let packed = model.forward(&mut context, &Tensor::cat(&parts, 0)).unwrap();
    for (segment, part) in segments.iter().zip(&parts) {
        let mut context =
            Context::packed(&[Segment::alone(0, segment.len)], Kind::Float, Device::Cpu).unwrap();
        let alone = model.forward(&mut context, part).unwrap();
        let diff = max_diff(&packed.narrow(0, segment.start as i64, segment.len as i64), &alone);
        assert!(diff < 2e-5, "{name}: segment at {} differs by {diff}", segment.start);
    }
}

#[test]
fn shared_prompt_gives_the_numbers_of_repeated_prompts() {
    // Short: one masked call. Long: a call per segment with the prompt's keys before its own.
    for (name, prompt, responses) in [
        ("llama_tied", 9, [5, 1, 7]),
        ("qwen3", 200, [150, 180, 90]),
        ("qwen3_moe", 200, [150, 180, 90]),
        ("glm4", 9, [5, 1, 7]),
        ("glm4_moe", 9, [5, 1, 7]),
        ("minimax_m2", 9, [5, 1, 7]),
    ] {
        let mut model = load(name, Kind::Double);
        let (hidden, grads) = group(&mut model, prompt, &responses, false);
        let (shared_hidden, shared_grads) = group(&mut model, prompt, &responses, true);
        let diff = max_diff(&shared_hidden, &hidden);
        assert!(diff < 1e-10, "{name}: hidden states differ by {diff}");
        assert_eq!(grads.len(), shared_grads.len());
        for ((tensor, grad), (_, shared)) in grads.iter().zip(&shared_grads) {
            let diff = max_diff(grad, shared);
            assert!(diff < 1e-10, "{name}: gradient of {tensor} differs by {diff}");
        }
    }
}

#[test]
fn paged_steps_give_the_hidden_states_of_the_whole_sequence() {
    for name in FAMILIES {
        let model = load(name, Kind::Float);
        let total = 41i64;
        let sequences = [ids(total, 1), ids(total, 2)];
        let whole: Vec<Tensor> = sequences
            .iter()
            .map(|tokens| {
                let segments = [Segment::alone(0, total as usize)];
                let mut context = Context::packed(&segments, Kind::Float, Device::Cpu).unwrap();
                model.forward(&mut context, tokens).unwrap()
            })
            .collect();
        let mut kv = KvCache::new(&model, 16, 8, KvCacheDtype::Auto).unwrap();
        let tables = [vec![3, 1, 7, 0, 9, 11], vec![2, 15, 4, 5, 14, 6]];
        // A prefill, a longer chunk over what is kept, one new token, and a mixture of chunk and single token.
        let mut done = [0u32; 2];
        for q_lens in [[13, 20], [14, 9], [1, 1], [1, 1], [12, 10]] {
            let lens = [done[0] + q_lens[0], done[1] + q_lens[1]];
            let new: Vec<Tensor> =
                (0..2).map(|s| sequences[s].narrow(0, i64::from(done[s]), i64::from(q_lens[s]))).collect();
            let mut context = Context::paged(&mut kv, &tables, &q_lens, &lens).unwrap();
            let hidden = model.forward(&mut context, &Tensor::cat(&new, 0)).unwrap();
            let mut at = 0;
            for s in 0..2 {
                let got = hidden.narrow(0, at, i64::from(q_lens[s]));
                let want = whole[s].narrow(0, i64::from(done[s]), i64::from(q_lens[s]));
                let diff = max_diff(&got, &want);
                assert!(diff < 2e-5, "{name}: sequence {s} differs by {diff} at {}", done[s]);
                at += i64::from(q_lens[s]);
            }
            done = lens;
        }
        assert_eq!(done, [41, 41]);
    }
}

#[test]
fn bf16_stays_near_f32_packed_and_paged() {
    for name in FAMILIES {
        let (wide, model) = (load(name, Kind::Float), load(name, Kind::BFloat16));
        let tokens = ids(24, 1);
        let segments = [Segment::alone(0, 10), Segment::after((0, 10), 10, 14)];
        // Rounding may choose other experts, which is no small change: both go where the wide model's routers go.
        let mut recording = Context::packed(&segments, Kind::Float, Device::Cpu).unwrap().recording_routes();
        let want = wide.forward(&mut recording, &tokens).unwrap();
        let routes = recording.take_routes().unwrap().map(|routes| routes.ids().unwrap());
        let run = |model: &Model| {
            let context = Context::packed(&segments, model.params().kind(), Device::Cpu).unwrap();
            model.forward(&mut replaying(&wide, context, routes.as_deref(), 0), &tokens).unwrap()
        };
        let got = run(&model);
        assert_eq!(got.kind(), Kind::BFloat16);
        let bound = 0.05 * want.abs().max().double_value(&[]);
        assert!(max_diff(&got, &want) < bound, "{name}: packed");

        let mut kv = KvCache::new(&model, 3, 8, KvCacheDtype::Auto).unwrap();
        let table = [vec![1, 0, 2]];
        for (start, len) in [(0u32, 12u32), (12, 11), (23, 1)] {
            let (q_lens, context_lens) = ([len], [start + len]);
            let context = Context::paged(&mut kv, &table, &q_lens, &context_lens).unwrap();
            let new = tokens.narrow(0, i64::from(start), i64::from(len));
            let mut context = replaying(&wide, context, routes.as_deref(), start as usize);
            let paged = model.forward(&mut context, &new).unwrap();
            let diff = max_diff(&paged, &want.narrow(0, i64::from(start), i64::from(len)));
            assert!(diff < bound, "{name}: paged at {start} differs by {diff}, bound {bound}");
        }

        model.params().set_requires_grad(true);
        loss(&model, &run(&model), &[8, 9, 10], &ids(3, 2)).backward();
        assert!(
            grads(&model).iter().all(|(_, grad)| bool::try_from(grad.isfinite().all()).unwrap()),
            "{name}"
        );
    }
}

#[test]
fn copied_block_continues_like_the_original() {
    let model = load("llama", Kind::Float);
    let mut kv = KvCache::new(&model, 4, 8, KvCacheDtype::Auto).unwrap();
    let prompt = ids(5, 1);
    let table = [vec![0]];
    let _ = model.forward(&mut Context::paged(&mut kv, &table, &[5], &[5]).unwrap(), &prompt).unwrap();
    kv.copy_blocks(&[(0, 2)]).unwrap();
    let tables = [vec![0], vec![2]];
    let mut context = Context::paged(&mut kv, &tables, &[1, 1], &[6, 6]).unwrap();
    let hidden = model.forward(&mut context, &Tensor::from_slice(&[9i64, 9])).unwrap();
    assert!(max_diff(&hidden.get(0), &hidden.get(1)) < 1e-6);
}

#[test]
fn token_count_must_fit_the_context() {
    let model = load("llama", Kind::Float);
    let mut context = Context::packed(&[Segment::alone(0, 4)], Kind::Float, Device::Cpu).unwrap();
    let error = model.forward(&mut context, &ids(3, 0)).unwrap_err();
    assert_eq!(error.to_string(), "tokens of a forward pass: expected 4, got 3");
}
