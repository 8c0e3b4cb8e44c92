//! Floating-point operations of a forward pass, counted over the tokens that are really computed.

use slime_config::HfConfig;

use crate::MicroBatch;

/// Operations of a dense model's forward pass over `batch`: 2 for each multiply-add of its matrix products, the products
/// of queries with the keys and values they see included; norms, rotations and activations left out (as
/// `calculate_fwd_flops` of slime counts, there without shared prompts).
pub fn forward_flops(config: &HfConfig, batch: &MicroBatch) -> f64 {
    let (hidden, layers) = (config.hidden_size as f64, config.num_hidden_layers as f64);
    let queries = (config.num_attention_heads * config.head_dim) as f64;
    let keys = (config.num_key_value_heads * config.head_dim) as f64;
    let projections = hidden * (queries + 2.0 * keys) + queries * hidden;
    let mlp = 3.0 * hidden * config.intermediate_size as f64;
    // A token sees its prefix, the tokens of its segment before it, and itself.
    let pairs: f64 = batch
        .segments
        .iter()
        .map(|segment| {
            let (len, prefix_len) = (segment.len as f64, segment.prefix.map_or(0, |(_, len)| len) as f64);
            len * prefix_len + len * (len + 1.0) / 2.0
        })
        .sum();
    let body = layers * (2.0 * batch.tokens.len() as f64 * (projections + mlp) + 4.0 * queries * pairs);
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
            places: vec![],
        };
        let mut expected = 0;
        for seen in [1, 2, 3, 4, 5] {
            let products = h * q + 2 * h * k + q * h + 3 * h * f;
            expected += layers * (2 * products + 2 * 2 * q * seen);
        }
        expected += 2 * 2 * h * v;
        assert!((forward_flops(&config, &batch) - expected as f64).abs() < 0.5);
    }
}
