//! Reduced vocabularies of published heads: which token of the target each row of the head's output stands for.
//!
//! The tensor `d2t` has offsets in files of SafeAILab, SpecForge and `speculators` (token = row + offset), and tokens in
//! some conversions. Both list tokens in ascending order, so they can be distinguished.

use hunch_core::token::TokenId;

/// Returns the token of each row. `t2d` marks the tokens of the target that the head scores.
///
/// # Errors
/// If the entries are neither tokens nor offsets, or do not fit the target's vocabulary or `t2d`.
pub(super) fn draft_vocabulary(
    d2t: &[i64],
    t2d: Option<&[bool]>,
    n_vocab: usize,
) -> Result<Vec<TokenId>, String> {
    let offsets: Option<Vec<i64>> = (0i64..).zip(d2t).map(|(row, offset)| row.checked_add(*offset)).collect();
    let readings = [Some(d2t.to_vec()), offsets];
    let valid = |tokens: &Vec<i64>| {
        let ascending = tokens.is_sorted_by(|a, b| a < b);
        let inside = tokens.iter().all(|&token| usize::try_from(token).is_ok_and(|token| token < n_vocab));
        ascending && inside && !tokens.is_empty()
    };
    let mut valid = readings.into_iter().flatten().filter(valid).map(|tokens| {
        // `valid` checked the range.
        tokens.into_iter().map(|token| token as TokenId).collect::<Vec<_>>()
    });
    let Some(t2d) = t2d else {
        // Offsets of a real vocabulary repeat wherever two neighbours are both scored, so they do not ascend.
        return valid.next().ok_or_else(|| {
            format!(
                "d2t has neither tokens nor offsets of tokens of a vocabulary of {n_vocab} in ascending order"
            )
        });
    };
    let marked: Vec<TokenId> =
        (0..).zip(t2d).filter(|(_, marked)| **marked).map(|(token, _)| token).collect();
    valid.find(|tokens| *tokens == marked).ok_or_else(|| {
        format!("d2t and t2d name different tokens, or tokens outside a vocabulary of {n_vocab}")
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_token_tables_and_offset_tables() {
        let tokens = [0, 1, 2, 5, 6, 9];
        let offsets = [0, 0, 0, 2, 2, 4];
        for d2t in [tokens, offsets] {
            assert_eq!(draft_vocabulary(&d2t, None, 10).unwrap(), [0, 1, 2, 5, 6, 9]);
        }
        // The whole vocabulary.
        assert_eq!(draft_vocabulary(&[0, 0, 0], None, 3).unwrap(), [0, 1, 2]);
        assert_eq!(draft_vocabulary(&[0, 1, 2], None, 3).unwrap(), [0, 1, 2]);
    }

    #[test]
    fn marks_decide_between_two_readings() {
        let marked = |tokens: &[usize]| (0..8).map(|token| tokens.contains(&token)).collect::<Vec<_>>();
        assert_eq!(draft_vocabulary(&[1, 2, 3], Some(&marked(&[1, 2, 3])), 8).unwrap(), [1, 2, 3]);
        assert_eq!(draft_vocabulary(&[1, 2, 3], Some(&marked(&[1, 3, 5])), 8).unwrap(), [1, 3, 5]);
        assert!(draft_vocabulary(&[1, 2, 3], Some(&marked(&[1, 2, 4])), 8).is_err());
    }

    #[test]
    fn refuses_tables_of_neither_kind() {
        for d2t in
            [&[3, 1, 2][..], &[0, 5, 3], &[-1, 0, 0], &[0, 0, 9], &[4, 9, 12], &[i64::MAX, i64::MAX], &[]]
        {
            assert!(draft_vocabulary(d2t, None, 10).is_err(), "{d2t:?}");
        }
    }
}
