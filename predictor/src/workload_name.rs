//! What the name of a declared class says: family, batch size, variant.
//!
//! `<family>[-b<batch>][-<variant>]`, as in `ResNet-18-b16` or `cifar100-shufflenetv2-b1024-adadelta`.
//! The family is what stands before the last `-b<digits>` (or `-bs<digits>`) token, the whole name
//! where there is none. A name is its owner's word and may say nothing; nobody must rely on it where
//! something was measured.

/// A name's parts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WorkloadName<'a> {
    /// The network and its data, whatever the batch.
    pub family: &'a str,
    /// Samples of a batch, where the name says so.
    pub batch: Option<u32>,
    /// What follows the batch; empty for none.
    pub variant: &'a str,
}

impl<'a> WorkloadName<'a> {
    /// The parts of `name`. Every name has some: at the least it is a family of its own.
    #[must_use]
    pub fn of(name: &'a str) -> Self {
        let whole = Self { family: name, batch: None, variant: "" };
        let mut end = name.len();
        while let Some(dash) = name[..end].rfind('-') {
            if let Some(batch) = batch(&name[dash + 1..end]).filter(|_| dash > 0) {
                let variant = name[end..].trim_start_matches('-');
                return Self { family: &name[..dash], batch: Some(batch), variant };
            }
            end = dash;
        }
        whole
    }
}

/// `b16` or `bs16`; a batch of nothing is no batch.
fn batch(token: &str) -> Option<u32> {
    let digits = token.strip_prefix("bs").or_else(|| token.strip_prefix('b'))?;
    let plain = !digits.is_empty() && digits.bytes().all(|c| c.is_ascii_digit());
    digits.parse().ok().filter(|n| plain && *n > 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_fall_into_parts() {
        for (name, family, batch, variant) in [
            ("ResNet-18-b16", "ResNet-18", Some(16), ""),
            (
                "cifar100-shufflenetv2-b1024-adadelta",
                "cifar100-shufflenetv2",
                Some(1024),
                "adadelta",
            ),
            ("imagenet-resnet50-bs256-amp-x2", "imagenet-resnet50", Some(256), "amp-x2"),
            ("vit-b16-b64", "vit-b16", Some(64), ""),
            ("A3C", "A3C", None, ""),
            ("bert-base", "bert-base", None, ""),
            ("b16", "b16", None, ""),
            ("-b16", "-b16", None, ""),
            ("x-b0", "x-b0", None, ""),
            ("x-b99999999999", "x-b99999999999", None, ""),
            ("x-b+5", "x-b+5", None, ""),
            ("", "", None, ""),
        ] {
            assert_eq!(WorkloadName::of(name), WorkloadName { family, batch, variant }, "{name}");
        }
    }
}
