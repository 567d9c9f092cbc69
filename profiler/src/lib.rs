//! Watches GPUs and jobs: samples, step rates, windows, attribution.
