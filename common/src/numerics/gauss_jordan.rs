//! Gauss-Jordan elimination without row exchanges, for small positive definite systems.
//!
//! For several right-hand sides or an inverse; one right-hand side alone is cheaper with
//! [`super::Cholesky`].

/// Solves the augmented system `[A | B]`, given by rows; in place, `A` becomes the identity and `B`
/// the solution of `A X = B`. `A` has as many columns as there are rows. `None` where a pivot is not
/// finite and positive, which a positive definite `A` excludes; `system` is then left half reduced.
#[must_use]
pub fn solve(system: &mut [Vec<f64>]) -> Option<()> {
    for i in 0..system.len() {
        let pivot = system[i][i];
        if !(pivot.is_finite() && pivot > 0.0) {
            return None;
        }
        let (before, rest) = system.split_at_mut(i);
        let (row, after) = rest.split_first_mut()?;
        for cell in &mut row[i..] {
            *cell /= pivot;
        }
        for other in before.iter_mut().chain(after) {
            let factor = other[i];
            for (cell, value) in other[i..].iter_mut().zip(&row[i..]) {
                *cell -= factor * value;
            }
        }
    }
    Some(())
}

/// Inverse of a positive definite matrix given by rows; `None` as for [`solve`].
#[must_use]
pub fn inverse(matrix: Vec<Vec<f64>>) -> Option<Vec<Vec<f64>>> {
    let rows = matrix.len();
    let mut system = matrix;
    for (i, row) in system.iter_mut().enumerate() {
        row.extend((0..rows).map(|j| f64::from(u8::from(i == j))));
    }
    solve(&mut system)?;
    Some(system.into_iter().map(|mut row| row.split_off(rows)).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn known_system_and_inverse() {
        let mut system = vec![vec![4.0, 2.0, 2.0], vec![2.0, 3.0, 5.0]];
        solve(&mut system).unwrap();
        assert!((system[0][2] + 0.5).abs() < 1e-12 && (system[1][2] - 2.0).abs() < 1e-12);
        let inverse = inverse(vec![vec![4.0, 2.0], vec![2.0, 3.0]]).unwrap();
        let expected = [[0.375, -0.25], [-0.25, 0.5]];
        for (row, expected) in inverse.iter().zip(expected) {
            assert!(row.iter().zip(expected).all(|(a, b)| (a - b).abs() < 1e-12), "{inverse:?}");
        }
    }

    #[test]
    fn singular_matrix_has_no_inverse() {
        assert_eq!(inverse(vec![vec![1.0, 1.0], vec![1.0, 1.0]]), None);
    }
}
