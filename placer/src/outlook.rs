//! Reads surfaces.
