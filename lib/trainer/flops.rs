//! Floating-point operations of a forward pass, counted over the tokens that are really computed.

use slime_config::HfConfig;

use crate::MicroBatch;

/// Operations of a model's forward pass over `batch`: 2 for each multiply-add of its matrix products, the products
/// of queries with the keys and values they see included; norms, rotations and activations left out (as
/// `calculate_fwd_flops` of slime counts, there without shared prompts).
pub fn forward_flops(config: &HfConfig, batch: &MicroBatch) -> f64 {
    let (hidden, layers) = (config.hidden_size as f64, config.num_hidden_layers as f64);
    let queries = (config.num_attention_heads * config.head_dim) as f64;
    let keys = (config.num_key_value_heads * config.head_dim) as f64;
    let projections = hidden * (queries + 2.0 * keys) + queries * hidden;
    let (mut mlp, mut router) = (3.0 * hidden * config.intermediate_size as f64, 0.0);
    if let Some(moe) = &config.moe {
        // The mean over layers: some are dense, in the others a token goes through its experts and the shared one.
        let share = moe.layers.len() as f64 / layers;
        let width = moe.top_k * moe.intermediate_size + moe.shared_intermediate_size;
        mlp = (1.0 - share) * mlp + share * 3.0 * hidden * width as f64;
        router = share * hidden * moe.num_experts as f64;
    }
    // A token sees its prefix, the tokens of its segment before it, and itself.
    let pairs: f64 = batch
        .segments
        .iter()
        .map(|segment| {
            let (len, prefix_len) = (segment.len as f64, segment.prefix.map_or(0, |(_, len)| len) as f64);
            len * prefix_len + len * (len + 1.0) / 2.0
        })
        .sum();
    let body =
        layers * (2.0 * batch.tokens.len() as f64 * (projections + mlp + router) + 4.0 * queries * pairs);
    body + 2.0 * batch.rows.len() as f64 * hidden * config.vocab_size as f64
}

#[cfg(test)]
mod tests {
    use slime_model::Segment;

    use super::*;

    #[test]
    fn operations_are_those_of_every_product() {
        let dir = concat!(env!("CARGO_MANIFEST_DIR"), "/../../tests/fixtures/models/llama");
        let config = HfConfig::load(dir).unwrap();
        let (h, f, v, d) = (config.hidden_size, config.intermediate_size, config.vocab_size, config.head_dim);
        let (q, k, layers) =
            (config.num_attention_heads * d, config.num_key_value_heads * d, config.num_hidden_layers);
        // Three prompt tokens and two of a response that sees them; two tokens are predicted.
        let batch = MicroBatch {
            tokens: vec![0; 5],
            segments: vec![Segment::alone(0, 3), Segment::after((0, 3), 3, 2)],
            rows: vec![2, 3],
            targets: vec![0; 2],
            ..MicroBatch::default()
        };
        let mut expected = 0;
        for seen in [1, 2, 3, 4, 5] {
            let products = h * q + 2 * h * k + q * h + 3 * h * f;
            expected += layers * (2 * products + 2 * 2 * q * seen);
        }
        expected += 2 * 2 * h * v;
        assert!((forward_flops(&config, &batch) - expected as f64).abs() < 0.5);
    }

    #[test]
    fn experts_count_as_often_as_tokens_go_through_them() {
        let dir = concat!(env!("CARGO_MANIFEST_DIR"), "/../../tests/fixtures/models/glm4_moe");
        let sparse = HfConfig::load(dir).unwrap();
        let batch =
            MicroBatch { tokens: vec![0; 7], segments: vec![Segment::alone(0, 7)], ..MicroBatch::default() };
        let dense = HfConfig { moe: None, ..sparse.clone() };
        let moe = sparse.moe.as_ref().unwrap();
        assert_eq!((moe.layers.len(), sparse.num_hidden_layers), (2, 3));
        let mlp = 3 * sparse.hidden_size * sparse.intermediate_size;
        let width = moe.top_k * moe.intermediate_size + moe.shared_intermediate_size;
        let experts = 3 * sparse.hidden_size * width + sparse.hidden_size * moe.num_experts;
        let expected = 2.0 * 7.0 * 2.0 * (experts as f64 - mlp as f64);
        let got = forward_flops(&sparse, &batch) - forward_flops(&dense, &batch);
        assert!((got - expected).abs() < 0.5, "{got} and {expected}");
    }
}
