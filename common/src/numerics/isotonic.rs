//! Isotonic regression: the monotone sequence closest to given values in weighted least squares.
//!
//! Adjacent values that violate the order are pooled into their weighted mean until none does
//! (pool adjacent violators; Barlow, Bartholomew, Bremner and Brunk, "Statistical Inference under
//! Order Restrictions", 1972).

/// Closest non-decreasing sequence to `(value, weight)` pairs. Weights are greater than zero.
#[must_use]
pub fn non_decreasing(values: impl Iterator<Item = (f64, f64)>) -> Vec<f64> {
    pool(values, |before, after| before > after)
}

/// Closest non-increasing sequence to `(value, weight)` pairs. Weights are greater than zero.
#[must_use]
pub fn non_increasing(values: impl Iterator<Item = (f64, f64)>) -> Vec<f64> {
    pool(values, |before, after| before < after)
}

struct Block {
    mean: f64,
    weight: f64,
    count: usize,
}

fn pool(values: impl Iterator<Item = (f64, f64)>, violates: impl Fn(f64, f64) -> bool) -> Vec<f64> {
    let mut blocks: Vec<Block> = Vec::new();
    for (mean, weight) in values {
        let mut block = Block { mean, weight, count: 1 };
        while let Some(last) = blocks.pop_if(|last| violates(last.mean, block.mean)) {
            let weight = last.weight + block.weight;
            let mean = (last.mean * last.weight + block.mean * block.weight) / weight;
            block = Block { mean, weight, count: last.count + block.count };
        }
        blocks.push(block);
    }
    blocks.into_iter().flat_map(|block| std::iter::repeat_n(block.mean, block.count)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn even(values: &[f64]) -> impl Iterator<Item = (f64, f64)> {
        values.iter().map(|value| (*value, 1.0))
    }

    #[test]
    fn violations_are_pooled_by_weight() {
        let falling = |values: &[f64]| non_increasing(even(values));
        assert_eq!(falling(&[3.0, 2.0, 1.0]), [3.0, 2.0, 1.0]);
        assert_eq!(falling(&[3.0, 1.0, 2.0, 0.0]), [3.0, 1.5, 1.5, 0.0]);
        assert_eq!(falling(&[1.0, 2.0, 3.0]), [2.0, 2.0, 2.0]);
        assert_eq!(falling(&[]), Vec::<f64>::new());
        assert_eq!(non_increasing([(1.0, 3.0), (2.0, 1.0)].into_iter()), [1.25, 1.25]);
        assert_eq!(non_decreasing(even(&[1.0, 3.0, 2.0, 4.0])), [1.0, 2.5, 2.5, 4.0]);
    }
}
