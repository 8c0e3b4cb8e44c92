//! On-policy distillation: a teacher's opinion of each token that the student said.

/// `coef * (teacher_log_probs - log_probs)` for each trained token: the reverse-KL term that slime adds to an advantage
/// (`apply_opd_kl_to_advantages`), the sampled estimate of the gradient of -KL(student || teacher).
pub fn distillation(log_probs: &[f32], teacher_log_probs: &[f32], coef: f64) -> Vec<f32> {
    let term = |(own, teacher): (&f32, &f32)| (coef * (f64::from(*teacher) - f64::from(*own))) as f32;
    log_probs.iter().zip(teacher_log_probs).map(term).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_token_that_the_teacher_finds_likelier_is_good() {
        assert_eq!(distillation(&[-2.0, -1.0, -0.5], &[-1.0, -1.0, -2.5], 0.5), [0.5, 0.0, -1.0]);
    }
}
