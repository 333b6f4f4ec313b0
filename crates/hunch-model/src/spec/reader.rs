//! Reads values of a model's metadata, with the errors for missing, invalid and unsupported ones.

use crate::gguf::Gguf;
use hunch_error::{Error, Result};

/// Reads values of an architecture, whose keys begin with its name.
pub(super) struct SpecReader<'a> {
    pub(super) gguf: &'a Gguf,
    pub(super) prefix: &'a str,
}

impl SpecReader<'_> {
    pub(super) fn key(&self, name: &str) -> String {
        format!("{}.{name}", self.prefix)
    }

    pub(super) fn invalid(&self, reason: String) -> Error {
        Error::InvalidModelFile { path: self.gguf.path.clone(), reason }
    }

    pub(super) fn unsupported(&self, reason: String) -> Error {
        Error::UnsupportedModel { path: self.gguf.path.clone(), reason }
    }

    pub(super) fn optional_size(&self, name: &str, max: usize) -> Result<Option<usize>> {
        let key = self.key(name);
        match self.gguf.u32(&key) {
            None if self.gguf.metadata.contains_key(&key) => {
                Err(self.invalid(format!("{key} is not a whole number")))
            }
            None => Ok(None),
            Some(value) if value >= 1 && value as usize <= max => Ok(Some(value as usize)),
            Some(value) => Err(self.invalid(format!("{key} is {value}, but it must be 1 to {max}"))),
        }
    }

    pub(super) fn size(&self, name: &str, max: usize) -> Result<usize> {
        self.optional_size(name, max)?.ok_or_else(|| self.invalid(format!("{} is missing", self.key(name))))
    }

    pub(super) fn positive(&self, name: &str, default: f32) -> Result<f32> {
        let value = self.gguf.f32(&self.key(name)).unwrap_or(default);
        if value.is_finite() && value > 0.0 {
            return Ok(value);
        }
        Err(self.invalid(format!("{} is {value}, but it must be positive", self.key(name))))
    }

    pub(super) fn epsilon(&self) -> Result<f64> {
        let eps = self.positive("attention.layer_norm_rms_epsilon", 1e-5)?;
        if eps < 0.1 {
            return Ok(f64::from(eps));
        }
        Err(self.invalid(format!("the epsilon of the norms is {eps}, but it must be below 0.1")))
    }

    pub(super) fn vocabulary(&self) -> Result<usize> {
        let embedding = self
            .gguf
            .tensors
            .get("token_embd.weight")
            .ok_or_else(|| self.invalid("the tensor token_embd.weight is missing".into()))?;
        match embedding.shape[..] {
            [n_vocab, _] if n_vocab >= 1 => Ok(n_vocab),
            _ => Err(self.invalid(format!("token_embd.weight has the shape {:?}", embedding.shape))),
        }
    }

    /// Reads a bound. Zero means none.
    pub(super) fn softcap(&self, name: &str, default: Option<f32>) -> Result<Option<f32>> {
        match self.gguf.f32(&self.key(name)) {
            None => Ok(default),
            Some(0.0) => Ok(None),
            Some(_) => self.positive(name, 1.0).map(Some),
        }
    }
}
