//! GPU types, derived from the names that NVML and Slurm report.
//!
//! Catalog, cluster specifications and messages use the short type (`v100`), not the product name
//! with board and memory size (`Tesla V100-SXM2-16GB`). Slurm's automatic detection derives the type
//! of a generic resource from NVML's name (`nvidia_a100-sxm4-80gb`, slurm.schedmd.com/gres.html);
//! sites also configure short names of their own.

/// Product lines, whose first words name no product: the model number, or a word of a Titan, follows.
const FAMILIES: [&str; 8] = ["rtx", "gtx", "gt", "cmp", "titan", "max", "flex", "pro"];
/// Words anywhere behind the model number that name another product: `RTX 4000` and `RTX 4000 SFF Ada` are
/// two cards.
const SUFFIXES: [&str; 6] = ["ti", "super", "sff", "ada", "laptop", "maxq"];

/// The words of a product name in lower case, without the vendor and the product line.
fn words(name: &str) -> Vec<String> {
    name.to_ascii_lowercase()
        .replace("max-q", "maxq")
        .split([' ', '-', '_'])
        .map(|word| word.chars().filter(char::is_ascii_alphanumeric).collect::<String>())
        .filter(|word| !word.is_empty())
        .filter(|word| !is_general(word))
        .collect()
}

/// Whether a word is that of a vendor or a product line, which many cards share.
fn is_general(word: &str) -> bool {
    const WORDS: &[&str] = &[
        "nvidia",
        "tesla",
        "quadro",
        "geforce",
        "grid",
        "amd",
        "instinct",
        "radeon",
        "intel",
        "intelr",
        "habana",
        "gpu",
        "gpus",
        "data",
        "center",
        "datacenter",
        "series",
    ];
    WORDS.contains(&word)
}

/// The type and the remaining words of a product name.
fn split(name: &str) -> (String, Vec<String>) {
    let mut words = words(name).into_iter();
    let mut gpu_type = words.next().unwrap_or_default();
    if FAMILIES.contains(&gpu_type.as_str()) {
        // `RTX PRO 6000`, `TITAN V`, `GTX TITAN X`.
        let mut more = if gpu_type == "titan" { 1 } else { 2 };
        while more > 0 && !gpu_type.contains(|c: char| c.is_ascii_digit()) {
            gpu_type.push_str(&words.next().unwrap_or_default());
            more -= 1;
        }
    }
    let (suffixes, words): (Vec<String>, Vec<String>) =
        words.partition(|word| SUFFIXES.contains(&word.as_str()));
    gpu_type.extend(suffixes);
    let gpu_type = match gpu_type.as_str() {
        "" => "unknown",
        // Short names that sites configure; `l` marks the larger memory.
        "a6000" => "rtxa6000",
        "v100l" | "v100s" => "v100",
        "p100l" => "p100",
        "a100l" => "a100",
        other => other,
    };
    (gpu_type.to_owned(), words)
}

/// The type of the GPU named `name`: lower-case letters and digits.
///
/// ```
/// use wattle_common::gpu_type::gpu_type_of;
///
/// assert_eq!(gpu_type_of("Tesla V100-SXM2-16GB"), "v100");
/// assert_eq!(gpu_type_of("NVIDIA GeForce RTX 2080 Ti"), "rtx2080ti");
/// assert_eq!(gpu_type_of("nvidia_a100-sxm4-80gb"), "a100");
/// ```
#[must_use]
pub fn gpu_type_of(name: &str) -> String {
    split(name).0
}

/// The types that a GPU named `name` may have in a catalog, most specific first: the type with form
/// factor, with memory size, and without either.
///
/// ```
/// use wattle_common::gpu_type::variants_of;
///
/// assert_eq!(variants_of("NVIDIA A100-PCIE-40GB"), ["a100-pcie", "a100-40gb", "a100"]);
/// assert_eq!(variants_of("a100-40gb"), ["a100-40gb", "a100"]);
/// ```
#[must_use]
pub fn variants_of(name: &str) -> Vec<String> {
    let (gpu_type, rest) = split(name);
    let variants = rest.iter().map(|word| format!("{gpu_type}-{word}"));
    variants.chain([gpu_type.clone()]).collect()
}

/// Whether a GPU of this type shares its module with a CPU: Grace Hopper and Grace Blackwell, which NVIDIA
/// names `GH` or `GB` with a number.
///
/// ```
/// use wattle_common::gpu_type::is_superchip;
///
/// assert!(is_superchip("gh200") && is_superchip("gb200"));
/// assert!(!is_superchip("h200") && !is_superchip("b200"));
/// ```
#[must_use]
pub fn is_superchip(gpu_type: &str) -> bool {
    let number = gpu_type.strip_prefix("gh").or_else(|| gpu_type.strip_prefix("gb"));
    number.is_some_and(|number| number.starts_with(|c: char| c.is_ascii_digit()))
}

/// Whether `name` is a part of a GPU by NVIDIA's Multi-Instance GPU (MIG): a number of compute slices, at most seven,
/// and the memory, as `a100_3g.20gb` or `1g.5gb` (NVIDIA MIG User Guide), the same without the dot, or a site's name
/// with the word `mig` or with less memory than any card of its type has, as `a100_10gb`.
///
/// ```
/// use wattle_common::gpu_type::is_slice;
///
/// assert!(is_slice("nvidia_a100-sxm4-40gb_3g.20gb") && is_slice("1g.10gb+me"));
/// assert!(is_slice("a100_1g5gb") && is_slice("mig-20"));
/// assert!(!is_slice("nvidia_a100-sxm4-80gb") && !is_slice("a100-80g"));
/// ```
#[must_use]
pub fn is_slice(name: &str) -> bool {
    if is_less_than_a_card(name) {
        return true;
    }
    let is_digits = |text: &str| !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    name.to_ascii_lowercase().split(['_', ' ', '-', '.', '+', ':']).any(|word| {
        let is_letter = |c: char| c.is_ascii_alphabetic();
        if let Some((before, after)) = word.split_once("mig") {
            // `mig`, `a100mig`, `mig20`, `mig1g5gb`; not `migration`.
            return !before.ends_with(is_letter) && !after.starts_with(is_letter);
        }
        let Some((slices, memory)) = word.split_once('g') else { return false };
        let gigabytes = memory.strip_suffix("gb").or_else(|| memory.strip_suffix('g'));
        let is_memory = memory.is_empty() || is_digits(gigabytes.unwrap_or(memory));
        matches!(slices, "1" | "2" | "3" | "4" | "5" | "6" | "7") && is_memory
    })
}

