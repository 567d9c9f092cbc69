//! Buddy blocks.
