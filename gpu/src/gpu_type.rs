//! GPU types, derived from the names that NVML reports.
//!
//! Catalog, cluster specifications and messages use the short type (`v100`), not the product name
//! with board and memory size (`Tesla V100-SXM2-16GB`).

/// The type of the GPU named `name`: lower-case letters and digits.
///
/// ```
/// assert_eq!(wattle_gpu::gpu_type_of("Tesla V100-SXM2-16GB"), "v100");
/// assert_eq!(wattle_gpu::gpu_type_of("NVIDIA GeForce RTX 2080 Ti"), "rtx2080ti");
/// ```
#[must_use]
pub fn gpu_type_of(name: &str) -> String {
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
    let mut gpu_type = words.next().unwrap_or_default();
    // A product family is only a type together with the model number.
    if matches!(gpu_type.as_str(), "rtx" | "gtx" | "titan") {
        gpu_type.push_str(&words.next().unwrap_or_default());
    }
    if let Some(suffix) = words.peek().filter(|word| matches!(word.as_str(), "ti" | "super")) {
        gpu_type.push_str(suffix);
    }
    if gpu_type.is_empty() { "unknown".to_owned() } else { gpu_type }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn types_of_common_gpu_names() {
        for (name, gpu_type) in [
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
            assert_eq!(gpu_type_of(name), gpu_type, "{name}");
        }
    }
}
