//! Experts that are recorded and replayed.

use slime_config::KvCacheDtype;
use slime_model::{Context, KvCache, Routes, Segment};
use tch::{Device, Kind, Tensor};

use crate::{ids, load, max_diff};

/// A pass that goes where another model's routers went, with this model's scores.
#[test]
fn replayed_routes_are_taken_packed_and_paged_and_bring_perturbed_routers_together() {
    for name in ["qwen3_moe", "glm4_moe", "minimax_m2"] {
        let model = load(name, Kind::Float);
        let mut other = load(name, Kind::Float);
        tch::no_grad(|| {
            for (spec, tensor) in other.params_mut().iter().filter(|(spec, _)| spec.name.ends_with("router"))
            {
                let noise = Tensor::arange(tensor.numel() as i64, (Kind::Float, Device::Cpu)).sin() * 0.05;
                let mut tensor = tensor.shallow_clone();
                assert!(!spec.is_frozen);
                let _ = tensor.g_add_(&noise.view(tensor.size().as_slice()));
            }
        });
        let tokens = ids(161, 3);
        let packed = || Context::packed(&[Segment::alone(0, 161)], Kind::Float, Device::Cpu).unwrap();
        let mut recording = packed().recording_routes();
        let want = model.forward(&mut recording, &tokens).unwrap();
        let routes = recording.take_routes().unwrap().unwrap().ids().unwrap();
        let moe = model.config().moe.as_ref().unwrap();
        let shape = [161, moe.layers.len(), moe.top_k];
        let replay = |ids: &[u16]| {
            let given = Routes::new(ids, shape).unwrap();
            let mut context = packed().replaying_routes(given).unwrap().recording_routes();
            let hidden = other.forward(&mut context, &tokens).unwrap();
            let taken = context.take_routes().unwrap().unwrap().ids().unwrap();
            let is_kept = |(given, taken): (&u16, &u16)| *given == Routes::NOT_RECORDED || given == taken;
            assert!(ids.iter().zip(&taken).all(is_kept), "{name}: tokens go where they went before");
            hidden
        };
        let free = other.forward(&mut packed(), &tokens).unwrap();
        let (near, far) = (max_diff(&replay(&routes), &want), max_diff(&free, &want));
        let mean = |a: &Tensor| (a - &want).abs().mean(Kind::Double).double_value(&[]);
        // What is left is the difference of the weights; a token that went elsewhere differs by much more.
        assert!(
            near < 0.5 * far && mean(&replay(&routes)) < mean(&free),
            "{name}: {near} replayed, {far} free"
        );
        // Its own routes change nothing, and rows that nobody recorded route freely.
        let mut recording = packed().recording_routes();
        let _ = other.forward(&mut recording, &tokens).unwrap();
        let mut own = recording.take_routes().unwrap().unwrap().ids().unwrap();
        assert_ne!(own, routes, "{name}: the routers differ");
        assert!(max_diff(&replay(&own), &free) < 1e-6);
        own[shape[1] * shape[2]..].fill(Routes::NOT_RECORDED);
        assert!(max_diff(&replay(&own), &free) < 1e-6, "{name}: free rows");

        // The same in pages: a chunk, another, a single token.
        let mut kv = KvCache::new(&model, 24, 8, KvCacheDtype::Auto).unwrap();
        let table = [(0..24).rev().collect::<Vec<u32>>()];
        let (mut paged_routes, width) = (Vec::new(), shape[1] * shape[2]);
        for (start, len) in [(0usize, 80usize), (80, 80), (160, 1)] {
            let (q_lens, lens) = ([len as u32], [(start + len) as u32]);
            let new = tokens.narrow(0, start as i64, len as i64);
            let context = Context::paged(&mut kv, &table, &q_lens, &lens).unwrap();
            let mut context = context.recording_routes();
            let _ = model.forward(&mut context, &new).unwrap();
            paged_routes.extend(context.take_routes().unwrap().unwrap().ids().unwrap());
            let given = &routes[start * width..(start + len) * width];
            let given = Routes::new(given, [len, shape[1], shape[2]]).unwrap();
            let context = Context::paged(&mut kv, &table, &q_lens, &lens).unwrap();
            let paged = model.forward(&mut context.replaying_routes(given).unwrap(), &new).unwrap();
            let diff = max_diff(&paged, &want.narrow(0, start as i64, len as i64));
            assert!(diff < 2e-5, "{name}: paged at {start} differs by {diff}");
        }
        assert_eq!(paged_routes, routes, "{name}: experts of pages");
    }
}

#[test]
fn routes_of_another_shape_are_refused() {
    let model = load("glm4_moe", Kind::Float);
    let packed = || Context::packed(&[Segment::alone(0, 4)], Kind::Float, Device::Cpu).unwrap();
    let routes = |shape: [usize; 3]| Routes::new(&vec![0; shape.iter().product()], shape).unwrap();
    let error = packed().replaying_routes(routes([3, 2, 3])).unwrap_err().to_string();
    assert_eq!(error, "tokens with experts to replay: expected 4, got 3");
    let run = |shape| model.forward(&mut packed().replaying_routes(routes(shape)).unwrap(), &ids(4, 0));
    assert_eq!(run([4, 1, 3]).unwrap_err().to_string(), "layers with experts to replay: expected 2, got 1");
    assert_eq!(run([4, 2, 2]).unwrap_err().to_string(), "experts to replay: expected [4, 3], got [4, 2]");
}
