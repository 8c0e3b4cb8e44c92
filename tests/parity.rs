//! The composed model against Hugging Face's numbers, and its ways of running against each other.
#![allow(clippy::unwrap_used, missing_docs)]

use std::path::PathBuf;

use slime_model::{Context, KvCache, Model, Segment, Shaping};
use slime_weights::WeightDir;
use tch::{Device, Kind, Tensor};

const FAMILIES: [&str; 4] = ["llama_tied", "llama", "qwen2", "qwen3"];

fn fixture(name: &str) -> PathBuf {
    let root = PathBuf::from(env!("CARGO_MANIFEST_DIR"));
    let root = if root.join("tests/fixtures").exists() { root } else { root.join("../..") };
    root.join("tests/fixtures/models").join(name)
}

fn load(name: &str, kind: Kind) -> Model {
    Model::load(fixture(name), kind, Device::Cpu).unwrap()
}

/// A golden tensor in f32.
fn golden(dir: &WeightDir, name: &str) -> Tensor {
    let view = dir.tensor(name).unwrap();
    let shape: Vec<i64> = view.shape.iter().map(|n| *n as i64).collect();
    let kind = if view.dtype == slime_weights::Dtype::I32 { Kind::Int } else { Kind::Float };
    Tensor::from_data_size(view.bytes, &shape, kind)
}

fn max_diff(a: &Tensor, b: &Tensor) -> f64 {
    assert_eq!(a.size(), b.size());
    (a.to_kind(Kind::Double) - b.to_kind(Kind::Double)).abs().max().double_value(&[])
}

fn ids(len: i64, seed: i64) -> Tensor {
    (Tensor::arange(len, (Kind::Int64, Device::Cpu)) * 37 + seed * 11).remainder(90) + 3
}

/// The mean of the negative log-probs of `targets` as the hidden states `rows` predict them.
fn loss(model: &Model, hidden: &Tensor, rows: &[i64], targets: &Tensor) -> Tensor {
    let hidden = hidden.index_select(0, &Tensor::from_slice(rows));
    let (log_probs, _) = model.head_log_probs(&hidden, targets, &Shaping::at(1.0)).unwrap();
    -log_probs.mean(None)
}

fn grads(model: &Model) -> Vec<(String, Tensor)> {
    model.params().grad_views().unwrap().into_iter().map(|(name, grad)| (name, grad.copy())).collect()
}

#[test]
fn logits_loss_and_gradients_are_those_of_transformers() {
    for name in FAMILIES {
        let model = load(name, Kind::Float);
        model.params().set_requires_grad(true);
        let dir = WeightDir::open(fixture(name).join("golden.safetensors")).unwrap();
        let tokens = golden(&dir, "tokens").to_kind(Kind::Int64);
        let (b, t) = tokens.size2().unwrap();
        let segments = [Segment::alone(0, t as usize), Segment::alone(t as usize, t as usize)];
        let mut context = Context::packed(&segments, Kind::Float, Device::Cpu).unwrap();
        let hidden = model.forward(&mut context, &tokens.view([-1])).unwrap();
        let logits = model.logits(&hidden).unwrap().view([b, t, -1]);
        let diff = max_diff(&logits, &golden(&dir, "logits"));
        assert!(diff < 1e-4, "{name}: logits differ by {diff}");

        let predicting = hidden.view([b, t, -1]).narrow(1, 0, t - 1).reshape([b * (t - 1), -1]);
        let targets = tokens.narrow(1, 1, t - 1).reshape([-1]);
        let (log_probs, _) = model.head_log_probs(&predicting, &targets, &Shaping::at(1.0)).unwrap();
        let diff = max_diff(&log_probs.view([b, t - 1]), &golden(&dir, "log_probs"));
        assert!(diff < 1e-4, "{name}: log_probs differ by {diff}");
        let mask = golden(&dir, "loss_mask").narrow(1, 1, t - 1).reshape([-1]);
        let loss = -(&log_probs * &mask).sum(None) / mask.sum(None);
        assert!(max_diff(&loss.view([1]), &golden(&dir, "loss")) < 1e-5, "{name}: loss");

        loss.backward();
        let grads = grads(&model);
        assert_eq!(grads.len(), dir.names().filter(|n| n.starts_with("grad.")).count(), "{name}: gradients");
        for (tensor, grad) in grads {
            let want = golden(&dir, &format!("grad.{tensor}"));
            let bound = 1e-3 * want.abs().max().double_value(&[]).max(1e-3);
            let diff = max_diff(&grad, &want);
            assert!(diff < bound, "{name}: gradient of {tensor} differs by {diff}, bound {bound}");
        }
    }
}

#[test]
fn packed_sequences_do_not_see_each_other() {
    let model = load("qwen3", Kind::Float);
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
        assert!(diff < 2e-5, "segment at {} differs by {diff}", segment.start);
    }
}

