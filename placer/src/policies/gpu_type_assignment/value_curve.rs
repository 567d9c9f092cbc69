//! The value of GPUs of one type to a job, as a function of their number.

use crate::policies::gpu_type_assignment::Value;
use crate::state::operating_points::OperatingPoints;

/// Values of the sizes of one job on one type, interpolated in the logarithm of the size.
#[derive(Debug)]
pub(super) struct ValueCurve {
    /// The least and the greatest size.
    pub(super) least: u32,
    pub(super) most: u32,
    /// log2 of the size, value; ascending, never falling.
    points: Vec<(f64, f64)>,
}

impl ValueCurve {
    pub(super) fn of(
        known: &OperatingPoints,
        sizes: impl Iterator<Item = u32>,
        value: &Value<'_>,
    ) -> Option<Self> {
        let values = sizes.filter(|&gpus| gpus > 0).filter_map(|gpus| {
            let value = value(known, gpus).filter(|value| value.is_finite())?;
            Some((gpus, value))
        });
        Self::from_values(values)
    }

    /// A curve through these sizes and values. A value below that of a smaller size counts as the
    /// smaller size's: the job would leave GPUs unused.
    pub(super) fn from_values(values: impl Iterator<Item = (u32, f64)>) -> Option<Self> {
        let mut points: Vec<(f64, f64)> = Vec::new();
        let (mut least, mut most) = (0, 0);
        for (gpus, value) in values {
            let value = points.last().map_or(value, |(_, before)| before.max(value));
            points.push((f64::from(gpus).log2(), value));
            (least, most) = (if least == 0 { gpus } else { least }, gpus);
        }
        (!points.is_empty()).then_some(Self { least, most, points })
    }

    /// The value of a share of GPUs, which may lie between two sizes. Less than the least size counts
    /// as the least size for part of the time.
    pub(super) fn at(&self, share: f64) -> f64 {
        let x = share.max(1e-9).log2();
        let next = self.points.partition_point(|point| point.0 <= x);
        match (next.checked_sub(1).map(|before| self.points[before]), self.points.get(next)) {
            (Some(a), Some(b)) => a.1 + (b.1 - a.1) * (x - a.0) / (b.0 - a.0),
            (Some(last), None) => last.1,
            (None, Some(first)) => first.1 + (x - first.0) * std::f64::consts::LN_2,
            (None, None) => 0.0,
        }
    }
}
