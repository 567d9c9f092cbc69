//! Replays a trace through the service libraries under a virtual clock.
