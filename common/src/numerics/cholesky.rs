//! Cholesky factorisation of symmetric positive definite matrices: `A = L Lᵀ`.
//!
//! The lower triangle is stored packed, row by row, so that every inner product runs over two
//! contiguous slices. Factoring costs `n³ / 6` multiplications, a solution `n²`.

/// Smallest accepted pivot, relative to its diagonal element: below it, rounding decides.
const PIVOT_MIN: f64 = 1e-12;

/// Lower triangular factor `L`.
#[derive(Clone, Debug, PartialEq)]
pub struct Cholesky {
    rows: usize,
    factor: Vec<f64>,
}

/// Index of the first element of row `i` in a packed lower triangle.
#[must_use]
pub const fn row_start(i: usize) -> usize {
    i * (i + 1) / 2
}

impl Cholesky {
    /// Factors the matrix whose lower triangle is `packed`; `None` where it is not positive
    /// definite, or not finite.
    ///
    /// # Panics
    /// Where `packed` does not have `rows (rows + 1) / 2` elements.
    #[must_use]
    pub fn factor(mut packed: Vec<f64>, rows: usize) -> Option<Self> {
        assert_eq!(packed.len(), row_start(rows), "packed lower triangle of {rows} rows");
        for i in 0..rows {
            let (above, row) = packed.split_at_mut(row_start(i));
            for j in 0..i {
                let other = &above[row_start(j)..=row_start(j) + j];
                row[j] = (row[j] - dot(&row[..j], &other[..j])) / other[j];
            }
            let pivot = row[i] - dot(&row[..i], &row[..i]);
            if !(pivot.is_finite() && pivot > PIVOT_MIN * row[i]) {
                return None;
            }
            row[i] = pivot.sqrt();
        }
        Some(Self { rows, factor: packed })
    }

    fn row(&self, i: usize) -> &[f64] {
        &self.factor[row_start(i)..=row_start(i) + i]
    }

    /// Solves `L x = b` in place.
    ///
    /// # Panics
    /// Where `b` is longer than the matrix has rows.
    pub fn solve_lower(&self, b: &mut [f64]) {
        for i in 0..b.len() {
            let row = self.row(i);
            b[i] = (b[i] - dot(&row[..i], &b[..i])) / row[i];
        }
    }

    /// Solves `Lᵀ x = b` in place.
    ///
    /// # Panics
    /// Where `b` is longer than the matrix has rows.
    pub fn solve_upper(&self, b: &mut [f64]) {
        for i in (0..b.len()).rev() {
            let row = self.row(i);
            b[i] /= row[i];
            let value = b[i];
            for (b, l) in b[..i].iter_mut().zip(row) {
                *b -= l * value;
            }
        }
    }

    /// Solves `A x = b` in place.
    ///
    /// # Panics
    /// Where `b` is longer than the matrix has rows.
    pub fn solve(&self, b: &mut [f64]) {
        self.solve_lower(b);
        self.solve_upper(b);
    }

    /// Half the natural logarithm of the determinant of `A`.
    #[must_use]
    pub fn half_ln_determinant(&self) -> f64 {
        (0..self.rows).map(|i| self.factor[row_start(i) + i].ln()).sum()
    }
}

/// Inner product, with eight partial sums so that the compiler can use vector instructions.
#[must_use]
pub fn dot(x: &[f64], y: &[f64]) -> f64 {
    const LANES: usize = 8;
    let length = x.len().min(y.len());
    let (x, y) = (x[..length].chunks_exact(LANES), y[..length].chunks_exact(LANES));
    let rest = x.remainder().iter().zip(y.remainder());
    let mut sums = [0.0; LANES];
    for (x, y) in x.zip(y) {
        for ((sum, x), y) in sums.iter_mut().zip(x).zip(y) {
            *sum += x * y;
        }
    }
    let [a, b, c, d, e, f, g, h] = sums;
    let whole = (a + e) + (b + f) + (c + g) + (d + h);
    rest.fold(whole, |sum, (x, y)| sum + x * y)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rng::Stream;

    #[test]
    fn known_system_is_solved() {
        // [[4, 2], [2, 3]] x = [2, 5] has the solution [-0.5, 2]; the determinant is 8.
        let factor = Cholesky::factor(vec![4.0, 2.0, 3.0], 2).unwrap();
        let mut x = vec![2.0, 5.0];
        factor.solve(&mut x);
        assert!((x[0] + 0.5).abs() < 1e-12 && (x[1] - 2.0).abs() < 1e-12, "{x:?}");
        assert!((2.0 * factor.half_ln_determinant() - 8f64.ln()).abs() < 1e-12);
    }

    #[test]
    fn indefinite_singular_and_infinite_matrices_are_refused() {
        for matrix in [[1.0, 2.0, 1.0], [1.0, 1.0, 1.0], [f64::INFINITY, 0.0, 1.0]] {
            assert_eq!(Cholesky::factor(matrix.to_vec(), 2), None, "{matrix:?}");
        }
    }

    #[test]
    fn random_systems_are_solved() {
        let mut rng = Stream::new(11, "cholesky");
        for rows in [1, 3, 9, 30] {
            let basis: Vec<Vec<f64>> =
                (0..rows).map(|_| (0..rows).map(|_| rng.normal()).collect()).collect();
            let element =
                |i: usize, j: usize| dot(&basis[i], &basis[j]) + f64::from(u8::from(i == j));
            let packed = (0..rows).flat_map(|i| (0..=i).map(move |j| (i, j)));
            let packed = packed.map(|(i, j)| element(i, j)).collect();
            let expected: Vec<f64> = (0..rows).map(|_| rng.normal()).collect();
            let mut x: Vec<f64> =
                (0..rows).map(|i| (0..rows).map(|j| element(i, j) * expected[j]).sum()).collect();
            Cholesky::factor(packed, rows).unwrap().solve(&mut x);
            for (x, expected) in x.iter().zip(&expected) {
                assert!((x - expected).abs() < 1e-9, "{rows}: {x} {expected}");
            }
        }
    }
}
