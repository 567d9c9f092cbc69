//! Applies caps and clocks under a lease, and gives the card back safe.
