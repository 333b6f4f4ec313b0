//! Kernels of products: their shapes and their texts. Their dispatch is in `multiply`.
//!
//! A dispatch multiplies one to three matrices with the same rows. They may have different types, as queries, keys
//! and values do in some files. Each type is a namespace of the library, and a threadgroup runs one of them.

use std::fmt::Write as _;

use hunch_kernels::CodeTable;

use super::matrix::{FloatFormat, Matrix};
use super::packed::PackedFormat;
use super::shaders;

/// Most matrices of a dispatch.
pub const MAX_PARTS: usize = 3;

/// Activation rows of a threadgroup of a product. Each weight is loaded once for all of them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct TileRows(u32);

impl TileRows {
    /// All sizes. Up to 4 rows, weights are multiplied in registers, else by the matrix unit.
    pub const ALL: [Self; 7] = [Self(1), Self(2), Self(4), Self(8), Self(16), Self(32), Self(64)];

    /// Returns the size for a pass of `rows` rows.
    pub fn of(rows: usize) -> Self {
        Self((rows as u32).next_power_of_two().clamp(1, 64))
    }

    /// Returns the number of rows.
    pub fn rows(self) -> usize {
        self.0 as usize
    }

    /// Returns `true` if the matrix unit multiplies packed weights.
    pub fn has_matrices(self) -> bool {
        self.0 > 4
    }

    pub(super) fn threads(self) -> u32 {
        if self.has_matrices() { 256 } else { 64 }
    }

    /// Returns the bytes of threadgroup memory: weights of 8 simdgroups, later the sums of 8 partitions.
    pub(super) fn scratch(self) -> usize {
        if self.has_matrices() { 8192.max(256 * self.rows()) } else { 16 }
    }
}

/// Type of the weights of a product.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum WeightKernel {
    /// Packed weights, of the format whose kernels read them.
    Packed(PackedFormat),
    /// Float weights.
    Float(FloatFormat),
}

impl WeightKernel {
    /// Returns the type of a matrix.
    pub fn of(matrix: &Matrix) -> Self {
        match matrix {
            Matrix::Packed { format, .. } => Self::Packed(format.kernel()),
            Matrix::Float { format, .. } => Self::Float(*format),
        }
    }

    /// Returns the weight rows of a threadgroup.
    pub(super) fn columns(self, tile: TileRows) -> usize {
        match (self, tile.0) {
            (Self::Packed(_), _) => 16,
            (Self::Float(_), 1) => 2,
            (Self::Float(_), 2 | 4) => 8,
            (Self::Float(_), 8 | 16) => 32,
            (Self::Float(_), rows) => 512 / rows as usize,
        }
    }

    fn name(self) -> String {
        match self {
            Self::Packed(format) => format.dtype().to_string(),
            Self::Float(format) => format!("{format:?}"),
        }
    }

    /// Returns the settings and the text of the type.
    fn text(self) -> String {
        const SETTINGS: [&str; 7] = ["BITS", "OFFSET", "SCALES", "TABLE", "CODES", "FACTOR", "WEIGHTS"];
        let mut text: String = SETTINGS.iter().map(|name| format!("#undef {name}\n")).collect();
        match self {
            Self::Packed(format) => {
                text += &packed_settings(format);
                text += shaders::BLOCKS;
                text += shaders::PRODUCT;
            }
            Self::Float(format) => {
                text += &format!("#define WEIGHTS {}\n", format.setting());
                text += shaders::FLOATS;
                text += shaders::FLOAT_PRODUCT;
            }
        }
        text
    }
}

/// Returns the settings of a packed type.
pub(super) fn packed_settings(format: PackedFormat) -> String {
    let (bits, offset, scales) = (format.bits(), format.offset(), format.scales() as u32);
    let mut text = format!("#define BITS {bits}\n#define OFFSET {offset}\n#define SCALES {scales}\n");
    if let Some(CodeTable { values, factor }) = format.table() {
        let values: Vec<String> = values.iter().map(|value| format!("{value}.0f")).collect();
        // Types with the same settings have tables of their own.
        let _ = write!(text, "#define CODES {}\n#define FACTOR {factor:?}f\n", values.join(", "));
    }
    text
}

/// Kernels of the matrices of a dispatch, in order.
pub type PartKernels = [Option<WeightKernel>; MAX_PARTS];

/// Returns the types of matrices.
pub(super) fn parts<'a>(matrices: impl Iterator<Item = &'a Matrix>) -> PartKernels {
    let mut parts = PartKernels::default();
    for (part, matrix) in parts.iter_mut().zip(matrices) {
        *part = Some(WeightKernel::of(matrix));
    }
    parts
}

/// Returns the name and the text of the library of a product.
pub(super) fn source(tile: TileRows, parts: PartKernels) -> (String, String) {
    let parts: Vec<WeightKernel> = parts.into_iter().flatten().collect();
    let names: Vec<String> = parts.iter().map(|part| part.name()).collect();
    let mut text = format!("#define ROWS {}\n", tile.0);
    text += shaders::CAP;
    text += shaders::OUTPUT;
    for (i, part) in parts.iter().enumerate() {
        text += &format!("namespace part{i} {{\n{}}}\n", part.text());
    }
    text += &entry(tile, parts.len());
    (format!("multiply-{}-{}", tile.0, names.join("-")), text)
}