/// Hidden states of the responses, the loss over their tokens, and its gradients; prompts shared or repeated.
fn group(
    model: &mut Model,
    prompt: i64,
    responses: &[i64],
    is_shared: bool,
) -> (Tensor, Vec<(String, Tensor)>) {
    let (mut segments, mut tokens, mut rows, mut targets) = (vec![], vec![], vec![], vec![]);
    let mut at = 0usize;
    let p = prompt as usize;
    for (i, len) in responses.iter().enumerate() {
        let (n, response) = (*len as usize, ids(*len, 5 + i as i64));
        if is_shared {
            if i == 0 {
                segments.push(Segment::alone(0, p));
                tokens.push(ids(prompt, 1));
                at = p;
            }
            segments.push(Segment::after((0, p), at, n));
            tokens.push(response.shallow_clone());
            rows.push(prompt - 1);
            rows.extend((0..n - 1).map(|j| (at + j) as i64));
            at += n;
        } else {
            segments.push(Segment::alone(at, p + n));
            tokens.extend([ids(prompt, 1), response.shallow_clone()]);
            rows.extend((0..n).map(|j| (at + p - 1 + j) as i64));
            at += p + n;
        }
        targets.push(response);
    }
    model.params_mut().zero_grad();
    model.params().set_requires_grad(true);
    let kind = model.params().kind();
    let mut context = Context::packed(&segments, kind, Device::Cpu).unwrap();
    let hidden = model.forward(&mut context, &Tensor::cat(&tokens, 0)).unwrap();
    loss(model, &hidden, &rows, &Tensor::cat(&targets, 0)).backward();
    (hidden.detach().index_select(0, &Tensor::from_slice(&rows)), grads(model))
}

#[test]
fn shared_prompt_gives_the_numbers_of_repeated_prompts() {
    // Short: one masked call. Long: a call per segment with the prompt's keys before its own.
    for (name, prompt, responses) in [("llama_tied", 9, [5, 1, 7]), ("qwen3", 200, [150, 180, 90])] {
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
fn gradients_are_the_slopes_of_the_loss() {
    let mut model = load("qwen2", Kind::Double);
    let (_, grads) = group(&mut model, 6, &[4, 3], true);
    model.params().set_requires_grad(false);
    let value = |model: &Model| {
        let segments = [Segment::alone(0, 6), Segment::after((0, 6), 6, 4), Segment::after((0, 6), 10, 3)];
        let mut context = Context::packed(&segments, Kind::Double, Device::Cpu).unwrap();
        let tokens = Tensor::cat(&[ids(6, 1), ids(4, 5), ids(3, 6)], 0);
        let hidden = model.forward(&mut context, &tokens).unwrap();
        let targets = Tensor::cat(&[ids(4, 5), ids(3, 6)], 0);
        loss(model, &hidden, &[5, 6, 7, 8, 5, 10, 11], &targets).double_value(&[])
    };
    let step = 1e-6;
    for (name, view) in model.params().views().unwrap() {
        let grad = &grads.iter().find(|(n, _)| *n == name).unwrap().1;
        let direction = grad / grad.norm().clamp_min(1e-30);
        let mut view = view;
        let before = view.copy();
        view.copy_(&(&before + &direction * step));
        let up = value(&model);
        view.copy_(&(&before - &direction * step));
        let down = value(&model);
        view.copy_(&before);
        let (slope, want) = ((up - down) / (2.0 * step), grad.norm().double_value(&[]));
        assert!((slope - want).abs() <= 1e-6 * want.max(1e-2), "{name}: slope {slope}, gradient {want}");
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
        let mut kv = KvCache::new(model.config(), 16, 8, Kind::Float, Device::Cpu).unwrap();
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
        let run = |model: &Model| {
            let mut context = Context::packed(&segments, model.params().kind(), Device::Cpu).unwrap();
            model.forward(&mut context, &tokens).unwrap()
        };
        let (want, got) = (run(&wide), run(&model));
        assert_eq!(got.kind(), Kind::BFloat16);
        let bound = 0.05 * want.abs().max().double_value(&[]);
        assert!(max_diff(&got, &want) < bound, "{name}: packed");

        let mut kv = KvCache::new(model.config(), 3, 8, Kind::BFloat16, Device::Cpu).unwrap();
        let table = [vec![1, 0, 2]];
        for (start, len) in [(0u32, 12u32), (12, 11), (23, 1)] {
            let (q_lens, context_lens) = ([len], [start + len]);
            let mut context = Context::paged(&mut kv, &table, &q_lens, &context_lens).unwrap();
            let new = tokens.narrow(0, i64::from(start), i64::from(len));
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
    let mut kv = KvCache::new(model.config(), 4, 8, Kind::Float, Device::Cpu).unwrap();
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
