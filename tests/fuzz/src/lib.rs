//! Shared by the fuzz targets: the inputs they begin with, and a mutator for JSON.

pub mod json;
pub mod seeds;
pub mod template;
