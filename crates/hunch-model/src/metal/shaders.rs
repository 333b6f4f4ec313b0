//! Texts of the shaders. Their settings, and which of them make a kernel, are in `kernels` and `products`.

pub(super) const ATTENTION: &str = include_str!("shaders/attention.metal");
pub(super) const BLOCKS: &str = include_str!("shaders/blocks.metal");
pub(super) const CAP: &str = include_str!("shaders/cap.metal");
pub(super) const CHOOSE: &str = include_str!("shaders/choose.metal");
pub(super) const CONVOLUTION: &str = include_str!("shaders/convolution.metal");
pub(super) const DELTA_NET: &str = include_str!("shaders/delta_net.metal");
pub(super) const EXPERTS: &str = include_str!("shaders/experts.metal");
pub(super) const FLOAT_PRODUCT: &str = include_str!("shaders/float_product.metal");
pub(super) const FLOATS: &str = include_str!("shaders/floats.metal");
pub(super) const OUTPUT: &str = include_str!("shaders/output.metal");
pub(super) const PRODUCT: &str = include_str!("shaders/product.metal");
pub(super) const ROWS: &str = include_str!("shaders/rows.metal");
pub(super) const TAKE_ROWS: &str = include_str!("shaders/take_rows.metal");

/// All of them.
pub(super) const ALL: [&str; 13] = [
    ATTENTION,
    BLOCKS,
    CAP,
    CHOOSE,
    CONVOLUTION,
    DELTA_NET,
    EXPERTS,
    FLOAT_PRODUCT,
    FLOATS,
    OUTPUT,
    PRODUCT,
    ROWS,
    TAKE_ROWS,
];
