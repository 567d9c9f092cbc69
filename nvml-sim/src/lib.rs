//! A simulated GPU node behind NVML's own C interface, and a job that trains in numbers.
