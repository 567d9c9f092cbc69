//! Parts of a workload class's name: family, batch size, variant.
//!
//! `<family>[-b<batch>][-<variant>]`, as in `ResNet-18-b16` or `cifar100-shufflenetv2-b1024-adadelta`. The
//! family is the part before the last `-b<digits>` (or `-bs<digits>`) token, or the complete name without
//! one. Users choose names freely, so measurements take precedence over them.

/// Parts of a name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WorkloadName<'a> {
    /// The network and its data, whatever the batch.
    pub family: &'a str,
    /// Batch size, if the name contains one.
    pub batch: Option<u32>,
    /// The part after the batch size, possibly empty.
    pub variant: &'a str,
}

impl<'a> WorkloadName<'a> {
    /// Parts of `name`; any name is at least a family.
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

/// `b16` or `bs16`; zero is not a batch size.
fn batch(token: &str) -> Option<u32> {
    let digits = token.strip_prefix("bs").or_else(|| token.strip_prefix('b'))?;
    let plain = !digits.is_empty() && digits.bytes().all(|c| c.is_ascii_digit());
    digits.parse().ok().filter(|n| plain && *n > 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_split_into_parts() {
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