/// Whether a name has less memory than any card of its type, for the types that MIG divides.
fn is_less_than_a_card(name: &str) -> bool {
    let (gpu_type, rest) = split(name);
    // The least memory of a card, GB: NVIDIA's data sheets, and the H100 of 64 GB in MareNostrum 5.
    let least: u32 = match gpu_type.as_str() {
        "a30" => 24,
        "a100" | "a800" => 40,
        "h100" | "h800" => 64,
        "h20" | "gh200" => 96,
        "h200" => 141,
        "b200" => 180,
        _ => return false,
    };
    let memory = |word: &String| word.strip_suffix("gb").and_then(|gb| gb.parse::<u32>().ok());
    rest.iter().filter_map(memory).any(|gb| gb < least)
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
            ("NVIDIA RTX 6000 Ada Generation", "rtx6000ada"),
            ("NVIDIA RTX A6000", "rtxa6000"),
            ("NVIDIA TITAN V", "titanv"),
            ("NVIDIA TITAN RTX", "titanrtx"),
            ("GeForce GTX TITAN X", "gtxtitanx"),
            ("NVIDIA RTX PRO 6000 Blackwell Server Edition", "rtxpro6000"),
            ("NVIDIA RTX PRO 4500 Blackwell", "rtxpro4500"),
            ("Quadro RTX 4000", "rtx4000"),
            ("NVIDIA RTX 4000 Ada Generation", "rtx4000ada"),
            ("NVIDIA RTX 4000 SFF Ada Generation", "rtx4000sffada"),
            ("NVIDIA RTX 2000 Ada Generation Laptop GPU", "rtx2000adalaptop"),
            ("NVIDIA GeForce RTX 4070 Ti", "rtx4070ti"),
            ("NVIDIA GeForce RTX 4070 Ti SUPER", "rtx4070tisuper"),
            ("NVIDIA GeForce RTX 2080 Super with Max-Q Design", "rtx2080supermaxq"),
            ("NVIDIA GeForce GT 1030", "gt1030"),
            ("NVIDIA CMP 170HX", "cmp170hx"),
            ("GRID A100-40C", "a100"),
            ("NVIDIA GB10", "gb10"),
            ("AMD Instinct MI250X", "mi250x"),
            ("AMD Instinct MI300X", "mi300x"),
            ("amd_mi210", "mi210"),
            ("Intel(R) Data Center GPU Max 1550", "max1550"),
            ("Intel(R) Data Center GPU Flex 170", "flex170"),
            ("gpu_a100", "a100"),
            ("", "unknown"),
            ("NVIDIA", "unknown"),
            ("Tesla  ü-K80", "k80"),
        ] {
            assert_eq!(gpu_type_of(name), gpu_type, "{name}");
        }
    }

    #[test]
    fn types_of_slurm_names() {
        for (name, gpu_type) in [
            ("a100", "a100"),
            ("A100", "a100"),
            ("nvidia_a100-sxm4-80gb", "a100"),
            ("nvidia_a100_80gb_pcie", "a100"),
            ("nvidia_h100_80gb_hbm3", "h100"),
            ("tesla_v100-sxm2-32gb", "v100"),
            ("nvidia_geforce_rtx_3090", "rtx3090"),
            ("rtx_a6000", "rtxa6000"),
            ("a6000", "rtxa6000"),
            ("nvidia_l40s", "l40s"),
            ("v100l", "v100"),
        ] {
            assert_eq!(gpu_type_of(name), gpu_type, "{name}");
        }
        assert_eq!(variants_of("nvidia_a100-sxm4-40gb"), ["a100-sxm4", "a100-40gb", "a100"]);
        assert_eq!(variants_of("h100"), ["h100"]);
    }

    #[test]
    fn slices_are_recognised() {
        for name in [
            "1g.5gb",
            "a100_3g.20gb",
            "nvidia_h100_80gb_hbm3_1g.10gb",
            "1g.10gb+me",
            "a100_1g5gb",
            "1g10gb",
            "2g_20gb",
            "3g40",
            "mig",
            "mig-small",
            "mig-3g",
            "mig20",
            "mig1g5gb",
            "a100_mig20",
            "a100mig",
            "h100_mig",
            "a100_10gb",
            "A100-20GB",
            "h100_40gb",
            "a30-12gb",
        ] {
            assert!(is_slice(name), "{name}");
        }
        for name in [
            "a100",
            "nvidia_a100-sxm4-80gb",
            "gb200",
            "rtx_a6000",
            "",
            "g",
            "a100-80g",
            "v100_32g",
            "a100_40gb",
            "NVIDIA A100-PCIE-40GB",
            "NVIDIA H100 80GB HBM3",
            "NVIDIA GH200 480GB",
            "a30-24gb",
            "v100-16gb",
            "migraine",
            "migration",
            "small",
        ] {
            assert!(!is_slice(name), "{name}");
        }
    }
}
