//! What a model comes to on a layout of ranks, from its `config.json` alone.

use std::path::Path;

use serde_json::{Map, Value, json};
use slime_cli::Failure;
use slime_config::Pipeline;
use slime_weights::{Plan, PlanLayout, StageShare, gib};

use super::{Report, table};
use crate::args::Layout;
use crate::failure;

pub fn report(path: &Path, layout: Layout) -> Result<Report, Failure> {
    let path = if path.is_dir() { path.join("config.json") } else { path.to_owned() };
    let text = std::fs::read_to_string(&path).map_err(|error| Failure::open(path.display(), &error))?;
    let Layout { tp, pp, cp, ep, etp, dp } = layout;
    let plan = Plan::new(&text, &path, PlanLayout { tp, pipeline: Pipeline::even(pp), cp, ep, etp, dp })
        .map_err(failure)?;
    Ok(Report { json: json(&path, &plan), text: format!("{}\n{}", facts(&path, &plan), stages(&plan)) })
}

fn facts(path: &Path, plan: &Plan) -> String {
    let (PlanLayout { tp, cp, ep, etp, dp, .. }, pp) = (plan.layout, plan.layout.pp());
    let mtp = match plan.num_mtp_parameters {
        0 => String::new(),
        num => {
            format!("{num} in layers that predict further tokens, {} with them", plan.num_parameters + num)
        }
    };
    let kinds: Vec<String> = plan.by_kind.iter().map(|(kind, num)| format!("{kind} {num}")).collect();
    table::facts(&[
        ("path", path.display().to_string()),
        ("kind", format!("plan ({})", plan.model_type)),
        ("parameters", format!("{}, of which a token meets {}", plan.num_parameters, plan.num_activated)),
        ("beside them", mtp),
        ("of them", kinds.join("; ")),
        (
            "layout",
            format!(
                "tp {tp}, pp {pp}, cp {cp}, ep {ep}, etp {etp}, dp {dp}: {} ranks",
                plan.layout.world_size()
            ),
        ),
        ("KV cache", format!("{} bytes a token, all ranks of an engine together", plan.kv_bytes_per_token)),
    ])
}

/// A line for each stage: all its ranks hold as much.
fn stages(plan: &Plan) -> String {
    let head = [
        "stage",
        "layers",
        "heads",
        "KV heads",
        "experts",
        "vocabulary",
        "parameters",
        "weights",
        "gradients",
        "optimizer",
    ];
    let mut rows = vec![head.map(str::to_owned).to_vec()];
    rows.extend(plan.stages.iter().enumerate().map(|(stage, share)| {
        let vocabulary = if share.has_embedding || share.has_head { share.vocab_rows } else { 0 };
        vec![
            stage.to_string(),
            runs(share).map(|[start, end]| format!("{start}..{end}")).collect::<Vec<_>>().join(", "),
            share.heads.to_string(),
            share.key_value_heads.to_string(),
            share.experts.to_string(),
            vocabulary.to_string(),
            share.num_elements.to_string(),
            gib(share.weight_bytes()),
            gib(share.gradient_bytes()),
            gib(share.optimizer_bytes()),
        ]
    }));
    table::table(&rows)
}

fn json(path: &Path, plan: &Plan) -> Value {
    let (PlanLayout { tp, cp, ep, etp, dp, .. }, pp) = (plan.layout, plan.layout.pp());
    let kinds: Map<String, Value> =
        plan.by_kind.iter().map(|(kind, num)| ((*kind).to_owned(), Value::from(*num))).collect();
    json!({
        "path": path.display().to_string(),
        "kind": "plan",
        "model_type": plan.model_type,
        "layout": {"tp": tp, "pp": pp, "cp": cp, "ep": ep, "etp": etp, "dp": dp},
        "world_size": plan.layout.world_size(),
        "num_parameters": plan.num_parameters,
        "num_activated": plan.num_activated,
        "num_mtp_parameters": plan.num_mtp_parameters,
        "parameters_by_kind": kinds,
        "kv_bytes_per_token": plan.kv_bytes_per_token,
        "stages": plan.stages.iter().map(stage).collect::<Vec<_>>(),
    })
}

fn stage(share: &StageShare) -> Value {
    json!({
        "layers": runs(share).collect::<Vec<_>>(),
        "has_embedding": share.has_embedding,
        "has_head": share.has_head,
        "vocab_rows": share.vocab_rows,
        "heads": share.heads,
        "key_value_heads": share.key_value_heads,
        "experts": share.experts,
        "num_parameters": share.num_elements,
        "weight_bytes": share.weight_bytes(),
        "gradient_bytes": share.gradient_bytes(),
        "optimizer_bytes": share.optimizer_bytes(),
    })
}

/// The layers of a stage.
fn runs(share: &StageShare) -> impl Iterator<Item = [usize; 2]> + '_ {
    share.layers.iter().map(|run| [run.start, run.end])
}
