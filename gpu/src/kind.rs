//! A card's kind, from the name that NVML gives.
//!
//! Catalog, cluster shapes and messages name a kind as people do (`v100`), not a product with its
//! board and memory (`Tesla V100-SXM2-16GB`). What is no letter or digit cannot stand in a shape, so
//! it is left out.

/// The kind of the card named `name`: lower case, letters and digits.
///
/// ```
/// assert_eq!(wattle_gpu::kind_of("Tesla V100-SXM2-16GB"), "v100");
/// assert_eq!(wattle_gpu::kind_of("NVIDIA GeForce RTX 2080 Ti"), "rtx2080ti");
/// ```
#[must_use]
pub fn kind_of(name: &str) -> String {
    let mut words = name
        .split([' ', '-', '_'])
        .map(|word| {
            word.chars()
                .filter(char::is_ascii_alphanumeric)
                .collect::<String>()
                .to_ascii_lowercase()
        })
        .filter(|word| !word.is_empty())
        .filter(|word| !matches!(word.as_str(), "nvidia" | "tesla" | "quadro" | "geforce"))
        .peekable();
    let mut kind = words.next().unwrap_or_default();
    // A family's name is not a kind without the model behind it.
    if matches!(kind.as_str(), "rtx" | "gtx" | "titan") {
        kind.push_str(&words.next().unwrap_or_default());
    }
    if let Some(suffix) = words.peek().filter(|word| matches!(word.as_str(), "ti" | "super")) {
        kind.push_str(suffix);
    }
    if kind.is_empty() { "unknown".to_owned() } else { kind }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kinds_are_what_people_say() {
        for (name, kind) in [
            ("Tesla V100-SXM2-16GB", "v100"),
            ("Tesla V100-PCIE-32GB", "v100"),
            ("Tesla P100-PCIE-16GB", "p100"),
            ("Tesla T4", "t4"),
            ("NVIDIA A100-SXM4-80GB", "a100"),
            ("NVIDIA A100 80GB PCIe", "a100"),
            ("A100-SXM4-40GB", "a100"),
            ("NVIDIA A40", "a40"),
            ("NVIDIA L40S", "l40s"),
            ("NVIDIA H100 80GB HBM3", "h100"),
            ("NVIDIA H200", "h200"),
            ("NVIDIA GH200 480GB", "gh200"),
            ("NVIDIA B200", "b200"),
            ("NVIDIA GeForce RTX 3090", "rtx3090"),
            ("NVIDIA GeForce RTX 2080 Ti", "rtx2080ti"),
            ("Quadro RTX 6000", "rtx6000"),
            ("NVIDIA RTX A6000", "rtxa6000"),
            ("NVIDIA TITAN V", "titanv"),
            ("", "unknown"),
            ("NVIDIA", "unknown"),
            ("Tesla  ü-K80", "k80"),
        ] {
            assert_eq!(kind_of(name), kind, "{name}");
        }
    }
}