/// Parameters of the weights and of the output of a part.
const PART_PARAMETERS: [&str; 6] = [
    "device const void* low",
    "device const uint* high",
    "device const void* scales",
    "device const half2* supers",
    "device const float* bias",
    "device float* out",
];

/// Returns the name and the text of the library of a product of experts.
pub(super) fn expert_source(tile: TileRows, parts: PartKernels) -> (String, String) {
    let parts: Vec<WeightKernel> = parts.into_iter().flatten().collect();
    let names: Vec<String> = parts.iter().map(|part| part.name()).collect();
    let mut text = format!("#define ROWS {}\n#define EXPERTS\n", tile.0);
    text += shaders::CAP;
    text += shaders::OUTPUT;
    let (mut parameters, mut calls) = (String::new(), String::new());
    for (i, part) in parts.iter().enumerate() {
        // Parts of one type share its text.
        let same = parts.iter().position(|other| other == part).unwrap_or(i);
        if same == i {
            text += &format!("namespace part{i} {{\n{}}}\n", part.text());
        }
        for (j, kind) in PART_PARAMETERS.into_iter().enumerate() {
            parameters += &format!("    {kind}{i} [[buffer({})]],\n", 7 + 6 * i + j);
        }
        calls += &format!(
            "  if (at < all.part[{i}].product.groups) {{
    constant Expert& own = all.part[{i}];
    part{same}::multiply(own.product, (device const uchar*)low{i} + expert * own.low,
                     (device const uint*)((device const uchar*)high{i} + expert * own.high),
                     (device const uchar*)scales{i} + expert * own.scales,
                     (device const half2*)((device const uchar*)supers{i} + expert * own.supers),
                     bias{i} + expert * own.product.n, out{i}, x, x_scales, x_sums, x_floats, scratch, uint2(at, 0),
                     index, lane, simdgroup, order + block[1], block[2], all.divide);
    return;
  }}
  at -= all.part[{i}].product.groups;
"
        );
    }
    text += &format!(
        "struct Expert {{ Product product; uint low, high, scales, supers; }};   // with the bytes of an expert
struct Products {{ uint divide; Expert part[{}]; }};
[[kernel, max_total_threads_per_threadgroup({})]] void multiply_experts(
    constant Products& all [[buffer(0)]], device const void* x [[buffer(1)]], device const float* x_scales [[buffer(2)]],
    device const short2* x_sums [[buffer(3)]], device const float4* x_floats [[buffer(4)]],
    device const uint* order [[buffer(5)]], device const uint* blocks [[buffer(6)]],
{parameters}    threadgroup half* scratch [[threadgroup(0)]], uint2 group [[threadgroup_position_in_grid]],
    uint index [[thread_index_in_threadgroup]], uint lane [[thread_index_in_simdgroup]],
    uint simdgroup [[simdgroup_index_in_threadgroup]]) {{
  // There are threadgroups for the most blocks that are possible.
  if (group.y >= blocks[0]) return;
  device const uint* block = blocks + 4 * (1 + group.y);
  const ulong expert = block[0];
  uint at = group.x;
{calls}}}
",
        parts.len(),
        tile.threads()
    );
    (format!("experts-{}-{}", tile.0, names.join("-")), text)
}

/// Returns the kernel function. The threadgroups of a part follow those of the part before it.
fn entry(tile: TileRows, parts: usize) -> String {
    let (mut parameters, mut calls) = (String::new(), String::new());
    for i in 0..parts {
        let first = 5 + 6 * i;
        for (j, kind) in PART_PARAMETERS.into_iter().enumerate() {
            parameters += &format!("    {kind}{i} [[buffer({})]],\n", first + j);
        }
        calls += &format!(
            "  if (at < all.part[{i}].groups) {{
    part{i}::multiply(all.part[{i}], low{i}, high{i}, scales{i}, supers{i}, bias{i}, out{i}, x, x_scales, x_sums,
                    x_floats, scratch, uint2(at, group.y), index, lane, simdgroup);
    return;
  }}
  at -= all.part[{i}].groups;
"
        );
    }
    format!(
        "struct Products {{ Product part[{parts}]; }};
[[kernel, max_total_threads_per_threadgroup({})]] void multiply(
    constant Products& all [[buffer(0)]], device const void* x [[buffer(1)]], device const float* x_scales [[buffer(2)]],
    device const short2* x_sums [[buffer(3)]], device const float4* x_floats [[buffer(4)]],
{parameters}    threadgroup half* scratch [[threadgroup(0)]], uint2 group [[threadgroup_position_in_grid]],
    uint index [[thread_index_in_threadgroup]], uint lane [[thread_index_in_simdgroup]],
    uint simdgroup [[simdgroup_index_in_threadgroup]]) {{
  uint at = group.x;
{calls}}}
",
        tile.threads()
    )
}
