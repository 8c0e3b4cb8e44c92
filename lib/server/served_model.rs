//! What a server asks of a model beyond forward passes: other weights in its place.

use std::path::Path;

use slime_engine::{ForwardModel, ModelRunner};

/// A model whose weights can change.
pub trait ServedModel: ForwardModel {
    /// Overwrites the weights with those of `dir`; when it fails they may be of both.
    ///
    /// # Errors
    /// The directory does not hold weights of the same shapes.
    fn load(&mut self, dir: &Path) -> slime_engine::Result<()>;
}

impl ServedModel for ModelRunner {
    fn load(&mut self, dir: &Path) -> slime_engine::Result<()> {
        self.reload(dir)
    }
}
