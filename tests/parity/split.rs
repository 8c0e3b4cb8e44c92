//! Every family split over ranks: the tensors that come together again, the logits and the log-probs are those of one rank.
//! (Gradients: `lib/trainer/tests/layouts.rs`.)

use std::sync::Arc;

use slime_comm::{Communicator, Layout, Mesh, Threads};
use slime_model::{Context, Extra, Model, Parallel, Segment, Shaping};
use tch::{Device, Kind, Tensor};

use crate::{FAMILIES, fixture, ids, load, max_diff};

/// Logits (of a split model those of the rank's ids) and log-probs of a packed batch.
fn pass(model: &Model) -> [Tensor; 2] {
    let segments = [Segment::alone(0, 6), Segment::after((0, 6), 6, 4), Segment::after((0, 6), 10, 3)];
    let mut context = Context::packed(&segments, Kind::Double, Device::Cpu).unwrap();
    let hidden_td = model.forward(&mut context, &ids(13, 1)).unwrap();
    let (log_probs, _) = model.head_log_probs(&hidden_td, &ids(13, 4), &Shaping::at(0.8)).unwrap();
    [model.logits(&hidden_td).unwrap(), log_probs]
}

fn rank(name: &str, comm: &Arc<dyn Communicator>, layout: Layout) -> ([Tensor; 2], Vec<(String, Tensor)>) {
    let mesh = Mesh::new(layout, layout.tp * layout.dp).unwrap();
    let parallel = Arc::new(Parallel::new(comm, mesh, Device::Cpu).unwrap());
    let model = Model::load_part(fixture(name), (Kind::Double, Device::Cpu), Extra::None, Some(parallel));
    let model = model.unwrap();
    let whole = model.params().whole_tensors().map(Result::unwrap);
    let whole = whole.filter_map(|(name, tensor)| Some((name, tensor?))).collect();
    (pass(&model), whole)
}

#[test]
fn split_families_give_the_tensors_and_numbers_of_one_rank() {
    for name in FAMILIES.into_iter().chain(["qwen3_moe_fused"]) {
        let alone = load(name, Kind::Double);
        let ([logits, log_probs], tensors) = (pass(&alone), alone.params().views().unwrap());
        let mut layouts = vec![Layout { tp: 2, ..Layout::default() }, Layout { tp: 4, ..Layout::default() }];
        if alone.config().moe.is_some() {
            layouts.push(Layout { dp: 2, ep: 2, ..Layout::default() });
            layouts.push(Layout { tp: 2, ep: 2, ..Layout::default() });
            layouts.push(Layout { tp: 2, etp: 2, ..Layout::default() });
        }
        for layout in layouts {
            let size = layout.tp * layout.dp;
            let ranks = Threads::spawn(size, |comm| {
                let comm: Arc<dyn Communicator> = Arc::new(comm);
                rank(name, &comm, layout)
            })
            .unwrap();
            let parts: Vec<&Tensor> = ranks[..layout.tp].iter().map(|rank| &rank.0[0]).collect();
            let diff = max_diff(&Tensor::cat(&parts, 1), &logits);
            assert!(diff < 1e-12, "{name}, {layout:?}: logits differ by {diff}");
            for rank in &ranks {
                let diff = max_diff(&rank.0[1], &log_probs);
                assert!(diff < 1e-12, "{name}, {layout:?}: log-probs differ by {diff}");
            }
            assert_eq!(ranks[0].1.len(), tensors.len());
            for ((got, tensor), (expected, alone)) in ranks[0].1.iter().zip(&tensors) {
                assert_eq!(got, expected, "{name}");
                assert!(tensor.equal(alone), "{name}, {layout:?}: {got}");
            }
        }
    }
}
