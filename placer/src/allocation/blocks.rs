//! Which free GPUs of one node a job gets: aligned blocks, whole boards.
//!
//! A block of a power of two at a multiple of its size lies on one board, since boards are powers of
//! two as well; only sizes that are none have to be told where boards end.

use crate::state::gpu_set::{lowest, ones};

/// Whether these GPUs lie on several boards, and one could hold as many.
pub(super) fn is_split(gpus: u64, board: Option<u32>) -> bool {
    let Some(board) = board.filter(|board| gpus.count_ones() <= *board) else { return false };
    gpus & !(ones(board) << (gpus.trailing_zeros() / board * board)) != 0
}

/// `count` free GPUs of a node: an aligned block from the smallest free one that holds it, which is
/// on one board; or, for a count that is no power of two, the lowest free ones, on the fullest board
/// that has room where boards are known.
pub(super) fn aligned(free: u64, count: u32, size: u32, board: Option<u32>) -> Option<u64> {
    if free.count_ones() < count {
        return None;
    }
    if !count.is_power_of_two() {
        let boards = board.into_iter().flat_map(|board| {
            let of_board = move |first| free & ones(board) << first;
            (0..size).step_by(board as usize).map(of_board)
        });
        let fits = boards.filter(|there| there.count_ones() >= count);
        let fullest = fits.min_by_key(|there| there.count_ones());
        return Some(lowest(fullest.unwrap_or(free), count));
    }
    let blocks = |width: u32| {
        (0..size)
            .step_by(width as usize)
            .filter(move |first| first + width <= size)
            .map(move |first| ones(width) << first)
            .filter(move |block| free & block == *block)
    };
    let mut width = count;
    // A block whose buddy is taken is tried before one that would break a larger block.
    let mut loosest = None;
    while width <= size {
        let next: Vec<u64> = blocks(width * 2).collect();
        let alone = blocks(width).find(|block| !next.iter().any(|larger| larger & block == *block));
        if let Some(block) = alone {
            return Some(lowest(block, count));
        }
        loosest = loosest.or_else(|| blocks(width).next());
        width *= 2;
    }
    // A node of an odd shape may have room without a whole block.
    loosest
        .map(|block| lowest(block, count))
        .or_else(|| (!size.is_multiple_of(count)).then(|| lowest(free, count)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blocks_are_aligned_and_break_as_little_as_may_be() {
        assert_eq!(aligned(0b1111_1111, 2, 8, None), Some(0b11));
        // 4..8 is whole: the pair comes from the broken half.
        assert_eq!(aligned(0b1111_0110, 1, 8, None), Some(0b10));
        assert_eq!(aligned(0b1111_1100, 2, 8, None), Some(0b1100));
        assert_eq!(aligned(0b0110_0110, 2, 8, None), None);
        assert_eq!(aligned(0b0110_0110, 3, 8, None), Some(0b10_0110));
        assert_eq!(aligned(0b11, 4, 8, None), None);
    }
    /// Whatever is free: what one board can hold is on one board, if it has so many free.
    #[test]
    fn what_a_board_can_hold_is_on_one_board() {
        for (size, board) in [(8, 4), (8, 2), (6, 2), (12, 4), (8, 8)] {
            for free in 0..1u64 << size {
                for count in 1..=board {
                    let chosen = aligned(free, count, size, Some(board));
                    let on_board = |first| free & ones(board) << first;
                    let mut boards = (0..size).step_by(board as usize).map(on_board);
                    let Some(chosen) = chosen else { continue };
                    assert_eq!((chosen.count_ones(), chosen & !free), (count, 0));
                    let could = boards.any(|there| there.count_ones() >= count);
                    let split = is_split(chosen, Some(board));
                    assert!(
                        !split || !could,
                        "{count} of {free:b}: {chosen:b} on boards of {board}"
                    );
                    assert!(!split || !count.is_power_of_two(), "{count} of {free:b}: {chosen:b}");
                }
            }
        }
        // Without boards, three lie where they come first; with them, where they are close.
        assert_eq!(aligned(0b1111_1000, 3, 8, None), Some(0b11_1000));
        assert_eq!(aligned(0b1111_1000, 3, 8, Some(4)), Some(0b111_0000));
    }
}
