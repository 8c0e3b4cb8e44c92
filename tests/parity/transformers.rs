//! Against `transformers`, and gradients against differences.

use slime_model::{Context, Input, Model, Segment, Shaping};
use slime_weights::WeightDir;
use tch::{Device, Kind, Tensor};

use crate::{FAMILIES, fixture, golden, grads, group, ids, load, loss, max_diff};

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

/// The residual before each layer (after the last one normed) and the experts of every token.
#[test]
fn hidden_states_and_experts_of_every_layer_are_those_of_transformers() {
    let mut num_routers = 0;
    for name in FAMILIES {
        let model = load(name, Kind::Float);
        let dir = WeightDir::open(fixture(name).join("golden.safetensors")).unwrap();
        let tokens = golden(&dir, "tokens").to_kind(Kind::Int64);
        let (b, t) = tokens.size2().unwrap();
        let segments = [Segment::alone(0, t as usize), Segment::alone(t as usize, t as usize)];
        let context = Context::packed(&segments, Kind::Float, Device::Cpu).unwrap();
        let mut context = context.recording_routes();
        let states = model.hidden_states(&mut context, &tokens.view([-1])).unwrap();
        if dir.info("hidden.0").is_ok() {
            assert_eq!(states.len(), model.config().num_hidden_layers + 1, "{name}");
            for (at, state) in states.iter().enumerate() {
                let diff = max_diff(&state.view([b, t, -1]), &golden(&dir, &format!("hidden.{at}")));
                assert!(diff < 1e-4, "{name}: hidden states before layer {at} differ by {diff}");
            }
        }
        let Some(moe) = &model.config().moe else { continue };
        let ids = context.take_routes().unwrap().unwrap().ids().unwrap();
        for (place, layer) in moe.layers.iter().enumerate() {
            let want = Vec::<i32>::try_from(golden(&dir, &format!("router.{layer}")).view([-1])).unwrap();
            for (token, row) in ids.chunks(moe.layers.len() * moe.top_k).enumerate() {
                let mut got = row[place * moe.top_k..(place + 1) * moe.top_k].to_vec();
                got.sort_unstable();
                let want: Vec<u16> =
                    want[token * moe.top_k..(token + 1) * moe.top_k].iter().map(|id| *id as u16).collect();
                assert_eq!(got, want, "{name}: experts of token {token} in layer {layer}");
            }
            num_routers += 1;
        }
    }
    assert_eq!(num_routers, 1 + 2 + 1 + 2, "routers that were compared");
}

#[test]
fn experts_in_one_tensor_give_the_model_of_split_ones() {
    let (split, fused) = (load("qwen3_moe", Kind::Float), load("qwen3_moe_fused", Kind::Float));
    for ((spec, a), (_, b)) in split.params().iter().zip(fused.params().iter()) {
        assert!(a.equal(b), "{}", spec.name);
    }
}

#[test]
fn every_family_takes_a_value_head_and_gradients_reach_what_is_trained() {
    for name in FAMILIES {
        let model = Model::load_with_value_head(fixture(name), Kind::Double, Device::Cpu, 7).unwrap();
        model.params().set_requires_grad(true);
        let mut context = Context::packed(&[Segment::alone(0, 40)], Kind::Double, Device::Cpu).unwrap();
        let hidden = model.forward(&mut context, &ids(40, 1)).unwrap();
        model.values(&hidden).unwrap().square().sum(None).backward();
        for (spec, tensor) in model.params().iter().filter(|(spec, _)| spec.name != "head") {
            let grad = tensor.grad();
            let is_moved = grad.defined() && grad.abs().max().double_value(&[]) > 0.0;
            assert_eq!(is_moved, !spec.is_frozen, "{name}: gradient of {}", spec.name);
        }
    }
}

/// The loss of the token after the next one; its gradients stay in the layer that predicts it.
#[test]
fn layer_for_further_tokens_gives_the_loss_and_gradients_of_the_definition() {
    let model = Model::load_with_mtp(fixture("mimo"), Kind::Float, Device::Cpu).unwrap();
    model.params().set_requires_grad(true);
    let dir = WeightDir::open(fixture("mimo").join("golden.safetensors")).unwrap();
    let tokens = golden(&dir, "tokens").to_kind(Kind::Int64);
    let (b, t) = tokens.size2().unwrap();
    let packed = |len: i64| {
        let segments: Vec<Segment> =
            (0..b).map(|at| Segment::alone((at * len) as usize, len as usize)).collect();
        Context::packed(&segments, Kind::Float, Device::Cpu).unwrap()
    };
    let output = model.forward_run(&mut packed(t), 0, Input::Tokens(&tokens.view([-1]))).unwrap();
    let (residual, hidden) = (output.residual_td, output.hidden_td.unwrap());
    assert!(max_diff(&hidden, &model.forward(&mut packed(t), &tokens.view([-1])).unwrap()) < 1e-6);
    let len = t - 2;
    let part = |x: &Tensor, start: i64| x.narrow(1, start, len).reshape([b * len, -1]).squeeze_dim(-1);
    let sources = part(&Tensor::arange(b * t, (Kind::Int64, Device::Cpu)).view([b, t]), 0);
    let (next, targets) = (part(&tokens, 1), part(&tokens, 2));
    let hidden = model.mtp_hidden_states(&mut packed(len), &residual, (&sources, &next)).unwrap();
    let log_probs = model.mtp_log_probs(&hidden, &targets).unwrap().view([b, len]);
    let diff = max_diff(&log_probs, &golden(&dir, "mtp.log_probs"));
    assert!(diff < 1e-4, "log_probs differ by {diff}");
    let mask = golden(&dir, "loss_mask").narrow(1, 2, len);
    (-(&log_probs * &mask).sum(None) / mask.sum(None)).backward();
    let grads = grads(&model);
    assert_eq!(grads.len(), dir.names().filter(|name| name.starts_with("mtp.grad.")).count());
    for (tensor, grad) in grads {
        let want = golden(&dir, &format!("mtp.grad.{tensor}"));
        let bound = 1e-3 * want.abs().max().double_value(&[]).max(1e-3);
        let diff = max_diff(&grad, &want);
        assert!(diff < bound, "gradient of {tensor} differs by {diff}, bound {bound}");
    }
    let error = Model::load_with_mtp(fixture("glm4_moe"), Kind::Float, Device::Cpu).unwrap_err().to_string();
    assert!(
        error.ends_with("expected a mimo model with num_nextn_predict_layers = 1, got glm4_moe with 1"),
        "{error}"
    );
}

#[test]
fn gradients_are_the_slopes_of_the_loss() {
    // Of models with experts too: a step this small changes no choice.
    for name in ["qwen2", "glm4", "qwen3_moe", "glm4_moe"] {
        slopes(name);
    }
}

fn slopes(model_name: &str) {
    let mut model = load(model_name, Kind::Double);
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
        if name.ends_with("e_score_correction_bias") {
            continue;
        }
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
        assert!(
            (slope - want).abs() <= 1e-6 * want.max(1e-2),
            "{model_name}: {name}: slope {slope}, gradient {want}"
        );
    }
}
