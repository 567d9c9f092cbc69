//! Positions of the points of a surface at default cap, clock and batch, by number of co-tenants.
//!
//! A surface has hundreds of points, most of them with co-tenants or at other settings. Policies look up the
//! speed of each pair of jobs many times between two surfaces.

use wattle_common::WorkloadId;
use wattle_common::messages::{Surface, SurfacePoint};

/// Consecutive points with the same co-tenants.
#[derive(Clone, Copy, Debug)]
struct Run {
    from: usize,
    until: usize,
}

/// Positions of the points of one surface.
#[derive(Clone, Debug, Default)]
pub(crate) struct SurfaceIndex {
    /// Without co-tenants, with one, with several; each in the order of the points.
    runs: [Vec<Run>; 3],
    /// The greatest finite relative speed with one co-tenant.
    pub(crate) relative_speed_max: f64,
}

fn is_default(point: &SurfacePoint) -> bool {
    point.cap_mw.is_none() && point.clock_mhz_max.is_none() && point.global_batch.is_none()
}

impl SurfaceIndex {
    /// The index of a surface.
    pub(crate) fn new(surface: &Surface) -> Self {
        let mut index = Self::default();
        for (at, point) in surface.points.iter().enumerate().filter(|(_, p)| is_default(p)) {
            if let ([_], speed) = (point.neighbours.as_slice(), point.relative_speed.mean)
                && speed.is_finite()
            {
                index.relative_speed_max = index.relative_speed_max.max(speed);
            }
            let runs = &mut index.runs[point.neighbours.len().min(2)];
            match runs.last_mut() {
                Some(last)
                    if last.until == at
                        && surface.points[last.from].neighbours == point.neighbours =>
                {
                    last.until = at + 1;
                }
                _ => runs.push(Run { from: at, until: at + 1 }),
            }
        }
        index
    }

    /// Visits the points with these co-tenants, sorted by class, in the order of the surface.
    pub(crate) fn for_each<'s>(
        &self,
        surface: &'s Surface,
        classes: &[&WorkloadId],
        mut visit: impl FnMut(&'s SurfacePoint),
    ) {
        for run in &self.runs[classes.len().min(2)] {
            let neighbours = &surface.points[run.from].neighbours;
            if neighbours.iter().eq(classes.iter().copied()) {
                surface.points[run.from..run.until].iter().for_each(&mut visit);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use wattle_common::Power;
    use wattle_testkit as testkit;

    /// Points of equal co-tenants need not be adjacent.
    #[test]
    fn every_default_point_is_found_in_order() {
        let class = |name: &str| WorkloadId::new(name).unwrap();
        let (a, b) = (class("a"), class("b"));
        let sets = [vec![], vec![a.clone()], vec![b.clone()], vec![a.clone(), b.clone()]];
        let mut points = Vec::new();
        for i in 0..24 {
            let mut point = testkit::point(1 + i / 4, 1.0, 200.0);
            point.neighbours = sets[(i % 7 % 4) as usize].clone();
            point.cap_mw = (i % 5 == 0).then(|| Power::from_w(200));
            points.push(point);
        }
        let surface = testkit::surface("j", "v100", points);
        let index = SurfaceIndex::new(&surface);
        for set in &sets {
            let classes: Vec<&WorkloadId> = set.iter().collect();
            let mut found = Vec::new();
            index.for_each(&surface, &classes, |point| found.push(point));
            let all = surface.points.iter().filter(|p| is_default(p) && p.neighbours == *set);
            assert_eq!(found, all.collect::<Vec<_>>());
            assert!(!found.is_empty());
        }
    }
}
