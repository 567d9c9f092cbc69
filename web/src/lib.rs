//! The live web page of a cluster.
