//! GPU data sheets: default power cap and idle power by GPU type.
//!
//! A GPU type is known by its lower-case name (`v100`). A type without a data sheet is described by
//! the highest cap read from one of its GPUs, and otherwise by a guess that is marked as such.

/// Board power, watts, of each form factor of a GPU type, ascending.
const BOARD_POWER_W: &[(&str, &[f64])] = &[
    ("k80", &[300.0]),
    ("p100", &[250.0, 300.0]),
    ("v100", &[250.0, 300.0]),
    ("t4", &[70.0]),
    ("rtx6000", &[260.0]),
    ("rtx6000ada", &[300.0]),
    ("rtxa6000", &[300.0]),
    ("a10", &[150.0]),
    ("a40", &[300.0]),
    ("a100", &[250.0, 300.0, 400.0]),
    ("rtx3090", &[350.0]),
    ("rtx4090", &[450.0]),
    ("l4", &[72.0]),
    ("l40", &[300.0]),
    ("l40s", &[350.0]),
    ("h100", &[350.0, 400.0, 700.0]),
    ("h200", &[600.0, 700.0]),
    ("b200", &[1_000.0]),
];

/// Idle power as a share of the default cap: data sheets and reports give 0.10 (H100) to 0.17
/// (P100, V100).
const IDLE_SHARE: f64 = 0.14;

/// Default cap assumed of an unknown GPU type, watts: a mid-sized training GPU.
const CAP_ASSUMED_W: f64 = 300.0;

/// Default cap of a GPU type.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct DefaultCap {
    /// Watts.
    pub watts: f64,
    /// Whether it was read from a GPU or a data sheet; otherwise it is a guess.
    pub known: bool,
}

/// Whether the GPU type has a data sheet here.
#[must_use]
pub fn is_known(gpu_type: &str) -> bool {
    board_power_w(gpu_type).is_some()
}

/// Board power of the forms of a GPU type; a variant (`a100-40gb`) has those of its type.
fn board_power_w(gpu_type: &str) -> Option<&'static [f64]> {
    let base = gpu_type.split_once('-').map_or(gpu_type, |(base, _)| base);
    BOARD_POWER_W.iter().find(|(name, _)| *name == base).map(|(_, forms)| *forms)
}

/// The default cap of `gpu_type`, from its data sheet and the highest cap seen on such a GPU.
///
/// Where a type has several form factors, the smallest that allows the cap seen.
#[must_use]
pub fn default_cap(gpu_type: &str, seen_max_w: Option<f64>) -> DefaultCap {
    let sheet = board_power_w(gpu_type);
    let seen = seen_max_w.filter(|w| w.is_finite() && *w > 0.0);
    let watts = match (sheet, seen) {
        (Some(forms), Some(seen)) => {
            Some(forms.iter().copied().find(|form| *form >= seen * 0.999).unwrap_or(seen))
        }
        (Some(forms), None) => forms.first().copied(),
        (None, seen) => seen,
    };
    match watts {
        Some(watts) => DefaultCap { watts, known: true },
        None => DefaultCap { watts: CAP_ASSUMED_W, known: false },
    }
}

/// Idle power, watts, of a GPU with this default cap; `lowest_w` is the lowest power seen under
/// load.
#[must_use]
pub fn idle_w(cap_default_w: f64, lowest_w: Option<f64>) -> f64 {
    let idle = IDLE_SHARE * cap_default_w;
    // Under load a GPU draws more than when idle.
    lowest_w.filter(|w| w.is_finite()).map_or(idle, |lowest| idle.min(0.95 * lowest))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn form_factor_follows_from_the_highest_cap_seen() {
        let watts = |gpu_type, seen| default_cap(gpu_type, seen).watts;
        assert!((watts("v100", None) - 250.0).abs() < 1e-9);
        assert!((watts("v100", Some(150.0)) - 250.0).abs() < 1e-9);
        assert!((watts("v100", Some(300.0)) - 300.0).abs() < 1e-9);
        assert!((watts("x1", Some(420.0)) - 420.0).abs() < 1e-9);
        assert!(!default_cap("x1", None).known && !default_cap("x1", Some(f64::NAN)).known);
    }
}
