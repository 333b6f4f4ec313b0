//! Bytes as hexadecimal digits.

/// Returns two lower-case digits for each byte.
pub fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}
