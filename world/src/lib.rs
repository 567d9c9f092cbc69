//! What hardware would do: measured tables and how they are interpolated.
